#include "frontend/onnx/remedies.h"

#include "absl/strings/match.h"

namespace llmc {
namespace {

// The first row whose op and reason are found says what to do. An op that ends in '*' is a prefix.
struct Remedy {
  absl::string_view op, reason, text;
};

constexpr Remedy kRemedies[] = {
    {"opset", "", "export the model with opset 7 to 25, or convert it with onnx.version_converter"},
    {"IR version", "", "save the model with an IR version from 3 to 14 (ModelProto.ir_version)"},
    {"com.microsoft.QMoE", "weights_prepacked = -1",
     "set weights_prepacked = 0 if the weights are [experts, out, packed in]; else quantize again without prepacking"},
    {"*", "prepacked", "quantize again without prepacking: kernels of one processor pack the weights for themselves"},
    {"If", "condition must be known",
     "fix what it is computed from (--set INPUT=VALUE, --dim NAME=SIZE); or export without merging (optimum: "
     "--no-post-process), and give the decoder with or without past by itself"},
    {"Loop", "", "trace the loop with a fixed number of turns, at most 1024, so that it unrolls"},
    {"Scan", "", "export with a fixed length, at most 1024 turns, so that it unrolls"},
    {"LSTM", "length", "export with a fixed length, at most 1024 steps, so that it unrolls"},
    {"GRU", "length", "export with a fixed length, at most 1024 steps, so that it unrolls"},
    {"RNN", "length", "export with a fixed length, at most 1024 steps, so that it unrolls"},
    {"Random*", "", "export in evaluation mode (model.eval()), or give the random numbers as an input"},
    {"Bernoulli", "", "export in evaluation mode (model.eval()), or give the random numbers as an input"},
    {"Multinomial", "", "take the sampling out of the model: llmc generate samples from the logits"},
    {"Sequence*", "", "replace lists of tensors by one tensor with another axis before the export"},
    {"SplitToSequence", "", "replace lists of tensors by one tensor with another axis before the export"},
    {"ConcatFromSequence", "", "replace lists of tensors by one tensor with another axis before the export"},
    {"String*", "", "take the tokenizer out of the model: llmc reads tokenizer.json"},
    {"ai.onnx.contrib.*", "", "take the tokenizer out of the model: llmc reads tokenizer.json"},
    {"TfIdfVectorizer", "", "take the text processing out of the model"},
    {"Dropout", "training", "export in evaluation mode (model.eval())"},
    {"ai.onnx.ml.*", "", "leave what is no neural network (trees, encoders of labels) to another runtime"},
    {"initializer", "sparse", "store the tensor densely"},
    {"input", "use_cache_branch",
     "fix it: --set use_cache_branch=1 for the steps that take a cache, --set use_cache_branch=0 for the first one"},
    {"input", "only tensors", "give tensors as inputs"},
    {"*", "has no such op", "the operator is newer than the file's opset: convert the file to the opset that it needs"},
    {"com.microsoft.nchwc.*", "",
     "save the file from before ONNX Runtime's layout optimizations, which are for one processor (optimize at level "
     "extended, ORT_ENABLE_EXTENDED, or lower)"},
    {"com.microsoft.*", "",
     "export without ONNX Runtime's fusions (take the file from before its optimizer, or optimize at level basic); "
     "docs/onnx.md lists what of com.microsoft is read"},
    {"*", "this domain", "export in operators of ONNX itself, or keep the operator as a local function of the file"},
    {"*", "UINT16", "quantize to int16, or to 8 bits"},
    {"*", "STRING", "take the tokenizer out of the model, and give it token ids"},
    {"*", "type", "cast to one of the element types that docs/onnx.md lists before this place"},
    {"*", "attribute", "export without this attribute; docs/onnx.md lists the limits of each operator"},
    {"*", "this op", "rewrite the layer in the operators that docs/onnx.md lists, or leave it out of the export"},
    {"*", "constant",
     "export with this value fixed, or fix it here (--set INPUT=VALUE, --dim NAME=SIZE), or fold the constants of the "
     "file first (ONNX Runtime at level basic)"},
    {"*", "known",
     "export with this value fixed, or fix it here (--set INPUT=VALUE, --dim NAME=SIZE), or fold the constants of the "
     "file first (ONNX Runtime at level basic)"},
    {"*", "", "docs/onnx.md lists the limits of each operator: export within them"},
};

bool Fits(absl::string_view pattern, absl::string_view op) {
  if (!absl::EndsWith(pattern, "*")) return pattern == op;
  return absl::StartsWith(op, pattern.substr(0, pattern.size() - 1));
}

}  // namespace

std::string OnnxRemedy(absl::string_view op, absl::string_view reason) {
  for (const Remedy& row : kRemedies) {
    if (Fits(row.op, op) && absl::StrContains(reason, row.reason)) return std::string(row.text);
  }
  return "";
}

}  // namespace llmc
