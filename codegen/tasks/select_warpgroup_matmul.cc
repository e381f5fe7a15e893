// Products of codes of 8 bits by warpgroups, as calls of kernels/linear/warpgroup_matmul.cuh.
#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "codegen/tasks/weight_parts.h"
#include "ir/encoding.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

using Layout = WarpgroupMatMulLayout;

constexpr int64_t kFewRows = Layout{.warpgroups = 2, .halves = 2}.Rows();  // of a tile

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
  const bool is_block =
      is_weight ? e.columns == Layout::kDepth && e.rows == Layout::kColumns : e.group == Layout::kDepth;
  return is_block ? std::optional(kOfBlocks) : std::nullopt;
}

}  // namespace

std::optional<KernelCall> WarpgroupMatMulCall(const Linear& op, const WeightParts& weight, const Value* out,
                                              const ProgramScope& scope) {
  const Encoding *x = op.lhs->type.encoding, *y = op.rhs->type.encoding;
  if (!scope.target.wgmma || x == nullptr || y == nullptr || weight.x.codes == nullptr || !weight.transposed ||
      op.rhs->type.rank() != 2 || !y->k_is_last || DTypeBits(out->type.dtype) != 16) {
    return std::nullopt;
  }
  const ProductMatrices p = MatricesOf(op, out->type);
  const std::optional<int64_t> n = NumberOf(p.n), k = NumberOf(p.k);
  const std::optional<PartKind> x_scales = ScalesOf(*x, false), scales = ScalesOf(*y, true);
  if (!p.is_single || !n.has_value() || !k.has_value() || *n % 8 != 0 || *k % 16 != 0 || *k == 0 ||
      !x_scales.has_value() || !scales.has_value() || (*x_scales == kOfBlocks) != (*scales == kOfBlocks)) {
    return std::nullopt;
  }
  const bool floats = IsFloat8(*x->format) && IsFloat8(*y->format);
  if (!floats && (!SumsBytes(op, weight, out->type.dtype) || *k > kWholeTerms)) return std::nullopt;

  const absl::StatusOr<DimRange> rows = p.m.Range(scope.bounds);
  const int64_t most = rows.ok() ? rows->high : INT64_MAX, tiles = CeilDiv(*n, int64_t{Layout::kColumns});
  // Few rows are one tile, whatever their number is, so that the order of sums is the same for each. Their products
  // take the time in which the weight comes, and all multiprocessors must read it: where whole tiles would leave many
  // idle, they share the line of all tiles' stages.
  const int64_t turns = CeilDiv(tiles, int64_t{scope.target.sms});
  const bool few = most <= kFewRows,
             streams = few && 4 * tiles < 3 * turns * scope.target.sms && tiles * 4 <= kCounterBytes;
  Layout layout = {.warpgroups = 2, .halves = 1, .stages = 6};
  if (most > layout.Rows()) layout = {.warpgroups = 2, .halves = 2, .stages = 4};
  KernelCall call{.header = "linear/warpgroup_matmul", .function = "WarpgroupMatMul", .pdl = true};
  call.types = {{"T", DeviceType(out)},
                {"A", DeviceType(weight.x.codes)},
                {"B", DeviceType(weight.codes)},
                {"ScaleA", DeviceType(weight.x.scale)},
                {"Scale", DeviceType(weight.scale)}};
  call.constants = {{"kIn", *k},
                    {"kOut", *n},
                    {"kScaleA", *x_scales},
                    {"kScale", *scales},
                    {"kWarpgroups", layout.warpgroups},
                    {"kHalves", layout.halves},
                    {"kStages", layout.stages},
                    {"kStreamK", streams ? 1 : 0},
                    {"kWeightFirst", weight.IsThereBeforeStep() ? 1 : 0}};
  const std::string map = "const __grid_constant__ llmc::TileMap";
  call.params = {Out(out, "out"),
                 {map, "x", KernelArg::OfTiles(weight.x.codes, Size(p.m), *k, 64)},
                 {map, "y", KernelArg::OfTiles(weight.codes, Size(*n), *k, Layout::kColumns)},
                 In(weight.scale, "scale"),
                 In(weight.x.scale, "scale_a")};
  if (streams) {
    const int64_t partials = int64_t{scope.target.sms} * 2 * layout.Rows() * Layout::kColumns * 4;
    call.AddParams({{"void*", "partials", KernelArg::OfScratch(Size(partials))},
                    {"llmc::i32*", "counters", KernelArg::OfCounters()}});
    call.arguments = "out, x, y, scale, scale_a, partials, counters, m";
  } else {
    call.arguments = "out, x, y, scale, scale_a, nullptr, nullptr, m";
  }
  call.AddParams({Count(p.m, "m")});
  call.threads = layout.Threads();
  call.shared_bytes = layout.SharedBytes();
  call.grid[0] = Dim(scope.target.sms);
  return call;
}

}  // namespace llmc
