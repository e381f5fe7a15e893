// The table of backends: what runs kernels, of which ops, and how long that takes.
#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"

namespace llmc {

// Of kernels of several nodes, which take their bodies, and of kernels of one: in the files that have the ops in their
// names, select_norm.cc and so on.
using BodySelector = Calls(const KernelBody& body, const ProgramScope& scope);
using NodeSelector = Calls(const Node& node, const ProgramScope& scope);

BodySelector SelectAttention, SelectDenseGemm, SelectElementwise, SelectEncodedGemm, SelectExpertLinear, SelectGemm,
    SelectGemv, SelectKvWrite, SelectLatentWrite, SelectPackedAttention, SelectPagedAttention, SelectPromptGemm,
    SelectQuantize, SelectReduction, SelectRmsNorm, SelectRope, SelectSideBySide, SelectStreamedGemm,
    SelectWarpgroupMatMul;
NodeSelector SelectArgSort, SelectChoose, SelectConcat, SelectConv, SelectCumSum, SelectDecode, SelectExpand,
    SelectGather, SelectGatherElements, SelectGatherNd, SelectLayerNorm, SelectLayerNormOfRows, SelectMatMul, SelectPad,
    SelectQuantized, SelectRange, SelectRecurrence, SelectRotaryEmbedding, SelectRoute, SelectScatterNd, SelectSiluMul,
    SelectSizes, SelectSlice, SelectSliceBy, SelectSoftmax, SelectTranspose, SelectTriangle, SelectUnpack;

namespace {

constexpr double kLaunchMicroseconds = 2;

struct BackendRow {
  absl::string_view name;
  std::vector<const OpDef*> begins;
  // One of these: of kernels of several nodes, or of one.
  BodySelector* select = nullptr;
  NodeSelector* select_node = nullptr;
  double (*microseconds)(const KernelBody&, const ProgramScope&) = nullptr;  // else StreamTime
  bool is_root = false, rounds_once = false;
  bool keeps_rows = false;  // in kernels of several nodes
  // It runs such kernels too, where they are part of a launch of several.
  std::vector<const OpDef*> beside = {};
};

// ---- times

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

// Preferred to that of cuBLASLt only for what it does besides.
double DenseGemmTime(const KernelBody& body, const ProgramScope& scope) { return 1 + GemmTime(body, scope); }

// Without tensor cores: some ten times slower.
double TiledTime(const KernelBody& body, const ProgramScope& scope) { return 10 * GemmTime(body, scope); }

// ---- rows

template <class... Ops>
BackendRow One(absl::string_view name, NodeSelector* select) {
  return {.name = name, .begins = {DefOf<Ops>()...}, .select_node = select};
}

template <class Op>
BackendRow Reduction(absl::string_view name) {
  return {.name = name, .begins = {DefOf<Op>()}, .select = SelectReduction, .is_root = true};
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
      {.name = "streamed_gemm", .begins = {DefOf<Linear>()}, .select = SelectStreamedGemm, .is_root = true},
      {.name = "gemv",
       .begins = {DefOf<MatMul>(), DefOf<Linear>()},
       .select = SelectGemv,
       .microseconds = StreamTime,
       .is_root = true},
      {.name = "encoded_gemm", .begins = {DefOf<Linear>()}, .select = SelectEncodedGemm, .is_root = true},
      {.name = "prompt_gemm", .begins = {DefOf<Linear>()}, .select = SelectPromptGemm, .is_root = true},
      {.name = "cublaslt",
       .begins = {DefOf<MatMul>(), DefOf<Linear>()},
       .select = SelectGemm,
       .microseconds = GemmTime,
       .is_root = true,
       .rounds_once = true},
      {.name = "dense_gemm",
       .begins = {DefOf<Linear>()},
       .select = SelectDenseGemm,
       .microseconds = DenseGemmTime,
       .is_root = true,
       .rounds_once = true},
      {.name = "matmul",
       .begins = {DefOf<MatMul>(), DefOf<Linear>()},
       .select_node = SelectMatMul,
       .microseconds = TiledTime,
       .is_root = true},
      {.name = "warpgroup_matmul", .begins = {DefOf<Linear>()}, .select = SelectWarpgroupMatMul, .is_root = true},
      {.name = "quantized", .begins = {DefOf<Linear>()}, .select_node = SelectQuantized, .is_root = true},
      One<Decode>("decode", SelectDecode),
      {.name = "quantize", .begins = {DefOf<DynamicScale>(), DefOf<Quantize>()}, .select = SelectQuantize},
      One<Unpack>("unpack", SelectUnpack),
      {.name = "rope_kv_write", .begins = {DefOf<KvWrite>()}, .select = SelectKvWrite},
      {.name = "latent_kv_write", .select = SelectLatentWrite},  // rules form it
      {.name = "rope", .begins = {DefOf<Rope>()}, .select = SelectRope},
      {.name = "rms_norm", .begins = {DefOf<RmsNorm>()}, .select = SelectRmsNorm, .keeps_rows = true},
      {.name = "paged_attention", .begins = {DefOf<PagedAttention>()}, .select = SelectPagedAttention, .is_root = true},
      One<Route>("route", SelectRoute),
      {.name = "expert_linear",
       .begins = {DefOf<ExpertLinear>()},
       .select = SelectExpertLinear,
       .is_root = true,
       .beside = {DefOf<Linear>()}},
      {.name = "attention", .begins = {DefOf<Attention>()}, .select = SelectAttention, .is_root = true},
      {.name = "packed_attention",
       .begins = {DefOf<PackedAttention>()},
       .select = SelectPackedAttention,
       .is_root = true},
      One<RotaryEmbedding>("rotary_embedding", SelectRotaryEmbedding),
      One<Conv>("conv", SelectConv),
      One<Recurrence>("recurrence", SelectRecurrence),
      One<SiluMul>("silu_mul", SelectSiluMul),
      One<LayerNorm>("layer_norm_of_rows", SelectLayerNormOfRows),
      One<LayerNorm>("layer_norm", SelectLayerNorm),
      One<Softmax>("softmax", SelectSoftmax),
      Reduction<ReduceSum>("reduce_sum"),
      Reduction<ReduceMean>("reduce_mean"),
      Reduction<ReduceMax>("reduce_max"),
      Reduction<ReduceMin>("reduce_min"),
      Reduction<ReduceProd>("reduce_prod"),
      Reduction<ArgMax>("argmax"),
      One<ArgSort>("argsort", SelectArgSort),
      One<CumSum>("cumsum", SelectCumSum),
      One<Gather>("gather", SelectGather),
      One<GatherElements>("gather_elements", SelectGatherElements),
      One<GatherNd>("gather_nd", SelectGatherNd),
      One<ScatterNd>("scatter_nd", SelectScatterNd),
      One<Slice>("slice", SelectSlice),
      One<SliceBy>("slice_by", SelectSliceBy),
      One<Concat>("concat", SelectConcat),
      One<Transpose>("transpose", SelectTranspose),
      One<Expand, ExpandTo>("expand", SelectExpand),
      One<ShapeOf, DimsOf>("sizes", SelectSizes),
      One<Range>("range", SelectRange),
      One<Triangle>("triangle", SelectTriangle),
      One<Pad>("pad", SelectPad),
      One<Choose>("choose", SelectChoose),
      {.name = "elementwise", .begins = ElementwiseOps(), .select = SelectElementwise},
      {.name = kSideBySide, .select = SelectSideBySide},  // `lower` forms it
  };
  return *rows;
}

const BackendRow* FindRow(absl::string_view name) {
  const auto it = absl::c_find_if(Rows(), [&](const BackendRow& row) { return row.name == name; });
  return it == Rows().end() ? nullptr : &*it;
}

Calls Select(const BackendRow& row, const KernelBody& body, const ProgramScope& scope) {
  if (row.select != nullptr) return row.select(body, scope);
  if (body.nodes.size() != 1) return Misfit{"several nodes", absl::StrCat(row.name, " alone")};
  return row.select_node(*body.nodes[0], scope);
}

}  // namespace

std::vector<std::vector<DeviceCall>> CallsOfAll(const KernelBody& body, const ProgramScope& scope) {
  std::vector<std::pair<double, std::vector<DeviceCall>>> found;
  for (const BackendRow& row : Rows()) {
    // Rules form kernels of backends that begin none.
    const bool may =
        row.begins.empty() || absl::c_any_of(body.nodes, [&](const Node* node) {
          return absl::c_linear_search(row.begins, node->op) || absl::c_linear_search(row.beside, node->op);
        });
    if (!may || row.select == SelectSideBySide) continue;
    Calls calls = Select(row, body, scope);
    if (auto* selected = std::get_if<0>(&calls)) {
      found.emplace_back((row.microseconds != nullptr ? row.microseconds : StreamTime)(body, scope),
                         std::move(*selected));
    }
  }
  absl::c_stable_sort(found, [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::vector<DeviceCall>> calls;
  for (auto& each : found) calls.push_back(std::move(each.second));
  return calls;
}

Backends BackendsFor(const ProgramScope& scope) {
  Backends backends;
  for (const BackendRow& row : Rows()) {
    backends.push_back({.name = std::string(row.name),
                        .begins = row.begins,
                        .is_root = row.is_root,
                        .rounds_once = row.rounds_once,
                        .misfit =
                            [&](const KernelBody& body) {
                              const Calls calls = Select(row, body, scope);
                              const auto* misfit = std::get_if<Misfit>(&calls);
                              return misfit == nullptr ? std::nullopt : std::optional(*misfit);
                            },
                        .microseconds =
                            [&](const KernelBody& body) {
                              return (row.microseconds != nullptr ? row.microseconds : StreamTime)(body, scope);
                            }});
  }
  return backends;
}

absl::StatusOr<std::vector<DeviceCall>> SelectKernel(absl::string_view backend, const KernelBody& body,
                                                     const ProgramScope& scope) {
  const BackendRow* row = FindRow(backend);
  if (row == nullptr) return absl::InvalidArgumentError(absl::StrCat("there is no backend ", backend));
  Calls calls = Select(*row, body, scope);
  if (auto* selected = std::get_if<0>(&calls)) return std::move(*selected);
  Misfit misfit = std::get<Misfit>(std::move(calls));
  if (!misfit.expected.empty()) {
    misfit = NoKernel(*body.nodes[0],
                      absl::StrCat("by ", backend, ": found ", misfit.actual, ", expected ", misfit.expected));
  }
  return absl::UnimplementedError(misfit.actual);
}

absl::StatusOr<std::vector<DeviceCall>> SelectNode(const Node& node, const ProgramScope& scope) {
  if (NeedsNoKernel(node)) return std::vector<DeviceCall>();
  const KernelBody body = {.nodes = {&node}, .results = {node.results.begin(), node.results.end()}};
  Misfit last = NoKernel(node, "yet");
  for (const BackendRow& row : Rows()) {
    if (!absl::c_linear_search(row.begins, node.op)) continue;
    Calls calls = Select(row, body, scope);
    if (auto* selected = std::get_if<0>(&calls)) return std::move(*selected);
    if (auto& misfit = std::get<Misfit>(calls); misfit.expected.empty()) last = std::move(misfit);
  }
  return absl::UnimplementedError(last.actual);
}

bool KeepsRows(absl::string_view backend, const KernelBody& body) {
  const BackendRow* row = FindRow(backend);
  return row != nullptr && row->keeps_rows && body.nodes.size() > 1;
}

}  // namespace llmc
