#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "frontend/huggingface/blocks.h"

namespace llmc::hf {

// The layers of a decoder over whole texts, without a cache and without the head. Unimplemented names what of the
// decoder towers do not have; `file` is its config.json.
absl::StatusOr<EncoderSpec> TowerOfDecoder(DecoderSpec decoder, const std::string& file);

}  // namespace llmc::hf
