// Dims and inputs that are fixed at import.
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "files/path_check.h"
#include "frontend/import_options.h"
#include "frontend/onnx/importer.h"

namespace llmc {
namespace {

absl::Status UnknownName(absl::string_view flag, absl::string_view what, const std::string& name,
                         const std::set<std::string>& known) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": the model has no ", what, " ", Quoted(name), "; it has ",
                                                 known.empty() ? "none" : absl::StrJoin(known, ", ")));
}

}  // namespace

// Sizes of the symbols that --dim names, by their names in the language.
absl::StatusOr<DimEnv> OnnxImporter::FixedSizes() {
  DimEnv sizes;
  std::set<std::string> known;
  for (const auto& [key, dim] : symbols_) known.insert(dim.ToString());
  for (const auto& [name, size] : options_.dims) {
    const auto in_file = symbols_.find(name);
    const std::string symbol = in_file != symbols_.end() ? in_file->second.ToString() : name;
    if (!known.contains(symbol)) {
      if (options_.known != nullptr) continue;
      return UnknownName("--dim", "dim", name, known);
    }
    if (options_.known != nullptr) options_.known->insert(name);
    if (const int64_t max = model_->dims.at(symbol); size > max) {
      return absl::InvalidArgumentError(absl::StrCat("--dim: ", name, " is at most ", max, ", so it cannot be ", size));
    }
    if (const auto [it, added] = sizes.emplace(symbol, size); !added && it->second != size) {
      return absl::InvalidArgumentError(absl::StrCat("--dim: ", symbol, " is fixed to ", it->second, " and to ", size));
    }
  }
  return sizes;
}

// Makes numbers of the dims that are fixed, or that the contents of a fixed input tell, and keeps those contents.
absl::Status OnnxImporter::FixInputs() {
  if (options_.empty()) return absl::OkStatus();
  std::map<std::string, TensorType> types;
  std::set<std::string> names;
  for (const onnx::ValueInfoProto& input : file_->model().graph().input()) {
    names.insert(input.name());
    // Whatever is wrong with it, AddInputs says.
    if (auto type = InputType(input); type.ok()) types.emplace(input.name(), *std::move(type));
  }
  ASSIGN_OR_RETURN(DimEnv sizes, FixedSizes());
  for (const bool tells : {true, false}) {
    for (const auto& [name, input] : options_.inputs) {
      if (TellsSizes(input) != tells) continue;
      const auto type = types.find(name);
      if (type == types.end()) {
        if (options_.known != nullptr || names.contains(name)) continue;
        return UnknownName("--set", "input", name, names);
      }
      if (options_.known != nullptr) options_.known->insert(name);
      ASSIGN_OR_RETURN(Tensor contents, FixedContents(name, input, type->second, &sizes));
      fixed_.emplace(name, std::move(contents));
    }
  }
  for (auto& [key, dim] : symbols_) {
    const auto size = sizes.find(dim.ToString());
    if (size == sizes.end()) continue;
    if (const int64_t max = model_->dims.at(size->first); size->second > max) {
      return absl::InvalidArgumentError(absl::StrCat(size->first, " is at most ", max, ", not ", size->second));
    }
    model_->dims.erase(size->first);
    dim = Dim(size->second);
  }
  return absl::OkStatus();
}

}  // namespace llmc
