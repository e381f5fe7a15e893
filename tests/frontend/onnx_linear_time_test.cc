// From a file to a plan for the host: ten times the nodes take about ten times as long. A quadratic step anywhere takes
// a hundred times, and fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <string>

#include "absl/strings/str_cat.h"
#include "codegen/plan_writer.h"
#include "passes/pipeline.h"
#include "tests/frontend/onnx_builder.h"

namespace llmc {
namespace {

constexpr int kFew = 4000, kMany = 10 * kFew;
constexpr double kMostRatio = 30;
// Times below this are noise.
constexpr double kLeastSeconds = 0.02;

class LinearTimeOfFiles : public OnnxTest {
 protected:
  static onnx::ModelProto Empty() {
    onnx::ModelProto model;
    model.set_ir_version(8);
    model.add_opset_import()->set_version(18);
    model.mutable_graph()->set_name("large");
    *model.mutable_graph()->add_input() = Info("x", {8, 8});
    return model;
  }

  // Seconds of the processor for import, all passes and a plan for the host.
  void Time(const onnx::ModelProto& model, double* import, double* passes, double* plan) {
    const std::string path = Write(model.SerializeAsString()).string();
    std::clock_t start = std::clock();
    const auto lap = [&start] {
      const std::clock_t now = std::clock();
      const double seconds = static_cast<double>(now - start) / CLOCKS_PER_SEC;
      start = now;
      return seconds;
    };
    auto imported = ImportOnnx(path);
    ASSERT_TRUE(imported.ok()) << imported.status();
    *import = lap();
    const absl::Status status = RunPipeline(imported->get(), {}, nullptr);
    ASSERT_TRUE(status.ok()) << status;
    *passes = lap();
    const absl::Status written = WritePlan(**imported, {.compiler_version = "test"}, folder_ / "large.plan");
    ASSERT_TRUE(written.ok()) << written;
    *plan = lap();
  }

  template <class Make>
  void ExpectLinear(Make make) {
    double few[3] = {}, many[3] = {};
    Time(make(kFew), &few[0], &few[1], &few[2]);
    Time(make(kMany), &many[0], &many[1], &many[2]);
    const char* stages[] = {"import", "passes", "plan"};
    for (int i = 0; i < 3; ++i) {
      EXPECT_LT(many[i], kMostRatio * std::max(few[i], kLeastSeconds))
          << stages[i] << ": " << few[i] << " s for " << kFew << " nodes, " << many[i] << " s for " << kMany;
    }
  }
};

TEST_F(LinearTimeOfFiles, OneChain) {
  ExpectLinear([](int count) {
    onnx::ModelProto model = Empty();
    std::string last = "x";
    for (int i = 0; i < count; ++i) {
      const std::string next = absl::StrCat("v", i);
      if (i % 2 == 0) {
        AddNode(&model, "Tanh", {last}, {next});
      } else {
        AddNode(&model, "Add", {last, "x"}, {next});
      }
      last = next;
    }
    *model.mutable_graph()->add_output() = Info(last, {8, 8});
    return model;
  });
}

// Every node is read again at the end, so that all results live at once.
TEST_F(LinearTimeOfFiles, ManyLongLives) {
  ExpectLinear([](int count) {
    onnx::ModelProto model = Empty();
    const int half = count / 2;
    for (int i = 0; i < half; ++i) {
      AddNode(&model, "Mul", {i == 0 ? "x" : absl::StrCat("v", i - 1), "x"}, {absl::StrCat("v", i)});
    }
    std::string last = absl::StrCat("v", half - 1);
    for (int i = half; i-- > 0;) {
      const std::string next = absl::StrCat("s", i);
      AddNode(&model, "Sub", {last, absl::StrCat("v", i)}, {next});
      last = next;
    }
    *model.mutable_graph()->add_output() = Info(last, {8, 8});
    return model;
  });
}

TEST_F(LinearTimeOfFiles, ManyWeights) {
  ExpectLinear([](int count) {
    onnx::ModelProto model = Empty();
    std::string last = "x";
    for (int i = 0; i < count / 2; ++i) {
      const std::string weight = absl::StrCat("w", i), next = absl::StrCat("v", i);
      AddFloats(&model, weight, {8, 8}, 4 * 64);
      AddNode(&model, i % 2 == 0 ? "MatMul" : "Add", {last, weight}, {next});
      last = next;
    }
    *model.mutable_graph()->add_output() = Info(last, {8, 8});
    return model;
  });
}

}  // namespace
}  // namespace llmc
