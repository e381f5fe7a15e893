// Every dump of every model parses, prints to the same bytes, resumes to the last dump, and gives the same numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

struct Case {
  std::string model;   // an ONNX file or a folder
  std::string inputs;  // safetensors file
  bool is_f32;         // so that the import computes in f32 too
  bool paginated = false;
};

// Decoders that take a cache do so before and after the passes.
const char* PaginationFlag(const Case& c) { return c.paginated ? "--paginate" : "--no-paginate"; }

std::string WithoutFirstLine(const std::string& text) { return text.substr(text.find('\n') + 1); }

std::vector<std::string> DumpsIn(const std::string& folder) {
  std::vector<std::string> dumps;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".lir") dumps.push_back(entry.path().string());
  }
  std::sort(dumps.begin(), dumps.end());
  return dumps;
}

std::string NextPass(const std::string& dump) {
  return std::to_string(std::stoi(fs::path(dump).filename().string().substr(0, 2)) + 1);
}

void CheckDump(const Case& c, const std::string& dump, const std::string& last, const std::string& plan) {
  SCOPED_TRACE(dump);
  const std::string folder = fs::is_directory(c.model) ? c.model : fs::path(c.model).parent_path().string();
  const std::string weights = "--weights-folder=" + folder, from = NextPass(dump);
  const CommandResult printed = RunLlmc({"opt", dump, "--passes=none", weights});
  ASSERT_EQ(printed.exit_code, 0) << printed.err;
  EXPECT_TRUE(printed.out == ReadFile(dump)) << "prints to other bytes";

  std::vector<std::string> resume = {"opt", dump, "--from=" + from, weights, PaginationFlag(c)};
  if (from == "1") resume.push_back("--dtype=f32");
  const CommandResult resumed = RunLlmc(resume);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_TRUE(resumed.out == WithoutFirstLine(last)) << "resumes to another program";

  if (from == "1" && !c.is_f32) return;
  const std::string outputs = dump + ".safetensors";
  const CommandResult run = RunLlmc({"run", dump, weights, "--inputs", c.inputs, "--outputs", outputs});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const CommandResult same =
      RunLlmc({"run", plan, "--inputs", c.inputs, "--compare", outputs, "--rtol", "1e-4", "--atol", "1e-4"});
  EXPECT_EQ(same.exit_code, 0) << same.out << same.err;
}

void CheckDumps(const Case& c) {
  SCOPED_TRACE(c.model);
  const std::string dir = TempFolder() + "/dumps", plan = TempFolder() + "/plan.bin";
  const CommandResult compiled =
      RunLlmc({"compile", c.model, "-o", plan, "--target=host", "--dtype=f32", "--dump-ir=" + dir, PaginationFlag(c)});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  const std::vector<std::string> dumps = DumpsIn(dir);
  ASSERT_GE(dumps.size(), 2u);
  const std::string last = ReadFile(dumps.back());
  EXPECT_TRUE(RunLlmc({"show", plan, "--ir"}).out == WithoutFirstLine(last)) << "the plan holds another program";
  for (const std::string& dump : dumps) CheckDump(c, dump, last, plan);
  fs::remove_all(dir);
}

TEST(Dumps, ShippedModel) {
  const std::string folder = LLMC_TEST_DATA "/tale-7m";
  CheckDumps({folder + "/model.onnx", folder + "/onnx_inputs.safetensors", false});
  CheckDumps({folder, folder + "/reference_logits.safetensors", false});
}

TEST(Dumps, EveryExport) {
  const std::string exports = SharedData("onnx-exports");
  if (exports.empty()) GTEST_SKIP() << "the shared test data is not there";
  for (const auto& entry : fs::directory_iterator(exports)) {
    const std::string folder = entry.path().string();
    CheckDumps({folder + "/model.onnx", folder + "/inputs.safetensors", true});
  }
}

TEST(Dumps, PaginatedDecoders) {
  for (const char* name : {"llama-gqa-nocache-dynamo18", "qwen3-nocache-dynamo23", "gpt2-nocache-dynamo23"}) {
    const std::string folder = SharedData(std::string("onnx-exports/") + name);
    if (folder.empty()) GTEST_SKIP() << "the shared test data is not there";
    CheckDumps({folder + "/model.onnx", folder + "/inputs.safetensors", true, true});
  }
}

TEST(Dumps, OtherTrainedModels) {
  const std::string folder = SharedData("tale-27m-qwen3"), onnx = SharedData("tale-7m-onnx-bf16");
  if (folder.empty() || onnx.empty()) GTEST_SKIP() << "the shared test data is not there";
  CheckDumps({folder, folder + "/reference_logits.safetensors", false});
  CheckDumps({onnx + "/model.onnx", onnx + "/inputs.safetensors", false});
}

TEST(Dumps, TinyFolders) {
  const std::string tiny = SharedData("tiny-models");
  if (tiny.empty()) GTEST_SKIP() << "the shared test data is not there";
  for (const char* name : {"llama-gqa", "llama-tied-bias", "llama31-rope", "llama-rope-linear", "llama-yarn",
                           "mistral-sliding", "qwen2-bias", "qwen3"}) {
    CheckDumps({tiny + "/" + name, tiny + "/" + name + "/reference.safetensors", false});
  }
}

}  // namespace
}  // namespace llmc
