#include "runtime/plan/weight_layout.h"

#include <algorithm>
#include <limits>

#include "runtime/plan/plan_arena.h"
#include "runtime/plan/plan_format.h"

namespace llmc {
namespace {

using Where = WeightPlace::Where;

constexpr uint64_t kAlignment = kBufferAlignment;
constexpr uint64_t kMostBytes = uint64_t{1} << 58;  // sizes from a file may be anything: what sums are cut to

uint64_t Add(uint64_t sum, uint64_t bytes) {
  return std::min(sum + plan::AlignUp(std::min(bytes, kMostBytes), kAlignment), kMostBytes);
}

class Layouter {
 public:
  Layouter(const TargetCode& code, uint64_t group_bytes)
      : code_(code), manifest_(code.manifest()), prepare_(code.prepare()), group_bytes_(group_bytes) {
    layout_.places.resize(static_cast<size_t>(manifest_.weights_size()));
    layout_.skipped.resize(static_cast<size_t>(prepare_.tasks_size()));
    lives_.resize(layout_.places.size());
  }

  WeightLayout Run() {
    PlaceKept();
    FindLives();
    for (int task = 0; task < prepare_.tasks_size(); ++task) SkipCopy(task);
    MakeGroups();
    PlacePassing();
    return std::move(layout_);
  }

 private:
  // The tasks of `prepare` between which a weight must be there; those that write it are no readers.
  struct Life {
    int first = -1, last = -1, readers = 0;
  };

  void PlaceKept() {
    std::vector<bool> kept(layout_.places.size());
    for (const plan::Program* program : code_.programs()) {
      for (const plan::Task& task : program->tasks()) {
        for (const plan::Arg& arg : task.args()) {
          if (arg.what_case() == plan::Arg::kWeight && arg.weight() < kept.size()) kept[arg.weight()] = true;
        }
      }
    }
    for (size_t i = 0; i < kept.size(); ++i) {
      if (!kept[i]) continue;
      layout_.places[i] = {.where = Where::kKept, .offset = layout_.kept_bytes};
      layout_.kept_bytes = Add(layout_.kept_bytes, manifest_.weights(static_cast<int>(i)).bytes());
    }
  }

  void FindLives() {
    for (int task = 0; task < prepare_.tasks_size(); ++task) {
      const auto& args = prepare_.tasks(task).args();
      for (int i = 0; i < args.size(); ++i) {
        if (args[i].what_case() != plan::Arg::kWeight || args[i].weight() >= lives_.size()) continue;
        Life& life = lives_[args[i].weight()];
        if (life.first < 0) life.first = task;
        life.last = task;
        const bool draws = manifest_.weights(static_cast<int>(args[i].weight())).has_random() && life.first == task;
        if (!draws) ++life.readers;
      }
    }
  }

  // Whether a buffer of `prepare` keeps its place for good, so that it may be written early.
  bool IsKept(const plan::Buffer& buffer) const {
    return buffer.offset() + buffer.bytes() <= prepare_.arena_bytes() - prepare_.temporary_bytes();
  }

  // A copy of a whole weight that nothing else reads: the weight can be loaded where the copy would go.
  void SkipCopy(int index) {
    const plan::Task& task = prepare_.tasks(index);
    if (!task.has_copy() || task.args_size() != 2) return;
    const plan::Arg &to = task.args(0), &from = task.args(1);
    if (to.what_case() != plan::Arg::kPrepared || from.what_case() != plan::Arg::kWeight || from.offset() != 0) return;
    const plan::Weight& weight = manifest_.weights(static_cast<int>(from.weight()));
    WeightPlace& place = layout_.places[from.weight()];
    const plan::Buffer& buffer = prepare_.buffers(static_cast<int>(to.prepared()));
    if (place.where != Where::kNowhere || lives_[from.weight()].readers != 1 || !IsKept(buffer)) return;
    if (task.copy().bytes() != std::to_string(weight.bytes())) return;
    if (to.offset() > buffer.bytes() || weight.bytes() > buffer.bytes() - to.offset()) return;
    place = {.where = Where::kPrepared, .offset = buffer.offset() + to.offset()};
    layout_.skipped[static_cast<size_t>(index)] = true;
  }

  bool IsPassing(size_t weight) const {
    return lives_[weight].first >= 0 && layout_.places[weight].where == Where::kNowhere;
  }

  void MakeGroups() {
    std::vector<uint64_t> begins(static_cast<size_t>(prepare_.tasks_size()));  // bytes that a task brings
    for (size_t i = 0; i < lives_.size(); ++i) {
      if (!IsPassing(i)) continue;
      uint64_t& bytes = begins[static_cast<size_t>(lives_[i].first)];
      bytes = Add(bytes, manifest_.weights(static_cast<int>(i)).bytes());
    }
    uint64_t bytes = 0;
    for (size_t task = 0; task < begins.size(); ++task) {
      if (bytes > 0 && begins[task] > 0 && bytes + begins[task] > group_bytes_) {
        layout_.ends.push_back(static_cast<int>(task));
        bytes = 0;
      }
      bytes += begins[task];
      groups_.push_back(static_cast<int>(layout_.ends.size()));
    }
    layout_.ends.push_back(prepare_.tasks_size());
  }

  void PlacePassing() {
    std::vector<size_t> weights;
    std::vector<BufferRange> ranges;
    for (size_t i = 0; i < lives_.size(); ++i) {
      if (!IsPassing(i)) continue;
      weights.push_back(i);
      ranges.push_back({.bytes = static_cast<int64_t>(
                            std::min(manifest_.weights(static_cast<int>(i)).bytes(), kMostBytes / (1 + lives_.size()))),
                        .first = groups_[static_cast<size_t>(lives_[i].first)],
                        .last = groups_[static_cast<size_t>(lives_[i].last)]});
    }
    layout_.passing_bytes = static_cast<uint64_t>(AssignOffsets(&ranges));
    for (size_t i = 0; i < weights.size(); ++i) {
      layout_.places[weights[i]] = {.where = Where::kPassing,
                                    .offset = static_cast<uint64_t>(ranges[i].offset),
                                    .group = static_cast<int>(ranges[i].first)};
    }
  }

  const TargetCode& code_;
  const plan::Manifest& manifest_;
  const plan::Program& prepare_;
  const uint64_t group_bytes_;
  WeightLayout layout_;
  std::vector<Life> lives_;  // by weight
  std::vector<int> groups_;  // by task
};

}  // namespace

WeightLayout LayOutWeights(const TargetCode& code, uint64_t group_bytes) { return Layouter(code, group_bytes).Run(); }

}  // namespace llmc
