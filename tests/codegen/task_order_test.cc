// The order of tasks against its definition, pair by pair.
#include "codegen/task_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace llmc {
namespace {

using ::testing::ElementsAre;

plan::Buffer BufferAt(uint64_t offset, uint64_t bytes) {
  plan::Buffer buffer;
  buffer.set_offset(offset);
  buffer.set_bytes(bytes);
  return buffer;
}

enum Access { kReads, kWrites };

struct Use {
  uint32_t buffer;
  Access access;
  uint64_t offset = 0;
};

plan::Task* AddTask(const std::vector<Use>& uses, plan::Program* program) {
  plan::Task* task = program->add_tasks();
  for (const Use& use : uses) {
    plan::Arg* arg = task->add_args();
    arg->set_buffer(use.buffer);
    arg->set_offset(use.offset);
    arg->set_writes(use.access == kWrites);
  }
  return task;
}

std::vector<uint32_t> AfterOf(const plan::Program& program, int task) {
  return {program.tasks(task).after().begin(), program.tasks(task).after().end()};
}

TEST(TaskOrder, ReadersWaitForWritersAndWritersForBoth) {
  plan::Program program;
  *program.add_buffers() = BufferAt(0, 256);
  *program.add_buffers() = BufferAt(256, 256);
  *program.add_buffers() = BufferAt(128, 256);  // overlaps both
  AddTask({{0, kWrites}}, &program);
  AddTask({{1, kWrites}}, &program);
  AddTask({{0, kReads}, {1, kReads}}, &program);
  AddTask({{0, kReads}}, &program);
  AddTask({{2, kWrites}}, &program);
  AddTask({{1, kWrites, 192}}, &program);  // behind the bytes that task 4 wrote
  AddTask({{1, kWrites}}, &program);
  SetTaskOrder({}, false, &program);
  EXPECT_THAT(AfterOf(program, 0), ElementsAre());
  EXPECT_THAT(AfterOf(program, 1), ElementsAre());
  EXPECT_THAT(AfterOf(program, 2), ElementsAre(0, 1));
  EXPECT_THAT(AfterOf(program, 3), ElementsAre(0));
  EXPECT_THAT(AfterOf(program, 4), ElementsAre(2, 3)) << "0 and 1 come before 2";
  EXPECT_THAT(AfterOf(program, 5), ElementsAre(2));
  EXPECT_THAT(AfterOf(program, 6), ElementsAre(4, 5));
}

TEST(TaskOrder, BuffersWithoutPlacesAreWhole) {
  plan::Program program;
  program.set_unplanned("too large");
  *program.add_buffers() = BufferAt(0, 16);
  *program.add_buffers() = BufferAt(0, 16);
  AddTask({{0, kWrites}}, &program);
  AddTask({{1, kWrites}}, &program);
  AddTask({{0, kReads, 512}}, &program);
  SetTaskOrder({}, false, &program);
  EXPECT_THAT(AfterOf(program, 1), ElementsAre()) << "another buffer, whatever its offset";
  EXPECT_THAT(AfterOf(program, 2), ElementsAre(0)) << "sizes are those of a sample";
}

TEST(TaskOrder, KnowsStatesWeightsPersistentMemoryAndCopies) {
  plan::TargetPrograms target;
  *target.add_persistent() = BufferAt(0, 4096);
  plan::Program program;
  *program.add_buffers() = BufferAt(0, 4096);
  const auto add = [&](auto set, bool writes) {
    plan::Arg* arg = program.add_tasks()->add_args();
    set(arg);
    arg->set_writes(writes);
  };
  add([](plan::Arg* arg) { arg->set_state(1); }, true);
  add([](plan::Arg* arg) { arg->set_state(0); }, false);
  add([](plan::Arg* arg) { arg->set_state(1); }, false);
  add([](plan::Arg* arg) { arg->set_persistent(0); }, true);
  add([](plan::Arg* arg) { arg->set_persistent(0); }, true);
  add([](plan::Arg* arg) { arg->set_prepared(0); }, false);
  add([](plan::Arg* arg) { arg->set_constant(0); }, false);
  for (const uint64_t offset : {0, 64}) AddTask({{0, kWrites, offset}}, &program)->mutable_copy()->set_bytes("64");
  AddTask({{0, kReads}}, &program);
  SetTaskOrder(target, false, &program);
  const std::vector<std::vector<uint32_t>> expected = {{}, {}, {0}, {}, {3}, {}, {}, {}, {}, {7, 8}};
  for (int i = 0; i < program.tasks_size(); ++i) EXPECT_EQ(AfterOf(program, i), expected[static_cast<size_t>(i)]) << i;

  plan::Program prepare;
  *prepare.add_buffers() = BufferAt(0, 64);
  for (const bool writes : {true, false}) {
    plan::Task* task = prepare.add_tasks();
    task->add_args()->set_prepared(0);
    task->mutable_args(0)->set_writes(writes);
    task->add_args()->set_weight(0);
  }
  SetTaskOrder({}, true, &prepare);
  EXPECT_THAT(AfterOf(prepare, 1), ElementsAre(0));
}

// Random programs: two tasks that touch the same bytes, one of which writes, are in order, and no edge can be left out.
TEST(TaskOrder, IsWhatBytesAskFor) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    plan::Program program;
    for (int i = 0; i < 6; ++i) *program.add_buffers() = BufferAt(random() % 32, 1 + random() % 8);
    constexpr int kTasks = 24;
    for (int i = 0; i < kTasks; ++i) {
      AddTask({{static_cast<uint32_t>(random() % 6), random() % 3 == 0 ? kWrites : kReads},
               {static_cast<uint32_t>(random() % 6), random() % 4 == 0 ? kWrites : kReads}},
              &program);
    }
    SetTaskOrder({}, false, &program);
    std::vector<std::vector<bool>> reaches(kTasks, std::vector<bool>(kTasks));  // [later][earlier]
    for (int later = 0; later < kTasks; ++later) {
      std::vector<bool> through(kTasks);  // by way of another
      for (const uint32_t before : AfterOf(program, later)) {
        for (int i = 0; i < kTasks; ++i) through[i] = through[i] || reaches[before][i];
      }
      for (const uint32_t before : AfterOf(program, later)) {
        EXPECT_FALSE(through[before]) << "round " << round << ": task " << later << " after " << before;
        reaches[later][before] = true;
      }
      for (int i = 0; i < kTasks; ++i) reaches[later][i] = reaches[later][i] || through[i];
    }
    for (int later = 0; later < kTasks; ++later) {
      for (int earlier = 0; earlier < later; ++earlier) {
        bool conflict = false;
        for (const plan::Arg& a : program.tasks(earlier).args()) {
          for (const plan::Arg& b : program.tasks(later).args()) {
            const plan::Buffer &x = program.buffers(a.buffer()), &y = program.buffers(b.buffer());
            const bool overlap = x.offset() < y.offset() + y.bytes() && y.offset() < x.offset() + x.bytes();
            conflict = conflict || (overlap && (a.writes() || b.writes()));
          }
        }
        EXPECT_TRUE(!conflict || reaches[later][earlier]) << "round " << round << ": " << later << ", " << earlier;
      }
    }
  }
}

// A search that would go on for ever is cut off: the order is right, if not the shortest.
TEST(TaskOrder, LongSearchesEnd) {
  plan::Program program;
  *program.add_buffers() = BufferAt(0, 1);
  *program.add_buffers() = BufferAt(1, 1);
  AddTask({{0, kWrites}, {1, kWrites}}, &program);
  constexpr int kChain = 4 * kMostVisits;
  for (int i = 0; i < kChain; ++i) AddTask({{0, kWrites}}, &program);
  AddTask({{0, kReads}, {1, kReads}}, &program);
  SetTaskOrder({}, false, &program);
  EXPECT_THAT(AfterOf(program, kChain + 1), ElementsAre(0, kChain));
}

}  // namespace
}  // namespace llmc
