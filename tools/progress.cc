#include "tools/progress.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kRedraw = std::chrono::milliseconds(100);

bool TerminalShown() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) && (term == nullptr || absl::string_view(term) != "dumb");
}

bool ColorWanted() {
  const char* no_color = std::getenv("NO_COLOR");  // https://no-color.org
  return no_color == nullptr || *no_color == '\0';
}

}  // namespace

Progress::Progress() : shown_(TerminalShown()), color_(ColorWanted()), start_(Clock::now()), drawn_(start_) {}

void Progress::Clear() const {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void Progress::Stage(absl::string_view name) {
  stage_ = std::string(name);
  Draw("");
}

void Progress::Count(int64_t done, int64_t total) {
  if (Clock::now() - drawn_ < kRedraw) return;
  Draw(absl::StrCat(" ", done, "/", total));
}

void Progress::Draw(absl::string_view tail) {
  if (!shown_) return;
  drawn_ = Clock::now();
  const double seconds = std::chrono::duration<double>(drawn_ - start_).count();
  std::fprintf(stderr, "\r\033[K%s%s%s%s (%.1f s)", color_ ? "\033[1m" : "", stage_.c_str(), color_ ? "\033[0m" : "",
               std::string(tail).c_str(), seconds);
  std::fflush(stderr);
}

}  // namespace llmc
