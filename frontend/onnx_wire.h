// The wire format of protocol buffers, as far as needed to lift large bytes fields out of a message before it is
// parsed.
#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace llmc {

// Calls `take` with the contents of each length-delimited field `number` of `message`, and appends all other fields to
// `rest` as they are. An error if a field is cut off or malformed.
absl::Status SplitFields(absl::string_view message, int number, std::string* rest,
                         absl::FunctionRef<absl::Status(absl::string_view)> take);

// Parses with bounded nesting; an error names `what`.
absl::Status ParseMessage(absl::string_view bytes, google::protobuf::Message* message, absl::string_view what);

}  // namespace llmc
