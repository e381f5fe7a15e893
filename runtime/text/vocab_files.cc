// Plain vocabularies: vocab.json with merges.txt (GPT-2 and its kin), and vocab.txt (BERT).
#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "runtime/text/bpe.h"
#include "runtime/text/tokenizer_formats.h"
#include "runtime/text/utf8.h"
#include "runtime/text/word_models.h"

namespace llmc {
namespace {

// What the files of a class do not say themselves.
struct MergesClass {
  const char* name;
  const char* pattern;  // of words; "": GPT-2's
  bool composes;        // normalizes to NFC
  bool wraps;           // puts <s> and </s> around texts
};

constexpr char kQwen2Words[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr MergesClass kMergesClasses[] = {{"GPT2Tokenizer", "", false, false},
                                          {"RobertaTokenizer", "", false, true},
                                          {"BartTokenizer", "", false, true},
                                          {"Qwen2Tokenizer", kQwen2Words, true, false}};

nlohmann::json MergesPreTokenizer(const MergesClass& kind, bool add_prefix_space) {
  nlohmann::json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}};
  if (*kind.pattern == '\0') return bytes;
  bytes["use_regex"] = false;
  const nlohmann::json split = {{"type", "Split"}, {"pattern", {{"Regex", kind.pattern}}}, {"behavior", "Isolated"}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
}

// Tokens that are not found in config or added_tokens.json but known by their names.
nlohmann::json NamedTokens(const Vocab& vocab, std::initializer_list<const char*> names) {
  nlohmann::json tokens = nlohmann::json::array();
  for (const char* name : names) {
    const auto it = vocab.find(name);
    if (it != vocab.end()) tokens.push_back(AddedTokenJson(it->second, name, /*special=*/true));
  }
  return tokens;
}

absl::StatusOr<nlohmann::json> WrappedIn(const char* as, const Vocab& vocab, const char* first, const char* last,
                                         const TokenizerInput& input) {
  const auto begin = vocab.find(first), end = vocab.find(last);
  if (begin == vocab.end() || end == vocab.end()) {
    return input.Error(absl::StrCat("needs the tokens ", first, " and ", last));
  }
  return nlohmann::json({{"type", as}, {"cls", {first, begin->second}}, {"sep", {last, end->second}}});
}

absl::StatusOr<nlohmann::json> ReadMergesText(const TokenizerInput& input) {
  const TokenizerFile* file = input.Find("merges.txt");
  if (file == nullptr || file->text.empty()) return input.Error("needs merges.txt beside it");
  if (!IsValidUtf8(file->text)) return absl::InvalidArgumentError(input.NameOf("merges.txt") + ": is not UTF-8");
  nlohmann::json merges = nlohmann::json::array();
  for (absl::string_view line : absl::StrSplit(file->text, '\n')) {
    if (absl::EndsWith(line, "\r")) line.remove_suffix(1);
    if (!line.empty() && !absl::StartsWith(line, "#version")) merges.push_back(std::string(line));
  }
  return merges;
}

absl::Status ReadVocabMerges(const TokenizerInput& input, TokenizerParts* parts, TokenizerConfig*) {
  ASSIGN_OR_RETURN(const std::string class_name, input.Class("GPT2Tokenizer"));
  const auto* const kind = std::find_if(std::begin(kMergesClasses), std::end(kMergesClasses),
                                        [&](const MergesClass& known) { return class_name == known.name; });
  if (kind == std::end(kMergesClasses)) {
    return input.config.Unsupported(absl::StrCat("how tokenizer_class \"", class_name,
                                                 "\" cuts text into words is not known here; save the tokenizer as "
                                                 "tokenizer.json"));
  }
  const std::string name = input.NameOf(input.main->name);
  ASSIGN_OR_RETURN(const nlohmann::json vocab_json, ParseTokenizerJson(input.main->text, name));
  ASSIGN_OR_RETURN(const Vocab vocab, ReadVocab(JsonNode(&vocab_json, name, "")));
  ASSIGN_OR_RETURN(const nlohmann::json merges, ReadMergesText(input));
  const nlohmann::json model_json = {{"type", "BPE"}, {"vocab", vocab_json}, {"merges", merges}};
  ASSIGN_OR_RETURN(std::unique_ptr<TokenModel> model,
                   TokenModel::FromJson(JsonNode(&model_json, input.NameOf("merges.txt"), "")));
  ASSIGN_OR_RETURN(const bool prefix, input.config.GetBool("add_prefix_space", false));
  nlohmann::json steps = {{"pre_tokenizer", MergesPreTokenizer(*kind, prefix)}, {"decoder", {{"type", "ByteLevel"}}}};
  if (kind->composes) steps["normalizer"] = {{"type", "NFC"}};
  if (kind->wraps) {
    ASSIGN_OR_RETURN(steps["post_processor"], WrappedIn("RobertaProcessing", vocab, "<s>", "</s>", input));
  }
  const nlohmann::json own = kind->wraps ? NamedTokens(vocab, {"<s>", "</s>", "<pad>", "<unk>", "<mask>"})
                                         : NamedTokens(vocab, {"<|endoftext|>"});
  ASSIGN_OR_RETURN(steps["added_tokens"], input.AddedTokens(own));
  return parts->Read(JsonNode(&steps, name, ""), std::move(model));
}

absl::StatusOr<Vocab> ReadLines(const TokenizerInput& input) {
  if (!IsValidUtf8(input.main->text)) return input.Error("is not UTF-8");
  Vocab vocab;
  int32_t id = 0;
  absl::string_view text = input.main->text;
  if (absl::EndsWith(text, "\n")) text.remove_suffix(1);
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::EndsWith(line, "\r")) line.remove_suffix(1);
    if (id > kMaxTokenId) return input.Error(absl::StrCat("has more than ", kMaxTokenId, " lines"));
    if (!vocab.try_emplace(line, id).second) {
      return input.Error(absl::StrCat("line ", id + 1, ": the token \"", line, "\" is there already"));
    }
    ++id;
  }
  return vocab;
}

absl::Status ReadVocabText(const TokenizerInput& input, TokenizerParts* parts, TokenizerConfig*) {
  ASSIGN_OR_RETURN(const std::string class_name, input.Class("BertTokenizer"));
  if (class_name != "BertTokenizer" && class_name != "DistilBertTokenizer" && class_name != "ElectraTokenizer") {
    return input.config.Unsupported(absl::StrCat("how tokenizer_class \"", class_name,
                                                 "\" reads vocab.txt is not known here; save the tokenizer as "
                                                 "tokenizer.json"));
  }
  ASSIGN_OR_RETURN(const Vocab vocab, ReadLines(input));
  absl::StatusOr<WordPieceModel> model = WordPieceModel::FromVocab(vocab, WordPieceModel::Options());
  if (!model.ok()) return input.Error(model.status().message());
  ASSIGN_OR_RETURN(const bool lowercase, input.config.GetBool("do_lower_case", true));
  ASSIGN_OR_RETURN(const bool strip_accents, input.config.GetBool("strip_accents", lowercase));
  ASSIGN_OR_RETURN(const bool chinese, input.config.GetBool("tokenize_chinese_chars", true));
  nlohmann::json steps = {{"normalizer",
                           {{"type", "BertNormalizer"},
                            {"lowercase", lowercase},
                            {"strip_accents", strip_accents},
                            {"handle_chinese_chars", chinese}}},
                          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
                          {"decoder", {{"type", "WordPiece"}}}};
  ASSIGN_OR_RETURN(steps["post_processor"], WrappedIn("BertProcessing", vocab, "[CLS]", "[SEP]", input));
  const nlohmann::json own = NamedTokens(vocab, {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"});
  ASSIGN_OR_RETURN(steps["added_tokens"], input.AddedTokens(own));
  return parts->Read(JsonNode(&steps, input.NameOf(input.main->name), ""),
                     std::make_unique<WordPieceModel>(*std::move(model)));
}

}  // namespace

const TokenizerFormat kVocabMergesFormat = {
    [](absl::string_view name, absl::string_view) { return name == "vocab.json"; },
    ReadVocabMerges,
    {"merges.txt", "added_tokens.json"}};
const TokenizerFormat kVocabTextFormat = {[](absl::string_view name, absl::string_view) { return name == "vocab.txt"; },
                                          ReadVocabText,
                                          {"added_tokens.json"}};

}  // namespace llmc
