// What a language model with paged KV states says about itself. One place reads it, for all who allocate or describe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "ir/graph.h"

namespace llmc {

struct PagedModel {
  const Step* step = nullptr;  // "main", with the inputs of a paged step (base/step_contract.h)
  std::string pages_symbol;    // the dim that counts the states' pages
  int64_t page_size = 0;       // tokens in a page, [1, 4096]
  int64_t page_bytes = 0;      // of one page in all states
  int64_t vocab_size = 0;
  int64_t window = 0;  // positions up to its own that a token sees at most, in every layer; 0: all
  // At the bounds of the dims.
  int64_t max_context = 0;      // tokens of one sequence
  int64_t max_step_tokens = 0;  // tokens in one step, of all sequences
  int64_t max_step_logits = 0;  // rows of logits in one step
  int64_t max_sequences = 0;    // in one step
  int64_t max_pages = 0;        // in the states, so that slots are 32-bit numbers
};

// Whether the model has a step "main" with the inputs of a paged step (base/step_contract.h).
bool IsPagedLanguageModel(const Model& model);

// InvalidArgument: a state or the output is not what ir/ops_lm.h says, or an input not what its role says, or has no
// bound. Refers to `model`.
absl::StatusOr<PagedModel> DescribePagedModel(const Model& model);

}  // namespace llmc
