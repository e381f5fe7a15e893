#include "runtime/text/post_processor.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/text/model.h"

namespace llmc {
namespace {

constexpr size_t kMaxTemplateIds = 1024;

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

void PostProcessor::SetFirst(int32_t id, bool added) {
  if (!added) before_.erase(std::remove(before_.begin(), before_.end(), id), before_.end());
  if (added && std::count(before_.begin(), before_.end(), id) == 0) before_.insert(before_.begin(), id);
}

void PostProcessor::SetLast(int32_t id, bool added) {
  if (!added) after_.erase(std::remove(after_.begin(), after_.end(), id), after_.end());
  if (added && std::count(after_.begin(), after_.end(), id) == 0) after_.push_back(id);
}

std::vector<int32_t> PostProcessor::Ids() const {
  std::vector<int32_t> ids = before_;
  ids.insert(ids.end(), after_.begin(), after_.end());
  return ids;
}

absl::Status PostProcessor::Read(const JsonNode& node) {
  ASSIGN_OR_RETURN(const std::string type, node.GetString("type"));
  if (type == "TemplateProcessing") return ReadTemplate(node);
  if (type == "RobertaProcessing" || type == "BertProcessing") return ReadPair(node);
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
  return absl::OkStatus();
}

absl::Status PostProcessor::ReadPair(const JsonNode& node) {
  for (const char* key : {"cls", "sep"}) {
    ASSIGN_OR_RETURN(const std::vector<JsonNode> pair, node.GetArray(key));
    if (pair.size() != 2) return node.Error(absl::StrCat("\"", key, "\" must be [\"token\", id]"));
    ASSIGN_OR_RETURN(const int64_t id, pair[1].AsInt(0, kMaxTokenId));
    if (key[0] == 'c') {
      before_.insert(before_.begin(), static_cast<int32_t>(id));
    } else {
      after_.push_back(static_cast<int32_t>(id));
    }
  }
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
