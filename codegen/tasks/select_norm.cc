// Norms of rows.
#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"

namespace llmc {
namespace {

// What the kernels of language models take.
bool IsUsual(const Value* out, const Value* weight) {
  return ConstantLast(out) && Is16BitOrF32(out->type.dtype) && weight->type.dtype == out->type.dtype;
}

KernelCall RmsNormCall(const Value* out, const Value* x, const Value* weight, double eps) {
  if (!IsUsual(out, weight)) return AnyRmsNorm(out, x, weight, eps);
  KernelCall call = RowsCall("norm/rms_norm", "RmsNorm", out);
  call.params = {Out(out, "out"), In(x, "x"), In(weight, "weight"), Float(eps, "eps")};
  return call;
}

// A norm, perhaps of a sum, whose rows are quantized.
Calls QuantizedNorm(const KernelBody& body) {
  absl::Span<const Node* const> nodes = body.nodes;
  const std::variant<QuantizedRows, Misfit> read = ReadQuantizedRows(nodes);
  if (const auto* misfit = std::get_if<Misfit>(&read)) return *misfit;
  const auto& q = std::get<QuantizedRows>(read);
  nodes.remove_suffix(q.is_dynamic ? 2 : 1);
  if (nodes.empty() || nodes.size() > 2 || !Is<RmsNorm>(nodes.back()) || nodes.back()->results[0] != q.rows) {
    return Misfit{"rows of something else", "of a norm"};
  }
  const auto norm = View<RmsNorm>(*nodes.back());
  if (!IsUsual(q.rows, norm.weight)) return Misfit{"a norm of unusual types", "f32, f16 or bf16, and weights of it"};
  const bool stores = absl::c_linear_search(body.results, q.rows);
  const Node* add = nodes.size() == 2 ? nodes[0] : nullptr;
  KernelCall call = add == nullptr ? RowsCall("norm/rms_norm", "RmsNorm", q.rows)
                                   : RowsCall("norm/add_rms_norm", "AddRmsNorm", q.rows);
  if (add != nullptr) {
    const bool fits = Is<Add>(add) && add->results[0] == norm.x && add->operands[0]->type == add->operands[1]->type &&
                      absl::c_linear_search(body.results, norm.x);
    if (!fits) return Misfit{"a sum that nothing else reads", "the sum of a residual"};
    call.params.push_back(Out(norm.x, "sum"));
  }
  const std::string sink = AddQuantizedSink(q, stores, &call);
  if (add == nullptr) {
    call.params.push_back(In(norm.x, "x"));
  } else {
    call.AddParams({In(add->operands[0], "x"), In(add->operands[1], "y")});
  }
  call.AddParams({In(norm.weight, "weight"), Float(norm.eps, "eps")});
  call.arguments =
      add == nullptr ? absl::StrCat(sink, ", x, weight, eps") : absl::StrCat("sum, ", sink, ", x, y, weight, eps");
  return std::vector<DeviceCall>{call};
}

}  // namespace

Calls SelectLayerNormOfRows(const Node& node, const ProgramScope&) {
  const auto op = View<LayerNorm>(node);
  const Value* out = node.results[0];
  const bool of_last = op.axis == out->type.rank() - 1;
  if (!of_last || !IsUsual(out, op.weight) || (op.bias != nullptr && op.bias->type.dtype != out->type.dtype)) {
    return Misfit{absl::StrCat(out->type.ToString(), " by ", op.weight->type.ToString()),
                  "rows of known length of f32, f16 or bf16, and weights of that type"};
  }
  KernelCall call = RowsCall("norm/layer_norm", "LayerNorm", out);
  const int64_t dim = out->type.shape.back().value(), vectors = dim / VectorOf(dim, out->type.dtype);
  if (vectors > 8 * call.threads) return Misfit{"rows past its registers", "shorter ones"};
  // Rows that a warp can keep need no barriers of blocks, of which each has several.
  const int64_t lanes = vectors <= 4 * 32 ? 32 : call.threads;
  if (lanes == 32) call.threads = 128;
  const bool weight_first = IsThereBeforeStep(op.weight) && (op.bias == nullptr || IsThereBeforeStep(op.bias));
  call.AddConstants({{"kBias", op.bias != nullptr}, {"kLanes", lanes}, {"kWeightFirst", weight_first}});
  call.params = {Out(out, "out"),
                 In(op.x, "x"),
                 In(op.weight, "weight"),
                 In(op.bias == nullptr ? op.weight : op.bias, "bias"),
                 Count(RowsOf(out->type), "rows"),
                 Float(op.eps, "eps")};
  call.grid[0] = Blocks(RowsOf(out->type) * Dim(lanes), call.threads);
  return std::vector<DeviceCall>{call};
}

Calls SelectRmsNorm(const KernelBody& body, const ProgramScope&) {
  if (Is<Quantize>(body.nodes.back())) return QuantizedNorm(body);
  const Node& norm = *body.nodes.back();
  if (!Is<RmsNorm>(&norm)) return Misfit{std::string(norm.op->info.name), "a norm at the end"};
  const auto op = View<RmsNorm>(norm);
  const Value* out = norm.results[0];
  if (body.nodes.size() == 1) return std::vector<DeviceCall>{RmsNormCall(out, op.x, op.weight, op.eps)};
  if (body.nodes.size() > 2 || !Is<Add>(body.nodes[0])) {
    return Misfit{absl::StrCat(body.nodes.size(), " nodes"), "an addition and the norm of its sum"};
  }
  const Node& add = *body.nodes[0];
  const Value *sum = op.x, *x = add.operands[0], *y = add.operands[1];
  if (add.results[0] != sum) return Misfit{"a norm of another value", "of the sum"};
  if (x->type != y->type) return Misfit{"addends of two types", "addends of one type"};
  if (!IsUsual(out, op.weight)) {
    if (body.results.size() == 1) {
      return Misfit{"a sum that nothing else reads, of unusual types", "a sum that lies in memory"};
    }
    return std::vector<DeviceCall>{AddCall(sum, x, y), AnyRmsNorm(out, sum, op.weight, op.eps)};
  }
  KernelCall call = RowsCall("norm/add_rms_norm", "AddRmsNorm", out);
  // Where nothing else reads the sum, the norm is written over it.
  call.params = {Out(body.results.size() > 1 ? sum : out, "sum"),
                 Out(out, "out"),
                 In(x, "x"),
                 In(y, "y"),
                 In(op.weight, "weight"),
                 Float(op.eps, "eps")};
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
