#include "runtime/text/bpe.h"

#include <algorithm>
#include <queue>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "runtime/text/utf8.h"

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

}  // namespace

absl::StatusOr<BpeModel> BpeModel::FromJson(const JsonNode& node) {
  BpeModel model;
  for (const auto read : {&BpeModel::ReadVocab, &BpeModel::ReadOptions, &BpeModel::ReadMerges}) {
    RETURN_IF_ERROR((model.*read)(node));
  }
  return model;
}

absl::Status BpeModel::ReadVocab(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode vocab, node.Get("vocab"));
  RETURN_IF_ERROR(vocab.ExpectObject());
  vocab_.reserve(vocab.value().size());
  absl::flat_hash_map<int32_t, absl::string_view> owners;
  owners.reserve(vocab.value().size());
  for (const auto& item : vocab.value().items()) {
    const nlohmann::json& value = item.value();
    // The path is only spelled out for errors: this loop runs for every token.
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kMaxTokenId) {
      return vocab.Error(absl::StrCat("the id of token \"", item.key(), "\" must be an integer from 0 to ", kMaxTokenId,
                                      ", is ", value.dump().substr(0, 40)));
    }
    const int32_t id = value.get<int32_t>();
    const auto [owner, is_new] = owners.try_emplace(id, item.key());
    if (!is_new) {
      return vocab.Error(absl::StrCat("tokens \"", owner->second, "\" and \"", item.key(), "\" have the same id ", id));
    }
    vocab_.emplace(item.key(), id);
  }
  return absl::OkStatus();
}

absl::Status BpeModel::ReadOptions(const JsonNode& node) {
  const absl::optional<JsonNode> dropout = node.Find("dropout");
  if (dropout && !(dropout->value().is_number() && dropout->value().get<double>() == 0)) {
    return dropout->Unsupported("random dropout of merges is not supported; set it to null");
  }
  const absl::StatusOr<bool> fuse = node.GetBool("fuse_unk", false);
  const absl::StatusOr<bool> fallback = node.GetBool("byte_fallback", false);
  const absl::StatusOr<bool> ignore = node.GetBool("ignore_merges", false);
  const absl::StatusOr<std::string> prefix = node.GetString("continuing_subword_prefix", "");
  const absl::StatusOr<std::string> suffix = node.GetString("end_of_word_suffix", "");
  for (const absl::Status& status :
       {fuse.status(), fallback.status(), ignore.status(), prefix.status(), suffix.status()}) {
    if (!status.ok()) return status;
  }
  if (std::max(prefix->size(), suffix->size()) > kMaxAffix) {
    return node.Error(absl::StrCat("a subword prefix or suffix of more than ", kMaxAffix, " bytes"));
  }
  fuse_unknown_ = *fuse;
  ignore_merges_ = *ignore;
  continuing_prefix_ = *prefix;
  end_suffix_ = *suffix;
  if (*fallback) {
    byte_ids_.resize(256);
    for (int b = 0; b < 256; ++b) byte_ids_[b] = TokenId(absl::StrFormat("<0x%02X>", b)).value_or(-1);
  }
  const absl::optional<JsonNode> unknown = node.Find("unk_token");
  if (!unknown) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string token, unknown->AsString());
  unknown_id_ = TokenId(token);
  if (!unknown_id_) return unknown->Error(absl::StrCat("token \"", token, "\" is not in model.vocab"));
  return absl::OkStatus();
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
  const size_t cut = std::min(right.size(), continuing_prefix_.size());
  const std::string merged = absl::StrCat(left, right.substr(cut));
  const absl::optional<int32_t> id = TokenId(merged);
  if (!id) return merges.Element(rank).Error(absl::StrCat("the merged token \"", merged, "\" is not in model.vocab"));
  merges_[{*left_id, *right_id}] = {rank, *id};  // the last of equal pairs counts
  return absl::OkStatus();
}

absl::optional<int32_t> BpeModel::TokenId(absl::string_view token) const {
  const auto it = vocab_.find(token);
  if (it == vocab_.end()) return absl::nullopt;
  return it->second;
}

const BpeModel::Merge* BpeModel::FindMerge(int32_t left, int32_t right) const {
  const auto it = merges_.find({left, right});
  return it == merges_.end() ? nullptr : &it->second;
}

void BpeModel::Encode(absl::string_view word, std::vector<int32_t>* ids) const {
  if (word.empty()) return;
  if (ignore_merges_) {
    if (const auto id = TokenId(word)) return ids->push_back(*id);
  }
  const std::vector<int32_t> characters = Characters(word);
  const int32_t count = static_cast<int32_t>(characters.size());
  if (count == 0) return;
  std::vector<Symbol> symbols(characters.size());
  for (int32_t i = 0; i < count; ++i) symbols[i] = {characters[i], i - 1, i + 1 < count ? i + 1 : -1};
  MergeAll(&symbols);
  for (int32_t i = 0; i >= 0; i = symbols[i].next) ids->push_back(symbols[i].id);
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
    if ((!is_first && !continuing_prefix_.empty()) || (at == word.size() && !end_suffix_.empty())) {
      buffer = absl::StrCat(is_first ? "" : continuing_prefix_, text, at == word.size() ? end_suffix_ : "");
      text = buffer;
    }
    if (const auto it = vocab_.find(text); it != vocab_.end()) {
      if (unknown_waits) ids.push_back(*unknown_id_);
      unknown_waits = false;
      ids.push_back(it->second);
    } else if (!AppendBytes(text, &ids) && unknown_id_) {
      if (unknown_waits && !fuse_unknown_) ids.push_back(*unknown_id_);
      unknown_waits = true;
    }
  }
  if (unknown_waits) ids.push_back(*unknown_id_);
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

void BpeModel::MergeAll(std::vector<Symbol>* symbols) const {
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
