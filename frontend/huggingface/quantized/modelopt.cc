// NVIDIA's Model Optimizer: FP8 and INT8 with one scale (MODULE.weight, weight_scale), one for each output or for
// blocks, INT4 in groups, with two rows in a byte, NVFP4 (weight u8, weight_scale in f8e4m3, weight_scale_2, which
// multiplies) and the MX formats. quant_algo says which, for all modules but those of exclude_modules, or with
// MIXED_PRECISION for each of quantized_layers. Of AWQ and SmoothQuant inputs are multiplied by pre_quant_scale [in]
// where that is not a part of the layer before.
#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "files/path_check.h"
#include "frontend/huggingface/quantized/forms.h"
#include "frontend/huggingface/quantized/name_pattern.h"
#include "frontend/huggingface/quantized/part_reader.h"
#include "frontend/huggingface/quantized/scheme.h"

namespace llmc::hf {
namespace {

enum class ModeloptForm { kFp8, kInt8, kInt4, kNvfp4, kMxfp4, kMxfp8 };
enum class ModeloptInputs { kFloats, kStaticFp8, kFp8OfTokens, kFp8OfGroups, kStaticInt8, kNvfp4, kMx };

struct ModeloptAlgorithm {
  absl::string_view name;
  ModeloptForm form;
  ModeloptInputs inputs;
  Granularity per = Granularity::kTensor;  // of scales of 8 bits; blocks are of 128 x 128
};

constexpr ModeloptAlgorithm kAlgorithms[] = {
    {"FP8", ModeloptForm::kFp8, ModeloptInputs::kStaticFp8},
    {"FP8_PER_CHANNEL_PER_TOKEN", ModeloptForm::kFp8, ModeloptInputs::kFp8OfTokens, Granularity::kChannel},
    {"FP8_PB_WO", ModeloptForm::kFp8, ModeloptInputs::kFp8OfGroups, Granularity::kBlock},
    {"W8A16", ModeloptForm::kInt8, ModeloptInputs::kFloats, Granularity::kChannel},
    {"W8A8_SQ_PER_CHANNEL", ModeloptForm::kInt8, ModeloptInputs::kStaticInt8, Granularity::kChannel},
    {"W4A16_AWQ", ModeloptForm::kInt4, ModeloptInputs::kFloats},
    {"W4A8_AWQ", ModeloptForm::kInt4, ModeloptInputs::kStaticFp8},
    {"NVFP4", ModeloptForm::kNvfp4, ModeloptInputs::kNvfp4},
    {"NVFP4_AWQ", ModeloptForm::kNvfp4, ModeloptInputs::kNvfp4},
    {"W4A16_NVFP4", ModeloptForm::kNvfp4, ModeloptInputs::kFloats},
    {"W4A8_NVFP4_FP8", ModeloptForm::kNvfp4, ModeloptInputs::kStaticFp8},
    {"MXFP4", ModeloptForm::kMxfp4, ModeloptInputs::kMx},
    {"W4A8_MXFP4_FP8", ModeloptForm::kMxfp4, ModeloptInputs::kStaticFp8},
    {"MXFP8", ModeloptForm::kMxfp8, ModeloptInputs::kMx},
};

// Some are written in small letters.
const ModeloptAlgorithm* AlgorithmOf(const std::string& name, ConfigReader& config) {
  for (const ModeloptAlgorithm& algorithm : kAlgorithms) {
    if (algorithm.name == absl::AsciiStrToUpper(name)) return &algorithm;
  }
  const auto name_of = [](std::string* out, const ModeloptAlgorithm& row) { absl::StrAppend(out, row.name); };
  config.Refuse(absl::StrCat("quant_algo ", Quoted(name), " is not supported; supported: ",
                             absl::StrJoin(kAlgorithms, ", ", name_of), ", MIXED_PRECISION of these"));
  return &kAlgorithms[0];
}

struct ModeloptLayer {
  const ModeloptAlgorithm* algorithm = nullptr;  // null: floats
  int64_t group = 0;                             // of INT4; 0: as the scales say
};

ByteForm BytesOf(const ModeloptAlgorithm& algorithm) {
  ByteForm form = {.is_float = algorithm.form == ModeloptForm::kFp8, .per = algorithm.per};
  if (form.per == Granularity::kBlock) form.rows = form.columns = 128;
  return form;
}

std::string Int4Text(int64_t group, DType scale) {
  return absl::StrCat("int4 group=", group, " scale=", DTypeName(scale));
}

// Two rows in a byte, the first in its low half.
EncodedParts ReadInt4(int64_t group, const LinearModule& module, PartReader& reader) {
  const Tensor* scales = reader.Find("weight_scale");
  const bool has_groups = scales != nullptr && scales->rank() == 2 && scales->shape()[1] > 0;
  if (group == 0 && has_groups) group = (module.in + scales->shape()[1] - 1) / scales->shape()[1];
  if (group == 0) group = module.in;
  if (!reader.FillsWords("weight", module.out, 2)) return {};
  const DType bytes[] = {DType::kU8};
  Value* packed = reader.Part("weight", bytes, {module.out / 2, module.in},
                              absl::StrCat(" = [out ", module.out, " / 2, in ", module.in, "]"));
  Value* scale = reader.Scale("weight_scale", {module.out, (module.in + group - 1) / group},
                              absl::StrCat(" = [out ", module.out, ", in ", module.in, " / group ", group, "]"));
  Value* codes = reader.Add(Unpack{.x = packed, .axis = 0, .to = DType::kI4}, "codes");
  return {.as = Int4Text(group, scale->type.dtype), .components = {codes, scale}};
}

class Modelopt : public QuantizedScheme {
 public:
  ModeloptLayer common;  // of all modules but those of `layers`
  std::string name;
  std::map<std::string, ModeloptLayer> layers;
  std::vector<std::string> excluded;
  std::optional<KvCacheSpec> kv_cache;

  bool Covers(const LinearModule& module) const override {
    return !IsListed(module.name, excluded) && OfModule(module.name).algorithm != nullptr;
  }
  std::string CodesOf(const LinearModule&) const override { return "weight"; }
  std::string Name() const override { return absl::StrCat("modelopt, ", name); }
  std::optional<KvCacheSpec> KvCache() const override { return kv_cache; }
  std::optional<ActivationSpec> ActivationOf(const LinearModule& module) const override;
  std::string EncodingOf(const LinearModule& module, DType scale) const override {
    const ModeloptLayer own = OfModule(module.name);
    switch (own.algorithm->form) {
      case ModeloptForm::kInt4:
        return Int4Text(own.group == 0 ? 128 : own.group, scale);
      case ModeloptForm::kNvfp4:
        return "nvfp4";
      case ModeloptForm::kMxfp4:
        return "mxfp4";
      case ModeloptForm::kMxfp8:
        return kMxfp8;
      default:
        return hf::EncodingOf(BytesOf(*own.algorithm), DType::kF32);
    }
  }
  EncodedParts Read(const LinearModule& module, PartReader& reader) const override {
    reader.IgnoreActivationScale("input_scale");
    EncodedParts parts = ReadWeight(OfModule(module.name), module, reader);
    parts.multiplier = reader.Multiplier("pre_quant_scale", module.in);
    return parts;
  }

 private:
  ModeloptLayer OfModule(const std::string& module) const {
    const auto own = layers.find(module);
    return own == layers.end() ? common : own->second;
  }
  static EncodedParts ReadWeight(const ModeloptLayer& own, const LinearModule& module, PartReader& reader) {
    switch (own.algorithm->form) {
      case ModeloptForm::kInt4:
        reader.IgnoreActivationScale("weight_scale_2", "scale * code is not rounded to f8e4m3");
        return ReadInt4(own.group, module, reader);
      case ModeloptForm::kNvfp4:
        return ReadNvfp4({.codes = "weight", .outer = "weight_scale_2"}, module, reader);
      case ModeloptForm::kMxfp4:
        return ReadMxfp4("weight", "weight_scale", module, reader);
      case ModeloptForm::kMxfp8:
        return ReadMxfp8("weight", "weight_scale", module, reader);
      default:
        return ReadBytes(BytesOf(*own.algorithm), module, reader);
    }
  }
};

std::optional<ActivationSpec> Modelopt::ActivationOf(const LinearModule& module) const {
  const ModeloptAlgorithm* own = OfModule(module.name).algorithm;
  if (own == nullptr || own->inputs == ModeloptInputs::kFloats) return std::nullopt;
  switch (own->inputs) {
    case ModeloptInputs::kNvfp4:
      return ActivationSpec{
          .format = "nvfp4", .per = Granularity::kGroup, .group = 16, .limit = 6, .scale = "input_scale"};
    case ModeloptInputs::kMx:
      return ActivationSpec{.format = own->form == ModeloptForm::kMxfp4 ? "mxfp4" : "mxfp8",
                            .per = Granularity::kGroup,
                            .group = 32,
                            .unsupported = "exponents that modelopt rounds up are not supported"};
    case ModeloptInputs::kStaticInt8:
      return ActivationSpec{.format = "int8", .is_dynamic = false, .scale = "input_scale"};
    case ModeloptInputs::kFp8OfTokens:
      return ActivationSpec{.format = "f8e4m3", .per = Granularity::kToken};
    case ModeloptInputs::kFp8OfGroups:
      return ActivationSpec{.format = "f8e4m3", .per = Granularity::kGroup, .group = 128};
    default:
      return ActivationSpec{.format = "f8e4m3", .is_dynamic = false, .scale = "input_scale"};
  }
}

void CheckZeroPoint(ConfigReader& config) {
  if (config.Flag("has_zero_point", false)) config.Refuse("has_zero_point true is not supported");
}

ModeloptLayer ReadAlgorithm(ConfigReader& config) {
  ModeloptLayer own = {.algorithm = AlgorithmOf(config.Text("quant_algo", ""), config),
                       .group = config.Int("group_size", 0, 0, kMaxSize)};
  const bool is_int4 = own.algorithm->form == ModeloptForm::kInt4;
  // 0: there are no groups.
  const int64_t fixed = is_int4                                       ? own.group
                        : own.algorithm->per == Granularity::kBlock   ? 128
                        : own.algorithm->form == ModeloptForm::kNvfp4 ? 16
                        : own.algorithm->form == ModeloptForm::kMxfp4 || own.algorithm->form == ModeloptForm::kMxfp8
                            ? 32
                            : 0;
  if (own.group != 0 && own.group != fixed) {
    config.Refuse(absl::StrCat(own.algorithm->name, " with group_size ", own.group, " is not supported",
                               fixed == 0 ? "" : absl::StrCat(" (", fixed, ")")));
  }
  CheckZeroPoint(config);
  config.Ignore({"pre_quant_scale"});
  return own;
}

// kv_cache_quant_algo; in config.json kv_cache_scheme, which is an object where that is FP8.
std::optional<KvCacheSpec> ReadKvCache(ConfigReader& config) {
  const nlohmann::json* scheme = config.Find("kv_cache_scheme");
  std::string algorithm = config.Text("kv_cache_quant_algo", "");
  if (algorithm.empty() && scheme != nullptr && scheme->is_object()) {
    const bool is_f8 = scheme->value("type", nlohmann::json()) == "float" &&
                       scheme->value("num_bits", nlohmann::json()) == 8 &&
                       scheme->value("dynamic", nlohmann::json(false)) == false;
    algorithm = is_f8 ? "FP8" : scheme->dump();
  } else if (algorithm.empty()) {
    algorithm = config.Text("kv_cache_scheme", "");
  }
  if (algorithm == "FP8") return KvCacheSpec{.format = "f8e4m3"};
  if (algorithm.empty() || algorithm == "none") return std::nullopt;
  return KvCacheSpec{.format = absl::AsciiStrToLower(algorithm)};  // which --kv=checkpoint refuses
}

}  // namespace

std::unique_ptr<QuantizedScheme> ReadModelopt(ConfigReader& config) {
  auto scheme = std::make_unique<Modelopt>();
  scheme->name = config.Text("quant_algo", "");
  if (scheme->name == "MIXED_PRECISION") {
    CheckZeroPoint(config);
    const nlohmann::json* layers = config.Find("quantized_layers");
    const bool is_object = layers != nullptr && layers->is_object();
    if (!is_object) config.Wrong("quantized_layers", "an object from modules to quant_algo");
    const nlohmann::json all = is_object ? *layers : nlohmann::json::object();
    for (const auto& [module, value] : all.items()) {
      if (!value.is_object()) {
        config.Wrong("quantized_layers", "an object from modules to objects");
        continue;
      }
      InnerConfig inner(config, &value, absl::StrCat("quantized_layers.", module));
      scheme->layers[module] = ReadAlgorithm(*inner);
    }
  } else {
    scheme->common = ReadAlgorithm(config);
  }
  scheme->excluded = ReadNames(config, "exclude_modules");
  for (const std::string& more : ReadNames(config, "ignore")) scheme->excluded.push_back(more);
  scheme->kv_cache = ReadKvCache(config);
  // config_groups says the same again, in the words of compressed-tensors.
  config.Ignore({"quant_method", "producer", "config_groups", "group_size", "pre_quant_scale", "smoothquant_val",
                 "clamp_val", "use_meta_recipe"});
  return scheme;
}

}  // namespace llmc::hf
