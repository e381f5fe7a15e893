#include "quantize/scale_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/status_macros.h"
#include "ir/ops_internal.h"
#include "quantize/products.h"

namespace llmc {
namespace {

constexpr int64_t kSearchedRows = 256;  // of a weight, evenly spread
constexpr int kAlphas = 20;
constexpr int kClips = 10;             // ranges that are tried
constexpr double kClipStep = 0.05;     // of the whole range
constexpr float kLeastFactor = 1e-4f;  // as AWQ's code has it
constexpr double kSmoothAlpha = 0.5;
constexpr float kLeastMagnitude = 1e-5f;  // as SmoothQuant's code has it

// Some of the rows.
Tensor RowsOf(const Tensor& numbers) {
  const int64_t rows = numbers.shape()[0], k = numbers.shape()[1];
  if (rows <= kSearchedRows) return numbers;
  Tensor some(DType::kF32, {kSearchedRows, k});
  for (int64_t r = 0; r < kSearchedRows; ++r) {
    std::copy_n(numbers.data<float>() + r * rows / kSearchedRows * k, k, some.mutable_data<float>() + r * k);
  }
  return some;
}

// The largest of the channels that share a factor.
template <class X>
std::vector<double> Shared(const std::vector<X>& of_channels, const ChannelSharing& sharing) {
  std::vector<double> largest(static_cast<size_t>(sharing.count), 0);
  for (size_t c = 0; c < of_channels.size(); ++c) {
    double& own = largest[static_cast<size_t>(sharing.index[c])];
    own = std::max(own, static_cast<double>(of_channels[c]));
  }
  return largest;
}

std::vector<float> Spread(const std::vector<double>& factors, const ChannelSharing& sharing) {
  std::vector<float> of_channels;
  for (const int64_t i : sharing.index) of_channels.push_back(static_cast<float>(factors[static_cast<size_t>(i)]));
  return of_channels;
}

// |x (rounded(W s) / s - W)^T|^2.
absl::StatusOr<double> ErrorWith(const std::vector<float>& factors, const ScaledReader& reader,
                                 const InputStats& stats) {
  const Tensor scaled = ScaledColumns(reader.numbers, factors);
  ASSIGN_OR_RETURN(const Tensor encoded, Quantized(scaled, reader.encoding, DType::kF32, reader.options));
  Tensor difference = Decoded(encoded, DType::kF32);
  auto* d = difference.mutable_data<float>();
  const auto* w = reader.numbers.data<float>();
  for (int64_t i = 0; i < difference.size(); ++i) d[i] = d[i] / factors[static_cast<size_t>(i % stats.k)] - w[i];
  return stats.SquaredOutputs(difference);
}

}  // namespace

Tensor ScaledColumns(const Tensor& numbers, const std::vector<float>& factors) {
  Tensor scaled(DType::kF32, numbers.shape());
  const int64_t k = numbers.shape()[1];
  const auto* from = numbers.data<float>();
  auto* to = scaled.mutable_data<float>();
  for (int64_t i = 0; i < numbers.size(); ++i) to[i] = from[i] * factors[static_cast<size_t>(i % k)];
  return scaled;
}

absl::StatusOr<std::vector<float>> AwqFactors(const InputStats& stats, const std::vector<ScaledReader>& readers,
                                              const ChannelSharing& sharing) {
  std::vector<ScaledReader> some = readers;
  for (ScaledReader& reader : some) reader.numbers = RowsOf(reader.numbers);
  std::vector<double> mean = Shared(stats.sum_abs, sharing);
  for (double& own : mean) own /= static_cast<double>(std::max<int64_t>(1, stats.tokens));
  std::vector<float> best;
  double least = 0;
  for (int i = 0; i < kAlphas; ++i) {
    const double alpha = static_cast<double>(i) / kAlphas;
    std::vector<double> factors;
    for (const double own : mean) factors.push_back(std::max<double>(std::pow(own, alpha), kLeastFactor));
    // Around 1, so that nothing else of the model changes its range.
    const auto [low, high] = std::minmax_element(factors.begin(), factors.end());
    const double middle = std::sqrt(*low * *high);
    for (double& factor : factors) factor /= middle;
    const std::vector<float> of_channels = Spread(factors, sharing);
    double error = 0;
    for (const ScaledReader& reader : some) {
      ASSIGN_OR_RETURN(const double own, ErrorWith(of_channels, reader, stats));
      error += own;
    }
    if (!best.empty() && error >= least) continue;
    best = of_channels;
    least = error;
  }
  return best;
}

std::vector<float> SmoothFactors(const InputStats& stats, const std::vector<ScaledReader>& readers,
                                 const ChannelSharing& sharing) {
  std::vector<float> of_weights(static_cast<size_t>(stats.k), 0);
  for (const ScaledReader& reader : readers) {
    const auto* w = reader.numbers.data<float>();
    for (int64_t i = 0; i < reader.numbers.size(); ++i) {
      float& own = of_weights[static_cast<size_t>(i % stats.k)];
      own = std::max(own, std::abs(w[i]));
    }
  }
  const std::vector<double> x = Shared(stats.amax, sharing), w = Shared(of_weights, sharing);
  std::vector<double> factors;
  for (size_t i = 0; i < x.size(); ++i) {
    const double of_x = std::max<double>(x[i], kLeastMagnitude), of_w = std::max<double>(w[i], kLeastMagnitude);
    factors.push_back(
        std::max<double>(std::pow(of_x, kSmoothAlpha) / std::pow(of_w, 1 - kSmoothAlpha), kLeastMagnitude));
  }
  return Spread(factors, sharing);
}

absl::StatusOr<QuantizedParts> ClippedParts(const ScaledReader& reader, const InputStats& stats) {
  const Encoding& e = *reader.encoding;
  ASSIGN_OR_RETURN(QuantizedParts parts, PartsFor(reader.numbers, e, reader.options));
  if (e.scale->per != Granularity::kGroup || !e.k_is_last) return parts;
  const int64_t rows = reader.numbers.shape()[0], k = stats.k, groups = (k + e.group - 1) / e.group;
  const Quantizer quantizer(e, reader.options, e.format->outer_scale ? parts.outer.data<float>()[0] : 1);
  const auto* w = reader.numbers.data<float>();
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t begin = g * e.group, n = std::min(k, begin + e.group) - begin;
    std::vector<float> gram(static_cast<size_t>(n * n)), difference(static_cast<size_t>(rows * n));
    for (int64_t i = 0; i < n; ++i) std::copy_n(stats.gram.data() + (begin + i) * k + begin, n, gram.data() + i * n);
    std::vector<double> least(static_cast<size_t>(rows), 0);
    std::vector<Quantizer::Grid> grids(static_cast<size_t>(rows)), best(grids);
    for (int clip = 0; clip < kClips; ++clip) {
      const auto part = static_cast<float>(1 - clip * kClipStep);
      ops::ParallelFor(rows, 40.0 * static_cast<double>(rows * n), [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; ++r) {
          const float* const own = w + r * k + begin;
          const auto [min, max] = std::minmax_element(own, own + n);
          grids[r] = quantizer.GridFor(*min * part, *max * part);
          for (int64_t c = 0; c < n; ++c) difference[r * n + c] = quantizer.Nearest(own[c], grids[r]) - own[c];
        }
      });
      const std::vector<double> errors = SquaredOutputs(difference.data(), rows, n, gram.data());
      for (int64_t r = 0; r < rows; ++r) {
        if (clip > 0 && errors[r] >= least[r]) continue;
        least[r] = errors[r];
        best[r] = grids[r];
      }
    }
    for (int64_t r = 0; r < rows; ++r) SetGrid(best[r], e, r * groups + g, &parts);
  }
  return parts;
}

absl::StatusOr<double> OutputError(const Tensor& decoded, const Tensor& numbers, const InputStats& stats) {
  Tensor difference(DType::kF32, numbers.shape());
  const ops::Elements<float> is(decoded), was(numbers);
  for (int64_t i = 0; i < numbers.size(); ++i) difference.mutable_data<float>()[i] = is[i] - was[i];
  ASSIGN_OR_RETURN(const Tensor exact, ConvertedTensor(numbers, DType::kF32));
  ASSIGN_OR_RETURN(const double error, stats.SquaredOutputs(difference));
  ASSIGN_OR_RETURN(const double all, stats.SquaredOutputs(exact));
  return all == 0 ? 0 : std::sqrt(error / all);
}

}  // namespace llmc
