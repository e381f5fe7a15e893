// Sizes and strides of tensors as plans write them: numbers where they are known, else expressions in the dims.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "ir/dim.h"

namespace llmc {

class Size {
 public:
  Size(int64_t number) : dim_(Dim(number)) {}  // NOLINT: numbers and dims are sizes
  Size(Dim dim) : dim_(std::move(dim)) {}      // NOLINT
  // A function of runtime/plan/dim_expression.h.
  static Size Call(absl::string_view function, std::initializer_list<Size> arguments);
  // As runtime/plan/dim_expression.h reads it.
  static Size Text(std::string text);

  bool is_number() const { return dim_.has_value() && dim_->is_constant(); }
  bool Is(int64_t number) const { return is_number() && dim_->value() == number; }
  int64_t number() const { return dim_->value(); }   // Only for numbers.
  bool has_dim() const { return dim_.has_value(); }  // no function is in it
  const Dim& dim() const { return *dim_; }
  // Whether every run gives a multiple of n.
  bool IsMultipleOf(int64_t n) const;
  std::string ToString() const;

  friend Size operator*(const Size& a, const Size& b);
  friend Size operator+(const Size& a, const Size& b);
  friend Size operator-(const Size& a, const Size& b);
  // Rounded down; n is positive.
  static Size FloorDiv(const Size& a, int64_t n);
  bool operator==(const Size& other) const { return ToString() == other.ToString(); }

 private:
  Size() = default;
  std::optional<Dim> dim_;  // else the text
  std::string text_;
};

using SizeList = std::vector<Size>;

SizeList ToSizes(const Dims& dims);
Size ProductOf(const SizeList& sizes);
// The number of elements of a tensor. Where the language cannot hold the product of so many terms as one dim, a size
// can.
Size ElementsOf(const Dims& shape);

}  // namespace llmc
