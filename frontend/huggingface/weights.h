// Declares a model's weights from a checkpoint, or without one as random numbers, and keeps account: every tensor is
// used or has a reason not to be.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "files/random_source.h"
#include "frontend/formats/safetensors.h"
#include "frontend/huggingface/blocks.h"
#include "frontend/import.h"

namespace llmc {

namespace hf {
class QuantizedScheme;
}

class HfWeights {
 public:
  // All must outlive this. `folder` is used in errors only.
  HfWeights(const std::string& folder, const Checkpoint* checkpoint, Model* model)
      : folder_(folder), checkpoint_(checkpoint), model_(model) {}

  // Without a checkpoint: every weight is of `dtype` and of random numbers.
  HfWeights(uint64_t seed, DType dtype, Model* model) : model_(model), seed_(seed), dtype_(dtype) {}

  // Declares weight `name` ("@l0.wq") with the contents of `tensor`, which must be of a float type and of `shape`. When
  // it is not, keeps the complaint for Finish and declares it without contents. Random numbers lie around `mean`. Of a
  // tensor in superblocks the weight is their bytes, "@l0.wq.blocks", and the value what `encode` makes of them in
  // `prepare`.
  Value* Add(const std::string& name, const std::string& tensor, const Shape& shape, double mean = 0);

  // Names may begin so; where none in the checkpoint does, it is left out everywhere.
  void SetPrefix(const std::string& prefix);
  // Whether the checkpoint has the tensor.
  bool Has(const std::string& tensor) const { return checkpoint_ != nullptr && checkpoint_->contains(NameOf(tensor)); }
  // False: weights are random numbers.
  bool has_checkpoint() const { return checkpoint_ != nullptr; }

  // What the file calls a tensor, for errors, where its names are others than the checkpoint's.
  void set_stored_names(std::function<std::string(const std::string&)> name_of) { stored_name_ = std::move(name_of); }

  // ---- quantized checkpoints (quantized/)
  // How linear layers are stored; nullptr: as they are. Must outlive this.
  void set_scheme(const hf::QuantizedScheme* scheme) { scheme_ = scheme; }
  const hf::QuantizedScheme* scheme() const { return scheme_; }
  // What is done besides, and of how many layers the inputs are quantized.
  void set_use(const QuantizedUse& use) { use_ = use; }
  const QuantizedUse& use() const { return use_; }
  void CountQuantizedInput() { ++quantized_inputs_; }
  int64_t quantized_inputs() const { return quantized_inputs_; }
  // Says what a checkpoint asks for besides its weights, in reports once.
  void Ask(const std::string& what) { asked_.insert(what); }
  const std::set<std::string>& asked() const { return asked_; }
  // Says what of that is left out all the same.
  void Note(const std::string& note) {
    if (use_.notes != nullptr) use_.notes->push_back(note);
  }
  const CheckpointTensor* Find(const std::string& tensor) const;
  // Declares a tensor of `module` that must be of one of the types and of this shape, which `why` explains in a
  // complaint.
  Value* AddPart(const std::string& name, const std::string& tensor, absl::Span<const DType> types, const Shape& shape,
                 const std::string& why, const std::string& module);
  // The same of u8 [bytes, 1], which the checkpoint may have as the bytes of elements of another type.
  Value* AddBytes(const std::string& name, const std::string& tensor, int64_t bytes, const std::string& why,
                  const std::string& module);
  // Random numbers of any type, where there is no checkpoint.
  Value* AddRandom(const std::string& name, const std::string& tensor, const TensorType& type, RandomNumbers numbers);
  // A weight without contents, in place of one that there is a complaint of.
  Value* AddNothing(const std::string& name, const TensorType& type);
  // Keeps a complaint, or what a user should know of the tensor though it can be used.
  void Complain(const std::string& tensor, const std::string& message);
  // The same of a tensor that is not there.
  void ComplainOfMissing(const std::string& tensor, const std::string& message);
  // The file with the first tensor of the module; "" if it has none.
  std::string FileOf(const std::string& module) const;
  // Whether there is a complaint of a tensor of the module, or of a part of it.
  bool HasComplaintOf(const std::string& module) const;
  void Warn(const std::string& tensor, const std::string& message) { warnings_.push_back({tensor, message}); }
  // The same of a setting that is wrong of all tensors: once.
  void WarnOfSetting(const std::string& setting, const std::string& tensor, const std::string& message) {
    if (settings_.insert(setting).second) Warn(tensor, message);
  }
  const std::vector<IgnoredTensor>& warnings() const { return warnings_; }

  // Whether something uses the tensor, or has said that nothing does.
  bool IsUsed(const std::string& tensor) const { return used_.contains(NameOf(tensor)); }
  // That a tensor, which is no weight, has been read: it says how others are stored.
  void Use(const std::string& tensor) { used_.insert(NameOf(tensor)); }
  // Says that `tensor`, if it is there, is not used.
  void Ignore(const std::string& tensor, const std::string& reason);
  // Says so at the end, if nothing has used it.
  void IgnoreUnlessUsed(const std::string& tensor, const std::string& reason) {
    unless_used_.emplace_back(tensor, reason);
  }
  // Says so of all that are there, at the end, unless something has used them.
  void Ignore(const hf::UnusedTensors& unused, const std::vector<hf::LayerSpec>& layers);
  // Keeps a complaint for Finish.
  void Refuse(const std::string& tensor, const std::string& why);
  // That two tensors are the same, bit for bit, or that one is absent.
  bool SameContents(const std::string& a, const std::string& b) const;

  // What Finish found, one tensor each.
  const std::vector<HfFinding>& findings() const { return findings_; }

  // One error that lists every tensor that is missing, of a wrong shape or type, or unused.
  absl::Status Finish(std::vector<IgnoredTensor>* ignored);

 private:
  Value* AddEncoded(const std::string& name, const std::string& tensor, const CheckpointTensor& found);
  void AddFinding(HfFinding::Kind kind, const std::string& file, const std::string& tensor, const std::string& found,
                  const std::string& expected);
  // The name that the checkpoint has for it.
  std::string NameOf(const std::string& tensor) const;
  // The name that the file has for it.
  std::string StoredName(const std::string& tensor) const {
    return stored_name_ == nullptr ? tensor : stored_name_(tensor);
  }

  std::string folder_;
  std::string dropped_prefix_;
  std::function<std::string(const std::string&)> stored_name_;

  const Checkpoint* checkpoint_ = nullptr;
  Model* model_;
  uint64_t seed_ = 0;
  DType dtype_ = DType::kF32;
  std::set<std::string> used_;
  std::vector<IgnoredTensor> ignored_;
  hf::UnusedTensors unused_;
  std::vector<HfFinding> findings_;
  std::vector<IgnoredTensor> warnings_;
  std::vector<std::pair<std::string, std::string>> unless_used_;
  const hf::QuantizedScheme* scheme_ = nullptr;
  QuantizedUse use_;
  std::set<std::string> asked_, settings_;
  int64_t quantized_inputs_ = 0;
};

}  // namespace llmc
