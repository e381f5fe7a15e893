// What the programs of a plan share, and the programs themselves, each once: kernels, constants and device errors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "codegen/tasks/kernel_call.h"
#include "ir/graph.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

class PlanPools {
 public:
  // Fills programs, kernels, constants and device errors of `manifest`, which must outlive this.
  explicit PlanPools(plan::Manifest* manifest) : manifest_(manifest) { manifest->clear_programs(); }

  // All of these return the index in the manifest.
  uint32_t AddProgram(const plan::Program& program);
  // Unimplemented: its size is not known.
  absl::StatusOr<uint32_t> AddConstant(const Node& node);
  // Calls that need the same code share a kernel. `label` is what it is needed for.
  uint32_t AddKernel(const KernelCall& call, const std::string& label);
  uint32_t AddRun(const RunCall& call, const std::string& label);
  // The number of the first.
  int AddDeviceErrors(const std::vector<KernelDeviceError>& device_errors);

  // Adds the headers and sources of the kernels to `section`, so that any machine can compile them.
  void WriteSources(std::string* section);

 private:
  // `emit`: by its entry. `kernel` has all but that, and a name to make it of.
  template <class Emit>
  uint32_t Add(plan::Kernel kernel, const Emit& emit);

  plan::Manifest* manifest_;
  absl::flat_hash_map<std::string, uint32_t> programs_;    // by their bytes
  absl::flat_hash_map<std::string, uint32_t> constants_;   // by the name of the value
  std::map<std::string, uint32_t> kernels_;                // by their source and memory
  std::map<std::vector<std::string>, int> device_errors_;  // the first, by the texts of a launch's
  std::vector<std::string> sources_;                       // of kernels
};

}  // namespace llmc
