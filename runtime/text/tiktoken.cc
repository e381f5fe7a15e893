#include "runtime/text/tiktoken.h"

#include <algorithm>
#include <iterator>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "runtime/text/bpe.h"
#include "runtime/text/byte_level.h"

namespace llmc {
namespace {

constexpr char kGpt2Words[] = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)";
constexpr char kCl100kWords[] =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n])"
    R"(|\s+(?!\S)|\s)";
constexpr char kO200kWords[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct SpecialToken {
  const char* text;
  int32_t id;
};

// A published encoding: the name of its file without .tiktoken, how it cuts words, and its special tokens.
struct Encoding {
  const char* name;
  const char* pattern;
  std::vector<SpecialToken> special_tokens;
};

const std::vector<Encoding>& KnownEncodings() {
  static const auto* encodings = new std::vector<Encoding>{
      {"gpt2", kGpt2Words, {{"<|endoftext|>", 50256}}},
      {"r50k_base", kGpt2Words, {{"<|endoftext|>", 50256}}},
      {"p50k_base", kGpt2Words, {{"<|endoftext|>", 50256}}},
      {"cl100k_base",
       kCl100kWords,
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}}},
      {"o200k_base", kO200kWords, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
  };
  return *encodings;
}

// The tokens by rank.
absl::StatusOr<std::vector<std::string>> ReadRanks(const TokenizerInput& input) {
  std::vector<std::string> tokens;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(input.main->text, '\n')) {
    ++number;
    if (absl::EndsWith(line, "\r")) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::pair<absl::string_view, absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    const auto wrong = [&](absl::string_view why) { return input.Error(absl::StrCat("line ", number, ": ", why)); };
    std::string bytes;
    int32_t rank = 0;
    if (!DecodeBase64(fields.first, &bytes) || bytes.empty()) return wrong("must begin with a token in base64");
    if (!absl::SimpleAtoi(fields.second, &rank) || rank < 0 || rank > kMaxTokenId) {
      return wrong(absl::StrCat("must end with a rank from 0 to ", kMaxTokenId));
    }
    if (static_cast<size_t>(rank) >= tokens.size()) tokens.resize(static_cast<size_t>(rank) + 1);
    if (!tokens[rank].empty()) return wrong(absl::StrCat("another line has the same rank ", rank));
    tokens[rank] = std::move(bytes);
  }
  return tokens;
}

absl::Status ReadTiktoken(const TokenizerInput& input, TokenizerParts* parts, TokenizerConfig*) {
  RankedVocab vocab;
  ASSIGN_OR_RETURN(vocab.tokens, ReadRanks(input));
  const absl::string_view stem = absl::string_view(input.main->name).substr(0, input.main->name.rfind('.'));
  nlohmann::json special = nlohmann::json::array();
  for (const Encoding& encoding : KnownEncodings()) {
    if (stem != encoding.name) continue;
    vocab.pattern = encoding.pattern;
    for (const SpecialToken& token : encoding.special_tokens) {
      special.push_back(AddedTokenJson(token.id, token.text, /*special=*/true));
    }
  }
  ASSIGN_OR_RETURN(vocab.pattern, input.config.GetString("pat_str", vocab.pattern));
  if (vocab.pattern.empty()) {
    return input.Error(
        "a file of ranks does not say how text is cut into words; give that regular expression as \"pat_str\" in "
        "tokenizer_config.json, or name the file after its encoding, such as cl100k_base.tiktoken");
  }
  ASSIGN_OR_RETURN(vocab.added_tokens, input.AddedTokens(std::move(special)));
  return ReadRankedVocab(vocab, input, parts);
}

}  // namespace

const TokenizerFormat kTiktokenFormat = {[](absl::string_view name, absl::string_view text) {
                                           return absl::EndsWith(name, ".tiktoken") ||
                                                  (absl::EndsWith(name, ".model") && LooksLikeRanks(text));
                                         },
                                         ReadTiktoken,
                                         {"added_tokens.json"}};

bool DecodeBase64(absl::string_view base64, std::string* bytes) {
  // absl also takes white space and other alphabets, so compare.
  return absl::Base64Unescape(base64, bytes) && absl::Base64Escape(*bytes) == base64;
}

bool LooksLikeRanks(absl::string_view text) {
  const absl::string_view line = text.substr(0, std::min<size_t>(text.find('\n'), 2000));
  const std::pair<absl::string_view, absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(' ', 1));
  std::string bytes;
  int32_t rank = 0;
  return !fields.first.empty() && DecodeBase64(fields.first, &bytes) && absl::SimpleAtoi(fields.second, &rank);
}

absl::Status ReadRankedVocab(const RankedVocab& vocab, const TokenizerInput& input, TokenizerParts* parts) {
  std::vector<BpeModel::Piece> pieces(static_cast<size_t>(vocab.first_id) + vocab.tokens.size());
  for (size_t rank = 0; rank < vocab.tokens.size(); ++rank) {
    pieces[static_cast<size_t>(vocab.first_id) + rank] = {BytesToAlphabet(vocab.tokens[rank]),
                                                          static_cast<int32_t>(rank)};
  }
  absl::StatusOr<BpeModel> model = BpeModel::FromPieces(pieces, {.ignore_merges = true});
  if (!model.ok()) return input.Error(model.status().message());
  if (!model->IsByteLevel()) return input.Error("not each of the 256 bytes is a token");
  absl::StatusOr<std::unique_ptr<PreTokenizer>> words = PreTokenizer::FromRustRegex(vocab.pattern);
  if (!words.ok()) return input.Error(absl::StrCat("the pattern of words: ", words.status().message()));
  parts->pre_tokenizer = *std::move(words);
  const nlohmann::json steps = {{"decoder", {{"type", "ByteLevel"}}}, {"added_tokens", vocab.added_tokens}};
  return parts->Read(JsonNode(&steps, input.NameOf(input.main->name), ""),
                     std::make_unique<BpeModel>(*std::move(model)));
}

}  // namespace llmc
