// Attention in plans for a GPU: which kernel, and its code for every target.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tests/codegen/device_plan_parts.h"
#include "tests/gpu/op_cases.h"
#include "tests/runtime/target_programs.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

constexpr char kAttention[] = R"(model m
dim N <= 64
dim P <= 8
dim R <= 32
dim S <= 4
dim T <= 32
state @kv0: paged[N, 16] {k: TYPE[2, DIM], v: TYPE[2, DIM]}
step main(%ids: i32[T] = token_ids, %pages: i32[S, P] = page_table, %lens: i32[S] = lengths, %starts: i32[S + 1] = starts, %rows: i32[R] = rows, %q: TYPE[T, WIDTH], %of_heads: f32[HEADS]) {
  %a = paged_attention %q, @kv0, %pages, %lens, %startsTERMS {scale = 0.125ATTRIBUTES}
  return "a" = %a
}
)";

struct AttentionForm {
  std::string type;
  int64_t group, head_dim;
  std::string attributes;
  std::vector<std::string> kernels;  // their names, of decode steps, then of all steps
  std::vector<std::string> targets;
  std::string terms = {};  // ", %of_heads": sinks
};

std::string NameOf(const plan::Manifest& manifest, const plan::Task& task) {
  const std::string entry = manifest.kernels(static_cast<int>(task.kernel().kernel())).entry();
  return entry.substr(entry.find('_') + 1);
}

std::vector<AttentionForm> AttentionForms() {
  const std::string decode = "paged_attention_decode", prefill = "paged_attention_prefill", simple = "paged_attention";
  return {
      {"bf16", 4, 128, "", {decode, prefill, decode}, NamesOf(Targets())},
      {"f16", 7, 256, ", window = 100, softcap = 50.0", {decode, prefill, decode}, {"sm_86", "sm_90a"}},
      {"f16", 24, 80, "", {prefill, prefill}, {"sm_80"}},
      {"f32", 2, 64, "", {decode, simple}, {"sm_120"}},
      {"bf16", 3, 20, "", {simple, simple}, {"sm_89"}},
      {"bf16", 5, 128, ", chunk = 8192", {decode, prefill, decode}, NamesOf(Targets())},
      {"f32", 2, 64, ", chunk = 100", {decode, simple}, {"sm_80"}},
      {"bf16", 8, 64, ", window = 100", {decode, prefill, decode}, NamesOf(Targets()), ", %of_heads"},
      {"f16", 1, 128, "", {decode, prefill, decode}, NamesOf(Targets()), ", _, %of_heads"},
      {"f16", 2, 80, ", softcap = 50.0", {decode, prefill, decode}, {"sm_80", "sm_90a"}, ", %of_heads, %of_heads"},
      {"f32", 2, 64, "", {decode, simple}, {"sm_120"}, ", %of_heads, %of_heads"},
  };
}

class DeviceAttentionForm : public ::testing::TestWithParam<AttentionForm> {};

TEST_P(DeviceAttentionForm, IsChosenAndCompiledForEveryTarget) {
  if (!HasNvrtc()) GTEST_SKIP() << "there is no NVRTC on this machine";
  const AttentionForm& form = GetParam();
  const auto model = Parse(absl::StrReplaceAll(kAttention, {{"TYPE", form.type},
                                                            {"WIDTH", absl::StrCat(2 * form.group * form.head_dim)},
                                                            {"DIM", absl::StrCat(form.head_dim)},
                                                            {"HEADS", absl::StrCat(2 * form.group)},
                                                            {"TERMS", form.terms},
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

INSTANTIATE_TEST_SUITE_P(, DeviceAttentionForm, ::testing::ValuesIn(AttentionForms()));

// Chunks read keys and values of a cache that is encoded from scratch memory, or decode what that does not hold.
TEST(DeviceAttention, DecodesAnEncodedCacheForChunksAsFarAsThereIsRoom) {
  if (!HasNvrtc()) GTEST_SKIP() << "there is no NVRTC on this machine";
  int found = 0;
  for (const OpCase& c : OpCasesWithoutInputs()) {
    if (!absl::StartsWith(c.name, "cache bf16 int4") || !absl::StrContains(c.name, "8 tokens  window")) continue;
    ++found;
    const std::string& many = c.device_case.text;
    const std::string few = absl::StrReplaceAll(many, {{"dim S <= 64", "dim S <= 8"}, {"dim P <= 4096", "dim P <= 4"}});
    for (const auto& [text, others] : {std::pair(many, 1), {few, 0}}) {
      const auto model = Parse(text);
      plan::Manifest manifest = ManifestOf(*model);
      DeviceCode code;
      const absl::Status status = PlanAndCompile(*model, {"sm_90a"}, &manifest, &code);
      ASSERT_TRUE(status.ok()) << status;
      std::vector<std::string> names;
      for (const plan::Task& task : ProgramOf(&manifest, -1)->tasks()) {
        if (task.has_kernel()) names.push_back(NameOf(manifest, task));
      }
      EXPECT_EQ(absl::c_count(names, "decoded_rows"), 1) << absl::StrJoin(names, " ");
      EXPECT_EQ(absl::c_count(names, "paged_attention_prefill"), 1 + others) << absl::StrJoin(names, " ");
      EXPECT_EQ(absl::c_count(names, "paged_attention_decode"), 1) << absl::StrJoin(names, " ");
    }
  }
  EXPECT_EQ(found, 1);
}

// What only moves elements is no kernel of its own; blocks fit every GPU.
TEST(DeviceAttention, ReadsLatentsWhereTheyLie) {
  if (!HasNvrtc()) GTEST_SKIP() << "there is no NVRTC on this machine";
  int found = 0;
  for (const OpCase& c : OpCasesWithoutInputs()) {
    const bool is_whole = absl::StartsWith(c.name, "latent attention bf16 16 heads");
    if (!is_whole) continue;
    ++found;
    const auto model = Parse(c.device_case.text);
    plan::Manifest manifest = ManifestOf(*model);
    DeviceCode code;
    const absl::Status status = PlanAndCompile(*model, {"sm_80", "sm_90a", "sm_120"}, &manifest, &code);
    ASSERT_TRUE(status.ok()) << status;
    for (const plan::Program& program : manifest.programs()) {
      std::vector<std::string> names;
      for (const plan::Task& task : program.tasks()) {
        names.push_back(task.has_kernel() ? NameOf(manifest, task) : "other");
      }
      if (names.empty()) continue;  // of the host
      SCOPED_TRACE(absl::StrCat(c.name, ": ", absl::StrJoin(names, " ")));
      EXPECT_EQ(absl::c_count(names, "latent_write"), 1);
      EXPECT_GE(absl::c_count(names, "latent_attention"), 1);
      const bool few = !absl::StrContains(c.name, "of 1000");
      EXPECT_EQ(absl::c_count(names, "batched_gemv"), few ? 2 : 0);
      EXPECT_TRUE(!few || absl::c_count(names, "elementwise") == 0);
    }
  }
  EXPECT_EQ(found, 3);
}

struct WholeForm {
  int64_t dim;
  std::string mask, attributes;
};

class WholeAttentionForm : public ::testing::TestWithParam<WholeForm> {};

INSTANTIATE_TEST_SUITE_P(, WholeAttentionForm,
                         ::testing::ValuesIn(std::vector<WholeForm>{
                             {64, "", ", causal = true"},
                             {64, "bool[B, 1, 1, K]", ""},
                             {128, "", ""},
                             {128, "f16[L, K]", ", softcap = 20.0"},
                             {192, "", ", causal = true, causal_from_end = true"},
                             {256, "bool[L, K]", ""}}));

// Its blocks fit every GPU that they are compiled for: the kernel's own checks compare what it uses with what is
// reserved.
TEST_P(WholeAttentionForm, IsCompiledForEveryTarget) {
  if (!HasNvrtc()) GTEST_SKIP() << "there is no NVRTC on this machine";
  const WholeForm& form = GetParam();
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
  const absl::Status status = PlanAndCompile(*model, NamesOf(Targets()), &manifest, &code);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(NameOf(manifest, manifest.programs(0).tasks(0)), "whole_attention");
  EXPECT_TRUE(manifest.kernels(0).adapts());
}

}  // namespace
}  // namespace llmc
