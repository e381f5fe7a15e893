#include "frontend/huggingface/config.h"

#include <initializer_list>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/path_check.h"

namespace llmc {
namespace {

using nlohmann::json;

constexpr int64_t kMaxSize = int64_t{1} << 20;
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxPositions = int64_t{1} << 27;

struct IntField {
  const char* key;
  int64_t HfConfig::*member;
  int64_t absent;
  int64_t max;
};

absl::Status ReadInts(const JsonFields& fields, std::initializer_list<IntField> list, HfConfig* config) {
  for (const IntField& f : list) {
    ASSIGN_OR_RETURN(int64_t value, fields.Int(f.key, f.absent, 1, f.max));
    config->*f.member = value;
  }
  return absl::OkStatus();
}

absl::Status ReadSizes(const JsonFields& fields, HfConfig* config) {
  const HfDefaults& d = config->architecture->defaults;
  absl::Status s = ReadInts(
      fields,
      {{"vocab_size", &HfConfig::vocab_size, d.vocab_size, kMaxVocab},
       {"hidden_size", &HfConfig::hidden_size, d.hidden_size, kMaxSize},
       {"intermediate_size", &HfConfig::intermediate_size, d.intermediate_size, kMaxSize},
       {"num_hidden_layers", &HfConfig::layers, d.layers, kMaxLayers},
       {"num_attention_heads", &HfConfig::heads, d.heads, kMaxSize},
       {"max_position_embeddings", &HfConfig::max_position_embeddings, d.max_position_embeddings, kMaxPositions}},
      config);
  if (!s.ok()) return s;
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(fields.file(), ": ", why));
  };
  // A key that is null means "as many as heads"; one that is absent, the class's default.
  const bool kv_null = fields.IsNull("num_key_value_heads");
  const int64_t kv_absent = d.kv_heads == 0 || kv_null ? config->heads : d.kv_heads;
  const bool derived = !fields.Has("head_dim") && (d.head_dim == 0 || fields.IsNull("head_dim"));
  const int64_t head_dim_absent = derived ? config->hidden_size / config->heads : d.head_dim;
  if (derived && config->hidden_size % config->heads != 0) {
    return refuse(absl::StrCat("hidden_size ", config->hidden_size, " is no multiple of num_attention_heads ",
                               config->heads, " and there is no head_dim"));
  }
  s = ReadInts(fields,
               {{"num_key_value_heads", &HfConfig::kv_heads, kv_absent, kMaxSize},
                {"head_dim", &HfConfig::head_dim, head_dim_absent, 4096}},
               config);
  if (!s.ok()) return s;
  if (config->heads % config->kv_heads != 0) {
    return refuse(absl::StrCat("num_attention_heads ", config->heads, " is no multiple of num_key_value_heads ",
                               config->kv_heads));
  }
  if (config->head_dim % 2 != 0) return refuse(absl::StrCat("head_dim ", config->head_dim, " is odd"));
  if (config->head_dim * config->heads > kMaxSize) return refuse("num_attention_heads * head_dim is too large");
  return absl::OkStatus();
}

absl::StatusOr<bool> ReadBias(const JsonFields& fields, HfBias kind, const std::string& key) {
  if (kind == HfBias::kConfig) return fields.Bool(key, false);
  return kind == HfBias::kAlways;
}

absl::Status ReadFlags(const JsonFields& fields, HfConfig* config) {
  const HfArchitecture& row = *config->architecture;
  const std::pair<bool HfConfig::*, absl::StatusOr<bool>> flags[] = {
      {&HfConfig::tie_word_embeddings, fields.Bool("tie_word_embeddings", false)},
      {&HfConfig::qkv_bias, ReadBias(fields, row.qkv_bias, "attention_bias")},
      {&HfConfig::o_bias, ReadBias(fields, row.o_bias, "attention_bias")},
      {&HfConfig::mlp_bias, ReadBias(fields, row.mlp_bias, "mlp_bias")}};
  for (const auto& [member, value] : flags) {
    if (!value.ok()) return value.status();
    config->*member = *value;
  }
  ASSIGN_OR_RETURN(double eps, fields.Double("rms_norm_eps", 1e-6, 0, 1));
  config->rms_norm_eps = eps;
  ASSIGN_OR_RETURN(std::string act, fields.String("hidden_act", "silu"));
  if (act != "silu" && act != "swish") {
    return absl::UnimplementedError(absl::StrCat(fields.file(), ": hidden_act ", Quoted(act), " is not supported for ",
                                                 row.name, "; only silu is"));
  }
  return absl::OkStatus();
}

// `layer_types`, if it is there: for each layer whether it has a window.
absl::StatusOr<std::optional<std::vector<bool>>> ReadLayerTypes(const JsonFields& fields, int64_t layers) {
  const json* types = fields.Find("layer_types");
  if (types == nullptr) return std::nullopt;
  if (!types->is_array() || static_cast<int64_t>(types->size()) != layers) {
    return fields.Wrong("layer_types", absl::StrCat("a list of ", layers, " strings, one for each layer"));
  }
  std::vector<bool> windowed;
  for (const json& type : *types) {
    if (type == "full_attention" || type == "sliding_attention") {
      windowed.push_back(type == "sliding_attention");
    } else if (type.is_string()) {
      return absl::UnimplementedError(
          absl::StrCat(fields.file(), ": layer type ", Quoted(type.get<std::string>()), " is not supported"));
    } else {
      return fields.Wrong("layer_types", "a list of strings");
    }
  }
  return windowed;
}

absl::Status ReadWindows(const JsonFields& fields, HfConfig* config) {
  const HfArchitecture& row = *config->architecture;
  const bool is_switched = row.window == HfWindow::kSwitched;
  const bool is_by_type = is_switched || row.window == HfWindow::kByType;
  ASSIGN_OR_RETURN(const std::optional<std::vector<bool>> types, ReadLayerTypes(fields, config->layers));
  ASSIGN_OR_RETURN(int64_t size, fields.Int("sliding_window", row.defaults.sliding_window, 1, kMaxPositions));
  bool has_windows = row.window != HfWindow::kNone && !fields.IsNull("sliding_window");
  int64_t full_layers = 0;  // the first ones, where nothing else is said
  if (is_switched) {
    ASSIGN_OR_RETURN(const bool use, fields.Bool("use_sliding_window", false));
    has_windows = has_windows && use;
    ASSIGN_OR_RETURN(full_layers, fields.Int("max_window_layers", row.defaults.max_window_layers, 0, kMaxSize));
  }
  // transformers ignores the key here, other engines do not: refuse rather than guess.
  if (row.window == HfWindow::kNone && fields.Has("sliding_window")) {
    return absl::UnimplementedError(
        absl::StrCat(fields.file(), ": sliding_window is not supported for ", row.name, "; set it to null"));
  }
  config->windows.assign(config->layers, 0);
  for (int64_t i = 0; i < config->layers; ++i) {
    const bool by_default = has_windows && i >= full_layers;
    const bool is_windowed = types.has_value() ? (*types)[i] : by_default;
    if (is_windowed != by_default && !is_by_type) {
      return absl::UnimplementedError(absl::StrCat(
          fields.file(), ": layer_types that differ from sliding_window are not supported for ", row.name));
    }
    if (is_windowed && !has_windows) {
      return absl::InvalidArgumentError(absl::StrCat(fields.file(), ": layer_types has sliding_attention, but ",
                                                     is_switched ? "use_sliding_window and " : "", "sliding_window ",
                                                     is_switched ? "are" : "is", " not set"));
    }
    config->windows[i] = is_windowed ? size : 0;
  }
  return absl::OkStatus();
}

// `dtype` (transformers 5) or `torch_dtype`. What it does not know is ignored, as in transformers.
DType ReadDType(const JsonFields& fields) {
  const std::pair<absl::string_view, DType> known[] = {{"float16", DType::kF16}, {"bfloat16", DType::kBF16}};
  for (const char* key : {"dtype", "torch_dtype"}) {
    const json* value = fields.Find(key);
    for (const auto& [name, dtype] : known) {
      if (value != nullptr && *value == std::string(name)) return dtype;
    }
  }
  return DType::kF32;
}

absl::StatusOr<const HfArchitecture*> ReadArchitecture(const JsonFields& fields) {
  const json* list = fields.Find("architectures");
  if (list == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        fields.file(), ": there is no \"architectures\"; it must be a list of one of ", KnownHfArchitectures()));
  }
  if (!list->is_array() || list->size() != 1 || !(*list)[0].is_string()) {
    return fields.Wrong("architectures", "a list of one string");
  }
  absl::StatusOr<const HfArchitecture*> row = FindHfArchitecture((*list)[0].get<std::string>());
  if (!row.ok()) {
    return absl::Status(row.status().code(), absl::StrCat(fields.file(), ": ", row.status().message()));
  }
  return row;
}

absl::Status RefuseQuantized(const JsonFields& fields) {
  const json* quantization = fields.Find("quantization_config");
  if (quantization == nullptr) return absl::OkStatus();
  std::string method = "unnamed";
  if (quantization->is_object() && quantization->contains("quant_method") &&
      (*quantization)["quant_method"].is_string()) {
    method = (*quantization)["quant_method"].get<std::string>();
  }
  return absl::UnimplementedError(absl::StrCat(fields.file(), ": quantized checkpoints (quantization_config, method ",
                                               Quoted(method), ") are not supported; use the unquantized model"));
}

}  // namespace

absl::StatusOr<HfConfig> ParseHfConfig(const json& config, const std::string& file) {
  if (!config.is_object()) return absl::InvalidArgumentError(absl::StrCat(file, ": must be a JSON object"));
  const JsonFields fields(&config, file);
  HfConfig result;
  ASSIGN_OR_RETURN(const HfArchitecture* row, ReadArchitecture(fields));
  result.architecture = row;
  result.dtype = ReadDType(fields);
  if (absl::Status s = RefuseQuantized(fields); !s.ok()) return s;
  if (absl::Status s = ReadSizes(fields, &result); !s.ok()) return s;
  if (absl::Status s = ReadFlags(fields, &result); !s.ok()) return s;
  if (absl::Status s = ReadWindows(fields, &result); !s.ok()) return s;
  ASSIGN_OR_RETURN(HfRope rope, ParseHfRope(fields, result.max_position_embeddings));
  result.rope = std::move(rope);
  return result;
}

}  // namespace llmc
