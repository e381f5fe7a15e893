// The ONNX project's node tests as plans for a GPU: which of them have kernels, and the list of those that do not.
#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/graph.h"

namespace llmc {

// A test's model after all passes. Unimplemented: the importer refuses it.
absl::StatusOr<std::unique_ptr<Model>> OptimizedNodeModel(const std::filesystem::path& folder);

// Why there is no plan, in one line, of a status of WritePlan or MakeManifest.
std::string NoPlanReasons(const absl::Status& status);

// tests/gpu/onnx_node_refusals.txt: "NAME | REASONS" of each test that the importer takes and that has no plan.
constexpr char kNodeRefusals[] = "tests/gpu/onnx_node_refusals.txt";
std::set<std::string> ReadNodeRefusals(const std::string& path);

}  // namespace llmc
