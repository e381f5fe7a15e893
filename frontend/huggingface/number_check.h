// Numbers of quantized weights that are none: NaN and infinities among codes and scales, which would become tokens of
// noise. All bytes are read, on all cores.
#pragma once

#include <cstdint>
#include <optional>

#include "ir/encoding.h"
#include "ir/tensor.h"

namespace llmc::hf {

// The first element that is NaN or infinite, of f8e4m3 or f8e5m2.
std::optional<int64_t> FirstNotFinite(const Tensor& codes);

// The first superblock of which a scale or minimum in f16 is NaN or infinite; `blocks` are bytes.
std::optional<int64_t> FirstBadSuperblock(const Tensor& blocks, const EncodingFormat& format);

}  // namespace llmc::hf
