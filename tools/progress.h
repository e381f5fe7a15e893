// One line of progress on a terminal; silent in a pipe or file.
#pragma once

#include <chrono>
#include <string>

#include "absl/strings/string_view.h"

namespace llmc {

// Shows "score 3/7 (1.2 s)" on standard error, rewritten in place, when that is a terminal.
class Progress {
 public:
  Progress();
  ~Progress() { Clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Stage(absl::string_view name);
  void Count(int64_t done, int64_t total);  // of the stage
  void Clear() const;                       // the line; needed before anything else is printed

 private:
  void Draw(absl::string_view tail);

  const bool shown_;
  const bool color_;
  const std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point drawn_;
  std::string stage_;
};

}  // namespace llmc
