// Recurrent layers.
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/recurrence.h"

namespace llmc {
namespace {

RecurrenceKind KindOf(absl::string_view kind) {
  if (kind == "lstm") return kLstm;
  if (kind == "gru") return kGru;
  if (kind == "gru_reset_after") return kGruResetAfter;
  return kind == "rnn_tanh" ? kRnnTanh : kRnnRelu;
}

}  // namespace

Calls SelectRecurrence(const Node &node, const ProgramScope &) {
  constexpr int64_t kMaxShared = 48 << 10;  // what every GPU has without asking
  const auto op = View<Recurrence>(node);
  const Value *out = node.results[0], *last = node.results[1];
  const Dim &hidden = op.weight->type.shape[1], &batch = op.x->type.shape[1];
  if (!hidden.is_constant()) return NoKernel(node, "with a state whose size is not known");
  const bool is_double = op.x->type.dtype == DType::kF64;
  const int64_t gates = GatesOf(op.kind);
  const int64_t shared = RecurrenceSharedElements(hidden.value(), gates) * (is_double ? 8 : 4);
  if (hidden.value() < 1 || hidden.value() > kMaxShared) return NoKernel(node, "with a state of this size");
  if (shared > kMaxShared) return NoKernel(node, "with a state that its shared memory has no room for");
  KernelCall call{.header = "elementwise/recurrence", .function = "Recurrence", .types = {{"T", DeviceType(out)}}};
  call.constants = {{"kHidden", hidden.value()},   {"kGates", gates},
                    {"kKind", KindOf(op.kind)},    {"kReverse", op.reverse},
                    {"kLens", op.lens != nullptr}, {"kBias", op.bias != nullptr}};
  // What is absent is not read.
  call.params = {Out(out, "out"),
                 Out(last, "last"),
                 In(op.x, "x"),
                 In(op.weight, "weight"),
                 In(op.h, "h"),
                 In(op.c == nullptr ? op.h : op.c, "c"),
                 In(op.lens == nullptr ? op.h : op.lens, "lens", "llmc::i64"),
                 In(op.bias == nullptr ? op.h : op.bias, "bias"),
                 Count(op.x->type.shape[0], "steps"),
                 Count(batch, "batch")};
  call.threads = hidden.value() >= 128 ? 512 : 256;
  call.shared_bytes = static_cast<int>(shared);
  call.grid[0] = Size(batch);
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
