#include "passes/paginate/rotate_tokens.h"

#include "ir/ops.h"

namespace llmc {

Value* RotateTokens(Builder* builder, Value* x, Value* cos, Value* sin, bool interleaved) {
  const Dims shape = x->type.shape;
  const Dim tokens = shape[0], heads = shape[1], half = cos->type.shape[1], rotary = half + half;
  const auto part = [&](Value* value, int64_t axis, const Dim& start, const Dim& end) {
    return builder->Add(Slice{.x = value, .axis = axis, .start = {start}, .end = {end}});
  };
  const auto product = [&](Value* lhs, Value* rhs) { return builder->Add(Mul{.lhs = lhs, .rhs = rhs}); };
  Value* turned = rotary == shape[2] ? x : part(x, 2, Dim(0), rotary);
  Value *first = nullptr, *second = nullptr;
  if (interleaved) {
    Value* pairs = builder->Add(Reshape{.x = turned, .shape = {tokens, heads, half, Dim(2)}});
    if (pairs == nullptr) return nullptr;
    first = part(pairs, 3, Dim(0), Dim(1));
    second = part(pairs, 3, Dim(1), Dim(2));
  } else {
    first = part(turned, 2, Dim(0), half);
    second = part(turned, 2, half, rotary);
  }
  const Dims table = interleaved ? Dims{tokens, Dim(1), half, Dim(1)} : Dims{tokens, Dim(1), half};
  Value* c = builder->Add(Reshape{.x = cos, .shape = table});
  Value* s = builder->Add(Reshape{.x = sin, .shape = table});
  Value* one = builder->Add(Sub{.lhs = product(first, c), .rhs = product(second, s)});
  Value* two = builder->Add(Add{.lhs = product(second, c), .rhs = product(first, s)});
  std::vector<Value*> parts = {one, two};
  if (interleaved) {
    Value* pairs = builder->Add(Concat{.parts = parts, .axis = 3});
    parts = {builder->Add(Reshape{.x = pairs, .shape = {tokens, heads, rotary}})};
  }
  if (!(rotary == shape[2])) parts.push_back(part(x, 2, rotary, shape[2]));
  return parts.size() == 1 ? parts[0] : builder->Add(Concat{.parts = parts, .axis = 2});
}

}  // namespace llmc
