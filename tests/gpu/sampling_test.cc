// Tokens and log-probabilities that a GPU gives, against the host's sampler on the same logits: a model whose logits
// are a row of a table.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "absl/strings/str_replace.h"
#include "codegen/plan_writer.h"
#include "ir/text.h"
#include "runtime/device/cuda_executor.h"
#include "runtime/plan/plan.h"
#include "tests/gpu/device_check.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kMaxRows = 24;

// Logits of a kind that something in the kernels depends on.
std::vector<float> Row(int kind, int64_t vocabulary, std::mt19937_64* random) {
  std::normal_distribution<float> normal;
  std::vector<float> row(vocabulary);
  for (float& x : row) {
    const float z = normal(*random);
    const auto pick = (*random)();
    switch (kind) {
      case 0:
        x = 2 * z;
        break;
      case 1:  // peaked
        x = 2 * z + (pick % 1000 == 0 ? 12.0f : 0.0f);
        break;
      case 2:  // many equal: more candidates than are sorted
        x = std::round(2 * z);
        break;
      case 3:
        x = 1.5f;
        break;
      case 4:
        x = pick % 2 == 0 ? 0.0f : -0.0f;
        break;
      case 5:  // masked in two ways
        x = pick % 3 == 0 ? -kInf : pick % 3 == 1 ? -3e38f : z;
        break;
      default:  // nearly flat
        x = 0.01f * z;
    }
  }
  if (kind == 7) row[vocabulary / 2] = std::nanf("");
  if (kind == 8) row[vocabulary / 3] = kInf;
  if (kind == 9) std::fill(row.begin(), row.end(), -kInf);
  if (kind == 10) std::fill(row.begin(), row.end() - 1, -kInf);
  return row;
}

std::unique_ptr<Plan> TablePlan(int64_t vocabulary, const std::vector<float>& table) {
  const std::string text = absl::StrReplaceAll(R"(model m
dim N <= 64
dim P <= 1
dim R <= ROWS
dim S <= ROWS
dim T <= ROWS
weight @table: f32[ROWS, V] = "f#t"
state @kv0: paged[N, 16] {k: f32[1, 8], v: f32[1, 8]}
step main(%ids: i32[T] = token_ids, %pos: i32[T] = positions, %slots: i32[T] = slots, %pages: i32[S, P] = page_table, %lens: i32[S] = lengths, %starts: i32[S + 1] = starts, %rows: i32[R] = rows) {
  %x = gather @table, %ids
  %logits = gather %x, %rows
  return "logits" = %logits
}
)",
                                               {{"ROWS", std::to_string(kMaxRows)}, {"V", std::to_string(vocabulary)}});
  auto model = ParseModel(text, "table.lir");
  EXPECT_TRUE(model.ok()) << model.status();
  (*model)->data["@table"] = Tensor::FromValues(DType::kF32, {kMaxRows, vocabulary}, table);
  const std::string path = TempFolder() + "/table.bin";
  PlanOptions options = {.compiler_version = "test", .targets = {TargetHere()}};
  plan::LanguageModel& description = options.language_model.emplace();
  description.set_vocab_size(vocabulary);
  plan::LanguageModel::Pool* pool = description.add_pools();
  pool->set_dim("N");
  pool->set_page_size(16);
  description.set_max_context(16);
  description.set_num_layers(1);
  description.add_kv_states("@kv0");
  const absl::Status written = WritePlan(**model, options, path);
  EXPECT_TRUE(written.ok()) << written;
  auto plan = Plan::Load(path);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

Sampling RandomSampling(int64_t vocabulary, std::mt19937_64* random, std::vector<int32_t>* history) {
  const auto one_in = [&](uint64_t n) { return (*random)() % n == 0; };
  const auto unit = [&] { return static_cast<double>((*random)() % 1000 + 1) / 1000; };
  Sampling sampling{.index = (*random)() % 1000};
  SamplingParams& params = sampling.params;
  params.seed = (*random)();
  params.temperature = one_in(5) ? 0 : one_in(10) ? 1e-30 : one_in(10) ? 1e30 : 2 * unit();
  if (one_in(2)) params.top_p = unit();
  if (one_in(2)) params.top_k = 1 + static_cast<int64_t>((*random)() % (one_in(2) ? 100 : vocabulary + 10));
  if (one_in(3)) params.min_p = unit() / 2;
  if (one_in(3)) params.repetition_penalty = 0.5 + unit();
  if (one_in(3)) params.presence_penalty = 2 * unit() - 1;
  if (one_in(3)) params.frequency_penalty = unit() - 0.3;
  for (int i = 0; i < 60; ++i)
    history->push_back(static_cast<int32_t>((*random)() % std::min<int64_t>(vocabulary, 40)));
  sampling.history = *history;
  sampling.prompt_size = 30;
  if (one_in(2)) sampling.log_probs = static_cast<int64_t>((*random)() % (std::min<int64_t>(vocabulary, 24) + 1));
  return sampling;
}

// What the host makes of the same row.
absl::StatusOr<SampledToken> Expected(std::vector<float> row, const Sampling& sampling) {
  const std::vector<float> plain = row;
  TokenCounts counts;
  counts.AddPrompt(sampling.history.subspan(0, sampling.prompt_size));
  for (int32_t id : sampling.history.subspan(sampling.prompt_size)) counts.AddGenerated(id);
  ApplyPenalties(sampling.params, counts, absl::MakeSpan(row));
  const absl::StatusOr<int32_t> token = SampleToken(row, sampling.params, sampling.index);
  if (!token.ok()) return token.status();
  SampledToken sampled{.token = *token};
  if (sampling.log_probs.has_value()) {
    sampled.log_prob = plain[*token] - LogSumExp(plain);
    sampled.top_log_probs = TopLogProbs(plain, *sampling.log_probs);
  }
  return sampled;
}

void ExpectSame(const SampledToken& device, const SampledToken& host) {
  EXPECT_EQ(device.token, host.token);
  ASSERT_EQ(device.log_prob.has_value(), host.log_prob.has_value());
  if (!host.log_prob.has_value()) return;
  EXPECT_NEAR(*device.log_prob, *host.log_prob, 1e-5 + 1e-6 * std::abs(*host.log_prob));
  ASSERT_EQ(device.top_log_probs.size(), host.top_log_probs.size());
  for (size_t i = 0; i < host.top_log_probs.size(); ++i) {
    const TokenLogProb &a = device.top_log_probs[i], &b = host.top_log_probs[i];
    EXPECT_EQ(a.token, b.token);
    if (a.log_prob == b.log_prob) continue;  // both may be infinite
    EXPECT_NEAR(a.log_prob, b.log_prob, 1e-5 + 1e-6 * std::abs(b.log_prob));
  }
}

TEST(Sampling, TokensAreThoseOfTheHost) {
  LLMC_NEEDS_GPU();
  std::mt19937_64 random(1);
  for (const int64_t vocabulary : {kMaxRows, int64_t{97}, int64_t{8192}, int64_t{32002}, int64_t{128256}}) {
    std::vector<std::vector<float>> rows;
    std::vector<float> table;
    for (int r = 0; r < kMaxRows; ++r) {
      rows.push_back(Row(r % 12, vocabulary, &random));
      table.insert(table.end(), rows.back().begin(), rows.back().end());
    }
    const std::unique_ptr<Plan> plan = TablePlan(vocabulary, table);
    auto executor = CudaExecutor::Create(plan.get(), {.num_pages = 64});
    ASSERT_TRUE(executor.ok()) << executor.status();
    int64_t sequence = 0;
    for (int round = 0; round < 12; ++round) {
      const size_t batch = 1 + random() % kMaxRows;
      std::vector<std::vector<int32_t>> histories(batch);
      std::vector<Sampling> samplings;
      std::vector<int32_t> ids, pages(batch, 0);
      for (size_t i = 0; i < batch; ++i) {
        ids.push_back(static_cast<int32_t>(random() % kMaxRows));
        samplings.push_back(RandomSampling(vocabulary, &random, &histories[i]));
      }
      StepInput input;
      for (size_t i = 0; i < batch; ++i) {
        input.chunks.push_back({.sequence = sequence++,
                                .begins = true,
                                .ids = absl::MakeConstSpan(&ids[i], 1),
                                .pages = {absl::MakeConstSpan(&pages[i], 1)},
                                .sampling = &samplings[i]});
      }
      const absl::StatusOr<StepResult> result = (*executor)->RunStep(input);
      ASSERT_TRUE(result.ok()) << result.status();
      for (size_t i = 0; i < batch; ++i) {
        SCOPED_TRACE(absl::StrCat("vocabulary ", vocabulary, ", round ", round, ", row ", ids[i]));
        (*executor)->EndSequence(input.chunks[i].sequence);
        const absl::StatusOr<SampledToken> expected = Expected(rows[ids[i]], samplings[i]);
        const auto failed = result->logits.failed.find(i);
        ASSERT_EQ(failed == result->logits.failed.end(), expected.ok()) << expected.status();
        if (expected.ok()) {
          ExpectSame(result->sampled[i], *expected);
        } else {
          EXPECT_EQ(failed->second.code(), expected.status().code());
        }
      }
    }
  }
}

}  // namespace
}  // namespace llmc
