#include "frontend/onnx_wire.h"

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

}  // namespace

absl::Status SplitFields(absl::string_view message, int number, std::string* rest,
                         absl::FunctionRef<absl::Status(absl::string_view)> take) {
  size_t pos = 0;
  auto cut = [&] { return absl::InvalidArgumentError("the file is cut off or damaged"); };
  while (pos < message.size()) {
    const size_t begin = pos;
    uint64_t tag = 0, size = 0;
    if (!ReadVarint(message, &pos, &tag)) return cut();
    switch (tag & 7) {
      case kVarint:
        if (!ReadVarint(message, &pos, &size)) return cut();
        size = 0;
        break;
      case kFixed64:
        size = 8;
        break;
      case kFixed32:
        size = 4;
        break;
      case kBytes:
        if (!ReadVarint(message, &pos, &size)) return cut();
        break;
      default:
        return cut();
    }
    if (size > message.size() - pos) return cut();
    const absl::string_view field = message.substr(pos, static_cast<size_t>(size));
    pos += static_cast<size_t>(size);
    if (tag == ((static_cast<uint64_t>(number) << 3) | kBytes)) {
      if (absl::Status s = take(field); !s.ok()) return s;
    } else {
      rest->append(message.data() + begin, pos - begin);
    }
  }
  return absl::OkStatus();
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
