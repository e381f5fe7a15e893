// What the positions of the tokens of a step with a paged cache do to queries and keys.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "frontend/huggingface/block_graph.h"
#include "frontend/huggingface/blocks.h"
#include "ir/step_inputs.h"

namespace llmc::hf {

class RotationGraph {
 public:
  // Makes the tables of all `ropes`. All must outlive this.
  RotationGraph(const std::vector<RopeSpec>& ropes, const std::map<StepRole, Value*>& inputs, BlockGraph* blocks);

  // x[T, heads * head_dim], rotated by one of the ropes; none: as it is.
  Value* Rotate(Value* x, const std::optional<size_t>& rope, int64_t head_dim, const std::string& name);
  // Queries q[T, …], multiplied as AttentionSpec::temperature says.
  Value* Tempered(Value* q, double temperature, int64_t length, const std::string& name);

 private:
  struct Rotation {
    Value* inv_freq = nullptr;
    Value* long_inv_freq = nullptr;        // for long sequences
    Value *cos = nullptr, *sin = nullptr;  // or: of each token, [1, T, dims / 2]
    double scale = 1;
  };

  Value* Input(StepRole role) const { return inputs_.at(role); }
  Value* Frequencies(const std::vector<float>& values, const std::string& name);
  Value* Whole(int64_t number);
  Value* LengthOfToken();
  Value* IsLong(int64_t length);
  void MakeDynamic(const RopeSpec& spec, Rotation* rotation);
  Value* RotateBy(const Rotation& rotation, bool interleaved, Value* x, int64_t head_dim, const std::string& name);

  const std::vector<RopeSpec>& ropes_;
  const std::map<StepRole, Value*>& inputs_;
  BlockGraph& blocks_;
  Builder& b_;
  std::vector<Rotation> rotations_;
  Value* length_of_token_ = nullptr;
  std::map<int64_t, Value*> is_long_;  // by length
  std::map<std::pair<double, int64_t>, Value*> temperatures_;
};

}  // namespace llmc::hf
