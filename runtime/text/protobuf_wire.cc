#include "runtime/text/protobuf_wire.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace llmc {

float WireField::AsFloat() const {
  if (type != kFixed32) return 0;
  const auto bits = static_cast<uint32_t>(value);
  float number = 0;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
}

absl::StatusOr<bool> WireReader::Next(WireField* field) {
  if (rest_.empty()) return false;
  ASSIGN_OR_RETURN(const uint64_t key, Varint());
  if (key >> 3 == 0 || key >> 3 > (1U << 29) - 1) return Wrong("a field with a wrong number");
  *field = WireField{static_cast<uint32_t>(key >> 3)};
  const uint64_t type = key & 7;
  if (type != WireField::kVarint && type != WireField::kFixed64 && type != WireField::kFixed32 &&
      type != WireField::kBytes) {
    return Wrong("a field of a type that is not read");
  }
  field->type = static_cast<WireField::Type>(type);
  ASSIGN_OR_RETURN(field->value, type == WireField::kFixed64   ? LittleEndian(8)
                                 : type == WireField::kFixed32 ? LittleEndian(4)
                                                               : Varint());
  if (type != WireField::kBytes) return true;
  if (field->value > rest_.size()) return Wrong("a field longer than what is left");
  field->bytes = rest_.substr(0, field->value);
  rest_.remove_prefix(field->value);
  return true;
}

absl::StatusOr<uint64_t> WireReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (rest_.empty()) return Wrong("a number that is cut off");
    const auto byte = static_cast<uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  return Wrong("a number of more than 64 bits");
}

absl::StatusOr<uint64_t> WireReader::LittleEndian(size_t bytes) {
  if (rest_.size() < bytes) return Wrong("a number that is cut off");
  uint64_t value = 0;
  for (size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<uint8_t>(rest_[i]);
  rest_.remove_prefix(bytes);
  return value;
}

absl::Status WireReader::Wrong(absl::string_view what) const {
  return absl::InvalidArgumentError(
      absl::StrCat("not the protocol buffers of a model: ", what, " at byte ", size_ - rest_.size(), " of ", size_));
}

}  // namespace llmc
