#include "runtime/text/post_processor.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/text/model.h"

namespace llmc {
namespace {

constexpr size_t kMaxTemplateIds = 1024;
constexpr int64_t kMaxTypeId = 255;

// Appends the ids of special token `id` of a template.
absl::Status AppendTemplateToken(const JsonNode& processor, const std::string& id, std::vector<int32_t>* ids) {
  ASSIGN_OR_RETURN(const JsonNode tokens, processor.Get("special_tokens"));
  ASSIGN_OR_RETURN(const JsonNode token, tokens.Get(id));
  ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, token.GetArray("ids"));
  for (const JsonNode& element : elements) {
    ASSIGN_OR_RETURN(const int64_t number, element.AsInt(0, kMaxTokenId));
    if (ids->size() == kMaxTemplateIds)
      return token.Error(absl::StrCat("the template adds more than ", kMaxTemplateIds, " ids"));
    ids->push_back(static_cast<int32_t>(number));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PostProcessor> PostProcessor::FromJson(const JsonNode& node) {
  PostProcessor processor;
  RETURN_IF_ERROR(processor.Read(node));
  return processor;
}

void PostProcessor::AddSpecialTokens(bool repeat_first, std::vector<int32_t>* ids) const {
  const bool is_there = ids->size() >= before_.size() && std::equal(before_.begin(), before_.end(), ids->begin());
  if (repeat_first || !is_there) ids->insert(ids->begin(), before_.begin(), before_.end());
  ids->insert(ids->end(), after_.begin(), after_.end());
}

absl::StatusOr<TypedTokens> PostProcessor::Join(absl::Span<const int32_t> first,
                                                absl::Span<const int32_t> second) const {
  if (!of_two_is_known_) {
    return absl::UnimplementedError("the tokenizer's files do not say which special tokens stand around two texts");
  }
  const std::vector<Piece> plain = {{Piece::kFirst}, {Piece::kSecond, {}, 1}};
  TypedTokens joined;
  for (const Piece& piece : of_two_.empty() ? plain : of_two_) {
    const absl::Span<const int32_t> ids = piece.kind == Piece::kFirst    ? first
                                          : piece.kind == Piece::kSecond ? second
                                                                         : piece.ids;
    joined.ids.insert(joined.ids.end(), ids.begin(), ids.end());
    joined.types.resize(joined.ids.size(), piece.type);
  }
  return joined;
}

void PostProcessor::SetOfTwo(std::vector<Piece> pieces) {
  of_two_is_known_ = of_two_is_known_ && of_two_.empty();
  of_two_ = std::move(pieces);
}

void PostProcessor::SetFirst(int32_t id, bool added) {
  of_two_is_known_ = of_two_is_known_ && (std::count(before_.begin(), before_.end(), id) > 0) == added;
  if (!added) before_.erase(std::remove(before_.begin(), before_.end(), id), before_.end());
  if (added && std::count(before_.begin(), before_.end(), id) == 0) before_.insert(before_.begin(), id);
}

void PostProcessor::SetLast(int32_t id, bool added) {
  of_two_is_known_ = of_two_is_known_ && (std::count(after_.begin(), after_.end(), id) > 0) == added;
  if (!added) after_.erase(std::remove(after_.begin(), after_.end(), id), after_.end());
  if (added && std::count(after_.begin(), after_.end(), id) == 0) after_.push_back(id);
}

std::vector<int32_t> PostProcessor::Ids() const {
  std::vector<int32_t> ids = before_;
  ids.insert(ids.end(), after_.begin(), after_.end());
  for (const Piece& piece : of_two_) ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
  return ids;
}

absl::Status PostProcessor::Read(const JsonNode& node) {
  ASSIGN_OR_RETURN(const std::string type, node.GetString("type"));
  if (type == "TemplateProcessing") return ReadTemplate(node);
  if (type == "RobertaProcessing" || type == "BertProcessing") return ReadEnds(node, type == "RobertaProcessing");
  if (type == "ByteLevel") return absl::OkStatus();  // changes offsets only
  if (type == "Sequence") return ReadSequence(node);
  return node.Unsupported(absl::StrCat("post-processor \"", type, "\" is not supported"));
}

absl::Status PostProcessor::ReadTemplate(const JsonNode& node) {
  ASSIGN_OR_RETURN(const std::vector<JsonNode> pieces, node.GetArray("single"));
  std::vector<int32_t> before, after;
  int sequences = 0;
  for (const JsonNode& piece : pieces) {
    if (const auto sequence = piece.Find("Sequence")) {
      ASSIGN_OR_RETURN(const std::string id, sequence->GetString("id"));
      if (id != "A") return sequence->Error("the template of a single text can only name sequence A");
      ++sequences;
      continue;
    }
    ASSIGN_OR_RETURN(const JsonNode special, piece.Get("SpecialToken"));
    ASSIGN_OR_RETURN(const std::string id, special.GetString("id"));
    absl::Status status = AppendTemplateToken(node, id, sequences == 0 ? &before : &after);
    if (!status.ok()) return status;
  }
  if (sequences != 1) return node.Error("\"single\" must name sequence A exactly once");
  before_.insert(before_.begin(), before.begin(), before.end());
  after_.insert(after_.end(), after.begin(), after.end());
  return ReadTemplateOfTwo(node);
}

absl::Status PostProcessor::ReadTemplateOfTwo(const JsonNode& node) {
  if (!node.Find("pair")) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, node.GetArray("pair"));
  std::vector<Piece> pieces;
  int firsts = 0, seconds = 0;
  std::vector<int32_t> all;
  for (const JsonNode& element : elements) {
    const auto sequence = element.Find("Sequence");
    ASSIGN_OR_RETURN(const JsonNode part, sequence ? *sequence : element.Get("SpecialToken"));
    ASSIGN_OR_RETURN(const std::string id, part.GetString("id"));
    ASSIGN_OR_RETURN(const int64_t type, part.Find("type_id") ? part.GetInt("type_id", 0, kMaxTypeId) : 0);
    Piece piece{.type = static_cast<int32_t>(type)};
    if (!sequence) {
      const size_t before = all.size();
      RETURN_IF_ERROR(AppendTemplateToken(node, id, &all));
      piece.ids.assign(all.begin() + static_cast<int64_t>(before), all.end());
    } else if (id == "A" || id == "B") {
      piece.kind = id == "A" ? Piece::kFirst : Piece::kSecond;
      ++(id == "A" ? firsts : seconds);
    } else {
      return sequence->Error("the template of two texts can only name the sequences A and B");
    }
    pieces.push_back(std::move(piece));
  }
  SetOfTwo(std::move(pieces));
  of_two_is_known_ = of_two_is_known_ && firsts == 1 && seconds == 1;
  return absl::OkStatus();
}

// [CLS] and [SEP] of BERT, or <s> and </s> of RoBERTa, which puts two of the latter between texts.
absl::Status PostProcessor::ReadEnds(const JsonNode& node, bool is_roberta) {
  std::vector<int32_t> ends;
  for (const char* key : {"cls", "sep"}) {
    ASSIGN_OR_RETURN(const std::vector<JsonNode> pair, node.GetArray(key));
    if (pair.size() != 2) return node.Error(absl::StrCat("\"", key, "\" must be [\"token\", id]"));
    ASSIGN_OR_RETURN(const int64_t id, pair[1].AsInt(0, kMaxTokenId));
    ends.push_back(static_cast<int32_t>(id));
  }
  before_.insert(before_.begin(), ends[0]);
  after_.push_back(ends[1]);
  std::vector<int32_t> between = {ends[1]};
  if (is_roberta) between.push_back(ends[1]);
  const int32_t second = is_roberta ? 0 : 1;
  SetOfTwo({{Piece::kTokens, {ends[0]}},
            {Piece::kFirst},
            {Piece::kTokens, std::move(between)},
            {Piece::kSecond, {}, second},
            {Piece::kTokens, {ends[1]}, second}});
  return absl::OkStatus();
}

absl::Status PostProcessor::ReadSequence(const JsonNode& node) {
  ASSIGN_OR_RETURN(const std::vector<JsonNode> children, node.GetArray("processors"));
  for (const JsonNode& child : children) {
    RETURN_IF_ERROR(Read(child));
  }
  return absl::OkStatus();
}

}  // namespace llmc
