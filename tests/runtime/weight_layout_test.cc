#include "runtime/plan/weight_layout.h"

#include <gtest/gtest.h>

#include "tests/runtime/target_programs.h"

namespace llmc {
namespace {

using Where = WeightPlace::Where;

void AddWeight(uint64_t bytes, plan::Manifest* manifest) { manifest->add_weights()->set_bytes(bytes); }

void AddCopy(uint32_t prepared, uint64_t offset, uint32_t weight, uint64_t bytes, plan::Manifest* manifest) {
  plan::Task* task = PrepareOf(manifest)->add_tasks();
  task->mutable_copy()->set_bytes(std::to_string(bytes));
  plan::Arg* to = task->add_args();
  to->set_prepared(prepared);
  to->set_offset(offset);
  task->add_args()->set_weight(weight);
}

void AddLaunch(const std::vector<uint32_t>& weights, plan::Manifest* manifest) {
  plan::Task* task = PrepareOf(manifest)->add_tasks();
  task->mutable_kernel();
  for (const uint32_t weight : weights) task->add_args()->set_weight(weight);
}

// @0 and @1 are merged to a buffer that stays; steps read @2; @3 is unused.
plan::Manifest Merged() {
  plan::Manifest manifest;
  for (const uint64_t bytes : {1000, 3000, 500, 70}) AddWeight(bytes, &manifest);
  plan::Buffer* buffer = PrepareOf(&manifest)->add_buffers();
  buffer->set_offset(512);
  buffer->set_bytes(4000);
  PrepareOf(&manifest)->set_arena_bytes(8192);
  AddCopy(0, 0, 0, 1000, &manifest);
  AddCopy(0, 1000, 1, 3000, &manifest);
  AddProgram(&manifest)->add_tasks()->add_args()->set_weight(2);
  return manifest;
}

TEST(WeightLayout, PutsMergedWeightsWhereTheyBelong) {
  const plan::Manifest manifest = Merged();
  const WeightLayout layout = LayOutWeights(FirstCode(manifest));
  EXPECT_EQ(layout.places[0].where, Where::kPrepared);
  EXPECT_EQ(layout.places[0].offset, 512u);
  EXPECT_EQ(layout.places[1].where, Where::kPrepared);
  EXPECT_EQ(layout.places[1].offset, 1512u);
  EXPECT_EQ(layout.places[2].where, Where::kKept);
  EXPECT_EQ(layout.places[3].where, Where::kNowhere);
  EXPECT_EQ(layout.kept_bytes, 512u);
  EXPECT_EQ(layout.passing_bytes, 0u);
  EXPECT_EQ(layout.skipped, std::vector<bool>({true, true}));
}

TEST(WeightLayout, LeavesCopiesThatOthersDependOn) {
  plan::Manifest manifest = Merged();
  ProgramOf(&manifest, 0)->mutable_tasks(0)->add_args()->set_weight(0);  // read by a step too
  EXPECT_EQ(LayOutWeights(FirstCode(manifest)).skipped, std::vector<bool>({false, true}));
  manifest = Merged();
  AddCopy(0, 0, 1, 3000, &manifest);  // copied twice
  EXPECT_EQ(LayOutWeights(FirstCode(manifest)).skipped, std::vector<bool>({true, false, false}));
  manifest = Merged();
  PrepareOf(&manifest)->mutable_tasks(0)->mutable_copy()->set_bytes("999");  // a part of it
  EXPECT_EQ(LayOutWeights(FirstCode(manifest)).skipped, std::vector<bool>({false, true}));
  manifest = Merged();
  PrepareOf(&manifest)->mutable_tasks(0)->mutable_args(1)->set_offset(4);
  EXPECT_EQ(LayOutWeights(FirstCode(manifest)).skipped, std::vector<bool>({false, true}));
  manifest = Merged();
  PrepareOf(&manifest)->mutable_tasks(1)->mutable_args(0)->set_offset(3000);  // out of the buffer
  EXPECT_EQ(LayOutWeights(FirstCode(manifest)).skipped, std::vector<bool>({true, false}));
  manifest = Merged();
  PrepareOf(&manifest)->set_temporary_bytes(8192 - 512);  // the buffer shares its memory
  EXPECT_EQ(LayOutWeights(FirstCode(manifest)).skipped, std::vector<bool>({false, false}));
}

TEST(WeightLayout, RandomWeightsAreDrawnWhereTheyBelong) {
  plan::Manifest manifest = Merged();
  manifest.mutable_weights(0)->mutable_random()->set_key(1);
  PrepareOf(&manifest)->clear_tasks();
  AddLaunch({0}, &manifest);  // draws it
  AddCopy(0, 0, 0, 1000, &manifest);
  EXPECT_EQ(LayOutWeights(FirstCode(manifest)).skipped, std::vector<bool>({false, true}));
}

TEST(WeightLayout, PassingWeightsTakeTurns) {
  plan::Manifest manifest;
  for (int i = 0; i < 6; ++i) AddWeight(1024, &manifest);
  for (uint32_t i = 0; i < 6; ++i) AddLaunch({i}, &manifest);
  AddLaunch({0}, &manifest);
  const WeightLayout layout = LayOutWeights(FirstCode(manifest), 2048);
  EXPECT_EQ(layout.ends, std::vector<int>({2, 4, 7}));
  EXPECT_EQ(layout.passing_bytes, 3 * 1024u) << "two of a group, and the first, which the last step reads again";
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(layout.places[i].where, Where::kPassing);
    EXPECT_EQ(layout.places[i].group, i / 2);
    EXPECT_TRUE(i == 0 || layout.places[i].offset != layout.places[0].offset);
  }
  EXPECT_NE(layout.places[2].offset, layout.places[3].offset);
  EXPECT_EQ(LayOutWeights(FirstCode(manifest), 1).passing_bytes, 2 * 1024u);
  EXPECT_EQ(LayOutWeights(FirstCode(manifest)).passing_bytes, 6 * 1024u);
  EXPECT_EQ(LayOutWeights(FirstCode(manifest)).ends, std::vector<int>({7}));
}

TEST(WeightLayout, OfNothingIsOneEmptyGroup) {
  plan::Manifest manifest;
  FirstTarget(&manifest);
  EXPECT_EQ(LayOutWeights(FirstCode(manifest)).ends, std::vector<int>({0}));
}

}  // namespace
}  // namespace llmc
