#include "runtime/text/regex.h"

#include <oniguruma.h>

#include <algorithm>
#include <chrono>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "runtime/text/utf8.h"

namespace llmc {
namespace {

constexpr size_t kMaxPatternBytes = 1 << 16;

const OnigUChar* AsUChar(const char* p) { return reinterpret_cast<const OnigUChar*>(p); }

std::string OnigMessage(int code, OnigErrorInfo* info) {
  OnigUChar buffer[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length =
      info == nullptr ? onig_error_code_to_str(buffer, code) : onig_error_code_to_str(buffer, code, info);
  return std::string(reinterpret_cast<char*>(buffer), static_cast<size_t>(length));
}

void InitializeOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
  });
}

// One pass of a regex over one text, with its limits.
class Scan {
 public:
  Scan(regex_t* regex, absl::string_view text) : regex_(regex), text_(text) {
    const unsigned long steps = 1'000'000 + 64 * static_cast<unsigned long>(text.size());
    onig_initialize_match_param(param_);
    onig_set_retry_limit_in_match_of_match_param(param_, steps);
    onig_set_retry_limit_in_search_of_match_param(param_, steps);
    onig_set_match_stack_limit_size_of_match_param(
        param_, static_cast<unsigned>(std::min<size_t>(1'000'000 + 8 * text.size(), UINT32_MAX / 2)));
    // The limits above hold for one search; a pattern that is slow at every match is stopped by the clock.
    deadline_ = std::chrono::steady_clock::now() + std::chrono::seconds(10 + text.size() / 100'000);
  }
  ~Scan() {
    onig_region_free(region_, 1);
    onig_free_match_param(param_);
  }
  Scan(const Scan&) = delete;
  Scan& operator=(const Scan&) = delete;

  // Sets *found; the match is [begin(), end()).
  absl::Status Search(size_t from, bool* found) {
    const OnigUChar* start = AsUChar(text_.data());
    const OnigUChar* end = start + text_.size();
    const int result = onig_search_with_param(regex_, start, end, start + from, end, region_, ONIG_OPTION_NONE, param_);
    *found = result >= 0;
    if (result < ONIG_MISMATCH) {
      return absl::InvalidArgumentError(absl::StrCat("a pattern of the tokenizer gives up on this text of ",
                                                     text_.size(), " bytes: ", OnigMessage(result, nullptr)));
    }
    if (std::chrono::steady_clock::now() > deadline_) {
      return absl::InvalidArgumentError(
          absl::StrCat("a pattern of the tokenizer is too slow on this text of ", text_.size(), " bytes"));
    }
    return absl::OkStatus();
  }
  size_t begin() const { return static_cast<size_t>(region_->beg[0]); }
  size_t end() const { return static_cast<size_t>(region_->end[0]); }

 private:
  regex_t* regex_;
  absl::string_view text_;
  OnigRegion* region_ = onig_region_new();
  OnigMatchParam* param_ = onig_new_match_param();
  std::chrono::steady_clock::time_point deadline_;
};

void AddMatch(size_t begin, size_t end, std::vector<TextSpan>* spans) {
  const size_t previous = spans->empty() ? 0 : spans->back().end;
  if (previous < begin) spans->push_back({previous, begin, false});
  spans->push_back({begin, end, true});
}

void AddRest(size_t size, std::vector<TextSpan>* spans) {
  const size_t previous = spans->empty() ? 0 : spans->back().end;
  if (previous < size) spans->push_back({previous, size, false});
}

std::vector<TextSpan> FindLiteral(absl::string_view literal, absl::string_view text) {
  std::vector<TextSpan> spans;
  for (size_t at = text.find(literal); at != absl::string_view::npos; at = text.find(literal, at + literal.size())) {
    AddMatch(at, at + literal.size(), &spans);
  }
  AddRest(text.size(), &spans);
  return spans;
}

absl::StatusOr<std::vector<TextSpan>> FindRegex(regex_t* regex, absl::string_view text) {
  Scan scan(regex, text);
  std::vector<TextSpan> spans;
  bool matched_before = false;
  for (size_t from = 0; from <= text.size();) {
    bool found = false;
    if (const absl::Status status = scan.Search(from, &found); !status.ok()) return status;
    if (!found) break;
    // An empty match right behind the last match would repeat for ever: step over a character.
    if (scan.begin() == scan.end() && matched_before && spans.back().end == scan.end()) {
      from += from < text.size() ? ReadUtf8(text.substr(from)).bytes : 1;
      continue;
    }
    AddMatch(scan.begin(), scan.end(), &spans);
    matched_before = true;
    from = scan.end();
  }
  AddRest(text.size(), &spans);
  return spans;
}

}  // namespace

struct Pattern::Compiled {
  regex_t* regex = nullptr;
  ~Compiled() {
    if (regex != nullptr) onig_free(regex);
  }
};

absl::StatusOr<Pattern> Pattern::FromRegex(absl::string_view regex) {
  InitializeOnce();
  if (regex.size() > kMaxPatternBytes) return absl::InvalidArgumentError("regular expression longer than 64 KiB");
  auto compiled = std::make_shared<Compiled>();
  OnigErrorInfo info;
  const OnigUChar* start = AsUChar(regex.data());
  const int code = onig_new(&compiled->regex, start, start + regex.size(), ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
                            ONIG_SYNTAX_RUBY, &info);
  if (code != ONIG_NORMAL) {
    compiled->regex = nullptr;
    return absl::InvalidArgumentError(absl::StrCat("bad regular expression: ", OnigMessage(code, &info)));
  }
  Pattern pattern;
  pattern.regex_ = std::move(compiled);
  return pattern;
}

absl::StatusOr<Pattern> Pattern::FromString(absl::string_view literal) {
  if (literal.empty()) return FromRegex("");
  Pattern pattern;
  pattern.literal_ = std::string(literal);
  return pattern;
}

absl::StatusOr<Pattern> Pattern::FromJson(const JsonNode& node) {
  if (const absl::Status status = node.ExpectObject(); !status.ok()) return status;
  const bool is_regex = node.Find("Regex").has_value();
  if (is_regex == node.Find("String").has_value()) return node.Error("needs one key, \"Regex\" or \"String\"");
  const absl::StatusOr<std::string> text = node.GetString(is_regex ? "Regex" : "String");
  if (!text.ok()) return text.status();
  absl::StatusOr<Pattern> pattern = is_regex ? FromRegex(*text) : FromString(*text);
  if (!pattern.ok()) return node.Error(pattern.status().message());
  return pattern;
}

absl::StatusOr<std::vector<TextSpan>> Pattern::FindAll(absl::string_view text) const {
  if (text.empty()) return std::vector<TextSpan>{{0, 0, false}};
  if (regex_ == nullptr) return FindLiteral(literal_, text);
  return FindRegex(regex_->regex, text);
}

absl::StatusOr<std::string> Pattern::ReplaceAll(absl::string_view text, absl::string_view content) const {
  const absl::StatusOr<std::vector<TextSpan>> spans = FindAll(text);
  if (!spans.ok()) return spans.status();
  std::string out;
  for (const TextSpan& span : *spans) {
    absl::StrAppend(&out, span.is_match ? content : text.substr(span.begin, span.end - span.begin));
  }
  return out;
}

}  // namespace llmc
