#include "frontend/huggingface/decoder_tower.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace llmc::hf {
namespace {

// What towers lack.
std::vector<std::string> Lacking(const DecoderSpec& decoder) {
  std::vector<std::string> lacking;
  const auto lacks = [&](const char* what, auto is_there) {
    const bool has = std::any_of(decoder.layers.begin(), decoder.layers.end(), [&](const LayerSpec& layer) {
      const auto* attention = std::get_if<AttentionSpec>(&layer.attention);
      return attention != nullptr && is_there(*attention);
    });
    if (has) lacking.emplace_back(what);
  };
  const bool is_latent = std::any_of(decoder.layers.begin(), decoder.layers.end(), [](const LayerSpec& layer) {
    return std::holds_alternative<LatentAttentionSpec>(layer.attention);
  });
  const bool is_by_length = std::any_of(decoder.ropes.begin(), decoder.ropes.end(), [](const RopeSpec& rope) {
    return rope.parameters.type == HfRopeType::kDynamic || rope.parameters.type == HfRopeType::kLongRope;
  });
  if (is_latent) lacking.emplace_back("latent attention");
  lacks("biases by distance (ALiBi)", [](const AttentionSpec& a) { return a.has_alibi; });
  lacks("attention sinks", [](const AttentionSpec& a) { return !a.sinks.empty(); });
  lacks("a window of one token", [](const AttentionSpec& a) { return a.window == 1; });
  lacks("attention in chunks", [](const AttentionSpec& a) { return a.chunk != 0; });
  lacks("a temperature of queries", [](const AttentionSpec& a) { return a.temperature != 0; });
  lacks("keys and values of other layers", [](const AttentionSpec& a) { return a.kv_layer.has_value(); });
  if (decoder.streams.has_value()) lacking.emplace_back("several streams of hidden states");
  if (is_by_length) lacking.emplace_back("rotations that depend on the length of the text (dynamic, longrope)");
  if (decoder.position_offset != 0) lacking.emplace_back("learned positions that do not begin at 0");
  return lacking;
}

TextInput InputOf(const DecoderSpec& decoder) {
  const bool has_positions = !decoder.positions.empty();
  TextInput in = {.vocab_size = decoder.vocab_size,
                  .max_positions = decoder.max_context,
                  .words = decoder.embedding,
                  .word_size = decoder.embedding_size == 0 ? decoder.hidden_size : decoder.embedding_size,
                  .scale = decoder.embedding_scale,
                  .scale_rounds = decoder.embedding_scale_rounds,
                  .position_kind = has_positions ? PositionKind::kPlace : PositionKind::kNone,
                  .positions = decoder.positions,
                  .position_rows = decoder.position_rows,
                  .norm = decoder.embedding_norm};
  if (decoder.embedding_size != 0) {
    in.projection = decoder.embedding_in;
    in.projects_before_norm = true;
  }
  return in;
}

// In a decoder a window counts the token's own key and those before it; in a tower, keys on either side.
int64_t SideOf(int64_t window, bool is_causal) { return is_causal ? window - 1 : window / 2; }

}  // namespace

absl::StatusOr<EncoderSpec> TowerOfDecoder(DecoderSpec decoder, const std::string& file) {
  if (const std::vector<std::string> lacking = Lacking(decoder); !lacking.empty()) {
    return absl::UnimplementedError(
        absl::StrCat(file, ": vectors of texts are not supported for a decoder with ", absl::StrJoin(lacking, ", ")));
  }
  EncoderSpec encoder = {.model = decoder.model, .prefix = decoder.prefix, .dtype = decoder.dtype};
  TowerSpec tower = {.hidden_size = decoder.hidden_size,
                     .input = InputOf(decoder),
                     .ropes = std::move(decoder.ropes),
                     .layers = std::move(decoder.layers),
                     .is_causal = decoder.is_causal,
                     .norm = decoder.norm};
  for (LayerSpec& layer : tower.layers) {
    auto& attention = std::get<AttentionSpec>(layer.attention);
    if (attention.window == 0) continue;
    attention.window = SideOf(attention.window, decoder.is_causal);
  }
  encoder.text = std::move(tower);
  encoder.unused = std::move(decoder.unused);
  for (const char* part : {".weight", ".bias"}) {
    encoder.unused.names.emplace_back(decoder.head.module + part, "the head that gives tokens");
  }
  return encoder;
}

}  // namespace llmc::hf
