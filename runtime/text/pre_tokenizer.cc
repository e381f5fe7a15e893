#include "runtime/text/pre_tokenizer.h"

#include <unicode/uchar.h>
#include <unicode/uscript.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/status_macros.h"
#include "runtime/text/byte_level.h"
#include "runtime/text/metaspace.h"
#include "runtime/text/regex.h"
#include "runtime/text/split.h"
#include "runtime/text/utf8.h"

namespace llmc {
namespace {

using PreTokenizerPtr = std::unique_ptr<PreTokenizer>;

// \w+|[^\w\s]+ where \w is what Unicode's regular expression standard calls a word character.
constexpr char kWhitespaceRegex[] = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}]+)"
                                    R"(|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}\s]+)";

UChar32 Code(char32_t c) { return static_cast<UChar32>(c); }

bool IsNumeric(char32_t c) { return (U_GET_GC_MASK(Code(c)) & U_GC_N_MASK) != 0; }

bool IsPunctuation(char32_t c) {
  if (c < 0x80) return absl::ascii_ispunct(static_cast<unsigned char>(c));
  return (U_GET_GC_MASK(Code(c)) & U_GC_P_MASK) != 0;
}

class SequencePreTokenizer : public PreTokenizer {
 public:
  explicit SequencePreTokenizer(std::vector<PreTokenizerPtr> steps) : steps_(std::move(steps)) {}
  absl::Status Split(std::vector<Piece>* pieces, TextBudget* budget) const override {
    for (const PreTokenizerPtr& step : steps_) {
      RETURN_IF_ERROR(step->Split(pieces, budget));
    }
    return absl::OkStatus();
  }
  absl::Status SplitWord(std::vector<Piece>* pieces, TextBudget* budget) const override {
    for (size_t i = 0; i < steps_.size(); ++i) {
      RETURN_IF_ERROR(i == 0 ? steps_[i]->SplitWord(pieces, budget) : steps_[i]->Split(pieces, budget));
    }
    return absl::OkStatus();
  }
  ByteLevelWords AsByteLevelWords() const override {
    if (steps_.size() == 1) return steps_[0]->AsByteLevelWords();
    if (steps_.size() != 2 || !steps_[1]->IsByteAlphabet()) return {};
    return {steps_[0]->AsWordCut(), false};
  }
  bool SplitsWordsAlone() const override { return !steps_.empty() && steps_[0]->SplitsWordsAlone(); }

 protected:
  absl::Status SplitPiece(Piece, TextBudget*, std::vector<Piece>*) const override { return absl::OkStatus(); }

 private:
  std::vector<PreTokenizerPtr> steps_;
};

class CharPreTokenizer : public PreTokenizer {
 public:
  CharPreTokenizer(bool (*is_match)(char32_t), SplitBehavior behavior) : is_match_(is_match), behavior_(behavior) {}
  bool SplitsWordsAlone() const override { return is_match_ == IsSpace && behavior_ == SplitBehavior::kRemoved; }
  absl::Status SplitWord(std::vector<Piece>* pieces, TextBudget* budget) const override {
    return SplitsWordsAlone() ? absl::OkStatus() : Split(pieces, budget);
  }

 protected:
  absl::Status SplitPiece(Piece piece, TextBudget*, std::vector<Piece>* out) const override {
    Cut(piece, FindChars(piece.text, is_match_), behavior_, out);
    return absl::OkStatus();
  }

 private:
  bool (*is_match_)(char32_t);
  SplitBehavior behavior_;
};

class PatternPreTokenizer : public PreTokenizer {
 public:
  PatternPreTokenizer(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  WordMatcher AsWordCut() const override {
    const bool keeps_words = invert_ ? behavior_ == SplitBehavior::kRemoved : behavior_ == SplitBehavior::kIsolated;
    return keeps_words ? pattern_.word_matcher() : nullptr;
  }

 protected:
  absl::Status SplitPiece(Piece piece, TextBudget* budget, std::vector<Piece>* out) const override {
    ASSIGN_OR_RETURN(std::vector<TextSpan> spans, pattern_.FindAll(piece.text, budget));
    for (TextSpan& span : spans) span.is_match ^= invert_;
    Cut(piece, std::move(spans), behavior_, out);
    return absl::OkStatus();
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, absl::optional<Pattern> words)
      : add_prefix_space_(add_prefix_space), words_(std::move(words)) {}
  ByteLevelWords AsByteLevelWords() const override {
    return {words_ ? words_->word_matcher() : nullptr, add_prefix_space_};
  }
  bool IsByteAlphabet() const override { return !add_prefix_space_ && !words_; }

 protected:
  absl::Status SplitPiece(Piece piece, TextBudget* budget, std::vector<Piece>* out) const override {
    if (add_prefix_space_ && !absl::StartsWith(piece.text, " ")) piece.text.insert(0, " ");
    const size_t first = out->size();
    if (words_) {
      ASSIGN_OR_RETURN(const std::vector<TextSpan> spans, words_->FindAll(piece.text, budget));
      Cut(piece, spans, SplitBehavior::kIsolated, out);
    } else {
      out->push_back(std::move(piece));
    }
    for (size_t i = first; i < out->size(); ++i) (*out)[i].text = BytesToAlphabet((*out)[i].text);
    return absl::OkStatus();
  }

 private:
  bool add_prefix_space_;
  absl::optional<Pattern> words_;
};

class MetaspacePreTokenizer : public PreTokenizer {
 public:
  MetaspacePreTokenizer(MetaspaceOptions options, Pattern space, Pattern mark)
      : options_(std::move(options)), space_(std::move(space)), mark_(std::move(mark)) {}

 protected:
  absl::Status SplitPiece(Piece piece, TextBudget* budget, std::vector<Piece>* out) const override {
    if (absl::StrContains(piece.text, ' ')) {
      ASSIGN_OR_RETURN(std::string marked, space_.ReplaceAll(piece.text, options_.replacement, budget));
      piece.text = std::move(marked);
    }
    const bool wanted =
        options_.scheme == PrependScheme::kAlways || (options_.scheme == PrependScheme::kFirst && piece.at_start);
    if (wanted && !absl::StartsWith(piece.text, options_.replacement)) piece.text.insert(0, options_.replacement);
    // A mark begins a piece, so one at the front alone cuts nothing.
    if (!options_.split || piece.text.find(options_.replacement, 1) == std::string::npos) {
      out->push_back(std::move(piece));
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(std::vector<TextSpan> spans, mark_.FindAll(piece.text, budget));
    Cut(piece, std::move(spans), SplitBehavior::kMergedWithNext, out);
    return absl::OkStatus();
  }

 private:
  MetaspaceOptions options_;
  Pattern space_;
  Pattern mark_;
};

// Cuts where the script changes; characters of no script and spaces go with what is before them. Hiragana, katakana and
// Chinese characters count as one script. Spaces in front of everything are dropped, as the package tokenizers does.
class ScriptPreTokenizer : public PreTokenizer {
 protected:
  absl::Status SplitPiece(Piece piece, TextBudget*, std::vector<Piece>* out) const override {
    std::vector<TextSpan> spans;
    UScriptCode last = USCRIPT_INVALID_CODE;
    for (size_t at = 0; at < piece.text.size();) {
      const Utf8Char c = ReadUtf8(absl::string_view(piece.text).substr(at));
      const UScriptCode script = ScriptOf(c.codepoint);
      if (script != USCRIPT_INVALID_CODE && script != last) {
        if (!spans.empty()) spans.back().end = at;
        spans.push_back({at, piece.text.size(), false});
        last = script;
      }
      at += c.bytes;
    }
    Cut(piece, std::move(spans), SplitBehavior::kIsolated, out);
    return absl::OkStatus();
  }

 private:
  // USCRIPT_INVALID_CODE: of any script.
  static UScriptCode ScriptOf(char32_t c) {
    if (c == 0x30FC) return USCRIPT_HAN;
    UErrorCode error = U_ZERO_ERROR;
    const UScriptCode script = uscript_getScript(Code(c), &error);
    if (c == ' ' || U_FAILURE(error) || script == USCRIPT_UNKNOWN) return USCRIPT_INVALID_CODE;
    return script == USCRIPT_HIRAGANA || script == USCRIPT_KATAKANA ? USCRIPT_HAN : script;
  }
};

class FixedLengthPreTokenizer : public PreTokenizer {
 public:
  explicit FixedLengthPreTokenizer(int64_t length) : length_(length) {}

 protected:
  absl::Status SplitPiece(Piece piece, TextBudget*, std::vector<Piece>* out) const override {
    std::vector<TextSpan> spans;
    int64_t characters = 0;
    for (size_t at = 0; at < piece.text.size(); ++characters) {
      const size_t bytes = ReadUtf8(absl::string_view(piece.text).substr(at)).bytes;
      if (characters % length_ == 0) spans.push_back({at, at, false});
      spans.back().end = at += bytes;
    }
    Cut(piece, std::move(spans), SplitBehavior::kIsolated, out);
    return absl::OkStatus();
  }

 private:
  int64_t length_;  // characters of a piece
};

absl::StatusOr<PreTokenizerPtr> MakePattern(const JsonNode& node, absl::StatusOr<Pattern> pattern,
                                            SplitBehavior behavior, bool invert) {
  if (!pattern.ok()) return node.Error(pattern.status().message());
  return std::make_unique<PatternPreTokenizer>(*std::move(pattern), behavior, invert);
}

absl::StatusOr<PreTokenizerPtr> MakeSplit(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode pattern_node, node.Get("pattern"));
  absl::StatusOr<Pattern> pattern = Pattern::FromJson(pattern_node);
  if (!pattern.ok()) return pattern.status();
  ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(node, ""));
  ASSIGN_OR_RETURN(const bool invert, node.GetBool("invert", false));
  return MakePattern(node, std::move(pattern), behavior, invert);
}

absl::StatusOr<PreTokenizerPtr> MakeByteLevel(const JsonNode& node) {
  ASSIGN_OR_RETURN(const bool prefix, node.GetBool("add_prefix_space", true));
  ASSIGN_OR_RETURN(const bool use_regex, node.GetBool("use_regex", true));
  absl::optional<Pattern> words;
  if (use_regex) {
    ASSIGN_OR_RETURN(Pattern pattern, Pattern::FromRegex(kGpt2WordPattern));
    words = std::move(pattern);
  }
  return std::make_unique<ByteLevelPreTokenizer>(prefix, std::move(words));
}

absl::StatusOr<PreTokenizerPtr> MakeMetaspace(const JsonNode& node) {
  ASSIGN_OR_RETURN(MetaspaceOptions options, MetaspaceOptions::FromJson(node));
  ASSIGN_OR_RETURN(Pattern space, Pattern::FromString(" "));
  ASSIGN_OR_RETURN(Pattern mark, Pattern::FromString(options.replacement));
  return std::make_unique<MetaspacePreTokenizer>(std::move(options), std::move(space), std::move(mark));
}

absl::StatusOr<PreTokenizerPtr> MakeDigits(const JsonNode& node) {
  ASSIGN_OR_RETURN(const bool individual, node.GetBool("individual_digits", false));
  return std::make_unique<CharPreTokenizer>(IsNumeric,
                                            individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
}

absl::StatusOr<PreTokenizerPtr> MakePunctuation(const JsonNode& node) {
  ASSIGN_OR_RETURN(const SplitBehavior behavior, ReadBehavior(node, "Isolated"));
  return std::make_unique<CharPreTokenizer>(IsPunctuation, behavior);
}

absl::StatusOr<PreTokenizerPtr> MakeDelimiter(const JsonNode& node) {
  ASSIGN_OR_RETURN(const std::string delimiter, node.GetString("delimiter"));
  if (!IsOneChar(delimiter)) return node.Error("delimiter must be one character");
  return MakePattern(node, Pattern::FromString(delimiter), SplitBehavior::kRemoved, false);
}

absl::StatusOr<PreTokenizerPtr> MakeFixedLength(const JsonNode& node) {
  int64_t length = 5;
  if (node.Find("length")) {
    ASSIGN_OR_RETURN(length, node.GetInt("length", 1, INT32_MAX));
  }
  return std::make_unique<FixedLengthPreTokenizer>(length);
}

PreTokenizerPtr MakeBert() {
  std::vector<PreTokenizerPtr> steps;
  steps.push_back(std::make_unique<CharPreTokenizer>(IsSpace, SplitBehavior::kRemoved));
  steps.push_back(std::make_unique<CharPreTokenizer>(IsPunctuation, SplitBehavior::kIsolated));
  return std::make_unique<SequencePreTokenizer>(std::move(steps));
}

absl::StatusOr<PreTokenizerPtr> MakePreTokenizers(const JsonNode& node) {
  ASSIGN_OR_RETURN(const std::vector<JsonNode> children, node.GetArray("pretokenizers"));
  std::vector<PreTokenizerPtr> steps;
  for (const JsonNode& child : children) {
    absl::StatusOr<PreTokenizerPtr> step = PreTokenizer::FromJson(child);
    if (!step.ok()) return step;
    steps.push_back(*std::move(step));
  }
  return std::make_unique<SequencePreTokenizer>(std::move(steps));
}

}  // namespace

bool IsLongSpace(char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)); }

absl::Status PreTokenizer::Split(std::vector<Piece>* pieces, TextBudget* budget) const {
  std::vector<Piece> out;
  out.reserve(pieces->size());
  for (Piece& piece : *pieces) {
    const size_t first = out.size();
    RETURN_IF_ERROR(SplitPiece(std::move(piece), budget, &out));
    size_t bytes = 0;
    for (size_t i = first; i < out.size(); ++i) bytes += out[i].text.size();
    RETURN_IF_ERROR(budget->Spend(bytes));
  }
  std::erase_if(out, [](const Piece& piece) { return piece.text.empty(); });
  *pieces = std::move(out);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::FromJson(const JsonNode& node) {
  ASSIGN_OR_RETURN(const std::string type, node.GetString("type"));
  if (type == "Sequence") return MakePreTokenizers(node);
  if (type == "Split") return MakeSplit(node);
  if (type == "ByteLevel") return MakeByteLevel(node);
  if (type == "Metaspace") return MakeMetaspace(node);
  if (type == "Digits") return MakeDigits(node);
  if (type == "Punctuation") return MakePunctuation(node);
  if (type == "CharDelimiterSplit") return MakeDelimiter(node);
  if (type == "BertPreTokenizer") return MakeBert();
  if (type == "WhitespaceSplit") return std::make_unique<CharPreTokenizer>(IsSpace, SplitBehavior::kRemoved);
  if (type == "UnicodeScripts") return std::make_unique<ScriptPreTokenizer>();
  if (type == "FixedLength") return MakeFixedLength(node);
  if (type == "Whitespace") {
    return MakePattern(node, Pattern::FromRegex(kWhitespaceRegex), SplitBehavior::kRemoved, /*invert=*/true);
  }
  return node.Unsupported(absl::StrCat("pre-tokenizer \"", type, "\" is not supported"));
}

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::FromRustRegex(absl::string_view regex) {
  ASSIGN_OR_RETURN(Pattern words, Pattern::FromRustRegex(regex));
  std::vector<PreTokenizerPtr> steps;
  steps.push_back(std::make_unique<PatternPreTokenizer>(std::move(words), SplitBehavior::kRemoved, /*invert=*/true));
  steps.push_back(std::make_unique<ByteLevelPreTokenizer>(/*add_prefix_space=*/false, absl::nullopt));
  return std::make_unique<SequencePreTokenizer>(std::move(steps));
}

}  // namespace llmc
