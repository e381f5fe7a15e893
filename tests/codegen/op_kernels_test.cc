// Every op has kernels that compile, without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "codegen/device_plan.h"
#include "cubins/nvrtc.h"
#include "ir/ops.h"
#include "ir/text.h"
#include "runtime/plan/plan_check.h"
#include "runtime/plan/plan_format.h"
#include "tests/codegen/device_plan_parts.h"
#include "tests/gpu/op_cases.h"

namespace llmc {
namespace {

class OpKernels : public ::testing::TestWithParam<OpCase> {};

// Compiling takes a while: of the types of an op, f32 stands for the others here; tests on a GPU compile them all.
bool IsCompiled(const std::string& name) {
  for (const DType dtype : {DType::kF64, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI64,
                            DType::kI16, DType::kI8, DType::kU8}) {
    if (absl::StrContains(absl::StrCat(name, " "), absl::StrCat(" ", DTypeName(dtype), " "))) return false;
  }
  return NvrtcVersion().ok();  // else there is no NVRTC here
}

TEST_P(OpKernels, Compile) {
  const auto model = ParseModel(GetParam().device_case.text, "case.lir");
  ASSERT_TRUE(model.ok()) << model.status() << "\n" << GetParam().device_case.text;
  plan::Manifest manifest = ManifestOf(**model);
  uint64_t weights_bytes = 0;
  for (const plan::Weight& weight : manifest.weights()) weights_bytes = std::max(weights_bytes, weight.bytes());
  DeviceCode code;
  absl::Status status = PlanDevice(**model, {*FindTarget("sm_90a")}, &manifest, &code);
  if (status.ok() && IsCompiled(GetParam().name)) {
    status = CompileDevicePlan({.cache_folder = LLMC_CUBINS, .fast_compile = true}, &manifest, &code);
  }
  ASSERT_TRUE(status.ok()) << status << "\n" << GetParam().device_case.text;
  const absl::Status sound = plan::CheckManifest(
      manifest, {.weights = weights_bytes, .sources = code.sources.size(), .cubins = code.cubins.size()});
  EXPECT_TRUE(sound.ok()) << sound;
}

std::string CaseName(const ::testing::TestParamInfo<OpCase>& info) {
  std::string name;
  for (const char c : info.param.name) name.push_back(c == ' ' ? '_' : c);
  return name;
}
INSTANTIATE_TEST_SUITE_P(Every, OpKernels, ::testing::ValuesIn(OpCasesWithoutInputs()), CaseName);

// Ops that no case uses are those of language models, which other tests of tests/gpu use. An op that is new here has no
// kernel.
TEST(OpCases, UseEveryOp) {
  std::set<std::string> unused;
  for (const OpDef* op : AllOpDefs()) unused.insert(std::string(op->info.name));
  for (const OpCase& c : OpCasesWithoutInputs()) {
    const auto model = ParseModel(c.device_case.text, "case.lir");
    ASSERT_TRUE(model.ok()) << model.status() << "\n" << c.device_case.text;
    std::vector<const Block*> blocks = {&(*model)->prepare, &(*model)->steps[0]->block};
    for (const Block* block : blocks) {
      for (const auto& node : block->nodes) unused.erase(std::string(node->op->info.name));
    }
  }
  EXPECT_THAT(unused, ::testing::IsEmpty());
}

}  // namespace
}  // namespace llmc
