// The ONNX project's node tests through plans on a GPU: what the importer takes and what has kernels gives the right
// outputs. onnx_node_refusals.txt, which tests/codegen/onnx_node_plans_test.cc holds, lists what has none.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "codegen/plan_writer.h"
#include "runtime/device/cuda_run.h"
#include "runtime/device/device.h"
#include "runtime/host/host_tensors.h"
#include "tests/frontend/onnx_node_cases.h"
#include "tests/gpu/device_check.h"
#include "tests/gpu/onnx_node_plans.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

// Of the 1,765 tests of onnx 1.22.0.
constexpr int kLeastRight = 900;

struct NodePlan {
  fs::path folder;
  std::vector<std::string> inputs, outputs;  // by their order in the file
  std::string path;                          // of the plan; empty: there is none
  std::string wrong;                         // an error that is no refusal
};

NodePlan CompileNode(const fs::path& folder, const Target& target, const std::string& to, const std::string& cache) {
  NodePlan plan{.folder = folder};
  const auto model = OptimizedNodeModel(folder);
  if (absl::IsUnimplemented(model.status())) return plan;
  const auto proto = LoadNodeModel(folder);
  if (!model.ok() || !proto.ok()) {
    plan.wrong = absl::StrCat(model.status().ToString(), proto.status().ToString());
    return plan;
  }
  for (const auto& input : proto->graph().input()) plan.inputs.push_back(input.name());
  for (const Output& output : (*model)->steps[0]->outputs) plan.outputs.push_back(output.name);
  const std::string path = absl::StrCat(to, "/", folder.filename().string(), ".plan");
  const absl::Status status =
      WritePlan(**model, {.compiler_version = "test", .targets = {target}, .compile = {.cache_folder = cache}}, path);
  if (status.ok()) plan.path = path;
  if (!status.ok() && !absl::IsUnimplemented(status)) plan.wrong = status.ToString();
  return plan;
}

// On all cores: mostly NVRTC.
std::vector<NodePlan> CompileAll(const std::vector<fs::path>& folders, const std::string& to,
                                 const std::string& cache) {
  const Target target = TargetHere();
  std::vector<NodePlan> plans(folders.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < folders.size(); i = next++) plans[i] = CompileNode(folders[i], target, to, cache);
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return plans;
}

// Empty if the outputs are right.
std::string RunNode(const NodePlan& node) {
  const auto inputs = LoadNodeTensors(node.folder, "input_", static_cast<int>(node.inputs.size()));
  const auto wanted = LoadNodeTensors(node.folder, "output_", static_cast<int>(node.outputs.size()));
  if (!inputs.ok() || !wanted.ok()) return absl::StrCat(inputs.status().message(), wanted.status().message());
  const auto plan = Plan::Load(node.path);
  if (!plan.ok()) return plan.status().ToString();
  std::set<std::string> read;
  for (const plan::TensorSpec& input : (*plan)->manifest().entry_points(0).inputs()) read.insert(input.name());
  NamedHostTensors named;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (read.contains(node.inputs[i])) named.emplace(node.inputs[i], ToHostTensor((*inputs)[i]));
  }
  const auto run = CudaRun::Create(plan->get());
  if (!run.ok()) return run.status().ToString();
  const auto outputs = (*run)->Run(named);
  if (!outputs.ok()) return outputs.status().ToString();
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const auto got = FromHostTensor(outputs->at(node.outputs[i]));
    if (!got.ok()) return got.status().ToString();
    std::string difference = NodeDifference(node.folder.filename().string(), *got, (*wanted)[i]);
    if (!difference.empty()) return absl::StrCat(node.outputs[i], ": ", difference);
  }
  return "";
}

// LLMC_NODES: comma-separated parts of names, of which a test must have one; LLMC_NODES_WITHOUT: none.
std::vector<fs::path> ChosenFolders() {
  const auto list = [](const char* name) {
    const char* text = std::getenv(name);
    return text == nullptr ? std::vector<std::string>() : std::vector<std::string>(absl::StrSplit(text, ','));
  };
  const auto has_one = [](const std::string& name, const std::vector<std::string>& parts) {
    return std::any_of(parts.begin(), parts.end(),
                       [&](const std::string& part) { return name.find(part) != name.npos; });
  };
  const std::vector<std::string> with = list("LLMC_NODES"), without = list("LLMC_NODES_WITHOUT");
  std::vector<fs::path> chosen;
  for (const fs::path& folder : OnnxNodeFolders()) {
    const std::string name = folder.filename().string();
    if ((with.empty() || has_one(name, with)) && !has_one(name, without)) chosen.push_back(folder);
  }
  return chosen;
}

class Seconds {
 public:
  double Lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    begin_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

TEST(OnnxNodesOnDevice, AreRight) {
  LLMC_NEEDS_GPU();
  const std::vector<fs::path> folders = ChosenFolders();
  if (folders.empty()) GTEST_SKIP() << "no tests in " << OnnxNodeFolder();
  const auto device = Device::Open();  // its context stays from one test to the next
  ASSERT_TRUE(device.ok()) << device.status();
  Seconds seconds;
  const std::string to = TempFolder() + "/node-plans";
  fs::create_directories(to);
  const char* cache = std::getenv("LLMC_CACHE_DIR");
  const std::vector<NodePlan> plans =
      CompileAll(folders, to, cache == nullptr ? to + "/cubins" : absl::StrCat(cache, "/cubins"));
  std::cout << "compiled in " << seconds.Lap() << " s\n";
  int planned = 0, right = 0;
  for (const NodePlan& plan : plans) {
    const std::string name = plan.folder.filename().string();
    EXPECT_EQ(plan.wrong, "") << name;
    if (plan.path.empty()) continue;
    ++planned;
    const std::string wrong = RunNode(plan);
    EXPECT_EQ(wrong, "") << name;
    right += wrong.empty();
    fs::remove(plan.path);
    // After some device errors nothing runs any more.
    if (!wrong.empty() && !((*device)->Use().ok() && (*device)->Synchronize().ok())) {
      ADD_FAILURE() << "the device fails after " << name << "; LLMC_NODES_WITHOUT leaves tests out";
      break;
    }
  }
  std::cout << right << " of " << planned << " right, in " << seconds.Lap() << " s\n";
  if (std::getenv("LLMC_NODES") == nullptr) {
    EXPECT_GE(right, kLeastRight);
  }
}

}  // namespace
}  // namespace llmc
