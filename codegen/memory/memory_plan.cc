#include "codegen/memory/memory_plan.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
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

class Planner {
 public:
  Planner(const Step& step, const DimEnv& bounds, absl::Span<const StepUnit> units)
      : step_(step), bounds_(bounds), units_(units), outputs_(OutputsOf(step)) {}

  absl::StatusOr<plan::Program> Run() {
    program_.set_entry_point(step_.name);
    SetBounds(bounds_, program_.mutable_bounds());
    for (const auto& node : step_.block.nodes) program_.add_tasks()->set_label(PrintNode(*node));
    FindLastUses();
    for (const Value* param : step_.params) AddBuffer(param, 0);
    int64_t time = 0;
    for (const StepUnit& unit : units_) AddUnit(unit, time++);
    RETURN_IF_ERROR(PlaceBuffers());
    return std::move(program_);
  }

 private:
  // The last unit that reads a value; outputs are read after the last unit.
  void FindLastUses() {
    int64_t time = 0;
    const auto use = [&](const Value* value) {
      last_use_[value] = time;
      if (value == nullptr || !Is<Encode>(value->def)) return;
      for (const Value* component : value->def->operands) last_use_[component] = time;
    };
    for (const StepUnit& unit : units_) {
      for (const Node* node : unit.nodes) {
        absl::c_for_each(node->operands, use);
        absl::c_for_each(node->results, use);
      }
      ++time;
    }
    for (const Output& output : step_.outputs) use(output.value);
  }

  // A buffer of `bytes`; negative: too many.
  BufferRange& AddBuffer(const std::string& name, const std::string& size, int64_t bytes, int64_t time,
                         absl::string_view type) {
    if (bytes < 0 && program_.unplanned().empty()) {
      program_.set_unplanned(absl::StrCat(name, ": ", type, " is too large at the bounds of its dims", kRemedy));
    }
    plan::Buffer* buffer = program_.add_buffers();
    buffer->set_name(name);
    buffer->set_size(size);
    return ranges_.emplace_back(BufferRange{.bytes = bytes, .first = time, .last = time});
  }

  void AddBuffer(const Value* value, int64_t time) {
    const TensorType& type = value->type;
    AddBuffer(value->name, type.Bytes().ToString(), MostBytes(type, bounds_), time, type.ToString());
    Join(value, ranges_.size() - 1);
  }

  void Join(const Value* value, size_t buffer) {
    index_[value] = buffer;
    program_.mutable_buffers(static_cast<int>(buffer))->add_values(value->name);
    if (auto it = last_use_.find(value); it != last_use_.end()) {
      ranges_[buffer].last = std::max(ranges_[buffer].last, it->second);
    }
  }

  // Whether only nodes of the same kernel read it.
  bool IsInner(const Value& value, const StepUnit& unit) const {
    return unit.kernel() != nullptr && !outputs_.contains(&value) && !value.users.empty() &&
           absl::c_all_of(value.users, [&](const Node* user) { return absl::c_linear_search(unit.nodes, user); });
  }

  void AddUnit(const StepUnit& unit, int64_t time) {
    absl::flat_hash_set<size_t> taken;
    for (const Node* node : unit.nodes) {
      if (Is<Encode>(node)) continue;  // its result is its components
      for (const Value* result : node->results) {
        if (IsInner(*result, unit)) continue;
        const auto viewed = node->op->info.is_view() ? index_.find(node->operands[0]) : index_.end();
        if (viewed != index_.end()) {
          Join(result, viewed->second);
        } else if (const std::optional<size_t> dying = DyingOperand(unit, *result, time, taken)) {
          taken.insert(*dying);
          Join(result, *dying);
        } else {
          AddBuffer(result, time);
        }
      }
    }
    if (const std::optional<Size> scratch = ScratchOf(unit)) {
      const std::string size = scratch->ToString();
      AddBuffer(ScratchName(unit), size, MostBytes(*scratch, bounds_), time, absl::StrCat(size, " bytes")).is_scratch =
          true;
    }
  }

  // The nodes of the unit that lead to the result element by element; all, if the calls allow it.
  static absl::flat_hash_set<const Node*> WritersOver(const StepUnit& unit, const Value& result) {
    if (unit.keeps_rows) return {unit.nodes.begin(), unit.nodes.end()};
    absl::flat_hash_set<const Node*> nodes;
    for (auto it = unit.nodes.rbegin(); it != unit.nodes.rend(); ++it) {
      const Node* node = *it;
      if (!node->op->info.computes_elements()) continue;
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

  // The buffer of an operand of the unit that nothing reads after `time`, of the result's size. Parameters, whose
  // buffers come first, stay as they were given.
  std::optional<size_t> DyingOperand(const StepUnit& unit, const Value& result, int64_t time,
                                     const absl::flat_hash_set<size_t>& taken) const {
    const absl::flat_hash_set<const Node*> writers = WritersOver(unit, result);
    if (writers.empty()) return std::nullopt;
    for (const Node* reader : unit.nodes) {
      for (const Value* operand : reader->operands) {
        const auto it = index_.find(operand);
        if (it == index_.end() || taken.contains(it->second)) continue;
        const size_t buffer = it->second;
        if (buffer < step_.params.size() || ranges_[buffer].last > time) continue;
        const bool same_size =
            operand->type.shape == result.type.shape && DTypeBits(operand->type.dtype) == DTypeBits(result.type.dtype);
        if (same_size && ReadOnlyBy(unit, buffer, writers)) return buffer;
      }
    }
    return std::nullopt;
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

  absl::Status PlaceBuffers() {
    const int64_t least = LowerBound(ranges_);
    if (program_.unplanned().empty() && least > kMaxBytes) {
      program_.set_unplanned(absl::StrCat("the step needs ", least, " bytes at the bounds", kRemedy));
    }
    if (program_.unplanned().empty()) {
      program_.set_lower_bound_bytes(static_cast<uint64_t>(least));
      program_.set_arena_bytes(static_cast<uint64_t>(AssignOffsets(&ranges_)));
      RETURN_IF_ERROR(CheckNoOverlap(ranges_));
    }
    for (size_t i = 0; i < ranges_.size(); ++i) {
      const BufferRange& range = ranges_[i];
      plan::Buffer* buffer = program_.mutable_buffers(static_cast<int>(i));
      buffer->set_bytes(static_cast<uint64_t>(std::max<int64_t>(range.bytes, 0)));
      buffer->set_offset(static_cast<uint64_t>(range.offset));
      buffer->set_first_task(static_cast<uint32_t>(range.first));
      buffer->set_last_task(static_cast<uint32_t>(range.last));
    }
    return absl::OkStatus();
  }

  const Step& step_;
  const DimEnv& bounds_;
  const absl::Span<const StepUnit> units_;
  const absl::flat_hash_set<const Value*> outputs_;
  absl::flat_hash_map<const Value*, int64_t> last_use_;
  absl::flat_hash_map<const Value*, size_t> index_;  // of the buffer
  std::vector<BufferRange> ranges_;                  // of the buffers of the program
  plan::Program program_;
};

}  // namespace

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

std::optional<Size> ScratchOf(const StepUnit& unit) {
  std::optional<Size> most;
  for (const DeviceCall& call : unit.calls) {
    const auto* kernel = std::get_if<KernelCall>(&call);
    if (kernel == nullptr) continue;
    for (const KernelParam& param : kernel->params) {
      if (!param.arg.is_scratch) continue;
      const Size& bytes = param.arg.bytes;
      most = !most.has_value() || *most == bytes ? bytes : Size::Call("max", {*most, bytes});
    }
  }
  return most;
}

std::string ScratchName(const StepUnit& unit) {
  const Node& last = *unit.nodes.back();
  return absl::StrCat("scratch of ", last.results.empty() ? last.operands[0]->name : last.results[0]->name);
}

void SetBounds(const DimEnv& bounds, google::protobuf::RepeatedPtrField<plan::DimBound>* to) {
  to->Clear();
  for (const auto& [name, max] : bounds) {
    plan::DimBound* bound = to->Add();
    bound->set_name(name);
    bound->set_max(max);
  }
}

absl::StatusOr<plan::Program> PlanMemory(const Step& step, const DimEnv& bounds, absl::Span<const StepUnit> units) {
  absl::StatusOr<plan::Program> program = Planner(step, bounds, units).Run();
  if (!program.ok() || program->unplanned().empty()) return program;
  for (const int64_t most : kSampleBounds) {
    DimEnv smaller = bounds;
    for (auto& [name, max] : smaller) max = std::min(max, most);
    absl::StatusOr<plan::Program> sample = Planner(step, smaller, units).Run();
    if (!sample.ok()) return sample;
    if (!sample->unplanned().empty()) continue;
    sample->set_sample(program->unplanned());
    return sample;
  }
  return program;
}

}  // namespace llmc
