// Several kernels of few rows as one launch, each with blocks of its own: none needs another, so that the small ones
// run while the largest streams its weight, and there are fewer launches.
#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"

namespace llmc {
namespace {

// The nodes that lead to each other, and the results of each such part.
std::vector<KernelBody> PartsOf(const KernelBody& body) {
  absl::flat_hash_map<const Node*, size_t> part_of;
  std::vector<KernelBody> parts;
  for (const Node* node : body.nodes) {
    size_t own = parts.size();
    for (const Value* operand : node->operands) {
      const auto found = part_of.find(operand == nullptr ? nullptr : operand->def);
      if (found == part_of.end() || found->second == own) continue;
      const size_t other = found->second;
      if (own < parts.size()) {  // two parts meet in the node
        for (const Node* moved : parts[own].nodes) part_of[moved] = other;
        parts[other].nodes.insert(parts[other].nodes.end(), parts[own].nodes.begin(), parts[own].nodes.end());
        parts[own].nodes.clear();
      }
      own = other;
    }
    if (own == parts.size()) parts.emplace_back();
    parts[own].nodes.push_back(node);
    part_of[node] = own;
  }
  std::erase_if(parts, [](const KernelBody& part) { return part.nodes.empty(); });
  for (KernelBody& part : parts) {
    absl::c_sort(part.nodes, [](const Node* a, const Node* b) { return a->order < b->order; });
    absl::c_copy_if(body.results, std::back_inserter(part.results),
                    [&](const Value* result) { return absl::c_linear_search(part.nodes, result->def); });
  }
  return parts;
}

bool Has(const KernelCall& call, bool (*is)(const KernelArg& arg)) {
  return absl::c_any_of(call.params, [&](const KernelParam& param) { return is(param.arg); });
}

int64_t MostBlocks(const KernelCall& call, const ProgramScope& scope) {
  const Size blocks = call.grid[0] * call.grid[1] * call.grid[2];
  if (!blocks.has_dim()) return -1;
  const absl::StatusOr<DimRange> range = blocks.dim().Range(scope.bounds);
  return range.ok() ? range->high : -1;
}

// A block has as much shared memory as the part that needs the most: others may have no more blocks than there are
// multiprocessors, on which these then lie beside it.
bool HasRoom(const std::vector<KernelCall>& parts, const ProgramScope& scope) {
  int most = 0;
  for (const KernelCall& part : parts) most = std::max(most, part.UsedBytes());
  if (most > scope.target.shared_bytes / 3 * 2) return false;  // of one that has a multiprocessor alone
  return absl::c_all_of(parts, [&](const KernelCall& part) {
    const int64_t blocks = MostBlocks(part, scope);
    return blocks >= 0 && (part.UsedBytes() == most || blocks <= scope.target.sms);
  });
}

// The forms of a part: single launches that wait themselves.
std::vector<KernelCall> FormsOf(const KernelBody& part, const ProgramScope& scope) {
  std::vector<KernelCall> forms;
  for (const std::vector<DeviceCall>& calls : CallsOfAll(part, scope)) {
    const auto* call = calls.size() == 1 ? std::get_if<KernelCall>(&calls[0]) : nullptr;
    if (call != nullptr && call->pdl && call->blocks_of_sm == 0 && !call->adapts && call->apply_notes.empty()) {
      forms.push_back(*call);
    }
  }
  return forms;
}

// How many columns a block has of each of several products, if each block has those of one: so many that all read
// about as much.
void ShareBlocks(int64_t blocks, std::vector<KernelCall>* parts) {
  int64_t bytes = 0, step = 0;
  for (const KernelCall& part : *parts) {
    bytes += part.task->columns * part.task->column_bytes;
    step = std::max(step, part.task->column_bytes);
  }
  int64_t needed = blocks + 1;
  for (int64_t most = (bytes + blocks - 1) / blocks; needed > blocks; most += step) {
    needed = 0;
    for (KernelCall& part : *parts) {
      KernelCall::Task& task = *part.task;
      task.block_columns = std::max<int64_t>(most / task.column_bytes, 1);
      task.tiles = (task.columns + task.block_columns - 1) / task.block_columns;
      needed += task.tiles;
    }
  }
  for (KernelCall& part : *parts) part.task->forms[0].constants.emplace_back("kRows", part.task->block_columns);
}

// The call as a task of a persistent launch: products with blocks of their own, which take one row and give one, or
// bodies that stream nothing.
std::optional<KernelCall::Task> TaskOfParts(const Target& target, KernelCall* call) {
  KernelCall::Task task;
  bool is_first = true, has_row = true;
  KernelCall::Task::Form form;
  for (const KernelCall& part : call->parts) {
    if (!part.task.has_value() || (part.task->forms.size() != 1 && part.task->stage_bytes == 0)) return std::nullopt;
    const KernelCall::Task& own = *part.task;
    if (!is_first && (own.stage_bytes > 0) != (task.stage_bytes > 0)) return std::nullopt;
    form.threads = std::max(form.threads, own.forms[0].threads);
    form.arena_bytes = std::max(form.arena_bytes, own.forms[0].arena_bytes);
    task.body_bytes = std::max(task.body_bytes, own.body_bytes);
    task.stage_bytes = std::max(task.stage_bytes, own.stage_bytes);
    task.math_warps = std::max(task.math_warps, own.math_warps);
    task.has_parts = task.has_parts || own.has_parts;
    has_row = has_row && own.stage_bytes > 0 && own.gives.size() == 1 && (is_first || own.takes == task.takes) &&
              own.addend == nullptr;
    if (is_first) task.takes = own.takes;
    task.gives.insert(task.gives.end(), own.gives.begin(), own.gives.end());
    task.given_numbers += own.given_numbers;
    is_first = false;
  }
  task.forms = {form};
  if (!has_row) {
    task.takes.clear();
    task.gives.clear();
  }
  if (task.stage_bytes > 0) {
    if (static_cast<int64_t>(call->parts.size()) > target.sms) return std::nullopt;
    ShareBlocks(target.sms, &call->parts);
  }
  AddTurningOfHeads(*call, &task);
  return task;
}

}  // namespace

Calls SelectSideBySide(const KernelBody& body, const ProgramScope& scope) {
  if (scope.decode == 0) return Misfit{"a step of any number of tokens", "one of one token of each sequence"};
  std::vector<KernelCall> fastest, smallest;
  int with_scratch = 0, with_counters = 0;
  for (const KernelBody& part : PartsOf(body)) {
    const std::vector<KernelCall> forms = FormsOf(part, scope);
    if (forms.empty()) {
      return Misfit{absl::StrCat(part.nodes.front()->op->info.name, " without such a kernel"),
                    "single launches that wait for what they read"};
    }
    fastest.push_back(forms.front());
    smallest.push_back(*absl::c_min_element(
        forms, [](const KernelCall& a, const KernelCall& b) { return a.UsedBytes() < b.UsedBytes(); }));
    with_scratch += Has(forms.front(), [](const KernelArg& arg) { return arg.is_scratch; });
    with_counters += Has(forms.front(), [](const KernelArg& arg) { return !arg.persistent.empty(); });
  }
  if (fastest.size() < 2) return Misfit{"one part", "several"};
  if (with_scratch > 1 || with_counters > 1) return Misfit{"scratch memory or counters of several parts", "of one"};
  for (std::vector<KernelCall> parts : {fastest, smallest}) {
    if (!HasRoom(parts, scope)) continue;
    // The fewest blocks first: they may take the longest, and many small ones fill what room is left at the end.
    absl::c_stable_sort(
        parts, [&](const KernelCall& a, const KernelCall& b) { return MostBlocks(a, scope) < MostBlocks(b, scope); });
    KernelCall call{.pdl = true};
    for (const KernelCall& part : parts) call.AddPart(part);
    call.task = TaskOfParts(scope.target, &call);
    return std::vector<DeviceCall>{call};
  }
  return Misfit{"parts of which one needs more shared memory than others of many blocks", "parts that need as much"};
}

}  // namespace llmc
