#include "tools/compare.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

std::vector<int64_t> Unflatten(int64_t flat, const Shape& shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    index[i] = flat % shape[i];
    flat /= shape[i];
  }
  return index;
}

double Difference(double got, double want) {
  if (std::isnan(got) && std::isnan(want)) return 0;
  if (got == want) return 0;
  const double difference = std::abs(got - want);
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

}  // namespace

absl::StatusOr<Comparison> CompareTensors(const std::string& name, const Tensor& got, const Tensor& want, double rtol,
                                          double atol) {
  if (got.shape() != want.shape()) {
    return absl::InvalidArgumentError(absl::StrCat("output '", name, "' has shape ", ShapeToString(got.shape()),
                                                   ", expected ", ShapeToString(want.shape())));
  }
  Comparison result{.name = name, .elements = got.size(), .where = {}};
  double worst = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < got.size(); ++i) {
    const double g = got.GetFloat(i), w = want.GetFloat(i);
    const double difference = Difference(g, w);
    const double limit = std::isfinite(w) ? atol + rtol * std::abs(w) : atol;
    result.max_abs = std::max(result.max_abs, difference);
    if (w != 0 && std::isfinite(w)) result.max_rel = std::max(result.max_rel, difference / std::abs(w));
    if (difference > limit) ++result.past_tolerance;
    if (difference - limit > worst) {
      worst = difference - limit;
      result.where = Unflatten(i, got.shape());
      result.got = g;
      result.want = w;
    }
  }
  return result;
}

}  // namespace llmc
