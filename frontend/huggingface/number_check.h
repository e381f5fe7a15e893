// Numbers of weights that are none: NaN and infinities, also among codes and scales, which would become tokens of
// noise. All bytes are read, on all cores.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ir/encoding.h"
#include "ir/tensor.h"

namespace llmc::hf {

// The first element that is NaN or infinite, of any type of floats.
std::optional<int64_t> FirstNotFinite(const Tensor& numbers);

// "[7, 5]", the place of an element; of a scalar "".
std::string PlaceOf(int64_t element, const Shape& shape);

// The first superblock of which a scale or minimum in f16 is NaN or infinite; `blocks` are bytes.
std::optional<int64_t> FirstBadSuperblock(const Tensor& blocks, const EncodingFormat& format);

}  // namespace llmc::hf
