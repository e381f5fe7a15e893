// The wire format of protocol buffers, as far as needed to lift large bytes fields out of a message before it is
// parsed.
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace llmc {

// Calls `take` with the contents of each length-delimited field `number` of `message`, and appends all other fields to
// `rest` as they are. An error if a field is cut off or malformed.
absl::Status SplitFields(absl::string_view message, int number, std::string* rest,
                         absl::FunctionRef<absl::Status(absl::string_view)> take);

// An error if `message`, as its descriptor reads it, holds more than `limit` submessages, repeated strings and unknown
// fields at any depth, or is nested too deeply: parsed, each of them takes up to 300 bytes of memory for two of the
// file.
absl::Status CheckElements(absl::string_view message, const google::protobuf::Descriptor& type, int64_t limit);

// Parses with bounded nesting; an error names `what`.
absl::Status ParseMessage(absl::string_view bytes, google::protobuf::Message* message, absl::string_view what);

}  // namespace llmc
