// Forms of weights that several methods have in common.
#pragma once

#include <string>

#include "frontend/huggingface/quantized/part_reader.h"
#include "frontend/huggingface/quantized/scheme.h"
#include "ir/encoding.h"
#include "ir/ops_encoded.h"

namespace llmc::hf {

// Numbers of 8 bits, one for each weight: MODULE.CODES [out, in], with MODULE.SCALE, which multiplies.
struct ByteForm {
  bool is_float = true;  // f8e4m3, else i8
  std::string codes = "weight", scale = "weight_scale";
  std::string zero = "";  // zero points as the scales; empty: there are none
  Granularity per = Granularity::kTensor;
  int64_t group = 0, rows = 0, columns = 0;  // of kGroup and kBlock
  std::string order = "";                    // groups of columns (g_idx); empty: they lie in order
  bool needs_order = false;                  // without MODULE.ORDER nobody knows them
};
std::string EncodingOf(const ByteForm& form, DType scale);
EncodedParts ReadBytes(const ByteForm& form, const LinearModule& module, PartReader& reader);

// The columns in the order of their groups, which MODULE.ORDER says. nullptr if they lie in order, as where it is not
// there or -1 throughout.
Value* OrderOf(const ByteForm& form, const LinearModule& module, PartReader& reader);

// NVFP4: two codes of e2m1 in a byte, the first in its low half, MODULE.CODES u8 [out, in / 2], a scale in f8e4m3 for
// 16 of them, MODULE.SCALE [out, in / 16], and one in f32 for all, MODULE.OUTER, which multiplies, or divides.
struct Nvfp4Form {
  std::string codes, outer;
  bool outer_divides = false;
};
EncodedParts ReadNvfp4(const Nvfp4Form& form, const LinearModule& module, PartReader& reader);

// MXFP4: the same codes, with an exponent in u8 for 32 of them.
EncodedParts ReadMxfp4(const std::string& codes, const std::string& scale, const LinearModule& module,
                       PartReader& reader);

// MXFP8: MODULE.CODES f8e4m3 [out, in] with an exponent in u8 for 32 of them.
inline constexpr char kMxfp8[] = "f8e4m3 group=32 scale=bf16";
EncodedParts ReadMxfp8(const std::string& codes, const std::string& scale, const LinearModule& module,
                       PartReader& reader);

// Lets codes become those of an integer format: elements, or packed.
void StoreAs(const EncodingFormat& format, Unpack* codes);

// A scale, or a zero point i8, of each run of elements that have one in common.
Value* ReadRuns(const ByteForm& form, const std::string& part, bool is_zero, const LinearModule& module,
                PartReader& reader);

// Zero points that nothing uses, if they are there. Those of symmetric quantization must be 0; others may be any
// numbers: they are of inputs, or of keys and values, that stay as they are.
void IgnoreZeros(const std::string& part, PartReader& reader, bool may_be_any = false);

// A scale for each row, [out] or [out, 1], as [out].
Value* ScaleOfRows(const std::string& part, int64_t out, PartReader& reader,
                   absl::Span<const DType> types = kScaleTypes);

}  // namespace llmc::hf
