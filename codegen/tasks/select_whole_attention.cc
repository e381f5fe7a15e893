// Attention and rotary positions over whole tensors, as ONNX has them. On tensor cores queries, keys, values and the
// result lie anywhere: slices, transposes and views of them are read and written in place.
#include <algorithm>
#include <cmath>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "codegen/tasks/moves.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/attention.h"

namespace llmc {
namespace {

// Where the heads lie: under [batch, heads, rows, elements].
struct Heads {
  MovedValue out, q, k, v;
};

// The call of either kernel without its sizes. The mask's arguments come after those of q, k and v.
KernelCall NewCall(const Attention& op, const Heads& heads, const std::string& header, const std::string& function) {
  const Value* out = heads.out.in;
  const Value* mask = op.mask == nullptr ? heads.q.in : op.mask;
  KernelCall call{.header = header, .function = function};
  call.types = {{"T", DeviceType(out)}, {"Mask", DeviceType(mask)}};
  call.constants = {{"kMasked", op.mask != nullptr}, {"kCausal", op.causal}, {"kSoftcap", op.softcap != 0}};
  call.params = {Out(out, "out"), In(heads.q.in, "q"), In(heads.k.in, "k"), In(heads.v.in, "v"), In(mask, "mask")};
  return call;
}

// The mask under the scores.
std::string MaskText(const Attention& op, KernelCall* call) {
  const Dims &q = op.q->type.shape, &k = op.k->type.shape;
  const Value* mask = op.mask == nullptr ? op.q : op.mask;
  const Place place = op.mask == nullptr ? Place{.strides = SizeList(4, Size(0))}
                                         : BroadcastPlace(mask->type.shape, {q[0], q[1], q[2], k[2]});
  return StridedText(absl::StrCat("const ", DeviceType(mask)), "mask", place, call);
}

Dim ShiftOf(const Attention& op) { return op.causal_from_end ? op.k->type.shape[2] - op.q->type.shape[2] : Dim(0); }

// Whether tensor cores can: copies are of 16 bytes, and the greatest score is found before scores are scaled, unless
// they are changed first.
bool TakesTensorCores(const Attention& op, int64_t dim, int64_t value_dim) {
  const DType dtype = op.q->type.dtype;
  const bool adds = op.mask != nullptr && op.mask->type.dtype != DType::kBool;
  const Dim &heads = op.q->type.shape[1], &kv_heads = op.k->type.shape[1];
  return (dtype == DType::kF16 || dtype == DType::kBF16) && dim % 8 == 0 && value_dim % 8 == 0 && heads.is_constant() &&
         kv_heads.is_constant() && heads.value() > 0 && kv_heads.value() > 0 && (adds || op.scale > 0);
}

// What the nodes around the attention move, if it is that of q, k, v and the result only, and by whole vectors.
std::optional<Misfit> ReadHeads(const KernelBody& body, const Node& attention, Heads* heads) {
  const auto op = View<Attention>(attention);
  for (const Node* node : body.nodes) {
    if (node != &attention && !IsMove(node)) return Misfit{std::string(node->op->info.name), "elements that are moved"};
  }
  if (op.mask != nullptr && absl::c_linear_search(body.nodes, op.mask->def))
    return Misfit{"a mask that is moved", "one as it is"};
  const std::optional<MovedValue> q = MovedFrom(op.q, body), k = MovedFrom(op.k, body), v = MovedFrom(op.v, body);
  const Value* result = attention.results[0];
  const std::optional<MovedResult> out = MovedTo(result, body);
  if (!q.has_value() || !k.has_value() || !v.has_value() || !out.has_value() || out->of != result ||
      out->taken != ToSizes(result->type.shape)) {
    return Misfit{"elements that lie otherwise", "heads by strides"};
  }
  *heads = {out->to, *q, *k, *v};
  for (const MovedValue* moved : {&heads->out, &heads->q, &heads->k, &heads->v}) {
    const SizeList& strides = moved->place.strides;
    const bool fits =
        strides.size() == 4 && moved->place.offset.IsMultipleOf(8) && (strides[3].Is(1) || strides[3].Is(0)) &&
        std::all_of(strides.begin(), strides.begin() + 3, [](const Size& s) { return s.IsMultipleOf(8); });
    if (!fits) return Misfit{"elements that lie otherwise", "heads of whole vectors"};
  }
  return std::nullopt;
}

std::string HeadsText(const MovedValue& heads, const std::string& name, bool is_written, KernelCall* call) {
  return StridedText(absl::StrCat(is_written ? "" : "const ", DeviceType(heads.in)), name, heads.place, call);
}

// Whether the heads of a place are columns of a matrix whose rows are those of one key each, so that a map of tiles
// copies them: then the other strides are whole rows, or that of heads is within a row.
bool HasMap(const Place& place, int64_t heads, int64_t dim) {
  const SizeList& strides = place.strides;
  if (!strides[2].is_number() || strides[2].number() < dim || !strides[3].Is(1)) return false;
  const int64_t row = strides[2].number();
  if (!strides[0].IsMultipleOf(row)) return false;
  if (!place.offset.is_number()) return false;
  int64_t last = place.offset.number() % row;
  if (!strides[1].IsMultipleOf(row)) {
    if (!strides[1].is_number()) return false;
    last += (heads - 1) * strides[1].number();
  }
  return last + dim <= row;
}

KernelCall OnTensorCores(const Attention& op, const Heads& heads, int64_t dim, int64_t value_dim,
                         const Target& target) {
  const Dims &q = op.q->type.shape, &k = op.k->type.shape;
  const int64_t kv_heads = k[1].value(), group = q[1].value() / kv_heads;
  const bool adds = op.mask != nullptr && op.mask->type.dtype != DType::kBool;
  KernelCall call = NewCall(op, heads, "attention/whole_attention", "WholeAttention");
  call.pdl = true;
  call.AddConstants({{"kKvHeads", kv_heads}, {"kGroup", group}, {"kKeyDim", dim}, {"kValueDim", value_dim}});
  const int64_t mask_bytes = op.mask == nullptr ? 0 : (DTypeBits(op.mask->type.dtype) + 7) / 8;
  const bool by_maps = HasMap(heads.k.place, kv_heads, dim) && HasMap(heads.v.place, kv_heads, value_dim);
  const bool persistent = AddFlashBlocks(dim, value_dim, mask_bytes, by_maps, target, &call);
  for (const auto& [at, name] : {std::pair(&heads.out, "out"), {&heads.q, "q"}, {&heads.k, "k"}, {&heads.v, "v"}}) {
    absl::StrAppend(&call.arguments, HeadsText(*at, name, at == &heads.out, &call), ",\n      ");
  }
  absl::StrAppend(&call.arguments, MaskText(op, &call), ",\n      ");
  absl::StrAppend(&call.arguments, call.SizesText({q[0], q[2], k[2], ShiftOf(op)}), ", scale, softcap");
  call.AddParams({Float(op.softcap != 0 || adds ? op.scale : op.scale * std::log2(std::exp(1.0)), "scale"),
                  Float(op.softcap, "softcap")});
  if (by_maps && persistent) {
    call.function = "WholeAttentionByMaps";
    call.arguments += ", k_map, v_map, k, v";
    for (const auto& [at, name] : {std::pair(&heads.k, "k_map"), {&heads.v, "v_map"}}) {
      const int64_t row_bytes = at->place.strides[2].number() * 2;
      call.AddParams({{"const __grid_constant__ llmc::TileMap", name,
                       KernelArg::Of(at->in).AsAllTiles(row_bytes, kFlashMapRows)}});
    }
  }
  call.grid[0] = persistent ? Dim(target.sms) : q[0] * Dim(kv_heads) * Blocks(q[2] * Dim(group), kFlashRows);
  return call;
}

KernelCall WithoutTensorCores(const Attention& op, const Value* out, int64_t dim, int64_t value_dim) {
  const Heads heads = {{out, {}}, {op.q, {}}, {op.k, {}}, {op.v, {}}};
  const Dims &q = op.q->type.shape, &k = op.k->type.shape;
  const DType dtype = out->type.dtype;
  KernelCall call = NewCall(op, heads, "attention/attention", "Attention");
  call.AddConstants({{"kDim", dim}, {"kValueDim", value_dim}});
  const std::string mask = MaskText(op, &call);
  call.arguments =
      absl::StrCat("out, q, k, v, ", mask, ",\n      ", call.SizesText({q[1], k[1], q[2], k[2], ShiftOf(op)}), ", ",
                   NumberText(op.scale, "scale", dtype, &call), ", ", NumberText(op.softcap, "softcap", dtype, &call));
  call.threads = 128;
  call.shared_bytes =
      static_cast<int>((dtype == DType::kF64 ? 8 : 4) * AttentionSharedElements(call.threads, dim, value_dim));
  call.grid[0] = q[0] * q[1] * Blocks(q[2], AttentionQueries(call.threads));
  return call;
}

}  // namespace

Calls SelectAttention(const KernelBody& body, const ProgramScope& scope) {
  const auto attention = absl::c_find_if(body.nodes, [](const Node* each) { return Is<Attention>(each); });
  if (attention == body.nodes.end()) return Misfit{"no attention", "one"};
  const Node& node = **attention;
  const auto op = View<Attention>(node);
  if (!ConstantLast(op.q) || !ConstantLast(op.v)) return NoKernel(node, "with heads of unknown size");
  const int64_t dim = op.q->type.shape[3].value(), value_dim = op.v->type.shape[3].value();
  if (std::max(dim, value_dim) > kMaxHeadDim) return NoKernel(node, "with heads over 256");
  if (!TakesTensorCores(op, dim, value_dim)) {
    if (body.nodes.size() > 1) return Misfit{"heads that are moved", "attention on tensor cores"};
    return std::vector<DeviceCall>{WithoutTensorCores(op, node.results[0], dim, value_dim)};
  }
  Heads heads;
  if (std::optional<Misfit> misfit = ReadHeads(body, node, &heads)) return *misfit;
  return std::vector<DeviceCall>{OnTensorCores(op, heads, dim, value_dim, scope.target)};
}

Calls SelectRotaryEmbedding(const Node& node, const ProgramScope&) {
  const auto op = View<RotaryEmbedding>(node);
  const Value* out = node.results[0];
  const Dims& x = node.operands[0]->type.shape;
  const Size n = ElementsOf(x);
  KernelCall call{.header = "attention/attention", .function = "RotaryEmbedding", .types = {{"T", DeviceType(out)}}};
  call.constants = {{"kInterleaved", op.interleaved}};
  call.params = {Out(out, "out"),       In(op.x, "x"),      In(op.cos, "cos"),
                 In(op.sin, "sin"),     Count(n, "n"),      Count(x[1], "heads"),
                 Count(x[2], "length"), Count(x[3], "dim"), Count(op.cos->type.shape[2], "half")};
  call.grid[0] = Blocks(n, call.threads);
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
