// The `normalizer` of tokenizer.json: rewrites text before it is split.
#ifndef LLMC_RUNTIME_TEXT_NORMALIZER_H_
#define LLMC_RUNTIME_TEXT_NORMALIZER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/text/json_node.h"
#include "runtime/text/text_budget.h"

namespace llmc {

// Immutable, so thread safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Takes and returns valid UTF-8. ResourceExhausted if a step writes more than is left of the budget.
  absl::StatusOr<std::string> Normalize(std::string text, TextBudget* budget) const;

  static absl::StatusOr<std::unique_ptr<Normalizer>> FromJson(const JsonNode& node);

 protected:
  virtual absl::StatusOr<std::string> Apply(std::string text, TextBudget* budget) const = 0;
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_NORMALIZER_H_
