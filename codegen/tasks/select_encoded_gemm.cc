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

// Whether x is in order before the kernel begins. Few rows that no norm writes are put in order by each block: a launch
// more takes longer.
bool IsOrdered(const ProductParts& parts) {
  return BlocksOfSm(parts) == 1 || parts.norm_node != nullptr || parts.x_is_ordered;
}

int64_t RowTilesOf(const ProductParts& parts, const EncodedGemmLayout& layout) {
  return CeilDiv(ColumnsOf(parts), layout.Rows() / (parts.n / ColumnsOf(parts)));
}
// Rows of x in a tile, at the most.
int64_t TokensOf(const ProductParts& parts) { return BlocksOfSm(parts) == 2 ? kFewEncodedGemmRows : kEncodedGemmMost; }

// Of few rows some stages are enough for memory, and more only take room from the L1 cache, by which scales come.
int SharedBytesOf(const ProductParts& parts, const EncodedGemmLayout& layout) {
  constexpr int kFew = 80 * 1024, kMostOfTwo = 112 * 1024, kMostOfOne = 220 * 1024;
  if (BlocksOfSm(parts) == 1) return kMostOfOne;
  return layout.WeightStages(kFewEncodedGemmRows, kFew) >= 3 ? kFew : kMostOfTwo;
}

// Whether the kernel can read the weight: parts of its scales in whole words, whole stages of a row.
std::optional<Misfit> WeightMisfit(const ProductParts& parts, const EncodedGemmLayout& layout) {
  const int depth = layout.Depth();
  if (parts.k % depth != 0) return Misfit{absl::StrCat(parts.k, " terms"), absl::StrCat("a multiple of ", depth)};
  if (!layout.CanCopy(parts.k, layout.scale_bits) || !layout.CanCopy(parts.k, layout.zero_bits)) {
    return Misfit{absl::StrCat("scales or zero points of ", layout.block, " terms"),
                  absl::StrCat("whole words of them in ", depth, " terms")};
  }
  if (layout.WeightStages(static_cast<int>(TokensOf(parts)), SharedBytesOf(parts, layout)) < 2) {
    return Misfit{absl::StrCat("scales and zero points of ", layout.block, " terms"),
                  "two stages of a weight in shared memory"};
  }
  return std::nullopt;
}

// Tiles of 256 rows of the weight take half of what x costs, those of 128 have fewer sums to add up where most blocks
// have a part of one. Two slabs in a stage of few rows are half as many stages, each of which costs instructions.
EncodedGemmLayout LayoutOf(const ProductParts& parts, const Target& target) {
  const WeightParts& weight = parts.weight;
  EncodedGemmLayout layout = {.weight_bits = static_cast<int>(weight.bits()),
                              .scale_bits = static_cast<int>(weight.scale_bits()),
                              .zero_bits = static_cast<int>(weight.zero_bits()),
                              .block = static_cast<int>(std::max<int64_t>(weight.block, 1)),
                              .halves = 2};
  const int64_t tiles = RowTilesOf(parts, layout) * CeilDiv(parts.most_rows, TokensOf(parts));
  const bool fit = layout.WeightStages(static_cast<int>(TokensOf(parts)), SharedBytesOf(parts, layout)) >= 2;
  if (BlocksOfSm(parts) == 2 || 2 * tiles < target.sms || !fit) layout.halves = 1;
  EncodedGemmLayout two = layout;
  two.slabs = 2;
  return BlocksOfSm(parts) == 2 && !WeightMisfit(parts, two).has_value() ? two : layout;
}

// Where few tiles are cut into few parts each, the blocks of a tile are a cluster. They fill three quarters of what is
// there: a cluster needs room in one part of the GPU, while blocks of the launch before still run.
int ClusterOf(const ProductParts& parts, const EncodedGemmLayout& layout, int64_t most_blocks) {
  constexpr int64_t kMostBlocks = 8;  // that every GPU with clusters has
  const int64_t tiles = RowTilesOf(parts, layout);
  const int64_t blocks = std::min(3 * most_blocks / (4 * tiles), parts.k / layout.Depth());
  const bool fits = blocks >= 2 && blocks <= kMostBlocks && 10 * tiles * blocks >= 7 * most_blocks;
  return BlocksOfSm(parts) == 2 && fits ? static_cast<int>(blocks) : 1;
}

// Where x is in order, in the scratch memory.
int64_t OrderedBytesOf(const ProductParts& parts) {
  return IsOrdered(parts) && !parts.x_is_ordered ? CeilDiv(parts.most_rows * parts.k * 2, 1024) * 1024 : 0;
}

// Writes x, or its norm, in the order in which codes are multiplied.
KernelCall OrderCall(const ProductParts& parts) {
  const std::string type = absl::StrCat(DeviceType(parts.dtype), "*");
  const KernelParam out = {type, "out", KernelArg::OfScratch(Size(OrderedBytesOf(parts)))};
  if (parts.norm_node != nullptr) {
    const auto norm = View<RmsNorm>(*parts.norm_node);
    KernelCall call = RowsCall("linear/encoded_norm", "RmsNorm", parts.norm_node->results[0]);
    AddReader(parts.weight, &call);
    call.types.emplace_back("Sink", "llmc::OrderedSink<Config>");
    call.AddConstants({{"kIn", parts.k}});
    call.params = {out, In(norm.x, "x"), In(norm.weight, "weight"), Float(norm.eps, "eps")};
    call.arguments = "{out}, x, weight, eps";
    return call;
  }
  KernelCall call{.header = "linear/encoded_x", .function = "OrderEncodedX", .pdl = true};
  call.types = {{"T", DeviceType(parts.dtype)}};
  call.constants = {{"kIn", parts.k}};
  AddReader(parts.weight, &call);
  call.params = {out, In(parts.x, "x")};
  const std::string weight = AddWeight(parts.weight, "weight", &call);
  const Size count = Size(parts.rows) * Size(parts.k / 8);
  call.params.push_back(Count(count, "count"));
  call.arguments = absl::StrCat("out, x, ", weight, ", count");
  call.grid[0] = Blocks(count, call.threads);
  return call;
}

// A norm before the product, whose rows are written in order: x is then what is normalized.
std::optional<Misfit> AddNorm(ProductParts* parts) {
  if (parts->norm_node == nullptr) return std::nullopt;
  const auto norm = View<RmsNorm>(*parts->norm_node);
  if (norm.weight->type.dtype != parts->dtype || parts->weight.has_coded_x()) {
    return Misfit{"a norm by another type", "a weight of the type of x"};
  }
  parts->x = norm.x;
  return std::nullopt;
}

// In which order x lies, and the result.
void AddOrders(const ProductParts& parts, const ProgramScope& scope, KernelCall* call) {
  if (IsOrdered(parts)) {
    const KernelArg x = parts.x_is_ordered ? KernelArg::Of(parts.x) : KernelArg::OfScratch(Size(OrderedBytesOf(parts)));
    const int64_t box = EncodedGemmBox(static_cast<int>(TokensOf(parts)));
    call->params[1] = {"const __grid_constant__ llmc::TileMap", "x", x.AsTiles(Size(parts.rows), parts.k * 2, box)};
  }
  if (parts.norm_node == nullptr && !parts.weight.has_coded_x()) {
    call->reads_in_order = parts.x;
    call->order_codes = CodeType(*parts.weight.format);
  }
  call->can_order = parts.silu_mul;
  const auto ordered = scope.ordered.find(parts.out);
  if (ordered != scope.ordered.end()) call->types.emplace_back("OrderedBy", ordered->second);
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
  if (std::optional<Misfit> misfit = AddNorm(&parts)) return *misfit;
  parts.x_is_ordered = parts.norm_node == nullptr && scope.ordered.contains(parts.x);
  if (DTypeBits(parts.dtype) != 16) return Misfit{std::string(DTypeName(parts.dtype)), "f16 or bf16"};
  // Of both factors in floats of 8 bits tensor cores take the codes as they are.
  if (parts.weight.x.codes != nullptr && IsFloat(parts.weight.codes->type.dtype)) {
    return Misfit{"two factors of f8", "floats by codes"};
  }
  const EncodedGemmLayout layout = LayoutOf(parts, scope.target);
  if (std::optional<Misfit> misfit = WeightMisfit(parts, layout)) return *misfit;
  const int blocks = BlocksOfSm(parts), shared_bytes = SharedBytesOf(parts, layout),
            most_blocks = scope.target.sms * blocks;
  const int cluster = ClusterOf(parts, layout, most_blocks);
  const int64_t grid = cluster > 1 ? RowTilesOf(parts, layout) * cluster : most_blocks;
  KernelCall call{.header = "linear/encoded_gemm", .threads = EncodedGemmLayout::kThreads, .pdl = true};
  call.function = absl::StrCat("EncodedGemm", EpilogueName(parts));
  call.types = {{"T", DeviceType(parts.dtype)}, {"Out", DeviceType(parts.out->type.dtype)}};
  call.constants = {{"kIn", parts.k},
                    {"kOut", ColumnsOf(parts)},
                    {"kFew", blocks == 2},
                    {"kOrdered", IsOrdered(parts)},
                    {"kHalves", layout.halves},
                    {"kSlabs", layout.slabs},
                    {"kGrid", grid},
                    {"kCluster", cluster},
                    {"kSharedBytes", shared_bytes}};
  AddReader(parts.weight, &call);
  AddProductArguments(parts, &call);
  AddOrders(parts, scope, &call);
  const int64_t ordered = OrderedBytesOf(parts);
  if (cluster > 1) {
    absl::StrAppend(&call.arguments, ", nullptr, nullptr");
  } else {
    const int64_t partials = grid * 2 * layout.Rows() * TokensOf(parts) * 4;
    call.AddParams({{"float*", "partials", KernelArg::OfScratch(Size(ordered + partials), ordered)},
                    {"llmc::i32*", "counters", KernelArg::OfCounters()}});
    absl::StrAppend(&call.arguments, ", partials, counters");
  }
  call.grid[0] = Dim(grid);
  call.shared_bytes = shared_bytes;
  call.blocks_of_sm = blocks;
  call.cluster = cluster > 1 ? cluster : 0;
  if (ordered > 0) return std::vector<DeviceCall>{OrderCall(parts), call};
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
