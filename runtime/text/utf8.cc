#include "runtime/text/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace llmc {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

// Length by lead byte and the range of the second byte: excludes overlong forms, surrogates and values > U+10FFFF.
struct Lead {
  size_t length;
  uint8_t low, high;
};

Lead LeadOf(uint8_t b) {
  if (b < 0xC2) return {0, 0, 0};
  if (b < 0xE0) return {2, 0x80, 0xBF};
  if (b == 0xE0) return {3, 0xA0, 0xBF};
  if (b == 0xED) return {3, 0x80, 0x9F};
  if (b < 0xF0) return {3, 0x80, 0xBF};
  if (b == 0xF0) return {4, 0x90, 0xBF};
  if (b < 0xF4) return {4, 0x80, 0xBF};
  if (b == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Char ReadLongUtf8(absl::string_view bytes) {
  const uint8_t first = static_cast<uint8_t>(bytes[0]);
  const Lead lead = LeadOf(first);
  if (lead.length == 0) return {Utf8Char::kInvalid, 1, 0};
  char32_t value = first & (0x7F >> lead.length);
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {Utf8Char::kTruncated, i, 0};
    const uint8_t b = static_cast<uint8_t>(bytes[i]);
    const uint8_t low = i == 1 ? lead.low : 0x80;
    const uint8_t high = i == 1 ? lead.high : 0xBF;
    if (b < low || b > high) return {Utf8Char::kInvalid, i, 0};
    value = value << 6 | (b & 0x3F);
  }
  return {Utf8Char::kValid, lead.length, value};
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | c >> 6));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | c >> 12));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | c >> 18));
    out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
  }
}

bool IsOneChar(absl::string_view bytes) {
  if (bytes.empty()) return false;
  const Utf8Char c = ReadUtf8(bytes);
  return c.kind == Utf8Char::kValid && c.bytes == bytes.size();
}

bool IsValidUtf8(absl::string_view bytes) {
  while (!bytes.empty()) {
    uint64_t eight = 0;
    if (bytes.size() >= sizeof(eight)) std::memcpy(&eight, bytes.data(), sizeof(eight));
    if (bytes.size() >= sizeof(eight) && (eight & 0x8080808080808080U) == 0) {
      bytes.remove_prefix(sizeof(eight));
      continue;
    }
    const Utf8Char c = ReadUtf8(bytes);
    if (c.kind != Utf8Char::kValid) return false;
    bytes.remove_prefix(c.bytes);
  }
  return true;
}

void DrainUtf8(std::string* pending, bool last, std::string* out) {
  absl::string_view rest = *pending;
  while (!rest.empty()) {
    const Utf8Char c = ReadUtf8(rest);
    if (c.kind == Utf8Char::kTruncated && !last) break;
    if (c.kind == Utf8Char::kValid) {
      out->append(rest.data(), c.bytes);
    } else {
      out->append(kReplacement);
    }
    rest.remove_prefix(c.bytes);
  }
  pending->erase(0, pending->size() - rest.size());
}

std::string RepairUtf8(absl::string_view bytes) {
  if (IsValidUtf8(bytes)) return std::string(bytes);
  std::string pending(bytes);
  std::string out;
  DrainUtf8(&pending, /*last=*/true, &out);
  return out;
}

}  // namespace llmc
