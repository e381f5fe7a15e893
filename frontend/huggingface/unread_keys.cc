#include "frontend/huggingface/unread_keys.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/edit_distance.h"
#include "files/path_check.h"
#include "frontend/huggingface/family.h"

namespace llmc::hf {
namespace {

using nlohmann::json;

// Keys of transformers' PreTrainedConfig and of its subclasses that change no number of a forward pass without
// training: what wrote the file, training, tokens (checked apart), tasks' labels, and how to generate.
constexpr absl::string_view kHarmlessKeys[] = {
    "_attn_implementation",
    "_commit_hash",
    "_name_or_path",
    "_sliding_window_pattern",
    "architectures",
    "auto_map",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "cls_token_id",
    "decoder_start_token_id",
    "deterministic_flash_attn",
    "drop_path_rate",
    "dtype",
    "embedding_fraction",
    "encoder_stride",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "init_device",
    "init_std",
    "initializer_cutoff_factor",
    "initializer_factor",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "language",
    "layerdrop",
    "legacy",
    "logit_scale_init_value",
    "max_window_layers",
    "model_type",
    "out_features",
    "out_indices",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "qk_head_dim",
    "reorder_and_upcast_attn",
    "reshape_hidden_states",
    "return_dict",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "sep_token_id",
    "sinusoidal_pos_embds",
    "slow_but_exact",
    "sparse_pred_ignore_index",
    "sparse_prediction",
    "stage_names",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "tie_word_embeddings",
    "torch_dtype",
    "transformers_version",
    "unk_token_id",
    "use_cache",
    "use_mask_token",
};

bool IsHarmless(const std::string& key) {
  for (absl::string_view ending : {"dropout", "dropout_prob", "_pdrop"}) {
    if (absl::EndsWith(key, ending)) return true;
  }
  return std::find(std::begin(kHarmlessKeys), std::end(kHarmlessKeys), key) != std::end(kHarmlessKeys);
}

struct KnownKey {
  std::set<std::string> models;  // that read it
  std::vector<json> defaults;    // what they take for it where it is absent
};

// The keys that decoders ask an empty config for.
const std::map<std::string, KnownKey>& KnownKeys() {
  static const auto* const known = [] {
    auto* keys = new std::map<std::string, KnownKey>;
    const json empty = json::object();
    for (const Family& family : DecoderFamilies()) {
      ConfigReader config(&empty, "");
      family.read(config);
      for (const std::string& key : config.Asked()) (*keys)[key].models.emplace(family.model);
      for (const auto& [key, value] : config.defaults()) (*keys)[key].defaults.push_back(value);
    }
    return keys;
  }();
  return *known;
}

bool IsNeutral(const json& value, const std::vector<json>& defaults) {
  if (value.is_null() || value == false || value == 0 || value == 1) return true;
  if (value.is_string() && value.get<std::string>().empty()) return true;
  if ((value.is_array() || value.is_object()) && value.empty()) return true;
  return std::find(defaults.begin(), defaults.end(), value) != defaults.end();
}

// The key that is asked for, not there, and spelled almost so; "": none.
std::string Meant(const std::string& key, const std::set<std::string>& absent) {
  std::string nearest;
  size_t least = key.size() / 4 + 1;
  for (const std::string& other : absent) {
    if (std::max(key.size(), other.size()) - std::min(key.size(), other.size()) > 2) continue;
    const size_t distance = EditDistance(key, other);
    if (distance >= std::min<size_t>(least, 3)) continue;
    least = distance;
    nearest = other;
  }
  return nearest;
}

}  // namespace

std::vector<std::string> CheckUnread(absl::string_view architecture, bool is_decoder, ConfigReader* config) {
  std::vector<std::string> notes;
  const std::vector<std::string> unread = config->fields().Unread();
  std::set<std::string> absent = config->Asked();
  std::erase_if(absent, [&](const std::string& key) { return config->Has(key); });
  for (const std::string& key : unread) {
    const json* value = config->Find(key);
    if (value == nullptr || IsHarmless(key)) continue;
    if (const auto known = KnownKeys().find(key); is_decoder && known != KnownKeys().end()) {
      if (IsNeutral(*value, known->second.defaults)) continue;
      config->Wrong(key, absl::StrCat("absent or null for ", architecture, ", which has no such key (",
                                      absl::StrJoin(known->second.models, ", "), " read it)"));
    } else if (const std::string meant = Meant(key, absent); !meant.empty()) {
      config->Wrong(key, absl::StrCat("absent or null; ", Quoted(meant), " may be meant, which ", architecture,
                                      " reads and which is not there"));
    } else if (!IsNeutral(*value, {})) {
      notes.push_back(key);
    }
  }
  return notes;
}

}  // namespace llmc::hf
