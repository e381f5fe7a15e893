#include "runtime/text/bpe.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "runtime/text/byte_level.h"
#include "runtime/text/utf8.h"
#include "runtime/text/word_cache.h"

namespace llmc {
namespace {

// A merge waiting for its turn: the lowest rank first, then the leftmost.
struct Candidate {
  int32_t rank;
  int32_t position;
  int32_t id;
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

// Every space of a merge may be its cut, and each takes two lookups.
constexpr size_t kMaxSpacedMerge = 512;
// Encoding writes the prefix or suffix for every character.
constexpr size_t kMaxAffix = 64;
// Each place in a piece may be its cut, and takes two lookups.
constexpr size_t kMaxPieceBytes = size_t{1} << 10;
constexpr size_t kMaxAllPieceBytes = size_t{8} << 20;
// Up to so many symbols a scan for the best merge is faster than a queue.
constexpr size_t kFewSymbols = 48;
constexpr absl::string_view kSpaceMark = "\xE2\x96\x81";
constexpr int32_t kNoMerge = std::numeric_limits<int32_t>::max();

}  // namespace

absl::StatusOr<BpeModel> BpeModel::FromJson(const JsonNode& node) {
  BpeModel model;
  ASSIGN_OR_RETURN(const JsonNode vocab, node.Get("vocab"));
  ASSIGN_OR_RETURN(model.vocab_, ReadVocab(vocab));
  RETURN_IF_ERROR(model.ReadOptions(node));
  RETURN_IF_ERROR(model.ReadMerges(node));
  model.Prepare();
  return model;
}

absl::Status BpeModel::ReadOptions(const JsonNode& node) {
  const absl::optional<JsonNode> dropout = node.Find("dropout");
  if (dropout && !(dropout->value().is_number() && dropout->value().get<double>() == 0)) {
    return dropout->Unsupported("random dropout of merges is not supported; set it to null");
  }
  ASSIGN_OR_RETURN(options_.fuse_unknown, node.GetBool("fuse_unk", false));
  ASSIGN_OR_RETURN(options_.byte_fallback, node.GetBool("byte_fallback", false));
  ASSIGN_OR_RETURN(options_.ignore_merges, node.GetBool("ignore_merges", false));
  ASSIGN_OR_RETURN(options_.continuing_prefix, node.GetString("continuing_subword_prefix", ""));
  ASSIGN_OR_RETURN(options_.end_suffix, node.GetString("end_of_word_suffix", ""));
  if (std::max(options_.continuing_prefix.size(), options_.end_suffix.size()) > kMaxAffix) {
    return node.Error(absl::StrCat("a subword prefix or suffix of more than ", kMaxAffix, " bytes"));
  }
  const absl::optional<JsonNode> unknown = node.Find("unk_token");
  if (!unknown) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string token, unknown->AsString());
  options_.unknown_id = TokenId(token);
  if (!options_.unknown_id) return unknown->Error(absl::StrCat("token \"", token, "\" is not in model.vocab"));
  return absl::OkStatus();
}

absl::StatusOr<BpeModel> BpeModel::FromPieces(const std::vector<Piece>& pieces, const Options& options) {
  BpeModel model;
  model.options_ = options;
  size_t bytes = 0;
  for (size_t id = 0; id < pieces.size(); ++id) {
    const Piece& piece = pieces[id];
    if (piece.text.empty()) continue;
    bytes += piece.text.size();
    if (piece.text.size() > kMaxPieceBytes || bytes > kMaxAllPieceBytes) {
      return absl::InvalidArgumentError(absl::StrCat("token ", id, " is longer than ", kMaxPieceBytes,
                                                     " bytes, or all tokens together than ", kMaxAllPieceBytes));
    }
    const auto [other, is_new] = model.vocab_.try_emplace(piece.text, static_cast<int32_t>(id));
    if (!is_new) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokens ", other->second, " and ", id, " have the same text \"", piece.text, "\""));
    }
    if (piece.kind == Piece::kWhole) {
      RETURN_IF_ERROR(model.whole_.Add(piece.text, static_cast<int32_t>(id)));
      model.has_whole_ = true;
    }
  }
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].kind != Piece::kMerged) continue;
    RETURN_IF_ERROR(model.AddPieceMerges(pieces[id], static_cast<int32_t>(id)));
  }
  model.Prepare();
  return model;
}

absl::Status BpeModel::AddPieceMerges(const Piece& piece, int32_t id) {
  const absl::string_view text = piece.text;
  for (size_t begin = 0, bytes = 0; begin < text.size(); begin += bytes) {
    bytes = ReadUtf8(text.substr(begin)).bytes;
    if (!vocab_.contains(text.substr(begin, bytes))) {
      return absl::InvalidArgumentError(absl::StrCat("token ", id, " \"", text, "\" holds the character \"",
                                                     text.substr(begin, bytes), "\", which is no token itself"));
    }
    if (begin == 0) continue;
    const auto left = vocab_.find(text.substr(0, begin));
    if (left == vocab_.end()) continue;
    const auto right = vocab_.find(text.substr(begin));
    if (right != vocab_.end()) merges_[PairKey(left->second, right->second)] = {piece.rank, id};
  }
  return absl::OkStatus();
}

void BpeModel::Prepare() {
  if (options_.byte_fallback) {
    byte_ids_.resize(256);
    for (int b = 0; b < 256; ++b) byte_ids_[b] = TokenId(absl::StrFormat("<0x%02X>", b)).value_or(-1);
  }
  is_byte_level_ = options_.continuing_prefix.empty() && options_.end_suffix.empty() && !has_whole_;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    alphabet_ids_[b] = TokenId(BytesToAlphabet(absl::string_view(&byte, 1))).value_or(-1);
    is_byte_level_ = is_byte_level_ && alphabet_ids_[b] >= 0;
  }
  cuts_before_marks_ = !options_.ignore_merges && MarksBeginTokens();
  if (!is_byte_level_ || !options_.ignore_merges) return;
  for (const auto& [token, id] : vocab_) {
    std::string bytes = AlphabetToBytes(token);
    if (BytesToAlphabet(bytes) == token) words_.emplace(std::move(bytes), id);
  }
}

void BpeModel::HideTokens(const std::vector<bool>& special) {
  hidden_ = special;
  absl::erase_if(words_, [&](const auto& word) {
    return static_cast<size_t>(word.second) < special.size() && special[word.second];
  });
}

absl::Status BpeModel::ReadMerges(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode merges, node.Get("merges"));
  RETURN_IF_ERROR(merges.ExpectArray());
  merges_.reserve(merges.value().size());
  int32_t rank = 0;
  for (const nlohmann::json& entry : merges.value()) {
    absl::Status status;
    if (entry.is_string()) {
      status = AddTextMerge(merges, entry.get_ref<const std::string&>(), rank);
    } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
      status = AddMerge(merges, entry[0].get_ref<const std::string&>(), entry[1].get_ref<const std::string&>(), rank);
    } else {
      status = merges.Element(rank).Error("must be a string \"left right\" or an array [\"left\", \"right\"]");
    }
    if (!status.ok()) return status;
    ++rank;
  }
  return absl::OkStatus();
}

absl::Status BpeModel::AddTextMerge(const JsonNode& merges, absl::string_view text, int32_t rank) {
  const size_t space = text.find(' ');
  if (space != absl::string_view::npos && text.find(' ', space + 1) == absl::string_view::npos) {
    return AddMerge(merges, text.substr(0, space), text.substr(space + 1), rank);
  }
  if (text.size() > kMaxSpacedMerge) {
    return merges.Element(rank).Error("is too long to look for its cut; write it as [\"left\", \"right\"]");
  }
  // Tokens may hold spaces themselves: take the one cut that the vocabulary allows.
  absl::optional<size_t> cut;
  for (size_t at = space; at != absl::string_view::npos; at = text.find(' ', at + 1)) {
    if (!TokenId(text.substr(0, at)) || !TokenId(text.substr(at + 1))) continue;
    if (cut) return merges.Element(rank).Error("can be cut into two tokens of model.vocab in more than one way");
    cut = at;
  }
  if (!cut) return merges.Element(rank).Error("must be two tokens of model.vocab with one space between");
  return AddMerge(merges, text.substr(0, *cut), text.substr(*cut + 1), rank);
}

absl::Status BpeModel::AddMerge(const JsonNode& merges, absl::string_view left, absl::string_view right, int32_t rank) {
  const absl::optional<int32_t> left_id = TokenId(left);
  const absl::optional<int32_t> right_id = TokenId(right);
  for (const auto& [id, text] : {std::make_pair(left_id, left), std::make_pair(right_id, right)}) {
    if (!id) return merges.Element(rank).Error(absl::StrCat("token \"", text, "\" is not in model.vocab"));
  }
  const size_t cut = std::min(right.size(), options_.continuing_prefix.size());
  const std::string merged = absl::StrCat(left, right.substr(cut));
  const absl::optional<int32_t> id = TokenId(merged);
  if (!id) return merges.Element(rank).Error(absl::StrCat("the merged token \"", merged, "\" is not in model.vocab"));
  merges_[PairKey(*left_id, *right_id)] = {rank, *id};  // the last of equal pairs counts
  return absl::OkStatus();
}

const BpeModel::Merge* BpeModel::FindMerge(int32_t left, int32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

absl::Status BpeModel::Encode(absl::string_view word, std::vector<int32_t>* ids) const {
  if (!has_whole_) {
    EncodeWords(word, ids);
    return absl::OkStatus();
  }
  size_t done = 0;
  for (size_t at = 0; at < word.size();) {
    size_t longest = 0;
    int32_t whole = 0;
    whole_.ForEachPrefix(word.substr(at), [&](size_t length, int32_t id) {
      if (IsHidden(id)) return;
      longest = length;
      whole = id;
    });
    if (longest > 0) {
      EncodeWords(word.substr(done, at - done), ids);
      ids->push_back(whole);
      done = at + longest;
    }
    at += longest > 0 ? longest : ReadUtf8(word.substr(at)).bytes;
  }
  EncodeWords(word.substr(done), ids);
  return absl::OkStatus();
}

bool BpeModel::MarksBeginTokens() const {
  if (!options_.continuing_prefix.empty() || !options_.end_suffix.empty() || !TokenId(kSpaceMark)) return false;
  return std::all_of(vocab_.begin(), vocab_.end(), [](const auto& token) {
    absl::string_view text = token.first;
    while (absl::ConsumePrefix(&text, kSpaceMark)) {
    }
    return !absl::StrContains(text, kSpaceMark);
  });
}

void BpeModel::EncodeWords(absl::string_view text, std::vector<int32_t>* ids) const {
  if (!cuts_before_marks_) return EncodePart(text, ids);
  WordCache cache(text.size());
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    while (absl::StartsWith(text.substr(end), kSpaceMark)) end += kSpaceMark.size();
    end = std::min(text.find(kSpaceMark, end), text.size());
    cache.Append(text, begin, end, ids, [&](absl::string_view word) { EncodePart(word, ids); });
    begin = end;
  }
}

void BpeModel::EncodePart(absl::string_view word, std::vector<int32_t>* ids) const {
  if (word.empty()) return;
  if (options_.ignore_merges) {
    const absl::optional<int32_t> id = TokenId(word);
    if (id && !IsHidden(*id)) return ids->push_back(*id);
  }
  const std::vector<int32_t> characters = Characters(word);
  const size_t first = ids->size();
  ids->insert(ids->end(), characters.begin(), characters.end());
  MergeAll(first, ids);
}

void BpeModel::EncodeBytes(absl::string_view bytes, std::vector<int32_t>* ids) const {
  if (options_.ignore_merges) {
    if (const auto word = words_.find(bytes); word != words_.end()) return ids->push_back(word->second);
  }
  const size_t first = ids->size();
  ids->resize(first + bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) (*ids)[first + i] = alphabet_ids_[static_cast<uint8_t>(bytes[i])];
  MergeAll(first, ids);
}

std::vector<int32_t> BpeModel::Characters(absl::string_view word) const {
  std::vector<int32_t> ids;
  ids.reserve(word.size());
  bool unknown_waits = false;  // byte tokens overtake a waiting unknown token, as in the reference implementation
  std::string buffer;
  for (size_t at = 0; at < word.size();) {
    const size_t length = ReadUtf8(word.substr(at)).bytes;
    absl::string_view text = word.substr(at, length);
    const bool is_first = at == 0;
    at += length;
    if ((!is_first && !options_.continuing_prefix.empty()) || (at == word.size() && !options_.end_suffix.empty())) {
      buffer =
          absl::StrCat(is_first ? "" : options_.continuing_prefix, text, at == word.size() ? options_.end_suffix : "");
      text = buffer;
    }
    if (const auto it = vocab_.find(text); it != vocab_.end()) {
      if (unknown_waits) ids.push_back(*options_.unknown_id);
      unknown_waits = false;
      ids.push_back(it->second);
    } else if (!AppendBytes(text, &ids) && options_.unknown_id) {
      if (unknown_waits && !options_.fuse_unknown) ids.push_back(*options_.unknown_id);
      unknown_waits = true;
    }
  }
  if (unknown_waits) ids.push_back(*options_.unknown_id);
  return ids;
}

bool BpeModel::AppendBytes(absl::string_view text, std::vector<int32_t>* ids) const {
  if (byte_ids_.empty()) return false;
  for (const char c : text) {
    if (byte_ids_[static_cast<uint8_t>(c)] < 0) return false;
  }
  for (const char c : text) ids->push_back(byte_ids_[static_cast<uint8_t>(c)]);
  return true;
}

void BpeModel::MergeAll(size_t first, std::vector<int32_t>* ids) const {
  const size_t count = ids->size() - first;
  if (count < 2) return;
  if (count <= kFewSymbols) return MergeFew(first, ids);
  std::vector<Symbol> symbols(count);
  const auto last = static_cast<int32_t>(count) - 1;
  for (int32_t i = 0; i <= last; ++i)
    symbols[i] = {(*ids)[first + static_cast<size_t>(i)], i - 1, i < last ? i + 1 : -1};
  MergeMany(&symbols);
  ids->resize(first);
  for (int32_t i = 0; i >= 0; i = symbols[i].next) ids->push_back(symbols[i].id);
}

void BpeModel::MergeFew(size_t first, std::vector<int32_t>* ids) const {
  int32_t* symbols = ids->data() + first;
  size_t count = ids->size() - first;
  Merge merges[kFewSymbols];  // of each symbol with the next
  const auto look_up = [&](size_t left) {
    const Merge* merge = FindMerge(symbols[left], symbols[left + 1]);
    merges[left] = merge == nullptr ? Merge{kNoMerge, 0} : *merge;
  };
  for (size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) best = merges[i].rank < merges[best].rank ? i : best;
    if (merges[best].rank == kNoMerge) break;
    symbols[best] = merges[best].id;
    std::move(symbols + best + 2, symbols + count, symbols + best + 1);
    if (best + 2 < count) std::move(merges + best + 2, merges + count - 1, merges + best + 1);
    --count;
    if (best > 0) look_up(best - 1);
    if (best + 1 < count) look_up(best);
  }
  ids->resize(first + count);
}

void BpeModel::MergeMany(std::vector<Symbol>* symbols) const {
  std::vector<Symbol>& all = *symbols;
  std::vector<Candidate> initial;
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    const Merge* merge = FindMerge(all[i].id, all[i + 1].id);
    if (merge != nullptr) initial.push_back({merge->rank, static_cast<int32_t>(i), merge->id});
  }
  std::priority_queue<Candidate> queue(std::less<Candidate>(), std::move(initial));
  const auto push = [&](int32_t left) {
    if (left < 0 || all[left].next < 0) return;
    const Merge* merge = FindMerge(all[left].id, all[all[left].next].id);
    if (merge != nullptr) queue.push({merge->rank, left, merge->id});
  };
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = all[top.position];
    if (left.id < 0 || left.next < 0) continue;
    const int32_t removed = left.next;
    // The neighbours may have been merged since this candidate was queued.
    const Merge* merge = FindMerge(left.id, all[removed].id);
    if (merge == nullptr || merge->id != top.id) continue;
    left.id = top.id;
    left.next = all[removed].next;
    all[removed].id = -1;
    if (left.next >= 0) all[left.next].previous = top.position;
    push(left.previous);
    push(top.position);
  }
}

}  // namespace llmc
