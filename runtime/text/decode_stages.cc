#include "runtime/text/decode_stages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/types/optional.h"
#include "runtime/text/byte_level.h"
#include "runtime/text/utf8.h"

namespace llmc {
namespace {

constexpr char kReplacementChar[] = "\xEF\xBF\xBD";

class JoinStage : public DecodeStage {
 public:
  void Push(Fragment fragment, std::vector<Fragment>* out) override {
    if (fragment.begins && !first_) fragment.text.insert(0, " ");
    first_ = false;
    out->push_back(std::move(fragment));
  }

 private:
  bool first_ = true;
};

class FuseStage : public DecodeStage {
 public:
  void Push(Fragment fragment, std::vector<Fragment>* out) override {
    out->push_back({std::move(fragment.text), first_, false});
    first_ = false;
  }
  void Finish(std::vector<Fragment>* out) override { out->push_back({"", first_, true}); }

 private:
  bool first_ = true;
};

// A stage that needs each token whole.
class WholeTokenStage : public DecodeStage {
 public:
  void Push(Fragment fragment, std::vector<Fragment>* out) final {
    token_ += fragment.text;
    if (!fragment.ends) return;
    Token(std::exchange(token_, std::string()), out);
  }

 protected:
  virtual void Token(std::string token, std::vector<Fragment>* out) = 0;

 private:
  std::string token_;
};

class ByteLevelStage : public WholeTokenStage {
 public:
  void Finish(std::vector<Fragment>* out) override { Drain(/*last=*/true, out); }

 protected:
  void Token(std::string token, std::vector<Fragment>* out) override {
    pending_ += AlphabetToBytes(token);
    Drain(/*last=*/false, out);
  }

 private:
  void Drain(bool last, std::vector<Fragment>* out) {
    std::string text;
    DrainUtf8(&pending_, last, &text);
    out->push_back({std::move(text), first_, last});
    first_ = false;
  }

  std::string pending_;
  bool first_ = true;
};

class ByteFallbackStage : public WholeTokenStage {
 public:
  void Finish(std::vector<Fragment>* out) override { EndRun(out); }

 protected:
  void Token(std::string token, std::vector<Fragment>* out) override {
    if (const absl::optional<char> byte = ByteOfToken(token)) {
      run_.push_back(*byte);
      return;
    }
    EndRun(out);
    out->push_back({std::move(token), true, true});
  }

 private:
  void EndRun(std::vector<Fragment>* out) {
    if (run_.empty()) return;
    if (IsValidUtf8(run_)) {
      out->push_back({run_, true, true});
    } else {
      for (size_t i = 0; i < run_.size(); ++i) out->push_back({kReplacementChar, true, true});
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
  void Token(std::string token, std::vector<Fragment>* out) override {
    budget_.Grant(token.size());
    absl::StatusOr<std::string> replaced = pattern_.ReplaceAll(token, content_, &budget_);
    out->push_back({replaced.ok() ? *std::move(replaced) : std::move(token), true, true});
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
  void Push(Fragment fragment, std::vector<Fragment>* out) override {
    held_ += fragment.text;
    std::string text;
    absl::string_view rest = held_;
    for (size_t at = rest.find(literal_); at != absl::string_view::npos; at = rest.find(literal_)) {
      absl::StrAppend(&text, rest.substr(0, at), content_);
      rest.remove_prefix(at + literal_.size());
    }
    const size_t keep = fragment.ends ? 0 : PossibleStart(rest);
    absl::StrAppend(&text, rest.substr(0, rest.size() - keep));
    held_ = std::string(rest.substr(rest.size() - keep));
    out->push_back({std::move(text), fragment.begins, fragment.ends});
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
  std::string held_;
};

class StripStage : public DecodeStage {
 public:
  StripStage(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void Push(Fragment fragment, std::vector<Fragment>* out) override {
    if (fragment.begins) to_cut_ = start_;
    absl::string_view rest = fragment.text;
    while (to_cut_ > 0 && absl::StartsWith(rest, content_)) {
      rest.remove_prefix(content_.size());
      --to_cut_;
    }
    if (!rest.empty()) to_cut_ = 0;
    std::string text = absl::StrCat(held_, rest);
    held_.clear();
    for (int64_t i = 0; i < stop_ && absl::EndsWith(text, content_); ++i) {
      text.resize(text.size() - content_.size());
      held_ += content_;
    }
    if (fragment.ends) held_.clear();
    out->push_back({std::move(text), fragment.begins, fragment.ends});
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
  void Push(Fragment fragment, std::vector<Fragment>* out) override {
    const bool drop = first_token_ && options_.scheme != PrependScheme::kNever;
    if (fragment.ends) first_token_ = false;
    fragment.text = absl::StrReplaceAll(fragment.text, {{options_.replacement, drop ? "" : " "}});
    out->push_back(std::move(fragment));
  }

 private:
  MetaspaceOptions options_;
  bool first_token_ = true;
};

// One after the other, as the package tokenizers does it.
std::string CleanUp(std::string text) {
  static constexpr std::pair<absl::string_view, absl::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& rule : kRules) text = absl::StrReplaceAll(text, {rule});
  return text;
}

class WordPieceStage : public WholeTokenStage {
 public:
  WordPieceStage(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}

 protected:
  void Token(std::string token, std::vector<Fragment>* out) override {
    if (!first_) token = absl::StartsWith(token, prefix_) ? token.substr(prefix_.size()) : absl::StrCat(" ", token);
    first_ = false;
    out->push_back({cleanup_ ? CleanUp(std::move(token)) : std::move(token), true, true});
  }

 private:
  std::string prefix_;
  bool cleanup_;
  bool first_ = true;
};

class CtcStage : public WholeTokenStage {
 public:
  explicit CtcStage(CtcOptions options) : options_(std::move(options)) {}

 protected:
  void Token(std::string token, std::vector<Fragment>* out) override {
    if (previous_ == token) return;
    previous_ = token;
    token = absl::StrReplaceAll(token, {{options_.pad, ""}});
    if (options_.cleanup) token = absl::StrReplaceAll(CleanUp(std::move(token)), {{options_.delimiter, " "}});
    if (!token.empty()) out->push_back({std::move(token), true, true});
  }

 private:
  CtcOptions options_;
  absl::optional<std::string> previous_;
};

class BpeSuffixStage : public WholeTokenStage {
 public:
  explicit BpeSuffixStage(std::string suffix) : suffix_(std::move(suffix)) {}
  void Finish(std::vector<Fragment>* out) override {
    if (held_) out->push_back({absl::StrReplaceAll(*held_, {{suffix_, ""}}), true, true});
  }

 protected:
  void Token(std::string token, std::vector<Fragment>* out) override {
    if (held_) out->push_back({absl::StrReplaceAll(*held_, {{suffix_, " "}}), true, true});
    held_ = std::move(token);
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
