// What is planned for a GPU, without one: programs, arguments, kernels and their code.
#include "codegen/device_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "codegen/plan_writer.h"
#include "codegen/tasks/kernel_call.h"
#include "cubins/nvrtc.h"
#include "cubins/targets.h"
#include "ir/text.h"
#include "runtime/plan/dim_expression.h"
#include "runtime/plan/plan_check.h"
#include "runtime/plan/plan_format.h"
#include "runtime/plan/step_programs.h"
#include "tests/codegen/device_plan_parts.h"
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
  // Both norms, in all programs, are one kernel; so are the two gathers, but in steps of one sequence.
  std::map<std::string, int> kernels;
  for (const plan::Kernel& kernel : manifest.kernels()) {
    ++kernels[kernel.entry().substr(kernel.entry().find('_') + 1)];
    EXPECT_EQ(kernel.cubins_size(), 1);
    EXPECT_EQ(code.cubins.substr(kernel.cubins(0).offset() + 1, 3), "ELF");
    EXPECT_THAT(code.sources.substr(kernel.source_offset(), kernel.source_bytes()), HasSubstr(kernel.entry() + "("));
  }
  EXPECT_EQ(kernels["rms_norm"], 1);
  EXPECT_EQ(kernels["gather"], 2);
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

// The weights of this text have no contents to evaluate with.
TEST(DevicePlan, ChecksNumbersOfLoweredSteps) {
  const auto model = Parse(kModel);
  for (const bool check_numerics : {false, true}) {
    plan::Manifest manifest = ManifestOf(*model);
    DeviceCode code;
    const absl::Status status =
        PlanDevice(*model, *ParseTargets({"sm_90a"}), &manifest, &code, {.check_numerics = check_numerics});
    EXPECT_EQ(status.ok(), !check_numerics) << status;
    if (check_numerics) {
      EXPECT_THAT(status.message(), HasSubstr("@embed"));
    }
  }
}

// The 16 numbers of NormalFloat4, from -1 to 1, come as bits with the kernel that decodes.
TEST(DevicePlan, GivesCodebooksToKernels) {
  const auto model = Parse(R"(model m
dim T <= 4
step main(%c: u4[T, 64], %s: f32[T, 1]) {
  %w = encode %c, %s {as = "nf4 group=64 scale=f32"}
  %y = decode %w
  return "y" = %y
}
)");
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, *ParseTargets({"sm_90a"}), &manifest, &code);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(absl::StrContains(code.sources, "llmc::CodebookCodes<llmc::Codebook<3212836864u, 3207739825u, "));
  EXPECT_TRUE(absl::StrContains(code.sources, ", 1060705203u, 1065353216u>>"));
}

// One row of NormalFloat4 is multiplied as words; of other numbers pairs are looked up, and so are those of two rows.
TEST(DevicePlan, MultipliesCodebooksAsWordsWhereTheyAreNear) {
  const auto sources = [](absl::string_view rows, absl::string_view format) {
    const auto model = Parse(absl::StrReplaceAll(R"(model m
dim T <= ROWS
step main(%x: bf16[T, 4096], %c: u4[4096, 4096], %s: f32[4096, 64]) {
  %w = encode %c, %s {as = "FORMAT group=64 scale=f32", to = bf16}
  %y = linear %x, %w {transpose_rhs = true}
  return "y" = %y
}
)",
                                                 {{"ROWS", rows}, {"FORMAT", format}}));
    plan::Manifest manifest = ManifestOf(*model);
    DeviceCode code;
    EXPECT_TRUE(PlanDevice(*model, *ParseTargets({"sm_90a"}), &manifest, &code).ok());
    return std::string(code.sources);
  };
  const std::string words = "static constexpr int kIntegerBlock = 64;";
  const std::string pairs = "static constexpr int kPairTable = 1;";
  EXPECT_THAT(sources("1", "nf4"), testing::AllOf(HasSubstr(words), testing::Not(HasSubstr(pairs))));
  EXPECT_THAT(sources("2", "nf4"), testing::AllOf(HasSubstr(pairs), testing::Not(HasSubstr(words))));
  EXPECT_THAT(sources("1", "bnb_fp4"), testing::AllOf(HasSubstr(pairs), testing::Not(HasSubstr(words))));
}

// A view of positions that a kernel takes in has no buffer of its own: the kernel reads what it is of.
TEST(DevicePlan, ViewsWithinKernelsAreWhatTheyViewIs) {
  const auto model = Parse(R"(model "m"
dim B <= 4
dim L <= 16
step main(%x: f32[B, L, 48]) {
  %inv = constant {value = [1, 0.1, 0.01, 0.001]} : f32[4]
  %length = dims {values = [L], scalar = true}
  %zero = constant {value = 0} : i64[]
  %one = constant {value = 1} : i64[]
  %places = range %zero, %length, %one : i64[L]
  %expanded = expand %places {shape = [B, L]}
  %cast = cast %expanded {to = i32}
  %rows = reshape %x {shape = [B*L, 48]}
  %positions = reshape %cast {shape = [B*L]}
  %rope = rope %rows, %positions, %inv {head_dim = 16}
  return "y" = %rope
}
)");
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, *ParseTargets({"sm_90a"}), &manifest, &code);
  ASSERT_TRUE(status.ok()) << status;
  const plan::Program& program = manifest.programs(0);
  const plan::Task& rope = *program.tasks().rbegin();
  EXPECT_TRUE(absl::c_any_of(rope.args(), [&](const plan::Arg& arg) {
    return arg.has_buffer() && program.buffers(static_cast<int>(arg.buffer())).name() == "%cast";
  }));
}

TEST(DevicePlan, RefusesStatesThatNoKernelReads) {
  const auto model = Parse(R"(model m
dim M <= 8
dim T <= 4
state @s: per_sequence[M] {conv: f32[4]}
step main(%x: f32[T, 4]) {
  %y = exp %x
  return "y" = %y
}
)");
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, *ParseTargets({"sm_90a"}), &manifest, &code);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("state @s: there is no GPU kernel yet for a state per_sequence[M]"));
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

// Who says when the next launch may start; and how a thread is held to so many registers.
TEST(EmitKernel, BoundsRegistersAndStartsTheNextLaunch) {
  KernelCall call{.header = "linear/gemv", .function = "Gemv", .threads = 320, .pdl = true};
  EXPECT_THAT(EmitKernel(call, "k").source, HasSubstr("__launch_bounds__(Config::kThreads) void k(\n    ) {\n"
                                                      "  llmc::LaunchDependents();\n"));
  call.launches_next = true;
  call.registers = 72;  // 28 warps of a block: 7 on each of the four parts of a multiprocessor, with 16,384 registers
  EXPECT_THAT(EmitKernel(call, "k").source, HasSubstr("__launch_bounds__(896, 1) void k(\n    ) {\n  llmc::Gemv"));
}

TEST(Nvrtc, SaysWhatIsWrongWithASource) {
  if (!HasNvrtc()) GTEST_SKIP() << "there is no NVRTC on this machine";
  const auto cubin = CompileToCubin("extern \"C\" __global__ void k() { nonsense(); }", "k.cu", "sm_90a", {});
  EXPECT_THAT(std::string(cubin.status().message()), HasSubstr("nonsense"));
}

}  // namespace
}  // namespace llmc
