// `llmc check` of Hugging Face folders: everything that is wrong in one report.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>

#include "absl/strings/str_cat.h"
#include "frontend/formats/safetensors.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

void ChangeJsonFile(const std::string& file, const std::function<void(nlohmann::json*)>& change) {
  nlohmann::json json = nlohmann::json::parse(ReadFile(file));
  change(&json);
  std::ofstream(file) << json.dump();
}

// A copy of the shipped model with another name at the end.
std::string ModelNamed(const std::string& name) {
  const std::string folder = absl::StrCat(TempFolder(), "/", name);
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const char* file :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}) {
    if (fs::exists(absl::StrCat(ShippedModel(), "/", file))) {
      fs::copy_file(absl::StrCat(ShippedModel(), "/", file), absl::StrCat(folder, "/", file));
    }
  }
  return folder;
}

nlohmann::json FindingOfKind(const nlohmann::json& report, const std::string& kind) {
  for (const nlohmann::json& finding : report["findings"]) {
    if (finding["kind"] == kind) return finding;
  }
  return nullptr;
}

TEST(FolderCheck, FineFolderHasNoFindings) {
  const CommandResult result = RunLlmc({"check", ModelNamed("fine"), "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json report = result.Json();
  EXPECT_EQ(report["ok"], true);
  EXPECT_TRUE(report["findings"].empty()) << report["findings"];
  EXPECT_TRUE(report["notes"].empty()) << report["notes"];
}

TEST(FolderCheck, TellsAllOfTensorsTokensAndTokenizer) {
  const std::string folder = ModelNamed("all");
  absl::StatusOr<NamedTensors> tensors = ReadSafetensors(folder + "/model.safetensors");
  ASSERT_TRUE(tensors.ok());
  tensors->erase("model.layers.0.self_attn.q_proj.weight");
  tensors->erase("model.norm.weight");
  tensors->at("model.layers.1.mlp.down_proj.weight") = Tensor(DType::kF16, {2, 3});
  tensors->emplace("surprise", Tensor(DType::kF32, {1}));
  const NamedTensors copy = *tensors;
  ASSERT_TRUE(WriteSafetensors(folder + "/other.safetensors", copy).ok());
  fs::rename(folder + "/other.safetensors", folder + "/model.safetensors");
  ChangeJsonFile(folder + "/generation_config.json", [](nlohmann::json* json) {
    (*json)["eos_token_id"] = {0, 99999};
  });
  std::ofstream(folder + "/tokenizer.json") << "{\"model\": {\"type\": \"Nothing\"}}";
  const CommandResult result = RunLlmc({"check", folder, "--json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("the model cannot be compiled: 4 findings, the first: "));
  const nlohmann::json report = result.Json();
  EXPECT_EQ(report["ok"], false);
  EXPECT_EQ(report["findings"].size(), 6u) << report["findings"].dump(1);
  const nlohmann::json wrong = FindingOfKind(report, "wrong tensor");
  EXPECT_EQ(wrong["file"], "model.safetensors");
  EXPECT_EQ(wrong["place"], "model.layers.1.mlp.down_proj.weight");
  EXPECT_EQ(wrong["found"], "f16[2, 3]");
  EXPECT_THAT(wrong["expected"].get<std::string>(), HasSubstr("["));
  EXPECT_EQ(wrong["severity"], "error");
  EXPECT_EQ(FindingOfKind(report, "extra tensor")["place"], "surprise");
  EXPECT_EQ(FindingOfKind(report, "missing tensor")["found"], "nothing");
  const nlohmann::json token = FindingOfKind(report, "token");
  EXPECT_EQ(token["severity"], "warning");
  EXPECT_EQ(token["file"], "generation_config.json");
  EXPECT_EQ(token["place"], "eos_token_id");
  EXPECT_EQ(token["found"], "99999");
  EXPECT_THAT(FindingOfKind(report, "tokenizer")["message"].get<std::string>(), HasSubstr("tokenizer.json"));
  // As text, a line each.
  const CommandResult text = RunLlmc({"check", folder});
  EXPECT_THAT(text.out,
              HasSubstr("wrong: model.safetensors: tensor \"model.layers.1.mlp.down_proj.weight\": found f16[2, "
                        "3], expected ["));
  EXPECT_THAT(text.out, HasSubstr("\"eos_token_id\" is 99999, expected an id from 0 to "));
}

TEST(FolderCheck, WarnsOfNumbersThatAreNone) {
  const std::string folder = ModelNamed("numbers");
  absl::StatusOr<NamedTensors> read = ReadSafetensors(folder + "/model.safetensors");
  ASSERT_TRUE(read.ok());
  NamedTensors tensors;
  for (const auto& [name, tensor] : *read) {
    Tensor copy(tensor.dtype(), tensor.shape());
    std::copy_n(tensor.raw(), tensor.bytes(), copy.mutable_raw());
    tensors[name] = copy;
  }
  Tensor& down = tensors.at("model.layers.1.mlp.down_proj.weight");
  down.SetFloat(3 * down.shape()[1] + 5, std::nan(""));
  tensors.at("model.norm.weight").SetFloat(2, HUGE_VAL);
  ASSERT_TRUE(WriteSafetensors(folder + "/other.safetensors", tensors).ok());
  fs::rename(folder + "/other.safetensors", folder + "/model.safetensors");
  const CommandResult text = RunLlmc({"check", folder}), strict = RunLlmc({"check", folder, "--strict", "--json"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("warning: model.safetensors: tensor \"model.layers.1.mlp.down_proj.weight\"[3, 5] is "
                                  "NaN: the model may compute noise"));
  EXPECT_THAT(text.out, HasSubstr("tensor \"model.norm.weight\"[2] is infinite"));
  EXPECT_EQ(strict.exit_code, 1);
  EXPECT_EQ(strict.Json()["findings"].size(), 2u);
  EXPECT_EQ(FindingOfKind(strict.Json(), "number")["file"], "model.safetensors");
}

TEST(FolderCheck, TellsAllOfTheConfigAndTheCheckpoint) {
  const std::string folder = ModelNamed("config");
  ChangeJsonFile(folder + "/config.json", [](nlohmann::json* json) {
    (*json)["hidden_size"] = -1;
    (*json)["hidden_act"] = "wavy";
  });
  std::ofstream(folder + "/model.safetensors") << "short";
  const nlohmann::json report = RunLlmc({"check", folder, "--json"}).Json();
  int config = 0, checkpoint = 0;
  for (const nlohmann::json& finding : report["findings"]) {
    config += finding["kind"] == "config" ? 1 : 0;
    checkpoint += finding["kind"] == "checkpoint" ? 1 : 0;
  }
  EXPECT_GE(config, 2) << report.dump(1);
  EXPECT_EQ(checkpoint, 1) << report.dump(1);
}

TEST(FolderCheck, WhatIsNotSupportedHasItsExitCode) {
  const std::string folder = ModelNamed("unsupported");
  ChangeJsonFile(folder + "/config.json", [](nlohmann::json* json) { (*json)["architectures"] = {"NewForCausalLM"}; });
  const CommandResult result = RunLlmc({"check", folder});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, HasSubstr("NewForCausalLM"));
}

TEST(FolderCheck, IdsPastTheEmbedding) {
  const std::string folder = ModelNamed("ids");
  ChangeJsonFile(folder + "/tokenizer.json", [](nlohmann::json* json) {
    (*json)["added_tokens"].push_back({{"id", 4100},
                                       {"content", "<extra>"},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false},
                                       {"normalized", false},
                                       {"special", true}});
  });
  const CommandResult result = RunLlmc({"check", folder});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("has ids up to 4100; vocab_size of config.json is 4096"));
}

TEST(FolderCheck, MisspelledKeysStandAgainstCompiling) {
  const std::string folder = ModelNamed("misspelled");
  ChangeJsonFile(folder + "/config.json", [](nlohmann::json* json) {
    (*json)["rms_norm_epsi"] = (*json)["rms_norm_eps"];
    json->erase("rms_norm_eps");
  });
  const CommandResult checked = RunLlmc({"check", folder});
  EXPECT_EQ(checked.exit_code, 1);
  EXPECT_THAT(checked.out, HasSubstr("wrong: " + folder +
                                     "/config.json: \"rms_norm_epsi\" must be absent or null; "
                                     "\"rms_norm_eps\" may be meant"));
  const CommandResult compiled = RunLlmc({"compile", folder, "--target=host", "-o", TempFolder() + "/misspelled.bin"});
  EXPECT_EQ(compiled.exit_code, 1);
  EXPECT_THAT(compiled.err, HasSubstr("\"rms_norm_eps\" may be meant"));
}

TEST(FolderCheck, NotesKeysThatNothingReadsAndMissingTemplates) {
  const std::string folder = ModelNamed("Tale-7M-Instruct");
  ChangeJsonFile(folder + "/config.json", [](nlohmann::json* json) {
    (*json)["surprise_factor"] = 2;
    (*json)["use_cache"] = true;
  });
  const CommandResult result = RunLlmc({"check", folder});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("note: " + folder + "/config.json: nothing reads \"surprise_factor\" for this"));
  EXPECT_THAT(result.out, HasSubstr("there is no chat template"));
  std::ofstream(folder + "/chat_template.jinja") << "{{ messages }}";
  EXPECT_THAT(RunLlmc({"check", folder}).out, Not(HasSubstr("there is no chat template")));
}

}  // namespace
}  // namespace llmc
