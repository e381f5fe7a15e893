// NVIDIA's Model Optimizer: FP8 with one scale (MODULE.weight, weight_scale) or one for each output, and NVFP4
// (weight u8, weight_scale in f8e4m3, weight_scale_2, which multiplies). quant_algo says which, for all modules but
// those of exclude_modules, or with MIXED_PRECISION for each of quantized_layers.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "files/path_check.h"
#include "frontend/huggingface/quantized/forms.h"
#include "frontend/huggingface/quantized/name_pattern.h"
#include "frontend/huggingface/quantized/part_reader.h"
#include "frontend/huggingface/quantized/scheme.h"

namespace llmc::hf {
namespace {

struct ModeloptAlgorithm {
  absl::string_view name;
  bool is_nvfp4 = false;
  Granularity per = Granularity::kTensor;  // of scales of FP8, blocks are of 128 x 128
  Granularity inputs = Granularity::kTensor;
  bool are_inputs_dynamic = false;
};

constexpr ModeloptAlgorithm kAlgorithms[] = {
    {"FP8", false, Granularity::kTensor},
    {"FP8_PER_CHANNEL_PER_TOKEN", false, Granularity::kChannel, Granularity::kToken, true},
    {"FP8_PB_WO", false, Granularity::kBlock, Granularity::kGroup, true},
    {"NVFP4", true},
};

const ModeloptAlgorithm* AlgorithmOf(const std::string& name, ConfigReader& config) {
  for (const ModeloptAlgorithm& algorithm : kAlgorithms) {
    if (algorithm.name == name) return &algorithm;
  }
  const auto name_of = [](std::string* out, const ModeloptAlgorithm& row) { absl::StrAppend(out, row.name); };
  config.Refuse(absl::StrCat("quant_algo ", Quoted(name), " is not supported; supported: ",
                             absl::StrJoin(kAlgorithms, ", ", name_of), ", MIXED_PRECISION of these"));
  return &kAlgorithms[0];
}

class Modelopt : public QuantizedScheme {
 public:
  const ModeloptAlgorithm* algorithm = nullptr;  // of all modules but those of `layers`; null: of those alone
  std::map<std::string, const ModeloptAlgorithm*> layers;
  std::vector<std::string> excluded;
  std::optional<KvCacheSpec> kv_cache;

  bool Covers(const LinearModule& module) const override {
    return !IsListed(module.name, excluded) && OfModule(module.name) != nullptr;
  }
  std::string CodesOf(const LinearModule&) const override { return "weight"; }
  std::string Name() const override {
    return absl::StrCat("modelopt, ", algorithm == nullptr ? "MIXED_PRECISION" : algorithm->name);
  }
  std::optional<KvCacheSpec> KvCache() const override { return kv_cache; }
  std::optional<ActivationSpec> ActivationOf(const LinearModule& module) const override {
    const ModeloptAlgorithm* own = OfModule(module.name);
    if (own == nullptr) return std::nullopt;
    if (own->is_nvfp4) {
      return ActivationSpec{
          .format = "nvfp4", .per = Granularity::kGroup, .group = 16, .limit = 6, .scale = "input_scale"};
    }
    return ActivationSpec{.format = "f8e4m3",
                          .per = own->inputs,
                          .group = own->inputs == Granularity::kGroup ? 128 : 0,
                          .is_dynamic = own->are_inputs_dynamic,
                          .scale = own->are_inputs_dynamic ? "" : "input_scale"};
  }
  std::string EncodingOf(const LinearModule& module, DType) const override {
    const ModeloptAlgorithm* own = OfModule(module.name);
    return own->is_nvfp4 ? "nvfp4" : hf::EncodingOf(FormOf(*own), DType::kF32);
  }
  EncodedParts Read(const LinearModule& module, PartReader& reader) const override {
    const ModeloptAlgorithm* own = OfModule(module.name);
    reader.IgnoreActivationScale("input_scale");
    if (own->is_nvfp4) return ReadNvfp4({.codes = "weight", .outer = "weight_scale_2"}, module, reader);
    return ReadBytes(FormOf(*own), module, reader);
  }

 private:
  const ModeloptAlgorithm* OfModule(const std::string& module) const {
    const auto own = layers.find(module);
    return own == layers.end() ? algorithm : own->second;
  }
  static ByteForm FormOf(const ModeloptAlgorithm& algorithm) {
    ByteForm form = {.per = algorithm.per};
    if (form.per == Granularity::kBlock) form.rows = form.columns = 128;
    return form;
  }
};

void CheckGroupSize(ConfigReader& config, const ModeloptAlgorithm* algorithm) {
  const int64_t size = config.Int("group_size", 16, 0, kMaxSize);
  if (algorithm != nullptr && algorithm->is_nvfp4 && size != 16) {
    config.Refuse(absl::StrCat("NVFP4 with group_size ", size, " is not supported (16)"));
  }
}

}  // namespace

std::unique_ptr<QuantizedScheme> ReadModelopt(ConfigReader& config) {
  auto scheme = std::make_unique<Modelopt>();
  const std::string name = config.Text("quant_algo", "");
  if (name == "MIXED_PRECISION") {
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
      const ModeloptAlgorithm* own = AlgorithmOf(inner->Text("quant_algo", ""), *inner);
      CheckGroupSize(*inner, own);
      scheme->layers[module] = own;
    }
  } else {
    scheme->algorithm = AlgorithmOf(name, config);
  }
  CheckGroupSize(config, scheme->algorithm);
  scheme->excluded = ReadNames(config, "exclude_modules");
  for (const std::string& more : ReadNames(config, "ignore")) scheme->excluded.push_back(more);
  const std::string cache = config.Text("kv_cache_quant_algo", "");
  if (cache == "FP8") {
    scheme->kv_cache = {.format = "f8e4m3"};
  } else if (!cache.empty() && cache != "none") {
    config.Refuse(absl::StrCat("kv_cache_quant_algo ", Quoted(cache), " is not supported; supported: FP8"));
  }
  // config_groups says the same again, in the words of compressed-tensors.
  config.Ignore({"quant_method", "producer", "config_groups", "has_zero_point", "pre_quant_scale", "kv_cache_scheme",
                 "smoothquant_val", "clamp_val", "use_meta_recipe"});
  if (config.Flag("has_zero_point", false)) config.Refuse("has_zero_point true is not supported");
  if (config.Flag("pre_quant_scale", false)) config.Refuse("pre_quant_scale true is not supported");
  return scheme;
}

}  // namespace llmc::hf
