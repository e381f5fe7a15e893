// Offsets in one arena for buffers of known sizes and lifetimes.
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "codegen/memory_plan.h"

namespace llmc {
namespace {

int64_t Aligned(int64_t bytes) { return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment; }
bool LiveTogether(const BufferRange& a, const BufferRange& b) { return a.first <= b.last && b.first <= a.last; }

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
  std::stable_sort(order.begin(), order.end(),
                   [](const BufferRange* a, const BufferRange* b) { return Aligned(a->bytes) > Aligned(b->bytes); });
  std::vector<const BufferRange*> placed;  // by offset
  int64_t arena = 0;
  for (BufferRange* buffer : order) {
    std::vector<const BufferRange*> conflicts;
    std::copy_if(placed.begin(), placed.end(), std::back_inserter(conflicts),
                 [&](const BufferRange* other) { return LiveTogether(*buffer, *other); });
    buffer->offset = BestFit(conflicts, Aligned(buffer->bytes));
    arena = std::max(arena, buffer->offset + Aligned(buffer->bytes));
    placed.insert(std::upper_bound(placed.begin(), placed.end(), buffer,
                                   [](const BufferRange* a, const BufferRange* b) { return a->offset < b->offset; }),
                  buffer);
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

absl::Status CheckNoOverlap(const std::vector<BufferRange>& buffers) {
  for (size_t i = 0; i < buffers.size(); ++i) {
    const BufferRange& a = buffers[i];
    if (a.offset % kBufferAlignment != 0) return absl::InternalError(absl::StrCat("buffer ", i, " is not aligned"));
    for (size_t j = i + 1; j < buffers.size(); ++j) {
      const BufferRange& b = buffers[j];
      if (!LiveTogether(a, b) || a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset) continue;
      if (a.bytes == 0 || b.bytes == 0) continue;
      return absl::InternalError(absl::StrCat("buffers ", i, " at [", a.offset, ", ", a.offset + a.bytes, ") and ", j,
                                              " at [", b.offset, ", ", b.offset + b.bytes,
                                              ") live at once and overlap"));
    }
  }
  return absl::OkStatus();
}

}  // namespace llmc
