// AMD's Quark: MODULE.weight with weight_scale and weight_zero_point. global_quant_config says how weights and inputs
// of all modules are stored, but for those of `exclude` and of layer_quant_config, in both of which * stands for any
// text; names count before patterns. Integers of 4 bits are packed along the outputs, as AWQ's, and lie as
// export.pack_method says.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "files/path_check.h"
#include "frontend/huggingface/quantized/forms.h"
#include "frontend/huggingface/quantized/module_settings.h"
#include "frontend/huggingface/quantized/name_pattern.h"
#include "frontend/huggingface/quantized/scheme.h"
#include "frontend/huggingface/quantized/word_forms.h"

namespace llmc::hf {
namespace {

using nlohmann::json;

// QTensorConfig of the package.
struct QuarkTensor {
  std::string type;  // "fp8_e4m3"
  Granularity per = Granularity::kTensor;
  int64_t group = 0, rows = 0, columns = 0;
  std::optional<int64_t> axis;  // ch_axis
  bool is_symmetric = true, is_dynamic = false, has_exponents = false;
  std::string mode;  // scale_calculation_mode
  bool operator==(const QuarkTensor&) const = default;

  bool has_words() const { return type == "int4" || type == "uint4"; }
};

struct QuarkLayer {
  std::optional<QuarkTensor> weight, inputs, outputs;
  bool operator==(const QuarkLayer&) const = default;
};

bool IsAxis(const QuarkTensor& tensor, std::initializer_list<int64_t> known) {
  return !tensor.axis.has_value() || std::find(known.begin(), known.end(), *tensor.axis) != known.end();
}

using Fits = ModuleSettings<QuarkLayer>::Fits;

class Quark : public QuantizedScheme {
 public:
  QuarkLayer common;
  ModuleSettings<QuarkLayer> layers;
  std::set<std::string, std::less<>> excluded_names;  // with all that is inside of these modules
  std::vector<Fits> excluded;
  bool is_in_order = false;  // codes in words, else as AWQ's
  std::optional<KvCacheSpec> kv_cache;

  bool Covers(const LinearModule& module) const override {
    if (IsExcluded(module.name)) return false;
    return OfModule(module).weight.has_value();
  }
  std::string CodesOf(const LinearModule&) const override { return "weight"; }
  std::string Name() const override {
    return absl::StrCat("Quark, ", common.weight.has_value() ? common.weight->type : "single layers");
  }
  std::optional<KvCacheSpec> KvCache() const override { return kv_cache; }
  std::optional<ActivationSpec> ActivationOf(const LinearModule& module) const override;

  std::string EncodingOf(const LinearModule& module, DType scale) const override {
    const QuarkTensor spec = *OfModule(module).weight;
    if (spec.type == "fp4") return "mxfp4";
    if (spec.has_exponents) return kMxfp8;
    return spec.has_words() ? hf::EncodingOf(WordsOf(spec), module, scale) : hf::EncodingOf(BytesOf(spec), scale);
  }
  EncodedParts Read(const LinearModule& module, PartReader& reader) const override {
    if (!layers.AreClear("weight", "layer_quant_config", reader)) return {};
    const QuarkLayer layer = OfModule(module);
    const QuarkTensor& spec = *layer.weight;
    reader.IgnoreActivationScale("input_scale");
    if (!layer.inputs.has_value() || layer.inputs->is_symmetric) IgnoreZeros("input_zero_point", reader);
    reader.Ignore("input_zero_point", "inputs of the layer are not quantized");
    if (spec.type == "fp4") return ReadMxfp4("weight", "weight_scale", module, reader);
    if (spec.has_exponents) return ReadMxfp8("weight", "weight_scale", module, reader);
    if (spec.has_words()) return ReadAwqWords(WordsOf(spec), module, reader);
    if (spec.is_symmetric) IgnoreZeros("weight_zero_point", reader);
    return ReadBytes(BytesOf(spec), module, reader);
  }

 private:
  bool IsExcluded(absl::string_view module) const {
    for (size_t end = 0; end < module.size();) {
      end = std::min(module.find('.', end + 1), module.size());
      if (excluded_names.contains(module.substr(0, end))) return true;
    }
    return std::any_of(excluded.begin(), excluded.end(), [&](const Fits& fits) { return fits(module); });
  }
  QuarkLayer OfModule(const LinearModule& module) const {
    const QuarkLayer* own = layers.Find(module.name);
    return own == nullptr ? common : *own;
  }
  AwqForm WordsOf(const QuarkTensor& spec) const {
    AwqForm form = {.codes = "weight", .scale = "weight_scale", .zero = "weight_zero_point"};
    form.group_size = spec.group;
    form.has_zeros = !spec.is_symmetric;
    form.is_signed = spec.type == "int4";
    if (is_in_order) form.order = {};
    return form;
  }
  static ByteForm BytesOf(const QuarkTensor& spec) {
    return {.is_float = spec.type == "fp8_e4m3",
            .zero = spec.is_symmetric || spec.type == "fp8_e4m3" ? "" : "weight_zero_point",
            .per = spec.per,
            .group = spec.group,
            .rows = spec.rows,
            .columns = spec.columns};
  }
};

std::optional<ActivationSpec> Quark::ActivationOf(const LinearModule& module) const {
  const std::optional<QuarkTensor> inputs = OfModule(module).inputs;
  if (!inputs.has_value()) return std::nullopt;
  // A channel of inputs is a row of them.
  ActivationSpec spec = {.format = inputs->type,
                         .per = inputs->per == Granularity::kChannel ? Granularity::kToken : inputs->per,
                         .group = inputs->group,
                         .is_dynamic = inputs->is_dynamic,
                         .is_symmetric = inputs->is_symmetric,
                         .scale = inputs->is_dynamic ? "" : "input_scale"};
  if (inputs->type == "fp8_e4m3") {
    spec.format = "f8e4m3";
    spec.is_symmetric = true;
    if (inputs->has_exponents) spec.unsupported = "inputs in mxfp8 are not supported";
  } else if (inputs->type == "fp4" && inputs->has_exponents && inputs->group == 32) {
    // Exponents grow where the fraction of the largest magnitude is 1.75 ("even"), or never.
    spec.format = "mxfp4";
    spec.is_symmetric = true;
    spec.limit = inputs->mode == "even" ? 7 : 8;
    if (inputs->mode != "even" && inputs->mode != "floor") {
      spec.unsupported = absl::StrCat("scale_calculation_mode ", Quoted(inputs->mode), " is not supported");
    }
  } else if (inputs->type == "int8") {
    spec.limit = 127.5;  // half of the range of codes
  } else {
    spec.unsupported = absl::StrCat("inputs in ", inputs->type, " are not supported");
  }
  // Rows are tokens, with or without an axis of sequences before them.
  const bool has_axis = (inputs->per == Granularity::kChannel || inputs->per == Granularity::kToken)
                            ? IsAxis(*inputs, {0, 1})
                            : inputs->per != Granularity::kGroup || IsAxis(*inputs, {1, -1});
  if (!has_axis) spec.unsupported = absl::StrCat("inputs with ch_axis ", *inputs->axis, " are not supported");
  return spec;
}

// ---- quantization_config --------------------------------------------------------------------------------------------

Granularity ReadQscheme(ConfigReader& config) {
  const std::string scheme = config.Text("qscheme", "per_tensor");
  constexpr std::pair<absl::string_view, Granularity> kSchemes[] = {{"per_tensor", Granularity::kTensor},
                                                                    {"per_channel", Granularity::kChannel},
                                                                    {"per_token", Granularity::kToken},
                                                                    {"per_group", Granularity::kGroup},
                                                                    {"per_block", Granularity::kBlock}};
  for (const auto& [name, per] : kSchemes) {
    if (name == scheme) return per;
  }
  config.Refuse(absl::StrCat("qscheme ", Quoted(scheme), " is not supported"));
  return Granularity::kTensor;
}

std::optional<QuarkTensor> ReadTensor(ConfigReader& outer, const std::string& key) {
  const json* object = outer.Find(key);
  if (object == nullptr) return std::nullopt;
  if (!object->is_object()) {
    outer.Refuse(absl::StrCat(key, ": quantization in several steps is not supported"));
    return std::nullopt;
  }
  InnerConfig config(outer, object, key);
  QuarkTensor spec = {.type = config->Text("dtype", ""), .per = ReadQscheme(*config)};
  if (spec.per == Granularity::kGroup) spec.group = config->Int("group_size", 32, 1, kMaxSize);
  if (const auto sizes = config->Ints("block_size"); spec.per == Granularity::kBlock) {
    const bool fits = sizes.has_value() && sizes->size() == 2 && std::min((*sizes)[0], (*sizes)[1]) > 0 &&
                      std::max((*sizes)[0], (*sizes)[1]) <= kMaxSize;
    if (!fits) config->Wrong("block_size", "a list of the two sizes of a block");
    spec.rows = fits ? (*sizes)[0] : 1;
    spec.columns = fits ? (*sizes)[1] : 1;
  }
  spec.is_symmetric = config->Flag("symmetric", true) || spec.type == "fp4" || spec.type == "fp8_e4m3";
  spec.is_dynamic = config->Flag("is_dynamic", false);
  const std::string format = config->Text("scale_format", "");
  spec.has_exponents = format == "e8m0";
  const bool is_float =
      format.empty() || spec.has_exponents || format == "float32" || format == "float16" || format == "bfloat16";
  if (!is_float) config->Refuse(absl::StrCat("scale_format ", Quoted(format), " is not supported"));
  spec.mode = config->Text("scale_calculation_mode", "");
  if (config->Has("ch_axis")) spec.axis = config->Int("ch_axis", 0, -8, 8);
  config->Ignore({"group_size", "observer_cls", "round_method", "scale_type", "mx_element_dtype", "zero_point_type",
                  "enable_buffer_reuse", "max_input_numel"});
  return spec;
}

void CheckWeights(const QuarkTensor& w, ConfigReader& config) {
  const auto refuse = [&](const std::string& what) {
    config.Refuse(absl::StrCat("weight: dtype ", Quoted(w.type), " ", what));
  };
  const bool is_plain = w.per == Granularity::kTensor || w.per == Granularity::kChannel;
  const bool has_axis =
      w.per == Granularity::kChannel ? IsAxis(w, {0}) : w.per != Granularity::kGroup || IsAxis(w, {1, -1});
  if (!has_axis) refuse(absl::StrCat("with ch_axis ", *w.axis, " is not supported"));
  if (w.is_dynamic) refuse("with dynamic scales is not supported");
  if (w.has_words()) {
    if (w.per != Granularity::kGroup) refuse("is supported with per_group alone");
  } else if (w.type == "fp4") {
    if (!w.has_exponents || w.group != 32) refuse("is supported in groups of 32 with scale_format e8m0 alone");
  } else if (w.type == "fp8_e4m3") {
    if (w.per == Granularity::kToken) refuse("with scales of tokens is not supported");
    if (w.has_exponents && w.group != 32) refuse("with scale_format e8m0 is supported in groups of 32 alone");
  } else if (w.type == "int8") {
    if (!is_plain) refuse("is supported with per_tensor and per_channel alone");
  } else {
    refuse("is not supported; supported: fp8_e4m3, fp4, int8, int4, uint4");
  }
}

QuarkLayer ReadLayer(ConfigReader& outer, const json& object, const std::string& path) {
  InnerConfig config(outer, &object, path);
  QuarkLayer layer = {.weight = ReadTensor(*config, "weight"),
                      .inputs = ReadTensor(*config, "input_tensors"),
                      .outputs = ReadTensor(*config, "output_tensors")};
  if (layer.weight.has_value()) CheckWeights(*layer.weight, *config);
  config->Ignore({"target_device"});
  return layer;
}

bool IsPattern(absl::string_view text) {
  return absl::StartsWith(text, "re:") || text.find_first_of("*?[") != absl::string_view::npos;
}

// A name in which * stands for any text, or "re:" and a pattern of a beginning; none if it is wrong.
Fits ReadPattern(const std::string& text, const char* key, PatternReader& patterns, ConfigReader& config) {
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "re:")) {
    const std::optional<NamePattern> pattern = patterns.Parse(rest, key, config);
    if (!pattern.has_value()) return nullptr;
    return [own = *pattern](absl::string_view module) { return own.MatchesBeginning(module); };
  }
  if (text.find_first_of("?[") != std::string::npos) {
    config.Refuse(absl::StrCat(key, ": the pattern ", Quoted(text), " is not supported: of wildcards only * is known"));
    return nullptr;
  }
  if (!patterns.Take(text.size() + 1, key, config)) return nullptr;
  return [text](absl::string_view module) { return IsInModule(module, text); };
}

// What is said of outputs is what caches of keys and values hold.
void ReadKvCache(const std::string& pattern, const QuarkLayer& layer, const std::vector<std::string>& groups,
                 ConfigReader& config, Quark* scheme) {
  if (!layer.outputs.has_value()) return;
  if (std::find(groups.begin(), groups.end(), pattern) == groups.end()) {
    return config.Refuse(absl::StrCat("output_tensors of ", Quoted(pattern), " are not supported"));
  }
  const QuarkTensor& outputs = *layer.outputs;
  const KvCacheSpec cache = {.format = outputs.type == "fp8_e4m3" ? "f8e4m3" : outputs.type,
                             .per = outputs.per,
                             .is_dynamic = outputs.is_dynamic,
                             .is_symmetric = outputs.is_symmetric};
  if (scheme->kv_cache.has_value() && *scheme->kv_cache != cache) {
    config.Refuse(absl::StrCat("output_tensors of ", Quoted(pattern), " differ from those of other caches"));
  }
  scheme->kv_cache = cache;
}

const json& ObjectOf(ConfigReader& config, const char* key) {
  static const json kNone = json::object();
  const json* object = config.Find(key);
  if (object != nullptr && !object->is_object()) config.Wrong(key, "an object from patterns of modules to settings");
  return object != nullptr && object->is_object() ? *object : kNone;
}

// The patterns of modules whose outputs are cached.
std::vector<std::string> ReadExport(ConfigReader& outer, Quark* scheme) {
  const json& object = ObjectOf(outer, "export");
  InnerConfig config(outer, &object, "export");
  const std::string method = config->Text("pack_method", "reorder");
  if (method != "reorder" && method != "order") {
    config->Refuse(absl::StrCat("pack_method ", Quoted(method), " is not supported; supported: order, reorder"));
  }
  scheme->is_in_order = method == "order";
  const std::string format = config->Text("weight_format", "real_quantized");
  if (format != "real_quantized") {
    config->Refuse(absl::StrCat("weight_format ", Quoted(format), " is not supported; supported: real_quantized"));
  }
  config->Ignore({"min_kv_scale", "weight_merge_groups"});
  return ReadNames(*config, "kv_cache_group");
}

// Of those that are known nothing is left but the weights and their scales; rotations stay in the model.
void CheckAlgorithms(ConfigReader& config) {
  const json* algorithms = config.Find("algo_config");
  if (algorithms == nullptr || algorithms->empty()) return;
  for (const json& algorithm : algorithms->is_array() ? *algorithms : json::array({*algorithms})) {
    constexpr std::array kKnown = {"smooth", "smoothquant", "autosmoothquant", "awq", "gptq", "gptaq", "qronos"};
    const json name = algorithm.is_object() ? algorithm.value("name", json()) : json();
    if (name == "rotation" || name == "quarot") {
      config.Refuse("algo_config: rotations are not supported");
    } else if (std::none_of(kKnown.begin(), kKnown.end(), [&](const char* known) { return name == known; })) {
      config.Refuse(absl::StrCat("algo_config: the algorithm ", name.dump(),
                                 " is not supported; supported: ", absl::StrJoin(kKnown, ", ")));
    }
  }
}

}  // namespace

std::unique_ptr<QuantizedScheme> ReadQuark(ConfigReader& config) {
  auto scheme = std::make_unique<Quark>();
  std::vector<std::string> cached = ReadExport(config, scheme.get());
  PatternReader patterns;
  for (const std::string& name : ReadNames(config, "exclude")) {
    if (!IsPattern(name)) {
      scheme->excluded_names.insert(name);
    } else if (Fits fits = ReadPattern(name, "exclude", patterns, config)) {
      scheme->excluded.push_back(std::move(fits));
    }
  }
  const json& global = ObjectOf(config, "global_quant_config");
  scheme->common = ReadLayer(config, global, "global_quant_config");
  if (scheme->common.outputs.has_value()) config.Refuse("global_quant_config: output_tensors are not supported");
  for (const auto& [pattern, value] : ObjectOf(config, "layer_quant_config").items()) {
    if (!value.is_object()) {
      config.Wrong("layer_quant_config", "an object of layers, each an object");
      continue;
    }
    const QuarkLayer layer = ReadLayer(config, value, absl::StrCat("layer_quant_config.", pattern));
    ReadKvCache(pattern, layer, cached, config, scheme.get());
    if (!IsPattern(pattern)) {
      scheme->layers.AddName(pattern, layer);
    } else if (Fits fits = ReadPattern(pattern, "layer_quant_config", patterns, config)) {
      scheme->layers.AddPattern(pattern, std::move(fits), layer);
    }
  }
  // It says of weights again what the others say.
  for (const auto& [pattern, value] : ObjectOf(config, "kv_cache_quant_config").items()) {
    if (!value.is_object()) {
      config.Wrong("kv_cache_quant_config", "an object of layers, each an object");
      continue;
    }
    const QuarkLayer layer = ReadLayer(config, value, absl::StrCat("kv_cache_quant_config.", pattern));
    ReadKvCache(pattern, layer, {pattern}, config, scheme.get());
  }
  CheckAlgorithms(config);
  config.Ignore({"quant_method", "quant_mode", "version", "kv_cache_post_rope"});
  return scheme;
}

}  // namespace llmc::hf
