// What is planned for a GPU, without one: programs, arguments, kernels and their code.
#include "codegen/device_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/kernel_call.h"
#include "codegen/nvrtc.h"
#include "ir/text.h"
#include "runtime/plan_check.h"
#include "runtime/plan_format.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = R"(model "m"
dim N <= 64
dim P <= 8
dim R <= 32
dim S <= 16
dim T <= 32
weight @embed: bf16[100, 64] = "f#e"
weight @norm: bf16[64] = "f#n"
weight @a: bf16[32, 64] = "f#a"
weight @b: bf16[32, 64] = "f#b"
state @kv0: bf16[N, 2, 16, 2, 16]
prepare {
  @ab = concat @a, @b
}
step main(%ids: i32[T], %pos: i32[T], %slots: i32[T], %pages: i32[S, P], %lens: i32[S], %starts: i32[S + 1], %rows: i32[R]) {
  %x = gather @embed, %ids
  %n1 = rms_norm %x, @norm
  %n2 = rms_norm %n1, @norm
  %q = matmul %n2, @ab {transpose_rhs = true}
  %s = add %x, %q
  %r = gather %s, %rows
  %l = matmul %r, @embed {transpose_rhs = true}
  %logits = cast %l
  return "logits" = %logits
}
)";

std::unique_ptr<Model> Parse(const std::string& text) {
  auto model = ParseModel(text, "m.lir");
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

plan::Manifest ManifestOf(const Model& model) {
  plan::Manifest manifest;
  manifest.set_format_version(plan::kVersion);
  for (const Value* weight : model.weights) {
    plan::Weight* to = manifest.add_weights();
    to->set_name(weight->name);
    to->set_dtype("bf16");
    int64_t bytes = 2;
    for (const Dim& dim : weight->type.shape) {
      to->add_shape(dim.value());
      bytes *= dim.value();
    }
    to->set_bytes(static_cast<uint64_t>(bytes));
  }
  for (const Value* state : model.states) {
    plan::State* to = manifest.add_states();
    to->set_name(state->name);
    to->set_dtype("bf16");
    for (const Dim& dim : state->type.shape) to->add_shape(dim.ToString());
  }
  return manifest;
}

bool HasNvrtc() { return !absl::IsNotFound(CompileToCubin("", "empty.cu", "sm_90a").status()); }

TEST(DevicePlan, MakesProgramsForFewAndForManyTokens) {
  if (!HasNvrtc()) GTEST_SKIP() << "there is no NVRTC on this machine";
  const auto model = Parse(kModel);
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, {"sm_90a", "sm_80"}, &manifest, &code);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(manifest.programs_size(), 2);
  EXPECT_EQ(manifest.prepare().steps_size(), 2) << "a copy for each part";
  EXPECT_EQ(manifest.prepare().arena_bytes(), 2u * 64 * 64);
  // Few tokens go through matrix-vector kernels, many through cuBLASLt.
  int products[2] = {0, 0};
  for (int p : {0, 1}) {
    for (const plan::Step& step : manifest.programs(p).steps()) products[p] += step.has_gemm();
  }
  EXPECT_EQ(products[0], 0);
  EXPECT_EQ(products[1], 2);
  // Both norms, in both programs, are one kernel; the two gathers are another.
  std::map<std::string, int> kernels;
  for (const plan::Kernel& kernel : manifest.kernels()) {
    ++kernels[kernel.entry().substr(kernel.entry().find('_') + 1)];
    EXPECT_EQ(kernel.cubins_size(), 2);
    EXPECT_EQ(code.cubins.substr(kernel.cubins(0).offset() + 1, 3), "ELF");
    EXPECT_THAT(code.sources.substr(kernel.source_offset(), kernel.source_bytes()), HasSubstr(kernel.entry() + "("));
  }
  EXPECT_EQ(kernels["rms_norm"], 1);
  EXPECT_EQ(kernels["gather"], 1);
  EXPECT_EQ(kernels["matvec"], 2);

  const plan::SectionBytes sections = {
      .weights = uint64_t{1} << 20, .sources = code.sources.size(), .cubins = code.cubins.size()};
  EXPECT_TRUE(plan::CheckManifest(manifest, sections).ok()) << plan::CheckManifest(manifest, sections);
  const auto altered = [&](auto change) {
    plan::Manifest copy = manifest;
    change(&copy);
    return plan::CheckManifest(copy, sections).ok();
  };
  using M = plan::Manifest*;
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_steps(0)->mutable_args(0)->set_buffer(999); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_steps(0)->mutable_args(0)->set_weight(4); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_steps(0)->mutable_args(0)->set_offset(1 << 30); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_steps(0)->mutable_launch()->set_kernel(99); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_steps(0)->mutable_launch()->set_grid(0, "T+"); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_kernels(0)->set_threads(2048); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_kernels(0)->mutable_cubins(0)->set_bytes(uint64_t{1} << 40); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_prepare()->mutable_steps(0)->clear_args(); }));
}

TEST(DevicePlan, ListsEveryOpWithoutAKernel) {
  const auto model = Parse(
      "model m\ndim T <= 4\nstep main(%x: f32[T, 4]) {\n  %c = cumsum %x {axis = 1}\n  %d = erf %c\n  return \"y\" = "
      "%d\n}\n");
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, {"sm_90a"}, &manifest, &code);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cumsum"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("erf"));
}

TEST(EmitKernel, IsACompleteFile) {
  KernelCall call{.header = "silu_mul", .function = "SiluMul"};
  call.types = {{"T", "llmc::bf16"}};
  call.constants = {{"kDim", 768}};
  call.params = {{"llmc::bf16*", "out", {}}, {"const llmc::bf16*", "gate_up", {}}, {"llmc::i64", "rows", {}}};
  EXPECT_EQ(EmitKernel(call, "k0_silu_mul"), R"(#include "kernels/silu_mul.cuh"
namespace {
struct Config {
  using T = llmc::bf16;
  static constexpr int kDim = 768;
  static constexpr int kThreads = 256;
};
}  // namespace

extern "C" __global__ __launch_bounds__(Config::kThreads) void k0_silu_mul(
    llmc::bf16* out, const llmc::bf16* gate_up, llmc::i64 rows) {
  llmc::SiluMul<Config>(out, gate_up, rows);
}
)");
}

TEST(Nvrtc, SaysWhatIsWrongWithASource) {
  if (!HasNvrtc()) GTEST_SKIP() << "there is no NVRTC on this machine";
  const auto cubin = CompileToCubin("extern \"C\" __global__ void k() { nonsense(); }", "k.cu", "sm_90a");
  EXPECT_THAT(std::string(cubin.status().message()), HasSubstr("nonsense"));
}

}  // namespace
}  // namespace llmc
