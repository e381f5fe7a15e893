#include "codegen/select.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "ir/ops.h"
#include "ir/text.h"

namespace llmc {
namespace {

using Calls = absl::StatusOr<std::vector<DeviceCall>>;

constexpr int64_t kMaxMatVecRows = 8;
constexpr int64_t kElementwiseThreads = 256;

absl::Status NoKernel(const Node& node, absl::string_view why) {
  return absl::UnimplementedError(
      absl::StrCat(node.op->info.name, ": there is no GPU kernel for this op ", why, "\n  in: ", PrintNode(node)));
}

bool Is16BitOrF32(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

KernelParam In(const Value* value, const std::string& name) {
  return {absl::StrCat("const ", DeviceType(value->type.dtype), "*"), name, KernelArg::Of(value)};
}
KernelParam Out(const Value* value, const std::string& name) {
  return {absl::StrCat(DeviceType(value->type.dtype), "*"), name, KernelArg::Of(value)};
}
KernelParam Count(Dim dim, const std::string& name) { return {"llmc::i64", name, KernelArg::OfDim(std::move(dim))}; }
KernelParam Float(double number, const std::string& name) { return {"float", name, KernelArg::OfNumber(number)}; }

Dim Blocks(const Dim& threads, int64_t per_block) {
  return Dim::FloorDiv(threads + Dim(per_block - 1), Dim(per_block));
}

// All dims but the last.
Dim RowsOf(const TensorType& type) {
  return Product(Dims(type.shape.begin(), type.shape.end() - (type.shape.empty() ? 0 : 1)));
}

int64_t VectorOf(int64_t columns, DType dtype) {
  int64_t n = 128 / DTypeBits(dtype);
  while (columns % n != 0) n /= 2;
  return n;
}

// Whole warps, enough for one vector each, at most 1024.
int ThreadsForRow(int64_t columns, DType dtype, int64_t most) {
  const int64_t vectors = columns / VectorOf(columns, dtype);
  return static_cast<int>(std::clamp<int64_t>((vectors + 31) / 32 * 32, 32, most));
}

bool ConstantLast(const Value* value) { return value->type.rank() > 0 && value->type.shape.back().is_constant(); }

Calls SelectRmsNorm(const Node& node, const DimEnv&) {
  const auto op = View<RmsNorm>(node);
  const Value* out = node.results[0];
  if (!ConstantLast(out) || !Is16BitOrF32(out->type.dtype)) return NoKernel(node, "of this type");
  const int64_t dim = out->type.shape.back().value();
  KernelCall call{.header = "rms_norm", .function = "RmsNorm"};
  call.types = {{"T", DeviceType(out->type.dtype)}};
  call.constants = {{"kDim", dim}};
  call.params = {Out(out, "out"), In(op.x, "x"), In(op.weight, "weight"), Float(op.eps, "eps")};
  call.grid[0] = RowsOf(out->type);
  call.threads = ThreadsForRow(dim, out->type.dtype, 512);
  return std::vector<DeviceCall>{call};
}

Calls SelectAddRmsNorm(const Node& node, const DimEnv&) {
  const auto op = View<AddRmsNorm>(node);
  const Value *sum = node.results[0], *out = node.results[1];
  if (!ConstantLast(out) || !Is16BitOrF32(out->type.dtype)) return NoKernel(node, "of this type");
  const int64_t dim = out->type.shape.back().value();
  KernelCall call{.header = "add_rms_norm", .function = "AddRmsNorm"};
  call.types = {{"T", DeviceType(out->type.dtype)}};
  call.constants = {{"kDim", dim}};
  call.params = {Out(sum, "sum"), Out(out, "out"),         In(op.x, "x"),
                 In(op.y, "y"),   In(op.weight, "weight"), Float(op.eps, "eps")};
  call.grid[0] = RowsOf(out->type);
  call.threads = ThreadsForRow(dim, out->type.dtype, 512);
  return std::vector<DeviceCall>{call};
}

Calls SelectGather(const Node& node, const DimEnv&) {
  const auto op = View<Gather>(node);
  const Dims& shape = op.x->type.shape;
  const DType index = op.indices->type.dtype;
  if (index != DType::kI32 && index != DType::kI64) return NoKernel(node, "with indices of this type");
  const Dim outer = Product(Dims(shape.begin(), shape.begin() + op.axis));
  const Dim inner = Product(Dims(shape.begin() + op.axis + 1, shape.end()));
  const int64_t vec = inner.is_constant() ? VectorOf(inner.value(), op.x->type.dtype) : 1;
  const Dim count = Product(op.indices->type.shape);
  KernelCall call{.header = "gather", .function = "Gather"};
  call.types = {{"T", DeviceType(op.x->type.dtype)}, {"Index", DeviceType(index)}};
  call.constants = {{"kVec", vec}};
  call.params = {Out(node.results[0], "out"), In(op.x, "x"),         In(op.indices, "indices"),
                 Count(outer, "outer"),       Count(count, "count"), Count(shape[op.axis], "axis"),
                 Count(inner, "inner")};
  call.grid[0] = Blocks(outer * count * Dim::FloorDiv(inner, Dim(vec)), call.threads);
  return std::vector<DeviceCall>{call};
}

Calls SelectMatMul(const Node& node, const DimEnv& bounds) {
  const auto op = View<MatMul>(node);
  const Value* out = node.results[0];
  const Dims& weight = op.rhs->type.shape;
  const bool linear = op.transpose_rhs && op.rhs->type.rank() == 2 && weight[0].is_constant() &&
                      weight[1].is_constant() && Is16BitOrF32(op.lhs->type.dtype) &&
                      op.lhs->type.dtype == op.rhs->type.dtype && Is16BitOrF32(out->type.dtype);
  if (!linear) return NoKernel(node, "but of x[…, k] and a weight [n, k]");
  const Dim rows = RowsOf(op.lhs->type);
  const int64_t n = weight[0].value(), k = weight[1].value();
  const absl::StatusOr<DimRange> range = rows.Range(bounds);
  if (!range.ok() || range->high > kMaxMatVecRows) {
    return std::vector<DeviceCall>{GemmCall{.out = out, .x = op.lhs, .weight = op.rhs, .m = rows, .n = n, .k = k}};
  }
  KernelCall call{.header = "matvec", .function = "MatVec"};
  call.types = {{"T", DeviceType(op.lhs->type.dtype)}, {"Out", DeviceType(out->type.dtype)}};
  call.constants = {{"kIn", k}, {"kOut", n}, {"kTokens", range->high}, {"kRows", 2}};
  call.params = {Out(out, "out"), In(op.lhs, "x"), In(op.rhs, "weight"), Count(rows, "tokens")};
  call.threads = 128;
  call.grid[0] = Dim((n + 7) / 8);
  return std::vector<DeviceCall>{call};
}

// Threads that share a head: one for each pair, in whole parts of a warp or whole warps.
int64_t HeadThreads(int64_t head_dim) {
  int64_t threads = 1;
  while (threads < head_dim / 2 && threads < 32) threads *= 2;
  return threads;
}

void AddRope(const Value* inv_freq, int64_t head_dim, bool interleaved, KernelCall* call) {
  call->constants.push_back({"kHeadDim", head_dim});
  call->constants.push_back({"kRotary", 2 * inv_freq->type.shape[0].value()});
  call->constants.push_back({"kInterleaved", interleaved ? 1 : 0});
  call->constants.push_back({"kHeadThreads", HeadThreads(head_dim)});
}

Calls SelectRope(const Node& node, const DimEnv&) {
  const auto op = View<Rope>(node);
  const Value* out = node.results[0];
  if (!ConstantLast(out) || !op.inv_freq->type.shape[0].is_constant()) return NoKernel(node, "of unknown width");
  KernelCall call{.header = "rope", .function = "Rope"};
  call.types = {{"T", DeviceType(out->type.dtype)}};
  call.constants = {{"kHeads", out->type.shape[1].value() / op.head_dim}};
  AddRope(op.inv_freq, op.head_dim, op.interleaved, &call);
  call.params = {Out(out, "out"), In(op.x, "x"), In(op.pos, "pos"), In(op.inv_freq, "inv_freq"),
                 Float(op.scale, "scale")};
  call.grid[0] = out->type.shape[0];
  return std::vector<DeviceCall>{call};
}

// kPageSize, kKvHeads of a KV state, whose sizes are numbers.
void AddKv(const Value* kv, KernelCall* call) {
  call->constants.push_back({"kPageSize", kv->type.shape[2].value()});
  call->constants.push_back({"kKvHeads", kv->type.shape[3].value()});
}
int64_t HeadDim(const Value* kv) { return kv->type.shape[4].value(); }

Calls SelectRopeKvWrite(const Node& node, const DimEnv&) {
  const auto op = View<RopeKvWrite>(node);
  KernelCall call{.header = "rope", .function = "RopeKvWrite"};
  call.types = {{"T", DeviceType(op.qkv->type.dtype)}};
  call.constants = {{"kHeads", op.heads}};
  AddRope(op.inv_freq, HeadDim(op.kv), op.interleaved, &call);
  AddKv(op.kv, &call);
  call.params = {Out(node.results[0], "out"), Out(op.kv, "kv"),      In(op.qkv, "qkv"),       In(op.pos, "pos"),
                 In(op.inv_freq, "inv_freq"), In(op.slots, "slots"), Float(op.scale, "scale")};
  call.grid[0] = op.qkv->type.shape[0];
  return std::vector<DeviceCall>{call};
}

Calls SelectRopeWrite(const Node& node, const DimEnv&) {
  const auto op = View<RopeWrite>(node);
  KernelCall call{.header = "rope", .function = "RopeWrite"};
  call.types = {{"T", DeviceType(op.k->type.dtype)}};
  AddRope(op.inv_freq, HeadDim(op.kv), op.interleaved, &call);
  AddKv(op.kv, &call);
  call.params = {
      Out(op.kv, "kv"),      In(op.k, "k"),           In(op.v, "v"), In(op.pos, "pos"), In(op.inv_freq, "inv_freq"),
      In(op.slots, "slots"), Float(op.scale, "scale")};
  call.grid[0] = op.k->type.shape[0];
  return std::vector<DeviceCall>{call};
}

Calls SelectKvWrite(const Node& node, const DimEnv&) {
  const auto op = View<KvWrite>(node);
  KernelCall call{.header = "rope", .function = "KvWrite"};
  call.types = {{"T", DeviceType(op.k->type.dtype)}};
  call.constants = {{"kHeadDim", HeadDim(op.kv)}};
  AddKv(op.kv, &call);
  call.params = {Out(op.kv, "kv"), In(op.k, "k"), In(op.v, "v"), In(op.slots, "slots")};
  call.grid[0] = op.k->type.shape[0];
  return std::vector<DeviceCall>{call};
}

Calls SelectPagedAttention(const Node& node, const DimEnv&) {
  const auto op = View<PagedAttention>(node);
  const Value* out = node.results[0];
  const int64_t kv_heads = op.kv->type.shape[3].value(), head_dim = HeadDim(op.kv);
  const int64_t group = out->type.shape[1].value() / (kv_heads * head_dim);
  if (head_dim > 256 || group > 16) return NoKernel(node, "of heads over 256 or groups over 16");
  KernelCall call{.header = "paged_attention", .function = "PagedAttention"};
  call.types = {{"T", DeviceType(out->type.dtype)}};
  call.constants = {
      {"kGroup", group}, {"kHeadDim", head_dim}, {"kWindow", op.window}, {"kSoftcap", op.softcap != 0 ? 1 : 0}};
  AddKv(op.kv, &call);
  const double scale = op.softcap != 0 ? op.scale : op.scale * std::log2(std::exp(1.0));
  call.params = {Out(out, "out"),
                 In(op.q, "q"),
                 In(op.kv, "kv"),
                 In(op.pages, "pages"),
                 In(op.lens, "lens"),
                 In(op.starts, "starts"),
                 Count(op.pages->type.shape[0], "sequences"),
                 Count(op.pages->type.shape[1], "pages_per_sequence"),
                 Float(scale, "scale"),
                 Float(op.softcap, "softcap")};
  call.grid = {out->type.shape[0], Dim(kv_heads), Dim(1)};
  call.threads = 128;
  return std::vector<DeviceCall>{call};
}

Calls SelectSiluMul(const Node& node, const DimEnv&) {
  const auto op = View<SiluMul>(node);
  const Value* out = node.results[0];
  if (!ConstantLast(out)) return NoKernel(node, "of unknown width");
  const int64_t dim = out->type.shape.back().value();
  const Dim rows = RowsOf(out->type);
  KernelCall call{.header = "silu_mul", .function = "SiluMul"};
  call.types = {{"T", DeviceType(out->type.dtype)}};
  call.constants = {{"kDim", dim}};
  call.params = {Out(out, "out"), In(op.gate_up, "gate_up"), Count(rows, "rows")};
  call.grid[0] = Blocks(rows * Dim(dim / VectorOf(dim, out->type.dtype)), call.threads);
  return std::vector<DeviceCall>{call};
}

Calls SelectSlice(const Node& node, const DimEnv&) {
  const auto op = View<Slice>(node);
  const Value* out = node.results[0];
  const bool columns = op.axis == op.x->type.rank() - 1 && ConstantLast(op.x) && ConstantLast(out) &&
                       op.start[0].is_constant() && DTypeBits(out->type.dtype) >= 8;
  if (!columns) return NoKernel(node, "but of columns at known places");
  const Dim rows = RowsOf(out->type);
  KernelCall call{.header = "slice_columns", .function = "SliceColumns"};
  call.types = {{"T", DeviceType(out->type.dtype)}};
  call.constants = {{"kIn", op.x->type.shape.back().value()},
                    {"kOut", out->type.shape.back().value()},
                    {"kStart", op.start[0].value()}};
  call.params = {Out(out, "out"), In(op.x, "x"), Count(rows, "rows")};
  call.grid[0] = Blocks(rows * out->type.shape.back(), call.threads);
  return std::vector<DeviceCall>{call};
}

// Parts of an outermost axis lie one after the other.
Calls SelectConcat(const Node& node, const DimEnv&) {
  const auto op = View<Concat>(node);
  if (op.axis != 0) return NoKernel(node, "but along the first axis");
  std::vector<DeviceCall> calls;
  Dim offset(0);
  for (const Value* part : op.parts) {
    const Dim bytes = Product(part->type.shape) * Dim(DTypeBits(part->type.dtype) / 8);
    calls.push_back(CopyCall{.to = node.results[0], .from = part, .to_offset = offset, .bytes = bytes});
    offset = offset + bytes;
  }
  return calls;
}

// ---- elementwise -----------------------------------------------------------------------------------------------
// 0: flat, 1: scalar, 2: row; -1: none of these.
int64_t BroadcastOf(const TensorType& in, const TensorType& out) {
  if (in.shape == out.shape) return 0;
  if (Product(in.shape) == Dim(1)) return 1;
  const bool is_row = !in.shape.empty() && in.shape.back() == out.shape.back() && Product(in.shape) == in.shape.back();
  return is_row ? 2 : -1;
}

Calls SelectElementwise(const Node& node, const std::string& expression) {
  const Value* out = node.results[0];
  const size_t count = node.operands.size();
  if (!Is16BitOrF32(out->type.dtype)) return NoKernel(node, "of this type");
  KernelCall call{.header = "elementwise", .function = absl::StrCat("Elementwise", count)};
  const std::string type = DeviceType(out->type.dtype);
  std::string params, names;
  call.params = {Out(out, "out")};
  for (size_t i = 0; i < count; ++i) {
    const Value* operand = node.operands[i];
    const int64_t broadcast = BroadcastOf(operand->type, out->type);
    if (broadcast < 0 || !Is16BitOrF32(operand->type.dtype)) return NoKernel(node, "with such an operand");
    const std::string name(1, static_cast<char>('a' + i));
    call.constants.push_back({absl::StrCat("kIn", i), broadcast});
    call.params.push_back(In(operand, name));
    absl::StrAppend(&params, i == 0 ? "" : ", ", DeviceType(operand->type.dtype), " ", name, "_");
    absl::StrAppend(&names, "    const float ", name, " = llmc::ToFloat(", name, "_);\n");
  }
  call.apply = absl::StrCat("  static __device__ __forceinline__ ", type, " Apply(", params, ") {\n", names,
                            "    return llmc::FromFloat<", type, ">(", expression, ");\n  }\n");
  const Dim n = Product(out->type.shape);
  call.params.push_back(Count(n, "n"));
  call.params.push_back(Count(out->type.rank() == 0 ? Dim(1) : out->type.shape.back(), "columns"));
  call.grid[0] = Blocks(n, kElementwiseThreads);
  return std::vector<DeviceCall>{call};
}

const absl::flat_hash_map<absl::string_view, absl::string_view>& Expressions() {
  static const auto* expressions = new absl::flat_hash_map<absl::string_view, absl::string_view>{
      {"cast", "a"},
      {"add", "a + b"},
      {"sub", "a - b"},
      {"mul", "a * b"},
      {"div", "a / b"},
      {"neg", "-a"},
      {"relu", "fmaxf(a, 0.0f)"},
      {"exp", "expf(a)"},
      {"sqrt", "sqrtf(a)"},
      {"tanh", "tanhf(a)"},
      {"sigmoid", "1.0f / (1.0f + expf(-a))"},
      {"silu", "a / (1.0f + expf(-a))"},
      {"gelu", "a * 0.5f * (1.0f + erff(a * 0.70710678118654752f))"},
      {"gelu_tanh", "a * 0.5f * (1.0f + tanhf(0.79788456080286536f * (a + 0.044715f * a * a * a)))"},
  };
  return *expressions;
}

using Selector = Calls (*)(const Node&, const DimEnv&);

template <class Op>
std::pair<const OpDef*, Selector> Row(Selector selector) {
  return {DefOf<Op>(), selector};
}

}  // namespace

Calls SelectCalls(const Node& node, const DimEnv& bounds) {
  static const auto* selectors = new absl::flat_hash_map<const OpDef*, Selector>{
      Row<RmsNorm>(SelectRmsNorm),
      Row<AddRmsNorm>(SelectAddRmsNorm),
      Row<Gather>(SelectGather),
      Row<MatMul>(SelectMatMul),
      Row<Rope>(SelectRope),
      Row<RopeKvWrite>(SelectRopeKvWrite),
      Row<RopeWrite>(SelectRopeWrite),
      Row<KvWrite>(SelectKvWrite),
      Row<PagedAttention>(SelectPagedAttention),
      Row<SiluMul>(SelectSiluMul),
      Row<Slice>(SelectSlice),
      Row<Concat>(SelectConcat),
  };
  if (Is<Constant>(&node) || Is<Reshape>(&node) || Is<Identity>(&node)) return std::vector<DeviceCall>();
  if (const auto it = selectors->find(node.op); it != selectors->end()) return it->second(node, bounds);
  const auto it = Expressions().find(node.op->info.name);
  if (it != Expressions().end()) return SelectElementwise(node, std::string(it->second));
  return NoKernel(node, "yet");
}

}  // namespace llmc
