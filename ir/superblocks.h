// The superblocks of GGUF: their scales and minima lie among their codes.
#pragma once

#include "absl/types/span.h"
#include "ir/encoding.h"

namespace llmc {

// Blocks and what they stand for are those of ggml (ggml-common.h, and the reference functions of ggml-quants.c):
// https://github.com/ggml-org/ggml. Each decodes to the same f32, bit for bit. mxfp4_gguf holds what mxfp4 does (OCP
// MX) in an order of its own; as in ggml, its exponent 255 is a number.
absl::Span<const EncodingFormat> SuperblockFormats();

}  // namespace llmc
