// How the numbers of a tensor are stored where they are not stored one by one: codes of a few bits with scales and zero
// points, or superblocks. The tensor keeps its logical element type and shape: bf16<int4 group=128 scale=f16>[64,
// 4096].
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ir/dim.h"
#include "ir/size.h"
#include "ir/tensor.h"

namespace llmc {

struct TensorType;

// A row of a table of formats (encoding.cc, superblocks.cc): what codes stand for, by the format's published
// definition.
struct EncodingFormat {
  absl::string_view name;
  absl::string_view summary;
  DType codes;  // the elements of the first component: u8 for superblocks
  // Integers of so many bits, one after the other, the first in the lowest bits: 8 along the last axis are as many
  // bytes. 0: codes are elements of their type.
  int packed_bits = 0;
  // What each of 16 codes stands for; without it, codes are the numbers themselves.
  const float* codebook = nullptr;
  // What the definition fixes, so that the text does not say it.
  int64_t group = 0;
  std::optional<DType> scale;
  bool scale_is_exponent = false;  // scales are u8 and stand for 2^(scale - 127), as of the MX formats; 255 is NaN
  bool outer_scale = false;        // in f32, to which scales are multiplied; Encoding::outer says of what there is one
  // Superblocks: runs of so many elements along the last axis, each in so many bytes that hold their scales, too.
  int64_t superblock = 0, superblock_bytes = 0;
  void (*decode_superblock)(const uint8_t* block, float* out) = nullptr;
  std::array<int, 2> halves_at = {-1, -1};  // where in a superblock its numbers in f16 lie; -1: it has fewer

  int bits() const { return packed_bits > 0 ? packed_bits : DTypeBits(codes); }  // of a code
  bool is_signed() const { return codes == DType::kI8 || codes == DType::kI4; }
  // Neighbours along the last axis that are whole bytes of the first component together; 0: elements of their own.
  int64_t run() const { return packed_bits > 0 ? 8 : superblock; }
  int64_t run_bytes() const { return packed_bits > 0 ? packed_bits : superblock_bytes; }
  bool is_integer() const { return IsInteger(codes) && codebook == nullptr && superblock == 0; }
};

absl::Span<const EncodingFormat> EncodingFormats();

// How many elements share a scale. k is the axis that a product sums over.
enum class Granularity : uint8_t {
  kTensor,   // all
  kChannel,  // those along k at one place of the other of the last two axes
  kToken,    // a row: those of the last axis
  kGroup,    // so many next to each other along k
  kBlock,    // a rectangle of the last two axes
};

// What has an outer scale of its own.
enum class OuterScale : uint8_t {
  kOfTensor,
  kOfMatrices,  // of the last two axes: "outer=matrix"
  kOfRows,      // of the last axis, as merged weights with different ones have them: "outer=row"
};

// One for each way to store: equal encodings are one object, so that pointers compare.
struct Encoding {
  struct Part {
    DType dtype = DType::kF32;
    Granularity per = Granularity::kTensor;
    bool operator==(const Part&) const = default;
  };
  const EncodingFormat* format = nullptr;
  // A number is (code - zero) * scale * outer scale, computed in f32 (f64 for f64), from the left.
  std::optional<Part> scale, zero;
  int64_t group = 0;              // of kGroup
  int64_t rows = 0, columns = 0;  // of kBlock
  OuterScale outer = OuterScale::kOfTensor;
  bool k_is_last = true;  // weights of checkpoints are [n, k]; "along=-2": [k, n]
  std::string text;       // "int4 group=128 scale=f16 zero=u4", in one form

  // Codes, scale, zero point, outer scale, but for those that it does not have.
  size_t components() const;
  absl::string_view ComponentName(size_t i) const;
  // The type of a component of a tensor of `shape`.
  TensorType ComponentType(size_t i, const Dims& shape) const;
  // Whether a scale and zero point are the same for all that a product sums up.
  bool IsConstantAlongK() const;
  bool operator==(const Encoding&) const = default;
};

// "int4 group=128 scale=f16 zero=u4": a format; `per=tensor`, `per=channel`, `per=token`, `group=N` or `block=RxC`;
// `along=-2` where k is not the last axis; `scale=TYPE` and `zero=TYPE`, with `/tensor` or `/channel` behind them where
// there are fewer of them; `outer=matrix`, `outer=row`. What the format fixes is not said. An error says what is
// unknown or contradicts.
absl::StatusOr<const Encoding*> ParseEncoding(absl::string_view text);
// The same of parts; `text` is ignored.
absl::StatusOr<const Encoding*> InternEncoding(const Encoding& encoding);

// That with the fewest bits for integers of `bits` bits in rows of `columns`: those of 8, of 4 and less than 8 bits
// that are packed, where 8 divides rows.
const EncodingFormat& IntegerFormat(int bits, bool is_signed, int64_t columns);

// That of integers of this type.
absl::StatusOr<const Encoding*> IntegerEncoding(DType codes, Encoding::Part scale, std::optional<Encoding::Part> zero,
                                                int64_t group = 0, bool k_is_last = true);

// Whether a tensor of this shape can be stored so: ranks and whole superblocks.
absl::Status CheckEncoding(const Encoding& encoding, const Dims& shape);

// All components lie in one range of bytes, in order, each from a multiple of kComponentAlignment on.
inline constexpr int64_t kComponentAlignment = 128;
Size EncodedBytes(const Encoding& encoding, const Dims& shape);
Size ComponentOffset(const Encoding& encoding, const Dims& shape, size_t component);
int64_t EncodedBytes(const Encoding& encoding, const Shape& shape);

// A view of a component of an encoded tensor.
Tensor ComponentOf(const Tensor& encoded, size_t i);
// Matrix i of an encoded tensor [matrices, rows, columns], as [1, rows, columns].
Tensor MatrixOf(const Tensor& encoded, int64_t i);
// The tensor that consists of these; each must have the type of its component.
Tensor Bundle(const Encoding* encoding, DType dtype, Shape shape, absl::Span<const Tensor* const> components);
// The codes, each an element of its own: those that are packed as u8 or i8.
Tensor CodesOf(const Tensor& encoded);
// The numbers as f32, or f64: not rounded to the logical type.
Tensor Decoded(const Tensor& encoded, DType to);

}  // namespace llmc
