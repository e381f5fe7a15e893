// The times of the tasks of a persistent launch, from the clocks that its blocks write.
#include "tools/bench_runs.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/layout/run_clocks.h"

namespace llmc {
namespace {

// Two blocks whose clocks run at 2 GHz from different numbers on, and begin 100 ns one after the other.
class Clocks {
 public:
  explicit Clocks(int tasks) : words_(static_cast<size_t>(RunClocks::Words(2, tasks))) {
    for (int block = 0; block < 2; ++block) {
      words_[RunClocks::OfBlock(block, RunClocks::kBeginClock)] = Clock(block, Begin(block));
      words_[RunClocks::OfBlock(block, RunClocks::kBeginTime)] = 1'000'000 + Begin(block);
      words_[RunClocks::OfBlock(block, RunClocks::kEndClock)] = Clock(block, 10'000);
      words_[RunClocks::OfBlock(block, RunClocks::kEndTime)] = 1'000'000 + 10'000;
    }
  }
  void Set(int task, int block, RunClocks::RunStamp stamp, int64_t nanoseconds) {
    words_[RunClocks::Of(2, task, block, stamp)] = Clock(block, nanoseconds);
  }
  const std::vector<int64_t>& words() const { return words_; }

 private:
  static int64_t Begin(int block) { return block * 100; }
  static int64_t Clock(int block, int64_t nanoseconds) { return 5'000 + block * 77'777 + 2 * nanoseconds; }
  std::vector<int64_t> words_;
};

TEST(BenchRuns, AddsUpWhatBlocksStamp) {
  Clocks clocks(3);
  clocks.Set(0, 0, RunClocks::kDone, 1'000);
  clocks.Set(0, 1, RunClocks::kDone, 1'200);  // the last
  for (int block = 0; block < 2; ++block) {
    clocks.Set(1, block, RunClocks::kBegun, 2'000 + block * 200);
    clocks.Set(1, block, RunClocks::kDone, 3'000 + block * 1'000);
    clocks.Set(1, block, RunClocks::kTold, 3'100 + block * 1'000);
    clocks.Set(2, block, RunClocks::kBegun, 4'500);
    clocks.Set(2, block, RunClocks::kDone, 5'000);
    clocks.Set(2, block, RunClocks::kTold, 5'000);
  }
  clocks.Set(1, 1, RunClocks::kInput, 2'700);  // a product of this block alone
  const std::vector<RunRow> rows = RowsOfRun(clocks.words(), 2, {"first", "product", "other"});
  ASSERT_EQ(rows.size(), 2u);
  const RunRow& product = rows[0];
  EXPECT_EQ(product.name, "product");
  EXPECT_EQ(product.count, 1);
  EXPECT_NEAR(product.step, 2'800e-9, 1e-9) << "from 1,200 to 4,000";
  EXPECT_NEAR(product.hop, 900e-9, 1e-9);
  EXPECT_NEAR(product.input, 500e-9, 1e-9);
  EXPECT_NEAR(product.busy, 1'400e-9, 1e-9);
  EXPECT_NEAR(product.slowest, 1'800e-9, 1e-9);
  EXPECT_NEAR(product.told, 100e-9, 1e-9);
  EXPECT_EQ(rows[1].name, "other");
  EXPECT_NEAR(rows[1].step, 1'000e-9, 1e-9);
}

TEST(BenchRuns, CountTasksThatTakeRowsFromWhenTheseAreThere) {
  Clocks clocks(2);
  clocks.Set(0, 0, RunClocks::kDone, 1'000);
  clocks.Set(0, 1, RunClocks::kDone, 1'200);
  clocks.Set(1, 0, RunClocks::kInput, 1'100);  // before the last has done
  clocks.Set(1, 0, RunClocks::kDone, 2'000);
  clocks.Set(1, 1, RunClocks::kDone, 1'300);  // has no part in it
  const std::vector<RunRow> rows = RowsOfRun(clocks.words(), 2, {"first", "taker"});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_NEAR(rows[0].step, 800e-9, 1e-9);
  EXPECT_NEAR(rows[0].hop, -100e-9, 1e-9);
  EXPECT_NEAR(rows[0].input, 0, 1e-9);
  EXPECT_NEAR(rows[0].busy, 900e-9, 1e-9);
  EXPECT_NEAR(rows[0].slowest, 900e-9, 1e-9);
}

TEST(BenchRuns, AreMeansOfTheTasksOfAKernel) {
  Clocks clocks(3);
  for (int block = 0; block < 2; ++block) {
    clocks.Set(0, block, RunClocks::kDone, 1'000);
    clocks.Set(1, block, RunClocks::kBegun, 1'500);
    clocks.Set(1, block, RunClocks::kDone, 2'000);
    clocks.Set(2, block, RunClocks::kBegun, 3'000);
    clocks.Set(2, block, RunClocks::kDone, 5'000);
  }
  const std::vector<RunRow> rows = RowsOfRun(clocks.words(), 2, {"first", "same", "same"});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].count, 2);
  EXPECT_NEAR(rows[0].step, 2'000e-9, 1e-9);
  EXPECT_NEAR(rows[0].hop, 750e-9, 1e-9);
  EXPECT_NEAR(rows[0].input, 0, 1e-9);
  EXPECT_NE(RunsText(rows).find("same"), std::string::npos);
}

}  // namespace
}  // namespace llmc
