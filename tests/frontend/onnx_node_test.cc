// Runs the ONNX project's node tests in three ways: as they are, with every dim of the inputs a symbol, and with the
// inputs as constants that are folded. Each gives the right outputs or is refused as
// tests/frontend/onnx_node_refusals.txt says.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "frontend/import.h"
#include "frontend/onnx/doc.h"
#include "frontend/onnx/doc_types.h"
#include "frontend/onnx/ops.h"
#include "ir/eval.h"
#include "passes/pipeline.h"
#include "tests/bless.h"
#include "tests/frontend/onnx_node_cases.h"
#include "tests/shared_data.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr char kList[] = "tests/frontend/onnx_node_refusals.txt";

enum Way { kGiven, kDynamic, kConstant };
constexpr std::array<absl::string_view, 3> kWays = {"given", "dynamic", "constant"};

void MakeDimsSymbols(onnx::GraphProto* graph) {
  for (onnx::ValueInfoProto& input : *graph->mutable_input()) {
    if (!input.type().has_tensor_type()) continue;
    auto* shape = input.mutable_type()->mutable_tensor_type()->mutable_shape();
    for (int i = 0; i < shape->dim_size(); ++i) {
      if (shape->dim(i).has_dim_value()) shape->mutable_dim(i)->set_dim_param(absl::StrCat(input.name(), "_", i));
    }
  }
}

absl::Status MakeInputsConstants(const fs::path& folder, onnx::GraphProto* graph) {
  const int first = graph->initializer_size();
  if (absl::Status s = LoadNodeProtos(folder, "input_", graph->input_size(), graph); !s.ok()) return s;
  for (int i = 0; i < graph->input_size(); ++i) {
    graph->mutable_initializer(first + i)->set_name(graph->input(i).name());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Model>> ImportCase(const fs::path& folder, const onnx::ModelProto& original, Way way) {
  if (way == kGiven) return ImportOnnx((folder / "model.onnx").string());
  onnx::ModelProto proto = original;
  if (way == kDynamic) MakeDimsSymbols(proto.mutable_graph());
  if (way == kConstant) {
    const auto& inputs = proto.graph().input();
    const bool tensors =
        std::all_of(inputs.begin(), inputs.end(), [](const auto& input) { return input.type().has_tensor_type(); });
    if (!tensors) return absl::UnimplementedError("input: only tensors are supported as inputs");
    if (absl::Status s = MakeInputsConstants(folder, proto.mutable_graph()); !s.ok()) return s;
  }
  const ScratchModel scratch(proto);
  auto model = ImportOnnx(scratch.path());
  if (!model.ok() || way != kConstant) return model;
  if (absl::Status s = RunPipeline(model->get(), {.stop_after = "fold-constants"}, nullptr); !s.ok()) {
    return absl::InternalError(s.message());
  }
  return model;
}

// Empty if the outputs are right.
std::string RunCase(const fs::path& folder, const onnx::ModelProto& proto, const Model& model) {
  auto inputs = LoadNodeTensors(folder, "input_", proto.graph().input_size());
  auto wanted = LoadNodeTensors(folder, "output_", proto.graph().output_size());
  if (!inputs.ok() || !wanted.ok()) return absl::StrCat(inputs.status().message(), wanted.status().message());
  const Step& step = *model.steps[0];
  std::map<std::string, const Tensor*> by_name;
  for (int i = 0; i < proto.graph().input_size(); ++i) {
    by_name[proto.graph().input(i).name()] = &(*inputs)[static_cast<size_t>(i)];
  }
  NamedTensors named;
  for (const Value* param : step.params) named[param->name.substr(1)] = *by_name.at(param->name.substr(1));
  auto evaluator = Evaluator::Create(&model);
  if (!evaluator.ok()) return std::string(evaluator.status().message());
  auto outputs = (*evaluator)->Run(step, named);
  if (!outputs.ok()) return std::string(outputs.status().message());
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    std::string difference =
        NodeDifference(folder.filename().string(), outputs->at(step.outputs[i].name), (*wanted)[i]);
    if (!difference.empty()) return absl::StrCat(step.outputs[i].name, ": ", difference);
  }
  return "";
}

struct Outcome {
  std::string refused;  // why
  std::string wrong;    // what differs, or an error that is no refusal
};

Outcome Try(const fs::path& folder, const onnx::ModelProto& proto, Way way) {
  auto model = ImportCase(folder, proto, way);
  if (model.ok()) return {.refused = "", .wrong = RunCase(folder, proto, **model)};
  if (absl::IsUnimplemented(model.status())) return {.refused = RefusalReasons(model.status().message()), .wrong = ""};
  return {.refused = "", .wrong = model.status().ToString()};
}

// Every test in every way, on two threads.
std::vector<std::array<Outcome, 3>> TryAll(const std::vector<fs::path>& folders) {
  std::vector<std::array<Outcome, 3>> outcomes(folders.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < folders.size(); i = next++) {
      const auto proto = LoadNodeModel(folders[i]);
      for (Way way : {kGiven, kDynamic, kConstant}) {
        outcomes[i][way] =
            proto.ok() ? Try(folders[i], *proto, way) : Outcome{.refused = "", .wrong = proto.status().ToString()};
      }
    }
  };
  std::thread other(work);
  work();
  other.join();
  return outcomes;
}

TEST(OnnxDoc, IsMadeFromTheTable) {
  constexpr char kDoc[] = "docs/onnx.md";
  const std::string made = OnnxOpsMarkdown();
  if (Blessing()) std::ofstream(kDoc) << made;
  std::ifstream in(kDoc);
  const std::string kept((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  EXPECT_EQ(made, kept) << kDoc << " is written anew by " << BlessCommand();
}

// Whether a model of one node that the importer takes runs too, its inputs all ones.
std::string RunWithOnes(const onnx::ModelProto& proto) {
  const ScratchModel scratch(proto);
  auto model = ImportOnnx(scratch.path());
  if (!model.ok()) return std::string(model.status().message());
  const Step& step = *(*model)->steps[0];
  NamedTensors inputs;
  for (const Value* param : step.params) {
    Shape shape;
    for (const Dim& dim : param->type.shape) shape.push_back(dim.value());
    Tensor ones(param->type.dtype, shape);
    for (int64_t i = 0; i < ones.size(); ++i) IsFloat(ones.dtype()) ? ones.SetFloat(i, 1) : ones.SetInt(i, 1);
    inputs[param->name.substr(1)] = ones;
  }
  auto evaluator = Evaluator::Create(model->get());
  if (!evaluator.ok()) return std::string(evaluator.status().message());
  return std::string((*evaluator)->Run(step, inputs).status().message());
}

TEST(OnnxDoc, TypesThatAreTakenRun) {
  for (const absl::string_view domain : {absl::string_view(), kMicrosoftDomain}) {
    for (const OnnxOp* op : AllOnnxOps(domain)) {
      const auto lists = TryOnnxTypes(domain, op->op_type);
      EXPECT_FALSE(lists.empty()) << op->op_type << " needs a row in frontend/onnx/doc_nodes.cc";
      for (const auto& trials : lists) {
        int taken = 0;
        for (const OnnxTypeTrial& trial : trials) {
          if (!trial.status.ok()) continue;
          ++taken;
          EXPECT_EQ(RunWithOnes(trial.model), "") << op->op_type << " of " << DTypeName(trial.dtype);
        }
        EXPECT_GT(taken, 0) << op->op_type << ": " << trials.back().status;
      }
    }
  }
}

// The types of node tests that run, where docs/onnx.md lacks them: what refuses the node of the table there is
// something else.
class DocumentedTypes {
 public:
  std::string Missing(const onnx::ModelProto& proto) {
    if (proto.graph().node_size() != 1) return "";
    const onnx::NodeProto& node = proto.graph().node(0);
    auto [it, is_new] = trials_.try_emplace(node.op_type());
    if (is_new) it->second = TryOnnxTypes(node.domain(), node.op_type());
    for (const auto& list : it->second) {
      const int at = list[0].input;
      if (at < 0 || at >= node.input_size() || at >= proto.graph().input_size() ||
          node.input(at) != proto.graph().input(at).name())
        continue;
      const auto dtype = DTypeOfOnnx(proto.graph().input(at).type().tensor_type().elem_type());
      const bool taken = std::any_of(list.begin(), list.end(), [&](const OnnxTypeTrial& trial) {
        return trial.status.ok() && dtype.ok() && trial.dtype == *dtype;
      });
      if (!taken) return absl::StrCat("input ", at, " of another type than docs/onnx.md says");
    }
    return "";
  }

 private:
  std::map<std::string, std::vector<std::vector<OnnxTypeTrial>>> trials_;
};

// A variable of the environment, for as long as this object lives.
class SetVariable {
 public:
  SetVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  SetVariable(const SetVariable&) = delete;
  SetVariable& operator=(const SetVariable&) = delete;
  ~SetVariable() { before_.has_value() ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST(OnnxNodeFolders, AreThoseOfTheSharedDataOrMissing) {
  const std::string data = testing::TempDir() + "/node-folders";
  fs::create_directories(data + "/onnx-node");
  const SetVariable shared("LLMC_SHARED_DATA", data), required("LLMC_REQUIRE_DATA", "1");
  EXPECT_NONFATAL_FAILURE(OnnxNodeFolders(), "has no onnx-node");
  fs::create_directories(data + "/onnx-node/test_a");
  EXPECT_EQ(OnnxNodeFolders(), std::vector<fs::path>{data + "/onnx-node/test_a"});
  fs::remove_all(data);
}

TEST(OnnxNodes, RightOrRefused) {
  const std::vector<fs::path> folders = OnnxNodeFolders();
  if (folders.empty()) GTEST_SKIP() << "no tests in " << OnnxNodeFolder();
  const auto outcomes = TryAll(folders);
  std::array<int, 3> right = {};
  std::set<std::string> refusals;
  DocumentedTypes documented;
  for (size_t i = 0; i < folders.size(); ++i) {
    const std::string name = folders[i].filename().string();
    std::map<std::string, std::vector<absl::string_view>> ways;  // by reason
    for (size_t way = 0; way < kWays.size(); ++way) {
      const Outcome& outcome = outcomes[i][way];
      EXPECT_EQ(outcome.wrong, "") << name << ", " << kWays[way];
      if (!outcome.refused.empty()) ways[outcome.refused].push_back(kWays[way]);
      right[way] += outcome.refused.empty() && outcome.wrong.empty();
    }
    if (const auto proto = LoadNodeModel(folders[i]); proto.ok() && outcomes[i][kGiven].refused.empty()) {
      EXPECT_EQ(documented.Missing(*proto), "") << name;
    }
    for (const auto& [why, which] : ways) {
      refusals.insert(absl::StrCat(name, " | ", absl::StrJoin(which, " "), " | ", why));
    }
  }
  constexpr int kLeastRight[] = {1373, 1261, 1385};
  for (size_t way = 0; way < kWays.size(); ++way) {
    std::cout << kWays[way] << ": " << right[way] << " right\n";
    EXPECT_GE(right[way], kLeastRight[way]) << kWays[way];
  }
  if (Blessing()) std::ofstream(kList) << absl::StrJoin(refusals, "\n") << "\n";
  std::set<std::string> listed;
  std::ifstream list(kList);
  for (std::string line; std::getline(list, line);) listed.insert(line);
  EXPECT_EQ(refusals, listed) << kList << " is written anew by " << BlessCommand();
}

}  // namespace
}  // namespace llmc
