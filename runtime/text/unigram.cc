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

// The best cuts of a text, as far as they are still open: up to a position that no token reaches across, every cut goes
// on from there, so that what lies before is decided. Such positions are at nearly every word, and so few cuts are
// kept.
class UnigramModel::Search {
 public:
  Search(const UnigramModel& model, absl::string_view word, std::vector<int32_t>* ids)
      : model_(model), word_(word), ids_(*ids), best_(1) {}

  absl::Status Run() {
    for (size_t at = 0; at < word_.size();) {
      if (at == farthest_) RETURN_IF_ERROR(Decide(at));
      const auto first = static_cast<uint8_t>(word_[at]);
      const size_t character = first < 0x80 ? 1 : ReadUtf8(word_.substr(at)).bytes;
      const double score = best_[at - base_].score;
      bool is_covered = false;
      model_.trie_.ForEachPrefix(word_.substr(at), [&](size_t length, int32_t id) {
        const Score& piece = model_.scores_[static_cast<size_t>(id)];
        if (piece.is_hidden) return;
        const double own = piece.is_user_defined ? static_cast<double>(length) * model_.best_score_ - 0.1 : piece.score;
        Offer(at, at + length, score + own, id);
        is_covered = is_covered || length == character;
      });
      if (!is_covered) Offer(at, at + character, score + model_.unknown_score_, -1);
      at += character;
    }
    RETURN_IF_ERROR(Decide(word_.size()));
    EndUnknown();
    return absl::OkStatus();
  }

 private:
  // The best cut of the text up to some position.
  struct Best {
    double score = 0;
    int32_t begin = -1;  // of its last token; -1: no cut ends here
    int32_t id = 0;
  };

  void Offer(size_t begin, size_t end, double score, int32_t id) {
    if (end > farthest_) {
      farthest_ = end;
      best_.resize(end - base_ + 1);
    }
    if (model_.options_.as_sentencepiece) score = static_cast<float>(score);
    Best& best = best_[end - base_];
    if (best.begin >= 0 && score <= best.score) return;
    best = {score, static_cast<int32_t>(begin), id};
  }

  // Every cut goes through `end`.
  absl::Status Decide(size_t end) {
    ends_.clear();
    for (size_t at = end; at > base_; at = static_cast<size_t>(best_[at - base_].begin)) ends_.push_back(at);
    for (auto at = ends_.rbegin(); at != ends_.rend(); ++at) {
      const Best& token = best_[*at - base_];
      if (token.id >= 0 && token.id != model_.options_.unknown_id) {
        EndUnknown();
        ids_.push_back(token.id);
        continue;
      }
      const auto begin = static_cast<size_t>(token.begin);
      if (!model_.options_.unknown_id) return model_.NotCovered(word_.substr(begin, *at - begin));
      if (unknown_begin_ == unknown_end_) unknown_begin_ = begin;
      unknown_end_ = *at;
    }
    best_[0] = best_[end - base_];
    best_.resize(1);
    base_ = end;
    return absl::OkStatus();
  }

  // A run of unknown characters is one token.
  void EndUnknown() {
    if (unknown_begin_ == unknown_end_) return;
    model_.AppendUnknown(word_.substr(unknown_begin_, unknown_end_ - unknown_begin_), &ids_);
    unknown_begin_ = unknown_end_;
  }

  const UnigramModel& model_;
  const absl::string_view word_;
  std::vector<int32_t>& ids_;
  std::vector<Best> best_;    // by position from base_ on
  std::vector<size_t> ends_;  // of tokens that are decided, the last first
  size_t base_ = 0, farthest_ = 0;
  size_t unknown_begin_ = 0, unknown_end_ = 0;
};

absl::Status UnigramModel::Encode(absl::string_view word, std::vector<int32_t>* ids) const {
  return Search(*this, word, ids).Run();
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
