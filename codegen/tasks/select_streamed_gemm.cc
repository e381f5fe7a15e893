// Products of few rows of elements of 16 bits, or of codes of 8 bits, as calls of kernels/linear/streamed_gemm.cuh.
#include "absl/strings/str_cat.h"
#include "codegen/tasks/product_parts.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

constexpr int64_t kStreamedScaleBlock = 128;  // terms, and rows of the weight, that share a scale

// One block on each multiprocessor, with all that it has.
constexpr int kStreamedSharedBytes = 220 * 1024;

// Of elements GEMV is as fast up to so many rows (H200).
constexpr int64_t kFewElementRows = 4;

StreamedGemmLayout StreamedLayoutOf(const ProductParts& parts) {
  return {.tokens = StreamedGemmLayout::TokensOf(parts.most_rows)};
}

// Of either factor.
int64_t RowBytesOf(const ProductParts& parts) { return parts.k * DTypeBits(parts.weight.codes->type.dtype) / 8; }

// Of the weight, that are copied at once: of pairs of a head, no more than half of it.
int64_t BoxRowsOf(const ProductParts& parts) {
  if (parts.qkv.has_value()) return std::min<int64_t>(KvPagesOf(parts.qkv->kv).head_dim() / 2, 64);
  return ColumnsOf(parts) != parts.n ? 64 : 128;
}

// Why scales are none that the kernel applies: of all, of rows of either factor, or of blocks of both.
std::optional<Misfit> StreamedScalesMisfit(const WeightParts& weight) {
  const Misfit misfit = {"other scales or zero points",
                         "scales of all, of rows, or of blocks of 128, in f32, f16 or bf16"};
  for (const Components& factor : {weight.x, Components(weight)}) {
    if (factor.zero != nullptr || factor.outer != nullptr || !Is16BitOrF32(factor.scale->type.dtype)) return misfit;
  }
  const bool x_has_blocks = weight.x_scale_kind() == kOfBlocks, has_blocks = weight.scale_kind() == kOfBlocks;
  const bool fits = has_blocks ? weight.block == kStreamedScaleBlock && weight.block_rows == kStreamedScaleBlock &&
                                     weight.x_block == kStreamedScaleBlock && IsFloat(weight.codes->type.dtype)
                               : true;
  return x_has_blocks == has_blocks && fits ? std::nullopt : std::optional(misfit);
}

std::optional<Misfit> StreamedCodesMisfit(const WeightParts& weight) {
  if (weight.superblock != nullptr || weight.x.codes == nullptr) {
    return Misfit{"one factor of elements, or of superblocks", "codes of 8 bits of both, or elements"};
  }
  const DType x = weight.x.codes->type.dtype, codes = weight.codes->type.dtype;
  const bool fits =
      DTypeBits(x) == 8 && DTypeBits(codes) == 8 && IsFloat(x) == IsFloat(codes) && weight.format->packed_bits == 0;
  if (!fits) return Misfit{absl::StrCat(DTypeName(x), " by ", DTypeName(codes)), "codes of 8 bits of both"};
  return StreamedScalesMisfit(weight);
}

std::optional<Misfit> StreamedFactorsMisfit(const ProductParts& parts) {
  if (DTypeBits(parts.dtype) != 16) return Misfit{std::string(DTypeName(parts.dtype)), "f16 or bf16"};
  if (RowBytesOf(parts) % 16 != 0) {
    return Misfit{absl::StrCat(parts.k, " terms"), "rows of multiples of 16 bytes"};
  }
  return parts.weight.is_dense() ? std::nullopt : StreamedCodesMisfit(parts.weight);
}

// Boxes of rows have the first halves of pairs, others the second ones.
std::optional<Misfit> StreamedPairsMisfit(const ProductParts& parts) {
  if (parts.silu_mul && parts.weight.scale_kind() == kOfBlocks && ColumnsOf(parts) % (kStreamedScaleBlock / 2) != 0) {
    return Misfit{absl::StrCat("a gate of ", ColumnsOf(parts), " columns"), "whole tiles in blocks of scales"};
  }
  if (!parts.qkv.has_value()) return std::nullopt;
  const KvPages kv = KvPagesOf(parts.qkv->kv);
  if (kv.is_encoded()) return Misfit{"a cache of codes", "floats"};
  const int64_t half = kv.head_dim() / 2, rotary = 2 * parts.qkv->inv_freq->type.shape[0].value();
  const bool fits = !parts.qkv->interleaved && rotary == kv.head_dim() && (half == 32 || half % 64 == 0);
  if (!fits) return Misfit{"other pairs of a head", "both halves of it, of 32 elements or a multiple of 64"};
  return std::nullopt;
}

// Measured on an H100 with the layers of Llama-3.1-8B. GEMV is as fast for integers up to its most rows, and for one
// row with no more terms than columns. Of more rows residuals are added, and heads turned, by kernels behind it; gates
// of many are faster by warpgroup_matmul.
std::optional<Misfit> StreamedCodedRowsMisfit(const ProductParts& parts) {
  const bool of_integers = !IsFloat(parts.weight.codes->type.dtype);
  if (of_integers && parts.most_rows <= kMaxGemvRows) return Misfit{"few rows of integers", "more, or floats"};
  if (parts.most_rows == 1 && parts.k <= parts.n) return Misfit{"one row and no more terms than columns", "more rows"};
  if (parts.most_rows > kMaxGemvRows && (parts.addend != nullptr || parts.qkv.has_value())) {
    return Misfit{"a residual or heads", absl::StrCat("them of up to ", kMaxGemvRows, " rows")};
  }
  constexpr int64_t kMostGated = 32;
  if (parts.silu_mul && parts.most_rows > kMostGated) {
    return Misfit{"a gate of many rows", absl::StrCat("up to ", kMostGated)};
  }
  return std::nullopt;
}

// Elements take twice the time, beside which x and the ends of tiles count half as much.
std::optional<Misfit> StreamedRowsMisfit(const ProductParts& parts) {
  if (!parts.weight.is_dense()) return StreamedCodedRowsMisfit(parts);
  if (parts.most_rows <= kFewElementRows || parts.most_rows > kMaxStreamedElementRows) {
    return Misfit{absl::StrCat("up to ", parts.most_rows, " rows of elements"),
                  absl::StrCat("up to ", kFewElementRows + 1, " to ", kMaxStreamedElementRows)};
  }
  if (parts.most_rows > kMaxGemvRows && parts.qkv.has_value()) {
    return Misfit{"heads", absl::StrCat("them of up to ", kMaxGemvRows, " rows")};
  }
  return std::nullopt;
}

}  // namespace

Calls SelectStreamedGemm(const KernelBody& body, const ProgramScope& scope) {
  if (!scope.target.wgmma) return Misfit{"a GPU without products of warpgroups", "sm_90a"};
  ProductParts parts;
  if (std::optional<Misfit> misfit = ReadProduct(body, scope, kMaxStreamedRows, &parts)) return *misfit;
  if (parts.norm_node != nullptr) return Misfit{"a norm before the product", "x as it is"};
  if (std::optional<Misfit> misfit = StreamedFactorsMisfit(parts)) return *misfit;
  if (std::optional<Misfit> misfit = StreamedPairsMisfit(parts)) return *misfit;
  if (std::optional<Misfit> misfit = StreamedRowsMisfit(parts)) return *misfit;
  const WeightParts& weight = parts.weight;
  const StreamedGemmLayout layout = StreamedLayoutOf(parts);
  const int grid = scope.target.sms;
  KernelCall call{.header = "linear/streamed_gemm", .threads = StreamedGemmLayout::kThreads, .pdl = true};
  call.function = absl::StrCat("StreamedGemm", EpilogueName(parts));
  const Value* const x = weight.is_dense() ? parts.x : weight.x.codes;
  call.types = {{"T", DeviceType(parts.dtype)},
                {"Out", DeviceType(parts.out->type.dtype)},
                {"A", DeviceType(x)},
                {"B", DeviceType(weight.codes)}};
  if (!weight.is_dense()) {
    call.types.insert(call.types.end(), {{"ScaleA", DeviceType(weight.x.scale)}, {"Scale", DeviceType(weight.scale)}});
  }
  call.constants = {{"kIn", parts.k},
                    {"kOut", ColumnsOf(parts)},
                    {"kTokens", layout.tokens},
                    {"kScaleA", weight.x_scale_kind()},
                    {"kScale", weight.scale_kind()},
                    {"kBoxRows", BoxRowsOf(parts)},
                    {"kGrid", grid},
                    {"kSharedBytes", kStreamedSharedBytes}};
  const std::string map = "const __grid_constant__ llmc::TileMap";
  const int64_t row_bytes = RowBytesOf(parts);
  call.params = {
      Out(parts.out, "out"),
      {map, "x", KernelArg::OfTiles(x, Size(parts.rows), row_bytes, layout.XBoxRows())},
      {map, "weight", KernelArg::OfTiles(weight.codes, Size(parts.n), row_bytes, BoxRowsOf(parts)).ReadOnce()}};
  if (!weight.is_dense()) call.AddParams({In(weight.scale, "weight_scale"), In(weight.x.scale, "x_scale")});
  call.arguments = absl::StrCat("out, x, weight, ", weight.is_dense() ? "{}" : "{weight_scale, x_scale}");
  for (const std::string& argument : AddEpilogue(parts, &call)) absl::StrAppend(&call.arguments, ", ", argument);
  call.params.push_back(Count(parts.rows, "tokens"));
  const int64_t partials = int64_t{grid} * 2 * StreamedGemmLayout::kRows * layout.tokens * 4;
  call.AddParams({{"void*", "partials", KernelArg::OfScratch(Size(partials))},
                  {"llmc::i32*", "counters", KernelArg::OfCounters()}});
  absl::StrAppend(&call.arguments, ", tokens, partials, counters");
  call.grid[0] = Dim(grid);
  call.shared_bytes = kStreamedSharedBytes;
  call.blocks_of_sm = 1;
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
