// AutoRound (arXiv:2309.05516; github.com/intel/auto-round): integers as GPTQ or AWQ pack them (packing_format), floats
// of 8 bits, and MX and NV formats, whose tensors are those of compressed-tensors. extra_config has other settings of
// single modules, by name or pattern.
#include <algorithm>
#include <array>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "files/path_check.h"
#include "frontend/huggingface/quantized/forms.h"
#include "frontend/huggingface/quantized/module_settings.h"
#include "frontend/huggingface/quantized/name_pattern.h"
#include "frontend/huggingface/quantized/scheme.h"
#include "frontend/huggingface/quantized/word_forms.h"

namespace llmc::hf {
namespace {

using nlohmann::json;

// Of a module. Sizes of groups: -1 for a row, 0 for all, two numbers for blocks.
struct AutoRoundSettings {
  int64_t bits = 4, group = 128, rows = 0, columns = 0;
  bool is_symmetric = true;
  std::string type = "int";
  int64_t input_bits = 16, input_group = -1;
  int64_t input_rows = 1;  // of a block
  bool are_inputs_dynamic = true, are_inputs_symmetric = true;
  std::string input_type = "float";
  bool operator==(const AutoRoundSettings&) const = default;

  bool is_quantized() const { return bits <= 8; }
};

enum class AutoRoundForm { kGptq, kAwq, kFloats, kNvfp4, kMxfp4, kMxfp8 };

constexpr std::array<absl::string_view, 4> kFloats = {"fp", "fp8", "fp8_e4m3", "fp8_e4m3fn"};
bool IsFloat(absl::string_view type) { return std::find(kFloats.begin(), kFloats.end(), type) != kFloats.end(); }
bool IsMx(absl::string_view type) { return absl::StartsWith(type, "mx_fp"); }
bool IsNv(absl::string_view type) { return absl::StartsWith(type, "nv_fp"); }

class AutoRound : public QuantizedScheme {
 public:
  AutoRoundSettings common;
  ModuleSettings<AutoRoundSettings> modules;
  bool is_awq = false, stores_zero_less_one = true;  // of integers

  bool Covers(const LinearModule& module) const override {
    const AutoRoundSettings* own = modules.Find(module.name);
    if (module.is_head) return own != nullptr && own->is_quantized();
    return OfModule(module).is_quantized();
  }
  std::string CodesOf(const LinearModule& module) const override {
    switch (FormOf(OfModule(module))) {
      case AutoRoundForm::kGptq:
      case AutoRoundForm::kAwq:
        return "qweight";
      case AutoRoundForm::kNvfp4:
      case AutoRoundForm::kMxfp4:
        return "weight_packed";
      default:
        return "weight";
    }
  }
  bool HasSignedScales() const override { return true; }
  std::string Name() const override {
    const std::string type = common.type == "int" ? "" : absl::StrCat(common.type, ", ");
    return absl::StrCat("AutoRound, ", type, common.bits, " bits");
  }

  std::string EncodingOf(const LinearModule& module, DType scale) const override {
    const AutoRoundSettings own = OfModule(module);
    switch (FormOf(own)) {
      case AutoRoundForm::kGptq:
        return hf::EncodingOf(GptqFormOf(own), module, scale);
      case AutoRoundForm::kAwq:
        return hf::EncodingOf(AwqFormOf(own), module, scale);
      case AutoRoundForm::kNvfp4:
        return "nvfp4";
      case AutoRoundForm::kMxfp4:
        return "mxfp4";
      case AutoRoundForm::kMxfp8:
        return kMxfp8;
      default:
        return hf::EncodingOf(BytesOf(own), scale);
    }
  }

  EncodedParts Read(const LinearModule& module, PartReader& reader) const override {
    if (!modules.AreClear(CodesOf(module), "extra_config", reader)) return {};
    const AutoRoundSettings own = OfModule(module);
    for (const char* part : {"input_scale", "input_global_scale"}) reader.IgnoreActivationScale(part);
    switch (FormOf(own)) {
      case AutoRoundForm::kGptq:
        return ReadGptqWords(GptqFormOf(own), module, reader);
      case AutoRoundForm::kAwq:
        return ReadAwqWords(AwqFormOf(own), module, reader);
      case AutoRoundForm::kNvfp4:
        return ReadNvfp4({.codes = "weight_packed", .outer = "weight_global_scale", .outer_divides = true}, module,
                         reader);
      case AutoRoundForm::kMxfp4:
        return ReadMxfp4("weight_packed", "weight_scale", module, reader);
      case AutoRoundForm::kMxfp8:
        return ReadMxfp8("weight", "weight_scale", module, reader);
      default:
        return ReadBytes(BytesOf(own), module, reader);
    }
  }

  std::optional<ActivationSpec> ActivationOf(const LinearModule& module) const override {
    const AutoRoundSettings own = OfModule(module);
    if (own.input_bits > 8) return std::nullopt;
    ActivationSpec spec = FormOfInputs(own);
    if (!own.are_inputs_symmetric) spec.unsupported = "act_sym false is not supported";
    if (own.input_rows > 1) spec.unsupported = "act_group_size: blocks of several tokens are not supported";
    return spec;
  }

 private:
  static ActivationSpec FormOfInputs(const AutoRoundSettings& own) {
    const std::string unknown =
        absl::StrCat("act_data_type ", Quoted(own.input_type), " with act_bits ", own.input_bits, " is not supported");
    if (IsNv(own.input_type)) {
      return {.format = "nvfp4",
              .per = Granularity::kGroup,
              .group = 16,
              .limit = 6,
              .scale = "input_global_scale",
              .scale_divides = true,
              .unsupported = own.input_bits == 4 ? "" : unknown};
    }
    if (IsMx(own.input_type)) {
      // The largest power of two that is not above the largest magnitude becomes 4.
      ActivationSpec spec = {.format = "mxfp4", .per = Granularity::kGroup, .group = 32, .limit = 8};
      if (own.input_bits != 4) spec.format = "mxfp8", spec.unsupported = "inputs in mxfp8 are not supported";
      if (own.input_type != "mx_fp" && own.input_type != "mx_fp4" && spec.unsupported.empty()) {
        spec.unsupported = absl::StrCat("exponents as of ", own.input_type, " are not supported");
      }
      return spec;
    }
    return {.format = "f8e4m3",
            .per = own.input_group == 0  ? Granularity::kTensor
                   : own.input_group > 0 ? Granularity::kGroup
                                         : Granularity::kToken,
            .group = std::max<int64_t>(own.input_group, 0),
            .is_dynamic = own.are_inputs_dynamic,
            .scale = own.are_inputs_dynamic ? "" : "input_scale",
            .unsupported = own.input_bits == 8 && IsFloat(own.input_type) ? "" : unknown};
  }
  AutoRoundSettings OfModule(const LinearModule& module) const {
    const AutoRoundSettings* own = modules.Find(module.name);
    return own == nullptr ? common : *own;
  }
  AutoRoundForm FormOf(const AutoRoundSettings& own) const {
    if (IsNv(own.type)) return AutoRoundForm::kNvfp4;
    if (IsMx(own.type)) return own.bits == 4 ? AutoRoundForm::kMxfp4 : AutoRoundForm::kMxfp8;
    if (own.type != "int") return AutoRoundForm::kFloats;
    return is_awq ? AutoRoundForm::kAwq : AutoRoundForm::kGptq;
  }
  GptqForm GptqFormOf(const AutoRoundSettings& own) const {
    return {.bits = own.bits,
            .group_size = own.group,
            .is_symmetric = own.is_symmetric,
            .stores_zero_less_one = stores_zero_less_one};
  }
  static AwqForm AwqFormOf(const AutoRoundSettings& own) {
    return {.group_size = own.group, .has_zeros = !own.is_symmetric};
  }
  static ByteForm BytesOf(const AutoRoundSettings& own) {
    ByteForm form;
    if (own.rows > 0) {
      form = {.scale = "weight_scale_inv", .per = Granularity::kBlock, .rows = own.rows, .columns = own.columns};
    } else if (own.group > 0) {
      form = {.per = Granularity::kGroup, .group = own.group};
    } else if (own.group < 0) {
      form = {.per = Granularity::kChannel};
    }
    return form;
  }
};

// The two sizes of a block; none where `key` is a number.
std::optional<std::pair<int64_t, int64_t>> ReadBlock(ConfigReader& config, const char* key) {
  const json* size = config.Find(key);
  if (size == nullptr || !size->is_array()) return std::nullopt;
  const auto sizes = config.Ints(key);
  const bool fits = sizes.has_value() && sizes->size() == 2 && std::min((*sizes)[0], (*sizes)[1]) > 0 &&
                    std::max((*sizes)[0], (*sizes)[1]) <= kMaxSize;
  if (fits) return std::pair((*sizes)[0], (*sizes)[1]);
  config.Wrong(key, "a number, or a list of the two sizes of a block");
  return std::pair<int64_t, int64_t>(1, 1);
}

void ReadGroupSizes(ConfigReader& config, AutoRoundSettings* own) {
  if (const auto block = ReadBlock(config, "group_size")) {
    std::tie(own->rows, own->columns) = *block;
  } else if (config.Has("group_size")) {
    own->group = config.Int("group_size", own->group, -1, kMaxSize);
    own->rows = own->columns = 0;
  }
  if (const auto block = ReadBlock(config, "act_group_size")) {
    std::tie(own->input_rows, own->input_group) = *block;
  } else if (config.Has("act_group_size")) {
    own->input_group = config.Int("act_group_size", own->input_group, -1, kMaxSize);
    own->input_rows = 1;
  }
}

void CheckIntegers(ConfigReader& config, const AutoRoundSettings& own, bool is_awq) {
  // Its exporter writes no others in words.
  if (own.bits != 4 && (is_awq || (own.bits != 2 && own.bits != 3 && own.bits != 8))) {
    config.Refuse(absl::StrCat("bits ", own.bits, " of ",
                               is_awq ? "auto_awq is not supported (4)" : "AutoRound is not supported (2, 3, 4, 8)"));
  }
  if (own.group == 0 || own.rows > 0) config.Contradicts("group_size is neither -1 nor a number of columns");
  if (own.input_bits <= 8) config.Refuse("act_bits: inputs of layers in integers are not supported");
}

// What a module is to be stored as, of which nothing is known here, is refused.
void Check(ConfigReader& config, const AutoRoundSettings& own, bool is_awq) {
  if (!own.is_quantized()) return;
  const std::string what = absl::StrCat("data_type ", Quoted(own.type), " with ", own.bits, " bits");
  if (own.type == "int") return CheckIntegers(config, own, is_awq);
  if (IsMx(own.type)) {
    if (own.bits != 4 && own.bits != 8) config.Refuse(what + " is not supported (4, 8)");
    if (own.group != 32) config.Refuse(what + " is of groups of 32");
  } else if (IsNv(own.type)) {
    if (own.bits != 4 || own.group != 16) config.Refuse(what + " is not supported: 4 bits in groups of 16 are");
  } else if (own.bits != 8 || !IsFloat(own.type)) {
    config.Refuse(what + " is not supported; supported: int, mx_fp, nv_fp, fp of 8 bits (e4m3)");
  }
}

AutoRoundSettings ReadSettings(ConfigReader& config, AutoRoundSettings own) {
  own.bits = config.Int("bits", own.bits, 1, 64);
  ReadGroupSizes(config, &own);
  own.is_symmetric = config.Flag("sym", own.is_symmetric);
  own.type = config.Text("data_type", own.type);
  own.input_bits = config.Int("act_bits", own.input_bits, 1, 64);
  own.are_inputs_dynamic = config.Flag("act_dynamic", own.are_inputs_dynamic);
  own.input_type = config.Text("act_data_type", own.input_type);
  own.are_inputs_symmetric = config.Flag("act_sym", own.are_inputs_symmetric);
  config.Ignore({"scale_dtype", "super_bits", "super_group_size"});
  return own;
}

void ReadModules(ConfigReader& config, AutoRound* scheme) {
  const json* extra = config.Find("extra_config");
  if (extra == nullptr) return;
  if (!extra->is_object()) return config.Wrong("extra_config", "an object of modules");
  PatternReader patterns;
  for (const auto& [key, value] : extra->items()) {
    if (!value.is_object()) {
      config.Wrong("extra_config", "an object of modules, each an object");
      continue;
    }
    InnerConfig inner(config, &value, absl::StrCat("extra_config.", key));
    const AutoRoundSettings own = ReadSettings(*inner, scheme->common);
    Check(*inner, own, scheme->is_awq);
    const bool is_name = key.find_first_of("*^$|()[]?+\\") == std::string::npos;
    if (is_name) scheme->modules.AddName(key, own);
    if (is_name || value.empty()) continue;
    std::optional<NamePattern> pattern =
        patterns.Parse(absl::StrCat(".*(?:", key, ")"), "extra_config", config);  // as re.search
    if (!pattern.has_value()) continue;
    const auto fits = [own_pattern = *std::move(pattern)](absl::string_view module) {
      return own_pattern.MatchesBeginning(module);
    };
    scheme->modules.AddPattern(key, fits, own);
  }
}

// auto_round, auto_round:auto_gptq, auto_round:auto_awq, auto_round:llm_compressor, auto_round:fp8_static, …, and
// others with the name of a kernel behind it.
void ReadPacking(ConfigReader& config, AutoRound* scheme) {
  const std::string packing = config.Text("packing_format", config.Text("backend", "auto_round:auto_gptq"));
  constexpr std::array<absl::string_view, 8> kKnown = {"auto_round", "autoround", "auto_gptq", "gptq",
                                                       "gptqmodel",  "auto_awq",  "awq",       "exllamav2"};
  constexpr std::array<absl::string_view, 5> kOfFloats = {"llm_compressor", "fp8_static", "fp8", "mx_fp", "nv_fp"};
  bool is_known = true;
  const auto has = [](const auto& list, absl::string_view name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  for (const absl::string_view part : absl::StrSplit(packing, ':')) {
    is_known = is_known && (has(kKnown, part) || (scheme->common.type != "int" && has(kOfFloats, part)));
  }
  if (!is_known) {
    config.Refuse(absl::StrCat("packing_format ", Quoted(packing),
                               " of auto-round is not supported; supported: auto_round, auto_round:auto_gptq, "
                               "auto_round:auto_awq, auto_round:gptqmodel and, of floats, auto_round:llm_compressor, "
                               "auto_round:fp8_static"));
  }
  scheme->is_awq = absl::StrContains(packing, "awq");
  // Of its own packing and that of GPTQModel.
  scheme->stores_zero_less_one = absl::StrContains(packing, "gptq") && !absl::StrContains(packing, "gptqmodel");
}

}  // namespace

std::unique_ptr<QuantizedScheme> ReadAutoRound(ConfigReader& config) {
  auto scheme = std::make_unique<AutoRound>();
  if (!config.Has("bits")) config.Wrong("bits", "a number");
  scheme->common = ReadSettings(config, {});
  ReadPacking(config, scheme.get());
  Check(config, scheme->common, scheme->is_awq);
  ReadModules(config, scheme.get());
  // What says how codes were found, or again what the tensors say.
  config.Ignore({"quant_method",
                 "packing_format",
                 "autoround_version",
                 "block_name_to_quantize",
                 "modules_to_not_convert",
                 "iters",
                 "nsamples",
                 "seqlen",
                 "batch_size",
                 "dataset",
                 "model",
                 "low_gpu_mem_usage",
                 "low_cpu_mem_usage",
                 "amp",
                 "gradient_accumulate_steps",
                 "lr",
                 "minmax_lr",
                 "enable_quanted_input",
                 "enable_minmax_tuning",
                 "enable_norm_bias_tuning",
                 "enable_alg_ext",
                 "to_quant_block_names",
                 "quant_block_list",
                 "activation_scheme",
                 "fmt",
                 "backend"});
  return scheme;
}

}  // namespace llmc::hf
