// What is told of an element is what the evaluator computes there, for every size and place.
#include "passes/proof/element_value.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ir/eval.h"
#include "ir/text.h"

namespace llmc {
namespace {

using Kind = ElementValue::Kind;
using Sizes = std::map<std::string, Dim, std::less<>>;

constexpr int64_t kMostSize = 6;

// S sizes: the positions of rows and of columns.
constexpr char kPositions[] = R"(
dim S <= 6
in %x: f32[S]
%zero = constant {value = 0} : i64[]
%one = constant {value = 1} : i64[]
%n = dims {values = [S], scalar = true}
%r = range %zero, %n, %one
%i = reshape %r {shape = [S, 1]}
%j = reshape %r {shape = [1, S]}
)";

constexpr char kMasks[] = R"(
%three = constant {value = 3} : i64[]
%i3 = sub %i, %three
%m1 = less_equal %j, %i
%m2 = greater %j, %i3
%yes = greater_equal %j, %zero
%no = less %j, %zero
%z = constant {value = 0} : f32[]
%h = constant {value = -100000} : f32[]
%ma = where %m1, %z, %h
%mb = where %m2, %z, %h
)";

std::optional<bool> Holds(const Condition& condition, const Sizes& sizes) {
  if (condition.never) return false;
  bool holds = true;
  for (const Dim& dim : condition.at_least_zero) {
    const Dim at = dim.Substitute(sizes);
    if (!at.is_constant()) return std::nullopt;
    holds = holds && at.value() >= 0;
  }
  return holds;
}

bool Same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Whether `element` is `number` at these sizes and places.
bool Is(const ElementValue& element, double number, const Sizes& sizes) {
  const std::optional<bool> holds = Holds(element.condition, sizes);
  if (!holds.has_value()) return false;
  switch (element.kind) {
    case Kind::kInteger: {
      const Dim at = element.integer.Substitute(sizes);
      return at.is_constant() && static_cast<double>(at.value()) == number;
    }
    case Kind::kBool:
      return (number != 0) == *holds;
    case Kind::kNumber:
      return Same(element.number, number);
    case Kind::kMasked:
      if (*holds) return Same(element.number, number);
      return element.is_bound ? number <= element.otherwise : Same(element.otherwise, number);
    case Kind::kTable:
      return true;  // not looked up here
  }
  return false;
}

// The names of the values of which an element at any place is told, but for those of kPositions and kMasks. Every
// element that is told must be what a run gives, for all sizes that run.
std::set<std::string> Told(const std::string& text) {
  std::set<std::string> told;
  absl::StatusOr<std::unique_ptr<Model>> parsed = ParseFragment(text, "text");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  if (!parsed.ok()) return told;
  Model& model = **parsed;
  Step& step = *model.steps.front();
  step.outputs.clear();
  std::map<std::string, const Value*> values;
  for (const auto& node : step.block.nodes) {
    for (Value* value : node->results) {
      step.outputs.push_back({value->name.substr(1), value});
      values[value->name.substr(1)] = value;
    }
  }
  ElementFacts facts{.model = &model, .most = model.dims, .nonempty = {Dim::Symbol("S")}};
  std::map<std::string, ElementValue> elements;
  for (const auto& [name, value] : values) {
    Dims place;
    for (int axis = 0; axis < value->type.rank(); ++axis) {
      place.push_back(Dim::Symbol(absl::StrCat("$at", axis)));
      facts.most[absl::StrCat("$at", axis)] = kMostSize - 1;
    }
    if (const auto element = ElementAt(*value, place, facts); element.has_value()) elements[name] = *element;
  }
  for (const auto& [name, element] : elements) {
    const bool is_common = absl::StrContains(absl::StrCat(kPositions, kMasks), absl::StrCat("%", name, " = "));
    if (!is_common && element.kind != Kind::kTable) told.insert(name);
  }
  int runs = 0;
  for (int64_t size = 1; size <= kMostSize; ++size) {
    auto evaluator = Evaluator::Create(&model);
    EXPECT_TRUE(evaluator.ok()) << evaluator.status();
    const auto outputs = (*evaluator)->Run(step, {{"x", Tensor(DType::kF32, {size})}});
    if (!outputs.ok()) continue;
    ++runs;
    for (const auto& [name, element] : elements) {
      const Tensor& tensor = outputs->at(name);
      for (int64_t at = 0; at < tensor.size(); ++at) {
        Sizes sizes = {{"S", Dim(size)}};
        for (int64_t axis = tensor.rank() - 1, rest = at; axis >= 0; --axis) {
          sizes[absl::StrCat("$at", axis)] = Dim(rest % tensor.shape()[static_cast<size_t>(axis)]);
          rest /= tensor.shape()[static_cast<size_t>(axis)];
        }
        EXPECT_TRUE(Is(element, tensor.GetFloat(at), sizes))
            << name << " of " << size << " at " << at << " is " << tensor.GetFloat(at);
      }
    }
  }
  EXPECT_GT(runs, 0) << text;
  return told;
}

using Names = std::set<std::string>;
std::set<std::string> OfPositions(const std::string& text) { return Told(absl::StrCat(kPositions, text)); }
std::set<std::string> OfMasks(const std::string& text) { return Told(absl::StrCat(kPositions, kMasks, text)); }

TEST(ElementValue, OfComparisons) {
  EXPECT_EQ(OfMasks(R"(
%i1 = add %i, %one
%a = less %j, %i1
%b = greater %j, %i
%c = not %b
%d = greater_equal %i, %j
%e = equal %i, %i1
%f = equal %i, %j
%g = and %m1, %m2
%k = not %g
%o1 = or %m1, %m2
%o2 = or %m1, %no
%o3 = or %m1, %yes
)"),
            (Names{"i1", "a", "b", "c", "d", "e", "g", "o2", "o3"}));
}

TEST(ElementValue, OfSumsOfMasks) {
  EXPECT_EQ(
      OfMasks(R"(
%two = constant {value = 2} : f32[]
%minus = constant {value = -1} : f32[]
%five = constant {value = 5} : f32[]
%limit = constant {value = -150000} : f32[]
%s = add %ma, %mb
%same = add %ma, %ma
%low = less_equal %s, %limit
%is_h = equal %s, %h
%turned = mul %s, %minus
%quotient = div %s, %minus
%none = mul %s, %z
%twice = mul %s, %two
%more = add %s, %five
%c5 = where %m1, %five, %h
%s5 = add %c5, %mb
%m9 = greater %j, %i
%up = where %m9, %z, %h
%m8 = less_equal %j, %i3
%down = where %m8, %z, %h
%both = add %up, %down
%in_both = less_equal %both, %limit
)"),
      (Names{"two", "minus", "five", "limit", "s", "same", "twice", "more", "c5", "m9", "up", "m8", "down", "both"}));
}

TEST(ElementValue, OfChoices) {
  EXPECT_EQ(OfMasks(R"(
%a = where %m2, %ma, %h
%b = where %m2, %ma, %z
%c = where %m2, %h, %ma
%d = where %m2, %z, %ma
%e = where %m1, %m2, %no
%f = where %m1, %no, %m2
%g = where %m1, %m2, %yes
%k = where %m1, %m2, %m2
%l = where %yes, %ma, %mb
%o = where %no, %ma, %mb
%p = where %m1, %no, %yes
%same = equal %i, %j
%q = where %same, %i, %j
%t = where %same, %i3, %j
)"),
            (Names{"a", "c", "e", "f", "k", "l", "o", "p", "q"}));
}

// Numbers are those of their types.
TEST(ElementValue, OfTypes) {
  EXPECT_EQ(OfMasks(R"(
%tenth = constant {value = 0.1} : f32[]
%t = where %m1, %tenth, %z
%t16 = cast %t {to = f16}
%t32 = cast %t16 {to = f32}
%is_tenth = equal %t32, %tenth
%big = constant {value = -3e38} : f32[]
%b = where %m1, %z, %big
%b2 = add %b, %b
%b0 = mul %b2, %z
%nan = is_nan %b0
%half = mul %b2, %tenth
%below = less %half, %big
%b16 = cast %b {to = f16}
%c = constant {value = 253} : i64[]
%rc = add %r, %c
%u8 = cast %rc {to = u8}
%back = cast %u8 {to = i64}
%large = constant {value = 16777216} : i64[]
%rl = add %r, %large
%fl = cast %rl {to = f32}
%part = constant {value = 0.5} : f32[]
%w = where %m1, %part, %z
%wi = cast %w {to = i64}
%n1 = cast %m1 {to = i64}
%n2 = cast %n1 {to = bool}
%n3 = cast %yes {to = f32}
%fr = cast %r {to = f32}
%nothing = constant {value = nan} : f32[]
%nn = is_nan %nothing
)"),
            (Names{"tenth", "t",  "t16",   "t32", "is_tenth", "big", "b",  "b2", "b0", "half", "below",   "b16",
                   "c",     "rc", "large", "rl",  "part",     "w",   "n1", "n2", "n3", "fr",   "nothing", "nn"}));
}

TEST(ElementValue, OfParts) {
  EXPECT_EQ(
      OfPositions(R"(
%c0 = constant {value = [0]} : i64[1]
%c1 = constant {value = [1]} : i64[1]
%c2 = constant {value = [2]} : i64[1]
%c3 = constant {value = [3]} : i64[1]
%c9 = constant {value = [9]} : i64[1]
%back = constant {value = [-2]} : i64[1]
%m = less_equal %j, %i
%column = slice_by %m, %c0, %c1, %c1
%columns = and %column, %m
%every = slice_by %r, %c0, %c9, %c0, %c2
%last = slice_by %r, %back, %c9, %c0
%tail = slice_by %r, %c1, %c9, %c0
%none = slice_by %r, %c3, %c1, %c0
%after_none = concat %none, %r {axis = 0}
%first = slice_by %r, %c0, %c3, %c0
%after_first = concat %first, %r {axis = 0}
%behind = slice_by %after_first, %c3, %c9, %c0
%third = slice_by %r, %c3, %c9, %c0
%sum = add %third, %one
)"),
      (Names{"c0", "c1", "c2", "c3", "c9", "back", "m", "column", "columns", "tail", "none", "first", "third", "sum"}));
  // Of one element for four positions; for others it fails.
  EXPECT_EQ(OfPositions(R"(
%c3 = constant {value = [3]} : i64[1]
%c9 = constant {value = [9]} : i64[1]
%c0 = constant {value = [0]} : i64[1]
%third = slice_by %r, %c3, %c9, %c0
%sum = add %third, %r
)"),
            (Names{"c0", "c3", "c9", "third"}));
}

TEST(ElementValue, OfJoinedParts) {
  EXPECT_EQ(OfPositions(R"(
%five = constant {value = [5]} : i64[1]
%minus = constant {value = [-1]} : i64[1]
%twice = concat %r, %r {axis = 0}
%five_first = concat %five, %r {axis = 0}
%behind = slice %five_first {start = [1], end = [S + 1]}
%before = concat %minus, %r {axis = 0}
%shifted = slice %before {start = [1], end = [S + 1]}
%delayed = slice %before {start = [0], end = [S]}
)"),
            (Names{"five", "minus", "behind", "before", "shifted", "delayed"}));
}

TEST(ElementValue, OfGatheredElements) {
  EXPECT_EQ(OfPositions(R"(
%before = sub %r, %one
%wrapped = gather %r, %before
%ten = constant {value = 10} : i64[]
%i10 = mul %i, %ten
%table = add %i10, %j
%rows = gather %table, %r
%last = constant {value = -1} : i64[]
%row = gather %table, %last
%at = reshape %r {shape = [S, 1]}
%of_rows = gather_nd %table, %at
%diagonal = gather_nd %table, %at {batch_dims = 1}
%pairs = concat %at, %at {axis = 1}
%each = gather_nd %table, %pairs
%turned = transpose %table {perm = [1, 0]}
)"),
            (Names{"before", "ten", "i10", "table", "rows", "last", "at", "of_rows", "pairs", "each", "turned"}));
}

TEST(ElementValue, OfOtherShapes) {
  EXPECT_EQ(OfPositions(R"(
%ten = constant {value = 10} : i64[]
%i10 = mul %i, %ten
%c = constant {value = [0, 1]} : i64[1, 2]
%two = add %i10, %c
%other = reshape %two {shape = [2, S]}
%four = reshape %two {shape = [1, S, 1, 2]}
%sevens = constant {value = 7} : i64[]
%all = expand %sevens {shape = [S, 2]}
%flat = reshape %all {shape = [2*S]}
%wide = expand %i {shape = [S, 3]}
)"),
            (Names{"ten", "i10", "c", "two", "four", "sevens", "all", "flat", "wide"}));
}

TEST(ElementValue, OfSums) {
  EXPECT_EQ(OfPositions(R"(
%ones = expand %one {shape = [S]}
%count = cumsum %ones
%others = cumsum %ones {exclusive = true}
%left = cumsum %ones {reverse = true}
%sums = cumsum %r
%total = reduce_sum %ones {axes = [0]}
%all = reduce_sum %r {axes = [0]}
%c = constant {value = [0, 1, 2]} : i64[3]
%ci = reshape %c {shape = [3, 1]}
%cd = sub %c, %ci
%same = equal %c, %ci
%diagonal = cast %same {to = i64}
%of_rows = reduce_sum %diagonal {axes = [1]}
%trace = reduce_sum %of_rows {axes = [0]}
)"),
            (Names{"ones", "count", "others", "total", "c", "ci", "cd"}));
}

TEST(ElementValue, OfTables) {
  EXPECT_EQ(
      OfPositions(R"(
%causal = constant {value = [true, false, false, true, true, false, true, true, true]} : bool[3, 3]
%hole = constant {value = [true, false, false, true, true, false, false, true, true]} : bool[3, 3]
%wide = constant {value = [0, 0, -9, 0, 0, 0]} : f32[2, 3]
%twos = constant {value = [2, 2, 2]} : f32[3]
%steps = constant {value = [4, 7, 10]} : i64[1, 3]
%jumps = constant {value = [0, 1, 3]} : i64[3]
%rows = constant {value = [0, 1, 2, 3]} : i64[2, 2]
%two_rows = constant {value = [1, 0, 0, 1, 1, 0]} : f32[2, 3]
%two_masks = constant {value = [true, false, true, true, true, true, true, true]} : bool[2, 2, 2]
%upper = triangle %two_rows {diagonal = 1}
%ones = expand %twos {shape = [S, 3]}
%low = triangle %ones {upper = false, diagonal = -1}
%high = triangle %ones {diagonal = 1}
%m = less_equal %j, %i
%kept = triangle %m {upper = false}
%between = triangle %m {diagonal = -2}
)"),
      (Names{"causal", "wide", "twos", "steps", "two_rows", "upper", "ones", "low", "high", "m", "kept", "between"}));
}

TEST(ElementValue, OfProducts) {
  EXPECT_EQ(OfPositions(R"(
%fi = cast %i {to = f32}
%fj = cast %j {to = f32}
%outer = matmul %fi, %fj
%turned = matmul %fi, %fi {transpose_rhs = true}
%c = constant {value = [1, 2]} : f32[1, 2]
%two = mul %fi, %c
%inner = matmul %two, %two {transpose_rhs = true}
%square = mul %i, %j
)"),
            (Names{"c", "fi", "fj", "outer", "turned", "square"}));
}

}  // namespace
}  // namespace llmc
