// The inputs of a run: from files, one by one, and random ones.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "ir/eval.h"
#include "runtime/llmc.h"
#include "tools/model_source.h"
#include "tools/random_inputs.h"

namespace llmc {

struct InputOptions {
  std::string file;                         // named tensors
  std::map<std::string, std::string> each;  // .npy files by input
  std::string random;                       // the seed, if inputs that are not given are random
};

// Declares --inputs, --input and --random.
void AddInputOptions(CLI::App* command, InputOptions* options);

// All files that are read.
std::vector<std::string> InputFiles(const InputOptions& options);

// Sizes of --dim that fix nothing, as the dims of a plan or a folder cannot be changed: those of random inputs. Takes
// them from `source`; none of other models.
DimEnv TakeInputSizes(ModelSource* source);

// The tensors that there are for a run, and which of them it took.
class RunInputs {
 public:
  static absl::StatusOr<RunInputs> Read(const InputOptions& options);

  // Adds what is missing of `inputs`, if random ones are wanted, and says with what. A tensor without a name becomes
  // the only input. `tables` and `sizes` as in RandomInputs.
  absl::Status Complete(const std::vector<TensorInfo>& inputs, const std::map<std::string, int64_t>& tables,
                        const DimEnv& sizes);

  // The inputs, each under its name with `suffix`, in the types that the model wants. InvalidArgument names what is
  // missing, and what was not used and may have been meant.
  absl::StatusOr<NamedHostTensors> Pick(const std::vector<TensorInfo>& inputs, const std::string& suffix);

  const NamedTensors& tensors() const { return tensors_; }
  const std::string& from() const { return from_; }  // for messages
  // Says on standard error which tensors no run took, but for those named like its outputs.
  void NoteUnused(const NamedTensors& outputs) const;

 private:
  std::optional<Tensor> StandIn(const TensorInfo& info, const std::string& suffix) const;
  absl::Status MissingError(const std::vector<const TensorInfo*>& missing, const std::string& suffix) const;
  absl::StatusOr<Tensor> Converted(const std::string& name, const Tensor& tensor, DType wanted);

  std::string from_;
  NamedTensors tensors_;
  std::set<std::string> used_;
  std::optional<uint64_t> random_;
};

}  // namespace llmc
