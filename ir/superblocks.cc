#include "ir/superblocks.h"

#include <cstring>

#include "base/dtype.h"

namespace llmc {
namespace {

float HalfAt(const uint8_t* bytes) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof(bits));
  return HalfToFloat(bits);
}

// Scale and minimum of the 32 elements `i` of a q4_k block: 6 bits each, packed into 12 bytes. The first four of both
// lie in the low bits of a byte of their own; the others' low halves share bytes, their high bits fill the first eight.
struct ScaleAndMin {
  int scale = 0, min = 0;
};
ScaleAndMin ScaleAndMinOf(const uint8_t* packed, int i) {
  if (i < 4) return {packed[i] & 63, packed[i + 4] & 63};
  return {(packed[i + 4] & 15) | (packed[i - 4] >> 6 << 4), (packed[i + 4] >> 4) | (packed[i] >> 6 << 4)};
}

// d, 16 bytes of codes: element i in the low half of byte i, element i + 16 in its high half.
void DecodeQ4_0(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<float>((block[2 + i] & 15) - 8) * d;
    out[i + 16] = static_cast<float>((block[2 + i] >> 4) - 8) * d;
  }
}

// d, 32 fifth bits, 16 bytes of low halves of codes, which lie as those of q4_0.
void DecodeQ5_0(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  for (int i = 0; i < 32; ++i) {
    const int byte = block[6 + i % 16], low = i < 16 ? byte & 15 : byte >> 4, high = block[2 + i / 8] >> (i % 8) & 1;
    out[i] = static_cast<float>((low | high << 4) - 16) * d;
  }
}

// d, 32 signed bytes.
void DecodeQ8_0(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
}

// d, the same of minima, 12 bytes of scales and minima, 128 of codes: of each 64 elements, the first 32 lie in the low
// halves of 32 bytes, the others in the high halves.
void DecodeQ4K(const uint8_t* block, float* out) {
  const float d = HalfAt(block), dmin = HalfAt(block + 2);
  const uint8_t* codes = block + 16;
  for (int group = 0; group < 8; ++group) {
    const ScaleAndMin own = ScaleAndMinOf(block + 4, group);
    const float scale = d * static_cast<float>(own.scale), min = dmin * static_cast<float>(own.min);
    const uint8_t* from = codes + group / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int code = group % 2 == 0 ? from[i] & 15 : from[i] >> 4;
      out[32 * group + i] = scale * static_cast<float>(code) - min;
    }
  }
}

// 128 bytes of low halves, 64 of two high bits, 16 signed scales, d. In each half of the block, quarter q of the codes
// takes bits 2q of the 32 bytes of high bits.
void DecodeQ6K(const uint8_t* block, float* out) {
  const auto* scales = reinterpret_cast<const int8_t*>(block + 192);
  const float d = HalfAt(block + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t *low = block + 64 * half, *high = block + 128 + 32 * half;
    for (int i = 0; i < 128; ++i) {
      const int quarter = i / 32, at = i % 32;
      const uint8_t byte = low[quarter % 2 * 32 + at];
      const int code = (quarter < 2 ? byte & 15 : byte >> 4) | (high[at] >> (2 * quarter) & 3) << 4;
      const float scale = d * static_cast<float>(scales[8 * half + i / 16]);
      out[128 * half + i] = scale * static_cast<float>(code - 32);
    }
  }
}

constexpr EncodingFormat Row(absl::string_view name, int64_t elements, int64_t bytes,
                             void (*decode)(const uint8_t* block, float* out)) {
  return {.name = name,
          .summary = "superblocks of GGUF",
          .codes = DType::kU8,
          .superblock = elements,
          .superblock_bytes = bytes,
          .decode_superblock = decode};
}

constexpr EncodingFormat kSuperblockFormats[] = {
    Row("q4_0", 32, 18, DecodeQ4_0),  Row("q5_0", 32, 22, DecodeQ5_0),  Row("q8_0", 32, 34, DecodeQ8_0),
    Row("q4_k", 256, 144, DecodeQ4K), Row("q6_k", 256, 210, DecodeQ6K),
};

}  // namespace

absl::Span<const EncodingFormat> SuperblockFormats() { return kSuperblockFormats; }

}  // namespace llmc
