#include "tests/frontend/onnx_node_cases.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "frontend/onnx/file.h"
#include "tests/shared_data.h"

namespace llmc {
namespace fs = std::filesystem;

fs::path OnnxNodeFolder() {
  const std::string shared = FindSharedData("onnx-node");
  return shared.empty() ? LLMC_ONNX_NODES : shared;
}

std::vector<fs::path> OnnxNodeFolders() {
  std::vector<fs::path> folders;
  std::error_code error;
  for (fs::directory_iterator it(OnnxNodeFolder(), error), end; !error && it != end; it.increment(error)) {
    folders.push_back(it->path());
  }
  if (folders.empty()) MissingData("onnx-node");
  std::sort(folders.begin(), folders.end());
  return folders;
}

absl::StatusOr<onnx::ModelProto> LoadNodeModel(const fs::path& folder) {
  onnx::ModelProto model;
  std::ifstream in(folder / "model.onnx", std::ios::binary);
  if (!model.ParseFromIstream(&in)) return absl::InvalidArgumentError(absl::StrCat(folder.string(), ": cannot parse"));
  return model;
}

absl::Status LoadNodeProtos(const fs::path& folder, const std::string& prefix, int count, onnx::GraphProto* graph) {
  for (int i = 0; i < count; ++i) {
    std::ifstream in(folder / "test_data_set_0" / absl::StrCat(prefix, i, ".pb"), std::ios::binary);
    if (!graph->add_initializer()->ParseFromIstream(&in)) {
      return absl::InvalidArgumentError(absl::StrCat("cannot read ", prefix, i));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensors> LoadNodeTensors(const fs::path& folder, const std::string& prefix, int count) {
  onnx::ModelProto holder;
  holder.mutable_graph()->set_name("tensors");
  if (absl::Status s = LoadNodeProtos(folder, prefix, count, holder.mutable_graph()); !s.ok()) return s;
  const ScratchModel scratch(holder);
  auto file = OnnxFile::Open(scratch.path());
  if (!file.ok()) return file.status();
  Tensors tensors;
  for (int i = 0; i < count; ++i) {
    auto tensor = (*file)->Initializer(i);
    if (!tensor.ok()) return tensor.status();
    tensors.push_back(*std::move(tensor));
  }
  return tensors;
}

std::string NodeDifference(const std::string& test, const Tensor& got, const Tensor& want) {
  if (got.dtype() != want.dtype() || got.shape() != want.shape()) {
    return absl::StrCat("type ", DTypeName(got.dtype()), ShapeToString(got.shape()), ", want ", DTypeName(want.dtype()),
                        ShapeToString(want.shape()));
  }
  double rtol = 1e-3, atol = 1e-5;
  if (want.dtype() == DType::kBF16) rtol = 8e-3;  // one in the last place
  if (!IsFloat(want.dtype()) || absl::StartsWith(test, "test_cast")) rtol = atol = 0;
  for (int64_t i = 0; i < want.size(); ++i) {
    if (!IsFloat(want.dtype())) {
      if (got.GetInt(i) == want.GetInt(i)) continue;
      return absl::StrCat("element ", i, " is ", got.GetInt(i), ", want ", want.GetInt(i));
    }
    const double a = got.GetFloat(i), b = want.GetFloat(i);
    const bool near = std::isfinite(a) && std::isfinite(b) && std::fabs(a - b) <= atol + rtol * std::fabs(b);
    if (near || a == b || (std::isnan(a) && std::isnan(b))) continue;
    return absl::StrCat("element ", i, " is ", a, ", want ", b);
  }
  return "";
}

std::string RefusalReasons(absl::string_view message) {
  std::vector<std::string> reasons;
  for (absl::string_view line : absl::StrSplit(message, '\n')) {
    if (!absl::StartsWith(line, "  ")) continue;
    line.remove_prefix(2);
    reasons.emplace_back(line.substr(0, line.rfind(" (")));
  }
  if (reasons.empty())
    reasons.emplace_back(message.substr(message.find(".onnx: ") == message.npos ? 0 : message.find(".onnx: ") + 7));
  std::sort(reasons.begin(), reasons.end());
  return absl::StrJoin(reasons, "; ");
}

ScratchModel::ScratchModel(const onnx::ModelProto& model)
    : folder_(*TemporaryFolder::Create()), path_(folder_.PathOf("model.onnx")) {
  std::ofstream(path_, std::ios::binary) << model.SerializeAsString();
}

}  // namespace llmc
