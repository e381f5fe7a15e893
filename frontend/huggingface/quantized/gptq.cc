// GPTQ (arXiv:2210.17323) as AutoGPTQ and GPTQModel store it (word_forms.h).
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "files/path_check.h"
#include "frontend/huggingface/quantized/module_settings.h"
#include "frontend/huggingface/quantized/name_pattern.h"
#include "frontend/huggingface/quantized/scheme.h"
#include "frontend/huggingface/quantized/word_forms.h"

namespace llmc::hf {
namespace {

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
  GptqForm form;
  bool has_head = false;
  std::vector<std::string> only;  // modules inside of layers; empty: all
  // What GPTQModel's `dynamic` says of modules whose names begin as the pattern; none: they are not quantized ("-:").
  ModuleSettings<std::optional<GptqForm>> rules;

  bool Covers(const LinearModule& module) const override {
    if (module.is_head) return has_head;
    const bool is_listed = only.empty() || std::any_of(only.begin(), only.end(), [&](const std::string& name) {
                             return absl::EndsWith(module.name, "." + name) || module.name == name;
                           });
    return is_listed && FormOf(module.name).has_value();
  }
  std::string CodesOf(const LinearModule&) const override { return "qweight"; }
  bool HasSignedScales() const override { return true; }
  std::string Name() const override { return absl::StrCat("GPTQ, ", form.bits, " bits"); }

  std::string EncodingOf(const LinearModule& module, DType scale) const override {
    return hf::EncodingOf(FormOf(module.name).value_or(form), module, scale);
  }
  EncodedParts Read(const LinearModule& module, PartReader& reader) const override {
    if (!rules.AreClear("qweight", "dynamic", reader)) return {};
    return ReadGptqWords(FormOf(module.name).value_or(form), module, reader);
  }

 private:
  std::optional<GptqForm> FormOf(const std::string& module) const {
    const std::optional<GptqForm>* own = rules.Find(module);
    return own == nullptr ? form : *own;
  }
};

void ReadRules(ConfigReader& config, Gptq* scheme) {
  const nlohmann::json* rules = config.Find("dynamic");
  if (rules == nullptr) return;
  if (!rules->is_object()) return config.Wrong("dynamic", "an object from patterns to settings");
  PatternReader patterns;
  for (const auto& [key, value] : rules->items()) {
    absl::string_view text = key;
    const bool is_excluded = absl::ConsumePrefix(&text, "-:");
    absl::ConsumePrefix(&text, "+:");
    if (!value.is_object()) {
      config.Refuse(absl::StrCat("dynamic: ", Quoted(key), " has no object of settings"));
      continue;
    }
    std::optional<NamePattern> pattern = patterns.Parse(text, "dynamic", config);
    if (!pattern.has_value()) continue;
    InnerConfig inner(config, &value, "dynamic");
    GptqForm own = scheme->form;
    own.bits = ReadBits(*inner, "bits", own.bits);
    own.group_size = ReadGroupSize(*inner, own.group_size);
    own.is_symmetric = inner->Flag("sym", own.is_symmetric);
    own.has_order = inner->Flag("desc_act", own.has_order);
    inner->Ignore({"mse", "damp_percent", "static_groups", "true_sequential"});
    const auto fits = [own_pattern = *std::move(pattern)](absl::string_view module) {
      return own_pattern.MatchesBeginning(module);
    };
    scheme->rules.AddPattern(key, fits, is_excluded ? std::nullopt : std::optional(own));
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

std::unique_ptr<QuantizedScheme> ReadGptq(ConfigReader& config) {
  auto scheme = std::make_unique<Gptq>();
  if (!config.Has("bits")) config.Wrong("bits", "2, 3, 4 or 8");
  scheme->form = {.bits = ReadBits(config, "bits", 4), .group_size = ReadGroupSize(config, 128)};
  scheme->form.is_symmetric = config.Flag("sym", true);
  scheme->form.has_order = config.Flag("desc_act", false);
  const std::string format = config.Text("checkpoint_format", config.Text("format", "gptq"));
  if (format == "gptq_v2") {
    scheme->form.stores_zero_less_one = false;
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
