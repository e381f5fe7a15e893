// GPTQ (arXiv:2210.17323) as AutoGPTQ and GPTQModel store it: codes of 2, 3, 4 or 8 bits along k in words of 32,
// MODULE.qweight [in * bits / 32, out], scales [groups, out], zero points packed along the outputs,
// qzeros [groups, out * bits / 32], and g_idx [in], the group of each column. A number is (code - zero) * scale.
#include <algorithm>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "files/path_check.h"
#include "frontend/huggingface/quantized/forms.h"
#include "frontend/huggingface/quantized/name_pattern.h"
#include "frontend/huggingface/quantized/part_reader.h"
#include "frontend/huggingface/quantized/scheme.h"

namespace llmc::hf {
namespace {

struct GptqSettings {
  int64_t bits = 4, group_size = 128;  // -1: one group for each channel
  bool is_symmetric = true;
};

// What GPTQModel's `dynamic` says of modules whose names begin as the pattern: other settings, or none ("-:").
struct GptqRule {
  NamePattern pattern;
  bool is_excluded = false;
  GptqSettings settings;
};

int64_t ReadBits(ConfigReader& config, const std::string& key, int64_t absent) {
  const int64_t bits = config.Int(key, absent, 1, 64);
  if (bits == 2 || bits == 3 || bits == 4 || bits == 8) return bits;
  config.Refuse(absl::StrCat("GPTQ bits ", bits, " is not supported (2, 3, 4, 8)"));
  return 4;
}

int64_t ReadGroupSize(ConfigReader& config, int64_t absent) {
  const int64_t size = config.Int("group_size", absent, -1, kMaxSize);
  if (size != 0) return size;
  config.Contradicts("group_size 0 is neither -1 nor a number of columns");
  return -1;
}

class Gptq : public QuantizedScheme {
 public:
  GptqSettings settings;
  bool stores_zero_less_one = true;  // version 1
  bool has_head = false;
  bool has_order = false;         // desc_act: groups may lie across columns, so that nothing can be read without g_idx
  std::vector<std::string> only;  // modules inside of layers; empty: all
  std::vector<GptqRule> rules;

  bool Covers(const LinearModule& module) const override {
    if (module.is_head) return has_head;
    const bool is_listed = only.empty() || std::any_of(only.begin(), only.end(), [&](const std::string& name) {
                             return absl::EndsWith(module.name, "." + name) || module.name == name;
                           });
    return is_listed && SettingsOf(module.name).has_value();
  }
  std::string CodesOf(const LinearModule&) const override { return "qweight"; }
  std::string Name() const override { return absl::StrCat("GPTQ, ", settings.bits, " bits"); }

  std::string EncodingOf(const LinearModule& module, DType scale) const override {
    const GptqSettings s = SettingsOf(module.name).value_or(settings);
    return Text(s, module.in, s.group_size, DTypeName(scale), s.is_symmetric ? "" : ZeroType(s, module.in));
  }

  EncodedParts Read(const LinearModule& module, PartReader& reader) const override {
    const GptqSettings s = SettingsOf(module.name).value_or(settings);
    const int64_t group = s.group_size < 0 ? module.in : s.group_size, groups = (module.in + group - 1) / group;
    const std::string of_groups = s.group_size < 0 ? "1" : absl::StrCat("in ", module.in, " / group ", group);
    const int64_t of_words = 32 / std::gcd<int64_t>(32, s.bits);  // codes that fill whole words
    if (!CheckGroups(module, group, groups, reader) || !reader.FillsWords("qweight", module.in, of_words) ||
        !reader.FillsWords("qzeros", module.out, of_words)) {
      return {};
    }
    const DType words[] = {DType::kI32};
    Value* packed = reader.Part("qweight", words, {module.in * s.bits / 32, module.out},
                                absl::StrCat(" = [in ", module.in, " * ", s.bits, " / 32, out ", module.out, "]"));
    Value* scales = reader.Scale("scales", {groups, module.out}, absl::StrCat(" = [", of_groups, ", out]"));
    Value* order = reader.Has("g_idx") || (has_order && s.group_size > 0)
                       ? reader.OrderOfGroups("g_idx", module.in, group)
                       : nullptr;
    IgnoreZeroBias(reader);
    const bool is_signed = s.is_symmetric && HasMiddleZeros(module, s, groups, reader);
    EncodedParts parts = {.order = order};
    const int64_t middle = int64_t{1} << (s.bits - 1);
    Unpack codes = {.x = packed, .index = order, .bits = s.bits, .axis = 0, .across = 32 % s.bits != 0};
    codes.transpose = true;
    StoreAs(IntegerFormat(static_cast<int>(s.bits), is_signed, module.in), &codes);
    if (is_signed) codes.add = middle;
    parts.components.push_back(reader.Add(codes, "codes"));
    const bool of_channels = groups == 1;
    scales = of_channels ? reader.Reshaped(scales, {module.out})
                         : reader.Add(Transpose{.x = scales, .perm = {1, 0}}, "scale");
    parts.components.push_back(scales);
    std::string zero_type;
    if (is_signed) {
      reader.Ignore("qzeros", "all zero points are in the middle of the codes");
    } else {
      zero_type = ZeroType(s, module.in);
      Value* zeros = reader.Part("qzeros", words, {groups, module.out * s.bits / 32},
                                 absl::StrCat(" = [", of_groups, ", out ", module.out, " / ", 32 / s.bits, "]"));
      Unpack op = {.x = zeros, .bits = s.bits, .axis = 1, .across = 32 % s.bits != 0, .transpose = true};
      op.add = stores_zero_less_one ? 1 : 0;
      op.to = zero_type == "u4" ? DType::kU4 : DType::kU8;
      zeros = reader.Add(op, "zero");
      parts.components.push_back(of_channels ? reader.Reshaped(zeros, {module.out}) : zeros);
    }
    parts.as = Text(s, module.in, of_channels ? -1 : group, DTypeName(scales->type.dtype), zero_type);
    return parts;
  }

 private:
  std::optional<GptqSettings> SettingsOf(const std::string& module) const {
    for (const GptqRule& rule : rules) {
      if (!rule.pattern.MatchesBeginning(module)) continue;
      if (rule.is_excluded) return std::nullopt;
      return rule.settings;
    }
    return settings;
  }

  // Rows of 4 bits that end within a byte cannot be moved by kernels.
  static std::string ZeroType(const GptqSettings& s, int64_t in) {
    const int64_t groups = s.group_size < 0 ? 1 : (in + s.group_size - 1) / s.group_size;
    return s.bits > 4 || (groups % 2 != 0 && groups > 1) ? "u8" : "u4";
  }

  static std::string Text(const GptqSettings& s, int64_t in, int64_t group, absl::string_view scale,
                          const std::string& zero) {
    const std::string how = group < 0 ? "per=channel" : absl::StrCat("group=", group);
    return absl::StrCat(IntegerFormat(static_cast<int>(s.bits), zero.empty(), in).name, " ", how, " scale=", scale,
                        zero.empty() ? "" : " zero=", zero);
  }

  static bool CheckGroups(const LinearModule& module, int64_t group, int64_t groups, PartReader& reader) {
    const Tensor* scales = reader.Find("scales");
    const bool fits =
        module.in % group == 0 || scales == nullptr || scales->rank() != 2 || scales->shape()[0] == groups;
    if (fits) return true;
    for (const char* part : {"qweight", "qzeros", "g_idx"}) reader.Ignore(part, "");
    reader.Wrong("scales",
                 absl::StrCat(": group_size ", group, " does not divide in_features ", module.in, " of ", module.name,
                              " (scales hold ", scales->shape()[0], " groups, ", group, " would need ", groups, ")"));
    return false;
  }

  // Whether no zero point has to be kept, which is so of symmetric quantization. Shapes that do not fit are complaints
  // of who declares them.
  bool HasMiddleZeros(const LinearModule& module, const GptqSettings& s, int64_t groups, PartReader& reader) const {
    const Tensor* zeros = reader.Find("qzeros");
    if (zeros == nullptr) return true;
    const bool fits = zeros->dtype() == DType::kI32 && zeros->shape() == Shape{groups, module.out * s.bits / 32};
    if (!fits) return false;
    const uint32_t expected = (1u << (s.bits - 1)) - (stores_zero_less_one ? 1 : 0);
    const auto* bytes = reinterpret_cast<const unsigned char*>(zeros->raw());
    for (int64_t row = 0; row < groups; ++row) {
      const unsigned char* begin = bytes + row * (module.out * s.bits / 32) * 4;
      for (int64_t i = 0; i < module.out; ++i) {
        const int64_t bit = i * s.bits;
        uint32_t code = begin[bit / 8] >> bit % 8;
        if (bit % 8 + s.bits > 8) code |= static_cast<uint32_t>(begin[bit / 8 + 1]) << (8 - bit % 8);
        if ((code & ((1u << s.bits) - 1)) != expected) return false;
      }
    }
    return true;
  }

  // Tools write a bias of zeros where the model has none.
  static void IgnoreZeroBias(PartReader& reader) {
    const Tensor* bias = reader.Find("bias");
    if (bias == nullptr || !IsFloat(bias->dtype()) || DTypeBits(bias->dtype()) > 32) return;
    const std::vector<float> numbers = bias->ToFloats();
    if (std::any_of(numbers.begin(), numbers.end(), [](float x) { return x != 0; })) return;
    reader.weights().IgnoreUnlessUsed(reader.NameOf("bias"), "a bias of zeros");
  }
};

void ReadRules(ConfigReader& config, Gptq* scheme) {
  const nlohmann::json* rules = config.Find("dynamic");
  if (rules == nullptr) return;
  if (!rules->is_object()) return config.Wrong("dynamic", "an object from patterns to settings");
  for (const auto& [key, value] : rules->items()) {
    absl::string_view text = key;
    const bool is_excluded = absl::ConsumePrefix(&text, "-:");
    absl::ConsumePrefix(&text, "+:");
    absl::StatusOr<NamePattern> pattern = NamePattern::Parse(text);
    if (!pattern.ok() || !value.is_object()) {
      config.Refuse(absl::StrCat("dynamic: ", pattern.ok() ? absl::StrCat(Quoted(key), " has no object of settings")
                                                           : pattern.status().message()));
      continue;
    }
    InnerConfig inner(config, &value, "dynamic");
    GptqRule rule = {.pattern = *std::move(pattern), .is_excluded = is_excluded, .settings = scheme->settings};
    rule.settings.bits = ReadBits(*inner, "bits", scheme->settings.bits);
    rule.settings.group_size = ReadGroupSize(*inner, scheme->settings.group_size);
    rule.settings.is_symmetric = inner->Flag("sym", scheme->settings.is_symmetric);
    inner->Ignore({"desc_act", "mse", "damp_percent", "static_groups", "true_sequential"});
    scheme->rules.push_back(std::move(rule));
  }
}

void ReadBlockModules(ConfigReader& config, Gptq* scheme) {
  const nlohmann::json* blocks = config.Find("modules_in_block_to_quantize");
  if (blocks != nullptr && blocks->is_array()) {
    for (const nlohmann::json& item : *blocks) {  // names, or lists of those that are quantized together
      for (const nlohmann::json& name : item.is_array() ? item : nlohmann::json::array({item})) {
        if (!name.is_string()) config.Wrong("modules_in_block_to_quantize", "a list of names, or of lists of names");
        if (name.is_string()) scheme->only.push_back(name.get<std::string>());
      }
    }
  } else if (blocks != nullptr) {
    config.Wrong("modules_in_block_to_quantize", "a list");
  }
}

}  // namespace

std::unique_ptr<QuantizedScheme> ReadAutoRound(ConfigReader& config) {
  const std::string packing = config.Text("packing_format", "");
  if (packing != "auto_round:auto_gptq" && packing != "auto_gptq") {
    config.Refuse(absl::StrCat("packing_format ", Quoted(packing),
                               " of auto-round is not supported; supported: auto_round:auto_gptq (export the model as "
                               "auto_gptq or auto_awq)"));
  }
  if (config.Text("data_type", "int") != "int") config.Refuse("data_type: only int is supported");
  if (config.Int("act_bits", 16, 1, 64) != 16) config.Refuse("act_bits: only weights may be quantized");
  // Modules with other bits; those of 16 are plain floats.
  const nlohmann::json* extra = config.Find("extra_config");
  const bool has_modules = extra != nullptr && extra->is_object();
  if (extra != nullptr && !has_modules) config.Wrong("extra_config", "an object of modules");
  const nlohmann::json modules = has_modules ? *extra : nlohmann::json::object();
  for (const auto& [module, own] : modules.items()) {
    const bool is_plain = own.is_object() && own.value("bits", nlohmann::json()) == 16;
    if (!is_plain) {
      config.Refuse(
          absl::StrCat("extra_config: settings of ", Quoted(module), " other than 16 bits are not supported"));
    }
  }
  config.Ignore({"autoround_version",
                 "iters",
                 "nsamples",
                 "seqlen",
                 "low_gpu_mem_usage",
                 "low_cpu_mem_usage",
                 "amp",
                 "gradient_accumulate_steps",
                 "lr",
                 "minmax_lr",
                 "enable_quanted_input",
                 "enable_minmax_tuning",
                 "enable_norm_bias_tuning",
                 "scale_dtype",
                 "to_quant_block_names",
                 "quant_block_list",
                 "super_bits",
                 "super_group_size",
                 "act_bits",
                 "act_group_size",
                 "act_sym",
                 "act_dynamic",
                 "act_data_type"});
  return ReadGptq(config);
}

std::unique_ptr<QuantizedScheme> ReadGptq(ConfigReader& config) {
  auto scheme = std::make_unique<Gptq>();
  if (!config.Has("bits")) config.Wrong("bits", "2, 3, 4 or 8");
  scheme->settings = {.bits = ReadBits(config, "bits", 4), .group_size = ReadGroupSize(config, 128)};
  scheme->settings.is_symmetric = config.Flag("sym", true);
  const std::string format = config.Text("checkpoint_format", config.Text("format", "gptq"));
  if (format == "gptq_v2") {
    scheme->stores_zero_less_one = false;
  } else if (format != "gptq") {
    config.Refuse(absl::StrCat("checkpoint_format ", Quoted(format),
                               " is not supported; supported: gptq, gptq_v2 (others are layouts of kernels: export "
                               "the checkpoint as gptq)"));
  }
  if (config.Text("pack_dtype", "int32") != "int32") config.Refuse("pack_dtype: only int32 is supported");
  scheme->has_head = config.Flag("lm_head", false);
  if (config.Flag("is_marlin_format", false)) config.Refuse("is_marlin_format true is not supported: export as gptq");
  ReadBlockModules(config, scheme.get());
  ReadRules(config, scheme.get());
  scheme->has_order = config.Flag("desc_act", false);
  // What says how codes were found, or which kernels another program is to take.
  config.Ignore({"desc_act",
                 "damp_percent",
                 "damp_auto_increment",
                 "static_groups",
                 "true_sequential",
                 "mse",
                 "meta",
                 "model_name_or_path",
                 "model_file_base_name",
                 "model_seqlen",
                 "dataset",
                 "tokenizer",
                 "backend",
                 "batch_size",
                 "pad_token_id",
                 "block_name_to_quantize",
                 "module_name_preceding_first_block",
                 "use_exllama",
                 "disable_exllama",
                 "exllama_config",
                 "max_input_length",
                 "use_cuda_fp16",
                 "cache_block_outputs",
                 "quant_method",
                 "method",
                 "parallel_packing",
                 "offload_to_disk",
                 "version",
                 "act_group_aware",
                 "hyb_act"});
  return scheme;
}

}  // namespace llmc::hf
