// Numbers that count: positions, lengths and what else is computed from integers, through floats too, until it is an
// integer, a size or a truth again. 16 bits would round them to other ones.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "ir/graph.h"

namespace llmc {

// What a value is computed from.
enum class Origin : uint8_t {
  kCounted,  // integers, sizes, constants, and vectors of weights
  kRounded,  // data, of which integers were made on the way
  kData,
};

absl::flat_hash_map<const Value*, Origin> OriginsOf(const Model& model);

// Whether an operand says where or how much, not what.
bool IsPlace(const Node& node, size_t operand);

// Floats that must not be rounded to `dtype`, a type of 16 bits: of which integers, truths, sizes, sums, sines or
// cosines are made, and that are computed from nothing but integers.
class ExactCounts {
 public:
  ExactCounts(const Model& model, DType dtype);

  // Whether a float keeps its type.
  bool IsExact(const Value* value) const;
  // Whether it has 16 bits, which hold it, but its exact users take the type that it had.
  bool IsWidened(const Value* value) const;
  // Whether a node takes exact floats.
  bool Takes(const Node* node) const { return nodes_.contains(node); }

 private:
  void AddBlock(const Block& block);
  bool Keeps(const Value* value) const;
  bool IsTaken(const Node& node, Origin origin) const;

  DType dtype_;
  absl::flat_hash_map<const Value*, Origin> origins_;
  absl::flat_hash_set<const Node*> nodes_;
  absl::flat_hash_set<const Value*> needed_;
};

}  // namespace llmc
