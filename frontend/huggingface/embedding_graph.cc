#include "frontend/huggingface/embedding_graph.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "ir/ops.h"

namespace llmc::hf {
namespace {

class EmbeddingGraph {
 public:
  EmbeddingGraph(Value* x, Value* mask, BlockGraph* blocks)
      : blocks_(*blocks), b_(blocks->builder()), batch_(x->type.shape[0]), length_(x->type.shape[1]) {
    x_ = x->type.dtype == DType::kF32 ? x : b_.Add(Cast{.x = x, .to = DType::kF32});
    mask_ = mask;
    blocks_.set_dtype(DType::kF32);
  }

  Value* Build(const EmbeddingSpec& spec) {
    b_.set_loc("pooling");
    std::vector<Value*> parts;
    for (const TokenPool pool : spec.pools) parts.push_back(Pooled(pool));
    Value* y = parts.size() == 1 ? parts[0] : b_.Add(Concat{.parts = parts, .axis = 1}, "%pooled");
    for (size_t i = 0; i < spec.steps.size(); ++i) {
      const auto* dense = std::get_if<DenseStep>(&spec.steps[i]);
      y = dense != nullptr ? Dense(*dense, y, absl::StrCat(i)) : Unit(y);
    }
    return y;
  }

 private:
  // f32[B, L, 1] of i64[B, L].
  Value* Column(Value* of_tokens) {
    Value* column = b_.Add(Reshape{.x = of_tokens, .shape = {batch_, length_, Dim(1)}});
    return b_.Add(Cast{.x = column, .to = DType::kF32});
  }
  Value* Total(Value* of_tokens) { return b_.Add(ReduceSum{.x = of_tokens, .axes = {1}}); }
  Value* AtLeast(double least, Value* x) { return b_.Add(Max{.lhs = x, .rhs = blocks_.Number(least, x)}); }

  Value* Whole(int64_t number) {
    return b_.Add(Constant{.value = Tensor::FromValues(DType::kI64, {}, std::vector<int64_t>{number})});
  }
  // i64[L]: 1, 2, ….
  Value* Counts() {
    Value* length = b_.Add(DimsOf{.values = {length_}, .scalar = true});
    Value* limit = b_.Add(Add{.lhs = length, .rhs = Whole(1)});
    Value* counts = b_.Add(Range{.start = Whole(1), .limit = limit, .delta = Whole(1)});
    return b_.Add(Reshape{.x = counts, .shape = {length_}});
  }

  // The hidden state where i64[B, L] is largest, of the first such place.
  Value* AtLargest(Value* of_tokens) {
    Value* at = b_.Add(ArgMax{.x = of_tokens, .axis = 1});
    at = b_.Add(Reshape{.x = at, .shape = {batch_, Dim(1)}});
    return b_.Add(GatherNd{.x = x_, .indices = at, .batch_dims = 1}, "%pooled.token");
  }

  // The sum of all weighted by f32[B, L, 1], over f32[B, 1].
  Value* Mean(Value* weights, Value* divisor) {
    Value* sum = Total(b_.Add(Mul{.lhs = x_, .rhs = weights}));
    return b_.Add(Div{.lhs = sum, .rhs = divisor}, "%pooled.mean");
  }

  Value* Pooled(TokenPool pool) {
    switch (pool) {
      case TokenPool::kFirst:
        return AtLargest(mask_);
      case TokenPool::kLast:
        return AtLargest(b_.Add(Mul{.lhs = mask_, .rhs = Counts()}));
      case TokenPool::kMax: {
        Value* shown = b_.Add(Reshape{.x = mask_, .shape = {batch_, length_, Dim(1)}});
        shown = b_.Add(Cast{.x = shown, .to = DType::kBool});
        Value* lowest = blocks_.Number(-std::numeric_limits<double>::infinity(), x_);
        Value* rows = b_.Add(Where{.condition = shown, .x = x_, .y = lowest});
        return b_.Add(ReduceMax{.x = rows, .axes = {1}}, "%pooled.max");
      }
      case TokenPool::kMean:
      case TokenPool::kMeanSqrt: {
        Value* weights = Column(mask_);
        Value* count = AtLeast(1e-9, Total(weights));
        return Mean(weights, pool == TokenPool::kMean ? count : b_.Add(Sqrt{.x = count}));
      }
      case TokenPool::kWeightedMean: {
        Value* weights = Column(b_.Add(Mul{.lhs = mask_, .rhs = Counts()}));
        return Mean(weights, AtLeast(1e-9, Total(weights)));
      }
    }
    return nullptr;
  }

  Value* Dense(const DenseStep& step, Value* x, const std::string& index) {
    Value* y = blocks_.Linear(step.linear, x, step.in, step.out, "@embedding.", "dense" + index, "%dense" + index);
    return step.activation.has_value() ? blocks_.Act(*step.activation, y, "%dense.act" + index) : y;
  }

  Value* Unit(Value* x) {
    Value* squares = b_.Add(ReduceSum{.x = b_.Add(Mul{.lhs = x, .rhs = x}), .axes = {1}, .keep_dims = true});
    return b_.Add(Div{.lhs = x, .rhs = AtLeast(1e-12, b_.Add(Sqrt{.x = squares}))}, "%unit");
  }

  BlockGraph& blocks_;
  Builder& b_;
  const Dim batch_, length_;
  Value *x_ = nullptr, *mask_ = nullptr;
};

}  // namespace

Value* BuildEmbeddings(const EmbeddingSpec& spec, Value* x, Value* mask, BlockGraph* blocks) {
  return EmbeddingGraph(x, mask, blocks).Build(spec);
}

}  // namespace llmc::hf
