// GGUF files that tests/families/make_gguf.py made, against what transformers, tokenizers and SentencePiece computed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "frontend/import.h"
#include "runtime/engine/generation_config.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// The unpacked archive.
const std::string& GgufFolder() {
  static const std::string folder = [] {
    std::string path = TempFolder() + "/gguf";
    fs::create_directories(path);
    const std::string archive = LLMC_TEST_DATA "/../families/data/gguf.tar.gz";
    EXPECT_EQ(std::system(absl::StrCat("tar -xzf '", archive, "' -C '", path, "'").c_str()), 0);
    return path;
  }();
  return folder;
}

TEST(GgufFiles, LogitsAreThoseOfTransformers) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(GgufFolder())) {
    const std::string path = entry.path();
    const std::string stem(absl::StripSuffix(path, ".gguf"));
    if (!absl::EndsWith(path, ".gguf") || !fs::exists(stem + ".outputs.safetensors")) continue;
    ++count;
    // Of f32, from the weights as the file has them; logits are up to 7.
    const CommandResult result = RunLlmc({"run", path, "--dtype=f32", "--inputs", stem + ".inputs.safetensors",
                                          "--compare", stem + ".outputs.safetensors", "--rtol", "0", "--atol", "1e-4"});
    EXPECT_EQ(result.exit_code, 0) << path << "\n" << result.out << result.err;
  }
  EXPECT_EQ(count, 19);
}

TEST(GgufFiles, QuantizedModelsOfOthersAgree) {
  const std::string quant = SharedData("quant");
  if (quant.empty()) GTEST_SKIP() << "the shared test data is not there";
  int count = 0;
  for (const auto& entry : fs::directory_iterator(quant)) {
    const std::string name = entry.path().filename(),
                      reference = absl::StrCat(quant, "/", name, "/reference.safetensors");
    if (!absl::StartsWith(name, "gguf-")) continue;
    ++count;
    // The file's notes: 2^-15 of the logits is rounded off.
    const CommandResult result =
        RunLlmc({"run", absl::StrCat(quant, "/", name, "/model.gguf"), "--dtype=f32", "--inputs", reference,
                 "--compare", reference, "--rtol", "0", "--atol", "2e-3"});
    EXPECT_EQ(result.exit_code, 0) << name << "\n" << result.out << result.err;
  }
  EXPECT_GE(count, 13);
  const CommandResult cut = RunLlmc({"run", quant + "/bad-gguf-truncated/model.gguf"});
  EXPECT_EQ(cut.exit_code, 1);
  EXPECT_THAT(cut.err, HasSubstr("are not within the file's"));
  EXPECT_THAT(cut.err, HasSubstr("it may be cut off: download it again"));
}

TEST(GgufFiles, CheckTellsHowTensorsAreStored) {
  const std::string quant = SharedData("quant");
  if (quant.empty()) GTEST_SKIP() << "the shared test data is not there";
  const std::string file = quant + "/gguf-q4_k/model.gguf";
  const CommandResult text = RunLlmc({"check", file});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, ContainsRegex("blk.\\*.attn_q.weight +Q4_K +2 x   4.500 bits a number"));
  EXPECT_THAT(text.out, ContainsRegex("output.weight +Q6_K +1 x   6.562 bits a number"));
  const nlohmann::json json = nlohmann::json::parse(RunLlmc({"check", file, "--json"}).out);
  EXPECT_EQ(json["tensors"][0]["name"], "blk.*.attn_k.weight");
  // Memory is counted as blocks, in the plan too.
  const nlohmann::json fit = nlohmann::json::parse(RunLlmc({"fit", file, "--gpu-memory=8GiB", "--json"}).out);
  EXPECT_LT(fit["weights"].get<int64_t>(), 900'000) << fit;
}

TEST(GgufFiles, TokenizersAreThoseOfTheirPackages) {
  for (const char* name : {"tokenizer-gpt2", "tokenizer-qwen2", "tokenizer-llama"}) {
    SCOPED_TRACE(name);
    const std::string stem = absl::StrCat(GgufFolder(), "/", name);
    const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = ReadTokenizer(GgufSideFiles(stem + ".gguf"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const nlohmann::json rows = nlohmann::json::parse(ReadFile(stem + ".json"));
    ASSERT_GT(rows.size(), 5u);
    for (const nlohmann::json& row : rows) {
      const absl::StatusOr<std::vector<int32_t>> ids = (*tokenizer)->Encode(row["text"].get<std::string>(), {});
      ASSERT_TRUE(ids.ok());
      EXPECT_EQ(nlohmann::json(*ids), row["ids"]) << row["text"];
    }
  }
}

TEST(GgufFiles, GenerateAndCompile) {
  const std::string file = GgufFolder() + "/tokenizer-gpt2.gguf", plan = TempFolder() + "/gguf.bin";
  const CommandResult direct = RunLlmc({"generate", file, "--prompt", "a plan", "--max-new-tokens", "4"});
  EXPECT_EQ(direct.exit_code, 0) << direct.err;
  EXPECT_EQ(RunLlmc({"compile", file, "-o", plan}).exit_code, 0);
  EXPECT_EQ(RunLlmc({"generate", plan, "--prompt", "a plan", "--max-new-tokens", "4"}).out, direct.out);
  // A dump finds its weights in the file again.
  const std::string dump = TempFolder() + "/gguf.lir";
  EXPECT_EQ(RunLlmc({"opt", file, "-o", dump}).exit_code, 0);
  const CommandResult shown = RunLlmc({"check", dump, "--dim", "none=1"});
  EXPECT_NE(shown.exit_code, 4) << shown.err;
  EXPECT_EQ(RunLlmc({"opt", dump, "--weights-folder", GgufFolder(), "-o", TempFolder() + "/again.lir"}).exit_code, 0);
  EXPECT_THAT(RunLlmc({"check", file, "--dim", "B=1"}).err, HasSubstr("--dim and --set are for ONNX files"));
}

}  // namespace
}  // namespace llmc
