// Weights larger than memory stay in their file: a model with 20 GB of external data is imported, goes through all
// passes and is planned in under 1 GB. The file is sparse, so it takes no room on the disk.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "codegen/plan_writer.h"
#include "passes/pipeline.h"
#include "tests/frontend/onnx_builder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSide = 16384;  // of a weight f32[kSide, kSide], 1 GiB
constexpr int64_t kSparseMegabytes = 1000;

// The most memory that a process of its own takes for `work`, in MB; -1 if `work` fails.
int64_t PeakMegabytes(const std::function<absl::Status()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    const absl::Status status = work();
    if (!status.ok()) std::cerr << status << std::endl;
    _exit(status.ok() ? 0 : 1);
  }
  int status = 0;
  rusage usage = {};
  if (child < 0 || wait4(child, &status, 0, &usage) != child || status != 0) return -1;
  return usage.ru_maxrss >> 10;
}

class SparseWeights : public OnnxTest {
 protected:
  // A chain of products with `count` weights of 1 GiB, in one file.
  std::string WriteModel(int count) {
    onnx::ModelProto model;
    model.set_ir_version(8);
    model.add_opset_import()->set_version(18);
    auto* graph = model.mutable_graph();
    graph->set_name("sparse");
    *graph->add_input() = Info("v0", {1, kSide});
    const int64_t bytes = kSide * kSide * 4;
    for (int i = 0; i < count; ++i) {
      const std::string weight = absl::StrCat("w", i), out = absl::StrCat("v", i + 1);
      AddNode(&model, "MatMul", {absl::StrCat("v", i), weight}, {out});
      auto* tensor = graph->add_initializer();
      tensor->set_name(weight);
      tensor->set_data_type(onnx::TensorProto::FLOAT);
      tensor->add_dims(kSide);
      tensor->add_dims(kSide);
      tensor->set_data_location(onnx::TensorProto::EXTERNAL);
      for (const auto& [key, value] : std::map<std::string, std::string>{
               {"location", "weights.bin"}, {"offset", absl::StrCat(i * bytes)}, {"length", absl::StrCat(bytes)}}) {
        auto* entry = tensor->add_external_data();
        entry->set_key(key);
        entry->set_value(value);
      }
    }
    *graph->add_output() = Info(absl::StrCat("v", count), {1, kSide});
    Write("", "weights.bin");
    fs::resize_file(folder_ / "weights.bin", static_cast<uintmax_t>(count * bytes));
    return Write(model.SerializeAsString()).string();
  }

  static absl::StatusOr<std::unique_ptr<Model>> Optimized(const std::string& path) {
    auto model = ImportOnnx(path);
    if (!model.ok()) return model;
    if (absl::Status status = RunPipeline(model->get(), {}, nullptr); !status.ok()) return status;
    return model;
  }
};

TEST_F(SparseWeights, OfTwentyGigabytesAreNotRead) {
  const std::string path = WriteModel(20);
  const int64_t megabytes = PeakMegabytes([&]() -> absl::Status {
    const auto model = Optimized(path);
    if (!model.ok()) return model.status();
    return (*model)->weights.size() == 20 ? absl::OkStatus() : absl::InternalError("weights are missing");
  });
  EXPECT_GT(megabytes, 0);
  EXPECT_LT(megabytes, kSparseMegabytes);
}

// Their digests are made of all bytes, but a part after the other.
TEST_F(SparseWeights, AreHashedInParts) {
  const std::string path = WriteModel(2);
  const std::string plan = folder_ / "sparse.plan";
  const int64_t megabytes = PeakMegabytes([&]() -> absl::Status {
    const auto model = Optimized(path);
    if (!model.ok()) return model.status();
    PlanOptions options{.compiler_version = "test", .files = {{"weights.bin", folder_ / "weights.bin", true}}};
    for (const Value* weight : (*model)->weights) {
      const int64_t index = weight->name == "@w0" ? 0 : 1;
      options.external_weights[weight->name] = {"weights.bin", index * kSide * kSide * 4};
    }
    return WritePlan(**model, options, plan);
  });
  EXPECT_GT(megabytes, 0);
  EXPECT_LT(megabytes, kSparseMegabytes);
  EXPECT_LT(fs::file_size(plan), 1 << 20);
}

}  // namespace
}  // namespace llmc
