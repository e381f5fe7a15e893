#include "frontend/huggingface/decoder_tower.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace llmc::hf {
namespace {

// What towers lack.
std::vector<std::string> Lacking(const DecoderSpec& decoder) {
  std::vector<std::string> lacking;
  const auto lacks = [&](bool has, const char* what) {
    if (has) lacking.emplace_back(what);
  };
  bool is_latent = false, has_alibi = false, has_sinks = false, is_long = false, sees_itself = false;
  for (const LayerSpec& layer : decoder.layers) {
    const auto* attention = std::get_if<AttentionSpec>(&layer.attention);
    is_latent |= attention == nullptr;
    has_alibi |= attention != nullptr && attention->has_alibi;
    has_sinks |= attention != nullptr && !attention->sinks.empty();
    sees_itself |= attention != nullptr && attention->window == 1;
  }
  for (const RopeSpec& rope : decoder.ropes) {
    const HfRopeType type = rope.parameters.type;
    is_long |= type == HfRopeType::kDynamic || type == HfRopeType::kLongRope;
  }
  lacks(is_latent, "latent attention");
  lacks(has_alibi, "biases by distance (ALiBi)");
  lacks(has_sinks, "attention sinks");
  lacks(sees_itself, "a window of one token");
  lacks(is_long, "rotations that depend on the length of the text (dynamic, longrope)");
  lacks(decoder.position_offset != 0, "learned positions that do not begin at 0");
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
