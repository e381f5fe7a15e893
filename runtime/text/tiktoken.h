// Vocabularies of byte strings with ranks, as tiktoken has them.
#ifndef LLMC_RUNTIME_TEXT_TIKTOKEN_H_
#define LLMC_RUNTIME_TEXT_TIKTOKEN_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "runtime/text/tokenizer_formats.h"
#include "runtime/text/tokenizer_parts.h"

namespace llmc {

struct RankedVocab {
  std::vector<std::string> tokens;  // bytes, by rank; empty: none has that rank
  int32_t first_id = 0;             // the id of rank 0
  std::string pattern;              // of words, in the syntax of Rust's fancy-regex
  nlohmann::json added_tokens;      // as the key of tokenizer.json
};

// InvalidArgument, with the main file's name: two tokens are equal, a byte is no token, or the pattern is wrong.
absl::Status ReadRankedVocab(const RankedVocab& vocab, const TokenizerInput& input, TokenizerParts* parts);

// The bytes of base64 with its padding; false: it is something else.
bool DecodeBase64(absl::string_view base64, std::string* bytes);

// Whether the text begins with a line "base64 rank".
bool LooksLikeRanks(absl::string_view text);

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_TIKTOKEN_H_
