// The `normalizer` of tokenizer.json: rewrites text before it is split.
#ifndef LLMC_RUNTIME_TEXT_NORMALIZER_H_
#define LLMC_RUNTIME_TEXT_NORMALIZER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/text/json_node.h"

namespace llmc {

// Immutable, so thread safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Takes and returns valid UTF-8.
  virtual absl::StatusOr<std::string> Normalize(std::string text) const = 0;

  static absl::StatusOr<std::unique_ptr<Normalizer>> FromJson(const JsonNode& node);
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_NORMALIZER_H_
