// The inputs of quantized linear layers as encoded values: what ActivationSpec (scheme.h) asks for.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "frontend/huggingface/quantized/part_reader.h"
#include "frontend/huggingface/quantized/scheme.h"
#include "frontend/huggingface/weights.h"

namespace llmc::hf {

// How an input is quantized. Equal ones of layers that take the same input make one encoded value.
struct InputEncoding {
  std::string as;          // "f8e4m3 per=token scale=f32"
  double limit = 0;        // as in DynamicScale
  bool inverse = false;    // likewise
  Value* scale = nullptr;  // f32[], static; absent: dynamic
  Value* outer = nullptr;  // f32[], the scale of scales, of formats that have one
  auto operator<=>(const InputEncoding&) const = default;
};

class QuantizedInputs {
 public:
  // All must outlive this.
  QuantizedInputs(HfWeights* weights, Builder* builder) : weights_(*weights), b_(*builder) {}

  // Of the module that `reader` reads; nullopt: its input stays as it is. Before the weight is read, which says of
  // static scales that nothing uses them. Static scales with the same contents are declared once.
  std::optional<InputEncoding> Read(const LinearModule& module, PartReader& reader);

  // x, encoded.
  Value* Encoded(Value* x, const InputEncoding& input);

  // The parts of a weight in the form in which products take them together with such an input: scales of 8-bit codes in
  // f32, and one for each output where the input has one for each token, as cuBLASLt wants both.
  void Adapt(const InputEncoding& input, const LinearModule& module, EncodedParts* parts);

 private:
  Value* StaticScale(const ActivationSpec& spec, PartReader& reader);

  struct StoredScale {
    const Tensor* contents;
    bool divides;
    Value* value;
  };
  HfWeights& weights_;
  Builder& b_;
  std::vector<StoredScale> scales_;
  std::map<std::pair<Value*, InputEncoding>, Value*> encoded_;
};

// "f8e4m3, a scale for each token", for reports.
std::string DescribeActivations(const ActivationSpec& spec);

}  // namespace llmc::hf
