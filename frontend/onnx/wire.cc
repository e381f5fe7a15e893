#include "frontend/onnx/wire.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>

#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

constexpr int kMaxNesting = 64;

bool ReadVarint(absl::string_view bytes, size_t* pos, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (*pos >= bytes.size()) return false;
    const uint8_t byte = static_cast<uint8_t>(bytes[(*pos)++]);
    *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return true;
  }
  return false;
}

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct WireField {
  int64_t number = 0;
  bool is_bytes = false;       // of any length-delimited type
  absl::string_view contents;  // if is_bytes
  absl::string_view with_tag;
};

// The field at *pos, which moves behind it.
bool ReadField(absl::string_view message, size_t* pos, WireField* field) {
  const size_t begin = *pos;
  uint64_t tag = 0, size = 0;
  if (!ReadVarint(message, pos, &tag)) return false;
  switch (tag & 7) {
    case kVarint:
      if (!ReadVarint(message, pos, &size)) return false;
      size = 0;
      break;
    case kFixed64:
      size = 8;
      break;
    case kFixed32:
      size = 4;
      break;
    case kBytes:
      if (!ReadVarint(message, pos, &size)) return false;
      break;
    default:
      return false;
  }
  if (size > message.size() - *pos || tag > std::numeric_limits<uint32_t>::max()) return false;
  field->number = static_cast<int64_t>(tag >> 3);
  field->is_bytes = (tag & 7) == kBytes;
  field->contents = message.substr(*pos, static_cast<size_t>(size));
  *pos += static_cast<size_t>(size);
  field->with_tag = message.substr(begin, *pos - begin);
  return true;
}

absl::Status CutOff() { return absl::InvalidArgumentError("the file is cut off or damaged"); }

absl::Status CountElements(absl::string_view message, const google::protobuf::Descriptor& type, int depth,
                           int64_t* left) {
  if (depth > kMaxNesting) return absl::InvalidArgumentError("it is nested too deeply");
  WireField field;
  for (size_t pos = 0; pos < message.size();) {
    if (!ReadField(message, &pos, &field)) return CutOff();
    const auto* known = type.FindFieldByNumber(static_cast<int>(field.number));
    const bool is_message = known != nullptr && known->message_type() != nullptr && field.is_bytes;
    const bool is_string = known != nullptr && known->is_repeated() && !known->is_packable();
    if ((known == nullptr || is_message || is_string) && --*left < 0) {
      return absl::InvalidArgumentError("it has too many nodes, attributes and other parts");
    }
    if (!is_message) continue;
    if (absl::Status s = CountElements(field.contents, *known->message_type(), depth + 1, left); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SplitFields(absl::string_view message, int number, std::string* rest,
                         absl::FunctionRef<absl::Status(absl::string_view)> take) {
  WireField field;
  for (size_t pos = 0; pos < message.size();) {
    if (!ReadField(message, &pos, &field)) return CutOff();
    if (field.number == number && field.is_bytes) {
      if (absl::Status s = take(field.contents); !s.ok()) return s;
    } else {
      rest->append(field.with_tag.data(), field.with_tag.size());
    }
  }
  return absl::OkStatus();
}

absl::Status CheckElements(absl::string_view message, const google::protobuf::Descriptor& type, int64_t limit) {
  return CountElements(message, type, 0, &limit);
}

absl::Status ParseMessage(absl::string_view bytes, google::protobuf::Message* message, absl::string_view what) {
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("the ", what, " is larger than 2 GiB"));
  }
  google::protobuf::io::CodedInputStream input(reinterpret_cast<const uint8_t*>(bytes.data()),
                                               static_cast<int>(bytes.size()));
  input.SetRecursionLimit(kMaxNesting);
  if (!message->MergePartialFromCodedStream(&input) || !input.ConsumedEntireMessage()) {
    return absl::InvalidArgumentError(absl::StrCat("the ", what, " is cut off, damaged or nested too deeply"));
  }
  return absl::OkStatus();
}

}  // namespace llmc
