#include "quantize/scale_search.h"

#include <algorithm>
#include <cmath>
#include <functional>
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
constexpr int64_t kClippedRows = 64;   // at a time
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

// f(r, row) for rows of `columns` numbers, by all cores.
void ForRows(Tensor* matrix, const std::function<void(int64_t, float*)>& f) {
  const int64_t columns = matrix->shape()[1];
  auto* const numbers = matrix->mutable_data<float>();
  ops::ParallelFor(matrix->shape()[0], 2.0 * static_cast<double>(matrix->size()), [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) f(r, numbers + r * columns);
  });
}

// |x (rounded(W s) / s - W)^T|^2 with the factors s.
absl::StatusOr<double> ErrorWith(const std::vector<float>& factors, const ScaledReader& reader,
                                 GramProducts* products) {
  const int64_t k = reader.numbers.shape()[1];
  ASSIGN_OR_RETURN(const Tensor encoded,
                   Quantized(ScaledColumns(reader.numbers, factors), reader.encoding, DType::kF32, reader.options));
  Tensor difference = Decoded(encoded, DType::kF32);
  ForRows(&difference, [&](int64_t r, float* row) {
    const float* const w = reader.numbers.data<float>() + r * k;
    for (int64_t c = 0; c < k; ++c) row[c] = row[c] / factors[static_cast<size_t>(c)] - w[c];
  });
  ASSIGN_OR_RETURN(const std::vector<double> of_rows, products->SquaredOutputs(difference));
  return std::accumulate(of_rows.begin(), of_rows.end(), 0.0);
}

// Of one group of `rows` rows, n numbers that begin k after each other: the grid of each with the least error.
void FindClips(const float* w, int64_t rows, int64_t n, int64_t k, const float* gram, const Quantizer& quantizer,
               Quantizer::Grid* best) {
  std::vector<float> difference(static_cast<size_t>(rows * n));
  std::vector<double> least(static_cast<size_t>(rows), 0);
  std::vector<Quantizer::Grid> grids(static_cast<size_t>(rows));
  std::vector<std::pair<float, float>> ranges;
  for (int64_t r = 0; r < rows; ++r) {
    const auto [min, max] = std::minmax_element(w + r * k, w + r * k + n);
    ranges.emplace_back(*min, *max);
  }
  for (int clip = 0; clip < kClips; ++clip) {
    const auto part = static_cast<float>(1 - clip * kClipStep);
    for (int64_t r = 0; r < rows; ++r) {
      const float* const own = w + r * k;
      grids[r] = quantizer.GridFor(ranges[r].first * part, ranges[r].second * part);
      for (int64_t c = 0; c < n; ++c) difference[r * n + c] = quantizer.Nearest(own[c], grids[r]) - own[c];
    }
    const std::vector<double> errors = SquaredOutputs(difference.data(), rows, n, gram);
    for (int64_t r = 0; r < rows; ++r) {
      if (clip > 0 && errors[r] >= least[r]) continue;
      least[r] = errors[r];
      best[r] = grids[r];
    }
  }
}

// Of each channel the mean over all rows of |w| / the largest of its group, as AWQ's code has it.
std::vector<double> MeanInGroups(const std::vector<ScaledReader>& readers, int64_t k) {
  std::vector<double> mean(static_cast<size_t>(k), 0);
  int64_t rows = 0;
  for (const ScaledReader& reader : readers) {
    const bool has_groups = reader.encoding->scale->per == Granularity::kGroup && reader.encoding->k_is_last;
    const int64_t group = has_groups ? reader.encoding->group : k;
    rows += reader.numbers.shape()[0];
    for (int64_t r = 0; r < reader.numbers.shape()[0]; ++r) {
      const float* const w = reader.numbers.data<float>() + r * k;
      for (int64_t begin = 0; begin < k; begin += group) {
        const int64_t end = std::min(k, begin + group);
        float largest = 0;
        for (int64_t c = begin; c < end; ++c) largest = std::max(largest, std::abs(w[c]));
        for (int64_t c = begin; largest > 0 && c < end; ++c) mean[static_cast<size_t>(c)] += std::abs(w[c]) / largest;
      }
    }
  }
  for (double& own : mean) own /= static_cast<double>(std::max<int64_t>(1, rows));
  return mean;
}

}  // namespace

Tensor ScaledColumns(const Tensor& numbers, const std::vector<float>& factors) {
  Tensor scaled(DType::kF32, numbers.shape());
  const int64_t k = numbers.shape()[1];
  ForRows(&scaled, [&](int64_t r, float* to) {
    const float* const from = numbers.data<float>() + r * k;
    for (int64_t c = 0; c < k; ++c) to[c] = from[c] * factors[static_cast<size_t>(c)];
  });
  return scaled;
}

absl::StatusOr<std::vector<float>> AwqFactors(const InputStats& stats, const std::vector<ScaledReader>& readers,
                                              const ChannelSharing& sharing) {
  std::vector<ScaledReader> some = readers;
  for (ScaledReader& reader : some) reader.numbers = RowsOf(reader.numbers);
  std::vector<double> mean = Shared(stats.sum_abs, sharing);
  for (double& own : mean) own /= static_cast<double>(std::max<int64_t>(1, stats.tokens));
  const std::vector<double> weights = Shared(MeanInGroups(some, stats.k), sharing);
  std::vector<std::vector<float>> tried;
  for (int i = 0; i < 2 * kAlphas; ++i) {
    const double alpha = static_cast<double>(i / 2) / kAlphas;
    const bool by_weights = i % 2 == 1;
    std::vector<double> factors;
    for (size_t c = 0; c < mean.size(); ++c) {
      const double divisor = by_weights ? std::pow(weights[c], 1 - alpha) + kLeastFactor : 1;
      factors.push_back(std::max<double>(std::pow(mean[c], alpha) / divisor, kLeastFactor));
    }
    // Around 1, so that nothing else of the model changes its range.
    const auto [low, high] = std::minmax_element(factors.begin(), factors.end());
    const double middle = std::sqrt(*low * *high);
    for (double& factor : factors) factor /= middle;
    tried.push_back(Spread(factors, sharing));
  }
  ASSIGN_OR_RETURN(GramProducts products, GramProducts::Create(&stats));
  std::vector<double> errors(tried.size(), 0);
  for (const ScaledReader& reader : some) {
    for (size_t i = 0; i < errors.size(); ++i) {
      ASSIGN_OR_RETURN(const double own, ErrorWith(tried[i], reader, &products));
      errors[i] += own;
    }
  }
  return tried[static_cast<size_t>(std::min_element(errors.begin(), errors.end()) - errors.begin())];
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
  std::vector<Quantizer::Grid> best(static_cast<size_t>(rows));
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t begin = g * e.group, n = std::min(k, begin + e.group) - begin;
    std::vector<float> gram(static_cast<size_t>(n * n));
    for (int64_t i = 0; i < n; ++i) std::copy_n(stats.gram.data() + (begin + i) * k + begin, n, gram.data() + i * n);
    const double work = 4.0 * kClips * static_cast<double>(rows * n);
    ops::ParallelFor((rows + kClippedRows - 1) / kClippedRows, work, [&](int64_t first, int64_t last) {
      for (int64_t chunk = first; chunk < last; ++chunk) {
        const int64_t row = chunk * kClippedRows, count = std::min(kClippedRows, rows - row);
        FindClips(w + row * k + begin, count, n, k, gram.data(), quantizer, best.data() + row);
      }
    });
    for (int64_t r = 0; r < rows; ++r) SetGrid(best[static_cast<size_t>(r)], e, r * groups + g, &parts);
  }
  return parts;
}

absl::StatusOr<double> OutputError(const Tensor& decoded, const Tensor& numbers, const InputStats& stats) {
  // Both in one: what multiplies with X^T X on a device gets it once.
  const int64_t rows = numbers.shape()[0], k = stats.k;
  Tensor both(DType::kF32, {2 * rows, k});
  ForRows(&both, [&](int64_t r, float* to) {
    ops::Load<float>(numbers, r % rows * k, k, to);
    if (r >= rows) return;
    std::vector<float> is(static_cast<size_t>(k));
    ops::Load<float>(decoded, r * k, k, is.data());
    for (int64_t c = 0; c < k; ++c) to[c] = is[static_cast<size_t>(c)] - to[c];
  });
  ASSIGN_OR_RETURN(const std::vector<double> of_rows, stats.SquaredOutputs(both));
  const double error = std::accumulate(of_rows.begin(), of_rows.begin() + rows, 0.0);
  const double all = std::accumulate(of_rows.begin() + rows, of_rows.end(), 0.0);
  return all == 0 ? 0 : std::sqrt(error / all);
}

}  // namespace llmc
