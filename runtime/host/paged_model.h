// What a language model with paged KV states says about itself. One place reads it, for all who allocate or describe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph.h"

namespace llmc {

// States whose pages are given out together.
struct StatePool {
  std::string dim;         // that counts their pages
  int64_t page_size = 0;   // tokens in a page, [1, 4096]; of different sizes in several pools, powers of two
  int64_t page_bytes = 0;  // of one page in all of them
  int64_t window = 0;      // positions up to its own that a token sees at most, in each of their layers; 0: all
};

struct PagedModel {
  const Step* step = nullptr;    // "main", with the inputs of a paged step (base/step_contract.h)
  std::vector<StatePool> pools;  // in the order of the step's contract
  int64_t vocab_size = 0;
  // At the bounds of the dims.
  int64_t max_context = 0;      // tokens of one sequence
  int64_t max_step_tokens = 0;  // tokens in one step, of all sequences
  int64_t max_step_logits = 0;  // rows of logits in one step
  int64_t max_sequences = 0;    // in one step
  int64_t max_pages = 0;        // of the largest size, in any pool, so that slots are 32-bit numbers
};

// Whether the model has a step "main" with the inputs of a paged step (base/step_contract.h).
bool IsPagedLanguageModel(const Model& model);

// InvalidArgument: a state or the output is not what ir/ops_lm.h says, or an input not what its role says, or has no
// bound. Refers to `model`.
absl::StatusOr<PagedModel> DescribePagedModel(const Model& model);

}  // namespace llmc
