// The superblocks of GGUF: their scales and minima lie among their codes.
#pragma once

#include "absl/types/span.h"
#include "ir/encoding.h"

namespace llmc {

// Each decodes as ggml-quants.c of llama.cpp defines it.
absl::Span<const EncodingFormat> SuperblockFormats();

}  // namespace llmc
