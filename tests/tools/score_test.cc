// `llmc score`: scores of pairs and of texts, compared with sentence-transformers and the pipeline of transformers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "frontend/formats/numpy_file.h"
#include "tests/families.h"
#include "tests/tools/run_command.h"
#include "tests/tools/sentence_variants.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::HasSubstr;

// Sums of a few hundred products of numbers around 1 in f32, in another order.
constexpr double kScoreTolerance = 1e-5;

const std::string& CrossEncoder() {
  static const std::string& folder = *new std::string(FamiliesFolder() + "/cross-encoder");
  return folder;
}

Json RankerVariant(const std::string& name) {
  const Json rankers = SentenceVariants()["rankers"];
  return *std::find_if(rankers.begin(), rankers.end(), [&](const Json& v) { return v["name"] == name; });
}

void ExpectScoresOf(const CommandResult& result, const Json& variant) {
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json data = result.Json()["data"];
  const auto expected = variant["scores"].get<std::vector<std::vector<double>>>();
  ASSERT_EQ(data.size(), expected.size()) << result.out;
  for (size_t i = 0; i < expected.size(); ++i) {
    const Json scores = expected[i].size() == 1 ? Json::array({data[i]["score"]}) : data[i]["scores"];
    ASSERT_EQ(scores.size(), expected[i].size());
    for (size_t k = 0; k < scores.size(); ++k) {
      EXPECT_NEAR(scores[k].get<double>(), expected[i][k], kScoreTolerance) << "text " << i << ", label " << k;
    }
  }
}

class RankerVariants : public testing::TestWithParam<int> {};

TEST_P(RankerVariants, GiveTheScoresOfTheReference) {
  const Json variant = SentenceVariants()["rankers"][GetParam()];
  const std::string folder = FolderOfVariant(variant), plan = folder + "/plan.bin", lines = folder + "/lines.tsv";
  std::vector<std::string> run = RunArguments(variant);
  if (variant.contains("pairs")) {
    std::ofstream file(lines);
    for (const Json& pair : variant["pairs"]) {
      file << pair[0].get<std::string>() << "\t" << pair[1].get<std::string>() << "\n";
    }
    run = With(run, {"--pairs", "--file", lines});
  } else {
    run = With(run, variant["texts"].get<std::vector<std::string>>());
  }
  ExpectScoresOf(RunLlmc(With(With({"score", folder, "--json"}, CompileArguments(variant)), run)), variant);
  const CommandResult compiled =
      RunLlmc(With({"compile", folder, "-o", plan, "--target=host"}, CompileArguments(variant)));
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  ExpectScoresOf(RunLlmc(With({"score", plan, "--json", "--batch-tokens=1"}, run)), variant);
}

std::string RankerName(const testing::TestParamInfo<int>& info) {
  std::string name = SentenceVariants()["rankers"][info.param]["name"];
  std::erase_if(name, [](char c) { return !absl::ascii_isalnum(static_cast<unsigned char>(c)); });
  return name;
}

INSTANTIATE_TEST_SUITE_P(Score, RankerVariants,
                         testing::Range(0, static_cast<int>(SentenceVariants()["rankers"].size())), RankerName);

TEST(Score, DocumentsOfAQueryInTheirOrderOrTheBestFirst) {
  const Json variant = RankerVariant("one label");
  const std::vector<std::string> documents = {"the cat sat on the mat", "cat", "a program for a device"};
  const std::string query = variant["pairs"][0][0];
  const CommandResult plain = RunLlmc(With({"score", CrossEncoder(), "--query", query, "--json"}, documents));
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  const Json data = plain.Json()["data"];
  EXPECT_EQ(plain.Json()["activation"], "sigmoid");
  EXPECT_NEAR(data[0]["score"].get<double>(), variant["scores"][0][0].get<double>(), kScoreTolerance);
  const CommandResult sorted =
      RunLlmc(With({"score", CrossEncoder(), "--query", query, "--json", "--sort"}, documents));
  const Json best = sorted.Json()["data"];
  ASSERT_EQ(best.size(), 3u);
  EXPECT_GE(best[0]["score"], best[1]["score"]);
  EXPECT_GE(best[1]["score"], best[2]["score"]);
  for (const Json& item : best) EXPECT_EQ(item, data[item["index"].get<size_t>()]);
  EXPECT_THAT(RunLlmc({"score", CrossEncoder(), "--query", query, documents[0]}).out,
              testing::AllOf(testing::StartsWith("0  0.428410  "), testing::EndsWith("  the cat sat on the mat\n")));
}

TEST(Score, NamesLabels) {
  const Json variant = RankerVariant("three labels");
  const std::string folder = FolderOfVariant(variant);
  const CommandResult result = RunLlmc({"score", folder, "--dtype=f32", "--json", "cat"});
  EXPECT_EQ(result.Json()["labels"], Json({"contradiction", "entailment", "neutral"}));
  EXPECT_EQ(result.Json()["activation"], "softmax");
  const Json item = result.Json()["data"][0];
  size_t best = 0;
  for (size_t i = 1; i < 3; ++i) best = item["scores"][i] > item["scores"][best] ? i : best;
  EXPECT_EQ(item["label"], result.Json()["labels"][best]);
  EXPECT_THAT(RunLlmc({"score", folder, "cat"}).out,
              testing::AllOf(testing::StartsWith("0  contradiction 0."), HasSubstr("  entailment 0."),
                             HasSubstr("  neutral 0."), testing::EndsWith("  cat\n")));
  EXPECT_THAT(RunLlmc({"score", folder, "cat", "--sort"}).err,
              HasSubstr("--sort needs a model with one label; this has 3"));
}

TEST(Score, WritesNumPyFiles) {
  const std::string file = TempFolder() + "/scores.npy", folder = FolderOfVariant(RankerVariant("three labels"));
  ASSERT_EQ(RunLlmc({"score", folder, "cat", "dog", "-o", file}).exit_code, 0);
  const absl::StatusOr<Tensor> scores = ReadNpy(file);
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_EQ(scores->shape(), (Shape{2, 3}));
  EXPECT_EQ(scores->dtype(), DType::kF32);
}

TEST(Score, WhatIsWrong) {
  const auto error = [](const std::vector<std::string>& args) { return RunLlmc(With({"score"}, args)).err; };
  EXPECT_THAT(error({CrossEncoder(), "--pairs", "cat"}), HasSubstr("--pairs: text 1 has 0 tabs"));
  EXPECT_THAT(error({CrossEncoder(), "--pairs", "a\tb", "a\tb\tc"}), HasSubstr("--pairs: text 2 has 2 tabs"));
  EXPECT_EQ(RunLlmc({"score", CrossEncoder(), "--pairs", "--query=a", "b"}).exit_code, 2);
  EXPECT_THAT(error({CrossEncoder(), "--activation=tanh", "a"}), HasSubstr("is none of none, sigmoid and softmax"));
  EXPECT_THAT(error({FamiliesFolder() + "/sentence-mean", "a"}),
              HasSubstr("the model gives embeddings, no scores of labels"));
  EXPECT_THAT(error({kModel, "a"}), HasSubstr("the model gives logits, no scores of labels"));
  std::string text = "cat";
  for (int i = 0; i < 40; ++i) text += " cat";
  EXPECT_THAT(error({CrossEncoder(), "--query=dog", text}),
              HasSubstr("note: 1 of 1 texts have more than the 32 tokens that the model takes, and were cut"));
  EXPECT_THAT(error({CrossEncoder(), "--query=dog", "--no-truncate", text}),
              HasSubstr("text 1: has 45 tokens, the model takes 32"));
  EXPECT_THAT(error({FamiliesFolder() + "/bert-classification", "--query=a", "b"}), HasSubstr("give --tokenizer DIR"));

  const std::string folder = TempFolder() + "/activation";
  fs::copy(CrossEncoder(), folder, fs::copy_options::recursive);
  WriteText(folder + "/config_sentence_transformers.json", R"({"activation_fn": "torch.nn.modules.activation.Tanh"})");
  const CommandResult tanh = RunLlmc({"score", folder, "--query=a", "b"});
  EXPECT_EQ(tanh.exit_code, 3);
  EXPECT_THAT(tanh.err, HasSubstr("Tanh is not supported; choose with --activation"));
  EXPECT_EQ(RunLlmc({"score", folder, "--query=a", "b", "--activation=none"}).exit_code, 0);
  Json tokenizer = Json::parse(ReadFile(folder + "/tokenizer.json"));
  tokenizer["post_processor"] = Json::parse(R"({"type": "TemplateProcessing", "special_tokens": {},
      "single": [{"Sequence": {"id": "A"}}], "pair": [{"Sequence": {"id": "A"}}]})");
  WriteText(folder + "/tokenizer.json", tokenizer.dump());
  EXPECT_THAT(error({folder, "--query=a", "b"}), HasSubstr("which special tokens stand around two texts"));
  EXPECT_EQ(RunLlmc({"score", folder, "a"}).exit_code, 0) << "texts alone need no such tokens";
}

}  // namespace
}  // namespace llmc
