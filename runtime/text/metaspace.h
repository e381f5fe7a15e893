// The options of `Metaspace`, which is both a pre-tokenizer and a decoder.
#ifndef LLMC_RUNTIME_TEXT_METASPACE_H_
#define LLMC_RUNTIME_TEXT_METASPACE_H_

#include <string>

#include "absl/status/statusor.h"
#include "runtime/text/json_node.h"

namespace llmc {

// Where a mark is put before text that does not begin with one.
enum class PrependScheme { kAlways, kFirst, kNever };

struct MetaspaceOptions {
  std::string replacement;  // the mark that stands for a space
  PrependScheme scheme;
  bool split;

  static absl::StatusOr<MetaspaceOptions> FromJson(const JsonNode& node);
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_METASPACE_H_
