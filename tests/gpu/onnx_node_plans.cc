#include "tests/gpu/onnx_node_plans.h"

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "frontend/import.h"
#include "passes/pipeline.h"

namespace llmc {

absl::StatusOr<std::unique_ptr<Model>> OptimizedNodeModel(const std::filesystem::path& folder) {
  auto model = ImportOnnx((folder / "model.onnx").string());
  if (!model.ok()) return model;
  if (absl::Status s = RunPipeline(model->get(), {}, nullptr); !s.ok()) return absl::InternalError(s.message());
  return model;
}

std::string NoPlanReasons(const absl::Status& status) {
  std::set<absl::string_view> reasons;
  for (const absl::string_view line : absl::StrSplit(status.message(), '\n')) {
    if (!absl::StartsWith(line, "  ")) reasons.insert(line);
  }
  return absl::StrJoin(reasons, "; ");
}

std::set<std::string> ReadNodeRefusals(const std::string& path) {
  std::set<std::string> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.insert(line);
  return lines;
}

}  // namespace llmc
