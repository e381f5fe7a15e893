#include "ir/superblocks.h"

#include <array>
#include <cmath>
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

// Element i of 32 codes of 4 bits in 16 bytes: in the low half of byte i, element i + 16 in its high half.
int CodeOf16(const uint8_t* codes, int i) { return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4; }
// The same with a fifth bit: bit i of 4 bytes.
int CodeOf16(const uint8_t* codes, const uint8_t* fifths, int i) {
  return CodeOf16(codes, i) | (fifths[i / 8] >> (i % 8) & 1) << 4;
}

// d, codes.
void DecodeQ4_0(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(CodeOf16(block + 2, i) - 8) * d;
}

// d, what code 0 stands for, codes.
void DecodeQ4_1(const uint8_t* block, float* out) {
  const float d = HalfAt(block), least = HalfAt(block + 2);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(CodeOf16(block + 4, i)) + least;
}

// d, 32 fifth bits, low halves of codes.
void DecodeQ5_0(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(CodeOf16(block + 6, block + 2, i) - 16) * d;
}

// d, what code 0 stands for, 32 fifth bits, low halves of codes.
void DecodeQ5_1(const uint8_t* block, float* out) {
  const float d = HalfAt(block), least = HalfAt(block + 2);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(CodeOf16(block + 8, block + 4, i)) + least;
}

// d, 32 signed bytes.
void DecodeQ8_0(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
}

// The numbers of codes of IQ4_NL and IQ4_XS.
constexpr int kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// Twice the numbers of e2m1.
constexpr int kE2M1Twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// d, codes.
void DecodeIq4Nl(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(kIq4[CodeOf16(block + 2, i)]);
}

// The exponent of a power of two, codes.
void DecodeMxfp4(const uint8_t* block, float* out) {
  const float half = std::ldexp(1.0f, block[0] - 128);
  for (int i = 0; i < 32; ++i) out[i] = half * static_cast<float>(kE2M1Twice[CodeOf16(block + 1, i)]);
}

// d, two high bits of 8 scales, their low halves, 8 times the codes of 32 elements. Scales are greater by 32.
void DecodeIq4Xs(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  for (int group = 0; group < 8; ++group) {
    const int low = block[4 + group / 2] >> (group % 2 * 4) & 15, high = block[2 + group / 4] >> (group % 4 * 2) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    for (int i = 0; i < 32; ++i)
      out[32 * group + i] = scale * static_cast<float>(kIq4[CodeOf16(block + 8 + 16 * group, i)]);
  }
}

// Element i of 256 codes of 4 bits in 128 bytes: of each 64 elements, the first 32 lie in the low halves of 32 bytes,
// the others in the high halves.
int CodeOf32(const uint8_t* codes, int i) { return codes[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15; }
// Element i of 256 codes of 2 bits in 64 bytes: of each 128, those of quarter q lie in bits 2q of 32 bytes.
int PairOf32(const uint8_t* codes, int i) { return codes[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3; }
// Bit i of 256 in 32 bytes: bits 0 are those of the first 32 elements.
int BitOf32(const uint8_t* bits, int i) { return bits[i % 32] >> (i / 32) & 1; }

// 16 scales and minima of 16 elements, the latter in high halves; codes of 2 bits, d, the same of minima.
void DecodeQ2K(const uint8_t* block, float* out) {
  const float d = HalfAt(block + 80), dmin = HalfAt(block + 82);
  for (int i = 0; i < 256; ++i) {
    const float scale = d * static_cast<float>(block[i / 16] & 15), min = dmin * static_cast<float>(block[i / 16] >> 4);
    out[i] = scale * static_cast<float>(PairOf32(block + 16, i)) - min;
  }
}

// 256 third bits, which are 1 where 4 is not taken off; codes of 2 bits, 16 scales of 6 bits, d. The low halves of
// scales lie in 8 bytes, of the last 8 in high halves; two high bits of scale s in bits s / 4 * 2 of byte s % 4 of 4.
// Scales are greater by 32.
void DecodeQ3K(const uint8_t* block, float* out) {
  const uint8_t* packed = block + 96;
  const float d = HalfAt(block + 108);
  for (int i = 0; i < 256; ++i) {
    const int s = i / 16, low = packed[s % 8] >> (s / 8 * 4) & 15, high = packed[8 + s % 4] >> (s / 4 * 2) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    out[i] = scale * static_cast<float>(PairOf32(block + 32, i) - (BitOf32(block, i) != 0 ? 0 : 4));
  }
}

// d, the same of minima, 12 bytes of scales and minima, codes.
void DecodeQ4K(const uint8_t* block, float* out) {
  const float d = HalfAt(block), dmin = HalfAt(block + 2);
  for (int i = 0; i < 256; ++i) {
    const ScaleAndMin own = ScaleAndMinOf(block + 4, i / 32);
    const float scale = d * static_cast<float>(own.scale), min = dmin * static_cast<float>(own.min);
    out[i] = scale * static_cast<float>(CodeOf32(block + 16, i)) - min;
  }
}

// The same with 256 fifth bits before the codes.
void DecodeQ5K(const uint8_t* block, float* out) {
  const float d = HalfAt(block), dmin = HalfAt(block + 2);
  for (int i = 0; i < 256; ++i) {
    const ScaleAndMin own = ScaleAndMinOf(block + 4, i / 32);
    const float scale = d * static_cast<float>(own.scale), min = dmin * static_cast<float>(own.min);
    out[i] = scale * static_cast<float>(CodeOf32(block + 48, i) | BitOf32(block + 16, i) << 4) - min;
  }
}

// 128 bytes of low halves, 64 of two high bits, 16 signed scales, d. Of each 128 elements, the low halves of the first
// 64 lie in the low halves of 64 bytes, the others' in the high halves.
void DecodeQ6K(const uint8_t* block, float* out) {
  const auto* scales = reinterpret_cast<const int8_t*>(block + 192);
  const float d = HalfAt(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int low = block[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15, code = low | PairOf32(block + 128, i) << 4;
    const float scale = d * static_cast<float>(scales[i / 16]);
    out[i] = scale * static_cast<float>(code - 32);
  }
}

constexpr EncodingFormat Row(absl::string_view name, int64_t elements, int64_t bytes, std::array<int, 2> halves_at,
                             void (*decode)(const uint8_t* block, float* out)) {
  return {.name = name,
          .summary = "superblocks of GGUF",
          .codes = DType::kU8,
          .superblock = elements,
          .superblock_bytes = bytes,
          .decode_superblock = decode,
          .halves_at = halves_at};
}

constexpr EncodingFormat kSuperblockFormats[] = {
    Row("q4_0", 32, 18, {0, -1}, DecodeQ4_0),         Row("q4_1", 32, 20, {0, 2}, DecodeQ4_1),
    Row("q5_0", 32, 22, {0, -1}, DecodeQ5_0),         Row("q5_1", 32, 24, {0, 2}, DecodeQ5_1),
    Row("q8_0", 32, 34, {0, -1}, DecodeQ8_0),         Row("q2_k", 256, 84, {80, 82}, DecodeQ2K),
    Row("q3_k", 256, 110, {108, -1}, DecodeQ3K),      Row("q4_k", 256, 144, {0, 2}, DecodeQ4K),
    Row("q5_k", 256, 176, {0, 2}, DecodeQ5K),         Row("q6_k", 256, 210, {208, -1}, DecodeQ6K),
    Row("iq4_nl", 32, 18, {0, -1}, DecodeIq4Nl),      Row("iq4_xs", 256, 136, {0, -1}, DecodeIq4Xs),
    Row("mxfp4_gguf", 32, 17, {-1, -1}, DecodeMxfp4),
};

}  // namespace

absl::Span<const EncodingFormat> SuperblockFormats() { return kSuperblockFormats; }

}  // namespace llmc
