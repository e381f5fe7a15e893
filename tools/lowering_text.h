// What `llmc explain` says of the kernels of a plan: which backend runs each, what joined it, what might have and why
// it did not, and why no other backend was taken.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "runtime/plan/plan.pb.h"
#include "tools/output.h"

namespace llmc {

// Kernels that differ only in their place are told once, with how many there are. Tasks that are no part of the model
// are told by their labels.
std::string LoweringText(const plan::Lowering& lowering, const plan::Manifest& manifest);
nlohmann::ordered_json LoweringJson(const plan::Lowering& lowering, const plan::Manifest& manifest);

// The program of that name; an error lists all.
absl::StatusOr<const plan::LoweredProgram*> FindLowered(const plan::Lowering& lowering, const std::string& name);

}  // namespace llmc
