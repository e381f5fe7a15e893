// Decode steps of several sequences give each what it gets alone: in 4 bits, where kernels of 9 rows and more read x in
// the order in which norms, gates and attention wrote it, and those of one row do not; and of 16 bits, whose weights
// are streamed, and whose steps of a few sequences are persistent launches.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "runtime/device/cuda_executor.h"
#include "runtime/plan/plan.h"
#include "tests/gpu/device_check.h"
#include "tests/gpu/logits.h"
#include "tests/shared_data.h"
#include "tests/small_config.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

constexpr int kPagesOfSequence = 4, kPageSize = 16;

// Sequence i has a prompt of its own, of 1 + 7 i % 41 tokens.
std::vector<int32_t> PromptOf(int sequence) {
  std::vector<int32_t> ids = {1};
  for (int i = 0; i < 7 * sequence % 41; ++i) ids.push_back(3 + (sequence * 31 + i * 37) % 501);
  return ids;
}

// The logits of sequences `first` up to `end` in `steps` steps of one token of each, by steps, then by sequences.
std::vector<std::vector<float>> LogitsOf(CudaExecutor* executor, int first, int end, int steps) {
  std::vector<std::vector<int32_t>> ids, pages;
  std::vector<std::vector<float>> logits;
  for (int sequence = first; sequence < end; ++sequence) {
    ids.push_back(PromptOf(sequence));
    for (int i = 0; i < steps; ++i) ids.back().push_back(3 + (sequence + i * 53) % 501);
    pages.emplace_back(kPagesOfSequence);
    std::iota(pages.back().begin(), pages.back().end(), sequence * kPagesOfSequence);
  }
  const auto chunk = [&](int i, size_t position, size_t count) {
    return Chunk{.sequence = first + i + 1,
                 .begins = position == 0,
                 .ids = absl::MakeConstSpan(ids[i]).subspan(position, count),
                 .position = static_cast<int64_t>(position),
                 .pages = {absl::MakeConstSpan(pages[i])},
                 .logits = WantedLogits::kLast};
  };
  const int count = end - first;
  for (int i = 0; i < count; ++i) {
    StepInput prompt;
    prompt.chunks.push_back(chunk(i, 0, ids[i].size() - steps));
    const auto result = executor->RunStep(prompt);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
  }
  for (int step = 0; step < steps; ++step) {
    StepInput input;
    for (int i = 0; i < count; ++i) input.chunks.push_back(chunk(i, ids[i].size() - steps + step, 1));
    const auto result = executor->RunStep(input);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
    for (int i = 0; i < count; ++i) {
      const absl::Span<const float> row = result->logits.row(i);
      logits.emplace_back(row.begin(), row.end());
    }
  }
  return logits;
}

struct RowsCase {
  const char* name;
  const char* changes;  // to the configuration
  int rows;
  const char* function = "";  // of 16 bits: what kernels of several rows call; else of 4
};
class DecodeRows : public testing::TestWithParam<RowsCase> {};

// How many of the kernels' sources have all of these texts.
int SourcesWith(const std::string& dump, const std::vector<std::string>& texts) {
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(dump + "/kernels")) {
    const std::string source = ReadFile(file.path().string());
    count += absl::c_all_of(texts, [&](const std::string& text) { return absl::StrContains(source, text); });
  }
  return count;
}

TEST_P(DecodeRows, GiveTheLogitsOfEachAlone) {
  LLMC_NEEDS_GPU();
  const RowsCase& c = GetParam();
  const bool is_quantized = *c.function == 0;
  nlohmann::json config = SmallConfig(/*layers=*/2, c.changes);
  if (is_quantized) {
    config["quantization_config"] = {
        {"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"sym", true}, {"desc_act", false}};
  }
  const std::string model = absl::StrCat(TempFolder(), "/rows-", c.name), plan_path = model + "/plan.bin";
  std::filesystem::create_directories(model);
  std::ofstream(model + "/config.json") << config;
  const bool is_one_launch = c.rows <= 4;
  const CommandResult compiled =
      RunLlmc({"compile", model, "-o", plan_path, "--target", TargetHere().name, "--no-tune", "--steps",
               is_one_launch ? "persistent" : "launches", "--random-weights", "--dump-ir=" + model + "/dump"});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  if (TargetHere().name == "sm_90a" && is_quantized && is_one_launch) {
    EXPECT_GT(SourcesWith(model + "/dump", {"kTokens = 4;", "PersistentRun<"}), 0);
  } else if (TargetHere().name == "sm_90a" && is_quantized) {
    EXPECT_GT(SourcesWith(model + "/dump", {"PagedAttentionDecode<", "OrderedBy = llmc::i4;"}), 0)
        << "no attention writes in order";
  } else if (TargetHere().name == "sm_90a") {
    EXPECT_GT(SourcesWith(model + "/dump", {c.function, is_one_launch ? "PersistentRun<" : ""}), 0) << c.function;
  }
  const auto plan = Plan::Load(plan_path);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto executor = CudaExecutor::Create(plan->get(), {.num_pages = c.rows * kPagesOfSequence});
  ASSERT_TRUE(executor.ok()) << executor.status();
  constexpr int kSteps = 3;
  static_assert(41 + kSteps <= kPagesOfSequence * kPageSize);
  const auto together = LogitsOf(executor->get(), 0, c.rows, kSteps);
  ASSERT_EQ(together.size(), static_cast<size_t>(kSteps * c.rows));
  double most = 0;
  for (int sequence = 0; sequence < c.rows; ++sequence) {
    const auto alone = LogitsOf(executor->get(), sequence, sequence + 1, kSteps);
    ASSERT_EQ(alone.size(), static_cast<size_t>(kSteps));
    for (int step = 0; step < kSteps; ++step) {
      const double difference = DifferenceOf(together[step * c.rows + sequence], alone[step]);
      EXPECT_LT(difference, kMostDifference) << "sequence " << sequence << ", step " << step;
      most = std::max(most, difference);
    }
  }
  std::cout << c.name << ": logits differ by " << most << " at the most\n";
}

constexpr char kHeadsOf64[] = R"({"hidden_size": 512, "num_attention_heads": 8})";
constexpr char kHeadsOf80[] = R"({"hidden_size": 640, "intermediate_size": 1024, "num_attention_heads": 16,
    "head_dim": 80})";
constexpr char kHeadsOf128InF16[] = R"({"hidden_size": 512, "num_attention_heads": 4, "head_dim": 128,
    "torch_dtype": "float16"})";

// Weights of some stages for each multiprocessor.
constexpr char kWideOf16Bits[] = R"({"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16,
    "head_dim": 128})";

// Alone, attention turns heads itself.
constexpr char kNormsOfHeads[] = R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
    "num_attention_heads": 8, "head_dim": 128, "attention_bias": false})";

INSTANTIATE_TEST_SUITE_P(
    Models, DecodeRows,
    testing::Values(RowsCase{"12_with_heads_of_64", kHeadsOf64, 12}, RowsCase{"40_with_heads_of_64", kHeadsOf64, 40},
                    RowsCase{"32_with_heads_of_80", kHeadsOf80, 32}, RowsCase{"40_with_heads_of_80", kHeadsOf80, 40},
                    RowsCase{"12_with_heads_of_128_in_f16", kHeadsOf128InF16, 12},
                    RowsCase{"200_with_heads_of_128_in_f16", kHeadsOf128InF16, 200},
                    RowsCase{"2_of_16_bits", kWideOf16Bits, 2, "kTokens = 2;"},
                    RowsCase{"3_of_16_bits", kWideOf16Bits, 3, "kTokens = 4;"},
                    RowsCase{"3_in_one_launch", kHeadsOf128InF16, 3},
                    RowsCase{"4_of_16_bits", kHeadsOf128InF16, 4, "kTokens = 4;"},
                    RowsCase{"7_of_16_bits", kWideOf16Bits, 7, "StreamedGemmQkvRope<"},
                    RowsCase{"9_behind_norms_of_heads", kNormsOfHeads, 9, "PagedAttentionDecodeOfHeads<"},
                    RowsCase{"29_of_16_bits", kHeadsOf64, 29, "StreamedGemmSiluMul<"},
                    RowsCase{"60_of_16_bits", kHeadsOf128InF16, 60, "StreamedGemmAdd<"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace llmc
