// Runs the ONNX project's node tests whose op is supported: imported, none may give a wrong result or fail to run.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "frontend/import.h"
#include "frontend/onnx_file.h"
#include "ir/eval.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

// The tests that are supported, one name a line.
constexpr char kList[] = "tests/frontend/onnx_node_tests.txt";

// The format leaves out-of-range casts to 4 bits open; the suite wants them wrapped, the language saturates.
bool IsLeftOpen(const std::string& name) {
  return absl::StrContains(name, "cast") && (absl::EndsWith(name, "_to_INT4") || absl::EndsWith(name, "_to_UINT4") ||
                                             absl::EndsWith(name, "INT4_expanded"));
}

// The tensors of test_data_set_0 that `prefix` names, through the importer's reader.
absl::StatusOr<Tensors> LoadTensors(const fs::path& folder, const std::string& prefix, int count) {
  onnx::ModelProto holder;
  for (int i = 0; i < count; ++i) {
    std::ifstream in(folder / "test_data_set_0" / absl::StrCat(prefix, i, ".pb"), std::ios::binary);
    if (!holder.mutable_graph()->add_initializer()->ParseFromIstream(&in)) {
      return absl::InvalidArgumentError(absl::StrCat("cannot read ", prefix, i));
    }
  }
  holder.mutable_graph()->set_name("tensors");
  const fs::path path = fs::path(testing::TempDir()) / absl::StrCat("onnx_node_test_", getpid(), ".onnx");
  std::ofstream(path, std::ios::binary) << holder.SerializeAsString();
  auto file = OnnxFile::Open(path.string());
  fs::remove(path);
  if (!file.ok()) return file.status();
  Tensors tensors;
  for (int i = 0; i < count; ++i) {
    auto tensor = (*file)->Initializer(i);
    if (!tensor.ok()) return tensor.status();
    tensors.push_back(*std::move(tensor));
  }
  return tensors;
}

std::string Difference(const Tensor& got, const Tensor& want) {
  if (got.dtype() != want.dtype() || got.shape() != want.shape()) {
    return absl::StrCat("type ", DTypeName(got.dtype()), ShapeToString(got.shape()), ", want ", DTypeName(want.dtype()),
                        ShapeToString(want.shape()));
  }
  double rtol = 1e-3, atol = 1e-5;  // those of the suite
  if (want.dtype() == DType::kF16) rtol = 5e-3, atol = 1e-3;
  if (want.dtype() == DType::kBF16) rtol = 2e-2, atol = 1e-2;
  if (!IsFloat(want.dtype())) rtol = atol = 0;
  for (int64_t i = 0; i < want.size(); ++i) {
    const double a = got.GetFloat(i), b = want.GetFloat(i);
    if (a == b || (std::isnan(a) && std::isnan(b)) || std::fabs(a - b) <= atol + rtol * std::fabs(b)) continue;
    return absl::StrCat("element ", i, " is ", a, ", want ", b);
  }
  return "";
}

// Empty if the outputs are right.
std::string RunCase(const fs::path& folder, const Model& model) {
  std::ifstream in(folder / "model.onnx", std::ios::binary);
  onnx::ModelProto proto;
  if (!proto.ParseFromIstream(&in)) return "cannot parse";
  auto inputs = LoadTensors(folder, "input_", proto.graph().input_size());
  auto wanted = LoadTensors(folder, "output_", proto.graph().output_size());
  if (!inputs.ok() || !wanted.ok()) return absl::StrCat(inputs.status().message(), wanted.status().message());
  const Step& step = *model.steps[0];
  NamedTensors named;
  for (size_t i = 0; i < step.params.size(); ++i) named[step.params[i]->name.substr(1)] = (*inputs)[i];
  auto evaluator = Evaluator::Create(&model);
  if (!evaluator.ok()) return std::string(evaluator.status().message());
  auto outputs = (*evaluator)->Run(step, named);
  if (!outputs.ok()) return std::string(outputs.status().message());
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    std::string difference = Difference(outputs->at(step.outputs[i].name), (*wanted)[i]);
    if (!difference.empty()) return absl::StrCat(step.outputs[i].name, ": ", difference);
  }
  return "";
}

TEST(OnnxNodes, SupportedOnesAreRight) {
  const fs::path root = fs::path(LLMC_SHARED_DATA) / "onnx-node";
  if (std::string(LLMC_SHARED_DATA).empty() || !fs::exists(root)) {
    GTEST_SKIP() << "no onnx-node in LLMC_SHARED_DATA (\"" << LLMC_SHARED_DATA << "\")";
  }
  int refused = 0, left_open = 0;
  std::set<std::string> right;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (IsLeftOpen(name)) {
      ++left_open;
      continue;
    }
    auto model = ImportOnnx((entry.path() / "model.onnx").string());
    if (!model.ok()) {
      ++refused;
      const std::string message(model.status().message());
      EXPECT_TRUE(absl::IsUnimplemented(model.status()) || absl::StrContains(message, "opset")) << name << message;
      continue;
    }
    const std::string problem = RunCase(entry.path(), **model);
    EXPECT_EQ(problem, "") << name;
    if (problem.empty()) right.insert(name);
  }
  std::cout << "right: " << right.size() << ", refused as unsupported: " << refused << ", left open: " << left_open
            << "\n";
  if (std::getenv("LLMC_BLESS") != nullptr) std::ofstream(kList) << absl::StrJoin(right, "\n") << "\n";
  std::set<std::string> wanted;
  std::ifstream list(kList);
  for (std::string name; std::getline(list, name);) wanted.insert(name);
  EXPECT_EQ(right, wanted) << "LLMC_BLESS=1 writes " << kList << " anew";
}

}  // namespace
}  // namespace llmc
