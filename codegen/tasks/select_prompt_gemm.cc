// Products of some or many rows with an encoded weight, as calls of kernels/linear/prompt_gemm.cuh.
#include "absl/strings/str_cat.h"
#include "codegen/tasks/left_operand.h"
#include "codegen/tasks/product_parts.h"
#include "codegen/tasks/select_internal.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

constexpr int kHalves = 1;  // of a tile: times 64 rows of a warpgroup

// Of some rows blocks share the stages of all tiles; of few, two blocks fit a multiprocessor.
bool SharesTiles(const ProductParts& parts) { return parts.most_rows <= kMaxEncodedGemmRows; }
bool HasFewRows(const ProductParts& parts) { return parts.most_rows <= kFewEncodedGemmRows; }
// Rows of x in a tile, at the most.
int MostTokensOf(const ProductParts& parts) {
  return HasFewRows(parts) ? kFewEncodedGemmRows : parts.most_rows <= kEncodedGemmMost ? kEncodedGemmMost : 256;
}
int SharedBytesOf(const ProductParts& parts) {
  return HasFewRows(parts) ? LeftGemmLayout::kSharedBytesOfTwo : LeftGemmLayout::kSharedBytes;
}

std::optional<Misfit> ProductMisfit(const ProductParts& parts) {
  if (parts.weight.is_dense() || parts.weight.is_of_bytes() || parts.weight.has_coded_x()) {
    return Misfit{"elements, or codes of x", "an encoded weight and floats"};
  }
  const EncodingFormat& format = *(parts.weight.format != nullptr ? parts.weight.format : parts.weight.superblock);
  if (const int64_t most = MostRowsInRegisters(format); parts.most_rows > most) {
    return Misfit{absl::StrCat("up to ", parts.most_rows, " rows"), absl::StrCat("up to ", most, " of ", format.name)};
  }
  if (parts.norm_node != nullptr) return Misfit{"a norm before the product", "x as it is"};
  if (parts.qkv.has_value()) return Misfit{"heads", "a bias, a residual or silu_mul"};
  if (DTypeBits(parts.dtype) != 16) return Misfit{std::string(DTypeName(parts.dtype)), "f16 or bf16"};
  return LeftOperandMisfit(parts.weight, parts.n, parts.k, 128 * kHalves, MostTokensOf(parts), SharedBytesOf(parts));
}

}  // namespace

Calls SelectPromptGemm(const KernelBody& body, const ProgramScope& scope) {
  if (!scope.target.wgmma) return Misfit{"a GPU without products of warpgroups", "sm_90a"};
  ProductParts parts;
  if (std::optional<Misfit> misfit = ReadProduct(body, scope, INT32_MAX, &parts)) return *misfit;
  if (std::optional<Misfit> misfit = ProductMisfit(parts)) return *misfit;
  const bool shares = SharesTiles(parts), is_few = HasFewRows(parts);
  const int blocks = is_few ? 2 : 1;
  const int64_t grid = scope.target.sms * blocks, ordered_bytes = CeilDiv(parts.most_rows * parts.k * 2, 1024) * 1024;
  const KernelArg ordered = KernelArg::OfScratch(shares ? Size(ordered_bytes) : Size(parts.rows) * Size(2 * parts.k));
  KernelCall call{.header = "linear/prompt_gemm", .threads = LeftGemmLayout::kThreads, .pdl = true};
  call.function = absl::StrCat("PromptGemm", EpilogueName(parts));
  call.types = {{"T", DeviceType(parts.dtype)}, {"Out", DeviceType(parts.out->type.dtype)}};
  call.constants = {{"kIn", parts.k},
                    {"kOut", ColumnsOf(parts)},
                    {"kGated", parts.silu_mul},
                    {"kHalves", kHalves},
                    {"kFew", is_few},
                    {"kGrid", shares ? grid : 0},
                    {"kMostTokens", MostTokensOf(parts)},
                    {"kSharedBytes", SharedBytesOf(parts)}};
  AddReader(parts.weight, &call);
  call.params = {
      Out(parts.out, "out"),
      {"const __grid_constant__ llmc::TileMap", "x",
       ordered.AsTiles(Size(parts.rows), 2 * parts.k, is_few ? kFewEncodedGemmRows : LeftGemmLayout::kBoxRows)}};
  call.arguments = absl::StrCat("out, x, ", AddWeight(parts.weight, "weight", &call));
  if (const Value* added = parts.addend != nullptr ? parts.addend : parts.bias; added != nullptr) {
    call.params.push_back(In(added, "addend"));
    absl::StrAppend(&call.arguments, ", addend");
  }
  call.params.push_back(Count(parts.rows, "tokens"));
  absl::StrAppend(&call.arguments, ", tokens");
  if (shares) {
    const int64_t partials = grid * 2 * (128 * kHalves) * MostTokensOf(parts) * 4;
    call.AddParams({{"float*", "partials", KernelArg::OfScratch(Size(ordered_bytes + partials), ordered_bytes)},
                    {"llmc::i32*", "counters", KernelArg::OfCounters()}});
    absl::StrAppend(&call.arguments, ", partials, counters");
  }
  call.grid[0] = Dim(grid);
  call.shared_bytes = SharedBytesOf(parts);
  call.blocks_of_sm = blocks;
  return std::vector<DeviceCall>{OrderColumnsCall(parts.weight, parts.x, Size(parts.rows), parts.k, ordered), call};
}

}  // namespace llmc
