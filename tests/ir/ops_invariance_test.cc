// What a step computes for a token does not depend, in any bit, on what else is in the step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "ir/op.h"
#include "ir/ops.h"
#include "ir/state_type.h"

namespace llmc {
namespace {

Tensor Random(DType dtype, Shape shape, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Tensor t(dtype, std::move(shape));
  for (int64_t i = 0; i < t.size(); ++i) t.SetFloat(i, normal(random));
  return t;
}

// Rows [begin, end) of the first axis.
Tensor Rows(const Tensor& x, int64_t begin, int64_t end) {
  Shape shape = x.shape();
  const int64_t row = x.bytes() / shape[0];
  shape[0] = end - begin;
  Tensor out(x.dtype(), shape);
  std::copy_n(x.raw() + begin * row, (end - begin) * row, out.mutable_raw());
  return out;
}

template <class Op>
Tensor Eval(const Op& op, const std::vector<Tensor>& operands) {
  std::vector<const Tensor*> in;
  for (const Tensor& t : operands) in.push_back(&t);
  absl::StatusOr<Tensors> out = op.Eval(EvalArgs{.in = in});
  EXPECT_TRUE(out.ok()) << out.status();
  return out.ok() ? (*out)[0] : Tensor();
}

TEST(BatchInvariance, MatMul) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (bool transpose : {false, true}) {
      for (auto [n, k] : {std::pair<int64_t, int64_t>{67, 45}, {512, 300}, {8, 1}, {3, 8}}) {
        const Tensor a = Random(dtype, {211, k}, 1);
        const Tensor b = Random(dtype, transpose ? Shape{n, k} : Shape{k, n}, 2);
        const MatMul op{.transpose_rhs = transpose};
        const Tensor all = Eval(op, {a, b});
        for (auto [begin, end] :
             {std::pair<int64_t, int64_t>{0, 1}, {7, 9}, {96, 99}, {100, 211}, {210, 211}, {3, 8}}) {
          EXPECT_EQ(Eval(op, {Rows(a, begin, end), b}), Rows(all, begin, end)) << transpose << " " << n << " " << begin;
        }
      }
    }
  }
}

// A column does not depend on the others either: splitting a product over columns changes nothing.
TEST(BatchInvariance, MatMulColumns) {
  const Tensor a = Random(DType::kF32, {5, 77}, 1), b = Random(DType::kF32, {131, 77}, 2);
  const MatMul op{.transpose_rhs = true};
  const Tensor all = Eval(op, {a, b});
  for (int64_t column = 0; column < 131; ++column) {
    const Tensor one = Eval(op, {a, Rows(b, column, column + 1)});
    for (int64_t r = 0; r < 5; ++r) ASSERT_EQ(one.data<float>()[r], all.data<float>()[r * 131 + column]);
  }
}

// Eight sequences in one step, and each by itself in other pages, in chunks or token by token.
TEST(BatchInvariance, PagedAttention) {
  constexpr int64_t kSequences = 8, kLength = 37, kPage = 16, kHeads = 2, kDim = 12, kQueryHeads = 4;
  const int64_t tokens = kSequences * kLength;
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [window, chunk] : {std::pair<int64_t, int64_t>{0, 0}, {5, 0}, {0, 7}}) {
      const Tensor q = Random(dtype, {tokens, kQueryHeads * kDim}, 1);
      const Tensor k = Random(dtype, {tokens, kHeads * kDim}, 2), v = Random(dtype, {tokens, kHeads * kDim}, 3);
      const auto ints = [](Shape shape, const std::vector<int64_t>& values) {
        return Tensor::FromValues(DType::kI32, std::move(shape), values);
      };
      const TensorType head = {dtype, {kHeads, kDim}};
      const StateType type = StateType::Paged(3 * kSequences + 1, kPage, {{"k", head}, {"v", head}});
      Value state{.name = "@kv", .type = type.Memory(), .state = std::make_shared<StateType>(type)};
      Tensor kv(DType::kU8, {3 * kSequences + 1, type.RecordBytes()});
      const PagedAttention op{.kv = &state, .scale = 0.3, .window = window, .chunk = chunk};
      const auto write = [&](int64_t begin, int64_t end, const std::vector<int64_t>& slots) {
        const Tensor keys = Rows(k, begin, end), values = Rows(v, begin, end), at = ints({end - begin}, slots);
        const std::vector<const Tensor*> in = {&kv, &keys, &values, &at};
        ASSERT_TRUE(KvWrite{.kv = &state}.Eval(EvalArgs{.in = in, .state = &kv}).ok());
      };
      std::vector<int64_t> slots, pages, lens(kSequences, kLength), starts = {0};
      for (int64_t s = 0; s < kSequences; ++s) {
        const int64_t own[3] = {3 * s, 3 * ((s + 5) % kSequences) + 1, 3 * s + 2};
        pages.insert(pages.end(), own, own + 3);
        for (int64_t i = 0; i < kLength; ++i) slots.push_back(own[i / kPage] * kPage + i % kPage);
        starts.push_back((s + 1) * kLength);
      }
      write(0, tokens, slots);
      const Tensor all =
          Eval(op, {q, kv, ints({kSequences, 3}, pages), ints({kSequences}, lens), ints({kSequences + 1}, starts)});
      for (int64_t s : {0, 3, 7}) {
        kv = Tensor(DType::kU8, kv.shape());
        slots.clear();
        for (int64_t i = 0; i < kLength; ++i) slots.push_back((2 - i / kPage) * kPage + i % kPage);
        write(s * kLength, (s + 1) * kLength, slots);
        for (auto [begin, end] : {std::pair<int64_t, int64_t>{0, 37}, {0, 1}, {36, 37}, {10, 21}}) {
          const Tensor one = Eval(op, {Rows(q, s * kLength + begin, s * kLength + end), kv, ints({1, 3}, {2, 1, 0}),
                                       ints({1}, {end}), ints({2}, {0, end - begin})});
          EXPECT_EQ(one, Rows(all, s * kLength + begin, s * kLength + end)) << s << " " << begin;
        }
      }
    }
  }
}

// Conversions of whole tensors give what conversions of single values give, also past the last vector.
TEST(Cast, InBulkIsAsOfSingleValues) {
  Tensor x = Random(DType::kF32, {4099}, 1);
  const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 65519.0f, 65520.0f, 3.4e38f, 6e-8f, 2.9e-8f, 1e-40f};
  std::copy(std::begin(special), std::end(special), x.mutable_data<float>());
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2, DType::kF64}) {
    Tensor want(dtype, x.shape());
    for (int64_t i = 0; i < x.size(); ++i) want.SetFloat(i, x.data<float>()[i]);
    const Tensor got = Eval(Cast{.to = dtype}, {x});
    const Tensor back = Eval(Cast{.to = DType::kF32}, {got});
    for (int64_t i = 0; i < x.size(); ++i) {
      const double a = got.GetFloat(i), b = want.GetFloat(i), c = back.GetFloat(i);
      ASSERT_TRUE(a == b || (a != a && b != b)) << DTypeName(dtype) << " " << x.GetFloat(i) << " " << a << " " << b;
      ASSERT_TRUE(a == c || (a != a && c != c)) << DTypeName(dtype) << " " << a << " " << c;
    }
  }
}

// Labels of errors that text cannot raise, since its parser finds them first.
TEST(Builder, RefusesDimsThatAreNoSizes) {
  Model model;
  Step* step = model.steps.emplace_back(std::make_unique<Step>()).get();
  Value* x = model.AddParam(step, "%x", {DType::kF32, {Dim(4)}});
  Builder reshape(&model, &step->block), dims(&model, &step->block);
  reshape.Add(Reshape{.x = x, .shape = {Dim(-4)}});
  EXPECT_THAT(std::string(reshape.status().message()), ::testing::HasSubstr("reshape: reshape_c1: "));
  dims.Add(DimsOf{.values = {Dim::Unknown()}});
  EXPECT_THAT(std::string(dims.status().message()), ::testing::HasSubstr("dims: dims_c2: "));
}

}  // namespace
}  // namespace llmc
