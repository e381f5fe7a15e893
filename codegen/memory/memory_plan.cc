#include "codegen/memory/memory_plan.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "ir/ops.h"
#include "ir/text.h"
#include "runtime/plan/dim_expression.h"

namespace llmc {
namespace {

constexpr absl::string_view kRemedy = "; give smaller ones: `llmc compile --bound NAME=MAX`";

// The most bytes for any sizes of the symbols within `bounds`: with a difference, that is not the size at the bounds.
// -1 if there are too many.
int64_t MostBytes(const TensorType& type, const DimEnv& bounds) {
  int64_t bits = DTypeBits(type.dtype);
  for (const Dim& dim : type.shape) {
    const absl::StatusOr<DimRange> range = dim.Range(bounds);
    if (!range.ok() || __builtin_mul_overflow(bits, std::max<int64_t>(range->high, 0), &bits)) return -1;
  }
  const int64_t bytes = bits / 8 + (bits % 8 != 0);
  return bytes > kMaxBytes ? -1 : bytes;
}

// The same of any size. -1 too where only a run can tell.
int64_t MostBytes(const Size& size, const DimEnv& bounds) {
  if (size.has_dim()) {
    const absl::StatusOr<DimRange> range = size.dim().Range(bounds);
    return range.ok() && range->high <= kMaxBytes ? std::max<int64_t>(range->high, 0) : -1;
  }
  const absl::StatusOr<DimExpression> expression = DimExpression::Parse(size.ToString());
  const int64_t bytes = expression.ok() ? expression->Evaluate({bounds.begin(), bounds.end()}).value_or(-1) : -1;
  return bytes > kMaxBytes ? -1 : bytes;
}

struct Buffer {
  std::string name, size;  // the size as an expression
  std::vector<const Value*> values;
  BufferRange range;
  bool is_param = false;
};

class Planner {
 public:
  Planner(const Step& step, const DimEnv& bounds, const KernelMemory& memory)
      : step_(step), bounds_(bounds), memory_(memory), units_(UnitsOf(step)) {
    for (const Output& output : step.outputs) outputs_.insert(output.value);
  }

  absl::StatusOr<plan::Program> Run() {
    FindLastUses();
    for (const Value* param : step_.params) {
      AddBuffer(param, 0);
      buffers_.back().is_param = true;
    }
    int64_t time = 0;
    for (const StepUnit& unit : units_) AddUnit(unit, time++);
    return Finish();
  }

 private:
  // The last unit that reads a value; outputs are read after the last unit.
  void FindLastUses() {
    int64_t time = 0;
    for (const StepUnit& unit : units_) {
      for (const Node* node : unit.nodes) {
        for (const Value* operand : node->operands) last_use_[operand] = time;
        for (const Value* result : node->results) last_use_[result] = time;
      }
      ++time;
    }
    for (const Output& output : step_.outputs) last_use_[output.value] = time;
    // Who reads an encoded value reads its components.
    for (auto node = step_.block.nodes.rbegin(); node != step_.block.nodes.rend(); ++node) {
      if (!Is<Encode>(node->get())) continue;
      const int64_t read = last_use_[(*node)->results[0]];
      for (const Value* component : (*node)->operands) last_use_[component] = std::max(last_use_[component], read);
    }
  }

  // A buffer of `bytes`; negative: too many.
  Buffer* AddBuffer(std::string name, std::string size, int64_t bytes, int64_t time, absl::string_view type) {
    Buffer& buffer = buffers_.emplace_back();
    buffer.range = {bytes, time, time, 0};
    if (bytes < 0 && unplanned_.empty()) {
      unplanned_ = absl::StrCat(name, ": ", type, " is too large at the bounds of its dims", kRemedy);
    }
    buffer.name = std::move(name);
    buffer.size = std::move(size);
    return &buffer;
  }

  void AddBuffer(const Value* value, int64_t time) {
    Buffer* buffer = AddBuffer(value->name, value->type.Bytes().ToString(), MostBytes(value->type, bounds_), time,
                               value->type.ToString());
    index_[value] = buffers_.size() - 1;
    Join(value, buffer);
  }

  void Join(const Value* value, Buffer* buffer) {
    buffer->values.push_back(value);
    if (auto it = last_use_.find(value); it != last_use_.end()) {
      buffer->range.last = std::max(buffer->range.last, it->second);
    }
  }

  void Share(const Value* value, size_t index) {
    index_[value] = index;
    Join(value, &buffers_[index]);
  }

  // Whether only nodes of the same kernel read it.
  bool IsInner(const Value& value, const StepUnit& unit) const {
    return unit.kernel() != nullptr && !outputs_.contains(&value) && !value.users.empty() &&
           absl::c_all_of(value.users, [&](const Node* user) { return user->kernel == unit.kernel(); });
  }

  void AddUnit(const StepUnit& unit, int64_t time) {
    absl::flat_hash_set<size_t> taken;
    for (const Node* node : unit.nodes) {
      if (Is<Encode>(node)) continue;  // its result is its components
      for (const Value* result : node->results) {
        if (IsInner(*result, unit)) continue;
        if (IsViewOp(*node)) {
          if (auto it = index_.find(node->operands[0]); it != index_.end()) {
            Share(result, it->second);
            continue;
          }
        }
        const int64_t index = DyingOperand(unit, *result, time, taken);
        if (index >= 0) {
          taken.insert(static_cast<size_t>(index));
          Share(result, static_cast<size_t>(index));
        } else {
          AddBuffer(result, time);
        }
      }
    }
    const Node* last = unit.nodes.back();
    if (const auto scratch = memory_.scratch.find(last); scratch != memory_.scratch.end()) {
      const std::string size = scratch->second.ToString();
      AddBuffer(ScratchName(*last), size, MostBytes(scratch->second, bounds_), time, absl::StrCat(size, " bytes"))
          ->range.is_scratch = true;
    }
  }

  // The nodes of the unit that lead to the result element by element; all, if the kernel allows it.
  absl::flat_hash_set<const Node*> WritersOver(const StepUnit& unit, const Value& result) const {
    if (unit.kernel() != nullptr && memory_.keeps_rows.contains(unit.kernel())) {
      return {unit.nodes.begin(), unit.nodes.end()};
    }
    absl::flat_hash_set<const Node*> nodes;
    for (auto it = unit.nodes.rbegin(); it != unit.nodes.rend(); ++it) {
      const Node* node = *it;
      if (!IsElementwise(*node)) continue;
      size_t readers = 0, leading = 0;  // in the unit
      for (const Node* user : node->results[0]->users) {
        readers += user->kernel != nullptr && user->kernel == node->kernel;
        leading += nodes.contains(user);
      }
      const bool leads = node == result.def || (readers > 0 && readers == leading);
      if (leads) nodes.insert(node);
    }
    return nodes;
  }

  // The buffer of an operand of the unit that nothing reads after `time`, of the result's size; -1 if there is none.
  // Parameters stay as they were given.
  int64_t DyingOperand(const StepUnit& unit, const Value& result, int64_t time,
                       const absl::flat_hash_set<size_t>& taken) const {
    const absl::flat_hash_set<const Node*> writers = WritersOver(unit, result);
    if (writers.empty()) return -1;
    for (const Node* reader : unit.nodes) {
      for (const Value* operand : reader->operands) {
        auto it = index_.find(operand);
        if (it == index_.end() || taken.contains(it->second)) continue;
        const Buffer& buffer = buffers_[it->second];
        if (buffer.is_param || buffer.range.last > time) continue;
        const bool same_size =
            operand->type.shape == result.type.shape && DTypeBits(operand->type.dtype) == DTypeBits(result.type.dtype);
        if (same_size && ReadOnlyBy(unit, it->second, writers)) return static_cast<int64_t>(it->second);
      }
    }
    return -1;
  }

  // Whether the nodes of the unit that read a buffer are among `readers`.
  bool ReadOnlyBy(const StepUnit& unit, size_t buffer, const absl::flat_hash_set<const Node*>& readers) const {
    return absl::c_all_of(unit.nodes, [&](const Node* node) {
      return readers.contains(node) || absl::c_none_of(node->operands, [&](const Value* operand) {
               const auto it = index_.find(operand);
               return it != index_.end() && it->second == buffer;
             });
    });
  }

  absl::StatusOr<plan::Program> Finish() {
    plan::Program program;
    program.set_entry_point(step_.name);
    for (const auto& [name, max] : bounds_) {
      plan::DimBound* bound = program.add_bounds();
      bound->set_name(name);
      bound->set_max(max);
    }
    for (const auto& node : step_.block.nodes) program.add_tasks()->set_label(PrintNode(*node));
    std::vector<BufferRange> ranges;
    for (const Buffer& buffer : buffers_) ranges.push_back(buffer.range);
    if (const int64_t least = LowerBound(ranges); unplanned_.empty() && least > kMaxBytes) {
      unplanned_ = absl::StrCat("the step needs ", least, " bytes at the bounds", kRemedy);
    }
    program.set_unplanned(unplanned_);
    if (unplanned_.empty()) {
      program.set_lower_bound_bytes(static_cast<uint64_t>(LowerBound(ranges)));
      program.set_arena_bytes(static_cast<uint64_t>(AssignOffsets(&ranges)));
      RETURN_IF_ERROR(CheckNoOverlap(ranges));
    }
    for (size_t i = 0; i < buffers_.size(); ++i) WriteBuffer(buffers_[i], ranges[i], program.add_buffers());
    return program;
  }

  static void WriteBuffer(const Buffer& from, const BufferRange& range, plan::Buffer* to) {
    to->set_name(from.name);
    to->set_size(from.size);
    to->set_bytes(static_cast<uint64_t>(std::max<int64_t>(range.bytes, 0)));
    to->set_offset(static_cast<uint64_t>(range.offset));
    to->set_first_task(static_cast<uint32_t>(range.first));
    to->set_last_task(static_cast<uint32_t>(range.last));
    for (const Value* value : from.values) to->add_values(value->name);
  }

  const Step& step_;
  const DimEnv& bounds_;
  const KernelMemory& memory_;
  const std::vector<StepUnit> units_;
  absl::flat_hash_set<const Value*> outputs_;
  absl::flat_hash_map<const Value*, int64_t> last_use_;
  absl::flat_hash_map<const Value*, size_t> index_;
  std::vector<Buffer> buffers_;
  std::string unplanned_;
};

std::string Bounds(const plan::Program& program) {
  return absl::StrJoin(program.bounds(), ", ", [](std::string* out, const plan::DimBound& bound) {
    absl::StrAppend(out, bound.name(), " <= ", bound.max());
  });
}

// "k3_rms_norm on (T, 1, 1) after 2  "; empty for tasks of the host.
std::string WhatRuns(const plan::Task& task, const plan::Manifest& manifest) {
  std::string what;
  if (task.has_kernel()) {
    what = absl::StrCat(manifest.kernels(static_cast<int>(task.kernel().kernel())).entry(), " on (",
                        absl::StrJoin(task.kernel().tiles(), ", "), ")");
  } else if (task.has_gemm()) {
    what = absl::StrCat("product of ", task.gemm().m(), " x ", task.gemm().k(), " x ", task.gemm().n(),
                        PartsText(task.gemm()));
  } else if (task.has_copy()) {
    what = absl::StrCat("copy of ", task.copy().bytes(), " bytes");
  }
  if (what.empty()) return "";
  if (task.after_size() > 0) absl::StrAppend(&what, " after ", absl::StrJoin(task.after(), ", "));
  return absl::StrFormat("%-40s  ", what);
}

}  // namespace

bool IsViewOp(const Node& node) { return node.op->info.is_view(); }

bool IsElementwise(const Node& node) { return node.op->info.is_elementwise() && !node.op->info.is_view(); }

std::vector<StepUnit> UnitsOf(const Step& step) {
  std::vector<StepUnit> units;
  const Kernel* last = nullptr;
  for (const auto& node : step.block.nodes) {
    if (node->kernel == nullptr || node->kernel != last) units.emplace_back();
    units.back().nodes.push_back(node.get());
    last = node->kernel;
  }
  return units;
}

const Value* ViewedValue(const Value* value) {
  while (value->def != nullptr && IsViewOp(*value->def)) value = value->def->operands[0];
  return value;
}

std::vector<const Value*> StoredValues(const Value* value) {
  value = ViewedValue(value);
  if (!Is<Encode>(value->def)) return {value};
  std::vector<const Value*> stored;
  for (const Value* component : value->def->operands) stored.push_back(ViewedValue(component));
  return stored;
}

std::string ScratchName(const Node& node) {
  return absl::StrCat("scratch of ", node.results.empty() ? node.operands[0]->name : node.results[0]->name);
}

std::string PartsText(const plan::Gemm& gemm) {
  return absl::StrCat(gemm.bias() ? " + bias" : "", gemm.residual() ? " + residual" : "",
                      gemm.gelu_tanh() ? ", gelu_tanh" : "");
}

absl::StatusOr<plan::Program> PlanMemory(const Step& step, const DimEnv& bounds, const KernelMemory& memory) {
  absl::StatusOr<plan::Program> program = Planner(step, bounds, memory).Run();
  if (!program.ok() || program->unplanned().empty()) return program;
  for (const int64_t most : kSampleBounds) {
    DimEnv smaller = bounds;
    for (auto& [name, max] : smaller) max = std::min(max, most);
    absl::StatusOr<plan::Program> sample = Planner(step, smaller, memory).Run();
    if (!sample.ok()) return sample;
    if (!sample->unplanned().empty()) continue;
    sample->set_sample(program->unplanned());
    return sample;
  }
  return program;
}

std::string TunedText(const plan::TunedProducts& tuned) {
  std::string out =
      absl::StrCat("products timed on ", tuned.gpu(), " with cuBLASLt ", tuned.library(), ": ", tuned.timed(),
                   ", others than the first proposal are used for ", tuned.products_size(), "\n");
  for (const plan::TunedProduct& p : tuned.products()) {
    plan::Gemm gemm;
    gemm.set_bias(p.bias());
    gemm.set_residual(p.residual());
    gemm.set_gelu_tanh(p.gelu_tanh());
    absl::StrAppend(&out, "  ", p.m(), " x ", p.k(), " x ", p.n(), " ", p.in_dtype(), PartsText(gemm), ": proposal ",
                    p.proposal(), "\n");
  }
  return out;
}

std::string MemoryPlanText(const plan::Program& program, const plan::Manifest& manifest) {
  std::string out = absl::StrCat("program ", program.entry_point(), program.decode() ? ", decode" : "", "\nbounds ",
                                 Bounds(program), "\n");
  if (!program.unplanned().empty()) {
    absl::StrAppend(&out, "no memory plan: ", program.unplanned(), "\n");
  } else {
    if (!program.sample().empty()) absl::StrAppend(&out, "a sample for these bounds: ", program.sample(), "\n");
    const double ratio = program.lower_bound_bytes() == 0 ? 1.0
                                                          : static_cast<double>(program.arena_bytes()) /
                                                                static_cast<double>(program.lower_bound_bytes());
    absl::StrAppend(&out, absl::StrFormat("peak %d bytes, lower bound %d bytes, ratio %.3f\n", program.arena_bytes(),
                                          program.lower_bound_bytes(), ratio));
  }
  absl::StrAppend(&out, "\ntasks\n");
  int number = 0;
  for (const plan::Task& task : program.tasks()) {
    const std::string lines = absl::StrReplaceAll(task.label(), {{"\n", absl::StrCat("\n", std::string(49, ' '))}});
    absl::StrAppendFormat(&out, "%5d  %s%s\n", number++, WhatRuns(task, manifest), lines);
  }
  absl::StrAppendFormat(&out, "\nbuffers\n%14s %14s  %-13s  size, values\n", "offset", "bytes", "tasks");
  for (const plan::Buffer& buffer : program.buffers()) {
    const std::string tasks = absl::StrCat(buffer.first_task(), "..", buffer.last_task());
    absl::StrAppendFormat(&out, "%14d %14d  %-13s  %s: %s\n", buffer.offset(), buffer.bytes(), tasks, buffer.size(),
                          buffer.values().empty() ? buffer.name() : absl::StrJoin(buffer.values(), ", "));
  }
  return out;
}

}  // namespace llmc
