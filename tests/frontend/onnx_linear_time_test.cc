// From a file to a plan for the host: the time of each part grows with the number of nodes, not with its square.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "codegen/plan_writer.h"
#include "passes/pipeline.h"
#include "tests/frontend/onnx_builder.h"
#include "tests/growth.h"

namespace llmc {
namespace {

constexpr int kFileSizes[] = {3000, 6000, 12000, 24000};  // nodes

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
    double start = ProcessorSeconds();
    const auto lap = [&start] {
      const double before = start;
      start = ProcessorSeconds();
      return start - before;
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
    std::vector<std::pair<double, double>> points[3];
    for (const int nodes : kFileSizes) {
      double seconds[3] = {};
      Time(make(nodes), &seconds[0], &seconds[1], &seconds[2]);
      for (int i = 0; i < 3; ++i) points[i].emplace_back(nodes, seconds[i]);
    }
    const char* stages[] = {"import", "passes", "plan"};
    for (int i = 0; i < 3; ++i) {
      EXPECT_LT(GrowthExponent(points[i]), kMostGrowth) << stages[i] << ": " << testing::PrintToString(points[i]);
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
