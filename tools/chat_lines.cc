#include "tools/chat_lines.h"

#include <poll.h>
#include <unistd.h>

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
constexpr int kEnd = -1, kInterrupted = -2;
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

// The next byte of standard input; kInterrupted, kEnd. SIGINT is let in only while this waits, so that none is missed
// between a look at the flag and the wait.
int ChatLines::Byte() {
  if (next_ < buffer_.size()) return static_cast<unsigned char>(buffer_[next_++]);
  sigset_t only_interrupt, before;
  sigemptyset(&only_interrupt);
  sigaddset(&only_interrupt, SIGINT);
  pthread_sigmask(SIG_BLOCK, &only_interrupt, &before);
  pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  const int ready = chat_interrupted ? -1 : ppoll(&input, 1, nullptr, &before);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (ready < 0) {
    chat_interrupted = false;
    return kInterrupted;
  }
  char bytes[4096];
  const ssize_t count = read(STDIN_FILENO, bytes, sizeof bytes);
  if (count < 0 && errno == EINTR) return kInterrupted;
  if (count <= 0) return kEnd;
  buffer_.assign(bytes, static_cast<size_t>(count));
  next_ = 1;
  return static_cast<unsigned char>(buffer_[0]);
}

std::optional<std::string> ChatLines::Line(absl::string_view prompt) {
  std::string line;
  bool warned = false;
  chat_interrupted = false;
  if (prompts_) PrintText(prompt);
  std::fflush(stdout);
  while (true) {
    const int c = Byte();
    if (c == '\n') return line;
    if (c >= 0) {
      line += static_cast<char>(c);
      if (line.size() > kMaxLineBytes) return std::nullopt;
      continue;
    }
    if (c == kEnd) return line.empty() ? std::nullopt : std::optional<std::string>(line);
    if (!prompts_ || warned) return std::nullopt;
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
