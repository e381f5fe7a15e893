// What of a model is fixed when it is imported: sizes of dims, and contents of inputs.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph.h"

namespace llmc {

// The contents of an input: text that is read by the input's type, or a tensor.
struct FixedInput {
  std::string text;                   // "16000", "true", "1,2,3"; of a tensor, the file that it is from
  std::optional<Tensor> tensor = {};  // numbers of any type that the input's type can hold
};

// Of encoders of text: how the vectors of tokens become one for each text ("embeddings"), where a folder does not say
// it itself, and how texts go in.
enum class Packing : uint8_t { kNone, kWherePossible, kAlways };
struct PoolingChoice {
  std::string pool = {};   // "mean", "cls", "last" or "max"; empty: there is no such output
  bool normalize = false;  // to length 1
  // Texts go in one after the other, without padding: input_ids [T], and so on (frontend/huggingface/tower_graph.h).
  Packing packing = Packing::kNone;
};

// What of a decoder in a Hugging Face folder becomes the model.
enum class DecoderForm : uint8_t {
  kServed,        // tokens of many sequences to logits, with a paged cache
  kHiddenStates,  // whole sequences to logits, and to the hidden states that these are a product of
  kPredictor,     // the layer that predicts one token further: whole sequences of hidden states and tokens to logits
};

// What of that with which the quality of a quantized checkpoint was measured is done besides its weights.
struct QuantizedUse {
  enum class Kv : uint8_t {
    kFloats,        // keys and values are cached in the type of the model
    kF8IfSaid,      // in f8e4m3 with the checkpoint's scales, if it says so
    kAsCheckpoint,  // as the checkpoint says; InvalidArgument if it does not
  };
  bool activations = false;  // inputs of linear layers; InvalidArgument if the checkpoint says nothing of any
  Kv kv = Kv::kFloats;
  // Gets, if not null, what is left in floats all the same, and why.
  std::vector<std::string>* notes = nullptr;
};

struct ImportOptions {
  // By the name that the file has for a dim ("batch size") or the language ("batch_size"). A fixed dim is a number
  // wherever it stood.
  DimEnv dims = {};
  // A fixed input is a constant, and no input any more.
  std::map<std::string, FixedInput> inputs = {};
  // Gets the names that the file has. Null: a name that it does not have is an error, which lists those that it has.
  std::set<std::string>* known = nullptr;
  // Gets, if not null, what is wrong in an ONNX file and was set right or ignored, as other runtimes do.
  std::vector<std::string>* warnings = nullptr;
  // Of Hugging Face folders.
  PoolingChoice pooling = {};
  DecoderForm form = DecoderForm::kServed;
  QuantizedUse quantized = {};

  // Whether nothing is fixed.
  bool empty() const { return dims.empty() && inputs.empty(); }
};

inline constexpr int64_t kMaxFixedElements = int64_t{1} << 28;

// The contents of the input `name` of that type. `sizes` are of symbols, and what the contents tell of others is added.
// One number fills the whole shape, which must be known then; a list is for a shape with one axis that is not 1.
// InvalidArgument if a number is none of the type, or if the shape contradicts the type or `sizes`.
absl::StatusOr<Tensor> FixedContents(const std::string& name, const FixedInput& input, const TensorType& type,
                                     DimEnv* sizes);
// Whether FixedContents can tell sizes of dims.
bool TellsSizes(const FixedInput& input);

// The same numbers in another type. Floating-point numbers are rounded to another such type; all else must be exact:
// InvalidArgument names the first number that is not, or the types if one is of floats and the other is not.
absl::StatusOr<Tensor> ConvertedTensor(const Tensor& tensor, DType to);

}  // namespace llmc
