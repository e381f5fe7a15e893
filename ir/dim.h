// A dimension: a sum of products of symbols and numbers, kept in a canonical form, so that `past + seq` equals
// `seq + past`. A quotient that does not come out even is an opaque factor, written `(expr)/(expr)` (floor division).
// What grows too large to be read back becomes an unknown.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace llmc {

// The sizes that symbols have in one run.
using DimEnv = std::map<std::string, int64_t, std::less<>>;

// The least and the greatest size that a dim can have.
struct DimRange {
  int64_t low = 0;
  int64_t high = 0;
};

class Dim {
 public:
  Dim() = default;
  Dim(int64_t value) : constant_(value) {}  // NOLINT: numbers are dims
  static Dim Symbol(absl::string_view name);
  // A size that only a run can tell. Equal to nothing, not even itself; whoever defines a value gives it a fresh
  // symbol.
  static Dim Unknown();

  bool is_constant() const { return terms_.empty(); }
  bool is_unknown() const;
  bool is_symbol() const;
  int64_t value() const { return constant_; }  // Only for constants.

  // Arithmetic with an unknown, or one that overflows 64 bits or the limits of text, gives an unknown.
  friend Dim operator+(const Dim& a, const Dim& b);
  friend Dim operator-(const Dim& a, const Dim& b);
  friend Dim operator*(const Dim& a, const Dim& b);
  static Dim FloorDiv(const Dim& a, const Dim& b);

  // Equality of the canonical forms; structural, so an unknown equals an unknown here (used for round trips of text).
  bool operator==(const Dim&) const = default;
  bool operator<(const Dim& other) const { return ToString() < other.ToString(); }

  // The size in one run; an error names the symbol that `env` lacks.
  absl::StatusOr<int64_t> Evaluate(const DimEnv& env) const;
  // The sizes for all runs in which each symbol is from 0 to its size in `bounds`. Each term is taken for itself, so
  // the range may hold sizes that do not occur, but it lacks none.
  absl::StatusOr<DimRange> Range(const DimEnv& bounds) const;
  std::vector<std::string> Symbols() const;
  // With the given dims in place of their symbols; as it was if that overflows.
  Dim Substitute(const std::map<std::string, Dim, std::less<>>& dims) const;

  std::string ToString() const;
  static absl::StatusOr<Dim> Parse(absl::string_view text);

 private:
  struct Term {
    std::vector<std::string> factors;  // sorted; never empty
    int64_t coefficient = 0;
    bool operator==(const Term&) const = default;
  };
  void Canonicalize();
  size_t TextBound() const;

  int64_t constant_ = 0;
  std::vector<Term> terms_;  // sorted by factors, no zero coefficient
};

using Dims = std::vector<Dim>;
std::string DimsToString(const Dims& dims);  // "B, S, 64"
Dim Product(const Dims& dims);

}  // namespace llmc
