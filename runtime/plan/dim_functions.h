// What sizes call by name: see dim_expression.h.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace llmc {

struct DimFunction {
  absl::string_view name;
  size_t arity = 0;
  // Nothing where the function has no value.
  std::optional<int64_t> (*call)(absl::Span<const int64_t>) = nullptr;
};

absl::Span<const DimFunction> DimFunctions();

}  // namespace llmc
