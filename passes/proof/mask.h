// What the mask of an attention is, proven by evaluating one element of it with symbols as its indices.
#pragma once

#include <string>

#include "passes/proof/element_value.h"

namespace llmc {

enum class MaskKind {
  kUnknown,
  kFull,           // every query sees every key
  kCausal,         // query i sees keys [0, i]
  kCausalFromEnd,  // query i sees keys [0, i + K - L]
};

struct MaskProof {
  MaskKind kind = MaskKind::kUnknown;
  std::string why;  // of kUnknown: what stopped the proof
};

// `attention` has a mask. The proof holds for every run in which scores have elements: where a batch, or the queries or
// keys are none, there is nothing to hide. What hides is so low that no score changes it. It takes bounded time.
MaskProof ProveMask(const Model& model, const Node& attention);

// A mask over scores [batch, heads, queries, keys], true or 0 where a query may see, false or lower than -30000
// elsewhere, that lets query i see key j just where j <= i + shift and, if window is not 0, j > i + shift - window.
struct CausalMask {
  int64_t window = 0;
};
struct CausalProof {
  std::optional<CausalMask> mask;
  std::string why;  // if there is none: what stopped the proof
};
CausalProof ProveCausal(const Value& mask, const Dims& scores, const Dim& shift, const ElementFacts& facts);

// The same of the key at `index` of its axis alone, which is a symbol of the caller's or an expression of them: it
// takes part as key `position`.
struct KeyPlace {
  Dim index, position;
};
CausalProof ProveCausalAt(const Value& mask, const Dims& scores, const Dim& shift, const KeyPlace& key,
                          const ElementFacts& facts);
// Whether no query sees the key at `index`.
bool ProveHidden(const Value& mask, const Dims& scores, const Dim& index, const ElementFacts& facts);

}  // namespace llmc
