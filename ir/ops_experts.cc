// The ops of mixtures of experts: route and expert_linear.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include "base/status_macros.h"
#include "ir/encoding.h"
#include "ir/ops_internal.h"
#include "ir/ops_lm.h"

namespace llmc {
namespace {

using ops::Elements;
using ops::Fail;
using ops::Result;
using ops::Str;
using ops::TypeOf;

constexpr absl::string_view kScores[] = {"softmax", "sigmoid", "chosen", "chosen_sigmoid"};

void SoftmaxOf(absl::Span<float> scores) {
  const float top = *std::max_element(scores.begin(), scores.end());
  float sum = 0;
  for (float& score : scores) sum += score = std::exp(score - top);
  for (float& score : scores) score /= sum;
}

float SigmoidOf(float x) { return 1 / (1 + std::exp(-x)); }

// The indices of the `count` largest of `scores`, the best first, of equal ones the first. NaN is never chosen before a
// number.
std::vector<int32_t> Best(absl::Span<const float> scores, int64_t count) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](int32_t i) {
    return std::isnan(scores[i]) ? -std::numeric_limits<float>::infinity() : scores[i];
  };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(a) > key(b); });
  order.resize(count);
  return order;
}

// -inf for the experts of groups that are not among the best.
void DropGroups(const Route& op, absl::Span<float> scores) {
  const int64_t size = static_cast<int64_t>(scores.size()) / op.groups;
  std::vector<float> good;
  for (int64_t g = 0; g < op.groups; ++g) {
    const absl::Span<float> group = scores.subspan(g * size, size);
    float sum = 0;
    for (const int32_t i : Best(group, op.group_best)) sum += group[i];
    good.push_back(sum);
  }
  std::vector<bool> keeps(op.groups);
  for (const int32_t g : Best(good, op.top_groups)) keeps[g] = true;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!keeps[i / size]) scores[i] = -std::numeric_limits<float>::infinity();
  }
}

// The matrices of those experts that are chosen, in f32.
class ExpertMatrices {
 public:
  ExpertMatrices(const Tensor& weight, const std::vector<int64_t>& chosen) : size_(weight.size() / weight.shape()[0]) {
    if (weight.encoding() == nullptr) {
      all_.emplace(weight);
      return;
    }
    for (const int64_t expert : chosen) {
      if (!decoded_.contains(expert)) decoded_.emplace(expert, Decoded(MatrixOf(weight, expert), DType::kF32));
    }
  }
  const float* Of(int64_t expert) const {
    return all_.has_value() ? all_->data() + expert * size_ : decoded_.at(expert).data<float>();
  }

 private:
  int64_t size_;
  std::optional<Elements<float>> all_;
  std::map<int64_t, Tensor> decoded_;
};

}  // namespace

absl::StatusOr<Types> Route::Infer() const {
  const TensorType& type = TypeOf(logits);
  const bool fits = IsFloat(type.dtype) && type.rank() == 2 && type.shape[1].is_constant() && type.shape[1].value() > 0;
  if (!fits) return Fail("route_c1: logits ", Str(logits), " are not floats [T, experts]");
  const int64_t experts = type.shape[1].value();
  if (bias != nullptr && TypeOf(bias) != TensorType{DType::kF32, {Dim(experts)}}) {
    return Fail("route_c2: bias ", Str(bias), " is not f32[", experts, "]");
  }
  if (std::find(std::begin(kScores), std::end(kScores), score) == std::end(kScores)) {
    return Fail("route_c3: score \"", score, "\" is not softmax, sigmoid, chosen or chosen_sigmoid");
  }
  const bool groups_fit = groups >= 1 && experts % groups == 0 && top_groups >= 1 && top_groups <= groups &&
                          group_best >= 1 && group_best <= experts / groups;
  if (!groups_fit) {
    return Fail("route_c4: ", experts, " experts are not ", groups, " groups, of which ", top_groups,
                " are chosen by their ", group_best, " best");
  }
  if (top_k < 1 || top_k > experts / groups * top_groups) {
    return Fail("route_c5: top_k ", top_k, " is not from 1 to ", experts / groups * top_groups);
  }
  const Dims shape = {type.shape[0], Dim(top_k)};
  return Types{{DType::kI32, shape}, {DType::kF32, shape}};
}

absl::StatusOr<Tensors> Route::Eval(const EvalArgs& args) const {
  const int64_t tokens = args[0].shape()[0], experts = args[0].shape()[1];
  const Elements<float> from(args[0]);
  const float* const added = args.has(1) ? args[1].data<float>() : nullptr;
  ASSIGN_OR_RETURN(Tensor chosen, ops::NewTensor("route", DType::kI32, {tokens, top_k}));
  ASSIGN_OR_RETURN(Tensor weights, ops::NewTensor("route", DType::kF32, {tokens, top_k}));
  std::vector<float> scores(experts), choice;
  for (int64_t t = 0; t < tokens; ++t) {
    std::copy_n(from.data() + t * experts, experts, scores.begin());
    if (score == "softmax") SoftmaxOf(absl::MakeSpan(scores));
    if (score == "sigmoid") std::transform(scores.begin(), scores.end(), scores.begin(), SigmoidOf);
    choice = scores;
    for (int64_t e = 0; added != nullptr && e < experts; ++e) choice[e] += added[e];
    if (groups > 1) DropGroups(*this, absl::MakeSpan(choice));
    const std::vector<int32_t> best = Best(choice, top_k);
    std::vector<float> own;
    for (const int32_t e : best) own.push_back(scores[e]);
    if (score == "chosen") SoftmaxOf(absl::MakeSpan(own));
    if (score == "chosen_sigmoid") std::transform(own.begin(), own.end(), own.begin(), SigmoidOf);
    const float sum = std::accumulate(own.begin(), own.end(), 0.0f);
    for (int64_t j = 0; j < top_k; ++j) {
      chosen.mutable_data<int32_t>()[t * top_k + j] = best[j];
      weights.mutable_data<float>()[t * top_k + j] = (normalize ? own[j] / sum : own[j]) * static_cast<float>(scale);
    }
  }
  return Tensors{std::move(chosen), std::move(weights)};
}

absl::StatusOr<Types> ExpertLinear::Infer(SizeCollector& sizes) const {
  const TensorType &a = TypeOf(x), &w = TypeOf(weight), &e = TypeOf(experts);
  if (e.dtype != DType::kI32 || e.rank() != 2)
    return Fail("expert_linear_c1: experts ", Str(experts), " are not i32[T, K]");
  if (!IsFloat(w.dtype) || w.rank() != 3) {
    return Fail("expert_linear_c2: weight ", Str(weight), " is not floats [experts, in, out]");
  }
  if (a.encoding != nullptr || (bias != nullptr && TypeOf(bias).encoding != nullptr)) {
    return Fail("expert_linear_c5: of the operands only the weight may be encoded");
  }
  const bool fits = a.dtype == w.dtype && (a.rank() == 2 || a.rank() == 3) && sizes.Same(a.shape[0], e.shape[0]) &&
                    (a.rank() == 2 || sizes.Same(a.shape[1], e.shape[1])) &&
                    sizes.Same(a.shape.back(), w.shape[transpose_weight ? 2 : 1]);
  if (!fits) {
    return Fail("expert_linear_c3: x ", Str(x), " is not [T, in] or [T, K, in] for weight ", Str(weight),
                " and experts ", Str(experts));
  }
  const Dim& out_size = w.shape[transpose_weight ? 1 : 2];
  const bool bias_fits =
      bias == nullptr || (TypeOf(bias).dtype == w.dtype && TypeOf(bias).rank() == 2 &&
                          sizes.Same(TypeOf(bias).shape[0], w.shape[0]) && sizes.Same(TypeOf(bias).shape[1], out_size));
  if (!bias_fits) {
    return Fail("expert_linear_c4: bias ", Str(bias), " is not [experts, out] for weight ", Str(weight));
  }
  return Types{{a.dtype, {e.shape[0], e.shape[1], out_size}}};
}

OpCost ExpertLinear::Cost(const Types& results) const {
  OpCost cost = ops::SumsOfProducts(results[0], Size(TypeOf(weight).shape[transpose_weight ? 2 : 1]));
  // At most one expert for each of its products, and at most all.
  const Size chosen = ElementsOf(TypeOf(experts).shape);
  const Size all = Size(TypeOf(weight).shape[0]);
  const TensorType& w = TypeOf(weight);
  const Size one = w.encoding != nullptr ? EncodedBytes(*w.encoding, Dims{Dim(1), w.shape[1], w.shape[2]})
                                         : Size(w.shape[1]) * Size(w.shape[2]) * (DTypeBits(w.dtype) / 8);
  cost.operand_bytes = {std::nullopt, ops::Smaller(chosen, all) * one};
  return cost;
}

absl::StatusOr<Tensors> ExpertLinear::Eval(const EvalArgs& args) const {
  const Tensor &a = args[0], &w = args[1];
  const int64_t tokens = args[2].shape()[0], chosen = args[2].shape()[1];
  const int64_t count = w.shape()[0], in = a.shape().back(), out_size = w.shape()[transpose_weight ? 1 : 2];
  const std::vector<int64_t> of = args[2].ToInts();
  for (const int64_t e : of) {
    if (e < 0 || e >= count) return Fail("expert_linear: expert ", e, " is not one of ", count);
  }
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("expert_linear", a.dtype(), {tokens, chosen, out_size}));
  const Elements<float> rows(a);
  const ExpertMatrices matrices(w, of);
  const std::optional<Elements<float>> biases =
      args.has(3) ? std::optional<Elements<float>>(std::in_place, args[3]) : std::nullopt;
  Result<float> result(std::move(out));
  const int64_t x_rows = a.shape().size() == 2 ? 1 : chosen;
  const double work = 2.0 * static_cast<double>(of.size()) * static_cast<double>(in * out_size);
  ops::ParallelFor(static_cast<int64_t>(of.size()), work, [&](int64_t begin, int64_t end) {
    std::vector<const float*> weight_rows;
    for (int64_t r = begin; r < end; ++r) {
      const float* x_row = rows.data() + (x_rows == 1 ? r / chosen : r) * in;
      const float* matrix = matrices.Of(of[r]);
      float* to = result.data() + r * out_size;
      if (transpose_weight) {
        weight_rows.clear();
        for (int64_t n = 0; n < out_size; ++n) weight_rows.push_back(matrix + n * in);
        ops::DotRows(x_row, weight_rows, in, to);
      } else {
        std::fill_n(to, out_size, 0.0f);
        for (int64_t k = 0; k < in; ++k) {
          for (int64_t n = 0; n < out_size; ++n) to[n] += x_row[k] * matrix[k * out_size + n];
        }
      }
      for (int64_t n = 0; biases.has_value() && n < out_size; ++n) to[n] += (*biases)[of[r] * out_size + n];
    }
  });
  return Tensors{result.Finish()};
}

}  // namespace llmc
