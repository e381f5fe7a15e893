// The files next to a model that running a language model needs, as text.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace llmc {

struct SideFile {
  std::string name;
  std::string text;
};

// Each is empty where it is absent, or an error that only those meet who need it: it is too large, leads out of the
// folder, or is no regular file. Nothing is parsed: whoever uses them checks them.
struct SideFiles {
  std::string prefix;                                  // of a file's name in messages: "folder/", or "plan.bin: "
  absl::StatusOr<std::string> config = "";             // config.json
  absl::StatusOr<std::string> generation_config = "";  // generation_config.json
  absl::StatusOr<std::vector<SideFile>> tokenizer = std::vector<SideFile>();  // without the next; config.json where it
                                                                              // is another one for the tokenizer
  absl::StatusOr<std::string> tokenizer_config = "";                          // tokenizer_config.json
  absl::StatusOr<std::string> chat_template = "";                             // chat_template.jinja
  std::string NameOf(absl::string_view file) const { return prefix + std::string(file); }
};

// Of the sorted names of a folder's files those that hold its tokenizer, in this order.
using TokenizerFileChoice = absl::FunctionRef<std::vector<std::string>(const std::vector<std::string>& names)>;

SideFiles ReadSideFiles(const std::string& folder, TokenizerFileChoice choose);

}  // namespace llmc
