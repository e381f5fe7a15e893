#include "tools/chat_lines.h"

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tools/output.h"

namespace llmc {

std::atomic<bool> chat_interrupted = false;

namespace {

constexpr size_t kMaxLineBytes = size_t{64} << 20;
constexpr absl::string_view kQuotes = "\"\"\"";

struct sigaction action_before;

}  // namespace

ChatLines::ChatLines(bool prompts) : prompts_(prompts) {
  struct sigaction action = {};
  action.sa_handler = [](int) { chat_interrupted = true; };
  sigemptyset(&action.sa_mask);
  action.sa_flags = 0;  // reading ends with EINTR
  sigaction(SIGINT, &action, &action_before);
}

ChatLines::~ChatLines() { sigaction(SIGINT, &action_before, nullptr); }

std::optional<std::string> ChatLines::Line(absl::string_view prompt) {
  std::string line;
  bool warned = false;
  chat_interrupted = false;
  if (prompts_) PrintText(prompt);
  std::fflush(stdout);
  while (true) {
    errno = 0;
    const int c = std::getc(stdin);
    if (c == '\n') return line;
    if (c != EOF) {
      line += static_cast<char>(c);
      if (line.size() > kMaxLineBytes) return std::nullopt;
      continue;
    }
    if (!std::ferror(stdin) || errno != EINTR || !prompts_ || warned) {
      return std::feof(stdin) && !line.empty() ? std::optional<std::string>(line) : std::nullopt;
    }
    std::clearerr(stdin);
    warned = true;
    line.clear();
    PrintText(absl::StrCat("\n(Ctrl-C again or Ctrl-D ends; /help tells more)\n", prompt));
    std::fflush(stdout);
  }
}

std::optional<std::string> ChatLines::Text() {
  std::optional<std::string> line = Line("> ");
  if (!line.has_value()) return std::nullopt;
  std::string text;
  if (absl::StartsWith(*line, kQuotes)) {
    line->erase(0, kQuotes.size());
    while (!absl::EndsWith(*line, kQuotes)) {
      absl::StrAppend(&text, *line, "\n");
      line = Line("... ");
      if (!line.has_value()) return std::nullopt;
    }
    return absl::StrCat(text, absl::StripSuffix(*line, kQuotes));
  }
  while (absl::EndsWith(*line, "\\")) {
    absl::StrAppend(&text, absl::StripSuffix(*line, "\\"), "\n");
    line = Line("... ");
    if (!line.has_value()) return std::nullopt;
  }
  return absl::StrCat(text, *line);
}

}  // namespace llmc
