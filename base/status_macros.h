// The two macros of this project: they hand an error on to the caller of a function that returns absl::Status or
// absl::StatusOr.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns the absl::Status that the expression gives, if it is not OK.
#define RETURN_IF_ERROR(...)                                                 \
  do {                                                                       \
    if (absl::Status status_ = (__VA_ARGS__); !status_.ok()) return status_; \
  } while (false)

// ASSIGN_OR_RETURN(const Plan plan, ReadPlan(path)): initializes or assigns the first with the value of the
// absl::StatusOr that the rest gives, or returns its status. The first may hold no comma outside of parentheses. It is
// two statements: not for an `if` without braces.
#define ASSIGN_OR_RETURN(target, ...) LLMC_ASSIGN_OR_RETURN(LLMC_CONCATENATE(result_, __LINE__), target, __VA_ARGS__)

#define LLMC_CONCATENATE(a, b) LLMC_CONCATENATE_EXPANDED(a, b)
#define LLMC_CONCATENATE_EXPANDED(a, b) a##b
#define LLMC_ASSIGN_OR_RETURN(result, target, ...)     \
  auto result = (__VA_ARGS__);                         \
  if (!result.ok()) return std::move(result).status(); \
  target = *std::move(result)
