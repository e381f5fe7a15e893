// How the metadata and tensors of a GGUF file say that positions rotate, as config.json says it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "frontend/formats/gguf.h"

namespace llmc::hf {

// The keys that PutGgufRope reads, behind the name of the architecture and a dot.
absl::Span<const absl::string_view> GgufRopeKeys();

// Sets head_dim, partial_rotary_factor and rope_scaling. `prefix` is the name of the architecture and a dot; of the
// keys of sizes the file has attention.head_count, embedding_length and context_length. `path` is used in errors.
absl::Status PutGgufRope(const std::string& path, const GgufFile& file, const std::string& prefix,
                         nlohmann::json* config);

}  // namespace llmc::hf
