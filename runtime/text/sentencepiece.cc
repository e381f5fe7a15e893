// SentencePiece's tokenizer.model: the message ModelProto of sentencepiece_model.proto, whose numbers of fields and
// defaults stand here.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/text/bpe.h"
#include "runtime/text/protobuf_wire.h"
#include "runtime/text/sentencepiece_steps.h"
#include "runtime/text/tiktoken.h"
#include "runtime/text/tokenizer_formats.h"
#include "runtime/text/unigram.h"
#include "runtime/text/utf8.h"

namespace llmc {
namespace {

enum PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
enum ModelType { kUnigram = 1, kBpe = 2, kChar = 4 };

struct PieceProto {
  std::string text;
  float score = 0;
  int32_t type = kNormal;
  bool takes_space = false;  // before it, where it is spelled out
};

struct ModelProto {
  std::vector<PieceProto> pieces;
  int32_t model_type = kUnigram;
  bool byte_fallback = false;
  int32_t bos_id = 1;
  int32_t eos_id = 2;
  std::string unknown_surface = " \xE2\x81\x87 ";
  SentencePieceSpec spec;
  bool denormalizes = false;
};

// Calls visit(field), which gives a status, for each field of the message.
template <typename Visit>
absl::Status ForEachField(absl::string_view message, Visit visit) {
  WireReader reader(message);
  WireField field;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, reader.Next(&field));
    if (!more) return absl::OkStatus();
    RETURN_IF_ERROR(visit(field));
  }
}

absl::Status ReadPieceProto(absl::string_view message, ModelProto* model) {
  const size_t id = model->pieces.size();
  if (id > static_cast<size_t>(kMaxTokenId)) return absl::InvalidArgumentError("has too many pieces");
  PieceProto piece;
  RETURN_IF_ERROR(ForEachField(message, [&](const WireField& field) {
    if (field.number == 1) piece.text = std::string(field.AsBytes());
    if (field.number == 2) piece.score = field.AsFloat();
    if (field.number == 3) piece.type = field.AsInt();
    return absl::OkStatus();
  }));
  if (piece.text.empty() || !IsValidUtf8(piece.text)) {
    return absl::InvalidArgumentError(absl::StrCat("piece ", id, " is empty or not UTF-8"));
  }
  if (piece.type < kNormal || piece.type > kByte) {
    return absl::UnimplementedError(absl::StrCat("piece ", id, " has the unknown type ", piece.type));
  }
  model->pieces.push_back(std::move(piece));
  return absl::OkStatus();
}

absl::Status ReadTrainerSpec(absl::string_view message, ModelProto* model) {
  return ForEachField(message, [&](const WireField& field) {
    if (field.number == 3) model->model_type = field.AsInt();
    if (field.number == 24) model->spec.treat_whitespace_as_suffix = field.AsBool();
    if (field.number == 35) model->byte_fallback = field.AsBool();
    if (field.number == 41) model->bos_id = field.AsInt();
    if (field.number == 42) model->eos_id = field.AsInt();
    if (field.number == 44) model->unknown_surface = RepairUtf8(field.AsBytes());
    return absl::OkStatus();
  });
}

absl::Status ReadNormalizerSpec(absl::string_view message, ModelProto* model) {
  SentencePieceSpec& spec = model->spec;
  return ForEachField(message, [&](const WireField& field) -> absl::Status {
    if (field.number == 2) {
      ASSIGN_OR_RETURN(spec.chars_map, CharsMap::FromBytes(field.AsBytes()));
    }
    if (field.number == 3) spec.add_dummy_prefix = field.AsBool();
    if (field.number == 4) spec.remove_extra_whitespaces = field.AsBool();
    if (field.number == 5) spec.escape_whitespaces = field.AsBool();
    return absl::OkStatus();
  });
}

absl::Status ReadModelProto(absl::string_view message, ModelProto* model) {
  return ForEachField(message, [&](const WireField& field) -> absl::Status {
    if (field.number == 1) return ReadPieceProto(field.AsBytes(), model);
    if (field.number == 2) return ReadTrainerSpec(field.AsBytes(), model);
    if (field.number == 3) return ReadNormalizerSpec(field.AsBytes(), model);
    if (field.number != 5) return absl::OkStatus();
    return ForEachField(field.AsBytes(), [&](const WireField& inner) {
      model->denormalizes = model->denormalizes || (inner.number == 2 && !inner.AsBytes().empty());
      return absl::OkStatus();
    });
  });
}

// What no tokenizer may have, whatever its model.
absl::Status CheckPieces(const ModelProto& model) {
  absl::flat_hash_map<absl::string_view, size_t> ids;
  int bytes = 0, unknown = 0;
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const PieceProto& piece = model.pieces[id];
    const auto [other, is_new] = ids.try_emplace(piece.text, id);
    if (!is_new) {
      return absl::InvalidArgumentError(
          absl::StrCat("pieces ", other->second, " and ", id, " have the same text \"", piece.text, "\""));
    }
    if (!std::isfinite(piece.score)) {
      return absl::InvalidArgumentError(absl::StrCat("the score of piece ", id, " is not a finite number"));
    }
    bytes += piece.type == kByte ? 1 : 0;
    unknown += piece.type == kUnknown ? 1 : 0;
  }
  if (unknown != 1) return absl::InvalidArgumentError(absl::StrCat("has ", unknown, " unknown pieces, not one"));
  if (model.byte_fallback && bytes != 256) {
    return absl::InvalidArgumentError(absl::StrCat("falls back to bytes, but has ", bytes, " of 256"));
  }
  if (model.denormalizes) return absl::UnimplementedError("a denormalizer is not supported");
  return absl::OkStatus();
}

absl::optional<int32_t> UnknownId(const ModelProto& model) {
  const auto it = std::find_if(model.pieces.begin(), model.pieces.end(),
                               [](const PieceProto& piece) { return piece.type == kUnknown; });
  return static_cast<int32_t>(it - model.pieces.begin());
}

// A model of single characters is BPE in which nothing merges.
absl::StatusOr<std::unique_ptr<TokenModel>> MakeBpe(const ModelProto& model) {
  // Equal scores have equal ranks: then the leftmost pair merges first.
  std::vector<float> scores;
  for (const PieceProto& piece : model.pieces) scores.push_back(-piece.score);
  std::sort(scores.begin(), scores.end());
  std::vector<BpeModel::Piece> pieces;
  for (const PieceProto& piece : model.pieces) {
    if (piece.type == kUnused) return absl::UnimplementedError("unused pieces in a BPE model are not supported");
    const auto rank = std::lower_bound(scores.begin(), scores.end(), -piece.score) - scores.begin();
    const bool is_merged = piece.type == kNormal && model.model_type == kBpe;
    const auto kind = is_merged                    ? BpeModel::Piece::kMerged
                      : piece.type == kUserDefined ? BpeModel::Piece::kWhole
                                                   : BpeModel::Piece::kUnmade;
    pieces.push_back({piece.text, static_cast<int32_t>(rank), kind});
  }
  absl::StatusOr<BpeModel> bpe = BpeModel::FromPieces(
      pieces, {.unknown_id = UnknownId(model), .byte_fallback = model.byte_fallback, .fuse_unknown = true});
  if (!bpe.ok()) return bpe.status();
  return std::make_unique<BpeModel>(*std::move(bpe));
}

absl::StatusOr<std::unique_ptr<TokenModel>> MakeUnigram(const ModelProto& model) {
  std::vector<UnigramModel::Piece> pieces;
  for (const PieceProto& piece : model.pieces) {
    const bool is_user_defined = piece.type == kUserDefined;
    pieces.push_back({piece.text, piece.score, piece.type == kNormal || is_user_defined, is_user_defined});
  }
  absl::StatusOr<UnigramModel> unigram = UnigramModel::FromPieces(
      std::move(pieces),
      {.unknown_id = UnknownId(model), .byte_fallback = model.byte_fallback, .as_sentencepiece = true});
  if (!unigram.ok()) return unigram.status();
  return std::make_unique<UnigramModel>(*std::move(unigram));
}

absl::StatusOr<std::unique_ptr<TokenModel>> MakeModel(const ModelProto& model) {
  RETURN_IF_ERROR(CheckPieces(model));
  if (model.model_type == kBpe || model.model_type == kChar) return MakeBpe(model);
  if (model.model_type == kUnigram) return MakeUnigram(model);
  return absl::UnimplementedError(
      absl::StrCat("model type ", model.model_type, " is not supported, only Unigram (1), BPE (2) and Char (4) are"));
}

Decoder DecoderOf(const ModelProto& model) {
  const SentencePieceSpec& spec = model.spec;
  SentencePieceDecoding decoding;
  decoding.drops_first_space = spec.add_dummy_prefix || spec.remove_extra_whitespaces;
  decoding.drops_all_first_spaces = spec.remove_extra_whitespaces;
  decoding.has_bytes = model.byte_fallback;
  decoding.unknown = model.pieces[static_cast<size_t>(*UnknownId(model))].text;
  decoding.unknown_surface = model.unknown_surface;
  return Decoder::FromStage([decoding] { return NewSentencePieceStage(decoding); });
}

// Without tokenizer_config.json: BPE models (Llama, Mistral) begin texts with the begin token, those that have none
// (T5) end them with the end token, and those with [CLS] and [SEP] (DeBERTa-v2) put these around.
void FillSettings(const ModelProto& model, TokenizerConfig* settings) {
  const auto control = [&](int32_t id) -> absl::optional<std::string> {
    if (id < 0 || static_cast<size_t>(id) >= model.pieces.size()) return absl::nullopt;
    const PieceProto& piece = model.pieces[static_cast<size_t>(id)];
    return piece.type == kControl ? absl::make_optional(piece.text) : absl::nullopt;
  };
  const auto is_control = [&](const char* text) {
    return std::any_of(model.pieces.begin(), model.pieces.end(),
                       [&](const PieceProto& piece) { return piece.type == kControl && piece.text == text; });
  };
  if (is_control("[CLS]") && is_control("[SEP]")) {
    settings->bos_token = "[CLS]";
    settings->eos_token = "[SEP]";
    for (absl::optional<bool>* adds : {&settings->add_bos_token, &settings->add_eos_token})
      *adds = adds->value_or(true);
    return;
  }
  const absl::optional<std::string> begin = control(model.bos_id);
  if (!settings->bos_token) settings->bos_token = begin;
  if (!settings->eos_token) settings->eos_token = control(model.eos_id);
  if (!settings->add_bos_token) settings->add_bos_token = begin.has_value() && model.model_type == kBpe;
  if (!settings->add_eos_token) settings->add_eos_token = !begin.has_value();
}

// fairseq's numbers, as XLM-R has them: four special tokens of its own, then the file's pieces without its own three
// (unknown, begin, end), then <mask>.
absl::Status NumberAsFairseq(ModelProto* model) {
  constexpr size_t kOwn = 3;
  std::vector<PieceProto>& pieces = model->pieces;
  const auto is_own = [](const PieceProto& piece) { return piece.type == kUnknown || piece.type == kControl; };
  if (pieces.size() < kOwn || !std::all_of(pieces.begin(), pieces.begin() + kOwn, is_own)) {
    return absl::InvalidArgumentError(
        "XLM-R's tokenizer needs a file whose first three pieces are <unk>, <s> and </s>");
  }
  pieces.erase(pieces.begin(), pieces.begin() + kOwn);
  const std::vector<PieceProto> first = {
      {"<s>", 0, kControl}, {"<pad>", 0, kControl}, {"</s>", 0, kControl}, {"<unk>", 0, kUnknown}};
  pieces.insert(pieces.begin(), first.begin(), first.end());
  pieces.push_back({"<mask>", 0, kControl, /*takes_space=*/true});
  model->bos_id = 0;
  model->eos_id = 2;
  return absl::OkStatus();
}

// What a class of transformers makes of the file, if it is not the file's own tokenizer.
struct PieceClass {
  const char* name;
  absl::Status (*renumber)(ModelProto* model);  // nullptr: its numbers of pieces are not known here
};
constexpr PieceClass kPieceClasses[] = {{"XLMRobertaTokenizer", NumberAsFairseq},
                                        {"AlbertTokenizer", nullptr},
                                        {"BarthezTokenizer", nullptr},
                                        {"BigBirdTokenizer", nullptr},
                                        {"CamembertTokenizer", nullptr},
                                        {"M2M100Tokenizer", nullptr},
                                        {"MBart50Tokenizer", nullptr},
                                        {"MBartTokenizer", nullptr},
                                        {"MarianTokenizer", nullptr},
                                        {"NllbTokenizer", nullptr},
                                        {"PLBartTokenizer", nullptr},
                                        {"PegasusTokenizer", nullptr},
                                        {"XGLMTokenizer", nullptr},
                                        {"XLNetTokenizer", nullptr}};

absl::Status ApplyClass(const TokenizerInput& input, ModelProto* model, TokenizerConfig* settings) {
  ASSIGN_OR_RETURN(const std::string name, input.Class(""));
  const auto* const known = std::find_if(std::begin(kPieceClasses), std::end(kPieceClasses),
                                         [&](const PieceClass& row) { return row.name == name; });
  if (known == std::end(kPieceClasses)) return absl::OkStatus();
  if (known->renumber == nullptr) {
    return absl::UnimplementedError(absl::StrCat("how tokenizer_class \"", name,
                                                 "\" numbers the pieces of the file is not known here; save the "
                                                 "tokenizer as tokenizer.json"));
  }
  for (absl::optional<bool>* adds : {&settings->add_bos_token, &settings->add_eos_token}) *adds = adds->value_or(true);
  return known->renumber(model);
}

absl::Status ReadSentencePiece(const TokenizerInput& input, TokenizerParts* parts, TokenizerConfig* settings) {
  const auto named = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(input.NameOf(input.main->name), ": ", status.message()));
  };
  ModelProto model;
  if (absl::Status status = ReadModelProto(input.main->text, &model); !status.ok()) return named(status);
  if (absl::Status status = ApplyClass(input, &model, settings); !status.ok()) return named(status);
  absl::StatusOr<std::unique_ptr<TokenModel>> token_model = MakeModel(model);
  if (!token_model.ok()) return named(token_model.status());
  nlohmann::json controls = nlohmann::json::array();
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const PieceProto& piece = model.pieces[id];
    if (piece.type == kControl) {
      controls.push_back(AddedTokenJson(static_cast<int32_t>(id), piece.text, /*special=*/true));
      controls.back()["lstrip"] = piece.takes_space;
    } else if (piece.type == kUserDefined) {
      RETURN_IF_ERROR(model.spec.symbols.Add(piece.text, static_cast<int32_t>(id)));
      parts->symbols.insert(static_cast<int32_t>(id));
    }
  }
  ASSIGN_OR_RETURN(const nlohmann::json added, input.AddedTokens(std::move(controls)));
  FillSettings(model, settings);
  parts->decoder = DecoderOf(model);
  parts->normalizer = NewSentencePieceNormalizer(std::move(model.spec));
  const nlohmann::json steps = {{"added_tokens", added}};
  return parts->Read(JsonNode(&steps, input.NameOf(input.main->name), ""), *std::move(token_model));
}

}  // namespace

// Mistral's files have a version behind: tokenizer.model.v3.
const TokenizerFormat kSentencePieceFormat = {
    [](absl::string_view name, absl::string_view text) {
      return (absl::EndsWith(name, ".model") || absl::StrContains(name, ".model.v")) && !LooksLikeRanks(text);
    },
    ReadSentencePiece,
    {"added_tokens.json"}};

}  // namespace llmc
