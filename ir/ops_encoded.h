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

// Undoes a packing: the last or the last but one axis of x holds words, each of which has whole codes of `bits` bits,
// the first in its lowest bits. How checkpoints pack codes beyond that is said by the attributes, so that a packing is
// data. With word = 8 or 32 bits (u8 or i32; i8 and u8 of 8 bits are one code) and n = word / bits codes in each, code
// i along the axis is at place order[i % n] of word i / n.
struct Unpack {
  static constexpr OpInfo kInfo{.name = "unpack", .summary = "the codes of a few bits that words of checkpoints hold"};
  Value* x = nullptr;
  Value* index = nullptr;      // i32 or i64 [count]: which codes along the axis, in this order; absent: all
  int64_t bits = 4;            // 1 to 8
  int64_t axis = 0;            // one of the last two
  std::vector<int64_t> order;  // a permutation of 0 to n - 1; empty: 0, 1, …
  // The first codes of all words come before their second ones: code i is at place order[i / words] of word i % words.
  bool planes = false;
  bool across = false;     // codes follow each other without a gap, and may begin in one word and end in the next
  int64_t count = 0;       // codes along the axis, before `index`, that are kept: words may end with padding; 0: all
  bool transpose = false;  // the last two axes are exchanged in the result
  int64_t add = 0;         // to each code, modulo 2^bits
  DType to = DType::kU4;   // u4, u8; i4, i8: the highest bit is the sign
  // The result's bytes hold codes of `bits` bits, too, one after the other along the last axis, of which 8 divides
  // rows: as encodings have them that are packed.
  bool packed = false;
  static constexpr auto Fields() {
    return std::tuple(In("x", &Unpack::x), OptionalIn("index", &Unpack::index, Use::kPlaces), At("bits", &Unpack::bits),
                      At("axis", &Unpack::axis), At("order", &Unpack::order), At("planes", &Unpack::planes),
                      At("across", &Unpack::across), At("count", &Unpack::count), At("transpose", &Unpack::transpose),
                      At("add", &Unpack::add), At("to", &Unpack::to), At("packed", &Unpack::packed));
  }
  absl::StatusOr<Types> Infer() const;
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
// `as`, per=token or group=N along the last axis, its largest magnitude / `limit`, in f32, then the type of scales.
// With `outer`, the scale of scales (nvfp4), that is divided by it and rounded to f8e4m3. Scales that are exponents, as
// u8: of the power of two for which limit / 2 <= largest magnitude / power < limit. For e2m1, whose largest number is
// 6, OCP Microscaling Formats 1.0, 6.3, has the limit 8; compressed-tensors has 7. With `inverse` other scales are 1 /
// (limit * (1 / largest magnitude)), whose last bits may be others: as vLLM makes those of runs.
struct DynamicScale {
  static constexpr OpInfo kInfo{.name = "dynamic_scale",
                                .summary = "scales with which rows are quantized, from their largest magnitudes",
                                .mixes = Mixes::kLastAxis};
  Value* x = nullptr;
  Value* outer = nullptr;
  std::string as;    // "int8 per=token scale=f32"
  double limit = 0;  // what the largest magnitude becomes: 127, 127.5, 448, 6; of exponents what it stays below
  bool inverse = false;
  static constexpr auto Fields() {
    return std::tuple(In("x", &DynamicScale::x), OptionalIn("outer", &DynamicScale::outer, Use::kComponent),
                      At("as", &DynamicScale::as), At("limit", &DynamicScale::limit),
                      At("inverse", &DynamicScale::inverse));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

// The codes of x in the encoding `as`, whose scales these are: those of the numbers nearest to x / (scale * outer), in
// f32, ties to the even code; what lies beyond the codes becomes the last of them. 0 where the scale is 0. With
// `inverse` those nearest to x * (1 / (scale * outer)), which differ at ties. `encode` bundles codes and scales.
struct Quantize {
  static constexpr OpInfo kInfo{.name = "quantize",
                                .summary = "codes of the numbers that an encoding has nearest to those of a tensor",
                                .mixes = Mixes::kLastAxis};
  Value* x = nullptr;
  Value* scale = nullptr;
  Value* outer = nullptr;
  std::string as;
  bool inverse = false;
  static constexpr auto Fields() {
    return std::tuple(In("x", &Quantize::x), In("scale", &Quantize::scale, Use::kComponent),
                      OptionalIn("outer", &Quantize::outer, Use::kComponent), At("as", &Quantize::as),
                      At("inverse", &Quantize::inverse));
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
