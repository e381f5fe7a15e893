#include "runtime/text/post_processor.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/text/bpe.h"

namespace llmc {
namespace {

constexpr size_t kMaxTemplateIds = 1024;

// Appends the ids of special token `id` of a template.
absl::Status AppendTemplateToken(const JsonNode& processor, const std::string& id, std::vector<int32_t>* ids) {
  const absl::StatusOr<JsonNode> tokens = processor.Get("special_tokens");
  if (!tokens.ok()) return tokens.status();
  const absl::StatusOr<JsonNode> token = tokens->Get(id);
  if (!token.ok()) return token.status();
  const absl::StatusOr<std::vector<JsonNode>> elements = token->GetArray("ids");
  if (!elements.ok()) return elements.status();
  for (const JsonNode& element : *elements) {
    const absl::StatusOr<int64_t> number = element.AsInt(0, kMaxTokenId);
    if (!number.ok()) return number.status();
    if (ids->size() == kMaxTemplateIds)
      return token->Error(absl::StrCat("the template adds more than ", kMaxTemplateIds, " ids"));
    ids->push_back(static_cast<int32_t>(*number));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PostProcessor> PostProcessor::FromJson(const JsonNode& node) {
  PostProcessor processor;
  if (absl::Status status = processor.Read(node); !status.ok()) return status;
  return processor;
}

void PostProcessor::AddSpecialTokens(std::vector<int32_t>* ids) const {
  ids->insert(ids->begin(), before_.begin(), before_.end());
  ids->insert(ids->end(), after_.begin(), after_.end());
}

std::vector<int32_t> PostProcessor::Ids() const {
  std::vector<int32_t> ids = before_;
  ids.insert(ids.end(), after_.begin(), after_.end());
  return ids;
}

absl::Status PostProcessor::Read(const JsonNode& node) {
  const absl::StatusOr<std::string> type = node.GetString("type");
  if (!type.ok()) return type.status();
  if (*type == "TemplateProcessing") return ReadTemplate(node);
  if (*type == "RobertaProcessing" || *type == "BertProcessing") return ReadPair(node);
  if (*type == "ByteLevel") return absl::OkStatus();  // changes offsets only
  if (*type == "Sequence") return ReadSequence(node);
  return node.Unsupported(absl::StrCat("post-processor \"", *type, "\" is not supported"));
}

absl::Status PostProcessor::ReadTemplate(const JsonNode& node) {
  const absl::StatusOr<std::vector<JsonNode>> pieces = node.GetArray("single");
  if (!pieces.ok()) return pieces.status();
  std::vector<int32_t> before, after;
  int sequences = 0;
  for (const JsonNode& piece : *pieces) {
    if (const auto sequence = piece.Find("Sequence")) {
      const absl::StatusOr<std::string> id = sequence->GetString("id");
      if (!id.ok()) return id.status();
      if (*id != "A") return sequence->Error("the template of a single text can only name sequence A");
      ++sequences;
      continue;
    }
    const absl::StatusOr<JsonNode> special = piece.Get("SpecialToken");
    if (!special.ok()) return special.status();
    const absl::StatusOr<std::string> id = special->GetString("id");
    if (!id.ok()) return id.status();
    absl::Status status = AppendTemplateToken(node, *id, sequences == 0 ? &before : &after);
    if (!status.ok()) return status;
  }
  if (sequences != 1) return node.Error("\"single\" must name sequence A exactly once");
  before_.insert(before_.begin(), before.begin(), before.end());
  after_.insert(after_.end(), after.begin(), after.end());
  return absl::OkStatus();
}

absl::Status PostProcessor::ReadPair(const JsonNode& node) {
  for (const char* key : {"cls", "sep"}) {
    const absl::StatusOr<std::vector<JsonNode>> pair = node.GetArray(key);
    if (!pair.ok()) return pair.status();
    if (pair->size() != 2) return node.Error(absl::StrCat("\"", key, "\" must be [\"token\", id]"));
    const absl::StatusOr<int64_t> id = (*pair)[1].AsInt(0, kMaxTokenId);
    if (!id.ok()) return id.status();
    if (key[0] == 'c') {
      before_.insert(before_.begin(), static_cast<int32_t>(*id));
    } else {
      after_.push_back(static_cast<int32_t>(*id));
    }
  }
  return absl::OkStatus();
}

absl::Status PostProcessor::ReadSequence(const JsonNode& node) {
  const absl::StatusOr<std::vector<JsonNode>> children = node.GetArray("processors");
  if (!children.ok()) return children.status();
  for (const JsonNode& child : *children) {
    if (absl::Status status = Read(child); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace llmc
