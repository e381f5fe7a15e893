#include "tests/tools/sentence_variants.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "frontend/formats/safetensors.h"
#include "tests/families.h"
#include "tests/tools/run_command.h"

namespace llmc {

namespace fs = std::filesystem;
using Json = nlohmann::json;

Json SentenceVariants() { return Json::parse(ReadFile(LLMC_TEST_DATA "/../families/data/poolings.json")); }

std::vector<std::string> With(std::vector<std::string> args, const std::vector<std::string>& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

void WriteText(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path) << text;
}

std::string FolderOfVariant(const Json& variant) {
  const std::string folder = TempFolder() + "/" + variant["name"].get<std::string>();
  fs::remove_all(folder);
  fs::copy(FamiliesFolder() + "/" + variant["base"].get<std::string>(), folder, fs::copy_options::recursive);
  const auto list = [&](const char* key) { return variant.value(key, Json::array()).get<std::vector<std::string>>(); };
  const Json files = variant.value("files", Json::object()), all_weights = variant.value("weights", Json::object());
  const Json moved = variant.value("moved", Json::object());
  for (const std::string& name : list("borrowed")) {
    fs::copy_file(FamiliesFolder() + "/sentence-mean/" + name, folder + "/" + name);
  }
  for (const std::string& path : list("removed")) fs::remove(folder + "/" + path);
  for (const auto& [path, contents] : files.items()) WriteText(folder + "/" + path, contents.dump());
  for (const auto& [path, weights] : all_weights.items()) {
    NamedTensors tensors;
    for (const auto& [name, weight] : weights.items()) {
      tensors[name] =
          Tensor::FromValues(DType::kF32, weight["shape"].get<Shape>(), weight["values"].get<std::vector<double>>());
    }
    fs::create_directories(fs::path(folder + "/" + path).parent_path());
    EXPECT_TRUE(WriteSafetensors(folder + "/" + path, tensors).ok());
  }
  for (const auto& [place, names] : moved.items()) {
    fs::create_directories(folder + "/" + place);
    for (const std::string name : names) fs::rename(folder + "/" + name, folder + "/" + place + "/" + name);
  }
  return folder;
}

std::vector<std::string> CompileArguments(const Json& variant) {
  std::vector<std::string> arguments = {"--dtype=f32"};
  for (const std::string argument : variant.value("arguments", Json::array())) {
    if (!absl::StartsWith(argument, "--activation")) arguments.push_back(argument);
  }
  return arguments;
}

std::vector<std::string> RunArguments(const Json& variant) {
  std::vector<std::string> arguments;
  if (variant.contains("prompt_name"))
    arguments.push_back("--prompt-name=" + variant["prompt_name"].get<std::string>());
  for (const std::string argument : variant.value("arguments", Json::array())) {
    if (absl::StartsWith(argument, "--activation")) arguments.push_back(argument);
  }
  return arguments;
}

}  // namespace llmc
