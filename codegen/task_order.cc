#include "codegen/task_order.h"

#include <cstdint>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"

namespace llmc {
namespace {

// Memory whose parts may overlap: the arena, a state, ….
using MemorySpace = std::pair<plan::Arg::WhatCase, uint32_t>;

struct ByteRange {
  MemorySpace space;
  uint64_t begin = 0, end = 0;
};

class TaskOrder {
 public:
  TaskOrder(const plan::TargetPrograms& target, bool is_prepare, plan::Program* program)
      : target_(target), is_prepare_(is_prepare), program_(*program) {}

  void Run() {
    for (int i = 0; i < program_.tasks_size(); ++i) {
      const plan::Task& task = program_.tasks(i);
      std::set<uint32_t> before;
      for (const plan::Arg& arg : task.args()) {
        if (const auto range = RangeOf(task, arg)) Access(*range, arg.writes(), static_cast<uint32_t>(i), &before);
      }
      SetAfter(before, static_cast<uint32_t>(i));
    }
  }

 private:
  // What touched these bytes last.
  struct Segment {
    uint64_t end = 0;
    std::optional<uint32_t> writer;
    std::vector<uint32_t> readers;  // since then
  };
  using Segments = std::map<uint64_t, Segment>;  // by their first byte

  // Nothing for what is no memory, or what no task of the program writes.
  std::optional<ByteRange> RangeOf(const plan::Task& task, const plan::Arg& arg) const {
    switch (arg.what_case()) {
      case plan::Arg::kBuffer:
        if (!program_.unplanned().empty()) return ByteRange{{plan::Arg::kBuffer, arg.buffer() + 1}, 0, 1};
        return RangeOf(task, arg, program_.buffers(static_cast<int>(arg.buffer())));
      case plan::Arg::kPrepared:
        if (!is_prepare_) return std::nullopt;
        return RangeOf(task, arg, program_.buffers(static_cast<int>(arg.prepared())));
      case plan::Arg::kPersistent:
        return RangeOf(task, arg, target_.persistent(static_cast<int>(arg.persistent())));
      case plan::Arg::kWeight:
        return ByteRange{{plan::Arg::kWeight, arg.weight()}, 0, 1};
      case plan::Arg::kState:
        return ByteRange{{plan::Arg::kState, arg.state()}, 0, 1};
      default:
        return std::nullopt;
    }
  }

  static std::optional<ByteRange> RangeOf(const plan::Task& task, const plan::Arg& arg, const plan::Buffer& buffer) {
    if (buffer.bytes() <= arg.offset()) return std::nullopt;
    uint64_t bytes = buffer.bytes() - arg.offset(), copied = 0;
    if (task.has_copy() && absl::SimpleAtoi(task.copy().bytes(), &copied)) bytes = std::min(bytes, copied);
    const uint64_t begin = buffer.offset() + arg.offset();
    return ByteRange{{arg.what_case(), 0}, begin, begin + bytes};
  }

  // Ends a segment at `at`; returns the first that begins there or later.
  static Segments::iterator Split(uint64_t at, Segments* segments) {
    auto next = segments->lower_bound(at);
    if (next == segments->begin()) return next;
    const auto before = std::prev(next);
    if (before->second.end <= at) return next;
    Segment rest = before->second;
    before->second.end = at;
    return segments->emplace_hint(next, at, std::move(rest));
  }

  void Access(const ByteRange& range, bool writes, uint32_t task, std::set<uint32_t>* before) {
    Segments& segments = spaces_[range.space];
    auto it = Split(range.begin, &segments);
    Split(range.end, &segments);
    for (uint64_t at = range.begin; at < range.end;) {
      if (it == segments.end() || it->first > at) {
        const uint64_t end = it == segments.end() ? range.end : std::min(it->first, range.end);
        it = segments.emplace_hint(it, at, Segment{.end = end, .writer = std::nullopt, .readers = {}});
      }
      Touch(writes, task, &it->second, before);
      at = it->second.end;
      ++it;
    }
  }

  static void Touch(bool writes, uint32_t task, Segment* segment, std::set<uint32_t>* before) {
    if (segment->writer.has_value() && *segment->writer != task) before->insert(*segment->writer);
    if (!writes) {
      segment->readers.push_back(task);
      return;
    }
    for (const uint32_t reader : segment->readers) {
      if (reader != task) before->insert(reader);
    }
    segment->writer = task;
    segment->readers.clear();
  }

  // From the last to the first: when a task's turn comes, all that come after it and lead to it had theirs.
  void SetAfter(const std::set<uint32_t>& before, uint32_t index) {
    plan::Task& task = *program_.mutable_tasks(static_cast<int>(index));
    std::priority_queue<uint32_t> open(before.begin(), before.end());
    std::set<uint32_t> implied;
    std::vector<uint32_t> kept;
    size_t left = before.size();
    for (int visits = 0; left > 0 && !open.empty(); ++visits) {
      const uint32_t next = open.top();
      while (!open.empty() && open.top() == next) open.pop();
      if (before.count(next) > 0) {
        --left;
        if (implied.count(next) == 0) kept.push_back(next);
      }
      if (visits >= kMostVisits) continue;
      for (const uint32_t earlier : program_.tasks(static_cast<int>(next)).after()) {
        implied.insert(earlier);
        open.push(earlier);
      }
    }
    task.mutable_after()->Assign(kept.rbegin(), kept.rend());
  }

  const plan::TargetPrograms& target_;
  const bool is_prepare_;
  plan::Program& program_;
  std::map<MemorySpace, Segments> spaces_;
};

}  // namespace

void SetTaskOrder(const plan::TargetPrograms& target, bool is_prepare, plan::Program* program) {
  TaskOrder(target, is_prepare, program).Run();
}

}  // namespace llmc
