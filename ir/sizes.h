// The sizes of dim symbols in one run, bound from the shapes of actual tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "ir/graph.h"

namespace llmc {

// Symbols by number, so that a run looks up no strings.
class SymbolTable {
 public:
  // `bounds` may be nullptr: no bounds. Must outlive the table.
  explicit SymbolTable(const DimEnv* bounds) : bounds_(bounds) {}
  int Add(const std::string& name);  // the number of a symbol, new or known
  int size() const { return static_cast<int>(symbols_.size()); }
  int Find(absl::string_view name) const;  // -1 if there is none
  const std::string& name(int symbol) const { return symbols_[symbol].name; }
  int64_t bound(int symbol) const { return symbols_[symbol].bound; }

 private:
  struct Symbol {
    std::string name;
    int64_t bound;
  };
  const DimEnv* bounds_;
  std::vector<Symbol> symbols_;
  absl::flat_hash_map<std::string, int> index_;
};

// A type whose dims are looked at once: a number, one symbol, or an expression.
struct IndexedType {
  struct Item {
    int64_t constant = 0;
    int symbol = -1;            // >= 0: this symbol alone
    const Dim* expr = nullptr;  // else, if not null
  };
  const TensorType* type = nullptr;
  std::vector<Item> dims;
};
// `type` must outlive the result.
IndexedType IndexType(const TensorType& type, SymbolTable* table);

class SymbolSizes {
 public:
  explicit SymbolSizes(const SymbolTable* table) : table_(table), values_(table->size(), -1) {}

  // An error tells what does not fit: "dim 1 is 5, but S is 4".
  absl::Status Bind(absl::string_view symbol, int64_t size);
  // Binds the type's unbound plain symbols and checks bound ones; leaves expressions.
  absl::Status BindPlain(const IndexedType& type, absl::Span<const int64_t> shape);
  // Checks expressions. One with a single unbound symbol, such as S + 1, is solved for it if it is linear.
  absl::Status CheckExpressions(const IndexedType& type, absl::Span<const int64_t> shape);
  // Both: for a result of a node.
  absl::Status Check(const IndexedType& type, const Tensor& tensor);

  // Before a tensor of this type is allocated: its size must not overflow, where it is known already.
  absl::Status CheckBytes(const IndexedType& type);

  const DimEnv& env() const { return env_; }

 private:
  absl::Status Set(int symbol, int64_t size);
  absl::Status Solve(const Dim& dim, int64_t size);

  const SymbolTable* table_;
  std::vector<int64_t> values_;  // -1: not bound
  DimEnv env_;
  std::vector<int64_t> scratch_;
};

}  // namespace llmc
