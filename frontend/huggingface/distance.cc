#include "frontend/huggingface/distance.h"

#include <cmath>

#include "ir/ops.h"

namespace llmc::hf {
namespace {

Value* Whole(BlockGraph* blocks, int64_t number) {
  const Tensor value = Tensor::FromValues(DType::kI64, {}, std::vector<int64_t>{number});
  return blocks->builder().Add(Constant{.value = value});
}

Value* Float(BlockGraph* blocks, Value* x) { return blocks->builder().Add(Cast{.x = x, .to = DType::kF32}); }

}  // namespace

// Half of the buckets for keys before the query, half for those after it; of each half the first are one distance
// each, the others logarithmic up to max_distance.
Value* RelativeBucket(const RelativeBias& r, Value* distance, BlockGraph* blocks) {
  Builder& b = blocks->builder();
  const int64_t half = r.buckets / 2, exact = half / 2;
  Value* n = distance;
  Value* side = b.Add(Mul{.lhs = b.Add(Cast{.x = b.Add(Less{.lhs = n, .rhs = Whole(blocks, 0)}), .to = DType::kI64}),
                          .rhs = Whole(blocks, half)});
  n = b.Add(Abs{.x = n});
  Value* is_exact = b.Add(Less{.lhs = n, .rhs = Whole(blocks, exact)});
  Value* ratio = Float(blocks, b.Add(Max{.lhs = n, .rhs = Whole(blocks, 1)}));
  ratio = b.Add(Log{.x = b.Add(Div{.lhs = ratio, .rhs = blocks->Number(static_cast<double>(exact), ratio)})});
  const double step =
      static_cast<double>(half - exact) / std::log(static_cast<double>(r.max_distance) / static_cast<double>(exact));
  ratio = b.Add(Mul{.lhs = ratio, .rhs = blocks->Number(step, ratio)});
  Value* far = b.Add(Add{.lhs = b.Add(Cast{.x = ratio, .to = DType::kI64}), .rhs = Whole(blocks, exact)});
  far = b.Add(Min{.lhs = far, .rhs = Whole(blocks, half - 1)});
  return b.Add(Add{.lhs = side, .rhs = b.Add(Where{.condition = is_exact, .x = n, .y = far})}, "%bucket");
}

// i64[L, L]: the row of the table of distances, from 0 to 2 * span - 1 (DebertaV2's make_log_bucket_position).
Value* DistanceRow(const Disentangled& d, Value* distance, BlockGraph* blocks) {
  Builder& b = blocks->builder();
  Value* r = distance;
  if (d.buckets > 0) {
    const int64_t mid = d.buckets / 2;
    Value* far = b.Add(Abs{.x = r});
    Value* is_near = b.Add(LessEqual{.lhs = far, .rhs = Whole(blocks, mid)});
    Value* ratio = Float(blocks, b.Add(Max{.lhs = far, .rhs = Whole(blocks, mid)}));
    ratio = b.Add(Log{.x = b.Add(Div{.lhs = ratio, .rhs = blocks->Number(static_cast<double>(mid), ratio)})});
    const double all = std::log(static_cast<double>(d.max_distance - 1) / static_cast<double>(mid));
    ratio = b.Add(Mul{.lhs = b.Add(Div{.lhs = ratio, .rhs = blocks->Number(all, ratio)}),
                      .rhs = blocks->Number(static_cast<double>(mid - 1), ratio)});
    Value* steps = b.Add(Cast{.x = b.Add(Ceil{.x = ratio}), .to = DType::kI64});
    Value* logarithmic =
        b.Add(Mul{.lhs = b.Add(Sign{.x = r}), .rhs = b.Add(Add{.lhs = steps, .rhs = Whole(blocks, mid)})});
    r = b.Add(Where{.condition = is_near, .x = r, .y = logarithmic});
  }
  r = b.Add(Add{.lhs = r, .rhs = Whole(blocks, d.span)});
  return b.Add(Min{.lhs = b.Add(Max{.lhs = r, .rhs = Whole(blocks, 0)}), .rhs = Whole(blocks, 2 * d.span - 1)}, "%row");
}

}  // namespace llmc::hf
