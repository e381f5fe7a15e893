#include "runtime/text/decode_stages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "runtime/text/byte_level.h"
#include "runtime/text/utf8.h"

namespace llmc {
namespace {

constexpr char kReplacementChar[] = "\xEF\xBF\xBD";

// `text` with `content` for each `literal`, in `buffer` where there is one.
absl::string_view Replaced(absl::string_view text, absl::string_view literal, absl::string_view content,
                           std::string* buffer) {
  size_t at = text.find(literal);
  if (at == absl::string_view::npos) return text;
  buffer->clear();
  for (; at != absl::string_view::npos; at = text.find(literal)) {
    buffer->append(text.data(), at);
    buffer->append(content.data(), content.size());
    text.remove_prefix(at + literal.size());
  }
  buffer->append(text.data(), text.size());
  return *buffer;
}

class JoinStage : public DecodeStage {
 public:
  void Push(absl::string_view text, bool begins, bool ends) override {
    const bool is_next = begins && !first_;
    first_ = false;
    if (is_next) Emit(" ", true, false);
    Emit(text, begins && !is_next, ends);
  }

 private:
  bool first_ = true;
};

class FuseStage : public DecodeStage {
 public:
  void Push(absl::string_view text, bool, bool) override { Emit(text, std::exchange(first_, false), false); }
  void Finish() override { Emit("", first_, true); }

 private:
  bool first_ = true;
};

// A stage that needs each token whole.
class WholeTokenStage : public DecodeStage {
 public:
  void Push(absl::string_view text, bool, bool ends) final {
    if (ends && token_.empty()) return Token(text);
    token_.append(text.data(), text.size());
    if (!ends) return;
    Token(token_);
    token_.clear();
  }

 protected:
  virtual void Token(absl::string_view token) = 0;

 private:
  std::string token_;
};

class ByteLevelStage : public WholeTokenStage {
 public:
  void Finish() override { Drain(/*last=*/true); }

 protected:
  void Token(absl::string_view token) override {
    pending_ += AlphabetToBytes(token);
    Drain(/*last=*/false);
  }

 private:
  void Drain(bool last) {
    text_.clear();
    DrainUtf8(&pending_, last, &text_);
    Emit(text_, std::exchange(first_, false), last);
  }

  std::string pending_, text_;
  bool first_ = true;
};

class ByteFallbackStage : public WholeTokenStage {
 public:
  void Finish() override { EndRun(); }

 protected:
  void Token(absl::string_view token) override {
    if (const absl::optional<char> byte = ByteOfToken(token)) {
      run_.push_back(*byte);
      return;
    }
    EndRun();
    EmitToken(token);
  }

 private:
  void EndRun() {
    if (run_.empty()) return;
    if (IsValidUtf8(run_)) {
      EmitToken(run_);
    } else {
      for (size_t i = 0; i < run_.size(); ++i) EmitToken(kReplacementChar);
    }
    run_.clear();
  }

  std::string run_;
};

class ReplaceRegexStage : public WholeTokenStage {
 public:
  ReplaceRegexStage(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

 protected:
  void Token(absl::string_view token) override {
    budget_.Grant(token.size());
    const absl::StatusOr<std::string> replaced = pattern_.ReplaceAll(token, content_, &budget_);
    EmitToken(replaced.ok() ? absl::string_view(*replaced) : token);
  }

 private:
  Pattern pattern_;
  std::string content_;
  TextBudget budget_{0};
};

class ReplaceLiteralStage : public DecodeStage {
 public:
  ReplaceLiteralStage(std::string literal, std::string content)
      : literal_(std::move(literal)), content_(std::move(content)) {}
  void Push(absl::string_view text, bool begins, bool ends) override {
    if (ends && held_.empty()) return Emit(Replaced(text, literal_, content_, &buffer_), begins, ends);
    held_.append(text.data(), text.size());
    std::string replaced;
    absl::string_view rest = held_;
    for (size_t at = rest.find(literal_); at != absl::string_view::npos; at = rest.find(literal_)) {
      absl::StrAppend(&replaced, rest.substr(0, at), content_);
      rest.remove_prefix(at + literal_.size());
    }
    const size_t keep = ends ? 0 : PossibleStart(rest);
    absl::StrAppend(&replaced, rest.substr(0, rest.size() - keep));
    held_ = std::string(rest.substr(rest.size() - keep));
    Emit(replaced, begins, ends);
  }

 private:
  // Length of the longest end of `text` that could be the start of a match.
  size_t PossibleStart(absl::string_view text) const {
    for (size_t length = std::min(text.size(), literal_.size() - 1); length > 0; --length) {
      if (absl::StartsWith(literal_, text.substr(text.size() - length))) return length;
    }
    return 0;
  }

  std::string literal_;
  std::string content_;
  std::string held_, buffer_;
};

class StripStage : public DecodeStage {
 public:
  StripStage(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void Push(absl::string_view text, bool begins, bool ends) override {
    if (begins) to_cut_ = start_;
    while (to_cut_ > 0 && absl::StartsWith(text, content_)) {
      text.remove_prefix(content_.size());
      --to_cut_;
    }
    if (!text.empty()) to_cut_ = 0;
    if (stop_ == 0) return Emit(text, begins, ends);
    std::string cut = absl::StrCat(held_, text);
    held_.clear();
    for (int64_t i = 0; i < stop_ && absl::EndsWith(cut, content_); ++i) {
      cut.resize(cut.size() - content_.size());
      held_ += content_;
    }
    if (ends) held_.clear();
    Emit(cut, begins, ends);
  }

 private:
  std::string content_;
  int64_t start_;
  int64_t stop_;
  int64_t to_cut_ = 0;
  std::string held_;  // may turn out to be the end of the token
};

class MetaspaceStage : public DecodeStage {
 public:
  explicit MetaspaceStage(const MetaspaceOptions& options) : options_(options) {}
  void Push(absl::string_view text, bool begins, bool ends) override {
    const bool drop = first_token_ && options_.scheme != PrependScheme::kNever;
    if (ends) first_token_ = false;
    Emit(Replaced(text, options_.replacement, drop ? "" : " ", &buffer_), begins, ends);
  }

 private:
  MetaspaceOptions options_;
  std::string buffer_;
  bool first_token_ = true;
};

// One after the other, as the package tokenizers does it.
void CleanUp(std::string* text) {
  static constexpr std::pair<absl::string_view, absl::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  // Each rule finds nothing but behind a space.
  const auto may_match = [&](size_t space) {
    return absl::StrContains(".?!,'nd", absl::string_view(*text).substr(space + 1, 1));
  };
  size_t space = text->find(' ');
  while (space != std::string::npos && !may_match(space)) space = text->find(' ', space + 1);
  if (space == std::string::npos) return;
  for (const auto& rule : kRules) {
    if (absl::StrContains(*text, rule.first)) *text = absl::StrReplaceAll(*text, {rule});
  }
}

class WordPieceStage : public WholeTokenStage {
 public:
  WordPieceStage(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}

 protected:
  void Token(absl::string_view token) override {
    const bool is_next = !std::exchange(first_, false);
    const bool continues = is_next && absl::ConsumePrefix(&token, prefix_);
    text_.assign(is_next && !continues ? " " : "");
    text_.append(token.data(), token.size());
    if (cleanup_) CleanUp(&text_);
    EmitToken(text_);
  }

 private:
  std::string prefix_;
  std::string text_;
  bool cleanup_;
  bool first_ = true;
};

class CtcStage : public WholeTokenStage {
 public:
  explicit CtcStage(CtcOptions options) : options_(std::move(options)) {}

 protected:
  void Token(absl::string_view token) override {
    if (previous_ == token) return;
    previous_ = std::string(token);
    std::string text = absl::StrReplaceAll(token, {{options_.pad, ""}});
    if (options_.cleanup) {
      CleanUp(&text);
      text = absl::StrReplaceAll(text, {{options_.delimiter, " "}});
    }
    if (!text.empty()) EmitToken(text);
  }

 private:
  CtcOptions options_;
  absl::optional<std::string> previous_;
};

class BpeSuffixStage : public WholeTokenStage {
 public:
  explicit BpeSuffixStage(std::string suffix) : suffix_(std::move(suffix)) {}
  void Finish() override {
    if (held_) EmitToken(absl::StrReplaceAll(*held_, {{suffix_, ""}}));
  }

 protected:
  void Token(absl::string_view token) override {
    if (held_) EmitToken(absl::StrReplaceAll(*held_, {{suffix_, " "}}));
    held_ = std::string(token);
  }

 private:
  std::string suffix_;
  absl::optional<std::string> held_;  // may turn out to be the last
};

}  // namespace

absl::optional<char> ByteOfToken(absl::string_view token) {
  if (token.size() != 6 || !absl::StartsWith(token, "<0x") || token[5] != '>') return absl::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return absl::nullopt;
    value = value * 16 + (absl::ascii_isdigit(static_cast<unsigned char>(c)) ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return static_cast<char>(value);
}

std::unique_ptr<DecodeStage> NewJoinStage() { return std::make_unique<JoinStage>(); }

std::unique_ptr<DecodeStage> NewFuseStage() { return std::make_unique<FuseStage>(); }

std::unique_ptr<DecodeStage> NewByteLevelStage() { return std::make_unique<ByteLevelStage>(); }

std::unique_ptr<DecodeStage> NewByteFallbackStage() { return std::make_unique<ByteFallbackStage>(); }

std::unique_ptr<DecodeStage> NewReplaceStage(Pattern pattern, std::string content) {
  if (!pattern.literal().empty()) return std::make_unique<ReplaceLiteralStage>(pattern.literal(), std::move(content));
  return std::make_unique<ReplaceRegexStage>(std::move(pattern), std::move(content));
}

std::unique_ptr<DecodeStage> NewStripStage(std::string content, int64_t start, int64_t stop) {
  return std::make_unique<StripStage>(std::move(content), start, stop);
}

std::unique_ptr<DecodeStage> NewMetaspaceStage(const MetaspaceOptions& options) {
  return std::make_unique<MetaspaceStage>(options);
}

std::unique_ptr<DecodeStage> NewWordPieceStage(std::string prefix, bool cleanup) {
  return std::make_unique<WordPieceStage>(std::move(prefix), cleanup);
}

std::unique_ptr<DecodeStage> NewCtcStage(const CtcOptions& options) { return std::make_unique<CtcStage>(options); }

std::unique_ptr<DecodeStage> NewBpeSuffixStage(std::string suffix) {
  return std::make_unique<BpeSuffixStage>(std::move(suffix));
}

}  // namespace llmc
