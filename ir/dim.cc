#include "ir/dim.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace llmc {
namespace {

constexpr absl::string_view kUnknown = "?";
constexpr int kMaxDepth = 32;
constexpr size_t kMaxTerms = 64;
constexpr size_t kMaxText = 4096;
// Of a quotient: nested ones repeat their text, so without a limit it would grow exponentially.
constexpr size_t kMaxQuotient = 512;

bool IsSymbolChar(char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '$'; }

// A factor that is not a symbol is the text of a quotient, "(a)/(b)".
bool IsQuotient(const std::string& factor) { return factor[0] == '('; }

// Recursive descent over "a*b + (c)/(d) - 2".
class DimParser {
 public:
  using Known = std::map<std::string, Dim, std::less<>>;
  // Symbols that `known` holds stand for their dims; it may be null.
  explicit DimParser(absl::string_view text, const Known* known = nullptr) : text_(text), known_(known) {}

  absl::StatusOr<Dim> ParseAll() {
    absl::StatusOr<Dim> dim = ParseSum(0);
    if (!dim.ok()) return dim;
    SkipSpace();
    if (pos_ != text_.size()) return Fail();
    return dim;
  }

 private:
  absl::Status Fail() const {
    return absl::InvalidArgumentError(absl::StrCat("'", text_.substr(0, 200), "' is not a dim expression"));
  }
  void SkipSpace() {
    while (pos_ < text_.size() && text_[pos_] == ' ') ++pos_;
  }
  bool Eat(char c) {
    SkipSpace();
    if (pos_ >= text_.size() || text_[pos_] != c) return false;
    ++pos_;
    return true;
  }

  absl::StatusOr<Dim> ParseSum(int depth) {
    const bool negative = Eat('-');
    absl::StatusOr<Dim> sum = ParseProduct(depth);
    if (!sum.ok()) return sum;
    if (negative) sum = Dim(0) - *sum;
    while (true) {
      const bool plus = Eat('+');
      if (!plus && !Eat('-')) return sum;
      absl::StatusOr<Dim> next = ParseProduct(depth);
      if (!next.ok()) return next;
      sum = plus ? *sum + *next : *sum - *next;
    }
  }

  absl::StatusOr<Dim> ParseProduct(int depth) {
    absl::StatusOr<Dim> product = ParseAtom(depth);
    if (!product.ok()) return product;
    while (true) {
      const bool times = Eat('*');
      if (!times && !Eat('/')) return product;
      absl::StatusOr<Dim> next = ParseAtom(depth);
      if (!next.ok()) return next;
      if (!times && next->is_constant() && next->value() == 0) return Fail();
      product = times ? *product * *next : Dim::FloorDiv(*product, *next);
    }
  }

  absl::StatusOr<Dim> ParseAtom(int depth) {
    if (depth > kMaxDepth) return Fail();
    SkipSpace();
    if (Eat('(')) {
      absl::StatusOr<Dim> inner = ParseSum(depth + 1);
      if (!inner.ok()) return inner;
      if (!Eat(')')) return Fail();
      return inner;
    }
    if (Eat('?')) return Dim::Unknown();
    const size_t begin = pos_;
    while (pos_ < text_.size() && IsSymbolChar(text_[pos_])) ++pos_;
    const absl::string_view word = text_.substr(begin, pos_ - begin);
    if (word.empty()) return Fail();
    if (!absl::ascii_isdigit(word[0])) return SymbolOrKnown(word);
    int64_t value = 0;
    if (!absl::SimpleAtoi(word, &value)) return Fail();
    return Dim(value);
  }

  Dim SymbolOrKnown(absl::string_view name) const {
    if (known_ == nullptr) return Dim::Symbol(name);
    auto it = known_->find(name);
    return it == known_->end() ? Dim::Symbol(name) : it->second;
  }

  absl::string_view text_;
  const Known* known_;
  size_t pos_ = 0;
};

int64_t FloorDivide(int64_t a, int64_t b) {
  if (b == -1) return a == INT64_MIN ? INT64_MAX : -a;
  return a / b - ((a % b != 0) && ((a < 0) != (b < 0)) ? 1 : 0);
}

int ParenthesesDepth(absl::string_view text) {
  int depth = 0, deepest = 0;
  for (const char c : text) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    deepest = std::max(deepest, depth);
  }
  return deepest;
}

absl::Status Overflows(const Dim& dim) {
  return absl::InvalidArgumentError(absl::StrCat("dim '", dim.ToString(), "' overflows 64 bits"));
}

struct Quotient {
  Dim above, below;
};

// The halves are balanced: the dividend ends where its parenthesis closes.
absl::StatusOr<Quotient> SplitQuotient(const std::string& factor) {
  size_t split = 0;
  for (int depth = 0; split < factor.size(); ++split) {
    depth += factor[split] == '(' ? 1 : factor[split] == ')' ? -1 : 0;
    if (depth == 0) break;
  }
  absl::StatusOr<Dim> above = Dim::Parse(factor.substr(1, split - 1));
  absl::StatusOr<Dim> below = Dim::Parse(factor.substr(split + 3, factor.size() - split - 4));
  if (!above.ok()) return above.status();
  if (!below.ok()) return below.status();
  return Quotient{*std::move(above), *std::move(below)};
}

// False if it overflows.
bool Multiply(const DimRange& a, const DimRange& b, DimRange* product) {
  int64_t corners[4];
  if (__builtin_mul_overflow(a.low, b.low, &corners[0]) || __builtin_mul_overflow(a.low, b.high, &corners[1]) ||
      __builtin_mul_overflow(a.high, b.low, &corners[2]) || __builtin_mul_overflow(a.high, b.high, &corners[3])) {
    return false;
  }
  const auto [low, high] = std::minmax_element(std::begin(corners), std::end(corners));
  *product = {*low, *high};
  return true;
}

// A run in which the divisor is 0 is an error. A floor division is monotone in the dividend, and in a divisor that
// keeps its sign, so that the extremes are at the ends of these ranges.
absl::StatusOr<DimRange> QuotientRange(const std::string& factor, const DimEnv& bounds) {
  ASSIGN_OR_RETURN(Quotient quotient, SplitQuotient(factor));
  absl::StatusOr<DimRange> above = quotient.above.Range(bounds), below = quotient.below.Range(bounds);
  if (!above.ok()) return above;
  if (!below.ok()) return below;
  std::vector<int64_t> values;
  for (const int64_t divisor : {below->low, int64_t{-1}, int64_t{1}, below->high}) {
    if (divisor == 0 || divisor < below->low || divisor > below->high) continue;
    values.push_back(FloorDivide(above->low, divisor));
    values.push_back(FloorDivide(above->high, divisor));
  }
  if (values.empty()) return absl::InvalidArgumentError(absl::StrCat("dim '", factor, "' divides by zero"));
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return DimRange{*low, *high};
}

absl::StatusOr<DimRange> FactorRange(const std::string& factor, const DimEnv& bounds) {
  if (IsQuotient(factor)) return QuotientRange(factor, bounds);
  auto it = bounds.find(factor);
  if (it == bounds.end()) return absl::InvalidArgumentError(absl::StrCat("dim '", factor, "' has no bound"));
  return DimRange{0, it->second};
}

}  // namespace

Dim Dim::Symbol(absl::string_view name) {
  Dim dim;
  dim.terms_.push_back(Term{{std::string(name)}, 1});
  return dim;
}

Dim Dim::Unknown() { return Symbol(kUnknown); }

bool Dim::is_unknown() const {
  return terms_.size() == 1 && terms_[0].factors.size() == 1 && terms_[0].factors[0] == kUnknown;
}

bool Dim::is_symbol() const {
  return constant_ == 0 && terms_.size() == 1 && terms_[0].coefficient == 1 && terms_[0].factors.size() == 1 &&
         !IsQuotient(terms_[0].factors[0]) && !is_unknown();
}

void Dim::Canonicalize() {
  std::sort(terms_.begin(), terms_.end(), [](const Term& a, const Term& b) { return a.factors < b.factors; });
  std::vector<Term> merged;
  for (Term& term : terms_) {
    if (!merged.empty() && merged.back().factors == term.factors) {
      if (__builtin_add_overflow(merged.back().coefficient, term.coefficient, &merged.back().coefficient)) {
        *this = Unknown();
        return;
      }
    } else {
      merged.push_back(std::move(term));
    }
  }
  std::erase_if(merged, [](const Term& term) { return term.coefficient == 0; });
  terms_ = std::move(merged);
  if (terms_.size() > kMaxTerms || TextBound() > kMaxText) *this = Unknown();
}

// At least as long as ToString().
size_t Dim::TextBound() const {
  constexpr size_t kNumber = 24;  // a number with its sign or operator
  size_t length = kNumber;
  for (const Term& term : terms_) {
    length += kNumber;
    for (const std::string& factor : term.factors) length += factor.size() + 3;
  }
  return length;
}

Dim operator+(const Dim& a, const Dim& b) {
  if (a.is_unknown() || b.is_unknown()) return Dim::Unknown();
  Dim sum = a;
  if (__builtin_add_overflow(sum.constant_, b.constant_, &sum.constant_)) return Dim::Unknown();
  if (b.terms_.empty()) return sum;
  sum.terms_.insert(sum.terms_.end(), b.terms_.begin(), b.terms_.end());
  sum.Canonicalize();
  return sum;
}

Dim operator-(const Dim& a, const Dim& b) { return a + Dim(-1) * b; }

Dim operator*(const Dim& a, const Dim& b) {
  if (a.is_unknown() || b.is_unknown()) return Dim::Unknown();
  Dim product;
  bool overflow = __builtin_mul_overflow(a.constant_, b.constant_, &product.constant_);
  auto add = [&](const Dim::Term* x, const Dim::Term* y, int64_t cx, int64_t cy) {
    Dim::Term term;
    if (x != nullptr) term.factors = x->factors;
    if (y != nullptr) term.factors.insert(term.factors.end(), y->factors.begin(), y->factors.end());
    std::sort(term.factors.begin(), term.factors.end());
    overflow |= __builtin_mul_overflow(cx, cy, &term.coefficient);
    product.terms_.push_back(std::move(term));
  };
  if (a.terms_.size() * b.terms_.size() > kMaxTerms * 4) return Dim::Unknown();
  for (const Dim::Term& x : a.terms_) {
    add(&x, nullptr, x.coefficient, b.constant_);
    for (const Dim::Term& y : b.terms_) add(&x, &y, x.coefficient, y.coefficient);
  }
  for (const Dim::Term& y : b.terms_) add(nullptr, &y, a.constant_, y.coefficient);
  if (overflow) return Dim::Unknown();
  product.Canonicalize();
  for (const Dim::Term& term : product.terms_) {
    if (term.factors.size() > 16) return Dim::Unknown();
  }
  return product;
}

// Polynomial long division by the divisor's last term; an uneven quotient becomes one opaque factor, and one of a
// quotient a single one: (x/b + k)/c is (x + k*b)/(b*c) for positive b and c.
Dim Dim::FloorDiv(const Dim& a, const Dim& b) {
  if (a.is_unknown() || b.is_unknown()) return Unknown();
  if (b.is_constant() && b.constant_ == 0) return Unknown();
  if (a.is_constant() && b.is_constant()) return Dim(FloorDivide(a.constant_, b.constant_));
  if (b.is_constant() && b.constant_ == 1) return a;
  const Term lead = b.terms_.empty() ? Term{{}, b.constant_} : b.terms_.back();
  Dim rest = a, quotient;
  for (size_t round = 0; round < kMaxTerms; ++round) {
    if (rest.is_constant() && rest.constant_ == 0) return quotient;
    bool divided = false;
    std::vector<Term> candidates = rest.terms_;
    if (rest.constant_ != 0) candidates.push_back(Term{{}, rest.constant_});
    for (auto it = candidates.rbegin(); it != candidates.rend() && !divided; ++it) {
      Term part;
      if (it->coefficient % lead.coefficient != 0) continue;
      part.coefficient = it->coefficient / lead.coefficient;
      if (!std::includes(it->factors.begin(), it->factors.end(), lead.factors.begin(), lead.factors.end())) continue;
      std::set_difference(it->factors.begin(), it->factors.end(), lead.factors.begin(), lead.factors.end(),
                          std::back_inserter(part.factors));
      Dim step;
      if (part.factors.empty()) {
        step.constant_ = part.coefficient;
      } else {
        step.terms_.push_back(part);
      }
      Dim next = rest - step * b;
      if (next.is_unknown()) break;
      quotient = quotient + step;
      rest = std::move(next);
      divided = true;
    }
    if (!divided) break;
  }
  if (b.is_constant() && b.constant_ > 0 && a.terms_.size() == 1 && a.terms_[0].coefficient == 1 &&
      a.terms_[0].factors.size() == 1 && IsQuotient(a.terms_[0].factors[0])) {
    const absl::StatusOr<Quotient> inner = SplitQuotient(a.terms_[0].factors[0]);
    if (inner.ok() && inner->below.is_constant() && inner->below.constant_ > 0) {
      const Dim merged = FloorDiv(inner->above + Dim(a.constant_) * inner->below, inner->below * b);
      if (!merged.is_unknown()) return merged;
    }
  }
  std::string text = absl::StrCat("(", a.ToString(), ")/(", b.ToString(), ")");
  // A product puts it into parentheses once more.
  if (text.size() > kMaxQuotient || ParenthesesDepth(text) >= kMaxDepth) return Unknown();
  return Symbol(text);
}

absl::StatusOr<int64_t> Dim::Evaluate(const DimEnv& env) const {
  int64_t sum = constant_;
  for (const Term& term : terms_) {
    int64_t product = term.coefficient;
    for (const std::string& factor : term.factors) {
      int64_t value = 0;
      if (IsQuotient(factor)) {
        ASSIGN_OR_RETURN(Quotient quotient, SplitQuotient(factor));
        absl::StatusOr<int64_t> x = quotient.above.Evaluate(env), y = quotient.below.Evaluate(env);
        if (!x.ok()) return x;
        if (!y.ok()) return y;
        if (*y == 0) return absl::InvalidArgumentError(absl::StrCat("dim '", factor, "' divides by zero"));
        value = FloorDivide(*x, *y);
      } else {
        auto it = env.find(factor);
        if (it == env.end()) return absl::InvalidArgumentError(absl::StrCat("dim '", factor, "' has no size"));
        value = it->second;
      }
      if (__builtin_mul_overflow(product, value, &product)) return Overflows(*this);
    }
    if (__builtin_add_overflow(sum, product, &sum)) return Overflows(*this);
  }
  return sum;
}

absl::StatusOr<DimRange> Dim::Range(const DimEnv& bounds) const {
  DimRange sum = {constant_, constant_};
  for (const Term& term : terms_) {
    DimRange product = {term.coefficient, term.coefficient};
    for (const std::string& factor : term.factors) {
      absl::StatusOr<DimRange> range = FactorRange(factor, bounds);
      if (!range.ok()) return range;
      if (!Multiply(product, *range, &product)) return Overflows(*this);
    }
    if (__builtin_add_overflow(sum.low, product.low, &sum.low) ||
        __builtin_add_overflow(sum.high, product.high, &sum.high)) {
      return Overflows(*this);
    }
  }
  return sum;
}

std::vector<std::string> Dim::Symbols() const {
  std::set<std::string> symbols;
  for (const Term& term : terms_) {
    for (const std::string& factor : term.factors) {
      for (size_t i = 0; i < factor.size();) {
        if (!IsSymbolChar(factor[i])) {
          ++i;
          continue;
        }
        const size_t begin = i;
        while (i < factor.size() && IsSymbolChar(factor[i])) ++i;
        if (!absl::ascii_isdigit(factor[begin])) symbols.insert(factor.substr(begin, i - begin));
      }
    }
  }
  return {symbols.begin(), symbols.end()};
}

std::string Dim::ToString() const {
  if (terms_.empty()) return absl::StrCat(constant_);
  std::string out;
  for (const Term& term : terms_) {
    const bool negative = term.coefficient < 0;
    absl::StrAppend(&out, out.empty() ? (negative ? "-" : "") : (negative ? " - " : " + "));
    const uint64_t size = negative ? 0 - static_cast<uint64_t>(term.coefficient) : term.coefficient;
    if (size != 1) absl::StrAppend(&out, size, "*");
    // `16*(a)/(b)` would be read as `(16*a)/b`: a quotient inside a product gets its own parentheses.
    const bool product = size != 1 || term.factors.size() > 1;
    absl::StrAppend(&out, absl::StrJoin(term.factors, "*", [&](std::string* text, const std::string& factor) {
      absl::StrAppend(text, product && IsQuotient(factor) ? absl::StrCat("(", factor, ")") : factor);
    }));
  }
  if (constant_ != 0) {
    absl::StrAppend(&out, constant_ < 0 ? " - " : " + ",
                    constant_ < 0 ? 0 - static_cast<uint64_t>(constant_) : static_cast<uint64_t>(constant_));
  }
  return out;
}

absl::StatusOr<Dim> Dim::Parse(absl::string_view text) {
  if (text.size() > kMaxText) {
    return absl::InvalidArgumentError(absl::StrCat("a dim expression is longer than ", kMaxText, " characters"));
  }
  return DimParser(text).ParseAll();
}

Dim Dim::Substitute(const std::map<std::string, Dim, std::less<>>& dims) const {
  const std::vector<std::string> symbols = Symbols();
  if (std::none_of(symbols.begin(), symbols.end(), [&](const std::string& name) { return dims.contains(name); })) {
    return *this;
  }
  absl::StatusOr<Dim> changed = DimParser(ToString(), &dims).ParseAll();
  return changed.ok() && !changed->is_unknown() ? *std::move(changed) : *this;
}

std::string DimsToString(const Dims& dims) {
  return absl::StrJoin(dims, ", ", [](std::string* out, const Dim& dim) { out->append(dim.ToString()); });
}

Dim Product(const Dims& dims) {
  Dim product(1);
  for (const Dim& dim : dims) product = product * dim;
  return product;
}

}  // namespace llmc
