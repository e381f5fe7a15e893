#include "ir/size.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace llmc {

Size Size::Text(std::string text) {
  Size size;
  size.text_ = std::move(text);
  return size;
}

Size Size::Call(absl::string_view function, std::initializer_list<Size> arguments) {
  std::string text = absl::StrCat(function, "(");
  for (const Size& argument : arguments) {
    absl::StrAppend(&text, text.back() == '(' ? "" : ", ", argument.ToString());
  }
  return Text(absl::StrCat(text, ")"));
}

std::string Size::ToString() const {
  // Expressions have no number that is one more than the largest, to be negated.
  if (Is(std::numeric_limits<int64_t>::min())) return "(-9223372036854775807 - 1)";
  return dim_.has_value() ? dim_->ToString() : text_;
}

bool Size::IsMultipleOf(int64_t n) const {
  if (n == 1) return true;
  return dim_.has_value() && Dim::FloorDiv(*dim_, Dim(n)) * Dim(n) == *dim_;
}

namespace {

template <class F>
Size Combine(const std::optional<Dim>& a, const std::optional<Dim>& b, F f, const std::string& text) {
  if (a.has_value() && b.has_value()) {
    if (Dim both = f(*a, *b); !both.is_unknown()) return both;
  }
  return Size::Text(text);
}

std::string Joined(const Size& a, absl::string_view op, const Size& b) {
  return absl::StrCat("(", a.ToString(), ")", op, "(", b.ToString(), ")");
}

}  // namespace

Size operator*(const Size& a, const Size& b) {
  if (a.Is(1) || b.Is(0)) return b;
  if (b.Is(1) || a.Is(0)) return a;
  return Combine(
      a.dim_, b.dim_, [](const Dim& x, const Dim& y) { return x * y; }, Joined(a, "*", b));
}
Size operator+(const Size& a, const Size& b) {
  if (a.Is(0)) return b;
  if (b.Is(0)) return a;
  return Combine(
      a.dim_, b.dim_, [](const Dim& x, const Dim& y) { return x + y; }, Joined(a, "+", b));
}
Size operator-(const Size& a, const Size& b) {
  if (b.Is(0)) return a;
  return Combine(
      a.dim_, b.dim_, [](const Dim& x, const Dim& y) { return x - y; }, Joined(a, "-", b));
}

Size Size::FloorDiv(const Size& a, int64_t n) {
  if (n == 1) return a;
  return Combine(
      a.dim_, Dim(n), [](const Dim& x, const Dim& y) { return Dim::FloorDiv(x, y); }, Joined(a, "/", Size(n)));
}

SizeList ToSizes(const Dims& dims) { return SizeList(dims.begin(), dims.end()); }

Size ProductOf(const SizeList& sizes) {
  Size product = 1;
  for (const Size& size : sizes) product = product * size;
  return product;
}

Size ElementsOf(const Dims& shape) { return ProductOf(ToSizes(shape)); }

}  // namespace llmc
