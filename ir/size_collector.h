// What Infer assumes of sizes where no dim tells: a run has to check it.
#pragma once

#include <initializer_list>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "ir/size.h"

namespace llmc {

struct Value;

// Infer hands all that must hold of sizes to one of these. This one collects nothing; codegen/memory/size_rules.h makes
// of it what a run of a plan checks.
class SizeCollector {
 public:
  virtual ~SizeCollector() = default;

  // Whether two sizes may be the same: only two different numbers cannot. If they may, they are taken to be.
  bool Same(const Dim& size, const Dim& expected);
  // Of as many dims; false for others.
  bool Same(const Dims& sizes, const Dims& expected);
  // Shapes that broadcast to the first dims of `to`, aligned at the last of these; those of the first result for
  // BroadcastToResult.
  void Broadcast(const std::vector<Dims>& shapes, const Dims& to);
  void BroadcastToResult(const std::vector<Dims>& shapes);
  // `size` is the length of [start, end), which is in an axis of `whole`.
  void Within(const Size& start, const Size& end, const Size& whole, const Size& size);

  // Both are the same. If `expected` is a symbol that is not known yet, this is how a run knows it.
  virtual void Equate(const Size& size, const Size& expected);
  // The shape of the first result, with symbols for what Infer does not know; nullptr if there is none to be told.
  virtual const Dims* result() const { return nullptr; }
  // Whether a run knows all symbols of the first result.
  virtual bool KnowsResult() const { return true; }
  // The elements of small tensors, where a run can tell them before it starts; absent operands have none. Those of
  // floating-point types are the bits of doubles.
  virtual std::vector<std::optional<SizeList>> ElementsOf(absl::Span<const Value* const> values);
};

}  // namespace llmc
