// How the weights of a quantized checkpoint are stored: what quantization_config of config.json says, module by module.
// A method is a file of this directory with a row in the table of scheme.cc; packings are undone by the op `unpack`.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "frontend/huggingface/config_reader.h"
#include "ir/encoding.h"

namespace llmc {
struct Value;
}

namespace llmc::hf {

class PartReader;

// A linear layer, whose weight is [out, in].
struct LinearModule {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  int64_t out = 0, in = 0;
  // What checkpoints leave as it is unless they say otherwise: the head of a language model, a router of experts.
  bool is_head = false, is_router = false;
  bool is_expert = false;     // a matrix of one of many, whose input others share
  bool is_embedding = false;  // rows are looked up in it: [vocabulary, width]
  int64_t experts = 0;        // so many matrices in each tensor: [experts, out, in]

  // The shape of a tensor that has `of_matrix` for each matrix.
  Shape Stacked(Shape of_matrix) const {
    if (experts > 0) of_matrix.insert(of_matrix.begin(), experts);
    return of_matrix;
  }
};

// What a checkpoint says of the inputs of a linear layer, which were quantized when its quality was measured.
struct ActivationSpec {
  std::string format;  // of encoding.h: "int8", "f8e4m3", "nvfp4", "mxfp4"
  Granularity per = Granularity::kTensor;
  int64_t group = 0;  // of kGroup
  bool is_dynamic = true;
  bool is_symmetric = true;
  double limit = 448;    // what the largest magnitude of those that share a dynamic scale becomes
  bool inverse = false;  // as in DynamicScale and Quantize
  // Of static ones, and of nvfp4 the scale of scales: the tensors with the scale and zero point behind the module's
  // name and a dot.
  std::string scale, zero;
  std::string other_scale;     // what the scale may be called instead
  bool scale_divides = false;  // numbers are codes divided by it
  std::string unsupported;     // why they are left as they are; empty: they need not be
};

// The same of keys and values in a cache: the scales of a layer stand in ATTENTION.k_scale and .v_scale, or in
// KEY_PROJECTION.k_scale and VALUE_PROJECTION.v_scale, or in output_scale of those projections (Quark).
struct KvCacheSpec {
  std::string format;  // "f8e4m3", "int8"
  Granularity per = Granularity::kTensor;
  bool is_dynamic = false, is_symmetric = true;
  bool operator==(const KvCacheSpec&) const = default;
};

// The static scales f32[] of a layer's keys and values; none: they are dynamic, or the cache holds floats.
struct KvScales {
  Value *k = nullptr, *v = nullptr;
};

// An encoded weight as its components, in the order of Encoding; none if something was missing or wrong.
struct EncodedParts {
  std::string as;  // "int4 group=128 scale=f16"
  std::vector<Value*> components;
  Value* order = nullptr;       // i64 [in]: the columns of the weight are in this order, and x has to be, too
  Value* multiplier = nullptr;  // [in]: x is multiplied by it first
};

class QuantizedScheme {
 public:
  virtual ~QuantizedScheme() = default;

  // Whether the configuration says that the module is quantized. A checkpoint may have it as plain floats all the same.
  virtual bool Covers(const LinearModule& module) const = 0;
  // The tensor with the codes, behind the module's name and a dot: "qweight".
  virtual std::string CodesOf(const LinearModule& module) const = 0;
  // What it is stored as where there is no checkpoint, with scales of type `scale` if the format does not say theirs.
  virtual std::string EncodingOf(const LinearModule& module, DType scale) const = 0;
  // Declares the module's tensors and makes the components of them.
  virtual EncodedParts Read(const LinearModule& module, PartReader& reader) const = 0;

  // Where all experts of a layer are in one tensor each: FUSED is the name, such as MODULE.gate_up_proj; the weight is
  // [experts, out, in], and reader puts rows in order.
  virtual bool HasStacked(const std::string& /*fused*/, const PartReader& /*reader*/) const { return false; }
  virtual EncodedParts ReadStacked(const std::string& /*fused*/, int64_t /*experts*/, const LinearModule& /*module*/,
                                   PartReader& /*reader*/) const {
    return {};
  }

  // Or where a layer has a tensor for all of its experts' gates, one for their ups and one for their downs: what is in
  // place of the last part of the experts' module ("model.layers.0.mlp.experts"); in it are gate_proj, up_proj and
  // down_proj, which Read reads with `experts`.
  virtual std::string NameOfStacks() const { return ""; }

  // Whether scales of integers may be negative: those that make the number of the largest magnitude the lowest code, as
  // MLX's and AutoRound's do, which stores symmetric weights in the formats of other programs, too.
  virtual bool HasSignedScales() const { return false; }
  virtual std::optional<ActivationSpec> ActivationOf(const LinearModule& /*module*/) const { return std::nullopt; }
  virtual std::optional<KvCacheSpec> KvCache() const { return std::nullopt; }
  // "GPTQ, 4 bits", for reports.
  virtual std::string Name() const = 0;
};

// Of the key quantization_config; null if there is none. What is wrong or not supported is kept in `config`.
std::shared_ptr<const QuantizedScheme> ReadQuantization(ConfigReader& config);

// config.json with a quantization_config where it has none itself: of the files that some tools write beside it,
// hf_quant_config.json (modelopt), quantize_config.json (AutoGPTQ) and quant_config.json (AutoAWQ), or of its keys
// "quantization" (MLX) and "compression_config" (compressed-tensors, once). An error if two of them are of different
// methods. Returns what says how the folder is quantized, "config.json: quantization_config"; "" if it is not.
absl::StatusOr<std::string> AddQuantization(const std::string& folder, nlohmann::json* config);

// ---- what methods share -------------------------------------------------------------------------------------------

// A method reads its object and gives its scheme; null if it keeps an error in `config`.
using ReadScheme = std::unique_ptr<QuantizedScheme> (*)(ConfigReader& config);
std::unique_ptr<QuantizedScheme> ReadGptq(ConfigReader& config);
std::unique_ptr<QuantizedScheme> ReadAutoRound(ConfigReader& config);
std::unique_ptr<QuantizedScheme> ReadAwq(ConfigReader& config);
std::unique_ptr<QuantizedScheme> ReadCompressedTensors(ConfigReader& config);
std::unique_ptr<QuantizedScheme> ReadFp8(ConfigReader& config);
std::unique_ptr<QuantizedScheme> ReadFbgemmFp8(ConfigReader& config);
std::unique_ptr<QuantizedScheme> ReadModelopt(ConfigReader& config);
std::unique_ptr<QuantizedScheme> ReadBitsAndBytes(ConfigReader& config);
std::unique_ptr<QuantizedScheme> ReadMxfp4(ConfigReader& config);
std::unique_ptr<QuantizedScheme> ReadHqq(ConfigReader& config);
std::unique_ptr<QuantizedScheme> ReadTorchao(ConfigReader& config);
std::unique_ptr<QuantizedScheme> ReadMlx(ConfigReader& config);
std::unique_ptr<QuantizedScheme> ReadQuark(ConfigReader& config);

// A list of strings, of any length; none if it is absent.
std::vector<std::string> ReadNames(ConfigReader& config, const std::string& key);
// Reads an object inside of another one. What it did not look at is refused by name, unless the value says nothing
// (null, false, empty); `inner` keeps what is wrong for Adopt.
class InnerConfig {
 public:
  // `path` is its place for errors: "quantization_config.config_groups.group_0".
  InnerConfig(ConfigReader& outer, const nlohmann::json* object, const std::string& path);
  // Moves what is wrong to the outer one.
  ~InnerConfig();
  InnerConfig(const InnerConfig&) = delete;
  InnerConfig& operator=(const InnerConfig&) = delete;
  ConfigReader& operator*() { return inner_; }
  ConfigReader* operator->() { return &inner_; }

 private:
  ConfigReader& outer_;
  ConfigReader inner_;
};

}  // namespace llmc::hf
