// Builds the ops of blocks (blocks.h) with their weights: what decoders and encoders have in common. All works on the
// last axis, whatever axes are before it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "frontend/huggingface/blocks.h"
#include "frontend/huggingface/quantized/quantized_weights.h"
#include "frontend/huggingface/weights.h"
#include "ir/op.h"

namespace llmc::hf {

class BlockGraph {
 public:
  // All must outlive this. Weights that are not there are complaints of `weights`; ops with them are built all the
  // same.
  BlockGraph(HfWeights* weights, Builder* builder) : weights_(*weights), b_(*builder), quantized_(weights, builder) {}

  // The type in which the model computes: that of its first weight.
  void set_dtype(DType dtype) { dtype_ = dtype; }
  DType dtype() const { return dtype_; }
  // What names of weights of layers begin with, where there are several stacks of them: "t.".
  void set_scope(const std::string& scope) { scope_ = scope; }

  // The weight as it is stored.
  Value* Stored(const std::string& name, const std::string& tensor, const Shape& shape, double mean = 0);
  // In the type of the model: converted where it is used, if the checkpoint has another; what is encoded is decoded.
  Value* Weight(const std::string& name, const std::string& tensor, const Shape& shape);
  // The same of the second factor of `linear`, which stays encoded.
  Value* Factor(const std::string& name, const std::string& tensor, const Shape& shape);
  // The table of an embedding, as it is stored: a quantized checkpoint may have it as codes, which then stand for
  // numbers of `dtype`.
  Value* Embedding(const std::string& name, const std::string& module, int64_t rows, int64_t width, DType dtype);
  // Rows of a table that is as it is stored, by index.
  Value* Rows(Value* table, Value* indices, const std::string& name);

  // The product of x with the weight [out, in] of a linear layer, which may be quantized.
  Value* LinearOf(const LinearModule& module, Value* x, const std::string& weight, const std::string& name,
                  bool is_transposed = false);
  // The weight alone, as plain numbers.
  Value* PlainWeight(const std::string& name, const LinearModule& module);

  // `name` of values without %, and `weight` of weights behind "w" and "b": "@l0.wq".
  Value* Linear(const LinearSpec& linear, Value* x, int64_t in, int64_t out, const std::string& prefix,
                const std::string& weight, const std::string& name);
  Value* Norm(const NormSpec& norm, Value* x, int64_t size, const std::string& weight, const std::string& name);
  Value* Act(Activation activation, Value* x, const std::string& name);
  Value* Mlp(const MlpSpec& mlp, Value* x, int64_t hidden, const std::string& prefix, const std::string& index);
  Value* Experts(const ExpertsSpec& experts, Value* x, int64_t hidden, const std::string& prefix,
                 const std::string& index);
  // Normalized and clamped as the spec says, not rotated; heads in rows. Only queries where another layer has the rest.
  struct Qkv {
    Value *q = nullptr, *k = nullptr, *v = nullptr;
  };
  Qkv Project(const AttentionSpec& attention, Value* x, int64_t hidden, const std::string& prefix,
              const std::string& index);
  // MLP or experts.
  Value* FeedForward(const LayerSpec& layer, Value* x, int64_t hidden, const std::string& prefix,
                     const std::string& index);
  // A layer; `attend` gives what attention does with its input, and takes the prefix of its weights.
  using Attend = std::function<Value*(Value* x, const std::string& prefix)>;
  Value* Layer(const LayerSpec& layer, int64_t index, Value* x, int64_t hidden, const Attend& attend);

  // x * factor in f32, rounded once to the type of x, as PyTorch multiplies by a number; x itself for 1.
  Value* Scaled(Value* x, double factor, const std::string& name);
  // softcap * tanh(x / softcap).
  Value* Softcapped(Value* x, double softcap, const std::string& name);
  // Of the type of `like`.
  Value* Number(double number, const Value* like);
  Value* Part(Value* x, int64_t begin, int64_t end, const std::string& name);  // of the last axis

  Builder& builder() { return b_; }
  QuantizedWeights& quantized() { return quantized_; }
  HfWeights& weights() { return weights_; }

 private:
  Value* HeadsNormed(const std::optional<NormSpec>& norm, Value* x, int64_t heads, const AttentionSpec& a,
                     const std::string& weight, const std::string& name);
  Value* WeightsOfHeads(const NormSpec& norm, int64_t heads, int64_t head_dim, const std::string& weight);
  Value* Clipped(Value* x, double clip, const std::string& name);
  void Clip(double clip, const std::string& index, Qkv* p);
  Qkv Projected(const AttentionSpec& a, Value* x, int64_t in, const std::string& prefix, const std::string& index);
  Value* LinearOfGroups(const AttentionSpec& a, Value* x, int64_t in, int64_t size, const std::string& prefix,
                        const std::string& name);
  Value* Normed(const std::optional<NormSpec>& norm, Value* x, int64_t size, const std::string& weight,
                const std::string& name);
  Value* Sparse(double sparsity, Value* gate, const std::string& name);
  Value* Weighted(Value* x, const std::string& tensor, int64_t hidden, const std::string& weight);
  Value* Normalized(const NormSpec& norm, Value* x, Value* weight, Value* bias, const std::string& name);
  static std::string StackedExperts(const ExpertsSpec& e, const std::string& part);
  Value* JoinedStacks(Value* gate, Value* up, const std::string& name);
  std::vector<LinearWeight> StackedWeights(const ExpertsSpec& e, const std::string& name, int64_t hidden, bool is_down);
  // What each expert has of one kind: MODULE.N.NAME, or MODULE.NAME.N if it is in a list.
  struct ExpertPart {
    std::string name;  // "gate_proj"
    bool is_in_list = false;
    std::string ModuleOf(const ExpertsSpec& e, int64_t i) const {
      return is_in_list ? absl::StrCat(e.module, ".", name, ".", i) : absl::StrCat(e.module, ".", i, ".", name);
    }
  };
  // Those that hold the rows of gate_up, or of down.
  std::vector<ExpertPart> PartsOf(const ExpertsSpec& e, bool is_down);
  // One for each expert: encoded or plain, how its input is quantized, and the order of its columns.
  struct MatricesOfExperts {
    ExpertPart part;
    std::vector<Value*> matrices, orders;
    std::vector<std::optional<InputEncoding>> inputs;
  };
  MatricesOfExperts MatricesOf(const ExpertsSpec& e, const ExpertPart& part, const std::string& name, int64_t rows,
                               int64_t columns, bool is_interleaved);
  Value* ExpertBiases(const ExpertsSpec& e, const std::string& prefix, int64_t rows, bool is_down);
  std::vector<Value*> ExpertProducts(const ExpertsSpec& e, Value* x, Value* experts, int64_t hidden,
                                     const std::string& prefix, bool is_down, const std::string& name);
  // The weight as it is stored, converted to a type.
  Value* Converted(const std::string& name, const std::string& tensor, const Shape& shape, DType dtype);
  Value* OrderOfExperts(const std::vector<Value*>& orders, int64_t columns);
  Value* OrderedForExperts(Value* x, Value* order, Value* experts);
  absl::Status CheckAlike(const ExpertsSpec& e, const MatricesOfExperts& kind);
  absl::StatusOr<LinearWeight> JoinedExperts(const ExpertsSpec& e, const std::vector<MatricesOfExperts>& kinds,
                                             const std::string& name);
  absl::StatusOr<std::vector<LinearWeight>> ExpertMatrices(const ExpertsSpec& e, const std::string& name,
                                                           int64_t hidden, bool is_down);
  std::vector<LinearWeight> ExpertWeights(const ExpertsSpec& e, const std::string& prefix, int64_t hidden,
                                          bool is_down);
  Value* InRows(Value* x, int64_t rows, bool is_transposed, bool is_interleaved);
  // `products`: of gates and ups together, or of gates and of ups.
  Value* ExpertGate(const ExpertsSpec& e, const std::vector<Value*>& products, const std::string& index);

  // A weight of a linear layer that is quantized; nullopt if it is not.
  std::optional<LinearWeight> Quantized(const std::string& name, const LinearModule& module);
  // x with its columns in the order of those of a weight.
  Value* Ordered(Value* x, Value* order);
  Value* Multiplied(Value* x, Value* multiplier);
  // x as the product with the weight takes it: in order, and encoded if it says so.
  Value* InputOf(const LinearWeight& weight, Value* x);
  // x as the experts' products take it: those have floats, so what is encoded is decoded again.
  Value* InputOfExperts(const std::optional<InputEncoding>& input, Value* x);

  HfWeights& weights_;
  Builder& b_;
  QuantizedWeights quantized_;
  DType dtype_ = DType::kF32;
  std::string scope_;
  std::map<std::string, Value*> stored_;                       // by tensor: one that is used twice is one weight
  std::map<std::string, std::optional<LinearWeight>> linear_;  // the same of quantized ones, by module
  std::map<std::pair<Value*, Value*>, Value*> ordered_, multiplied_;
};

}  // namespace llmc::hf
