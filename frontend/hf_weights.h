// Declares a model's weights from a checkpoint and keeps account: every tensor is used or has a reason not to be.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "frontend/import.h"
#include "frontend/safetensors.h"

namespace llmc {

class HfWeights {
 public:
  // All must outlive this. `folder` is used in errors only.
  HfWeights(const std::string& folder, const Checkpoint* checkpoint, Model* model)
      : folder_(folder), checkpoint_(checkpoint), model_(model) {}

  // Declares weight `name` ("@l0.wq") with the contents of `tensor`, which must be of a float type and of `shape`. When
  // it is not, keeps the complaint for Finish and returns nullptr.
  Value* Add(const std::string& name, const std::string& tensor, const Shape& shape);

  // Says that `tensor`, if it is there, is not used.
  void Ignore(const std::string& tensor, const std::string& reason);
  // Keeps a complaint for Finish.
  void Refuse(const std::string& tensor, const std::string& why);
  // That two tensors are the same, bit for bit, or that one is absent.
  bool SameContents(const std::string& a, const std::string& b) const;

  // One error that lists every tensor that is missing, of a wrong shape or type, or unused.
  absl::Status Finish(std::vector<IgnoredTensor>* ignored);

 private:
  std::string folder_;
  const Checkpoint* checkpoint_;
  Model* model_;
  std::set<std::string> used_;
  std::vector<IgnoredTensor> ignored_;
  std::vector<std::string> missing_, wrong_;
};

}  // namespace llmc
