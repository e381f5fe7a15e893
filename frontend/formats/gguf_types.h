// The types of tensors in GGUF files (enum ggml_type of https://github.com/ggml-org/ggml).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"

namespace llmc {

// Those with neither a DType nor the name of an encoding are not supported.
struct GgmlType {
  uint32_t number;
  absl::string_view name;
  std::optional<DType> dtype = std::nullopt;
  absl::string_view encoding = "";

  bool is_supported() const { return dtype.has_value() || !encoding.empty(); }
};

// nullptr: there is none of this number.
const GgmlType* FindGgmlType(uint32_t number);

// The error for tensors, by the numbers of their types and their names, whose types are not supported.
absl::Status UnsupportedGgmlTypes(const std::string& path,
                                  absl::Span<const std::pair<uint32_t, absl::string_view>> tensors);

}  // namespace llmc
