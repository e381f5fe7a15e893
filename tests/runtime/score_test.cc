#include "runtime/engine/score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/engine/perplexity.h"
#include "tests/runtime/fake_executor.h"

namespace llmc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(VisitLogits, GivesEveryPositionOfEverySequence) {
  for (int64_t pages : {80, 20, 15}) {
    FakeExecutor executor(pages);
    std::vector<std::vector<int32_t>> sequences;
    for (int32_t length : {5, 0, 60, 1, 33, 33, 2, 17}) sequences.emplace_back(length, length % 50);
    std::vector<int64_t> next(sequences.size());
    const auto status = VisitLogits(&executor, sequences, [&](size_t s, int64_t position, absl::Span<const float> row) {
      EXPECT_EQ(position, next[s]++);
      const auto history = absl::MakeConstSpan(sequences[s]).subspan(0, position + 1);
      EXPECT_EQ(row, absl::MakeConstSpan(FakeExecutor::LogitsAfter(history)));
      return absl::OkStatus();
    });
    ASSERT_TRUE(status.ok()) << status;
    for (size_t s = 0; s < sequences.size(); ++s) EXPECT_EQ(next[s], static_cast<int64_t>(sequences[s].size()));
    EXPECT_EQ(executor.ended.size(), 7u);
  }
}

TEST(VisitLogits, RefusesWhatDoesNotFit) {
  FakeExecutor executor(10);
  const auto nothing = [](size_t, int64_t, absl::Span<const float>) { return absl::OkStatus(); };
  EXPECT_THAT(std::string(VisitLogits(&executor, {std::vector<int32_t>(41, 1)}, nothing).message()),
              HasSubstr("41 tokens is longer than the KV cache of 40"));
  EXPECT_FALSE(VisitLogits(&executor, {std::vector<int32_t>(1, 50)}, nothing).ok());
}

TEST(ScoreBatch, LeavesOutHiddenTokensOfFolders) {
  FakeExecutor executor(40);
  const auto ids = *HostTensor::FromInts({1, 2, 3, 9, 9, 4}, {2, 3});
  const auto mask = *HostTensor::FromInts({1, 1, 0, 0, 1, 1}, {2, 3});
  const auto positions = *HostTensor::FromInts({0, 1, 1, 7, 0, 1}, {2, 3});  // of hidden tokens they are not read
  const auto logits =
      ScoreBatch(&executor, ids, {.attention_mask = &mask, .position_ids = &positions, .skips_hidden = true});
  ASSERT_TRUE(logits.ok()) << logits.status();
  EXPECT_THAT(logits->shape, ElementsAre(2, 3, 50));
  const std::vector<float> zero(50, 0.0f);
  const std::vector<std::vector<float>> expected = {
      FakeExecutor::LogitsAfter({1}), FakeExecutor::LogitsAfter({1, 2}), zero, zero,
      FakeExecutor::LogitsAfter({9}), FakeExecutor::LogitsAfter({9, 4})};
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(logits->values<float>().subspan(i * 50, 50), absl::MakeConstSpan(expected[i])) << i;
  }
}

// What an ONNX file computes of hidden tokens, and with other positions, a paged program cannot.
TEST(ScoreBatch, TakesNoOtherMasksAndPositionsOfOnnxFiles) {
  FakeExecutor executor(40);
  const auto ids = *HostTensor::FromInts({1, 2, 3, 9, 9, 4}, {2, 3});
  const auto message = [&](const ScoreOptions& options) {
    const auto logits = ScoreBatch(&executor, ids, options);
    if (logits.ok()) return std::string("ok");
    EXPECT_EQ(logits.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(logits.status().message()), HasSubstr("--no-paginate"));
    return std::string(logits.status().message());
  };
  const auto masked = [&](std::vector<int64_t> mask, std::vector<int64_t> shape = {2, 3}) {
    const HostTensor tensor = *HostTensor::FromInts(mask, std::move(shape));
    return message({.attention_mask = &tensor});
  };
  const auto placed = [&](std::vector<int64_t> positions, std::vector<int64_t> shape = {2, 3}) {
    const HostTensor tensor = *HostTensor::FromInts(positions, std::move(shape));
    return message({.position_ids = &tensor});
  };
  EXPECT_EQ(masked({1, 1, 1, 1, 1, 1}), "ok");
  const HostTensor added = *HostTensor::FromFloats({0, 0, 0, 0, 0, 0}, {2, 3});
  EXPECT_THAT(message({.attention_mask = &added}), HasSubstr("attention_mask is f32"));
  EXPECT_THAT(masked({0, 1, 1, 1, 1, 1}), HasSubstr("attention_mask holds 0 at [0, 0]"));
  EXPECT_THAT(masked({1, 1, 1, 1, 1, 0}), HasSubstr("attention_mask holds 0 at [1, 2]"));
  EXPECT_THAT(masked({1, 1, 1, 1, 0, 1}), HasSubstr("attention_mask holds 0 at [1, 1]"));
  EXPECT_THAT(masked({1, 1, 1, 1, 1, 1, 1, 1}, {2, 4}), HasSubstr("attention_mask has shape [2, 4]"));
  EXPECT_THAT(masked({1, 1, 1, 1}, {2, 2}), HasSubstr("attention_mask has shape [2, 2]"));
  EXPECT_EQ(placed({0, 1, 2, 0, 1, 2}), "ok");
  EXPECT_EQ(placed({0, 1, 2}, {1, 3}), "ok");
  EXPECT_THAT(placed({0, 1, 2, 1, 2, 3}), HasSubstr("position_ids holds 1 at [1, 0]"));
  EXPECT_THAT(placed({0, 1, 1}, {1, 3}), HasSubstr("position_ids holds 1 at [0, 2]"));
  EXPECT_THAT(placed({0, 1, 2}, {3}), HasSubstr("position_ids has shape [3]"));
}

TEST(ScoreBatch, ChecksTensorsBeforeReadingThem) {
  FakeExecutor executor(40);
  const HostTensor no_bytes{.type = DType::kI64, .shape = {1, 3}};
  const HostTensor negative{.type = DType::kI64, .shape = {-1, 5}};
  const HostTensor huge{.type = DType::kI64, .shape = {int64_t{1} << 40, int64_t{1} << 40}};
  for (const HostTensor& wrong : {no_bytes, negative, huge}) {
    EXPECT_EQ(ScoreBatch(&executor, wrong).status().code(), absl::StatusCode::kInvalidArgument);
  }
  const auto ids = *HostTensor::FromInts({1, 2, 3}, {1, 3});
  EXPECT_EQ(ScoreBatch(&executor, ids, {.attention_mask = &no_bytes}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ScoreBatch, RefusesWrongInputs) {
  FakeExecutor executor(40);
  auto message = [&](const HostTensor& ids, const HostTensor* mask) {
    return std::string(ScoreBatch(&executor, ids, {.attention_mask = mask}).status().message());
  };
  const auto ids = *HostTensor::FromInts({1, 2}, {1, 2});
  const auto wrong_shape = *HostTensor::FromInts({1, 2}, {2, 1});
  const auto wrong_mask = *HostTensor::FromInts({1, 2}, {1, 2});
  EXPECT_THAT(message(*HostTensor::FromInts({1}, {1}), nullptr), HasSubstr("must be [batch, sequence]"));
  EXPECT_THAT(message(*HostTensor::FromFloats({1}, {1, 1}), nullptr), HasSubstr("input_ids is f32"));
  EXPECT_THAT(message(*HostTensor::FromInts({int64_t{1} << 32}, {1, 1}), nullptr), HasSubstr("no token"));
  EXPECT_THAT(message(ids, &wrong_shape), HasSubstr("attention_mask has shape [2, 1]"));
  EXPECT_THAT(message(ids, &wrong_mask), HasSubstr("must be 0 or 1"));
  EXPECT_TRUE(ScoreBatch(&executor, *HostTensor::FromInts({}, {0, 5})).ok());
}

TEST(Perplexity, IsTheMeanOverWholeWindows) {
  FakeExecutor executor(40);
  std::vector<int32_t> ids;
  for (int i = 0; i < 47; ++i) ids.push_back(i * 11 % 50);
  double loss = 0;
  for (int window = 0; window < 4; ++window) {
    const std::vector<int32_t> tokens(ids.begin() + window * 10, ids.begin() + window * 10 + 10);
    for (int t = 1; t < 10; ++t) {
      const auto logits = FakeExecutor::LogitsAfter(absl::MakeConstSpan(tokens).subspan(0, t));
      double sum = 0;
      for (float l : logits) sum += std::exp(l);
      loss += std::log(sum) - logits[tokens[t]];
    }
  }
  const auto result = Perplexity(&executor, ids, {.window = 10});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->windows, 4);
  EXPECT_EQ(result->scored_tokens, 36);
  EXPECT_NEAR(result->perplexity, std::exp(loss / 36), 1e-6);
  std::vector<std::pair<int64_t, int64_t>> seen;
  const PerplexityOptions two{.window = 10, .max_windows = 2, .on_window = [&](int64_t done, int64_t total) {
                                seen.emplace_back(done, total);
                              }};
  EXPECT_EQ(Perplexity(&executor, ids, two)->windows, 2);
  EXPECT_EQ(seen, (std::vector<std::pair<int64_t, int64_t>>{{1, 2}, {2, 2}}));
  EXPECT_FALSE(Perplexity(&executor, ids, {.window = 48}).ok());
  EXPECT_FALSE(Perplexity(&executor, ids, {.window = 1}).ok());
}

// The logits after a token depend on that token alone.
class TableExecutor : public SynchronousExecutor {
 public:
  explicit TableExecutor(std::vector<std::vector<float>> rows) : rows_(std::move(rows)) {
    limits_ = {.vocab_size = static_cast<int64_t>(rows_[0].size()),
               .pools = {{.num_pages = 64, .page_size = 16}},
               .max_context = 64,
               .max_step_tokens = 64,
               .max_sequences = 8};
  }
  const ExecutorLimits& limits() const override { return limits_; }

 protected:
  absl::StatusOr<Logits> ComputeLogits(const StepInput& input) override {
    Logits logits{.vocab_size = limits_.vocab_size};
    for (const Chunk& chunk : input.chunks) {
      for (const int32_t id : chunk.ids) {
        logits.values.insert(logits.values.end(), rows_[id].begin(), rows_[id].end());
        ++logits.rows;
      }
    }
    return logits;
  }

 private:
  std::vector<std::vector<float>> rows_;
  ExecutorLimits limits_;
};

// Log-probabilities plus what a softmax does not see. Token 2 never comes.
std::vector<float> LogitsOf(float p, float shift) {
  return {std::log(p) + shift, std::log(1 - p) + shift, -std::numeric_limits<float>::infinity()};
}

// After 0 the base has 1/2 and 1/2, the model 1/4 and 3/4: KL = 1/2 ln(2) + 1/2 ln(2/3); of equal ones the first is the
// base's likeliest. After 1 they agree.
TEST(Perplexity, ComparesWithABase) {
  TableExecutor base({LogitsOf(0.5f, 3), LogitsOf(0.75f, -1), LogitsOf(0.5f, 0)});
  TableExecutor model({LogitsOf(0.25f, 7), LogitsOf(0.75f, 2), LogitsOf(0.5f, 0)});
  const std::vector<int32_t> ids = {0, 1, 0, 0, 0, 1, 0, 1, 1};  // after 0, 1; 0, 0; 0, 1
  PerplexityOptions options{.window = 3, .base = &base};
  const auto result = Perplexity(&model, ids, options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NEAR(result->comparison->mean_kl, 4.0 / 6 * 0.5 * std::log(4.0 / 3), 1e-6);
  EXPECT_NEAR(result->comparison->agreement, 2.0 / 6, 1e-12);
  EXPECT_NEAR(result->comparison->base_perplexity, std::exp(-(4 * std::log(0.5) + std::log(0.75) + std::log(0.25)) / 6),
              1e-6);
  EXPECT_NEAR(result->perplexity, std::exp(-(3 * std::log(0.75) + 2 * std::log(0.25) + std::log(0.75)) / 6), 1e-6);
  EXPECT_EQ(result->perplexity, Perplexity(&model, ids, {.window = 3})->perplexity);
  TableExecutor same({LogitsOf(0.5f, 3), LogitsOf(0.75f, -1), LogitsOf(0.5f, 0)});
  const auto alike = Perplexity(&same, ids, options);
  EXPECT_EQ(alike->comparison->mean_kl, 0);
  EXPECT_EQ(alike->comparison->agreement, 1);
}

// A divergence is never negative, whatever is rounded off.
TEST(Perplexity, DivergenceOfAlmostEqualModels) {
  const std::vector<int32_t> ids = {0, 1, 0, 0, 0, 1, 0, 1, 1};
  for (int i = 0; i < 64; ++i) {
    const float shift = 0.37f * static_cast<float>(i);
    TableExecutor base({LogitsOf(0.3f, 0), LogitsOf(0.8f, 0), LogitsOf(0.5f, 0)});
    TableExecutor model({LogitsOf(0.3f, shift), LogitsOf(0.8f, shift), LogitsOf(0.5f, 0)});
    const auto result = Perplexity(&model, ids, {.window = 3, .base = &base});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_GE(result->comparison->mean_kl, 0) << shift;
    EXPECT_FALSE(std::signbit(result->comparison->mean_kl)) << shift;
  }
}

TEST(Perplexity, RefusesBasesThatCannotBeCompared) {
  TableExecutor model({LogitsOf(0.5f, 0), LogitsOf(0.5f, 0), LogitsOf(0.5f, 0)});
  const std::vector<int32_t> ids = {0, 0, 0, 0};
  const auto message = [&](Executor* base, int64_t window) {
    return std::string(Perplexity(&model, ids, {.window = window, .base = base}).status().message());
  };
  FakeExecutor other(40);
  EXPECT_THAT(message(&other, 2), HasSubstr("the base has a vocabulary of 50 tokens, the model one of 3"));
  TableExecutor wider({{0, 0, 0}, {0, 0, 0}, {0, 0, 0}});
  EXPECT_THAT(message(&wider, 2), HasSubstr("after token 0 of window 0 the model rules out a token"));
}

TEST(Perplexity, JoinsDocuments) {
  EXPECT_EQ(JoinDocuments("a\n\n<|endoftext|>\n\nb\n<|endoftext|>c\n"), "a\n\nb\n\nc");
  EXPECT_EQ(JoinDocuments("\none text\n"), "\none text\n");
}

}  // namespace
}  // namespace llmc
