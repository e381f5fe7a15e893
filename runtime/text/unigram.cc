#include "runtime/text/unigram.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "runtime/text/utf8.h"

namespace llmc {
namespace {

constexpr double kUnknownPenalty = 10;

absl::StatusOr<UnigramModel::Piece> ReadPiece(const JsonNode& vocab, size_t index) {
  const nlohmann::json& entry = vocab.value()[index];
  if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
    return vocab.Element(index).Error("must be [\"token\", score]");
  }
  return UnigramModel::Piece{entry[0].get<std::string>(), entry[1].get<double>()};
}

}  // namespace

absl::StatusOr<UnigramModel> UnigramModel::FromJson(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode vocab, node.Get("vocab"));
  RETURN_IF_ERROR(vocab.ExpectArray());
  if (vocab.value().size() > static_cast<size_t>(kMaxTokenId) + 1) return vocab.Error("holds too many tokens");
  std::vector<Piece> pieces;
  pieces.reserve(vocab.value().size());
  for (size_t i = 0; i < vocab.value().size(); ++i) {
    ASSIGN_OR_RETURN(Piece piece, ReadPiece(vocab, i));
    pieces.push_back(std::move(piece));
  }
  Options options;
  if (const absl::optional<JsonNode> unknown = node.Find("unk_id")) {
    ASSIGN_OR_RETURN(const int64_t id, unknown->AsInt(0, kMaxTokenId));
    options.unknown_id = static_cast<int32_t>(id);
  }
  ASSIGN_OR_RETURN(const bool fallback, node.GetBool("byte_fallback", false));
  options.byte_fallback = fallback;
  absl::StatusOr<UnigramModel> model = FromPieces(std::move(pieces), options);
  if (!model.ok()) return node.Error(model.status().message());
  return model;
}

absl::StatusOr<UnigramModel> UnigramModel::FromPieces(std::vector<Piece> pieces, const Options& options) {
  UnigramModel model;
  if (options.unknown_id && static_cast<size_t>(*options.unknown_id) >= pieces.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unk_id is ", *options.unknown_id, ", but vocab holds ", pieces.size(), " tokens"));
  }
  double worst = std::numeric_limits<double>::infinity();
  // Where all are negative, as logarithms are, this stays nearly 0.
  model.best_score_ = std::numeric_limits<float>::min();
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (!std::isfinite(piece.score) || std::abs(piece.score) > std::numeric_limits<float>::max()) {
      return absl::InvalidArgumentError(absl::StrCat("the score of token ", i, " is not a finite number of 32 bits"));
    }
    model.vocab_[piece.text] = id;
    if (!piece.is_matched) continue;
    RETURN_IF_ERROR(model.trie_.Add(piece.text, id));
    if (piece.is_user_defined) continue;
    worst = std::min(worst, piece.score);
    model.best_score_ = std::max(model.best_score_, piece.score);
  }
  model.unknown_score_ = (std::isfinite(worst) ? worst : 0) - kUnknownPenalty;
  if (options.byte_fallback) {
    for (int b = 0; b < 256; ++b) {
      model.byte_ids_.push_back(model.TokenId(absl::StrFormat("<0x%02X>", b)).value_or(-1));
    }
  }
  for (const Piece& piece : pieces) model.scores_.push_back({piece.score, piece.is_user_defined});
  model.pieces_ = std::move(pieces);
  model.options_ = options;
  return model;
}

std::vector<UnigramModel::Best> UnigramModel::BestCuts(absl::string_view word) const {
  std::vector<Best> best(word.size() + 1);
  const auto offer = [&](size_t begin, size_t end, double token_score, int32_t id) {
    double score = token_score + best[begin].score;
    if (options_.as_sentencepiece) score = static_cast<float>(score);
    if (best[end].begin >= 0 && score <= best[end].score) return;
    best[end] = {score, static_cast<int32_t>(begin), id};
  };
  for (size_t at = 0; at < word.size();) {
    const size_t character = ReadUtf8(word.substr(at)).bytes;
    bool is_covered = false;
    trie_.ForEachPrefix(word.substr(at), [&](size_t length, int32_t id) {
      const Score& piece = scores_[id];
      if (piece.is_hidden) return;
      offer(at, at + length, piece.is_user_defined ? static_cast<double>(length) * best_score_ - 0.1 : piece.score, id);
      is_covered = is_covered || length == character;
    });
    if (!is_covered) offer(at, at + character, unknown_score_, -1);
    at += character;
  }
  return best;
}

absl::Status UnigramModel::Encode(absl::string_view word, std::vector<int32_t>* ids) const {
  if (word.empty()) return absl::OkStatus();
  const std::vector<Best> best = BestCuts(word);
  std::vector<std::pair<absl::string_view, int32_t>> tokens;  // from the last to the first
  for (size_t end = word.size(); end > 0;) {
    const auto begin = static_cast<size_t>(best[end].begin);
    const absl::string_view text = word.substr(begin, end - begin);
    const bool is_unknown = best[end].id < 0 || best[end].id == options_.unknown_id;
    if (is_unknown && !options_.unknown_id) return NotCovered(text);
    const int32_t id = is_unknown ? -1 : best[end].id;
    if (is_unknown && !tokens.empty() && tokens.back().second < 0) {
      tokens.back().first = word.substr(begin, text.size() + tokens.back().first.size());
    } else {
      tokens.emplace_back(text, id);
    }
    end = begin;
  }
  for (auto token = tokens.rbegin(); token != tokens.rend(); ++token) {
    if (token->second >= 0) {
      ids->push_back(token->second);
    } else {
      AppendUnknown(token->first, ids);
    }
  }
  return absl::OkStatus();
}

void UnigramModel::AppendUnknown(absl::string_view text, std::vector<int32_t>* ids) const {
  const auto has_token = [this](char c) { return byte_ids_[static_cast<uint8_t>(c)] >= 0; };
  // A run of characters that is a token as a whole, such as the unknown token spelled out.
  const absl::optional<int32_t> whole = options_.as_sentencepiece ? absl::nullopt : TokenId(text);
  if (whole && !scores_[*whole].is_hidden) return ids->push_back(*whole);
  if (byte_ids_.empty() || !std::all_of(text.begin(), text.end(), has_token)) {
    return ids->push_back(*options_.unknown_id);
  }
  for (const char c : text) ids->push_back(byte_ids_[static_cast<uint8_t>(c)]);
}

void UnigramModel::HideTokens(const std::vector<bool>& special) {
  for (size_t id = 0; id < std::min(special.size(), scores_.size()); ++id) scores_[id].is_hidden = special[id];
}

std::vector<std::pair<absl::string_view, int32_t>> UnigramModel::Tokens() const {
  std::vector<std::pair<absl::string_view, int32_t>> tokens;
  tokens.reserve(pieces_.size());
  for (const Piece& piece : pieces_) tokens.emplace_back(piece.text, static_cast<int32_t>(tokens.size()));
  return tokens;
}

}  // namespace llmc
