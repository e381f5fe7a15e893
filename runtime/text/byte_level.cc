#include "runtime/text/byte_level.h"

#include <array>
#include <cstdint>

#include "runtime/text/utf8.h"

namespace llmc {
namespace {

constexpr bool IsPrintable(int b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE; }

constexpr int kAlphabetEnd = 0x100 + 68;  // 68 bytes are not printable

constexpr std::array<uint16_t, 256> MakeByteToChar() {
  std::array<uint16_t, 256> table{};
  int next = 0x100;
  for (int b = 0; b < 256; ++b) table[b] = static_cast<uint16_t>(IsPrintable(b) ? b : next++);
  return table;
}

constexpr std::array<int16_t, kAlphabetEnd> MakeCharToByte() {
  std::array<int16_t, kAlphabetEnd> table{};
  for (auto& entry : table) entry = -1;
  const auto forward = MakeByteToChar();
  for (int b = 0; b < 256; ++b) table[forward[b]] = static_cast<int16_t>(b);
  return table;
}

constexpr auto kByteToChar = MakeByteToChar();
constexpr auto kCharToByte = MakeCharToByte();

}  // namespace

std::string BytesToAlphabet(absl::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  for (const char c : text) AppendUtf8(kByteToChar[static_cast<uint8_t>(c)], &out);
  return out;
}

std::string AlphabetToBytes(absl::string_view text) {
  std::string out;
  for (absl::string_view rest = text; !rest.empty();) {
    const Utf8Char c = ReadUtf8(rest);
    if (c.kind != Utf8Char::kValid || c.codepoint >= kAlphabetEnd || kCharToByte[c.codepoint] < 0) {
      return std::string(text);
    }
    out.push_back(static_cast<char>(kCharToByte[c.codepoint]));
    rest.remove_prefix(c.bytes);
  }
  return out;
}

}  // namespace llmc
