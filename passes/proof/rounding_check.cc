#include "passes/proof/rounding_check.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/text.h"
#include "passes/driver/ledger.h"
#include "passes/driver/numerics.h"
#include "passes/passes.h"
#include "passes/pipeline.h"

namespace llmc {
namespace {

Tensor Converted(const Tensor& tensor, DType dtype) {
  if (tensor.dtype() == dtype || !IsFloat(tensor.dtype())) return tensor;
  Tensor converted(dtype, tensor.shape());
  for (int64_t i = 0; i < tensor.size(); ++i) converted.SetFloat(i, tensor.GetFloat(i));
  return converted;
}

// What a model gives where all that it computes in floats has that type.
absl::StatusOr<NamedTensors> EvaluateIn(DType dtype, std::unique_ptr<Model> model, const NamedTensors& inputs) {
  const PipelineOptions options{.dtype = dtype};
  Ledger ledger;
  RETURN_IF_ERROR(Retype(model.get(), {.options = &options, .ledger = &ledger}));
  NamedTensors exact;
  for (const auto& step : model->steps) {
    for (const Value* param : step->params) {
      const std::string name = absl::StrCat(step->name, "/", param->name.substr(1));
      if (const auto input = inputs.find(name); input != inputs.end()) {
        exact[name] = Converted(input->second, param->type.dtype);
      }
    }
  }
  return EvaluateSmall(*model, exact);
}

// The largest finite number of the row (the last axis) that element `i` is in.
double LargestOfRow(const Tensor& tensor, int64_t i) {
  const int64_t row = tensor.rank() == 0 ? 1 : std::max<int64_t>(1, tensor.shape().back());
  double largest = 0;
  for (int64_t j = i / row * row; j < i / row * row + row; ++j) {
    if (std::isfinite(tensor.GetFloat(j))) largest = std::max(largest, std::abs(tensor.GetFloat(j)));
  }
  return largest;
}

// How far results lie from exact ones, relative to the largest of their row.
struct Distances {
  double was = 0, is = 0;
  std::string farthest;  // the result that `is` is of
};

// Integers are equal. What 16 bits could not hold before is not measured.
absl::Status Measure(const std::string& name, const Tensor& exact, const Tensor& was, const Tensor& is,
                     Distances* distances) {
  if (!IsFloat(is.dtype())) return CompareResults({{name, was}}, {{name, is}});
  double largest = 0;
  for (int64_t i = 0; i < exact.size(); ++i) {
    if (i == 0 || exact.rank() == 0 || i % std::max<int64_t>(1, exact.shape().back()) == 0) {
      largest = LargestOfRow(exact, i);
    }
    const double wanted = exact.GetFloat(i);
    if (!std::isfinite(wanted) || !std::isfinite(was.GetFloat(i))) continue;
    const auto distance = [&](double got) {
      if (got == wanted) return 0.0;
      return std::isfinite(got) ? std::abs(got - wanted) / largest : HUGE_VAL;
    };
    distances->was = std::max(distances->was, distance(was.GetFloat(i)));
    if (const double now = distance(is.GetFloat(i)); now > distances->is) {
      distances->is = now;
      distances->farthest = name;
    }
  }
  return absl::OkStatus();
}

}  // namespace

RoundingCheck::RoundingCheck(const Model& before) : text_(PrintModel(before)), name_(before.name), data_(before.data) {}

absl::StatusOr<RoundingCheck::Exact> RoundingCheck::EvaluateBoth(const Model& after, const NamedTensors& inputs,
                                                                 DType dtype) const {
  Exact exact;
  for (const bool is_after : {false, true}) {
    ASSIGN_OR_RETURN(std::unique_ptr<Model> copy, ParseModel(is_after ? PrintModel(after) : text_, name_));
    copy->data = is_after ? after.data : data_;
    ASSIGN_OR_RETURN(NamedTensors results, EvaluateIn(dtype, std::move(copy), inputs));
    (is_after ? exact.after : exact.before) = std::move(results);
  }
  return exact;
}

absl::Status RoundingCheck::Compare(const Model& after, const NamedTensors& inputs, const NamedTensors& was,
                                    const NamedTensors& is) const {
  DType dtype = DType::kF64;
  absl::StatusOr<Exact> exact = EvaluateBoth(after, inputs, dtype);
  if (!exact.ok()) exact = EvaluateBoth(after, inputs, dtype = DType::kF32);
  if (!exact.ok()) return exact.status();
  // Constants and attributes of either model may be f32.
  RETURN_IF_ERROR(CompareResults(exact->before, exact->after, DType::kF32));
  Distances distances;
  for (const auto& [name, tensor] : exact->before) {
    const auto before = was.find(name), now = is.find(name);
    if (before == was.end() || now == is.end()) return absl::InternalError(absl::StrCat(name, " is gone"));
    RETURN_IF_ERROR(Measure(name, tensor, before->second, now->second, &distances));
  }
  if (distances.is <= kMostTimes * distances.was) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(distances.farthest, " lies ", distances.is, " from what ", DTypeName(dtype),
                                          " gives, relative to the largest of its row; before it was ", distances.was));
}

}  // namespace llmc
