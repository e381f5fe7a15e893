// The error that ends the work on a template, and the count of what the work takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "runtime/chat/limits.h"

namespace llmc::jinja {

// Thrown by everything in this folder's inside and caught in chat_template.cc, which makes an absl::Status of it: an
// interpreter whose every step returns a status would be twice as long.
class TemplateError : public std::exception {
 public:
  TemplateError(absl::StatusCode code, int line, std::string message)
      : code_(code), line_(line), message_(std::move(message)) {}
  absl::StatusCode code() const { return code_; }
  int line() const { return line_; }  // of the template, from 1 on; 0: none
  const std::string& message() const { return message_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  absl::StatusCode code_;
  int line_;
  std::string message_;
};

// Counts what one rendering takes. Must outlive all values made with it.
class Budget {
 public:
  explicit Budget(const TemplateLimits& limits) : limits_(limits) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // InvalidArgument, Unimplemented and ResourceExhausted, at the line that runs.
  [[noreturn]] void Fail(absl::string_view message) const;
  [[noreturn]] void Refuse(absl::string_view message) const;
  [[noreturn]] void Exhaust(absl::string_view what, int64_t limit) const;

  void Step(int64_t count = 1) {
    steps_ += count;
    if (steps_ > limits_.steps) Exhaust("steps", limits_.steps);
  }
  // For work that is linear in `bytes`, which must not be negative.
  void StepBytes(size_t bytes) { Step(1 + static_cast<int64_t>(bytes / 16)); }
  void Take(int64_t bytes) {
    CheckRoom(bytes);
    memory_ += bytes;
  }
  void GiveBack(int64_t bytes) { memory_ -= bytes; }
  // Whether so many bytes may be taken, before they are.
  void CheckRoom(int64_t bytes) const {
    if (bytes > limits_.memory_bytes - memory_) Exhaust("bytes of memory", limits_.memory_bytes);
  }
  void CheckDepth(int depth) const {
    if (depth > limits_.depth) Exhaust("levels of nesting", limits_.depth);
  }
  const TemplateLimits& limits() const { return limits_; }

  int line = 0;  // what runs

 private:
  const TemplateLimits limits_;
  int64_t steps_ = 0;
  int64_t memory_ = 0;
};

}  // namespace llmc::jinja
