#include "runtime/text/normalizer.h"

#include <unicode/brkiter.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/text/byte_level.h"
#include "runtime/text/chars_map.h"
#include "runtime/text/regex.h"
#include "runtime/text/utf8.h"

namespace llmc {
namespace {

using NormalizerPtr = std::unique_ptr<Normalizer>;

// Calls `visit(codepoint, bytes)` for every character.
template <typename Visit>
void ForEachChar(absl::string_view text, Visit visit) {
  while (!text.empty()) {
    const Utf8Char c = ReadUtf8(text);
    visit(c.codepoint, text.substr(0, c.bytes));
    text.remove_prefix(c.bytes);
  }
}

class SequenceNormalizer : public Normalizer {
 public:
  explicit SequenceNormalizer(std::vector<NormalizerPtr> steps) : steps_(std::move(steps)) {}

 protected:
  absl::StatusOr<std::string> Apply(std::string text, TextBudget* budget) const override {
    for (const NormalizerPtr& step : steps_) {
      absl::StatusOr<std::string> result = step->Normalize(std::move(text), budget);
      if (!result.ok()) return result;
      text = *std::move(result);
    }
    return text;
  }

 private:
  std::vector<NormalizerPtr> steps_;
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}

 protected:
  absl::StatusOr<std::string> Apply(std::string text, TextBudget*) const override {
    return text.empty() ? text : absl::StrCat(prefix_, text);
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

 protected:
  absl::StatusOr<std::string> Apply(std::string text, TextBudget* budget) const override {
    return pattern_.ReplaceAll(text, content_, budget);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class UnicodeNormalizer : public Normalizer {
 public:
  // `form` is owned by ICU.
  explicit UnicodeNormalizer(const icu::Normalizer2* form) : form_(form) {}

 protected:
  absl::StatusOr<std::string> Apply(std::string text, TextBudget*) const override {
    UErrorCode error = U_ZERO_ERROR;
    std::string out;
    icu::StringByteSink<std::string> sink(&out);
    if (text.size() > kMaxTextBytes) return absl::ResourceExhaustedError("the text is larger than 1 GiB");
    const icu::StringPiece piece(text.data(), static_cast<int32_t>(text.size()));
    form_->normalizeUTF8(0, piece, sink, nullptr, error);
    if (U_FAILURE(error)) return absl::InternalError(absl::StrCat("Unicode normalization: ", u_errorName(error)));
    return out;
  }

 private:
  const icu::Normalizer2* form_;
};

void AppendLower(char32_t c, std::string* out) {
  if (c < 0x80) return out->push_back(absl::ascii_tolower(static_cast<unsigned char>(c)));
  AppendUtf8(c == 0x130 ? U'i' : static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))), out);
  if (c == 0x130) AppendUtf8(0x307, out);  // the one character whose lower case is two
}

class LowercaseNormalizer : public Normalizer {
 protected:
  absl::StatusOr<std::string> Apply(std::string text, TextBudget*) const override {
    std::string out;
    ForEachChar(text, [&](char32_t c, absl::string_view) { AppendLower(c, &out); });
    return out;
  }
};

class StripNormalizer : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}

 protected:
  absl::StatusOr<std::string> Apply(std::string text, TextBudget*) const override {
    size_t begin = text.size(), end = 0, at = 0;
    ForEachChar(text, [&](char32_t c, absl::string_view bytes) {
      if (!u_isUWhiteSpace(static_cast<UChar32>(c))) {
        begin = std::min(begin, at);
        end = at + bytes.size();
      }
      at += bytes.size();
    });
    if (!left_) begin = 0;
    if (!right_) end = text.size();
    return begin < end ? text.substr(begin, end - begin) : std::string();
  }

 private:
  bool left_;
  bool right_;
};

class StripAccentsNormalizer : public Normalizer {
 protected:
  absl::StatusOr<std::string> Apply(std::string text, TextBudget*) const override {
    std::string out;
    ForEachChar(text, [&](char32_t c, absl::string_view bytes) {
      if ((U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_M_MASK) == 0) absl::StrAppend(&out, bytes);
    });
    return out;
  }
};

class ByteLevelNormalizer : public Normalizer {
 protected:
  absl::StatusOr<std::string> Apply(std::string text, TextBudget*) const override { return BytesToAlphabet(text); }
};

// The cleaning of BERT's `BasicTokenizer`.
class BertNormalizer : public Normalizer {
 public:
  struct Options {
    bool clean_text, handle_chinese_chars, strip_accents, lowercase;
  };
  // `decomposed` is NFD, owned by ICU.
  BertNormalizer(const Options& options, const icu::Normalizer2* decomposed)
      : options_(options), decompose_(decomposed) {
    for (unsigned char c = 1; c < 0x80; ++c) {
      if (options.clean_text && IsDropped(c)) continue;
      plain_[c] = options.clean_text && u_isUWhiteSpace(c) ? ' ' : static_cast<char>(c);
      if (options.lowercase) plain_[c] = absl::ascii_tolower(static_cast<unsigned char>(plain_[c]));
    }
  }

 protected:
  absl::StatusOr<std::string> Apply(std::string text, TextBudget* budget) const override {
    std::string out;
    out.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      if (const char plain = Plain(text[at]); plain != '\0') {
        out.push_back(plain);
        ++at;
        continue;
      }
      // Up to two plain characters in a row.
      size_t end = at + 1;
      while (end < text.size() && (Plain(text[end]) == '\0' || Plain(text[end - 1]) == '\0')) ++end;
      ASSIGN_OR_RETURN(const std::string other, ApplyToOther(absl::string_view(text).substr(at, end - at), budget));
      out += other;
      at = end;
    }
    return out;
  }

 private:
  // What an ASCII character becomes whatever stands beside it; NUL: it depends, or nothing.
  char Plain(char c) const { return plain_[static_cast<uint8_t>(c)]; }

  absl::StatusOr<std::string> ApplyToOther(absl::string_view text, TextBudget* budget) const {
    std::string out;
    ForEachChar(text, [&](char32_t c, absl::string_view bytes) {
      if (options_.clean_text && IsDropped(c)) return;
      if (options_.clean_text && u_isUWhiteSpace(static_cast<UChar32>(c))) bytes = " ";
      const bool apart = options_.handle_chinese_chars && IsChinese(c);
      absl::StrAppend(&out, apart ? " " : "", bytes, apart ? " " : "");
    });
    if (options_.strip_accents) {
      ASSIGN_OR_RETURN(const std::string decomposed, decompose_.Normalize(std::move(out), budget));
      out.clear();
      ForEachChar(decomposed, [&](char32_t c, absl::string_view bytes) {
        if (u_charType(static_cast<UChar32>(c)) != U_NON_SPACING_MARK) absl::StrAppend(&out, bytes);
      });
    }
    if (!options_.lowercase) return out;
    std::string lower;
    ForEachChar(out, [&](char32_t c, absl::string_view) { AppendLower(c, &lower); });
    return lower;
  }
  // Controls, formats and private characters, but for those that count as white space.
  static bool IsDropped(char32_t c) {
    if (c == '\t' || c == '\n' || c == '\r') return false;
    const uint32_t dropped = U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK;
    return c == 0 || c == 0xFFFD || (U_GET_GC_MASK(static_cast<UChar32>(c)) & dropped) != 0;
  }
  // The blocks that BERT takes for Chinese.
  static bool IsChinese(char32_t c) {
    static constexpr std::pair<char32_t, char32_t> kBlocks[] = {
        {0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
        {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
    return std::any_of(std::begin(kBlocks), std::end(kBlocks),
                       [c](const auto& block) { return c >= block.first && c <= block.second; });
  }

  Options options_;
  UnicodeNormalizer decompose_;
  std::array<char, 256> plain_ = {};
};

// What SentencePiece's rules for translation (nmt) do beside NFKC.
class NmtNormalizer : public Normalizer {
 protected:
  absl::StatusOr<std::string> Apply(std::string text, TextBudget*) const override {
    std::string out;
    ForEachChar(text, [&](char32_t c, absl::string_view bytes) {
      if (IsDropped(c)) return;
      absl::StrAppend(&out, IsSpace(c) ? absl::string_view(" ") : bytes);
    });
    return out;
  }

 private:
  static bool IsDropped(char32_t c) {
    return (c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
  }
  static bool IsSpace(char32_t c) {
    static constexpr char32_t kSpaces[] = {0x9, 0xA, 0xC, 0xD, 0x1680, 0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD};
    return std::count(std::begin(kSpaces), std::end(kSpaces), c) > 0 || (c >= 0x200B && c <= 0x200F);
  }
};

// A charsmap, as the package tokenizers applies it: a grapheme of less than six bytes of which a key is the front is
// replaced whole, else so is each of its characters.
class PrecompiledNormalizer : public Normalizer {
 public:
  PrecompiledNormalizer(CharsMap map, std::unique_ptr<icu::BreakIterator> graphemes)
      : map_(std::move(map)), graphemes_(std::move(graphemes)) {
    for (size_t c = 0; c < ascii_.size(); ++c) AppendGrapheme(std::string(1, static_cast<char>(c)), &ascii_[c]);
  }

 protected:
  absl::StatusOr<std::string> Apply(std::string text, TextBudget* budget) const override {
    if (text.size() > kMaxTextBytes) return absl::ResourceExhaustedError("the text is larger than 1 GiB");
    std::string out;
    out.reserve(text.size());
    std::unique_ptr<icu::BreakIterator> cuts;
    for (size_t at = 0; at < text.size() && out.size() <= budget->left();) {
      size_t end = at + 1;
      while (end < text.size() && !CutsBefore(text, end)) ++end;
      if (end == at + 1) {
        out += ascii_[static_cast<uint8_t>(text[at])];
      } else {
        if (cuts == nullptr) cuts.reset(graphemes_->clone());
        if (cuts == nullptr) return absl::ResourceExhaustedError("no memory to find graphemes");
        RETURN_IF_ERROR(AppendGraphemes(absl::string_view(text).substr(at, end - at), *budget, cuts.get(), &out));
      }
      at = end;
    }
    return out;
  }

 private:
  // Whether a grapheme begins at `at` for sure: between two ASCII characters, but "\r\n". A text between two such
  // places that is one byte long is ASCII, as no other character has one.
  static bool CutsBefore(absl::string_view text, size_t at) {
    const auto before = static_cast<uint8_t>(text[at - 1]), behind = static_cast<uint8_t>(text[at]);
    return (before | behind) < 0x80 && !(before == '\r' && behind == '\n');
  }

  absl::Status AppendGraphemes(absl::string_view text, const TextBudget& budget, icu::BreakIterator* cuts,
                               std::string* out) const {
    UErrorCode error = U_ZERO_ERROR;
    UText* utext = utext_openUTF8(nullptr, text.data(), static_cast<int64_t>(text.size()), &error);
    cuts->setText(utext, error);
    int32_t begin = cuts->first();
    for (int32_t end = cuts->next(); end != icu::BreakIterator::DONE && out->size() <= budget.left();
         end = cuts->next()) {
      AppendGrapheme(text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), out);
      begin = end;
    }
    utext_close(utext);
    if (U_FAILURE(error)) return absl::InternalError(absl::StrCat("graphemes: ", u_errorName(error)));
    return absl::OkStatus();
  }

  void AppendGrapheme(absl::string_view grapheme, std::string* out) const {
    if (grapheme.size() < 6) {
      if (const auto match = map_.Shortest(grapheme)) return absl::StrAppend(out, match->replacement);
    }
    ForEachChar(grapheme, [&](char32_t, absl::string_view bytes) {
      const auto match = map_.Shortest(bytes);
      absl::StrAppend(out, match ? match->replacement : bytes);
    });
  }

  CharsMap map_;
  std::unique_ptr<icu::BreakIterator> graphemes_;  // only cloned: one that has a text is not thread safe
  std::array<std::string, 128> ascii_;             // what a grapheme of one character becomes
};

absl::StatusOr<NormalizerPtr> MakeUnicode(const JsonNode& node, absl::string_view type) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* form = type == "NFC"    ? icu::Normalizer2::getNFCInstance(error)
                                 : type == "NFD"  ? icu::Normalizer2::getNFDInstance(error)
                                 : type == "NFKC" ? icu::Normalizer2::getNFKCInstance(error)
                                                  : icu::Normalizer2::getNFKDInstance(error);
  if (U_FAILURE(error)) return node.Error(absl::StrCat("ICU has no data for ", type, ": ", u_errorName(error)));
  return std::make_unique<UnicodeNormalizer>(form);
}

absl::StatusOr<NormalizerPtr> MakeReplace(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode pattern_node, node.Get("pattern"));
  ASSIGN_OR_RETURN(Pattern pattern, Pattern::FromJson(pattern_node));
  ASSIGN_OR_RETURN(const std::string content, node.GetString("content"));
  return std::make_unique<ReplaceNormalizer>(std::move(pattern), content);
}

absl::StatusOr<NormalizerPtr> MakeStrip(const JsonNode& node) {
  ASSIGN_OR_RETURN(const bool left, node.GetBool("strip_left", true));
  ASSIGN_OR_RETURN(const bool right, node.GetBool("strip_right", true));
  return std::make_unique<StripNormalizer>(left, right);
}

absl::StatusOr<NormalizerPtr> MakeBertNormalizer(const JsonNode& node) {
  BertNormalizer::Options options;
  ASSIGN_OR_RETURN(options.clean_text, node.GetBool("clean_text", true));
  ASSIGN_OR_RETURN(options.handle_chinese_chars, node.GetBool("handle_chinese_chars", true));
  ASSIGN_OR_RETURN(options.lowercase, node.GetBool("lowercase", true));
  ASSIGN_OR_RETURN(options.strip_accents, node.GetBool("strip_accents", options.lowercase));
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* decomposed = icu::Normalizer2::getNFDInstance(error);
  if (U_FAILURE(error)) return node.Error(absl::StrCat("ICU has no data for NFD: ", u_errorName(error)));
  return std::make_unique<BertNormalizer>(options, decomposed);
}

absl::StatusOr<NormalizerPtr> MakePrecompiled(const JsonNode& node) {
  ASSIGN_OR_RETURN(const std::string encoded, node.GetString("precompiled_charsmap"));
  std::string bytes;
  if (!absl::Base64Unescape(encoded, &bytes)) return node.Error("precompiled_charsmap is not base64");
  absl::StatusOr<CharsMap> map = CharsMap::FromBytes(bytes);
  if (!map.ok()) return node.Error(absl::StrCat("precompiled_charsmap: ", map.status().message()));
  UErrorCode error = U_ZERO_ERROR;
  std::unique_ptr<icu::BreakIterator> graphemes(
      icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), error));
  if (U_FAILURE(error)) return node.Error(absl::StrCat("ICU has no data for graphemes: ", u_errorName(error)));
  return std::make_unique<PrecompiledNormalizer>(*std::move(map), std::move(graphemes));
}

absl::StatusOr<NormalizerPtr> MakeNormalizers(const JsonNode& node) {
  ASSIGN_OR_RETURN(const std::vector<JsonNode> children, node.GetArray("normalizers"));
  std::vector<NormalizerPtr> steps;
  for (const JsonNode& child : children) {
    absl::StatusOr<NormalizerPtr> step = Normalizer::FromJson(child);
    if (!step.ok()) return step;
    steps.push_back(*std::move(step));
  }
  return std::make_unique<SequenceNormalizer>(std::move(steps));
}

}  // namespace

absl::StatusOr<std::string> Normalizer::Normalize(std::string text, TextBudget* budget) const {
  absl::StatusOr<std::string> result = Apply(std::move(text), budget);
  if (!result.ok()) return result;
  RETURN_IF_ERROR(budget->Spend(result->size()));
  return result;
}

absl::StatusOr<std::unique_ptr<Normalizer>> Normalizer::FromJson(const JsonNode& node) {
  ASSIGN_OR_RETURN(const std::string type, node.GetString("type"));
  if (type == "Sequence") return MakeNormalizers(node);
  if (type == "Replace") return MakeReplace(node);
  if (type == "Strip") return MakeStrip(node);
  if (type == "Lowercase") return std::make_unique<LowercaseNormalizer>();
  if (type == "BertNormalizer") return MakeBertNormalizer(node);
  if (type == "Precompiled") return MakePrecompiled(node);
  if (type == "Nmt") return std::make_unique<NmtNormalizer>();
  if (type == "StripAccents") return std::make_unique<StripAccentsNormalizer>();
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") return MakeUnicode(node, type);
  if (type == "Prepend") {
    ASSIGN_OR_RETURN(const std::string prefix, node.GetString("prepend"));
    return std::make_unique<PrependNormalizer>(prefix);
  }
  return node.Unsupported(absl::StrCat("normalizer \"", type, "\" is not supported"));
}

}  // namespace llmc
