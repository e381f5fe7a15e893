#include "frontend/huggingface/number_check.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "base/on_all_cores.h"

namespace llmc::hf {
namespace {

constexpr int64_t kPart = int64_t{1} << 20;  // bytes that a thread takes at a time

// The first part, of `parts`, in which `is_bad` holds. Parts behind one that is bad need no look.
template <class F>
std::optional<int64_t> FirstBadPart(int64_t parts, F is_bad) {
  std::atomic<int64_t> first = parts;
  OnAllCores(parts, [&](int64_t part) {
    if (part >= first.load(std::memory_order_relaxed) || !is_bad(part)) return;
    int64_t before = first.load();
    while (part < before && !first.compare_exchange_weak(before, part)) {
    }
  });
  return first < parts ? std::optional<int64_t>(first.load()) : std::nullopt;
}

// Whether a byte of a word, without its sign, is at least 0x80 - kAdd.
template <uint64_t kAdd>
bool AnyFrom(const char* bytes, int64_t size) {
  constexpr uint64_t kBytes = 0x0101010101010101ULL;
  uint64_t found = 0;
  int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes + i, sizeof(word));
    found |= (word & 0x7f * kBytes) + kAdd * kBytes;
  }
  for (; i < size; ++i) found |= (static_cast<uint64_t>(bytes[i]) & 0x7f) + kAdd;
  return (found & 0x80 * kBytes) != 0;
}

// Whether a number has all bits of its exponent: it is NaN or infinite.
template <class Bits>
bool AnyHasAll(Bits exponent, const char* bytes, int64_t size) {
  bool found = false;
  for (int64_t i = 0; i < size; i += static_cast<int64_t>(sizeof(Bits))) {
    Bits bits;
    std::memcpy(&bits, bytes + i, sizeof(bits));
    found |= (bits & exponent) == exponent;
  }
  return found;
}

}  // namespace

std::optional<int64_t> FirstNotFinite(const Tensor& numbers) {
  const int64_t size = numbers.bytes(), of_element = size / std::max<int64_t>(numbers.size(), 1);
  const auto bad_part = FirstBadPart((size + kPart - 1) / kPart, [&](int64_t part) {
    const char* begin = numbers.raw() + part * kPart;
    const int64_t bytes = std::min(kPart, size - part * kPart);
    switch (numbers.dtype()) {
      case DType::kF8E4M3:
        return AnyFrom<1>(begin, bytes);  // 0x7f is NaN
      case DType::kF8E5M2:
        return AnyFrom<4>(begin, bytes);  // from 0x7c on
      case DType::kF16:
        return AnyHasAll<uint16_t>(0x7c00, begin, bytes);
      case DType::kBF16:
        return AnyHasAll<uint16_t>(0x7f80, begin, bytes);
      case DType::kF32:
        return AnyHasAll<uint32_t>(0x7f800000, begin, bytes);
      case DType::kF64:
        return AnyHasAll<uint64_t>(0x7ff0000000000000, begin, bytes);
      default:
        return false;
    }
  });
  if (!bad_part.has_value()) return std::nullopt;
  int64_t i = *bad_part * kPart / of_element;
  while (std::isfinite(numbers.GetFloat(i))) ++i;
  return i;
}

std::string PlaceOf(int64_t element, const Shape& shape) {
  std::vector<int64_t> place;
  for (auto size = shape.rbegin(); size != shape.rend(); ++size) {
    place.insert(place.begin(), element % *size);
    element /= *size;
  }
  return place.empty() ? "" : absl::StrCat("[", absl::StrJoin(place, ", "), "]");
}

std::optional<int64_t> FirstBadSuperblock(const Tensor& blocks, const EncodingFormat& format) {
  const int64_t bytes = format.superblock_bytes, count = blocks.bytes() / bytes,
                of_part = std::max<int64_t>(kPart / bytes, 1);
  const auto is_bad = [&](int64_t block) {
    constexpr uint16_t kExponent = 0x7c00;
    for (const int at : format.halves_at) {
      if (at < 0) continue;
      uint16_t half;
      std::memcpy(&half, blocks.raw() + block * bytes + at, sizeof(half));
      if ((half & kExponent) == kExponent) return true;
    }
    return false;
  };
  if (format.halves_at[0] < 0) return std::nullopt;
  const auto first_bad = [&](int64_t part) {
    int64_t block = part * of_part;
    const int64_t end = std::min(count, block + of_part);
    while (block < end && !is_bad(block)) ++block;
    return block < end ? block : -1;
  };
  const auto bad_part =
      FirstBadPart((count + of_part - 1) / of_part, [&](int64_t part) { return first_bad(part) >= 0; });
  return bad_part.has_value() ? std::optional<int64_t>(first_bad(*bad_part)) : std::nullopt;
}

}  // namespace llmc::hf
