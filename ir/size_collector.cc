#include "ir/size_collector.h"

#include <algorithm>

#include "ir/ops_internal.h"

namespace llmc {

void SizeCollector::Equate(const Size& /*size*/, const Size& /*expected*/) {}

std::vector<std::optional<SizeList>> SizeCollector::ElementsOf(absl::Span<const Value* const> values) {
  return std::vector<std::optional<SizeList>>(values.size());
}

bool SizeCollector::Same(const Dim& size, const Dim& expected) {
  if (!ops::MayBeEqual(size, expected)) return false;
  Equate(size, expected);
  return true;
}

bool SizeCollector::Same(const Dims& sizes, const Dims& expected) {
  if (sizes.size() != expected.size()) return false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!Same(sizes[i], expected[i])) return false;
  }
  return true;
}

void SizeCollector::Broadcast(const std::vector<Dims>& shapes, const Dims& to) {
  size_t rank = 0;
  for (const Dims& shape : shapes) rank = std::max(rank, shape.size());
  for (size_t i = 0; rank <= to.size() && i < rank; ++i) {  // from the last axis
    Size size = 1;
    for (const Dims& shape : shapes) {
      if (i >= shape.size()) continue;
      const Size other = shape[shape.size() - 1 - i];
      if (size.Is(1) || other == size) {
        size = other;
      } else if (!other.Is(1)) {
        size = Size::Call("broadcast", {size, other});
      }
    }
    Equate(size, to[rank - 1 - i]);
  }
}

void SizeCollector::BroadcastToResult(const std::vector<Dims>& shapes) {
  if (result() != nullptr) Broadcast(shapes, *result());
}

void SizeCollector::Within(const Size& start, const Size& end, const Size& whole, const Size& size) {
  Equate(Size::Call("within", {start, end, whole}), size);
}

}  // namespace llmc
