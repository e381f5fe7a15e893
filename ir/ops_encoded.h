// Encoded tensors (encoding.h): how they are made, and products with them.
#pragma once

#include "ir/op.h"

namespace llmc {

// One encoded value of its components, in the order of Encoding: codes, scale, zero point, outer scale, but for those
// that the encoding does not have. A scale for the whole tensor may have one axis of size 1. The components keep their
// types when floats get another one.
struct Encode {
  static constexpr OpInfo kInfo{.name = "encode", .summary = "the tensor that codes, scales and zero points stand for"};
  std::vector<Value*> components;
  std::string as;          // "int4 group=128 scale=f16 zero=u4"
  DType to = DType::kF32;  // the logical type
  static constexpr auto Fields() {
    return std::tuple(In("components", &Encode::components, Use::kComponent), At("as", &Encode::as),
                      At("to", &Encode::to));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

struct Decode {
  static constexpr OpInfo kInfo{.name = "decode",
                                .summary = "the numbers of an encoded tensor, each rounded to its logical type",
                                .flags = kTakesEncoded};
  Value* x = nullptr;
  static constexpr auto Fields() { return std::tuple(In("x", &Decode::x)); }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

// lhs[…, m, k] x rhs[…, k, n], leading axes broadcast: what matmul gives of floats. What is encoded is decoded to f32
// (f64 for f64), where the sums are, too; they are rounded once to the type of lhs. If both are encoded as integers,
// with scales and zero points that are the same along k, the sum of the products of integers is exact, and is
// multiplied by the product of both scales once.
struct Linear {
  static constexpr OpInfo kInfo{
      .name = "linear", .summary = "product with a weight, either of which may be encoded", .flags = kTakesEncoded};
  Value* lhs = nullptr;
  Value* rhs = nullptr;
  bool transpose_rhs = false;  // rhs is [n, k], as checkpoints store linear layers
  static constexpr auto Fields() {
    return std::tuple(In("lhs", &Linear::lhs), In("rhs", &Linear::rhs), At("transpose_rhs", &Linear::transpose_rhs));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  OpCost Cost(const Types& results) const;
};

// Whether a product of the two sums integers: the second rule of Linear.
bool SumsIntegers(const TensorType& lhs, const TensorType& rhs, bool transpose_rhs);

// matmul or linear: the first multiplies activations with each other, the second takes a weight. Their fields are the
// same.
bool IsProduct(const Node* node);
Linear ProductOf(const Node& node);
// Whether a factor is encoded.
bool HasEncodedFactor(const Node& product);

}  // namespace llmc
