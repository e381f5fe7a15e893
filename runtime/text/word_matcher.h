// The well-known patterns of words, by hand: what a regular expression finds, many times faster.
#ifndef LLMC_RUNTIME_TEXT_WORD_MATCHER_H_
#define LLMC_RUNTIME_TEXT_WORD_MATCHER_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace llmc {

// The end of the word that begins at `at` < text.size(), of valid UTF-8. These patterns leave nothing between words.
// In time linear in the word and the white space behind it.
using WordMatcher = size_t (*)(absl::string_view text, size_t at);

// The matcher of a pattern, chosen by its exact text; nullptr: none is known. `rust_syntax`: as Pattern::FromRustRegex
// reads it, else Pattern::FromRegex.
WordMatcher FindWordMatcher(absl::string_view pattern, bool rust_syntax);

// How GPT-2 cuts text into words.
extern const char kGpt2WordPattern[];

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_WORD_MATCHER_H_
