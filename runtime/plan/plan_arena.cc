#include "runtime/plan/plan_arena.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

int64_t Aligned(int64_t bytes) { return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment; }
bool Overlap(const BufferRange& a, const BufferRange& b) {
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

absl::Status OverlapError(const std::vector<BufferRange>& buffers, size_t i, size_t j) {
  const auto place = [&](size_t k) {
    return absl::StrCat(k, " at [", buffers[k].offset, ", ", buffers[k].offset + buffers[k].bytes, ")");
  };
  return absl::InternalError(absl::StrCat("buffers ", place(i), " and ", place(j), " live at once and overlap"));
}

// With more neighbours than that a buffer goes to the end of the arena, so that the time stays near-linear.
constexpr size_t kMaxNeighbours = 1024;

// The placed ones of some buffers, found by their lifetimes: a tree over the buffers in the order of their first steps,
// whose nodes know the latest last step of what is placed below them.
class PlacedBuffers {
 public:
  explicit PlacedBuffers(std::vector<BufferRange*> buffers) : buffers_(std::move(buffers)) {
    std::stable_sort(buffers_.begin(), buffers_.end(),
                     [](const BufferRange* a, const BufferRange* b) { return a->first < b->first; });
    while (leaves_ < buffers_.size()) leaves_ *= 2;
    latest_.assign(2 * leaves_, -1);
    for (size_t i = 0; i < buffers_.size(); ++i) leaf_[buffers_[i]] = leaves_ + i;
  }

  void Add(const BufferRange* buffer) {
    for (size_t node = leaf_.at(buffer); node > 0; node /= 2) latest_[node] = std::max(latest_[node], buffer->last);
  }

  // Sets `found` to those that live together with `buffer`; false if they are more than kMaxNeighbours.
  bool Find(const BufferRange& buffer, std::vector<const BufferRange*>* found) const {
    found->clear();
    return Find(buffer, 1, 0, leaves_, found);
  }

 private:
  bool Find(const BufferRange& buffer, size_t node, size_t begin, size_t end,
            std::vector<const BufferRange*>* found) const {
    if (latest_[node] < buffer.first || buffers_[begin]->first > buffer.last) return true;
    if (end - begin == 1) {
      found->push_back(buffers_[begin]);
      return found->size() <= kMaxNeighbours;
    }
    const size_t middle = begin + (end - begin) / 2;
    return Find(buffer, 2 * node, begin, middle, found) && Find(buffer, 2 * node + 1, middle, end, found);
  }

  std::vector<BufferRange*> buffers_;
  absl::flat_hash_map<const BufferRange*, size_t> leaf_;
  size_t leaves_ = 1;
  std::vector<int64_t> latest_;
};

// The smallest gap between `placed` (sorted by offset) that holds `bytes`, the lowest of equal ones; else their end.
int64_t BestFit(const std::vector<const BufferRange*>& placed, int64_t bytes) {
  int64_t best = -1;
  int64_t best_gap = std::numeric_limits<int64_t>::max();
  int64_t end = 0;
  for (const BufferRange* other : placed) {
    const int64_t gap = other->offset - end;
    if (gap >= bytes && gap < best_gap) {
      best = end;
      best_gap = gap;
    }
    end = std::max(end, other->offset + Aligned(other->bytes));
  }
  return best >= 0 ? best : end;
}

}  // namespace

int64_t AssignOffsets(std::vector<BufferRange>* buffers) {
  std::vector<BufferRange*> order;
  for (BufferRange& buffer : *buffers) {
    buffer.offset = 0;
    if (buffer.bytes > 0) order.push_back(&buffer);
  }
  std::stable_sort(order.begin(), order.end(), [](const BufferRange* a, const BufferRange* b) {
    return a->is_scratch == b->is_scratch ? Aligned(a->bytes) > Aligned(b->bytes) : b->is_scratch;
  });
  PlacedBuffers placed(order);
  std::vector<const BufferRange*> neighbours;
  int64_t arena = 0;
  for (BufferRange* buffer : order) {
    if (placed.Find(*buffer, &neighbours)) {
      std::sort(neighbours.begin(), neighbours.end(),
                [](const BufferRange* a, const BufferRange* b) { return a->offset < b->offset; });
      buffer->offset = BestFit(neighbours, Aligned(buffer->bytes));
    } else {
      buffer->offset = arena;
    }
    arena = std::max(arena, buffer->offset + Aligned(buffer->bytes));
    placed.Add(buffer);
  }
  return arena;
}

int64_t LowerBound(const std::vector<BufferRange>& buffers) {
  std::map<int64_t, int64_t> changes;  // by step
  for (const BufferRange& buffer : buffers) {
    changes[buffer.first] += Aligned(buffer.bytes);
    changes[buffer.last + 1] -= Aligned(buffer.bytes);
  }
  int64_t live = 0;
  int64_t most = 0;
  for (const auto& [step, change] : changes) most = std::max(most, live += change);
  return most;
}

// In the order of their first steps; those alive are kept in the order of their places, of which two neighbours at most
// touch a new one.
absl::Status CheckNoOverlap(const std::vector<BufferRange>& buffers) {
  std::vector<size_t> order;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].offset % kBufferAlignment != 0) {
      return absl::InternalError(absl::StrCat("buffer ", i, " is not aligned"));
    }
    if (buffers[i].bytes > 0) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return buffers[a].first < buffers[b].first; });
  std::map<int64_t, size_t> alive;                // by offset
  std::multimap<int64_t, int64_t> offset_by_end;  // of those alive, by last step
  for (const size_t i : order) {
    const BufferRange& buffer = buffers[i];
    while (!offset_by_end.empty() && offset_by_end.begin()->first < buffer.first) {
      alive.erase(offset_by_end.begin()->second);
      offset_by_end.erase(offset_by_end.begin());
    }
    const auto next = alive.lower_bound(buffer.offset);
    if (next != alive.end() && Overlap(buffer, buffers[next->second])) return OverlapError(buffers, i, next->second);
    if (next != alive.begin() && Overlap(buffer, buffers[std::prev(next)->second])) {
      return OverlapError(buffers, std::prev(next)->second, i);
    }
    alive.emplace(buffer.offset, i);
    offset_by_end.emplace(buffer.last, buffer.offset);
  }
  return absl::OkStatus();
}

}  // namespace llmc
