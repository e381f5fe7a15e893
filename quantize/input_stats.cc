#include "quantize/input_stats.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "ir/ops_internal.h"
#include "ir/text.h"
#include "quantize/products.h"

namespace llmc {
namespace {

constexpr char kSquaredOutputs[] = R"(model squared_outputs
dim N <= 1048576
step main(%d: f32[N, K], %gram: f32[K, K]) {
  %p = matmul %d, %gram
  %s = mul %p, %d
  %sums = reduce_sum %s {axes = [1]}
  return "sums" = %sums
}
)";

// The rows of x[T, k], or of x[T, K, k], of tokens whose experts[T, K] have the expert.
Tensor RowsOfExpert(const Tensor& x, const Tensor& experts, int64_t expert) {
  const int64_t of_token = experts.shape()[1], tokens = experts.shape()[0];
  const bool has_row_each = x.rank() == 3;
  std::vector<int64_t> rows;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < of_token; ++j) {
      if (experts.GetInt(t * of_token + j) == expert) rows.push_back(has_row_each ? t * of_token + j : t);
    }
  }
  const int64_t k = x.shape().back(), bytes = k * DTypeBits(x.dtype()) / 8;
  Tensor chosen(x.dtype(), {static_cast<int64_t>(rows.size()), k});
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(chosen.mutable_raw() + static_cast<int64_t>(i) * bytes, x.raw() + rows[i] * bytes,
                static_cast<size_t>(bytes));
  }
  return chosen;
}

}  // namespace

void InputStats::Begin(int64_t channels, bool with_gram) {
  k = channels;
  sum_abs.resize(static_cast<size_t>(k), 0);
  amax.resize(static_cast<size_t>(k), 0);
  if (with_gram) gram.resize(static_cast<size_t>(k * k), 0);
}

void InputStats::Add(const Tensor& x, bool with_gram) {
  Begin(x.shape().back(), with_gram);
  const int64_t rows = x.size() / k;
  const ops::Elements<float> numbers(x);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < k; ++c) {
      const float magnitude = std::abs(numbers[r * k + c]);
      sum_abs[static_cast<size_t>(c)] += magnitude;
      amax[static_cast<size_t>(c)] = std::max(amax[static_cast<size_t>(c)], magnitude);
    }
  }
  if (with_gram) AddGram(numbers.data(), rows, k, gram.data());
  tokens += rows;
}

void InputStats::AddSums(int64_t more_tokens, const Tensor& sums, const Tensor& largest, const Tensor* products) {
  const bool is_first = gram.empty() && products != nullptr;
  Begin(sums.size(), products != nullptr && !is_first);
  if (is_first) gram.assign(products->data<float>(), products->data<float>() + k * k);
  for (int64_t c = 0; c < k; ++c) {
    const auto at = static_cast<size_t>(c);
    sum_abs[at] += sums.data<float>()[c];
    amax[at] = std::max(amax[at], largest.data<float>()[c]);
  }
  if (products != nullptr && !is_first) {
    const auto* more = products->data<float>();
    ops::ParallelFor(k, static_cast<double>(k * k), [&](int64_t first, int64_t last) {
      for (int64_t i = first * k; i < last * k; ++i) gram[static_cast<size_t>(i)] += more[i];
    });
  }
  tokens += more_tokens;
}

void InputStats::DivideBy(const std::vector<float>& factors) {
  for (int64_t i = 0; i < k; ++i) {
    const float f = factors[static_cast<size_t>(i)];
    sum_abs[static_cast<size_t>(i)] /= f;
    amax[static_cast<size_t>(i)] /= f;
    if (gram.empty()) continue;
    for (int64_t j = 0; j < k; ++j) gram[static_cast<size_t>(i * k + j)] /= f * factors[static_cast<size_t>(j)];
  }
}

absl::StatusOr<std::vector<double>> InputStats::SquaredOutputs(const Tensor& d) const {
  if (device == nullptr) return llmc::SquaredOutputs(d.data<float>(), d.shape()[0], k, gram.data());
  ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                   ParseModel(absl::StrReplaceAll(kSquaredOutputs, {{"K", absl::StrCat(k)}}), "squared outputs"));
  const auto* bytes = reinterpret_cast<const char*>(gram.data());
  const Tensor products(DType::kF32, {k, k}, std::shared_ptr<const char>(std::shared_ptr<void>(), bytes));
  ASSIGN_OR_RETURN(const NamedTensors outputs, device->Run(*model, {{"d", d}, {"gram", products}}));
  return outputs.at("sums").ToDoubles();
}

absl::StatusOr<GramProducts> GramProducts::Create(const InputStats* stats) {
  GramProducts products;
  products.stats_ = stats;
  products.matrices_ = stats->device == nullptr ? nullptr : stats->device->matrices();
  if (products.matrices_ == nullptr) return products;
  const int64_t k = stats->k;
  ASSIGN_OR_RETURN(products.gram_, products.matrices_->Allocate(k * k));
  RETURN_IF_ERROR(products.matrices_->Write(stats->gram.data(), k * k, {products.gram_.get(), 0, k}));
  return products;
}

absl::StatusOr<std::vector<double>> GramProducts::SquaredOutputs(const Tensor& d) {
  if (matrices_ == nullptr) return stats_->SquaredOutputs(d);
  const int64_t rows = d.shape()[0], k = stats_->k;
  if (rows > rows_) {
    ASSIGN_OR_RETURN(d_, matrices_->Allocate(rows * k));
    ASSIGN_OR_RETURN(products_, matrices_->Allocate(rows * k));
    rows_ = rows;
  }
  const Matrices::Place from = {d_.get(), 0, k}, to = {products_.get(), 0, k};
  RETURN_IF_ERROR(matrices_->Write(d.data<float>(), rows * k, from));
  RETURN_IF_ERROR(matrices_->Multiply({.m = rows, .n = k, .k = k}, from, {gram_.get(), 0, k}, to));
  std::vector<float> products(static_cast<size_t>(rows * k));
  RETURN_IF_ERROR(matrices_->Read(to, rows * k, products.data()));
  std::vector<double> sums(static_cast<size_t>(rows), 0);
  ops::ParallelFor(rows, static_cast<double>(rows * k), [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float *const a = products.data() + r * k, *const b = d.data<float>() + r * k;
      double sum = 0;
      for (int64_t c = 0; c < k; ++c) sum += static_cast<double>(a[c]) * b[c];
      sums[static_cast<size_t>(r)] = sum;
    }
  });
  return sums;
}

float InputStats::Largest() const { return amax.empty() ? 0 : *std::max_element(amax.begin(), amax.end()); }

void InputStats::AddRows(const Tap& tap, const Tensor& contents, const Tensor* experts) {
  Add(experts == nullptr ? contents : RowsOfExpert(contents, *experts, tap.expert), tap.with_gram);
}

}  // namespace llmc
