// Sizes that are the lesser of a number and another size, as of rows of a table up to the length of a sequence, and
// what they are in every run that does not fail: min(c, n) that is broadcast to n is n.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace llmc {

class ClampedSizes {
 public:
  explicit ClampedSizes(Model* model) : model_(model) {}

  // Of nodes in their order: the symbols that a node shows to be equal to another size, and that size. Where a run can
  // only have less of a dim than its bound says, the bound becomes less.
  std::vector<std::pair<std::string, Dim>> Add(const Node& node);

 private:
  // The size is min(most, of).
  struct Clamped {
    int64_t most = 0;
    Dim of;
  };

  void AddSlice(const Node& node);
  // `sizes` are broadcast to `result`.
  void AddBroadcast(const Dims& sizes, const Dim& result);
  const Clamped* Find(const Dim& dim) const;
  bool IsAtMost(const Dim& a, const Dim& b) const;

  Model* model_;
  std::map<std::string, Clamped, std::less<>> clamped_;
  std::vector<std::pair<std::string, Dim>> told_;
};

}  // namespace llmc
