// Products of quantized factors.
#pragma once

#include "ir/op.h"

namespace llmc {

// lhs[…, m, k] x rhs[…, k, n], where the numbers of rhs stand for (rhs - rhs_zero) * rhs_scale; leading axes broadcast.
//
// Of lhs i8 or u8 with a scale, (lhs - lhs_zero) * lhs_scale, the sum of the products of integers is exact, and is
// multiplied by both scales once; the result has the type of the scales. Of a floating-point lhs, which has neither
// scale nor zero point, rhs is dequantized in f32, as are the products; the result has its type.
//
// rhs_scale and rhs_zero are one number, one for each column, [n], or, with `block`, one for each `block` numbers of k
// in each column, in the order of rhs: [ceil(k / block), n], or [n, ceil(k / block)] with transpose_rhs. The former two
// may be different for both.
struct QuantizedMatMul {
  static constexpr OpInfo kInfo{
      .name = "quantized_matmul",
      .summary = "matmul of (lhs - lhs_zero) * lhs_scale, or floats, and (rhs - rhs_zero) * rhs_scale",
      .pattern = "quantized product"};
  Value* lhs = nullptr;
  Value* rhs = nullptr;
  Value* rhs_scale = nullptr;
  Value* rhs_zero = nullptr;   // absent: 0
  Value* lhs_scale = nullptr;  // one number
  Value* lhs_zero = nullptr;   // one number; absent: 0
  bool transpose_rhs = false;  // rhs is [n, k]
  int64_t block = 0;           // 0: no blocks
  static constexpr auto Fields() {
    return std::tuple(In("lhs", &QuantizedMatMul::lhs), In("rhs", &QuantizedMatMul::rhs),
                      In("rhs_scale", &QuantizedMatMul::rhs_scale), OptionalIn("rhs_zero", &QuantizedMatMul::rhs_zero),
                      OptionalIn("lhs_scale", &QuantizedMatMul::lhs_scale),
                      OptionalIn("lhs_zero", &QuantizedMatMul::lhs_zero),
                      At("transpose_rhs", &QuantizedMatMul::transpose_rhs), At("block", &QuantizedMatMul::block));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  OpCost Cost(const Types& results) const;
};

}  // namespace llmc
