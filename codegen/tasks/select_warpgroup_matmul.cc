// Products of codes of 8 bits by warpgroups, as calls of kernels/linear/warpgroup_matmul.cuh.
#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "codegen/tasks/weight_parts.h"
#include "ir/encoding.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

using WarpgroupLayout = WarpgroupMatMulLayout;

constexpr int64_t kFewRows = WarpgroupLayout{.warpgroups = 2, .halves = 2}.Rows();  // of a tile

std::optional<int64_t> NumberOf(const Dim& dim) {
  const Size size(dim);
  return size.is_number() ? std::optional(size.number()) : std::nullopt;
}

bool IsFloat8(const EncodingFormat& format) { return format.name == "f8e4m3" || format.name == "f8e5m2"; }

// Of all, of rows of a factor, or of blocks as large as a stage and a tile; nothing of others.
std::optional<PartKind> ScalesOf(const Encoding& e, bool is_weight) {
  if (e.format->outer_scale || e.format->scale_is_exponent || e.zero.has_value()) return std::nullopt;
  if (e.scale->per == Granularity::kTensor) return kOneNumber;
  if (e.scale->per == (is_weight ? Granularity::kChannel : Granularity::kToken)) return kOfColumns;
  const bool is_block = is_weight ? e.columns == WarpgroupLayout::kDepth && e.rows == WarpgroupLayout::kColumns
                                  : e.group == WarpgroupLayout::kDepth;
  return is_block ? std::optional(kOfBlocks) : std::nullopt;
}

// A product and, if there is one, the gate that follows it.
struct GatedProduct {
  const Node* node = nullptr;
  bool is_gated = false;
  const Value* out = nullptr;

  WeightParts weight;
  Dim m;
  int64_t n = 0, k = 0;
  PartKind x_scales, scales;

  int64_t Columns() const { return is_gated ? n / 2 : n; }
  int64_t TileColumns() const { return is_gated ? WarpgroupLayout::kColumns / 2 : WarpgroupLayout::kColumns; }
};

std::optional<Misfit> ReadNodes(const KernelBody& body, GatedProduct* product) {
  for (const Node* node : body.nodes) {
    if (product->node == nullptr && Is<Linear>(node)) {
      product->node = node;
    } else if (Is<SiluMul>(node) && !product->is_gated && node->operands[0] == product->out) {
      product->is_gated = true;
    } else {
      return Misfit{std::string(node->op->info.name), "a product and silu_mul of it"};
    }
    product->out = node->results[0];
  }
  if (body.results.size() != 1) return Misfit{absl::StrCat(body.results.size(), " results"), "one"};
  return std::nullopt;
}

std::optional<Misfit> ReadFactors(const ProgramScope& scope, GatedProduct* product) {
  const auto op = View<Linear>(*product->node);
  const Value* sums = product->node->results[0];
  const Encoding *x = op.lhs->type.encoding, *y = op.rhs->type.encoding;
  const std::optional<WeightParts> weight = x != nullptr && y != nullptr ? WeightPartsOf(op) : std::nullopt;
  if (!weight.has_value() || weight->x.codes == nullptr)
    return Misfit{"a factor of elements", "codes of 8 bits of both"};
  if (!weight->transposed || op.rhs->type.rank() != 2 || !y->k_is_last) {
    return Misfit{op.rhs->type.ToString(), "a weight [n, k]"};
  }
  if (DTypeBits(sums->type.dtype) != 16) return Misfit{std::string(DTypeName(sums->type.dtype)), "f16 or bf16"};
  const ProductMatrices p = MatricesOf(op, sums->type);
  const std::optional<int64_t> n = NumberOf(p.n), k = NumberOf(p.k);
  if (!p.is_single || !n.has_value() || !k.has_value() || *n % 8 != 0 || *k % 16 != 0 || *k == 0) {
    return Misfit{op.rhs->type.ToString(), "one product, with k a multiple of 16 and n of 8"};
  }
  const std::optional<PartKind> x_scales = ScalesOf(*x, false), scales = ScalesOf(*y, true);
  if (!x_scales.has_value() || !scales.has_value() || (*x_scales == kOfBlocks) != (*scales == kOfBlocks)) {
    return Misfit{absl::StrCat(x->text, " by ", y->text), "scales of all, of rows, or of blocks of 128"};
  }
  const bool floats = IsFloat8(*x->format) && IsFloat8(*y->format);
  if (!floats && (!SumsBytes(op, *weight, sums->type.dtype) || *k > kWholeTerms)) {
    return Misfit{absl::StrCat(x->text, " by ", y->text), "floats, or integers whose sums 32 bits hold"};
  }
  // cuBLASLt is faster where one scale is all that sums are multiplied with.
  const bool have_one = *x_scales == kOneNumber && *scales == kOneNumber;
  if (have_one && !product->is_gated && MultipliesFloat8(op, sums, scope)) {
    return Misfit{"one scale of each factor", "more"};
  }
  product->weight = *weight;
  product->m = p.m;
  product->n = *n;
  product->k = *k;
  product->x_scales = *x_scales;
  product->scales = *scales;
  if (product->is_gated &&
      (*n % 16 != 0 || (*scales == kOfBlocks && product->Columns() % product->TileColumns() != 0))) {
    return Misfit{absl::StrCat("a gate of ", product->Columns(), " columns"),
                  absl::StrCat("a multiple of ", product->TileColumns())};
  }
  return std::nullopt;
}

// How a launch is cut: of few rows, or of any number.
struct Cut {
  WarpgroupLayout layout;
  bool streams;  // blocks share the stages of all tiles
  int cluster;   // blocks that share what they copy
};
Cut CutOf(const GatedProduct& product, const ProgramScope& scope) {
  const absl::StatusOr<DimRange> rows = product.m.Range(scope.bounds);
  const int64_t most = rows.ok() ? rows->high : INT64_MAX, sms = scope.target.sms;
  Cut cut = {.layout = {.warpgroups = 2, .halves = 1, .stages = 6}, .cluster = 1};
  if (most > cut.layout.Rows()) cut.layout = {.warpgroups = 2, .halves = 2, .stages = 4};
  // Few rows are one tile, whatever their number is, so that the order of sums is the same for each. Their products
  // take the time in which the weight comes, and all multiprocessors must read it: where whole tiles would leave many
  // idle, they share the line of all tiles' stages. Sums of many rows must be worth it: parts of them are written and
  // read again.
  const int64_t tiles = CeilDiv(product.Columns(), product.TileColumns()), turns = CeilDiv(tiles, sms);
  const int64_t stages_of_block = tiles * CeilDiv(product.k, int64_t{WarpgroupLayout::kDepth}) / sms;
  cut.streams = most <= kFewRows && 4 * tiles < 3 * turns * sms && tiles * 4 <= kCounterBytes &&
                (cut.layout.halves == 1 || stages_of_block >= 16);
  // Two neighbouring tiles of the same rows, in every turn. To begin and to end a cluster takes 3.5 us, which the gate
  // and up of the 8B gain; o and down, of fewer columns of tiles than multiprocessors, do not with few hundred rows.
  const bool shares_x = tiles > sms && tiles % 2 == 0 && sms % 2 == 0;
  if (cut.layout.halves == 2 && !cut.streams && shares_x) cut.cluster = 2;
  return cut;
}

}  // namespace

Calls SelectWarpgroupMatMul(const KernelBody& body, const ProgramScope& scope) {
  if (!scope.target.wgmma) return Misfit{"a GPU without products of warpgroups", "sm_90a"};
  GatedProduct product;
  if (std::optional<Misfit> misfit = ReadNodes(body, &product)) return *misfit;
  if (std::optional<Misfit> misfit = ReadFactors(scope, &product)) return *misfit;
  const WeightParts& weight = product.weight;
  const Cut cut = CutOf(product, scope);
  const WarpgroupLayout& layout = cut.layout;
  KernelCall call{.header = "linear/warpgroup_matmul", .function = "WarpgroupMatMul", .pdl = true};
  call.types = {{"T", DeviceType(product.out)},
                {"A", DeviceType(weight.x.codes)},
                {"B", DeviceType(weight.codes)},
                {"ScaleA", DeviceType(weight.x.scale)},
                {"Scale", DeviceType(weight.scale)}};
  call.constants = {{"kIn", product.k},
                    {"kOut", product.Columns()},
                    {"kGated", product.is_gated},
                    {"kScaleA", product.x_scales},
                    {"kScale", product.scales},
                    {"kWarpgroups", layout.warpgroups},
                    {"kHalves", layout.halves},
                    {"kStages", layout.stages},
                    {"kStreamK", cut.streams},
                    {"kCluster", cut.cluster},
                    {"kWeightFirst", weight.IsThereBeforeStep()}};
  const std::string map = "const __grid_constant__ llmc::TileMap";
  call.params = {Out(product.out, "out"),
                 {map, "x", KernelArg::OfTiles(weight.x.codes, Size(product.m), product.k, 64)},
                 {map, "y", KernelArg::OfTiles(weight.codes, Size(product.n), product.k, product.TileColumns())},
                 In(weight.scale, "scale"),
                 In(weight.x.scale, "scale_a")};
  if (cut.streams) {
    const int64_t partials = int64_t{scope.target.sms} * 2 * layout.Rows() * WarpgroupLayout::kColumns * 4;
    call.AddParams({{"void*", "partials", KernelArg::OfScratch(Size(partials))},
                    {"llmc::i32*", "counters", KernelArg::OfCounters()}});
  }
  call.arguments =
      absl::StrCat("out, x, y, scale, scale_a, ", cut.streams ? "partials, counters" : "nullptr, nullptr", ", m");
  call.AddParams({Count(product.m, "m")});
  call.threads = layout.Threads();
  call.shared_bytes = layout.SharedBytes();
  call.grid[0] = Dim(scope.target.sms);
  call.cluster = cut.cluster > 1 ? cut.cluster : 0;
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
