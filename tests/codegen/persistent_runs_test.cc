// Which tasks of a decode step become one persistent launch, and what a plan says of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tests/codegen/device_plan_parts.h"
#include "tests/small_config.h"
#include "tools/model_source.h"
#include "tools/plan_options.h"

namespace llmc {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct LayerPlan {
  plan::Manifest manifest;
  DeviceCode code;
};

LayerPlan PlanLayer(StepForm steps, const Target& target = *FindTarget("sm_90a")) {
  // With logits of f32, which the device samples.
  const auto model = Parse(
      absl::StrReplaceAll(kLayer, {{"%logits = matmul %r, @embed {transpose_rhs = true}",
                                    "%l = matmul %r, @embed {transpose_rhs = true}\n  %logits = cast %l {to = f32}"}}));
  LayerPlan planned = {.manifest = ManifestOf(*model)};
  const absl::Status status = PlanDevice(*model, {target}, &planned.manifest, &planned.code, {.steps = steps});
  EXPECT_TRUE(status.ok()) << status;
  return planned;
}

const plan::Program& StepOfOne(const plan::Manifest& manifest) {
  return manifest.programs(static_cast<int>(manifest.targets(0).programs(0)));
}

TEST(PersistentRuns, TakeTheTasksOfAStepOfFewSequences) {
  const LayerPlan planned = PlanLayer(StepForm::kPersistent);
  const plan::Program& program = StepOfOne(planned.manifest);
  ASSERT_EQ(program.runs_size(), 1);
  const plan::Run& run = program.runs(0);
  EXPECT_EQ(run.first(), 1u) << "what takes the inputs from the host has no form for it";
  EXPECT_EQ(run.blocks(), 132u);
  ASSERT_GE(run.count(), 6u) << "gather, qkv, attention, o, gate and up, down";
  // Its words are the tiles and arguments of these tasks.
  int words = 0;
  for (uint32_t i = run.first(); i < run.first() + run.count(); ++i) {
    words += 3 + program.tasks(static_cast<int>(i)).args_size();
  }
  const plan::Kernel& kernel = planned.manifest.kernels(static_cast<int>(run.kernel()));
  const std::string source = planned.code.sources.substr(kernel.source_offset(), kernel.source_bytes());
  EXPECT_THAT(source, HasSubstr(absl::StrCat("llmc::u64 of[", words, "];")));
  EXPECT_THAT(source, HasSubstr(absl::StrCat("kTasks = ", run.count(), ";")));
  EXPECT_LE(kernel.shared_bytes() + 1024, 227u * 1024);
  // So are the steps of 2 sequences, which come next. Those of more than 4, and all others, are launches.
  for (int i = 1; i < planned.manifest.targets(0).programs_size(); ++i) {
    const plan::Program& other = planned.manifest.programs(static_cast<int>(planned.manifest.targets(0).programs(i)));
    if (i != 2) {
      EXPECT_EQ(other.runs_size(), i == 1 ? 1 : 0) << i;
    }
  }
}

// Whose columns are more than a block of each multiprocessor has threads for: looked up by vectors, as in other steps.
TEST(PersistentRuns, LookUpWideRowsAsOtherStepsDo) {
  const auto model = Parse(absl::StrReplaceAll(
      kLayer, {{"@embed: bf16[100, 64]", "@embed: bf16[151936, 64]"},
               {"%r = gather %n3, %rows", "%all = matmul %n3, @embed {transpose_rhs = true}"},
               {"%logits = matmul %r, @embed {transpose_rhs = true}", "%logits = gather %all, %rows"}}));
  plan::Manifest manifest = ManifestOf(*model);
  DeviceCode code;
  const absl::Status status = PlanDevice(*model, {*FindTarget("sm_90a")}, &manifest, &code, {});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(code.sources, HasSubstr("kVectors = 256;"));
  EXPECT_THAT(code.sources, HasSubstr("kVectors = 1;")) << "64 columns of the embedding, for 132 multiprocessors";
  EXPECT_THAT(code.sources, testing::Not(HasSubstr("kThreads = 1152;"))) << "151,936 columns";
}

TEST(PersistentRuns, SayWhyMoreTasksAreNotInThem) {
  const LayerPlan planned = PlanLayer(StepForm::kPersistent);
  const plan::LoweredProgram& lowered = planned.code.lowering.programs(0);
  const std::vector<std::string> lines(lowered.runs().begin(), lowered.runs().end());
  EXPECT_THAT(lines, testing::Contains(HasSubstr("step_inputs has no form for it")));
  EXPECT_THAT(lines, testing::Contains(HasSubstr("are one launch, with a ring of")));
  EXPECT_THAT(lines, testing::Contains(HasSubstr("rms_norm has no form for it")));
}

TEST(PersistentRuns, PassRowsThroughALayer) {
  const LayerPlan planned = PlanLayer(StepForm::kPersistent);
  const plan::LoweredProgram& lowered = planned.code.lowering.programs(0);
  const std::vector<std::string> lines(lowered.runs().begin(), lowered.runs().end());
  EXPECT_THAT(lines, testing::Contains(HasSubstr("5 of them give"))) << "gather, qkv, attention, o, gate and up";
}

TEST(PersistentRuns, AreLeftOutOfLaunches) {
  const LayerPlan planned = PlanLayer(StepForm::kLaunches);
  for (const plan::Program& program : planned.manifest.programs()) EXPECT_EQ(program.runs_size(), 0);
  EXPECT_THAT(planned.code.lowering.programs(0).runs(), ElementsAre());
}

// What is chosen shows in tests/golden/llama-3.1-8b.sm_90a.txt.
TEST(PersistentRuns, AreNotChosenWhereTheyAreNoGain) {
  // Six tasks read 61,696 bytes of weights: 10,282 each.
  Target target = *FindTarget("sm_90a");
  const auto reason_from = [&](double bytes) {
    target.persistent_bytes = bytes;
    const LayerPlan planned = PlanLayer(StepForm::kAuto, target);
    EXPECT_EQ(StepOfOne(planned.manifest).runs_size(), 0);
    return absl::StrJoin(planned.code.lowering.programs(0).runs(), "\n");
  };
  EXPECT_THAT(reason_from(10'500), HasSubstr("launches, since they read 0.01 MB of weights each, on average, and"));
  EXPECT_THAT(reason_from(10'500), HasSubstr("in no run, since step_inputs has no form for it")) << "and all others";
  EXPECT_THAT(reason_from(10'000), HasSubstr("launches, since they are not most of the 13 tasks"));
  EXPECT_EQ(reason_from(0), "") << "where nothing was measured";
}

// ---- models as config.json has them, for which runs are chosen -----------------------------------------------------

// What a plan says of its programs for `target`. `kernels` gets the texts of all kernels.
plan::Lowering LoweringOf(const char* changes, const Target& target, std::string* kernels = nullptr,
                          StepForm steps = StepForm::kAuto) {
  ModelSource source;
  source.path = absl::StrCat(testing::TempDir(), "/chosen-", getpid());
  source.random_weights = true;
  std::filesystem::create_directories(source.path);
  std::ofstream(source.path + "/config.json") << SmallConfig(/*layers=*/6, changes);

  Ledger ledger;
  Progress progress;
  const auto model = LoadOptimized(source, {}, &ledger, &progress);
  std::filesystem::remove_all(source.path);
  plan::Lowering lowering;
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return lowering;
  auto options = MakePlanOptions(**model, source, {.targets = {target}, .generates = false}, ledger);
  EXPECT_TRUE(options.ok()) << options.status();
  if (!options.ok()) return lowering;
  options->device.steps = steps;
  std::string sources;
  const auto manifest = MakeManifest(**model, *options, &sources, &lowering);
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  if (kernels != nullptr) *kernels = sources;
  return lowering;
}

// Of its step of one sequence, with so little to read that one launch is faster.
std::string WhatIsChosen(const char* changes, Target target = *FindTarget("sm_90a"), std::string* kernels = nullptr,
                         StepForm steps = StepForm::kAuto) {
  target.persistent_bytes = 1;
  const plan::Lowering lowering = LoweringOf(changes, target, kernels, steps);
  return lowering.programs().empty() ? "" : absl::StrJoin(lowering.programs(0).runs(), "\n");
}

TEST(PersistentRuns, AreChosenForMostOfTheTasks) {
  EXPECT_THAT(WhatIsChosen("{}"), testing::ContainsRegex("tasks 1 to 33 are one launch, with a ring of"));
}

// The row of the embedding is given as all others are, and so is that of the last layer, which nobody takes.
TEST(PersistentRuns, HaveOneKindForTheTasksOfAllLayers) {
  std::string kernels;
  const std::string lines = WhatIsChosen("{}", *FindTarget("sm_90a"), &kernels);
  EXPECT_THAT(lines, HasSubstr("; 31 of them give what they make to the next")) << "of 33 tasks, two wait for all";
  EXPECT_THAT(kernels, HasSubstr("namespace task6 {")) << "lookup, qkv, attention, o, gate and up, down, head";
  EXPECT_THAT(kernels, testing::Not(HasSubstr("namespace task7 {")));
}

// Of two sequences if their weights are elements, of which each task reads more than where one sequence is enough.
TEST(PersistentRuns, AreChosenForTwoSequencesOfElements) {
  const auto chosen = [](const char* changes, double bytes, StepForm steps = StepForm::kAuto) {
    Target target = *FindTarget("sm_90a");
    target.persistent_bytes = bytes;
    std::vector<std::string> programs;
    const plan::Lowering lowering = LoweringOf(changes, target, nullptr, steps);
    for (const auto& program : lowering.programs()) {
      if (absl::StrContains(absl::StrJoin(program.runs(), "\n"), "are one launch")) programs.push_back(program.name());
    }
    return programs;
  };
  EXPECT_THAT(chosen("{}", 1), ElementsAre("sm_90a/main-1", "sm_90a/main-2"));
  EXPECT_THAT(chosen("{}", 1, StepForm::kPersistent), ElementsAre("sm_90a/main-1", "sm_90a/main-2", "sm_90a/main-4"));
  // 33 tasks read 10.7 MB: 325 KB each.
  EXPECT_THAT(chosen("{}", 200e3), ElementsAre("sm_90a/main-1"));
  EXPECT_THAT(chosen(R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true,
                         "desc_act": false}})",
                     1),
              ElementsAre("sm_90a/main-1"));
}

// Where steps of one sequence are launches, attention turns heads itself, as it does in a run.
TEST(JoinHeads, ComeWithAttentionOfOneSequence) {
  constexpr char kNormsOfHeads[] = R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
      "num_attention_heads": 8, "head_dim": 128, "attention_bias": false})";
  const auto kernels_of = [](const char* changes, StepForm steps, double bytes) {
    std::string kernels;
    Target target = *FindTarget("sm_90a");
    target.persistent_bytes = bytes;
    LoweringOf(changes, target, &kernels, steps);
    return kernels;
  };
  constexpr char kJoined[] = "llmc::PagedAttentionDecodeOfHeads<Config>";
  EXPECT_THAT(kernels_of(kNormsOfHeads, StepForm::kLaunches, 0), HasSubstr(kJoined));
  EXPECT_THAT(kernels_of(kNormsOfHeads, StepForm::kAuto, 1e9), HasSubstr(kJoined));
  EXPECT_THAT(kernels_of(kNormsOfHeads, StepForm::kAuto, 1), testing::Not(HasSubstr(kJoined))) << "a run";
  EXPECT_THAT(kernels_of("{}", StepForm::kLaunches, 0), testing::Not(HasSubstr(kJoined))) << "the product turns heads";
}

// Of 160 layers no run has most of the tasks, but each goes on where the one before is full.
TEST(PersistentRuns, AreChosenIfTogetherTheyAreMostOfTheTasks) {
  const std::string lines = WhatIsChosen(R"({"num_hidden_layers": 160})");
  EXPECT_THAT(lines,
              testing::ContainsRegex("tasks 1 to .* are one launch.*\ntasks .* are one launch.*\ntasks .* to 803 "
                                     "are one launch"));
  EXPECT_THAT(lines, testing::ContainsRegex(
                         "in no run with those before, since a launch takes 4000 words of arguments: tasks"));
}

TEST(PersistentRuns, AreNotChosenWithAShortRing) {
  Target target = *FindTarget("sm_90a");
  target.shared_bytes /= 2;
  EXPECT_THAT(WhatIsChosen(R"({"hidden_size": 4096, "intermediate_size": 4096})", target),
              testing::ContainsRegex("launches, since there is room for [2-4] stages, which run dry"));
}

// Asked for, they have the fastest forms beside which the ring is as deep.
TEST(PersistentRuns, HaveWideAttentionBesideAShortRing) {
  Target target = *FindTarget("sm_90a");
  target.shared_bytes = 178'000;
  std::string kernels;
  EXPECT_THAT(
      WhatIsChosen(R"({"hidden_size": 4096, "intermediate_size": 4096})", target, &kernels, StepForm::kPersistent),
      HasSubstr("one launch, with a ring of 4 stages"));
  const std::string attention = kernels.substr(kernels.find("struct BeforeHeads {"));
  const std::string config = attention.substr(attention.find("static constexpr int kTile = "), 200);
  EXPECT_THAT(config, HasSubstr("kThreads = 128;"));
}

TEST(PersistentRuns, AreNotChosenForProductsOfManyWarps) {
  EXPECT_THAT(WhatIsChosen(R"({"intermediate_size": 4096, "quantization_config": {"quant_method": "gptq", "bits": 3,
      "group_size": 64, "sym": true, "desc_act": false}})"),
              HasSubstr("launches, since their products want 16 warps"));
}

// As integers codes of e2m1 want 8 warps.
TEST(PersistentRuns, AreChosenForIntegersOfCodebooks) {
  EXPECT_THAT(WhatIsChosen(R"({"intermediate_size": 4096, "quantization_config": {"quant_method": "compressed-tensors",
      "format": "mxfp4-pack-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
      "config_groups": {"group_0": {"targets": ["Linear"], "format": "mxfp4-pack-quantized",
      "weights": {"num_bits": 4, "type": "float", "symmetric": true, "strategy": "group", "group_size": 32,
      "dynamic": false, "scale_dtype": "torch.uint8"}}}}})"),
              testing::ContainsRegex("tasks 1 to 33 are one launch, with a ring of 5 stages"));
}

// Codes of 8 bits: a layer `hidden` and `middle` wide.
std::string CodesOfBytes(absl::string_view format, absl::string_view type, int hidden, int middle) {
  return absl::StrReplaceAll(
      R"({"hidden_size": HIDDEN, "intermediate_size": MIDDLE, "num_attention_heads": HEADS,
      "num_key_value_heads": HEADS, "head_dim": 128,
      "quantization_config": {"quant_method": "compressed-tensors", "format": "FORMAT",
      "quantization_status": "compressed", "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"],
      "format": "FORMAT", "weights": {"num_bits": 8, "type": "TYPE", "symmetric": true, "strategy": "channel",
      "dynamic": false}}}}})",
      {{"FORMAT", format},
       {"TYPE", type},
       {"HIDDEN", absl::StrCat(hidden)},
       {"MIDDLE", absl::StrCat(middle)},
       {"HEADS", absl::StrCat(hidden / 128)}});
}

// Integers of 8 bits, whose x is kept as integers, and floats of 8 bits, whose x is kept as halves; where that would
// take a stage of the ring, it is kept as it is. Launches keep it so in any case.
TEST(PersistentRuns, KeepXInBlocksForCodesOfBytes) {
  struct Case {
    const char *format, *type;
    int middle;
    bool are_blocks;
  };
  for (const Case& c : {Case{"int-quantized", "int", 14336, true}, Case{"float-quantized", "float", 14336, true},
                        Case{"int-quantized", "int", 28672, false}}) {
    SCOPED_TRACE(absl::StrCat(c.type, ", ", c.middle));
    std::string kernels;
    EXPECT_THAT(WhatIsChosen(CodesOfBytes(c.format, c.type, 4096, c.middle).c_str(), *FindTarget("sm_90a"), &kernels),
                testing::ContainsRegex("tasks 1 to 33 are one launch, with a ring of 5 stages"));
    const size_t run = kernels.find("namespace task1 {"), block = kernels.find("kIntegerBlock = 64;");
    EXPECT_NE(run, std::string::npos);
    EXPECT_EQ(block != std::string::npos, c.are_blocks);
  }
}

// With 2,112 columns a row of a stage is longer by 32 bytes where x is kept as it is.
TEST(PersistentRuns, HaveStagesForAllFormsOfTheirProducts) {
  EXPECT_THAT(WhatIsChosen(CodesOfBytes("int-quantized", "int", 4224, 21120).c_str()),
              HasSubstr("one launch, with a ring of 5 stages of 34304 bytes"));
}

// Scales of rows, where those of queries, keys and values differ.
TEST(PersistentRuns, HaveAsManyTasksWithOuterScales) {
  EXPECT_THAT(WhatIsChosen(R"({"quantization_config": {"quant_method": "compressed-tensors",
      "format": "nvfp4-pack-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
      "config_groups": {"group_0": {"targets": ["Linear"], "format": "nvfp4-pack-quantized",
      "weights": {"num_bits": 4, "type": "float", "symmetric": true, "strategy": "tensor_group", "group_size": 16,
      "dynamic": false, "scale_dtype": "torch.float8_e4m3fn"}}}}})"),
              testing::ContainsRegex("tasks 1 to 33 are one launch"));
}

// Values and downs of more bits: products side by side, each with blocks of its own, and heads that attention turns.
TEST(PersistentRuns, AreOfWeightsInDifferentEncodings) {
  std::string kernels;
  const std::string lines = WhatIsChosen(R"({"hidden_size": 1024, "num_attention_heads": 8, "head_dim": 128,
          "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
          "quantization_status": "compressed", "ignore": ["lm_head"], "config_groups": {
          "group_0": {"targets": ["re:.*[qkopg][_a].*proj"], "weights": {"num_bits": 4, "type": "int",
          "symmetric": true, "strategy": "group", "group_size": 128, "dynamic": false}},
          "group_1": {"targets": ["re:.*v_proj", "re:.*down_proj"], "weights": {"num_bits": 8, "type": "int",
          "symmetric": true, "strategy": "group", "group_size": 128, "dynamic": false}}}}})",
                                         *FindTarget("sm_90a"), &kernels);
  // Six tasks a layer, of which attention does one itself, before and behind them a lookup and the head.
  EXPECT_THAT(lines, HasSubstr("tasks 1 to 39 are one launch"));
  EXPECT_THAT(lines, HasSubstr("; 31 of them give what they make to the next"));
  EXPECT_TRUE(absl::StrContains(kernels, "kTiles = 124;")) << "of 132 blocks, each with some 12 KB";
  EXPECT_TRUE(absl::StrContains(kernels, "return llmc::BeforeOfRopeKvWrite<Config>(p"));
}

TEST(PersistentRuns, AreChecked) {
  LayerPlan planned = PlanLayer(StepForm::kPersistent);
  const plan::SectionBytes sections = {.weights = uint64_t{1} << 20, .sources = planned.code.sources.size()};
  const auto index = static_cast<int>(planned.manifest.targets(0).programs(0));
  const auto altered = [&](auto change) {
    plan::Manifest copy = planned.manifest;
    change(copy.mutable_programs(index), copy.mutable_programs(index)->mutable_runs(0));
    return plan::CheckManifest(copy, sections).ok();
  };
  using P = plan::Program*;
  using R = plan::Run*;
  EXPECT_TRUE(altered([](P, R) {}));
  EXPECT_FALSE(altered([](P, R run) { run->set_count(0); }));
  EXPECT_FALSE(altered([](P, R run) { run->set_count(1000); }));
  EXPECT_FALSE(altered([](P, R run) { run->set_count(~0u); }));
  EXPECT_FALSE(altered([](P, R run) { run->set_first(~0u); }));
  EXPECT_FALSE(altered([](P program, R run) { run->set_count(program->tasks_size() - 1); })) << "sampling";
  EXPECT_FALSE(altered([](P, R run) { run->set_kernel(999); }));
  EXPECT_FALSE(altered([](P, R run) { run->set_blocks(0); }));
  EXPECT_FALSE(altered([](P, R run) { run->mutable_args(0)->set_persistent(99); }));
  EXPECT_FALSE(altered([](P, R run) { run->mutable_args(2)->set_dim("999"); })) << "a device error that is not there";
  EXPECT_FALSE(altered([](P, R run) { run->mutable_args(2)->set_dim("T"); }));
  EXPECT_FALSE(altered([](P program, R run) { *program->add_runs() = *run; })) << "a task is in two";
}

TEST(PersistentRuns, Compile) {
  if (!HasNvrtc()) GTEST_SKIP() << "there is no NVRTC";
  LayerPlan planned = PlanLayer(StepForm::kPersistent);
  const absl::Status status = CompileDevicePlan(kCache, &planned.manifest, &planned.code);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace llmc
