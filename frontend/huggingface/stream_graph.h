// Models whose tokens have several hidden states, streams (StreamsSpec): what is around attention and MLP in them.
#pragma once

#include <string>
#include <vector>

#include "frontend/huggingface/block_graph.h"
#include "frontend/huggingface/blocks.h"

namespace llmc::hf {

class StreamGraph {
 public:
  // All must outlive this.
  StreamGraph(const DecoderSpec& spec, BlockGraph* blocks)
      : spec_(spec), streams_(*spec.streams), hidden_(spec.hidden_size), blocks_(*blocks), b_(blocks->builder()) {}

  // The streams [T, count, hidden] of embedded tokens x[T, hidden]. `ids` of the tokens, i32[T].
  Value* Begin(Value* x, Value* ids);
  Value* Layer(const LayerSpec& layer, int64_t index, Value* streams, const BlockGraph::Attend& attend);
  // One hidden state [R, hidden] of streams [R, count, hidden].
  Value* End(Value* streams);

 private:
  Value* Stream(Value* streams, int64_t index, const std::string& name);
  // [rows, 1, hidden]
  Value* AsStream(Value* x);
  Value* LayerInputs(Value* x, Value* ids);
  Value* SquareMean(Value* x);
  // x with the root mean square of `magnitude`, of f32.
  Value* WithMagnitude(Value* x, Value* magnitude);
  Value* Coefficients(const StreamLayerSpec& spec, const LinearSpec& of, int64_t count, Value* x,
                      const std::string& prefix, const std::string& name);
  Value* Predict(const StreamLayerSpec& spec, Value* streams, const std::string& prefix, const std::string& index);
  Value* Correct(const StreamLayerSpec& spec, Value* predictions, Value* active, Value* activated,
                 const std::string& prefix, const std::string& index);
  Value* AddLayerInput(const StreamLayerSpec& spec, int64_t layer, Value* streams, const std::string& prefix);
  Value* Laurel(const StreamLayerSpec& spec, Value* x, const std::string& prefix, const std::string& index);

  const DecoderSpec& spec_;
  const StreamsSpec& streams_;
  const int64_t hidden_;
  BlockGraph& blocks_;
  Builder& b_;
  Value* inputs_ = nullptr;  // [T, layers, input_size]
};

}  // namespace llmc::hf
