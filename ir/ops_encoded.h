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

// The scales with which numbers of a step are quantized: for each run of elements of x that share one in the encoding
// `as`, per=token or group=N along the last axis, its largest magnitude / `limit`, in f32, then the type of scales. With
// `outer`, the scale of scales (nvfp4), that is divided by it and rounded to f8e4m3. Scales that are exponents (OCP
// Microscaling Formats 1.0, 6.3): 2^(floor(log2(largest magnitude)) - floor(log2(limit))), as u8.
struct DynamicScale {
  static constexpr OpInfo kInfo{.name = "dynamic_scale",
                                .summary = "scales with which rows are quantized, from their largest magnitudes",
                                .mixes = Mixes::kLastAxis};
  Value* x = nullptr;
  Value* outer = nullptr;
  std::string as;    // "int8 per=token scale=f32"
  double limit = 0;  // what the largest magnitude becomes: 127, 127.5, 448, 6
  static constexpr auto Fields() {
    return std::tuple(In("x", &DynamicScale::x), OptionalIn("outer", &DynamicScale::outer, Use::kComponent),
                      At("as", &DynamicScale::as), At("limit", &DynamicScale::limit));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

// The codes of x in the encoding `as`, whose scales these are: those of the numbers nearest to x / (scale * outer), in
// f32, ties to the even code; what lies beyond the codes becomes the last of them. 0 where the scale is 0. `encode`
// bundles codes and scales.
struct Quantize {
  static constexpr OpInfo kInfo{.name = "quantize",
                                .summary = "codes of the numbers that an encoding has nearest to those of a tensor",
                                .mixes = Mixes::kLastAxis};
  Value* x = nullptr;
  Value* scale = nullptr;
  Value* outer = nullptr;
  std::string as;
  static constexpr auto Fields() {
    return std::tuple(In("x", &Quantize::x), In("scale", &Quantize::scale, Use::kComponent),
                      OptionalIn("outer", &Quantize::outer, Use::kComponent), At("as", &Quantize::as));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
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
