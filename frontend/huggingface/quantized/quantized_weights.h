// The weights of linear layers of a quantized checkpoint as encoded values, and of random numbers where there is none.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "frontend/huggingface/quantized/part_reader.h"
#include "frontend/huggingface/quantized/quantized_inputs.h"
#include "frontend/huggingface/quantized/scheme.h"
#include "frontend/huggingface/weights.h"

namespace llmc::hf {

struct LinearWeight {
  Value* value = nullptr;                   // encoded, [out, in]
  Value* order = nullptr;                   // of the columns of x, if they have to be in another one
  Value* multiplier = nullptr;              // [in]: x is multiplied by it first; its order comes after that
  std::optional<InputEncoding> input = {};  // how x is quantized, if it is
};

class QuantizedWeights {
 public:
  // All must outlive this.
  QuantizedWeights(HfWeights* weights, Builder* builder)
      : weights_(*weights), b_(*builder), inputs_(weights, builder) {}

  // The weight of a linear layer, of logical type `to`; nullopt if it is not quantized.
  std::optional<LinearWeight> Add(const std::string& name, const LinearModule& module, DType to);

  // Whether the checkpoint has codes of the module.
  bool HasCodes(const LinearModule& module) const;
  // The module with the stacks of experts (NameOfStacks); "" if the scheme has none.
  std::string StacksOf(const std::string& experts) const;

  QuantizedInputs& inputs() { return inputs_; }
  // How the input of experts is quantized where there is no checkpoint.
  std::optional<InputEncoding> InputOfRandom(const LinearModule& module);

  // How keys and values are encoded in a cache; nullptr: as floats.
  const Encoding* KvEncoding();
  // The static scales for that of this layer, if the encoding has some: MODULE.k_scale and .v_scale, or those behind
  // the names of its projections, or output_scale of these. If it has none they count as used. Names of their weights
  // begin with `name`.
  KvScales ReadKvScales(const Encoding* encoding, const std::string& name, const std::string& module,
                        const std::string& k, const std::string& v);

  // [experts, out, in] of weights that lie in one tensor of all experts; nullopt if there is none. `in_rows` puts the
  // rows of such a tensor in order, whatever its other axes are.
  std::optional<LinearWeight> AddStacked(const std::string& name, const std::string& fused, int64_t experts,
                                         const LinearModule& module, DType to,
                                         const std::function<Value*(Value*)>& in_rows);
  // The same of random numbers, where there is no checkpoint and `module`, of any expert, is quantized.
  std::optional<Value*> AddRandomStacked(const std::string& name, int64_t experts, const LinearModule& module,
                                         DType to);
  // Whether two matrices [n, in] can be one [2 n, in]: of one type, and in whole blocks, which would lie in both else.
  static bool AreOneWeight(const Value* a, const Value* b);
  // [experts, rows, in] of encoded matrices, several for each expert, one behind the other; all are of one type, and
  // those of an expert one weight (AreOneWeight).
  absl::StatusOr<Value*> Stack(const std::vector<Value*>& parts, int64_t experts, int64_t rows, int64_t in,
                               const std::string& name);
  // The rows of an encoded matrix in another order.
  absl::StatusOr<Value*> WithRows(Value* encoded, const std::vector<int64_t>& rows, const std::string& name);

 private:
  bool IsQuantized(const LinearModule& module) const;
  EncodedParts Random(const std::string& name, const std::string& tensor, const std::string& as, const Shape& shape);
  // The first of `places` that there is: a module, and a part of it.
  Value* KvScale(bool is_needed, const std::string& name,
                 const std::vector<std::pair<std::string, std::string>>& places);
  // A value without contents where parts are missing or do not fit, which is a complaint.
  Value* Encoded(const std::string& name, const EncodedParts& parts, DType to, const Shape& shape, PartReader& reader);

  HfWeights& weights_;
  Builder& b_;
  QuantizedInputs inputs_;
  SharedParts shared_;
  bool said_kv_scale_is_missing_ = false;  // with what to do then
};

}  // namespace llmc::hf
