#include "runtime/text/sentencepiece_steps.h"

#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/text/decode_stages.h"
#include "runtime/text/utf8.h"

namespace llmc {
namespace {

constexpr char kMark[] = "\xE2\x96\x81";

class SentencePieceNormalizer : public Normalizer {
 public:
  explicit SentencePieceNormalizer(SentencePieceSpec spec) : spec_(std::move(spec)) {
    for (size_t c = 1; c < is_itself_.size(); ++c) {
      std::string text(1, static_cast<char>(c));
      is_itself_[c] = c != ' ' && Next(text).replacement == text;
      text.push_back('\0');
      for (size_t next = 0; next < is_itself_.size() && is_itself_[c]; ++next) {
        text[1] = static_cast<char>(next);
        is_itself_[c] = !spec_.chars_map.HasPrefix(text) && !spec_.symbols.HasPrefix(text);
      }
    }
  }

 protected:
  absl::StatusOr<std::string> Apply(std::string text, TextBudget* budget) const override {
    const bool trims = spec_.remove_extra_whitespaces;
    const absl::string_view space = spec_.escape_whitespaces ? kMark : " ";
    absl::string_view rest = text;
    while (trims && !rest.empty()) {
      const CharsMap::Match next = Next(rest);
      if (next.replacement != " ") break;
      rest.remove_prefix(next.bytes);
    }
    if (rest.empty()) return std::string();
    const bool prefix = spec_.add_dummy_prefix && !spec_.treat_whitespace_as_suffix;
    std::string out(prefix ? space : "");
    out.reserve(text.size() + text.size() / 2);
    bool after_space = trims;
    while (!rest.empty()) {
      if (const size_t plain = CountItself(rest); plain > 0) {
        out.append(rest.data(), plain);
        rest.remove_prefix(plain);
        after_space = false;
        continue;
      }
      CharsMap::Match next = Next(rest);
      rest.remove_prefix(next.bytes);
      while (after_space && absl::StartsWith(next.replacement, " ")) next.replacement.remove_prefix(1);
      if (next.replacement.empty()) continue;
      after_space = trims && absl::EndsWith(next.replacement, " ");
      for (const char c : next.replacement) {
        if (c == ' ') {
          out.append(space.data(), space.size());
        } else {
          out.push_back(c);
        }
      }
      if (out.size() > budget->left()) break;  // the caller refuses it
    }
    while (trims && absl::EndsWith(out, space)) out.resize(out.size() - space.size());
    if (spec_.add_dummy_prefix && spec_.treat_whitespace_as_suffix) absl::StrAppend(&out, space);
    return out;
  }

 private:
  // How many characters at the beginning stay as they are: ASCII before ASCII.
  size_t CountItself(absl::string_view text) const {
    size_t count = 0;
    const auto is_ascii = [&](size_t at) { return static_cast<uint8_t>(text[at]) < 0x80; };
    while (count < text.size() && is_ascii(count) && is_itself_[static_cast<uint8_t>(text[count])]) ++count;
    if (count > 0 && count < text.size() && !is_ascii(count)) --count;  // the last may be part of a key with it
    return count;
  }
  // What comes next in non-empty text, and what it becomes.
  CharsMap::Match Next(absl::string_view text) const {
    size_t symbol = 0;
    spec_.symbols.ForEachPrefix(text, [&](size_t length, int32_t) { symbol = length; });
    if (symbol > 0) return {symbol, text.substr(0, symbol)};
    const absl::optional<CharsMap::Match> match = spec_.chars_map.Longest(text);
    // A key of a hostile map may end inside a character.
    if (match && (match->bytes == text.size() || (static_cast<uint8_t>(text[match->bytes]) & 0xC0) != 0x80)) {
      return *match;
    }
    const size_t character = ReadUtf8(text).bytes;
    return {character, text.substr(0, character)};
  }

  SentencePieceSpec spec_;
  std::array<bool, 128> is_itself_ =
      {};  // ASCII characters that become themselves: no key begins with them and another one
};

class SentencePieceStage : public DecodeStage {
 public:
  explicit SentencePieceStage(SentencePieceDecoding options) : options_(std::move(options)) {}

  void Push(absl::string_view piece, bool, bool) override {
    const absl::optional<char> byte = options_.has_bytes ? ByteOfToken(piece) : absl::nullopt;
    if (byte) {
      bytes_.push_back(*byte);
      EmitText(TakeBytes(/*last=*/false));
      return;
    }
    if (!bytes_.empty()) EmitText(TakeBytes(/*last=*/true));
    if (first_space_dropped_ || has_text_) at_front_ = false;
    first_space_dropped_ = false;
    if (piece == options_.unknown) return EmitText(options_.unknown_surface);
    if (at_front_ && options_.drops_first_space && absl::ConsumePrefix(&piece, kMark)) {
      first_space_dropped_ = !options_.drops_all_first_spaces;
    }
    EmitText(absl::StrContains(piece, kMark) ? WithSpaces(piece) : piece);
  }

  void Finish() override { EmitText(TakeBytes(/*last=*/true)); }

 private:
  void EmitText(absl::string_view text) {
    if (text.empty()) return;
    has_text_ = true;
    EmitToken(text);
  }

  absl::string_view WithSpaces(absl::string_view piece) {
    with_spaces_.clear();
    while (!piece.empty()) {
      const bool is_space = absl::ConsumePrefix(&piece, kMark);
      with_spaces_.push_back(is_space ? ' ' : piece[0]);
      if (!is_space) piece.remove_prefix(1);
    }
    return with_spaces_;
  }

  // The characters of the run of bytes; with `last` also of a cut-off one at its end.
  std::string TakeBytes(bool last) {
    std::string text;
    absl::string_view rest = bytes_;
    while (!rest.empty()) {
      const Utf8Char c = ReadUtf8(rest);
      if (c.kind == Utf8Char::kTruncated && !last) break;
      const bool is_valid = c.kind == Utf8Char::kValid;
      absl::StrAppend(&text, is_valid ? rest.substr(0, c.bytes) : "\xEF\xBF\xBD");
      rest.remove_prefix(is_valid ? c.bytes : 1);
    }
    bytes_ = std::string(rest);
    return text;
  }

  SentencePieceDecoding options_;
  std::string bytes_;  // of a run of byte tokens
  std::string with_spaces_;
  bool at_front_ = true;
  bool first_space_dropped_ = false;  // by the token before
  bool has_text_ = false;
};

}  // namespace

std::unique_ptr<Normalizer> NewSentencePieceNormalizer(SentencePieceSpec spec) {
  return std::make_unique<SentencePieceNormalizer>(std::move(spec));
}

std::unique_ptr<DecodeStage> NewSentencePieceStage(const SentencePieceDecoding& options) {
  return std::make_unique<SentencePieceStage>(options);
}

}  // namespace llmc
