// Models of a config.json alone, with random numbers for weights.
#include <gtest/gtest.h>

#include <map>

#include "files/random_source.h"
#include "frontend/formats/safetensors.h"
#include "frontend/import.h"
#include "ir/text.h"
#include "kernels/layout/random_numbers.h"
#include "tests/frontend/test_folder.h"

namespace llmc {
namespace {

const std::string kConfigs = LLMC_TEST_DATA "/../../tools/bench/configs/";

int64_t Elements(const Value& weight) { return Product(weight.type.shape).value(); }

struct Counts {
  int64_t layers = 0, head = 0, all = 0;  // parameters of linear layers, of the head, of everything
};

Counts Count(const Model& model) {
  Counts counts;
  for (const Value* weight : model.weights) {
    counts.all += Elements(*weight);
    if (weight->name == "@lm_head" || weight->name == "@embed") {
      counts.head = Elements(*weight);
    } else if (weight->type.rank() == 2) {
      counts.layers += Elements(*weight);
    }
  }
  return counts;
}

// The numbers of parameters that their authors publish.
TEST(RandomWeights, TheShippedConfigurationsHaveThePublishedSizes) {
  const std::map<std::string, std::pair<int64_t, double>> kPublished = {{"llama-3.2-1b", {1235814400, 973.1}},
                                                                        {"llama-3.1-8b", {8030261248, 6979.3}},
                                                                        {"llama-3.1-70b", {70553706496, 68451.0}},
                                                                        {"qwen3-0.6b", {596049920, 440.4}},
                                                                        {"qwen3-8b", {8190735360, 6945.8}}};
  for (const auto& [name, published] : kPublished) {
    const auto model = ImportHuggingFaceConfig(kConfigs + name, {});
    ASSERT_TRUE(model.ok()) << model.status();
    const Counts counts = Count(**model);
    EXPECT_EQ(counts.all, published.first) << name;
    EXPECT_NEAR(static_cast<double>(counts.layers) * 1e-6, published.second, 0.1) << name;
    EXPECT_TRUE((*model)->data.empty());
    for (const Value* weight : (*model)->weights) EXPECT_EQ(weight->type.dtype, DType::kBF16) << weight->name;
  }
}

TEST(RandomWeights, AreThoseOfACheckpoint) {
  const std::string folder = LLMC_TEST_DATA "/tale-7m";
  const auto model = ImportHuggingFace(folder);
  ASSERT_TRUE(model.ok()) << model.status();
  const DType dtype = (*model)->weights[0]->type.dtype;
  const auto random = ImportHuggingFaceConfig(folder, {.seed = 3, .dtype = dtype});
  ASSERT_TRUE(random.ok()) << random.status();
  ASSERT_EQ((*random)->weights.size(), (*model)->weights.size());
  for (size_t i = 0; i < (*model)->weights.size(); ++i) {
    const Value &a = *(*model)->weights[i], &b = *(*random)->weights[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.type, b.type);
    const auto numbers = ParseRandomSource(b.source);
    ASSERT_TRUE(numbers.has_value()) << b.source;
    EXPECT_EQ(numbers->seed, 3u);
    EXPECT_EQ(numbers->mean, b.type.rank() == 1 ? 1 : 0) << b.name << ": this model's only vectors are norms";
  }
  EXPECT_FALSE(ParseRandomSource((*model)->weights[0]->source).has_value());
}

// A dump says what they are, so it can be resumed from.
TEST(RandomWeights, SurviveText) {
  const auto model = ImportHuggingFaceConfig(kConfigs + "qwen3-0.6b", {.seed = 1});
  ASSERT_TRUE(model.ok()) << model.status();
  TestFolder folder;
  const std::string text = PrintModel(**model);
  const auto again = ImportText(folder.Write("m.lir", text), folder.path());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(PrintModel(**again), text);
  EXPECT_TRUE((*again)->data.empty());
}

TEST(RandomWeights, DependOnSeedAndTensor) {
  const auto key = [](uint64_t seed, absl::string_view tensor) {
    return RandomKey(RandomSource({.seed = seed, .mean = 0, .width = 0.035}, tensor));
  };
  EXPECT_EQ(key(1, "a"), key(1, "a"));
  EXPECT_NE(key(1, "a"), key(2, "a"));
  EXPECT_NE(key(1, "a"), key(1, "b"));
  EXPECT_EQ(key(1, "a") >> 63, 0u);
  // The published sequence of splitmix64 from seed 0.
  EXPECT_EQ(RandomBits(0, 0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(RandomBits(0, 1), 0x6e789e6aa1b965f4u);
  for (const char* wrong :
       {"random(seed=1)#a", "random(seed=-1, mean=0, width=1)#a", "random(seed=1, mean=nan, width=1)#a",
        "random(seed=1, mean=0, width=1)", "r.safetensors#a", ""}) {
    EXPECT_FALSE(ParseRandomSource(wrong).has_value()) << wrong;
  }
}

TEST(RandomWeights, ConfigsAreCheckedAsEver) {
  TestFolder folder;
  EXPECT_TRUE(Says(ImportHuggingFaceConfig(folder.path(), {}).status(), "no config.json"));
  folder.Write("config.json", "{\"architectures\": [\"GrokForCausalLM_\"]}");
  EXPECT_TRUE(Says(ImportHuggingFaceConfig(folder.path(), {}).status(), "GrokForCausalLM_"));
}

}  // namespace
}  // namespace llmc
