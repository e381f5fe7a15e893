// Elementwise ops. Binary and ternary ones broadcast as numpy does; arithmetic is in f32 (f64 for f64, 64-bit integers
// for integers) and rounded to the result's type.
#pragma once

#include "ir/op.h"

namespace llmc {

// One operand, result of the same shape. F is what elementwise.def says of the op.
template <class F>
struct Unary {
  static constexpr OpInfo kInfo = F::kInfo;
  Value* x = nullptr;
  static constexpr auto Fields() { return std::tuple(In("x", &Unary::x)); }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
};
template <class F>
struct Binary {
  static constexpr OpInfo kInfo = F::kInfo;
  Value* lhs = nullptr;
  Value* rhs = nullptr;
  static constexpr auto Fields() { return std::tuple(In("lhs", &Binary::lhs), In("rhs", &Binary::rhs)); }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
};

// The ops of elementwise.def: Neg is Unary<NegFn>, and so on.
enum class Takes { kFloats, kNumbers, kLogical, kAny };
enum class Gives { kSame, kBool };

constexpr OpInfo ElementwiseInfo(absl::string_view name, absl::string_view summary, unsigned flags) {
  return {.name = name, .summary = summary, .flags = flags, .mixes = Mixes::kNone};
}
constexpr OpInfo ElementwiseInfo(absl::string_view name, absl::string_view summary, const char* pattern) {
  return {.name = name, .summary = summary, .mixes = Mixes::kNone, .pattern = pattern};
}

#define LLMC_ELEMENTWISE(ARITY, NAME, TEXT, TAKES, GIVES, TRAITS, SUMMARY)  \
  struct NAME##Fn {                                                         \
    static constexpr OpInfo kInfo = ElementwiseInfo(TEXT, SUMMARY, TRAITS); \
    static constexpr Takes kTakes = Takes::TAKES;                           \
    static constexpr Gives kGives = Gives::GIVES;                           \
  };                                                                        \
  using NAME = ARITY<NAME##Fn>;
#define UNARY(NAME, TEXT, TAKES, GIVES, TRAITS, SUMMARY, ...) \
  LLMC_ELEMENTWISE(Unary, NAME, TEXT, TAKES, GIVES, TRAITS, SUMMARY)
#define BINARY(NAME, TEXT, TAKES, GIVES, TRAITS, SUMMARY, ...) \
  LLMC_ELEMENTWISE(Binary, NAME, TEXT, TAKES, GIVES, TRAITS, SUMMARY)
#include "ir/elementwise.def"
#undef LLMC_ELEMENTWISE

struct Where {
  static constexpr OpInfo kInfo{.name = "where", .summary = "condition ? x : y, elementwise", .mixes = Mixes::kNone};
  Value* condition = nullptr;
  Value* x = nullptr;
  Value* y = nullptr;
  static constexpr auto Fields() {
    return std::tuple(In("condition", &Where::condition), In("x", &Where::x), In("y", &Where::y));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
};

struct Choose {
  static constexpr OpInfo kInfo{"choose",
                                "x if the one condition holds, else y; a host computes nothing for the other alone"};
  Value* condition = nullptr;  // bool[]
  Value* x = nullptr;
  Value* y = nullptr;
  static constexpr auto Fields() {
    return std::tuple(In("condition", &Choose::condition), In("x", &Choose::x), In("y", &Choose::y));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  OpCost Cost(const Types& results) const;
};

struct Cast {
  static constexpr OpInfo kInfo{.name = "cast",
                                .summary = "x converted to another type; floats to integers truncate and saturate",
                                .mixes = Mixes::kNone};
  Value* x = nullptr;
  DType to = DType::kF32;
  static constexpr auto Fields() { return std::tuple(In("x", &Cast::x), At("to", &Cast::to)); }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
};

// The result type of broadcasting two types' shapes; an error says which dims do not fit. Two different symbols give an
// unknown dim.
absl::StatusOr<Dims> BroadcastDims(const Dims& a, const Dims& b);

}  // namespace llmc
