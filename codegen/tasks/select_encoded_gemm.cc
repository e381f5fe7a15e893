// Products of some rows with an encoded weight, as calls of kernels/linear/encoded_gemm.cuh.
#include "absl/strings/str_cat.h"
#include "codegen/tasks/product_parts.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

// Of few rows of x two blocks fill a multiprocessor, so that one of the next launch begins where one ends. Where a
// launch had less, the blocks of one that begins while another runs could find room for two on some and for none on
// others.
int BlocksOfSm(const ProductParts& parts) { return parts.most_rows <= kFewEncodedGemmRows ? 2 : 1; }

int64_t RowTilesOf(const ProductParts& parts, const EncodedGemmLayout& layout) {
  return CeilDiv(ColumnsOf(parts), layout.Rows() / (parts.n / ColumnsOf(parts)));
}
int SharedBytesOf(const ProductParts& parts) { return BlocksOfSm(parts) == 2 ? 112 * 1024 : 220 * 1024; }
// Rows of x in a tile, at the most.
int64_t TokensOf(const ProductParts& parts) { return BlocksOfSm(parts) == 2 ? kFewEncodedGemmRows : kEncodedGemmMost; }

// Tiles of 256 rows of the weight take half of what x costs, those of 128 have fewer sums to add up where most blocks
// have a part of one.
EncodedGemmLayout LayoutOf(const ProductParts& parts, const Target& target) {
  const WeightParts& weight = parts.weight;
  EncodedGemmLayout layout = {.weight_bits = static_cast<int>(weight.bits()),
                              .scale_bits = static_cast<int>(weight.scale_bits()),
                              .zero_bits = static_cast<int>(weight.zero_bits()),
                              .block = static_cast<int>(std::max<int64_t>(weight.block, 1)),
                              .halves = 2};
  const int64_t tiles = RowTilesOf(parts, layout) * CeilDiv(parts.most_rows, TokensOf(parts));
  const bool fit = layout.WeightStages(static_cast<int>(TokensOf(parts)), SharedBytesOf(parts)) >= 2;
  if (BlocksOfSm(parts) == 2 || 2 * tiles < target.sms || !fit) layout.halves = 1;
  return layout;
}

// Whether the kernel can read the weight: parts of its scales in whole words, whole stages of a row.
std::optional<Misfit> WeightMisfit(const ProductParts& parts, const EncodedGemmLayout& layout) {
  const int depth = layout.Depth();
  if (parts.k % depth != 0) return Misfit{absl::StrCat(parts.k, " terms"), absl::StrCat("a multiple of ", depth)};
  if (!layout.CanCopy(parts.k, layout.scale_bits) || !layout.CanCopy(parts.k, layout.zero_bits)) {
    return Misfit{absl::StrCat("scales or zero points of ", layout.block, " terms"),
                  absl::StrCat("whole words of them in ", depth, " terms")};
  }
  if (layout.WeightStages(static_cast<int>(TokensOf(parts)), SharedBytesOf(parts)) < 2) {
    return Misfit{absl::StrCat("scales and zero points of ", layout.block, " terms"),
                  "two stages of a weight in shared memory"};
  }
  return std::nullopt;
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
  // Of both factors in floats of 8 bits tensor cores take the codes as they are.
  if (parts.weight.x.codes != nullptr && IsFloat(parts.weight.codes->type.dtype)) {
    return Misfit{"two factors of f8", "floats by codes"};
  }
  const EncodedGemmLayout layout = LayoutOf(parts, scope.target);
  if (std::optional<Misfit> misfit = WeightMisfit(parts, layout)) return *misfit;
  const int blocks = BlocksOfSm(parts), shared_bytes = SharedBytesOf(parts);
  KernelCall call{.header = "linear/encoded_gemm", .threads = EncodedGemmLayout::kThreads, .pdl = true};
  call.function = absl::StrCat("EncodedGemm", EpilogueName(parts));
  call.types = {{"T", DeviceType(parts.dtype)}, {"Out", DeviceType(parts.out->type.dtype)}};
  call.constants = {{"kIn", parts.k},           {"kOut", ColumnsOf(parts)},           {"kFew", blocks == 2},
                    {"kHalves", layout.halves}, {"kGrid", scope.target.sms * blocks}, {"kSharedBytes", shared_bytes}};
  AddReader(parts.weight, &call);
  AddProductArguments(parts, &call);
  const int64_t partials = int64_t{scope.target.sms} * blocks * 2 * layout.Rows() * TokensOf(parts) * 4;
  call.AddParams({{"float*", "partials", KernelArg::OfScratch(Size(partials))},
                  {"llmc::i32*", "counters", KernelArg::OfCounters()}});
  absl::StrAppend(&call.arguments, ", partials, counters");
  call.grid[0] = Dim(scope.target.sms * blocks);
  call.shared_bytes = shared_bytes;
  call.blocks_of_sm = blocks;
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
