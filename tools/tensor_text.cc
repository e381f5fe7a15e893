#include "tools/tensor_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kSmallTensor = 16, kFirstElements = 6;

std::string ElementText(const Tensor& tensor, int64_t i) {
  if (tensor.dtype() == DType::kBool) return tensor.GetInt(i) != 0 ? "true" : "false";
  if (!IsFloat(tensor.dtype())) return absl::StrCat(tensor.GetInt(i));
  const double value = tensor.GetFloat(i);
  return std::isnan(value) ? "nan" : absl::StrFormat("%.7g", value);  // without its sign
}

Json ElementJson(const Tensor& tensor, int64_t i) {
  if (tensor.dtype() == DType::kBool) return tensor.GetInt(i) != 0;
  return IsFloat(tensor.dtype()) ? Json(tensor.GetFloat(i)) : Json(tensor.GetInt(i));
}

struct TensorSummary {
  int64_t least = -1, greatest = -1;  // where; -1: all are NaN
  int64_t nan = 0;
  double mean = std::numeric_limits<double>::quiet_NaN();
};

TensorSummary SummarizeTensor(const Tensor& tensor) {
  TensorSummary summary;
  double sum = 0;
  const bool is_float = IsFloat(tensor.dtype());
  const auto less = [&](int64_t a, int64_t b) {
    return is_float ? tensor.GetFloat(a) < tensor.GetFloat(b) : tensor.GetInt(a) < tensor.GetInt(b);
  };
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const double value = is_float ? tensor.GetFloat(i) : static_cast<double>(tensor.GetInt(i));
    if (std::isnan(value)) {
      ++summary.nan;
      continue;
    }
    sum += value;
    if (summary.least < 0 || less(i, summary.least)) summary.least = i;
    if (summary.greatest < 0 || less(summary.greatest, i)) summary.greatest = i;
  }
  if (tensor.size() > summary.nan) summary.mean = sum / static_cast<double>(tensor.size() - summary.nan);
  return summary;
}

}  // namespace

std::string ContentsText(const Tensor& tensor) {
  std::vector<std::string> first;
  const int64_t shown = tensor.size() <= kSmallTensor ? tensor.size() : kFirstElements;
  for (int64_t i = 0; i < shown; ++i) first.push_back(ElementText(tensor, i));
  const std::string list = absl::StrJoin(first, ", ");
  if (tensor.size() <= kSmallTensor) return list;
  const TensorSummary s = SummarizeTensor(tensor);
  const auto at = [&](int64_t i) { return i < 0 ? std::string("none") : ElementText(tensor, i); };
  return absl::StrCat("min ", at(s.least), "  max ", at(s.greatest), "  mean ", absl::StrFormat("%.7g", s.mean),
                      "  NaN ", s.nan, "  first ", list, ", …");
}

Json ContentsJson(const Tensor& tensor) {
  const int64_t shown = tensor.size() <= kSmallTensor ? tensor.size() : kFirstElements;
  Json first = Json::array();
  for (int64_t i = 0; i < shown; ++i) first.push_back(ElementJson(tensor, i));
  if (tensor.size() <= kSmallTensor) return {{"values", first}};
  const TensorSummary s = SummarizeTensor(tensor);
  const auto at = [&](int64_t i) { return i < 0 ? Json() : ElementJson(tensor, i); };
  return {{"min", at(s.least)}, {"max", at(s.greatest)}, {"mean", s.mean}, {"nan", s.nan}, {"first", first}};
}

}  // namespace llmc
