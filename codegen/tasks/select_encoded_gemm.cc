// Products of some rows with an encoded weight, as calls of kernels/linear/encoded_gemm.cuh.
#include "absl/strings/str_cat.h"
#include "codegen/tasks/product_parts.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

constexpr int kSharedBytes = 220 * 1024;

EncodedGemmLayout LayoutOf(const WeightParts& weight) {
  return {.weight_bits = static_cast<int>(weight.bits()),
          .scale_bits = static_cast<int>(weight.scale_bits()),
          .zero_bits = static_cast<int>(weight.zero_bits()),
          .block = static_cast<int>(std::max<int64_t>(weight.block, 1))};
}

int64_t RowTilesOf(const ProductParts& parts) {
  const int64_t columns = EncodedGemmLayout::kRows / (parts.n / ColumnsOf(parts));
  return CeilDiv(ColumnsOf(parts), columns);
}

// Whether the kernel can read the weight: parts of its scales in whole words, whole stages of a row.
std::optional<Misfit> WeightMisfit(const ProductParts& parts) {
  const WeightParts& weight = parts.weight;
  const EncodedGemmLayout layout = LayoutOf(weight);
  const int depth = layout.Depth();
  if (parts.k % depth != 0) return Misfit{absl::StrCat(parts.k, " terms"), absl::StrCat("a multiple of ", depth)};
  if (!weight.has_blocks()) return std::nullopt;
  const bool is_small = weight.block < 4 * kCodesOfLane && !weight.ScalesCodes();
  const bool divides = weight.block < 4 * kCodesOfLane || weight.block % (4 * kCodesOfLane) == 0;
  if (is_small || !divides || !layout.CanCopy(parts.k, layout.scale_bits) ||
      !layout.CanCopy(parts.k, layout.zero_bits)) {
    return Misfit{absl::StrCat("scales or zero points of ", weight.block, " terms"),
                  absl::StrCat("whole words of them in ", depth, " terms")};
  }
  return std::nullopt;
}

// ---- few rows -----------------------------------------------------------------------------------------------------

// Two blocks fill a multiprocessor. Where a launch had less, the blocks of one that begins while another runs could
// find room for two on some and for none on others.
constexpr int kSkinnyBlocks = 2, kSkinnySharedBytes = 112 * 1024;

std::optional<KernelCall> SkinnyCall(const ProductParts& parts, const ProgramScope& scope) {
  const WeightParts& weight = parts.weight;
  using Layout = EncodedSkinnyLayout;
  Layout layout = {.weight_bits = static_cast<int>(weight.bits()),
                   .scale_bits = static_cast<int>(weight.scale_bits()),
                   .zero_bits = static_cast<int>(weight.zero_bits()),
                   .block = static_cast<int>(std::max<int64_t>(weight.block, 1)),
                   .k = static_cast<int>(parts.k),
                   .rows = parts.most_rows <= 16 ? 16 : 32,
                   .x_bits = static_cast<int>(DTypeBits(parts.x->type.dtype)),
                   .stages = 2};
  const int64_t tiles = CeilDiv(ColumnsOf(parts), Layout::kRows / (parts.n / ColumnsOf(parts)));
  if (parts.most_rows > kMaxSkinnyRows || parts.k % Layout::kDepth != 0 || !layout.CanCopy(layout.scale_bits) ||
      !layout.CanCopy(layout.zero_bits) || tiles * 8 > kCounterBytes) {
    return std::nullopt;
  }
  while (layout.SharedBytes() + layout.StageBytes() <= kSkinnySharedBytes) ++layout.stages;
  KernelCall call{.header = "linear/encoded_skinny_gemm", .threads = Layout::kThreads, .pdl = true};
  call.function = absl::StrCat("EncodedSkinny", EpilogueName(parts));
  call.types = {{"T", DeviceType(parts.dtype)}, {"Out", DeviceType(parts.out->type.dtype)}};
  call.constants = {{"kIn", parts.k}, {"kOut", ColumnsOf(parts)}, {"kTokens", layout.rows}, {"kStages", layout.stages}};
  AddReader(parts.weight, &call);
  AddProductArguments(parts, &call);
  const int64_t partials = int64_t{scope.target.sms} * kSkinnyBlocks * 2 * Layout::kRows * layout.rows * 4;
  call.AddParams({{"float*", "partials", KernelArg::OfScratch(Size(partials))},
                  {"llmc::i32*", "counters", KernelArg::OfCounters()}});
  absl::StrAppend(&call.arguments, ", partials, counters");
  call.grid[0] = Dim(scope.target.sms * kSkinnyBlocks);
  call.shared_bytes = layout.SharedBytes();
  return call;
}

}  // namespace

Calls SelectEncodedGemm(const KernelBody& body, const ProgramScope& scope) {
  if (!scope.target.wgmma) return Misfit{"a GPU without products of warpgroups", "sm_90a"};
  ProductParts parts;
  if (std::optional<Misfit> misfit = ReadProduct(body, scope, kMaxEncodedGemmRows, &parts)) return *misfit;
  if (parts.weight.format == nullptr || parts.weight.is_of_bytes()) {
    return Misfit{"elements, superblocks or products of bytes", "a weight of codes of 4 or 8 bits"};
  }
  if (parts.weight.format->packed_bits > 0) {
    return Misfit{absl::StrCat("packed codes of ", parts.weight.bits(), " bits"), "codes of 4 or 8 bits"};
  }
  if (parts.qkv.has_value() && KvPagesOf(parts.qkv->kv).is_encoded()) return Misfit{"a cache of codes", "floats"};
  if (parts.norm_node != nullptr) return Misfit{"a norm before the product", "x as it is"};
  if (DTypeBits(parts.dtype) != 16) return Misfit{std::string(DTypeName(parts.dtype)), "f16 or bf16"};
  if (parts.weight.x.codes != nullptr) {
    // Of both factors in floats of 8 bits tensor cores take the codes as they are.
    if (IsFloat(parts.weight.codes->type.dtype)) return Misfit{"two factors of f8", "floats by codes"};
    if (parts.most_rows > kMaxSkinnyRows) {
      return Misfit{"codes of x", absl::StrCat("floats, or up to ", kMaxSkinnyRows, " rows")};
    }
  }
  if (const std::optional<KernelCall> call = SkinnyCall(parts, scope)) return std::vector<DeviceCall>{*call};
  if (parts.weight.x.codes != nullptr) return Misfit{"codes of x", "floats"};
  if (std::optional<Misfit> misfit = WeightMisfit(parts)) return *misfit;
  const int64_t tiles = RowTilesOf(parts) * CeilDiv(kMaxEncodedGemmRows, kEncodedGemmMost);
  if (tiles * 4 > kCounterBytes) {
    return Misfit{absl::StrCat(parts.n, " rows of the weight"), "counters for all tiles"};
  }
  KernelCall call{.header = "linear/encoded_gemm", .threads = EncodedGemmLayout::kThreads, .pdl = true};
  call.function = absl::StrCat("EncodedGemm", EpilogueName(parts));
  call.types = {{"T", DeviceType(parts.dtype)}, {"Out", DeviceType(parts.out->type.dtype)}};
  call.constants = {{"kIn", parts.k}, {"kOut", ColumnsOf(parts)}, {"kSharedBytes", kSharedBytes}};
  AddReader(parts.weight, &call);
  AddProductArguments(parts, &call);
  const int64_t partials = int64_t{scope.target.sms} * 2 * EncodedGemmLayout::kRows * kEncodedGemmMost * 4;
  call.AddParams({{"float*", "partials", KernelArg::OfScratch(Size(partials))},
                  {"llmc::i32*", "counters", KernelArg::OfCounters()}});
  absl::StrAppend(&call.arguments, ", partials, counters");
  call.grid[0] = Dim(scope.target.sms);
  call.shared_bytes = kSharedBytes;
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
