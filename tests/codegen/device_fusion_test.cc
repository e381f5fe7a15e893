// What stands in one kernel in plans for a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "ir/text.h"
#include "runtime/plan/plan_check.h"
#include "runtime/plan/plan_text.h"
#include "tests/codegen/device_plan_parts.h"
#include "tests/runtime/target_programs.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

TEST(DeviceFusion, DecodeStepsFuseWhatComesBeforeAndAfterProducts) {
  if (!HasNvrtc()) GTEST_SKIP() << "there is no NVRTC on this machine";
  const auto model = Parse(kLayer);
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanAndCompile(*model, {"sm_90a"}, &manifest, &code);
  ASSERT_TRUE(status.ok()) << status;
  const auto functions_of = [&](int program) {
    std::vector<std::string> functions;
    for (int task = 0; task < manifest.programs(program).tasks_size(); ++task) {
      const plan::Task& what = manifest.programs(program).tasks(task);
      if (!what.has_kernel()) continue;
      const plan::Kernel& kernel = manifest.kernels(static_cast<int>(what.kernel().kernel()));
      const std::string source = code.sources.substr(kernel.source_offset(), kernel.source_bytes());
      const size_t call = source.rfind("llmc::", source.rfind("<Config>")) + 6;
      functions.push_back(source.substr(call, source.rfind("<Config>") - call));
      const bool dependent = manifest.programs(program).launches(task).mode() == plan::Launch::DEPENDENT;
      EXPECT_EQ(dependent, functions.size() > 1) << functions.back();
    }
    return functions;
  };
  const auto attention = ::testing::StartsWith("PagedAttention");
  ASSERT_EQ(manifest.targets(0).programs_size(), 3);
  for (const int few : {0, 1}) {
    EXPECT_THAT(functions_of(few), ::testing::ElementsAre("Gather", "NormGemvQkvRope", attention, "GemvAdd",
                                                          "NormGemvSiluMul", "GemvAdd", "RmsNorm", "Gather", "Gemv"));
  }
  // The bias and the sums that are normalized are in products, which are cuBLASLt's.
  EXPECT_THAT(functions_of(2), ::testing::ElementsAre("Gather", "RmsNorm", "RopeKvWrite", attention, attention,
                                                      "RmsNorm", "SiluMul", "RmsNorm", "Gather", "Gemv"));
}

// The sum has no memory of its own.
TEST(DeviceFusion, WritesANormOverASumThatNothingElseReads) {
  const auto model = Parse(R"(model m
step main(%x: f32[40, 64], %y: f32[40, 64], %w: f32[64], %z: f64[40, 64], %v: f64[64]) {
  %a = add %x, %y
  %b = rms_norm %a, %w
  %c = add %z, %z
  %d = rms_norm %c, %v
  return "b" = %b, "d" = %d
}
)");
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, {*FindTarget("sm_90a")}, &manifest, &code);
  ASSERT_TRUE(status.ok()) << status;
  const plan::Program& program = *FirstCode(manifest).programs()[0];
  ASSERT_EQ(program.tasks_size(), 3) << "f64 has no kernel for both";
  const auto& args = program.tasks(0).args();
  EXPECT_EQ(args[0].buffer(), args[1].buffer());
  EXPECT_TRUE(args[0].writes() && args[1].writes());
}

// A gate is written in the order of the product with codes that reads it, if that is all that reads it.
TEST(DeviceFusion, WritesInOrderWhatAProductAloneReads) {
  const auto sources_of = [](const std::string& outputs, const std::string& rows, const std::string& more = "") {
    const auto model = Parse(absl::StrReplaceAll(R"(model m
dim T <= ROWS
step main(%x: bf16[T, 256], %q: i4[1024, 256], %s: bf16[1024, 2], %qd: i4[256, 512], %sd: bf16[256, 4]) {
  %w = encode %q, %s {as = "int4 group=128 scale=bf16", to = bf16}
  %g = linear %x, %w {transpose_rhs = true}
  %gated = silu_mul %g
  %d = encode %qd, %sd {as = "int4 group=128 scale=bf16", to = bf16}
  %y = linear %gated, %d {transpose_rhs = true}
MORE  return OUTPUTS
}
)",
                                                 {{"OUTPUTS", outputs}, {"ROWS", rows}, {"MORE", more}}));
    plan::Manifest manifest = ManifestOf(*model);
    DeviceCode code;
    const absl::Status status = PlanDevice(*model, *ParseTargets({"sm_90a"}), &manifest, &code);
    EXPECT_TRUE(status.ok()) << status;
    return code.sources;
  };
  for (const char* rows : {"32", "128"}) {
    const std::string in_order = sources_of("\"y\" = %y", rows);
    EXPECT_THAT(in_order, HasSubstr("using OrderedBy = llmc::i4;"));
    EXPECT_THAT(in_order, HasSubstr("EncodedGemmSiluMul<Config>"));
    const std::string read_twice = sources_of("\"y\" = %y, \"gated\" = %gated", rows);
    EXPECT_THAT(read_twice, HasSubstr("EncodedGemmSiluMul<Config>"));
    EXPECT_THAT(read_twice, ::testing::Not(HasSubstr("OrderedBy =")));
    for (const char* reader : {"%u = linear %gated, %d {transpose_rhs = true}", "%u = add %gated, %gated"}) {
      const std::string of_both = sources_of("\"y\" = %y, \"u\" = %u", rows, absl::StrCat("  ", reader, "\n"));
      EXPECT_THAT(of_both, ::testing::Not(HasSubstr("OrderedBy ="))) << reader;
    }
  }
  // Rows that are read as they are: by GEMV, and by the kernel of prompts.
  for (const char* rows : {"8", "300"}) {
    EXPECT_THAT(sources_of("\"y\" = %y", rows), ::testing::Not(HasSubstr("OrderedBy ="))) << rows;
  }
}

// What a chain of arithmetic computes on the way has no memory, no task and no name in the code: only readers see one.
TEST(DeviceFusion, MakesOneKernelOfArithmetic) {
  if (!HasNvrtc()) GTEST_SKIP() << "there is no NVRTC on this machine";
  const auto model = Parse(R"(model m
dim T <= 32
step main(%x: f32[T, 64], %y: f32[T, 64]) {
  %half = constant {value = 0.5} : f32[]
  %a = add %x, %y
  %b = exp %a
  %c = mul %a, %half
  %d = mul %b, %c
  %e = reduce_sum %d {axes = [1], keep_dims = true}
  %f = div %d, %e
  return "f" = %f
}
)");
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanAndCompile(*model, {"sm_90a"}, &manifest, &code);
  ASSERT_TRUE(status.ok()) << status;
  const plan::Program& program = manifest.programs(0);
  ASSERT_EQ(program.tasks_size(), 3);
  EXPECT_EQ(std::count(program.tasks(0).label().begin(), program.tasks(0).label().end(), '\n'), 3) << "four lines";
  for (const plan::Buffer& buffer : program.buffers()) {
    for (const std::string& value : buffer.values())
      EXPECT_THAT(value, ::testing::AnyOf("%x", "%y", "%d", "%e", "%f", "%half"));
  }
  EXPECT_THAT(code.sources, HasSubstr(R"(
    const float v0 = llmc::op::Add(x0, x1);
    const float v1 = llmc::op::Exp(v0);
)"));
  for (const plan::Kernel& kernel : manifest.kernels()) {
    EXPECT_THAT(code.sources.substr(kernel.source_offset(), kernel.source_bytes()), ::testing::Not(HasSubstr("%")));
  }
  const plan::Kernel& kernel = manifest.kernels(static_cast<int>(program.tasks(0).kernel().kernel()));
  EXPECT_THAT(KernelListing(kernel, code.sources), ::testing::StartsWith("// %a = add %x, %y"));
  EXPECT_THAT(KernelListing(kernel, code.sources), HasSubstr(R"(    const float x0 = llmc::Widen(in0);  // %x
    const float x1 = llmc::Widen(in1);  // %y
    const float v0 = llmc::op::Add(x0, x1);  // %a = add %x, %y
    const float v1 = llmc::op::Exp(v0);  // %b = exp %a
    const float v2 = llmc::op::Mul(v0, 0.5f);  // %c = mul %a, %half
    const float v3 = llmc::op::Mul(v1, v2);  // %d = mul %b, %c
    return llmc::Narrow<float>(v3);
)"));
}

}  // namespace
}  // namespace llmc
