// What is different where a decoder runs over whole sequences, without a cache: what goes in and out, and attention.
// Rows are tokens, T = B * S of them, one sequence after the other.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "frontend/huggingface/block_graph.h"
#include "frontend/huggingface/blocks.h"
#include "frontend/huggingface/weights.h"
#include "frontend/import_options.h"
#include "ir/ops.h"
#include "ir/step_inputs.h"

namespace llmc::hf {

class SequenceGraph {
 public:
  // All must outlive this.
  SequenceGraph(const DecoderSpec& spec, DecoderForm form, Model* model, Step* step, BlockGraph* blocks)
      : spec_(spec), form_(form), model_(model), step_(step), blocks_(*blocks), b_(blocks->builder()) {}

  // Token ids and positions, of T tokens.
  std::map<StepRole, Value*> AddInputs();
  // What the layers take, of embeddings: of a predictor, what joins them and the hidden states that come in.
  Value* Begin(Value* embedded);
  // Each token attends to those of its own sequence up to itself; operands and result are [T, heads * head_dim].
  Value* Attend(Attention op, int64_t head_dim, const std::string& name);
  // Of what the layers give, [T, hidden], in front of the last norm and behind it, and logits [T, vocab].
  void AddOutputs(Value* logits, Value* before_norm, Value* normed);

 private:
  Value* Apart(Value* rows, const std::string& name);

  const DecoderSpec& spec_;
  const DecoderForm form_;
  Model* model_;
  Step* step_;
  BlockGraph& blocks_;
  Builder& b_;
  Value* hidden_ = nullptr;  // of a predictor
};

// Unimplemented: the decoder has no such form. NotFound: the checkpoint lacks what it needs.
absl::Status CheckForm(const DecoderSpec& spec, const HfWeights& weights, DecoderForm form);

// The first predictor as a decoder of one layer, which leaves out the layers of the model.
DecoderSpec PredictorAlone(const DecoderSpec& spec, const HfWeights& weights);

}  // namespace llmc::hf
