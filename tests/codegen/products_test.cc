// Products that cuBLASLt computes, without a GPU: what their calls include, where results lie, which are timed, and
// what a plan keeps of that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "codegen/device_plan.h"
#include "codegen/plan_writer.h"
#include "cubins/nvrtc.h"
#include "ir/text.h"
#include "runtime/device/product_tuning.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/plan_check.h"
#include "runtime/plan/plan_format.h"
#include "runtime/plan/plan_text.h"
#include "tests/codegen/device_plan_parts.h"

namespace llmc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Without code.
plan::Manifest Planned(const Model& model) {
  plan::Manifest manifest = ManifestOf(model);
  DeviceCode code;
  const absl::Status status = PlanDevice(model, {*FindTarget("sm_90a")}, &manifest, &code);
  EXPECT_TRUE(status.ok()) << status;
  const plan::SectionBytes sections = {.weights = uint64_t{1} << 40, .sources = code.sources.size()};
  EXPECT_TRUE(plan::CheckManifest(manifest, sections).ok()) << plan::CheckManifest(manifest, sections);
  return manifest;
}

constexpr char kStep[] = R"(model m
dim T <= 100
weight @w: TYPE[96, 64] = "f#w"
weight @sq: TYPE[64, 64] = "f#s"
weight @one: TYPE[1, 64] = "f#o"
weight @b: TYPE[96] = "f#b"
weight @row: TYPE[1, 96] = "f#r"
weight @b3: TYPE[1, 1, 96] = "f#b3"
weight @b1: TYPE[1] = "f#b1"
weight @n: TYPE[96] = "f#n"
step main(%x: TYPE[T, 64], %z: TYPE[3, T, 64], %v: TYPE[3, 64, 96], %r: TYPE[T, 96], %r3: TYPE[1, T, 96]) {
  %p = matmul %x, @w {transpose_rhs = true}
BODY
}
)";

// What each step of the program is, by the lines after the product %p: the parts of a product or "kernel".
std::vector<std::string> Steps(const std::string& body, const std::string& type = "bf16") {
  const plan::Manifest manifest = Planned(*Parse(absl::StrReplaceAll(kStep, {{"TYPE", type}, {"BODY", body}})));
  std::vector<std::string> steps;
  for (const plan::Task& step : manifest.programs(0).tasks()) {
    steps.push_back(step.has_gemm() ? absl::StrCat("product", PartsText(step.gemm())) : "kernel");
  }
  return steps;
}

TEST(Products, TakeWhatFollows) {
  EXPECT_THAT(Steps("%y = add %p, @b\nreturn \"y\" = %y"), ElementsAre("product + bias"));
  EXPECT_THAT(Steps("%y = add @row, %p\nreturn \"y\" = %y"), ElementsAre("product + bias"));
  EXPECT_THAT(Steps("%y = add @b3, %p\nreturn \"y\" = %y"), ElementsAre("product", "kernel")) << "of rank 3";
  EXPECT_THAT(Steps("%y = add %r, %p\nreturn \"y\" = %y"), ElementsAre("product + residual"));
  EXPECT_THAT(Steps("%a = add %p, @b\n%y = add %a, %r\nreturn \"y\" = %y"), ElementsAre("product + bias + residual"));
  EXPECT_THAT(Steps("%a = add %p, %r\n%y = add %a, @b\nreturn \"y\" = %y"), ElementsAre("product + bias + residual"));
  EXPECT_THAT(Steps("%a = add %p, @b\n%s = reshape %a {shape = [1, T, 96]}\n%y = add %s, %r3\nreturn \"y\" = %y"),
              ElementsAre("product + bias + residual"));
  EXPECT_THAT(Steps("%a = add %p, @b\n%y = gelu_tanh %a\nreturn \"y\" = %y"), ElementsAre("product + bias, gelu_tanh"));
  EXPECT_THAT(Steps("%y = gelu_tanh %p\nreturn \"y\" = %y", "f16"), ElementsAre("product, gelu_tanh"));
  EXPECT_THAT(Steps("%s = add %r, %p\n%y = rms_norm %s, @n\nreturn \"s\" = %s, \"y\" = %y"),
              ElementsAre("product + residual", "kernel"));
  EXPECT_THAT(Steps("%s = add %p, %r\n%y = rms_norm %s, @n\nreturn \"s\" = %s, \"y\" = %y"),
              ElementsAre("product + residual", "kernel"));
  // One of two products takes the other; what follows the activation is another kernel.
  EXPECT_THAT(Steps("%q = matmul %x, @w {transpose_rhs = true}\n%y = add %p, %q\nreturn \"y\" = %y"),
              ElementsAre("product", "product + residual"));
  EXPECT_THAT(Steps("%a = gelu_tanh %p\n%y = add %a, @b\nreturn \"y\" = %y"),
              ElementsAre("product, gelu_tanh", "kernel"));
}

TEST(Products, LeaveWhatDoesNotFit) {
  const auto apart = [](const std::string& body, const std::string& type = "bf16") {
    return Steps(body + "\nreturn \"y\" = %y", type);
  };
  EXPECT_THAT(apart("%y = relu %p"), ElementsAre("product", "kernel")) << "NaN may be lost";
  EXPECT_THAT(apart("%y = gelu_tanh %p", "f32"), ElementsAre("product", "kernel")) << "not as exact";
  EXPECT_THAT(apart("%y = gelu %p"), ElementsAre("product", "kernel")) << "not the tanh form";
  EXPECT_THAT(apart("%y = silu %p"), ElementsAre("product", "kernel"));
  EXPECT_THAT(apart("%y = add %p, %p"), ElementsAre("product", "kernel"));
  EXPECT_THAT(apart("%y = sub %p, @b"), ElementsAre("product", "kernel"));
  EXPECT_THAT(apart("%y = add %p, %r3"), ElementsAre("product", "kernel")) << "of another shape";
  EXPECT_THAT(apart("%a = add %p, @b\n%y = add %a, @row"), ElementsAre("product + bias", "kernel")) << "two biases";
  EXPECT_THAT(apart("%a = add %p, @b\n%y = mul %a, %p"), ElementsAre("product", "kernel")) << "two users";
  EXPECT_THAT(Steps("%y = add %p, @b\nreturn \"p\" = %p, \"y\" = %y"), ElementsAre("product", "kernel")) << "an output";
  EXPECT_THAT(apart("%q = matmul %z, %v\n%c = add %q, @b\n%d = add %p, @b\n%y = add %c, %d"),
              ElementsAre("product", "product + bias", "kernel"))
      << "one of several at once";
  EXPECT_THAT(apart("%q = matmul %x, @one {transpose_rhs = true}\n%c = add %q, @b1\n%y = mul %c, %p"),
              ElementsAre("product", "product", "kernel", "kernel"))
      << "a single column";
}

// Buffers of args[0] and of others of the first product.
TEST(Products, ResultsTakeThePlaceOfResidualsButNotOfOperands) {
  for (const char* rows : {"100", "4"}) {  // through cuBLASLt, and through a matrix-vector kernel
    const auto steps_of = [&](const std::string& body) {
      std::string text = absl::StrReplaceAll(kStep, {{"TYPE", "bf16"}, {"BODY", body}});
      text = absl::StrReplaceAll(text, {{"dim T <= 100", absl::StrCat("dim T <= ", rows)}});
      const plan::Manifest manifest = Planned(*Parse(text));
      return std::vector<plan::Task>(manifest.programs(0).tasks().begin(), manifest.programs(0).tasks().end());
    };
    // The residual is not read again; the operand of the product is its own residual.
    const std::vector<plan::Task> steps = steps_of(R"(
  %f = exp %r
  %s = add %f, %p
  %h = exp %x
  %q = matmul %h, @sq {transpose_rhs = true}
  %t = add %h, %q
  return "s" = %s, "t" = %t)");
    ASSERT_EQ(steps.size(), 4u);
    const auto reads = [](const plan::Task& step, uint32_t buffer) {
      return std::count_if(step.args().begin() + 1, step.args().end(),
                           [&](const plan::Arg& arg) { return arg.has_buffer() && arg.buffer() == buffer; });
    };
    EXPECT_EQ(reads(steps[1], steps[1].args(0).buffer()), 1) << steps[1].DebugString();
    EXPECT_EQ(reads(steps[3], steps[3].args(0).buffer()), 0) << steps[3].DebugString();
    EXPECT_EQ(reads(steps[3], steps[2].args(0).buffer()), 2) << steps[3].DebugString();
  }
}

// Which is asked for no wider than it is copied; rows of x are read by all blocks.
TEST(Products, OfSomeRowsReadTheirWeightOnce) {
  std::string text = absl::StrReplaceAll(kStep, {{"TYPE", "bf16"}, {"BODY", "return \"p\" = %p"}});
  text = absl::StrReplaceAll(text, {{"dim T <= 100", "dim T <= 32"}, {"matmul %x, @w", "linear %x, @w"}});
  const plan::Manifest manifest = Planned(*Parse(text));
  ASSERT_EQ(manifest.programs(0).tasks_size(), 1);
  int maps = 0;
  for (const plan::Arg& arg : manifest.programs(0).tasks(0).args()) {
    if (!arg.has_tiles()) continue;
    ++maps;
    EXPECT_EQ(arg.tiles().read_once(), arg.has_weight()) << arg.DebugString();
  }
  EXPECT_EQ(maps, 2);
}

TEST(Products, WhatLiesWithinHasNoMemory) {
  const plan::Manifest manifest = Planned(*Parse(absl::StrReplaceAll(kStep, {{"TYPE", "bf16"}, {"BODY", R"(
  %a = add %p, @b
  %y = gelu_tanh %a
  return "y" = %y)"}})));
  std::set<std::string> values;
  for (const plan::Buffer& buffer : manifest.programs(0).buffers()) {
    values.insert(buffer.values().begin(), buffer.values().end());
  }
  EXPECT_TRUE(values.contains("%y"));
  EXPECT_FALSE(values.contains("%p") || values.contains("%a"));
  EXPECT_THAT(manifest.programs(0).tasks(0).label(), HasSubstr("%p = matmul"));
  EXPECT_THAT(manifest.programs(0).tasks(0).label(), HasSubstr("%y.f32 = gelu_tanh"));
  EXPECT_THAT(ProgramText(manifest.programs(0), manifest), HasSubstr("product of T x 64 x 96 + bias, gelu_tanh"));
}

constexpr char kLanguageModel[] = R"(model "m"
dim N <= 64
dim P <= 8
dim R <= 40
dim S <= 40
dim T <= 1500
weight @embed: bf16[100, 64] = "f#e"
weight @w: bf16[64, 64] = "f#w"
state @kv0: paged[N, 16] {k: bf16[2, 16], v: bf16[2, 16]}
step main(%ids: i32[T] = token_ids, %pos: i32[T] = positions, %slots: i32[T] = slots, %pages: i32[S, P] = page_table, %lens: i32[S] = lengths, %starts: i32[S + 1] = starts, %rows: i32[R] = rows) {
  %x = gather @embed, %ids
  %p = matmul %x, @w {transpose_rhs = true}
  %s = add %x, %p
  %r = gather %s, %rows
  %logits = matmul %r, @embed {transpose_rhs = true}
  return "logits" = %logits
}
)";

plan::Manifest PlanLanguageModel() {
  const auto model = Parse(kLanguageModel);
  plan::Manifest manifest = Planned(*model);
  plan::EntryPoint* entry = manifest.add_entry_points();
  for (const Value* param : model->steps[0]->params) {
    plan::TensorSpec* input = entry->add_inputs();
    input->set_name(param->name.substr(1));
    input->set_role(param->role.ToString());
    input->set_dtype("i32");
    for (const Dim& dim : param->type.shape) input->add_shape(dim.ToString());
  }
  return manifest;
}

TEST(Products, AreTimedAtTheRowCountsThatAreKnown) {
  plan::Manifest manifest = PlanLanguageModel();
  std::vector<int64_t> rows, head_rows;
  for (const MatrixProducts::Shape& shape : ProductsToTune(FirstCode(manifest))) {
    (shape.n == 64 ? rows : head_rows).push_back(shape.m);
    EXPECT_EQ(shape.k, 64);
    EXPECT_EQ(shape.residual, shape.n == 64);
  }
  // Batches that have graphs, up to the most sequences, and prompts; a prompt has one row of logits.
  EXPECT_THAT(rows, ElementsAre(16, 24, 32, 40, 512, 1024, 1500));
  EXPECT_THAT(head_rows, ElementsAre(1, 16, 24, 32, 40));
  manifest.mutable_entry_points(0)->mutable_inputs(0)->clear_role();
  EXPECT_TRUE(ProductsToTune(FirstCode(manifest)).empty()) << "it is no step of a language model";
}

TEST(Products, AreInTf32WhereSomebodyAsksForIt) {
  const auto parts_of = [](const char* type, bool tf32) {
    const auto model = Parse(absl::StrReplaceAll(kStep, {{"TYPE", type}, {"BODY", "return \"y\" = %p"}}));
    plan::Manifest manifest = ManifestOf(*model);
    DeviceCode code;
    const absl::Status status = PlanDevice(*model, {*FindTarget("sm_80")}, &manifest, &code, {.tf32 = tf32});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(manifest.programs(0).tasks(0).has_gemm());
    return PartsText(manifest.programs(0).tasks(0).gemm());
  };
  EXPECT_EQ(parts_of("f32", true), ", tf32");
  EXPECT_EQ(parts_of("f32", false), "");
  EXPECT_EQ(parts_of("bf16", true), "");
}

TEST(Products, TunedOnesAreCheckedAsTheyComeFromAFile) {
  plan::Manifest manifest = PlanLanguageModel();
  manifest.clear_language_model();
  manifest.mutable_entry_points(0)->clear_outputs();
  plan::TunedProduct* product = manifest.mutable_tuned()->add_products();
  product->set_m(16);
  product->set_n(64);
  product->set_k(64);
  product->set_in_dtype("bf16");
  product->set_out_dtype("bf16");
  product->set_proposal(3);
  const auto accepted = [&](auto change) {
    plan::Manifest copy = manifest;
    change(&copy, copy.mutable_tuned()->mutable_products(0));
    return plan::CheckManifest(copy, {.weights = uint64_t{1} << 40, .sources = uint64_t{1} << 40}).ok();
  };
  using M = plan::Manifest*;
  using P = plan::TunedProduct*;
  EXPECT_TRUE(accepted([](M, P) {}));
  EXPECT_FALSE(accepted([](M, P p) { p->set_proposal(16); }));
  EXPECT_FALSE(accepted([](M, P p) { p->set_m(0); }));
  EXPECT_FALSE(accepted([](M, P p) { p->set_n(-1); }));
  EXPECT_FALSE(accepted([](M, P p) { p->set_k(int64_t{1} << 40); }));
  EXPECT_FALSE(accepted([](M, P p) { p->set_in_dtype("i4"); }));
  EXPECT_FALSE(accepted([](M, P p) { p->set_out_dtype(""); }));
  EXPECT_FALSE(accepted([](M m, P) { m->mutable_tuned()->set_gpu(std::string(1000, 'x')); }));
  EXPECT_FALSE(accepted([](M m, P p) {
    const plan::TunedProduct copy = *p;
    for (int i = 0; i < plan::kMaxTunedProducts; ++i) *m->mutable_tuned()->add_products() = copy;
  }));
  // The parts of a product.
  const auto gemm_accepted = [&](auto change) {
    return accepted([&](M m, P) {
      for (plan::Task& step : *ProgramOf(m, -1)->mutable_tasks()) {
        if (step.has_gemm() && step.gemm().residual()) change(&step);
      }
    });
  };
  EXPECT_TRUE(gemm_accepted([](plan::Task* s) { s->mutable_gemm()->set_gelu_tanh(true); }));
  EXPECT_FALSE(gemm_accepted([](plan::Task* s) { s->mutable_gemm()->set_bias(true); }));
  EXPECT_FALSE(gemm_accepted([](plan::Task* s) { s->mutable_gemm()->set_residual(false); }));
  EXPECT_FALSE(gemm_accepted([](plan::Task* s) { s->mutable_gemm()->set_batch("2"); }));
  EXPECT_FALSE(gemm_accepted([](plan::Task* s) { s->mutable_gemm()->set_tf32(true); })) << "of bf16";
  EXPECT_FALSE(accepted([](M, P p) { p->set_tf32(true); }));
}

TEST(Products, APlanKeepsWhatWasFoundOfThem) {
  if (!NvrtcVersion().ok()) GTEST_SKIP() << "there is no NVRTC on this machine";
  const auto model =
      Parse(absl::StrReplaceAll(kStep, {{"TYPE", "bf16"}, {"BODY", "%y = add %p, @b\nreturn \"y\" = %y"}}));
  for (const Value* weight : model->weights) {
    Shape shape;
    for (const Dim& dim : weight->type.shape) shape.push_back(dim.value());
    model->data[weight->name] = Tensor(weight->type.dtype, shape);
  }
  const std::string path = (std::filesystem::path(testing::TempDir()) / absl::StrCat("products_", getpid())).string();
  PlanOptions options{.compiler_version = "test",
                      .targets = {*FindTarget("sm_90a")},
                      .compile = {.cache_folder = LLMC_CUBINS, .fast_compile = true}};
  const auto tuned_of = [&](int timed) {
    plan::TunedProducts tuned;
    options.tune = [&](const plan::Manifest& manifest) -> absl::StatusOr<plan::TunedProducts> {
      EXPECT_EQ(manifest.targets(0).programs_size(), 1);
      tuned.set_gpu("a GPU");
      tuned.set_library(130100);
      tuned.set_timed(static_cast<uint32_t>(timed));
      plan::TunedProduct* product = tuned.add_products();
      product->set_m(100);
      product->set_n(96);
      product->set_k(64);
      product->set_in_dtype("bf16");
      product->set_out_dtype("bf16");
      product->set_bias(true);
      product->set_proposal(4);
      return tuned;
    };
    const absl::Status written = WritePlan(*model, options, path);
    EXPECT_TRUE(written.ok()) << written;
    const auto plan = Plan::Load(path);
    EXPECT_TRUE(plan.ok()) << plan.status();
    std::remove(path.c_str());
    return (*plan)->manifest().tuned();
  };
  EXPECT_EQ(tuned_of(7).products(0).proposal(), 4u);
  EXPECT_EQ(tuned_of(7).gpu(), "a GPU");
  EXPECT_EQ(tuned_of(0).products_size(), 0) << "nothing was timed";
}

}  // namespace
}  // namespace llmc
