// The inputs of a language model's step may have any names: all who feed or plan it go by their roles.
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"
#include "codegen/plan_writer.h"
#include "frontend/import.h"
#include "ir/step_inputs.h"
#include "ir/text.h"
#include "passes/driver/numerics.h"
#include "passes/pipeline.h"
#include "runtime/engine/engine.h"
#include "runtime/host/host_executor.h"
#include "runtime/plan/memory_needs.h"
#include "runtime/plan/step_programs.h"
#include "runtime/plan/target_code.h"

namespace llmc {
namespace {

// The first decoder after all passes, its inputs under names that say nothing if `renamed`: each has that of another.
std::unique_ptr<Model> Decoder(bool renamed) {
  auto model = ImportHuggingFace(LLMC_TEST_DATA "/tale-7m");
  EXPECT_TRUE(model.ok()) << model.status();
  if (renamed) {
    const std::vector<Value*> params = (*model)->steps[0]->params;
    std::vector<std::string> names;
    for (const Value* param : params) names.push_back(param->name);
    for (Value* param : params) (*model)->Rename(param, absl::StrCat("%old.", param->name.substr(1)));
    for (size_t i = 0; i < params.size(); ++i) (*model)->Rename(params[i], names[(i + 1) % names.size()]);
    EXPECT_EQ(params[1]->name, "%slots");
    EXPECT_EQ(params[1]->role.role, StepRole::kPositions);
  }
  const absl::Status status = RunPipeline(model->get(), {.dtype = DType::kF32}, nullptr);
  EXPECT_TRUE(status.ok()) << status;
  return *std::move(model);
}

std::vector<int32_t> Continue(const Model& model) {
  const auto executor = NewHostExecutor(&model, {.num_pages = 8});
  EXPECT_TRUE(executor.ok()) << executor.status();
  auto engine = Engine::Create(executor->get(), nullptr, {.max_tokens_per_step = 8, .max_sequences = 4});
  EXPECT_TRUE(engine.ok()) << engine.status();
  const auto completions = Generate(
      engine->get(), {{.prompt_ids = {5, 17, 3, 90, 41, 8, 8, 12, 77, 2}, .max_new_tokens = 12, .ignore_eos = true}});
  EXPECT_TRUE(completions.ok()) << completions.status();
  return (*completions)[0].tokens;
}

plan::Manifest PlanOf(const Model& model) {
  auto manifest = MakeManifest(model, {.targets = {*FindTarget("sm_90a")}});
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return *std::move(manifest);
}

TEST(InputNames, AreFree) {
  const std::unique_ptr<Model> plain = Decoder(false), renamed = Decoder(true);
  ASSERT_NE(PrintModel(*plain), PrintModel(*renamed));
  EXPECT_EQ(Continue(*plain), Continue(*renamed));

  // The inputs of the check of numbers describe the same step.
  EXPECT_EQ(SmallDims(*plain), SmallDims(*renamed));
  const DimEnv dims = SmallDims(*plain);
  const Step &step = *plain->steps[0], &other = *renamed->steps[0];
  const auto inputs = RandomInputs(step, dims, 1), others = RandomInputs(other, dims, 1);
  ASSERT_TRUE(inputs.ok() && others.ok());
  for (const StepRoleInfo& role : StepRoles()) {
    if (role.role == StepRole::kTokenIds) continue;
    EXPECT_EQ(inputs->at(FindInput(step, role.role)->name.substr(1)),
              others->at(FindInput(other, role.role)->name.substr(1)))
        << role.name;
  }

  const plan::Manifest plan = PlanOf(*plain), of_renamed = PlanOf(*renamed);
  EXPECT_TRUE(PagedContractOf(of_renamed).ok()) << PagedContractOf(of_renamed).status();
  const TargetCode code(plan, 0), other_code(of_renamed, 0);
  ASSERT_EQ(code.programs_size(), other_code.programs_size());
  EXPECT_GT(code.programs_size(), 1) << "there are programs for decode steps";
  for (int i = 0; i < code.programs_size(); ++i) {
    EXPECT_EQ(code.program(i).decode(), other_code.program(i).decode());
    EXPECT_EQ(code.program(i).tasks_size(), other_code.program(i).tasks_size());
    EXPECT_EQ(code.program(i).arena_bytes(), other_code.program(i).arena_bytes());
    std::set<std::string> places;
    for (const plan::Buffer& buffer : other_code.program(i).buffers()) {
      for (const std::string& value : buffer.values()) {
        places.insert(PlaceOf(value, *PagedContractOf(of_renamed), of_renamed.entry_points(0)));
      }
    }
    EXPECT_EQ(places.size(), StepRoles().size() + 2) << "of each input, the logits, and no place";
  }
  EXPECT_EQ(code.persistent().size(), other_code.persistent().size());
  EXPECT_NE(other_code.FindPersistent("sampled"), nullptr);
  EXPECT_EQ(MemoryNeedsOf(code)->max_sequences, MemoryNeedsOf(other_code)->max_sequences);
  EXPECT_EQ(MemoryNeedsOf(code)->max_context, MemoryNeedsOf(other_code)->max_context);
}

}  // namespace
}  // namespace llmc
