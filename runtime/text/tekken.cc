// tekken.json, Mistral's format: special tokens, then byte strings in the order of their ranks.
#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/text/tiktoken.h"
#include "runtime/text/tokenizer_formats.h"

namespace llmc {
namespace {

// Those of the first files, which do not list them, by id.
constexpr std::array<const char*, 20> kFirstSpecialTokens = {"<unk>",
                                                             "<s>",
                                                             "</s>",
                                                             "[INST]",
                                                             "[/INST]",
                                                             "[AVAILABLE_TOOLS]",
                                                             "[/AVAILABLE_TOOLS]",
                                                             "[TOOL_RESULTS]",
                                                             "[/TOOL_RESULTS]",
                                                             "[TOOL_CALLS]",
                                                             "[IMG]",
                                                             "<pad>",
                                                             "[IMG_BREAK]",
                                                             "[IMG_END]",
                                                             "[PREFIX]",
                                                             "[MIDDLE]",
                                                             "[SUFFIX]",
                                                             "[SYSTEM_PROMPT]",
                                                             "[/SYSTEM_PROMPT]",
                                                             "[TOOL_CONTENT]"};

absl::StatusOr<nlohmann::json> ReadSpecialTokens(const JsonNode& root, int64_t count) {
  nlohmann::json tokens = nlohmann::json::array();
  std::vector<bool> is_taken(static_cast<size_t>(count));
  const auto add = [&](int64_t id, absl::string_view text) {
    is_taken[static_cast<size_t>(id)] = true;
    tokens.push_back(AddedTokenJson(static_cast<int32_t>(id), text, /*special=*/true));
  };
  if (root.Find("special_tokens")) {
    ASSIGN_OR_RETURN(const std::vector<JsonNode> nodes, root.GetArray("special_tokens"));
    for (const JsonNode& node : nodes) {
      ASSIGN_OR_RETURN(const int64_t id, node.GetInt("rank", 0, count - 1));
      ASSIGN_OR_RETURN(const std::string text, node.GetString("token_str"));
      add(id, text);
    }
  } else {
    for (size_t id = 0; id < kFirstSpecialTokens.size() && id < is_taken.size(); ++id) {
      add(static_cast<int64_t>(id), kFirstSpecialTokens[id]);
    }
  }
  for (int64_t id = 0; id < count; ++id) {
    if (!is_taken[static_cast<size_t>(id)]) add(id, absl::StrCat("<SPECIAL_", id, ">"));
  }
  return tokens;
}

absl::StatusOr<std::string> ReadToken(const JsonNode& node, size_t rank) {
  ASSIGN_OR_RETURN(const int64_t stated, node.GetInt("rank", 0, kMaxTokenId));
  if (static_cast<size_t>(stated) != rank) return node.Error(absl::StrCat("has rank ", stated, ", not ", rank));
  ASSIGN_OR_RETURN(const std::string base64, node.GetString("token_bytes"));
  std::string bytes;
  if (!DecodeBase64(base64, &bytes) || bytes.empty()) return node.Error("token_bytes is not base64 of some bytes");
  return bytes;
}

absl::Status ReadTekken(const TokenizerInput& input, TokenizerParts* parts, TokenizerConfig* settings) {
  const std::string name = input.NameOf(input.main->name);
  ASSIGN_OR_RETURN(const nlohmann::json document, ParseTokenizerJson(input.main->text, name));
  const JsonNode root(&document, name, "");
  ASSIGN_OR_RETURN(const JsonNode config, root.Get("config"));
  ASSIGN_OR_RETURN(const int64_t special_count, config.GetInt("default_num_special_tokens", 1, 1 << 16));
  ASSIGN_OR_RETURN(const int64_t size, config.GetInt("default_vocab_size", special_count + 256, kMaxTokenId + 1));
  RankedVocab vocab;
  vocab.first_id = static_cast<int32_t>(special_count);
  ASSIGN_OR_RETURN(vocab.pattern, config.GetString("pattern"));
  ASSIGN_OR_RETURN(nlohmann::json special, ReadSpecialTokens(root, special_count));
  ASSIGN_OR_RETURN(vocab.added_tokens, input.AddedTokens(std::move(special)));
  ASSIGN_OR_RETURN(const std::vector<JsonNode> nodes, root.GetArray("vocab"));
  const auto count = static_cast<size_t>(size - special_count);
  if (nodes.size() < count) {
    return root.Error(absl::StrCat("vocab holds ", nodes.size(), " tokens, the config asks for ", count));
  }
  // A file may hold more than the model uses.
  for (size_t rank = 0; rank < count; ++rank) {
    ASSIGN_OR_RETURN(std::string bytes, ReadToken(nodes[rank], rank));
    vocab.tokens.push_back(std::move(bytes));
  }
  if (!settings->bos_token) settings->bos_token = "<s>";
  if (!settings->eos_token) settings->eos_token = "</s>";
  if (!settings->add_bos_token) settings->add_bos_token = true;
  return ReadRankedVocab(vocab, input, parts);
}

}  // namespace

const TokenizerFormat kTekkenFormat = {
    [](absl::string_view name, absl::string_view) { return name == "tekken.json"; }, ReadTekken, {"added_tokens.json"}};

}  // namespace llmc
