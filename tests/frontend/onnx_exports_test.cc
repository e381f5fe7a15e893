// Imports real exports of PyTorch and runs them on the host against PyTorch's outputs.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "frontend/formats/safetensors.h"
#include "frontend/import.h"
#include "frontend/onnx/import.h"
#include "ir/eval.h"
#include "passes/driver/ledger.h"
#include "passes/pipeline.h"
#include "tests/shared_data.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

// The largest |got - want| / (atol + rtol |want|); at most 1 is a match.
double WorstError(const Tensor& got, const Tensor& want, double rtol, double atol) {
  double worst = 0;
  for (int64_t i = 0; i < want.size(); ++i) {
    const double a = got.GetFloat(i), b = want.GetFloat(i);
    if (!std::isfinite(a) || !std::isfinite(b)) return INFINITY;
    worst = std::max(worst, std::fabs(a - b) / (atol + rtol * std::fabs(b)));
  }
  return worst;
}

void CheckExport(const fs::path& folder, double rtol, double atol) {
  auto model = ImportOnnx((folder / "model.onnx").string());
  ASSERT_TRUE(model.ok()) << model.status();
  for (const Value* weight : (*model)->weights) EXPECT_TRUE((*model)->data.contains(weight->name)) << weight->name;
  auto inputs = ReadSafetensors((folder / "inputs.safetensors").string());
  auto wanted = ReadSafetensors((folder / "outputs.safetensors").string());
  ASSERT_TRUE(inputs.ok() && wanted.ok()) << inputs.status() << wanted.status();
  const Step& step = *(*model)->steps[0];
  for (const Value* param : step.params) {
    auto it = inputs->find(param->name.substr(1));
    ASSERT_TRUE(it != inputs->end()) << param->name;
    if (it->second.dtype() == param->type.dtype) continue;
    Tensor converted(param->type.dtype, it->second.shape());
    for (int64_t i = 0; i < converted.size(); ++i) converted.SetFloat(i, it->second.GetFloat(i));
    it->second = converted;
  }
  auto evaluator = Evaluator::Create(model->get());
  ASSERT_TRUE(evaluator.ok()) << evaluator.status();
  auto outputs = (*evaluator)->Run(step, *inputs);
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  int compared = 0;
  for (const auto& [name, want] : *wanted) {
    auto it = outputs->find(name);
    if (it == outputs->end()) continue;
    ++compared;
    ASSERT_EQ(it->second.shape(), want.shape()) << name;
    EXPECT_LE(WorstError(it->second, want, rtol, atol), 1) << name;
  }
  EXPECT_EQ(compared, static_cast<int>(step.outputs.size()));
}

class OnnxExports : public testing::TestWithParam<fs::path> {};

TEST_P(OnnxExports, OutputsAreThoseOfPyTorch) { CheckExport(GetParam(), 1e-3, 1e-4); }

TEST_P(OnnxExports, ReportsNothingUnsupported) {
  auto report = CheckOnnx((GetParam() / "model.onnx").string());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->unsupported.empty());
  EXPECT_GT(report->nodes["MatMul"] + report->nodes["Gemm"], 4);
  EXPECT_GE(report->opset, 17);
}

std::vector<fs::path> Folders() {
  std::vector<fs::path> folders;
  const std::string shared = FindSharedData("onnx-exports");
  if (!shared.empty()) {
    for (const auto& entry : fs::directory_iterator(shared)) folders.push_back(entry.path());
    std::sort(folders.begin(), folders.end());
  }
  return folders;
}

std::string TestName(const testing::TestParamInfo<fs::path>& info) {
  std::string name = info.param.filename().string();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OnnxExports);
INSTANTIATE_TEST_SUITE_P(All, OnnxExports, testing::ValuesIn(Folders()), TestName);

TEST(OnnxExportData, IsThere) {
  if (SharedData("onnx-exports").empty()) GTEST_SKIP() << "the shared test data is not there";
  EXPECT_GE(Folders().size(), 21u);
}

// What rules do, and in which order they tell it, does not depend on where nodes lie in memory.
TEST(OnnxExportData, LedgersAreTheSameWhereverNodesLie) {
  if (SharedData("onnx-exports").empty()) GTEST_SKIP() << "the shared test data is not there";
  const fs::path file = fs::path(SharedData("onnx-exports")) / "qwen3-nocache-dynamo18/model.onnx";
  std::string first;
  for (size_t run = 0; run < 48; ++run) {
    // Blocks of the sizes of nodes and values, some of which are free again: other memory for those of the model.
    std::vector<std::unique_ptr<char[]>> blocks;
    for (size_t i = 0; i < 400 * run; ++i) blocks.push_back(std::make_unique<char[]>(64 + i * 37 % 512));
    for (size_t i = 0; i < blocks.size(); i += 2 + run % 3) blocks[i].reset();
    auto model = ImportOnnx(file.string());
    ASSERT_TRUE(model.ok()) << model.status();
    Ledger ledger;
    PipelineOptions options;
    options.pagination = Pagination::kNever;
    ASSERT_TRUE(RunPipeline(model->get(), options, &ledger).ok());
    if (run == 0) first = ledger.ToString();
    EXPECT_EQ(ledger.ToString(), first) << run;
  }
}

// The wanted outputs are float32, the model is not.
TEST(OnnxHalfPrecision, IsNearFloat32) {
  for (const char* name : {"tale-7m-onnx-fp16", "tale-7m-onnx-bf16"}) {
    const fs::path folder = SharedData(name);
    if (folder.empty()) GTEST_SKIP() << "the shared test data is not there";
    CheckExport(folder, 5e-2, name[13] == 'f' ? 2e-2 : 2e-1);
  }
}

}  // namespace
}  // namespace llmc
