#include "runtime/text/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/text/byte_level.h"
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

class LowercaseNormalizer : public Normalizer {
 protected:
  absl::StatusOr<std::string> Apply(std::string text, TextBudget*) const override {
    std::string out;
    ForEachChar(text, [&](char32_t c, absl::string_view) {
      AppendUtf8(c == 0x130 ? U'i' : static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))), &out);
      if (c == 0x130) AppendUtf8(0x307, &out);  // the one character whose lower case is two
    });
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
      if (u_charType(static_cast<UChar32>(c)) != U_NON_SPACING_MARK) absl::StrAppend(&out, bytes);
    });
    return out;
  }
};

class ByteLevelNormalizer : public Normalizer {
 protected:
  absl::StatusOr<std::string> Apply(std::string text, TextBudget*) const override { return BytesToAlphabet(text); }
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
