// What is planned for a GPU, without one: programs, arguments, kernels and their code.
// Over 500 lines: all that one function plans, from a few models.
#include "codegen/device_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "codegen/kernel_listing.h"
#include "codegen/plan_writer.h"
#include "codegen/tasks/kernel_call.h"
#include "cubins/nvrtc.h"
#include "cubins/targets.h"
#include "ir/text.h"
#include "runtime/plan/dim_expression.h"
#include "runtime/plan/plan_check.h"
#include "runtime/plan/plan_format.h"
#include "runtime/plan/step_programs.h"
#include "tests/runtime/target_programs.h"

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
state @kv0: paged[N, 16] {k: bf16[2, 16], v: bf16[2, 16]}
prepare {
  @ab = concat @a, @b
}
step main(%ids: i32[T] = token_ids, %pos: i32[T] = positions, %slots: i32[T] = slots, %pages: i32[S, P] = page_table, %lens: i32[S] = lengths, %starts: i32[S + 1] = starts, %rows: i32[R] = rows) {
  %x = gather @embed, %ids
  %n1 = rms_norm %x, @norm
  %n2 = rms_norm %n1, @norm
  %q = matmul %n2, @ab {transpose_rhs = true}
  %s = add %x, %q
  %r = gather %s, %rows
  %l = matmul %r, @embed {transpose_rhs = true}
  %logits = cast %l {to = f32}
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
    DescribeState(*state, manifest.add_states());
  }
  return manifest;
}

const CompileOptions kCache = {.cache_folder = LLMC_CUBINS};

absl::Status PlanAndCompile(const Model& model, const std::vector<std::string>& targets, plan::Manifest* manifest,
                            DeviceCode* code) {
  const absl::Status status = PlanDevice(model, *ParseTargets(targets), manifest, code);
  return status.ok() ? CompileDevicePlan(kCache, manifest, code) : status;
}

bool HasNvrtc() { return NvrtcVersion().ok(); }

// A layer as Llama has it: what a step of one token launches, and what one of many does.
constexpr char kLayer[] = R"(model "m"
dim N <= 64
dim P <= 8
dim R <= 2
dim S <= 2
dim T <= 32
weight @embed: bf16[100, 64] = "f#e"
weight @norm: bf16[64] = "f#n"
weight @w_qkv: bf16[128, 64] = "f#q"
weight @b_qkv: bf16[128] = "f#b"
weight @wo: bf16[64, 64] = "f#o"
weight @w_gate_up: bf16[192, 64] = "f#g"
weight @wd: bf16[64, 96] = "f#d"
weight @f: f32[8] = "f#f"
state @kv0: paged[N, 16] {k: bf16[2, 16], v: bf16[2, 16]}
step main(%ids: i32[T] = token_ids, %pos: i32[T] = positions, %slots: i32[T] = slots, %pages: i32[S, P] = page_table, %lens: i32[S] = lengths, %starts: i32[S + 1] = starts, %rows: i32[R] = rows) {
  %x = gather @embed, %ids
  %n1 = rms_norm %x, @norm
  %qkv0 = matmul %n1, @w_qkv {transpose_rhs = true}
  %qkv = add %qkv0, @b_qkv
  %q0 = slice %qkv {axis = 1, start = [0], end = [64]}
  %k0 = slice %qkv {axis = 1, start = [64], end = [96]}
  %v0 = slice %qkv {axis = 1, start = [96], end = [128]}
  %q = rope %q0, %pos, @f {head_dim = 16}
  %k = rope %k0, %pos, @f {head_dim = 16}
  kv_write @kv0, %k, %v0, %slots
  %a = paged_attention %q, @kv0, %pages, %lens, %starts {scale = 0.25}
  %o = matmul %a, @wo {transpose_rhs = true}
  %x1 = add %x, %o
  %n2 = rms_norm %x1, @norm
  %gate_up = matmul %n2, @w_gate_up {transpose_rhs = true}
  %h = silu_mul %gate_up
  %d = matmul %h, @wd {transpose_rhs = true}
  %x2 = add %x1, %d
  %n3 = rms_norm %x2, @norm
  %r = gather %n3, %rows
  %logits = matmul %r, @embed {transpose_rhs = true}
  return "logits" = %logits
}
)";

TEST(DevicePlan, DecodeStepsFuseWhatComesBeforeAndAfterProducts) {
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
TEST(DevicePlan, WritesANormOverASumThatNothingElseReads) {
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

// Over 60 lines: what the plan has, then what is refused of it where it is altered.
TEST(DevicePlan, MakesProgramsForDecodeStepsAndForAll) {
  if (!HasNvrtc()) GTEST_SKIP() << "there is no NVRTC on this machine";
  const auto model = Parse(kModel);
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanAndCompile(*model, {"sm_90a"}, &manifest, &code);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(manifest.targets(0).programs_size(), 6) << "1, 2, 4, 8, 16 sequences, and all steps";
  EXPECT_TRUE(manifest.programs(4).decode());
  EXPECT_FALSE(manifest.programs(5).decode());
  EXPECT_EQ(PrepareOf(&manifest)->tasks_size(), 2) << "a copy for each part";
  EXPECT_EQ(PrepareOf(&manifest)->arena_bytes(), 2u * 64 * 64);
  // Few tokens go through matrix-vector kernels, many through cuBLASLt.
  std::vector<int> products;
  for (const plan::Program* program : FirstCode(manifest).programs()) {
    products.push_back(absl::c_count_if(program->tasks(), [](const plan::Task& task) { return task.has_gemm(); }));
  }
  EXPECT_THAT(products, ::testing::ElementsAre(0, 0, 0, 0, 2, 2));
  // Both norms, in all programs, are one kernel; the two gathers are another.
  std::map<std::string, int> kernels;
  for (const plan::Kernel& kernel : manifest.kernels()) {
    ++kernels[kernel.entry().substr(kernel.entry().find('_') + 1)];
    EXPECT_EQ(kernel.cubins_size(), 1);
    EXPECT_EQ(code.cubins.substr(kernel.cubins(0).offset() + 1, 3), "ELF");
    EXPECT_THAT(code.sources.substr(kernel.source_offset(), kernel.source_bytes()), HasSubstr(kernel.entry() + "("));
  }
  EXPECT_EQ(kernels["rms_norm"], 1);
  EXPECT_EQ(kernels["gather"], 1);
  EXPECT_EQ(kernels["step_inputs"], 1);
  EXPECT_EQ(kernels["sample"], 3);
  for (const plan::Program* program : FirstCode(manifest).programs()) {
    EXPECT_EQ(PartOf(program->tasks(0)), StepPart::kInputs);
    EXPECT_EQ(absl::c_count_if(program->tasks(), [](const auto& t) { return PartOf(t) == StepPart::kInputs; }), 1);
    EXPECT_EQ(absl::c_count_if(program->tasks(), [](const auto& t) { return PartOf(t) == StepPart::kSampling; }), 3);
    EXPECT_EQ(program->launches(0).mode(), plan::Launch::SERIAL);
    EXPECT_EQ(program->launches(1).mode(), plan::Launch::SERIAL) << "kernels read inputs before they wait";
  }
  EXPECT_EQ(kernels["gemv"], 8) << "two shapes for 1, 2, 4, 8 rows";

  const plan::SectionBytes sections = {
      .weights = uint64_t{1} << 20, .sources = code.sources.size(), .cubins = code.cubins.size()};
  EXPECT_TRUE(plan::CheckManifest(manifest, sections).ok()) << plan::CheckManifest(manifest, sections);
  const auto altered = [&](auto change) {
    plan::Manifest copy = manifest;
    change(&copy);
    return plan::CheckManifest(copy, sections).ok();
  };
  using M = plan::Manifest*;
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_tasks(0)->mutable_args(0)->set_buffer(999); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_tasks(0)->mutable_args(0)->set_weight(4); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_tasks(0)->mutable_args(0)->set_persistent(4); }));
  EXPECT_TRUE(altered([](M m) { m->mutable_programs(0)->mutable_tasks(0)->mutable_args(0)->set_persistent(3); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_tasks(1)->add_after(1); })) << "itself";
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_tasks(0)->mutable_cost()->set_flops("2 *"); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_launches(1)->set_first(0); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_launches(1)->set_count(2); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_launches()->RemoveLast(); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_tasks()->RemoveLast(); }));
  EXPECT_FALSE(
      altered([](M m) { m->mutable_programs(0)->mutable_launches(1)->set_mode(static_cast<plan::Launch::Mode>(2)); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_targets(0)->mutable_persistent(0)->set_bytes(uint64_t{1} << 63); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_tasks(0)->mutable_args(0)->set_offset(1 << 30); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_tasks(0)->mutable_kernel()->set_kernel(99); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_tasks(0)->mutable_kernel()->set_tiles(0, "T+"); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_kernels(0)->set_threads(2048); }));
  EXPECT_FALSE(altered([](M m) { ProgramOf(m, 0)->set_arena_bytes(8); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_kernels(0)->mutable_cubins(0)->set_bytes(uint64_t{1} << 40); }));
  EXPECT_FALSE(altered([](M m) { PrepareOf(m)->mutable_tasks(0)->clear_args(); }));
  EXPECT_TRUE(altered([](M) {}));
  EXPECT_FALSE(altered([](M m) { PrepareOf(m)->mutable_tasks(0)->mutable_args(0)->set_buffer(0); }));
  EXPECT_FALSE(altered([](M m) { PrepareOf(m)->set_unplanned("unplanned"); }));
  EXPECT_FALSE(altered([](M m) { PrepareOf(m)->set_temporary_bytes(PrepareOf(m)->arena_bytes() + 1); }));
  // All of it goes when it is done, so no task may read it.
  EXPECT_FALSE(altered([](M m) { PrepareOf(m)->set_temporary_bytes(PrepareOf(m)->arena_bytes()); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_programs(0)->mutable_bounds(0)->set_max(-1); }));
  EXPECT_FALSE(altered([](M m) { m->add_dims()->set_max(-1); }));
  EXPECT_FALSE(altered([](M m) { PrepareOf(m)->mutable_tasks(0)->mutable_args(0)->set_number(1); }));
  EXPECT_FALSE(altered([](M m) { m->add_entry_points()->add_outputs()->set_dtype("f32"); }));
  EXPECT_FALSE(altered([](M m) {
    plan::SizeRule* rule = m->mutable_programs(0)->add_size_rules();
    rule->set_symbol("u");
    rule->set_input("x");
    rule->set_element(int64_t{1} << 61);
  }));
}

// What a plan runs of a target is the same whatever other targets it has, and what they share is stored once.
// Over 60 lines: one plan, of which much is checked.
TEST(DevicePlan, TargetsDoNotDependOnEachOther) {
  if (!HasNvrtc()) GTEST_SKIP() << "there is no NVRTC on this machine";
  const auto model = Parse(kLayer);
  const auto plan = [&](const std::vector<std::string>& targets, DeviceCode* code) {
    plan::Manifest manifest = ManifestOf(*model);
    const absl::Status status = PlanAndCompile(*model, targets, &manifest, code);
    EXPECT_TRUE(status.ok()) << status;
    return manifest;
  };
  DeviceCode old_code, new_code, both_code, code;
  const plan::Manifest old_plan = plan({"sm_80"}, &old_code), new_plan = plan({"sm_90a"}, &new_code),
                       both = plan({"sm_80", "sm_90a"}, &both_code);
  ASSERT_EQ(both.targets_size(), 2);
  // Kernels have other numbers, and thus other names, but the same code.
  const auto texts = [](const plan::Manifest& manifest, int target, const DeviceCode& code) {
    std::vector<std::string> texts;
    for (const plan::Program* program : TargetCode(manifest, target).programs()) {
      plan::Program copy = *program;
      for (plan::Task& task : *copy.mutable_tasks()) {
        if (!task.has_kernel()) continue;
        const plan::Kernel& kernel = manifest.kernels(static_cast<int>(task.kernel().kernel()));
        task.mutable_kernel()->clear_kernel();
        texts.push_back(absl::StrReplaceAll(code.sources.substr(kernel.source_offset(), kernel.source_bytes()),
                                            {{kernel.entry(), "k"}}));
      }
      texts.push_back(copy.SerializeAsString());
    }
    return texts;
  };
  EXPECT_EQ(texts(both, 0, both_code), texts(old_plan, 0, old_code));
  EXPECT_EQ(texts(both, 1, both_code), texts(new_plan, 0, new_code));
  EXPECT_NE(texts(both, 0, both_code), texts(both, 1, both_code));
  for (int target = 0; target < 2; ++target) {
    for (const int kernel : TargetCode(both, target).Kernels()) {
      EXPECT_TRUE(absl::c_any_of(both.kernels(kernel).cubins(), [&](const plan::Cubin& cubin) {
        return cubin.target() == both.targets(target).target();
      }));
    }
  }
  EXPECT_EQ(both.targets(0).prepare(), both.targets(1).prepare());
  EXPECT_LT(both.ByteSizeLong(), old_plan.ByteSizeLong() + new_plan.ByteSizeLong());
  EXPECT_LT(both_code.sources.size(), old_code.sources.size() + new_code.sources.size());

  const plan::SectionBytes sections = {
      .weights = uint64_t{1} << 20, .sources = both_code.sources.size(), .cubins = both_code.cubins.size()};
  const auto altered = [&](auto change) {
    plan::Manifest copy = both;
    change(&copy);
    return plan::CheckManifest(copy, sections).ok();
  };
  using M = plan::Manifest*;
  EXPECT_TRUE(altered([](M) {}));
  EXPECT_FALSE(altered([](M m) { m->mutable_targets(1)->set_target("sm_80"); })) << "twice";
  EXPECT_FALSE(altered([](M m) { m->mutable_targets(1)->clear_target(); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_targets(1)->set_target(std::string(100, '0')); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_targets(1)->set_programs(0, 1000); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_targets(1)->set_programs(1, m->targets(1).programs(0)); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_targets(1)->set_prepare(1000); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_targets(1)->set_prepare(m->targets(1).programs(0)); }));
  EXPECT_FALSE(altered([](M m) { m->mutable_targets(1)->clear_persistent(); })) << "attention counts there";
  EXPECT_FALSE(altered([](M m) { m->mutable_targets()->RemoveLast(); })) << "nothing runs its programs";
  EXPECT_FALSE(altered([](M m) { m->clear_targets(); })) << "no plan for the host launches kernels";
  EXPECT_FALSE(altered([](M m) {
    for (int i = 0; i < 40; ++i) {
      *m->add_targets() = m->targets(0);
      m->mutable_targets(m->targets_size() - 1)->set_target(absl::StrCat("sm_", i));
    }
  }));
  // Its own `prepare` counts, not that of another target.
  EXPECT_FALSE(altered([](M m) {
    m->mutable_targets(1)->set_prepare(static_cast<uint32_t>(m->programs_size()));
    m->add_programs()->set_unplanned("unplanned");
  }));
}

TEST(DevicePlan, ListsEveryUseWithoutAKernel) {
  const auto model = Parse(
      "model m\ndim T <= 4\nstep main(%x: i4[T, 4], %y: i64[1]) {\n  %c = cumsum %x {axis = 1}\n  %d = triangle %c\n  "
      "%e = argmax %y {axis = 0, keep_dims = true}\n  %f = slice_by %d, %e, %e\n  return \"y\" = %f\n}\n");
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanAndCompile(*model, {"sm_90a"}, &manifest, &code);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  for (const char* part : {"cumsum", "triangle", "on elements of 4 bits", "slice_by",
                           "with bounds that a kernel computes", "depends on the contents of tensors"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
}

// What a chain of arithmetic computes on the way has no memory, no task and no name in the code: only readers see one.
TEST(DevicePlan, MakesOneKernelOfArithmetic) {
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

// What may have no result is named once, and only kernels that can meet it know of it.
TEST(DevicePlan, NumbersDeviceErrorsOfData) {
  const auto model = Parse(R"(model m
dim T <= 32
weight @t: f32[5, 64] = "f#t"
step main(%i: i32[T], %a: i64[T], %b: i64[T], %x: f32[T, 64]) {
  %three = constant {value = 3} : i64[]
  %r = gather @t, %i
  %c = div %a, %three
  %d = div %c, %b
  %e = mod %d, %a
  %p = pow %e, %three
  %y = div %x, %r
  return "p" = %p, "y" = %y
}
)");
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, {*FindTarget("sm_90a")}, &manifest, &code);
  ASSERT_TRUE(status.ok()) << status;
  std::vector<std::string> device_errors;
  for (const plan::DeviceError& device_error : manifest.device_errors())
    device_errors.push_back(absl::StrCat(device_error.what(), " @ ", device_error.label()));
  using ::testing::StartsWith;
  EXPECT_THAT(device_errors,
              ::testing::ElementsAre(StartsWith("gather: index $0 is not in an axis of $1 @ %r = gather @t, %i "),
                                     StartsWith("div: division of an integer by zero @ %d = div %c, %b "),
                                     StartsWith("mod: division of an integer by zero @ %e = mod %d, %a ")));
  const plan::Program& program = manifest.programs(0);
  ASSERT_EQ(program.tasks_size(), 3);
  for (int i = 0; i < 3; ++i) {
    const auto& args = program.tasks(i).args();
    const auto word = absl::c_find_if(args, [](const plan::Arg& arg) { return arg.has_device_error_record(); });
    if (i == 2) {
      EXPECT_EQ(word, args.end()) << "floats have every quotient";
    } else {
      ASSERT_NE(word, args.end());
      EXPECT_EQ((word + 1)->dim(), i == 0 ? "0" : "1");
    }
  }
  EXPECT_THAT(code.sources, HasSubstr("llmc::op::Div(x0, llmc::i64{3})"));
  EXPECT_THAT(code.sources, HasSubstr("llmc::op::Mod(v1, x0, device_error + 1)"));
  const auto error = [&] {
    return std::string(plan::CheckManifest(manifest, {.weights = 1 << 20, .sources = code.sources.size()}).message());
  };
  auto* const args = manifest.mutable_programs(0)->mutable_tasks(0)->mutable_args();
  const auto first = absl::c_find_if(*args, [](const plan::Arg& arg) { return arg.has_device_error_record(); }) + 1;
  EXPECT_EQ(error(), "");
  for (const char* number : {"-1", "3", "A"}) {
    first->set_dim(number);
    EXPECT_THAT(error(), HasSubstr("a device error is not the plan's")) << number;
  }
  manifest.clear_device_errors();
  EXPECT_THAT(error(), HasSubstr("a device error is not the plan's"));
}

TEST(DevicePlan, SaysHowARunFindsSizes) {
  const auto model = Parse(R"(model m
dim A <= 32
dim B <= 32
step main(%x: f32[A, 4], %y: f32[B, 4], %ends: i64[1]) {
  %zero = constant {value = 0} : i64[1]
  %s = add %x, %y
  %t = slice_by %s, %zero, %ends
  return "t" = %t
}
)");
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, {*FindTarget("sm_90a")}, &manifest, &code);
  ASSERT_TRUE(status.ok()) << status;
  std::vector<std::string> rules;
  for (const plan::SizeRule& rule : manifest.programs(0).size_rules()) {
    rules.push_back(absl::StrCat(rule.symbol(), " = ", rule.input(), rule.size()));
  }
  EXPECT_THAT(rules,
              ::testing::ElementsAre("u = broadcast(A, B)", "in.ends.0 = ends", "u1 = slice_size(0, in.ends.0, 1, u)"));
}

// Symbols and what they come to, as a run applies the rules.
std::map<std::string, int64_t> ApplyRules(const plan::Program& program, std::map<std::string, int64_t> dims,
                                          int64_t element) {
  for (const plan::SizeRule& rule : program.size_rules()) {
    const auto value = [&](const std::string& text) -> int64_t {
      const auto expression = DimExpression::Parse(text);
      EXPECT_TRUE(expression.ok()) << expression.status();
      const auto size = expression->Evaluate(dims);
      EXPECT_TRUE(size.ok()) << size.status();
      return size.value_or(-1);
    };
    const int64_t size = rule.input().empty() ? value(rule.size()) : element;
    if (!rule.expected().empty()) {
      EXPECT_EQ(size, value(rule.expected())) << rule.label();
    }
    if (!rule.symbol().empty()) dims[rule.symbol()] = size;
  }
  return dims;
}

// (h - 1) / 4 + 1 rounds toward zero, half of h is a float, and each is as long as the evaluator makes it.
TEST(DevicePlan, ComputesSizesThatSmallTensorsTell) {
  const auto model = Parse(R"(model m
dim h <= 4096
step main(%x: f32[h, 2], %k: i64[1]) {
  %shape = shape_of %x
  %one = constant {value = 1} : i64[1]
  %four = constant {value = 4} : i64[1]
  %rows = slice %shape {start = [0], end = [1]}
  %less = sub %rows, %one
  %quarter = div %less, %four
  %more = add %quarter, %one
  %list = concat %more, %k
  %y = expand_to %one, %list
  %row = reshape %rows {shape = []}
  %float = cast %row {to = f32}
  %half = constant {value = 0.5} : f32[]
  %zero = constant {value = 0} : f32[]
  %unit = constant {value = 1} : f32[]
  %limit = mul %float, %half
  %r = range %zero, %limit, %unit
  return "y" = %y, "r" = %r
}
)");
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, {*FindTarget("sm_90a")}, &manifest, &code);
  ASSERT_TRUE(status.ok()) << status;
  const Dims y = model->Find("%y")->type.shape, r = model->Find("%r")->type.shape;
  struct Run {
    int64_t h, rows, half;
  };
  for (const Run& run : {Run{9, 3, 5}, Run{8, 2, 4}, Run{1, 1, 1}, Run{0, 1, 0}}) {
    const auto dims = ApplyRules(manifest.programs(0), {{"h", run.h}}, 7);
    EXPECT_EQ(dims.at(y[0].ToString()), run.rows) << run.h;
    EXPECT_EQ(dims.at(y[1].ToString()), 7);
    EXPECT_EQ(dims.at(r[0].ToString()), run.half) << run.h;
  }
}

// Single elements of lists that are as long as an input: of a slice, from either end, and of what stands before it.
TEST(DevicePlan, ComputesSizesThatElementsOfListsTell) {
  const auto model = Parse(R"(model m
dim h <= 4096
step main(%x: f32[h, 2]) {
  %shape = shape_of %x
  %rows = slice %shape {start = [0], end = [1]}
  %limit = reshape %rows {shape = []}
  %zero = constant {value = 0} : i64[]
  %unit = constant {value = 1} : i64[]
  %list = range %zero, %limit, %unit
  %i0 = constant {value = 0} : i64[1]
  %i1 = constant {value = 1} : i64[1]
  %i2 = constant {value = 2} : i64[1]
  %end = constant {value = -1} : i64[1]
  %most = constant {value = 9223372036854775807} : i64[1]
  %lowest = constant {value = -9223372036854775808} : i64[1]
  %inner = slice_by %list, %i1, %end, %i0, %i1
  %odd = slice_by %inner, %i0, %most, %i0, %i2
  %behind = slice_by %list, %end, %lowest, %i0, %end
  %before = concat %i0, %odd
  %third = gather %before, %i2
  %last = gather %inner, %end
  %second = gather %behind, %i1
  %y = expand_to %zero, %third
  %z = expand_to %zero, %last
  %v = expand_to %zero, %second
  return "y" = %y, "z" = %z, "v" = %v
}
)");
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, {*FindTarget("sm_90a")}, &manifest, &code);
  ASSERT_TRUE(status.ok()) << status;
  for (const int64_t h : {5, 6, 4096}) {
    const auto dims = ApplyRules(manifest.programs(0), {{"h", h}}, 0);
    // 0 1 2 ... h-1; inner: 1 ... h-2; before: 0 1 3 5 ...; behind: h-1 h-2 ...
    EXPECT_EQ(dims.at(model->Find("%y")->type.shape[0].ToString()), 3);
    EXPECT_EQ(dims.at(model->Find("%z")->type.shape[0].ToString()), h - 2);
    EXPECT_EQ(dims.at(model->Find("%v")->type.shape[0].ToString()), h - 2);
  }
}

// A product of sums that is no dim any more: the grid is written as a product.
TEST(DevicePlan, LaunchesOverProductsOfManyTerms) {
  const auto model = Parse(R"(model m
dim b <= 64
dim h <= 4096
dim w <= 4096
step main(%x: f32[b, (h - 1)/(4) + ((h - 1)/(4))*((w - 1)/(4)) + (w - 1)/(4) + 1, (h - 13)/(16) + ((h - 13)/(16))*((w - 13)/(16)) + (w - 13)/(16) + 1]) {
  %y = round %x
  return "y" = %y
}
)");
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, {*FindTarget("sm_90a")}, &manifest, &code);
  ASSERT_TRUE(status.ok()) << status;
  const auto grid = DimExpression::Parse(manifest.programs(0).tasks(0).kernel().tiles(0));
  ASSERT_TRUE(grid.ok()) << grid.status();
  // 64 x (8 + 72 + 9 + 1) x (1 + 1 + 1 + 1) elements, four for each of 256 threads.
  const auto blocks = grid->Evaluate({{"b", 64}, {"h", 33}, {"w", 37}});
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  EXPECT_EQ(*blocks, (64 * 90 * 4 + 1023) / 1024);
}

// A product of sums of forty long names: more than a plan holds.
TEST(DevicePlan, RefusesSizesThatNoPlanCanHold) {
  std::string head = "model m\n", sum;
  for (int i = 0; i < 40; ++i) {
    const std::string name = absl::StrCat("a_name_of_a_dim_that_is_as_long_as_names_may_well_become_here_", i);
    absl::StrAppend(&head, "dim ", name, " <= 2\n");
    absl::StrAppend(&sum, i == 0 ? "" : " + ", name);
  }
  std::string dims = sum;
  for (int i = 0; i < 31; ++i) absl::StrAppend(&dims, ", ", sum);
  const auto model =
      Parse(absl::StrCat(head, "step main(%x: f32[", dims, "]) {\n  %y = neg %x\n  return \"y\" = %y\n}\n"));
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, {*FindTarget("sm_90a")}, &manifest, &code);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("neg: there is no GPU form of a result whose sizes take more than"));
}

constexpr char kAttention[] = R"(model m
dim N <= 64
dim P <= 8
dim R <= 32
dim S <= 4
dim T <= 32
state @kv0: paged[N, 16] {k: TYPE[2, DIM], v: TYPE[2, DIM]}
step main(%ids: i32[T] = token_ids, %pages: i32[S, P] = page_table, %lens: i32[S] = lengths, %starts: i32[S + 1] = starts, %rows: i32[R] = rows, %q: TYPE[T, WIDTH]) {
  %a = paged_attention %q, @kv0, %pages, %lens, %starts {scale = 0.125ATTRIBUTES}
  return "a" = %a
}
)";

struct AttentionForm {
  std::string type;
  int64_t group, head_dim;
  std::string attributes;
  std::vector<std::string> kernels;  // their names, of decode steps, then of all steps
  std::vector<std::string> targets;
};

std::string NameOf(const plan::Manifest& manifest, const plan::Task& task) {
  const std::string entry = manifest.kernels(static_cast<int>(task.kernel().kernel())).entry();
  return entry.substr(entry.find('_') + 1);
}

TEST(DevicePlan, ChoosesAttentionAndCompilesItForEveryTarget) {
  if (!HasNvrtc()) GTEST_SKIP() << "there is no NVRTC on this machine";
  const std::string decode = "paged_attention_decode", prefill = "paged_attention_prefill", simple = "paged_attention";
  const std::vector<AttentionForm> forms = {
      {"bf16", 4, 128, "", {decode, prefill, decode}, NamesOf(Targets())},
      {"f16", 7, 256, ", window = 100, softcap = 50.0", {decode, prefill, decode}, {"sm_86", "sm_90a"}},
      {"f16", 24, 80, "", {prefill, prefill}, {"sm_80"}},
      {"f32", 2, 64, "", {decode, simple}, {"sm_120"}},
      {"bf16", 3, 20, "", {simple, simple}, {"sm_89"}},
  };
  for (const AttentionForm& form : forms) {
    const auto model = Parse(absl::StrReplaceAll(kAttention, {{"TYPE", form.type},
                                                              {"WIDTH", absl::StrCat(2 * form.group * form.head_dim)},
                                                              {"DIM", absl::StrCat(form.head_dim)},
                                                              {"ATTRIBUTES", form.attributes}}));
    plan::Manifest manifest = ManifestOf(*model);
    DeviceCode code;
    const absl::Status status = PlanAndCompile(*model, form.targets, &manifest, &code);
    ASSERT_TRUE(status.ok()) << status;
    std::vector<std::string> names;
    for (const int program : {0, -1}) {
      for (const plan::Task& task : ProgramOf(&manifest, program)->tasks()) {
        if (task.has_kernel()) names.push_back(NameOf(manifest, task));
      }
    }
    EXPECT_EQ(names, form.kernels) << form.type << " " << form.group << " " << form.head_dim;
  }
}

// Its blocks fit every GPU that they are compiled for: the kernel's own checks compare what it uses with what is
// reserved.
TEST(DevicePlan, CompilesAttentionOverWholeTensorsForEveryTarget) {
  if (!HasNvrtc()) GTEST_SKIP() << "there is no NVRTC on this machine";
  struct Form {
    int64_t dim;
    std::string mask, attributes;
  };
  const std::vector<std::string> targets = NamesOf(Targets());
  for (const Form& form : std::vector<Form>{{64, "", ", causal = true"},
                                            {64, "bool[B, 1, 1, K]", ""},
                                            {128, "", ""},
                                            {128, "f16[L, K]", ", softcap = 20.0"},
                                            {192, "", ", causal = true, causal_from_end = true"},
                                            {256, "bool[L, K]", ""}}) {
    const auto model = Parse(absl::StrReplaceAll(R"(model m
dim B <= 8
dim K <= 4096
dim L <= 4096
step main(%q: f16[B, 4, L, DIM], %k: f16[B, 2, K, DIM], %v: f16[B, 2, K, DIM]PARAMETER) {
  %a = attention %q, %k, %vOPERAND {scale = 0.125ATTRIBUTES}
  return "a" = %a
}
)",
                                                 {{"DIM", absl::StrCat(form.dim)},
                                                  {"PARAMETER", form.mask.empty() ? "" : ", %m: " + form.mask},
                                                  {"OPERAND", form.mask.empty() ? "" : ", %m"},
                                                  {"ATTRIBUTES", form.attributes}}));
    plan::Manifest manifest = ManifestOf(*model);
    DeviceCode code;
    const absl::Status status = PlanAndCompile(*model, targets, &manifest, &code);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(NameOf(manifest, manifest.programs(0).tasks(0)), "whole_attention");
    EXPECT_TRUE(manifest.kernels(0).adapts());
  }
}

TEST(EmitKernel, IsACompleteFile) {
  KernelCall call{.header = "elementwise/silu_mul", .function = "SiluMul"};
  call.types = {{"T", "llmc::bf16"}};
  call.constants = {{"kDim", 768}};
  call.params = {{"llmc::bf16*", "out", {}}, {"const llmc::bf16*", "gate_up", {}}, {"llmc::i64", "rows", {}}};
  EXPECT_EQ(EmitKernel(call, "k0_silu_mul").source, R"(#include "kernels/elementwise/silu_mul.cuh"
namespace {
struct Config {
  using T = llmc::bf16;
  static constexpr int kDim = 768;
  static constexpr int kThreads = 256;
};
}  // namespace

extern "C" __global__ __launch_bounds__(Config::kThreads) void k0_silu_mul(
    llmc::bf16* out, const llmc::bf16* gate_up, llmc::i64 rows) {
  llmc::SiluMul<Config>(llmc::LaunchContext(), out, gate_up, rows);
}
)");
}

TEST(Nvrtc, SaysWhatIsWrongWithASource) {
  if (!HasNvrtc()) GTEST_SKIP() << "there is no NVRTC on this machine";
  const auto cubin = CompileToCubin("extern \"C\" __global__ void k() { nonsense(); }", "k.cu", "sm_90a", {});
  EXPECT_THAT(std::string(cubin.status().message()), HasSubstr("nonsense"));
}

}  // namespace
}  // namespace llmc
