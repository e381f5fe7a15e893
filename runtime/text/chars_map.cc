#include "runtime/text/chars_map.h"

#include "absl/strings/str_cat.h"
#include "runtime/text/utf8.h"

namespace llmc {
namespace {

uint32_t ReadLittleEndian(absl::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

// A unit of the double array: a node's label, whether a key ends there, and where its children begin.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t LabelOf(uint32_t unit) { return unit & 0x800000FF; }
uint32_t OffsetOf(uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }
uint32_t ValueOf(uint32_t unit) { return unit & 0x7FFFFFFF; }

}  // namespace

absl::StatusOr<CharsMap> CharsMap::FromBytes(absl::string_view bytes) {
  CharsMap map;
  if (bytes.empty()) return map;
  const uint32_t size = bytes.size() < 4 ? 0 : ReadLittleEndian(bytes, 0);
  if (size == 0 || size % 4 != 0 || size > bytes.size() - 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("the charsmap of ", bytes.size(), " bytes does not hold the trie that it announces"));
  }
  for (uint32_t at = 4; at < 4 + size; at += 4) map.units_.push_back(ReadLittleEndian(bytes, at));
  map.replacements_ = std::string(bytes.substr(4 + size));
  if (!IsValidUtf8(map.replacements_)) {
    return absl::InvalidArgumentError("the replacements of the charsmap are not UTF-8");
  }
  return map;
}

bool CharsMap::HasPrefix(absl::string_view text) const {
  uint32_t node = units_.empty() ? 0 : OffsetOf(units_[0]);
  for (const char c : text) {
    node ^= static_cast<uint8_t>(c);
    if (c == '\0' || node >= units_.size() || LabelOf(units_[node]) != static_cast<uint8_t>(c)) return false;
    node ^= OffsetOf(units_[node]);
  }
  return true;
}

absl::optional<CharsMap::Match> CharsMap::Find(absl::string_view text, bool longest) const {
  absl::optional<Match> match;
  uint32_t node = units_.empty() ? 0 : OffsetOf(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    node ^= static_cast<uint8_t>(text[i]);
    if (text[i] == '\0' || node >= units_.size()) break;
    const uint32_t unit = units_[node];
    if (LabelOf(unit) != static_cast<uint8_t>(text[i])) break;
    node ^= OffsetOf(unit);
    if (!HasLeaf(unit)) continue;
    if (node >= units_.size()) break;
    const uint32_t begin = ValueOf(units_[node]);
    if (begin > replacements_.size()) break;
    // An offset into the middle of a character would make text that is no UTF-8.
    const absl::string_view rest = absl::string_view(replacements_).substr(begin);
    if (!rest.empty() && (static_cast<uint8_t>(rest[0]) & 0xC0) == 0x80) break;
    match = Match{i + 1, rest.substr(0, rest.find('\0'))};
    if (!longest) break;
  }
  return match;
}

}  // namespace llmc
