#include "runtime/text/regex.h"

#include <oniguruma.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/text/utf8.h"

namespace llmc {
namespace {

constexpr size_t kMaxPatternBytes = 1 << 16;
constexpr size_t kMaxLiteralBytes = 1 << 10;  // searches take up to this times the text's length

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

int64_t ThreadMicroseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

// One pass of a regex over one text. Retries are counted, so the same text fails the same way everywhere; but Oniguruma
// counts nothing where a pattern looks far ahead at every position, so processor time is limited too.
class Scan {
 public:
  Scan(regex_t* regex, absl::string_view text, TextBudget* budget) : regex_(regex), text_(text), budget_(budget) {
    onig_initialize_match_param(param_);
    onig_set_match_stack_limit_size_of_match_param(
        param_, static_cast<unsigned>(std::min<size_t>(1'000'000 + 8 * text.size(), UINT32_MAX / 2)));
  }
  ~Scan() {
    budget_->microseconds -= ThreadMicroseconds() - start_;
    onig_region_free(region_, 1);
    onig_free_match_param(param_);
  }
  Scan(const Scan&) = delete;
  Scan& operator=(const Scan&) = delete;

  // Looks for the first match at or behind `from`. Sets *found; the match is [begin(), end()).
  absl::Status Search(size_t from, bool* found) {
    *found = false;
    for (size_t at = from; at <= text_.size() && !*found; at += at < text_.size() ? CharBytes(at) : 1) {
      RETURN_IF_ERROR(MatchAt(at, found));
    }
    return absl::OkStatus();
  }
  size_t begin() const { return static_cast<size_t>(region_->beg[0]); }
  size_t end() const { return static_cast<size_t>(region_->end[0]); }

 private:
  // Most matches need few retries. One that needs more is tried again with twice as many, each time from the budget.
  static constexpr unsigned long kFreeRetries = 64;
  static constexpr int kMatchesPerClock = 16;

  size_t CharBytes(size_t at) const { return ReadUtf8(text_.substr(at)).bytes; }

  absl::Status MatchAt(size_t at, bool* found) {
    if (++matches_ % kMatchesPerClock == 0 && IsLate()) return TooSlow();
    for (unsigned long retries = kFreeRetries;; retries *= 2) {
      onig_set_retry_limit_in_match_of_match_param(param_, retries);
      onig_set_retry_limit_in_search_of_match_param(param_, retries);
      const OnigUChar* start = AsUChar(text_.data());
      const int result =
          onig_match_with_param(regex_, start, start + text_.size(), start + at, region_, ONIG_OPTION_NONE, param_);
      *found = result >= 0;
      if (result >= ONIG_MISMATCH) return absl::OkStatus();
      if (result != ONIGERR_RETRY_LIMIT_IN_MATCH_OVER && result != ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER) {
        return absl::ResourceExhaustedError(absl::StrCat("a pattern gives up on this text of ", text_.size(),
                                                         " bytes: ", OnigMessage(result, nullptr)));
      }
      if (retries > budget_->retries || IsLate()) return TooSlow();
      budget_->retries -= retries;
    }
  }

  bool IsLate() const { return ThreadMicroseconds() - start_ > budget_->microseconds; }
  absl::Status TooSlow() const {
    return absl::ResourceExhaustedError(
        absl::StrCat("a pattern is too slow on this text of ", text_.size(), " bytes; shorten the text"));
  }

  regex_t* regex_;
  absl::string_view text_;
  TextBudget* budget_;
  OnigRegion* region_ = onig_region_new();
  OnigMatchParam* param_ = onig_new_match_param();
  unsigned matches_ = 0;
  int64_t start_ = ThreadMicroseconds();
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

std::vector<TextSpan> FindWords(WordMatcher matcher, absl::string_view text) {
  std::vector<TextSpan> spans;
  for (size_t at = 0, end = 0; at < text.size(); at = end) {
    end = matcher(text, at);
    spans.push_back({at, end, true});
  }
  return spans;
}

absl::StatusOr<std::vector<TextSpan>> FindRegex(regex_t* regex, absl::string_view text, TextBudget* budget) {
  Scan scan(regex, text, budget);
  std::vector<TextSpan> spans;
  bool matched_before = false;
  for (size_t from = 0; from <= text.size();) {
    bool found = false;
    RETURN_IF_ERROR(scan.Search(from, &found));
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

// A call such as \g<name> makes recursive patterns, and ones that take for ever to compile.
bool HasCall(absl::string_view regex) {
  for (size_t at = regex.find('\\'); at != absl::string_view::npos; at = regex.find('\\', at + 2)) {
    if (regex.substr(at + 1, 1) == "g") return true;
  }
  return false;
}

}  // namespace

struct Pattern::Compiled {
  regex_t* regex = nullptr;
  ~Compiled() {
    if (regex != nullptr) onig_free(regex);
  }
};

absl::StatusOr<Pattern> Pattern::FromRegex(absl::string_view regex) {
  ASSIGN_OR_RETURN(Pattern pattern, Compile(regex, /*possessive_intervals=*/false));
  pattern.word_matcher_ = FindWordMatcher(regex, /*rust_syntax=*/false);
  return pattern;
}

absl::StatusOr<Pattern> Pattern::FromRustRegex(absl::string_view regex) {
  std::string translated;
  bool in_class = false;
  for (size_t i = 0; i < regex.size(); ++i) {
    const absl::string_view c = regex.substr(i, regex[i] == '\\' ? 2 : 1);
    i += c.size() - 1;
    if (c == "[") in_class = true;
    if (c == "]") in_class = false;
    absl::StrAppend(&translated, in_class || (c != "$" && c != "^") ? c : c == "$" ? "\\z" : "\\A");
  }
  ASSIGN_OR_RETURN(Pattern pattern, Compile(translated, /*possessive_intervals=*/true));
  pattern.word_matcher_ = FindWordMatcher(regex, /*rust_syntax=*/true);
  return pattern;
}

absl::StatusOr<Pattern> Pattern::Compile(absl::string_view regex, bool possessive_intervals) {
  InitializeOnce();
  if (regex.size() > kMaxPatternBytes) return absl::InvalidArgumentError("regular expression longer than 64 KiB");
  if (HasCall(regex)) return absl::InvalidArgumentError("regular expressions with calls (\\g) are not supported");
  auto compiled = std::make_shared<Compiled>();
  OnigErrorInfo info;
  OnigSyntaxType syntax = *ONIG_SYNTAX_RUBY;
  if (possessive_intervals) syntax.op2 |= ONIG_SYN_OP2_PLUS_POSSESSIVE_INTERVAL;
  const OnigUChar* start = AsUChar(regex.data());
  const int code =
      onig_new(&compiled->regex, start, start + regex.size(), ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, &syntax, &info);
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
  if (literal.size() > kMaxLiteralBytes) return absl::InvalidArgumentError("string to look for longer than 1 KiB");
  Pattern pattern;
  pattern.literal_ = std::string(literal);
  return pattern;
}

absl::StatusOr<Pattern> Pattern::FromJson(const JsonNode& node) {
  RETURN_IF_ERROR(node.ExpectObject());
  const bool is_regex = node.Find("Regex").has_value();
  if (is_regex == node.Find("String").has_value()) return node.Error("needs one key, \"Regex\" or \"String\"");
  ASSIGN_OR_RETURN(const std::string text, node.GetString(is_regex ? "Regex" : "String"));
  absl::StatusOr<Pattern> pattern = is_regex ? FromRegex(text) : FromString(text);
  if (!pattern.ok()) return node.Error(pattern.status().message());
  return pattern;
}

absl::StatusOr<std::vector<TextSpan>> Pattern::FindAll(absl::string_view text, TextBudget* budget) const {
  if (text.empty()) return std::vector<TextSpan>{{0, 0, false}};
  if (regex_ == nullptr) return FindLiteral(literal_, text);
  if (word_matcher_ != nullptr) return FindWords(word_matcher_, text);
  return FindRegex(regex_->regex, text, budget);
}

double Pattern::MaxGrowth(absl::string_view content) const {
  const auto size = static_cast<double>(content.size());
  // A regular expression may match every byte, and nothing before and behind it.
  return regex_ == nullptr ? std::max(1.0, size / static_cast<double>(literal_.size())) : 1 + 2 * size;
}

absl::StatusOr<std::string> Pattern::ReplaceAll(absl::string_view text, absl::string_view content,
                                                TextBudget* budget) const {
  ASSIGN_OR_RETURN(const std::vector<TextSpan> spans, FindAll(text, budget));
  std::string out;
  for (const TextSpan& span : spans) {
    const absl::string_view part = span.is_match ? content : text.substr(span.begin, span.end - span.begin);
    if (part.size() > budget->left() - out.size()) {
      return absl::ResourceExhaustedError("replacing makes the text too long");
    }
    absl::StrAppend(&out, part);
  }
  return out;
}

}  // namespace llmc
