// Finds stop strings in text that arrives in pieces.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace llmc {

// Not thread safe.
class StopStrings {
 public:
  // Each must be valid UTF-8 and not empty, and text come in whole characters; so do the results then.
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes more text; returns what can be shown: all before the first stop string, less an end that may become one.
  std::string Push(absl::string_view text);
  // No more text comes: what was held back.
  std::string Finish();
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace llmc
