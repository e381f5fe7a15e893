// Protocol buffers on the wire, read field by field within bounds.
#ifndef LLMC_RUNTIME_TEXT_PROTOBUF_WIRE_H_
#define LLMC_RUNTIME_TEXT_PROTOBUF_WIRE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace llmc {

// A field of a message. Which member counts depends on its type on the wire (the encoding's specification,
// "Message Structure").
struct WireField {
  enum Type { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
  uint32_t number = 0;
  Type type = kVarint;
  uint64_t value = 0;       // of kVarint, kFixed64 and kFixed32
  absl::string_view bytes;  // of kBytes: a string or a message

  // Of another type than these ask for: zero, false, empty.
  int32_t AsInt() const { return type == kVarint ? static_cast<int32_t>(value) : 0; }
  bool AsBool() const { return type == kVarint && value != 0; }
  float AsFloat() const;
  absl::string_view AsBytes() const { return type == kBytes ? bytes : absl::string_view(); }
};

// Reads the fields of one message in order. Not thread safe; `message` must outlive it and the fields.
class WireReader {
 public:
  explicit WireReader(absl::string_view message) : rest_(message), size_(message.size()) {}

  // False at the end. InvalidArgument: the message is cut off or has a group; the error says at which byte.
  absl::StatusOr<bool> Next(WireField* field);

 private:
  absl::StatusOr<uint64_t> Varint();
  absl::StatusOr<uint64_t> LittleEndian(size_t bytes);
  absl::Status Wrong(absl::string_view what) const;

  absl::string_view rest_;
  size_t size_;
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_PROTOBUF_WIRE_H_
