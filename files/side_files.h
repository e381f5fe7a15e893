// The files next to a model that running a language model needs, as text.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace llmc {

// Each is empty where it is absent, or an error that only those meet who need it: it is too large, leads out of the
// folder, or is no regular file. Nothing is parsed: whoever uses them checks them.
struct SideFiles {
  std::string prefix;                                  // of a file's name in messages: "folder/", or "plan.bin: "
  absl::StatusOr<std::string> config = "";             // config.json
  absl::StatusOr<std::string> generation_config = "";  // generation_config.json
  absl::StatusOr<std::string> tokenizer = "";          // tokenizer.json
  absl::StatusOr<std::string> tokenizer_config = "";   // tokenizer_config.json
  absl::StatusOr<std::string> chat_template = "";      // chat_template.jinja
  std::string NameOf(absl::string_view file) const { return prefix + std::string(file); }
};

SideFiles ReadSideFiles(const std::string& folder);

}  // namespace llmc
