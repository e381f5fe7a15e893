// When runs of a program are launched, captured and replayed, on a device that only writes down what it is told.
#include "runtime/device/prepared_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct FakeGraph {
  std::vector<std::string> launches;
  std::shared_ptr<int> alive;  // counts the graphs that are there
};

class FakeDevice {
 public:
  absl::Status BeginCapture() {
    EXPECT_FALSE(capturing_);
    if (!begin_error.ok()) return begin_error;
    capturing_ = true;
    captured_.clear();
    return absl::OkStatus();
  }
  absl::StatusOr<FakeGraph> EndCapture() {
    EXPECT_TRUE(capturing_);
    capturing_ = false;
    if (!end_error.ok()) return end_error;
    return FakeGraph{captured_, graphs};
  }
  absl::Status Launch(const FakeGraph& graph) {
    for (const std::string& launch : graph.launches) done.push_back(absl::StrCat("replay ", launch));
    return absl::OkStatus();
  }
  absl::Status Run(const std::string& work) {
    (capturing_ ? captured_ : done).push_back(work);
    return absl::OkStatus();
  }
  long num_graphs() const { return graphs.use_count() - 1; }

  std::vector<std::string> done;
  absl::Status begin_error, end_error;
  std::shared_ptr<int> graphs = std::make_shared<int>(0);

 private:
  bool capturing_ = false;
  std::vector<std::string> captured_;
};

class PreparedRunsTest : public ::testing::Test {
 protected:
  using Runs = PreparedRuns<FakeDevice, std::string>;

  // What the device did in a run of a size, whose work is called so.
  std::vector<std::string> Run(int64_t size) {
    device_.done.clear();
    const StepDims sizes = {{"B", size}};
    if (runs_.Find(sizes) == nullptr) runs_.Add(sizes, absl::StrCat("work ", size));
    const absl::Status status = runs_.Enqueue([&](const std::string& work) { return device_.Run(work); });
    EXPECT_TRUE(status.ok()) << status;
    return device_.done;
  }

  FakeDevice device_;
  Runs runs_{&device_, /*captures=*/true, /*most=*/2};
};

TEST_F(PreparedRunsTest, TheSecondRunIsCapturedAndReplayed) {
  EXPECT_THAT(Run(1), ElementsAre("work 1"));
  EXPECT_EQ(runs_.num_graphs(), 0u);
  EXPECT_THAT(Run(1), ElementsAre("replay work 1"));
  EXPECT_EQ(runs_.num_graphs(), 1u);
  EXPECT_THAT(Run(2), ElementsAre("work 2")) << "other sizes are another run";
  EXPECT_THAT(Run(1), ElementsAre("replay work 1"));
  EXPECT_THAT(Run(2), ElementsAre("replay work 2"));
}

TEST_F(PreparedRunsTest, SizesOfAllSymbolsCount) {
  runs_.Add({{"B", 1}, {"L", 2}}, "a");
  EXPECT_EQ(runs_.Find({{"B", 2}, {"L", 1}}), nullptr);
  EXPECT_EQ(runs_.Find({{"B", 1}}), nullptr);
  ASSERT_NE(runs_.Find({{"B", 1}, {"L", 2}}), nullptr);
}

TEST_F(PreparedRunsTest, TheOneNotUsedLongestGoes) {
  for (const int64_t size : {1, 1, 2, 2, 1, 3}) Run(size);
  EXPECT_EQ(runs_.size(), 2u);
  EXPECT_EQ(device_.num_graphs(), 1) << "the graph of size 2 is gone, size 3 has none yet";
  EXPECT_THAT(Run(1), ElementsAre("replay work 1"));
  EXPECT_THAT(Run(2), ElementsAre("work 2"));
}

TEST_F(PreparedRunsTest, NothingStaysOfMemoryThatMoved) {
  for (const int64_t size : {1, 1, 2}) Run(size);
  runs_.Clear();
  EXPECT_EQ(device_.num_graphs(), 0);
  EXPECT_EQ(runs_.Find({{"B", 1}}), nullptr);
  EXPECT_THAT(Run(1), ElementsAre("work 1"));
}

TEST_F(PreparedRunsTest, WithoutGraphsEachRunIsLaunched) {
  runs_ = Runs(&device_, /*captures=*/false);
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Run(1), ElementsAre("work 1"));
  EXPECT_EQ(runs_.num_graphs(), 0u);
}

TEST_F(PreparedRunsTest, AfterACaptureThatFailsRunsAreLaunched) {
  for (const int64_t size : {1, 1, 2}) Run(size);
  device_.end_error = absl::InternalError("no graph of this");
  EXPECT_TRUE(runs_.capture_status().ok());
  EXPECT_THAT(Run(2), ElementsAre("work 2")) << "the run is not lost";
  EXPECT_EQ(runs_.capture_status(), device_.end_error);
  device_.end_error = absl::OkStatus();
  EXPECT_THAT(Run(2), ElementsAre("work 2")) << "it is not tried again";
  EXPECT_EQ(runs_.capture_status().message(), "no graph of this");
  EXPECT_THAT(Run(1), ElementsAre("replay work 1")) << "graphs that are there still are";
}

TEST_F(PreparedRunsTest, ACaptureThatDoesNotBegin) {
  Run(1);
  device_.begin_error = absl::InternalError("busy");
  EXPECT_THAT(Run(1), ElementsAre("work 1"));
  EXPECT_EQ(runs_.capture_status().message(), "busy");
}

TEST_F(PreparedRunsTest, ALaunchThatFailsInACaptureEndsIt) {
  Run(1);
  int calls = 0;
  ASSERT_NE(runs_.Find({{"B", 1}}), nullptr);
  device_.done.clear();
  const absl::Status status = runs_.Enqueue([&](const std::string& work) {
    return ++calls == 1 ? absl::InternalError("not in a capture") : device_.Run(work);
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(device_.done, ElementsAre("work 1"));
  EXPECT_EQ(runs_.capture_status().message(), "not in a capture");
  EXPECT_EQ(device_.num_graphs(), 0);
}

TEST_F(PreparedRunsTest, AFirstRunThatFailsIsNoReasonAgainstGraphs) {
  runs_.Add({{"B", 1}}, "work 1");
  const absl::Status failed = runs_.Enqueue([](const std::string&) { return absl::InternalError("once"); });
  EXPECT_EQ(failed.message(), "once");
  EXPECT_THAT(device_.done, IsEmpty());
  EXPECT_THAT(Run(1), ElementsAre("work 1"));
  EXPECT_THAT(Run(1), ElementsAre("replay work 1"));
}

}  // namespace
}  // namespace llmc
