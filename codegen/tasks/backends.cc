// The table of backends: what runs kernels, of which ops, and how long that takes.
#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "codegen/memory/memory_plan.h"
#include "codegen/tasks/gemv_call.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"

namespace llmc {
namespace {

constexpr double kLaunchMicroseconds = 2;

struct BackendRow {
  absl::string_view name;
  std::vector<const OpDef*> begins;
  Calls (*select)(const KernelBody&, const ProgramScope&) = nullptr;
  // Without one, the row is of kernels of one node, and a misfit is one that `unfit` names or `select` refuses.
  std::optional<Misfit> (*misfit)(const KernelBody&, const ProgramScope&) = nullptr;
  std::optional<Misfit> (*unfit)(const Node&) = nullptr;
  double (*microseconds)(const KernelBody&, const ProgramScope&) = nullptr;  // else StreamTime
  bool is_root = false, rounds_once = false;
  bool (*keeps_rows)(const KernelBody&) = nullptr;
};

// ---- times
// -----------------------------------------------------------------------------------------------------------

double MostBytes(const Value* value, const ProgramScope& scope) {
  if (value->type.encoding != nullptr) {
    double all = 0;
    for (const Value* component : StoredValues(value)) all += MostBytes(component, scope);
    return all;
  }
  double bytes = DTypeBits(value->type.dtype) / 8.0;
  for (const Dim& dim : value->type.shape) {
    const absl::StatusOr<DimRange> range = dim.Range(scope.bounds);
    bytes *= range.ok() ? static_cast<double>(std::max<int64_t>(range->high, 0)) : 1.0;
  }
  return bytes;
}

// What the kernel must read and write, at the bandwidth of memory.
double MemoryMicroseconds(const KernelBody& body, const ProgramScope& scope) {
  double bytes = 0;
  std::vector<const Value*> read;
  for (const Node* node : body.nodes) {
    for (const Value* operand : node->operands) {
      const bool outside = operand != nullptr && !absl::c_linear_search(body.nodes, operand->def);
      if (!outside || operand->kind == ValueKind::kState || absl::c_linear_search(read, operand)) continue;
      read.push_back(operand);
      bytes += MostBytes(operand, scope);
    }
  }
  for (const Value* result : body.results) bytes += MostBytes(result, scope);
  return bytes / scope.target.bandwidth * 1e6;
}

double StreamTime(const KernelBody& body, const ProgramScope& scope) {
  return kLaunchMicroseconds + MemoryMicroseconds(body, scope);
}

// A launch that waits until all before it have ended, and lets the next one wait for it (H200).
double GemmTime(const KernelBody& body, const ProgramScope& scope) {
  return 2 * kLaunchMicroseconds + 1.04 * MemoryMicroseconds(body, scope);
}

// Without tensor cores: some ten times slower.
double TiledTime(const KernelBody& body, const ProgramScope& scope) { return 10 * GemmTime(body, scope); }

// ---- rows of one op
// --------------------------------------------------------------------------------------------------

template <Calls (*kSelect)(const Node&, const ProgramScope&)>
Calls SelectOne(const KernelBody& body, const ProgramScope& scope) {
  return kSelect(*body.nodes[0], scope);
}

// Kernels of a single node.
template <Calls (*kSelect)(const Node&, const ProgramScope&), class... Ops>
BackendRow One(absl::string_view name) {
  return {.name = name, .begins = {DefOf<Ops>()...}, .select = SelectOne<kSelect>};
}

std::optional<Misfit> EncodedMisfit(const Node& product) {
  return HasEncodedFactor(product) ? std::optional(Misfit{"an encoded factor", "elements"}) : std::nullopt;
}

std::optional<Misfit> ElementsMisfit(const Node& product) {
  return HasEncodedFactor(product) ? std::nullopt : std::optional(Misfit{"elements", "an encoded factor"});
}

std::vector<const OpDef*> ElementwiseOps() {
  std::vector<const OpDef*> ops;
  for (const OpDef* op : AllOpDefs()) {
    if (op->info.is_elementwise() && !op->info.is_view()) ops.push_back(op);
  }
  return ops;
}

// Over 60 lines: the table. In the order of preference where two take equally long.
const std::vector<BackendRow>& Rows() {
  static const auto* const rows = new std::vector<BackendRow>{
      {.name = "gemv",
       .begins = {DefOf<MatMul>(), DefOf<Linear>()},
       .select = SelectGemv,
       .misfit = GemvMisfit,
       .microseconds = StreamTime,
       .is_root = true},
      {.name = "cublaslt",
       .begins = {DefOf<MatMul>(), DefOf<Linear>()},
       .select = SelectGemm,
       .misfit = GemmMisfit,
       .microseconds = GemmTime,
       .is_root = true,
       .rounds_once = true},
      {.name = "matmul",
       .begins = {DefOf<MatMul>(), DefOf<Linear>()},
       .select = SelectOne<SelectMatMul>,
       .unfit = EncodedMisfit,
       .microseconds = TiledTime,
       .is_root = true},
      {.name = "quantized",
       .begins = {DefOf<Linear>()},
       .select = SelectOne<SelectQuantized>,
       .unfit = ElementsMisfit,
       .is_root = true},
      One<SelectDecode, Decode>("decode"),
      {.name = "rope_kv_write", .begins = {DefOf<KvWrite>()}, .select = SelectKvWrite, .misfit = KvWriteMisfit},
      One<SelectRope, Rope>("rope"),
      {.name = "rms_norm",
       .begins = {DefOf<RmsNorm>()},
       .select = SelectRmsNorm,
       .misfit = RmsNormMisfit,
       .keeps_rows = [](const KernelBody& body) { return body.nodes.size() > 1; }},
      One<SelectPagedAttention, PagedAttention>("paged_attention"),
      One<SelectAttention, Attention>("attention"),
      One<SelectRotaryEmbedding, RotaryEmbedding>("rotary_embedding"),
      One<SelectConv, Conv>("conv"),
      One<SelectRecurrence, Recurrence>("recurrence"),
      One<SelectSiluMul, SiluMul>("silu_mul"),
      One<SelectLayerNorm, LayerNorm>("layer_norm"),
      One<SelectSoftmax, Softmax>("softmax"),
      One<SelectReduceSum, ReduceSum>("reduce_sum"),
      One<SelectReduceMean, ReduceMean>("reduce_mean"),
      One<SelectReduceMax, ReduceMax>("reduce_max"),
      One<SelectReduceMin, ReduceMin>("reduce_min"),
      One<SelectReduceProd, ReduceProd>("reduce_prod"),
      One<SelectArgMax, ArgMax>("argmax"),
      One<SelectArgSort, ArgSort>("argsort"),
      One<SelectCumSum, CumSum>("cumsum"),
      One<SelectGather, Gather>("gather"),
      One<SelectGatherElements, GatherElements>("gather_elements"),
      One<SelectGatherNd, GatherNd>("gather_nd"),
      One<SelectScatterNd, ScatterNd>("scatter_nd"),
      One<SelectSlice, Slice>("slice"),
      One<SelectSliceBy, SliceBy>("slice_by"),
      One<SelectConcat, Concat>("concat"),
      One<SelectTranspose, Transpose>("transpose"),
      One<SelectExpand, Expand, ExpandTo>("expand"),
      One<SelectSizes, ShapeOf, DimsOf>("sizes"),
      One<SelectRange, Range>("range"),
      One<SelectTriangle, Triangle>("triangle"),
      One<SelectPad, Pad>("pad"),
      One<SelectChoose, Choose>("choose"),
      {.name = "elementwise", .begins = ElementwiseOps(), .select = SelectElementwise, .misfit = ElementwiseMisfit},
  };
  return *rows;
}

const BackendRow* FindRow(absl::string_view name) {
  const auto it = absl::c_find_if(Rows(), [&](const BackendRow& row) { return row.name == name; });
  return it == Rows().end() ? nullptr : &*it;
}

std::optional<Misfit> MisfitOf(const BackendRow& row, const KernelBody& body, const ProgramScope& scope) {
  if (row.misfit != nullptr) return row.misfit(body, scope);
  if (body.nodes.size() != 1) return Misfit{"several nodes", absl::StrCat(row.name, " alone")};
  if (row.unfit != nullptr) {
    if (std::optional<Misfit> misfit = row.unfit(*body.nodes[0])) return misfit;
  }
  const Calls calls = row.select(body, scope);
  if (calls.ok()) return std::nullopt;
  return Misfit{std::string(calls.status().message()), ""};
}

}  // namespace

Backends BackendsFor(const ProgramScope& scope) {
  Backends backends;
  for (const BackendRow& row : Rows()) {
    backends.push_back({.name = std::string(row.name),
                        .begins = row.begins,
                        .is_root = row.is_root,
                        .rounds_once = row.rounds_once,
                        .misfit = [&](const KernelBody& body) { return MisfitOf(row, body, scope); },
                        .microseconds =
                            [&](const KernelBody& body) {
                              return (row.microseconds != nullptr ? row.microseconds : StreamTime)(body, scope);
                            }});
  }
  return backends;
}

Calls SelectKernel(absl::string_view backend, const KernelBody& body, const ProgramScope& scope) {
  const BackendRow* row = FindRow(backend);
  if (row == nullptr) return absl::InvalidArgumentError(absl::StrCat("there is no backend ", backend));
  if (const std::optional<Misfit> misfit = MisfitOf(*row, body, scope)) {
    if (misfit->expected.empty()) return absl::UnimplementedError(misfit->actual);
    return NoKernel(*body.nodes[0],
                    absl::StrCat("by ", backend, ": found ", misfit->actual, ", expected ", misfit->expected));
  }
  return row->select(body, scope);
}

Calls SelectNode(const Node& node, const ProgramScope& scope) {
  if (NeedsNoKernel(node)) return std::vector<DeviceCall>();
  const KernelBody body = {.nodes = {&node}, .results = {node.results.begin(), node.results.end()}};
  absl::Status status = NoKernel(node, "yet");
  for (const BackendRow& row : Rows()) {
    if (!absl::c_linear_search(row.begins, node.op)) continue;
    const std::optional<Misfit> misfit = MisfitOf(row, body, scope);
    if (!misfit.has_value()) return row.select(body, scope);
    if (misfit->expected.empty()) status = absl::UnimplementedError(misfit->actual);
  }
  return status;
}

bool KeepsRows(absl::string_view backend, const KernelBody& body) {
  const BackendRow* row = FindRow(backend);
  return row != nullptr && row->keeps_rows != nullptr && row->keeps_rows(body);
}

}  // namespace llmc
