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

// An element of both tensors.
struct Pair {
  Number got, want;
  double difference = 0, size_of_want = 0, limit = 0;
};

Pair FloatPair(double got, double want, double rtol, double atol) {
  const double size = std::isfinite(want) ? std::abs(want) : 0;
  return {got, want, Difference(got, want), size, atol + rtol * size};
}

Pair IntegerPair(int64_t got, int64_t want) {
  const uint64_t difference = got > want ? static_cast<uint64_t>(got) - static_cast<uint64_t>(want)
                                         : static_cast<uint64_t>(want) - static_cast<uint64_t>(got);
  return {got, want, static_cast<double>(difference), std::abs(static_cast<double>(want)), 0};
}

}  // namespace

absl::StatusOr<Comparison> CompareTensors(const std::string& name, const Tensor& got, const Tensor& want, double rtol,
                                          double atol) {
  if (got.shape() != want.shape()) {
    return absl::InvalidArgumentError(absl::StrCat("output '", name, "' has shape ", ShapeToString(got.shape()),
                                                   ", expected ", ShapeToString(want.shape())));
  }
  Comparison result{.name = name, .elements = got.size(), .where = {}};
  const bool exact = !IsFloat(got.dtype()) && !IsFloat(want.dtype());
  double worst = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < got.size(); ++i) {
    const Pair pair =
        exact ? IntegerPair(got.GetInt(i), want.GetInt(i)) : FloatPair(got.GetFloat(i), want.GetFloat(i), rtol, atol);
    result.max_abs = std::max(result.max_abs, pair.difference);
    if (pair.size_of_want > 0) result.max_rel = std::max(result.max_rel, pair.difference / pair.size_of_want);
    if (!(pair.difference <= pair.limit)) ++result.past_tolerance;
    if (pair.difference - pair.limit > worst) {
      worst = pair.difference - pair.limit;
      result.where = Unflatten(i, got.shape());
      result.got = pair.got;
      result.want = pair.want;
    }
  }
  return result;
}

}  // namespace llmc
