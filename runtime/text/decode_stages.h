// The single decoders that a tokenizer.json can name.
#ifndef LLMC_RUNTIME_TEXT_DECODE_STAGES_H_
#define LLMC_RUNTIME_TEXT_DECODE_STAGES_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "runtime/text/decoder.h"
#include "runtime/text/metaspace.h"
#include "runtime/text/regex.h"

namespace llmc {

// The byte that token <0xHH> stands for.
absl::optional<char> ByteOfToken(absl::string_view token);

// Tokens with a space between each two.
std::unique_ptr<DecodeStage> NewJoinStage();

// All tokens as one, unchanged.
std::unique_ptr<DecodeStage> NewFuseStage();

// The bytes that the tokens' characters stand for, as one token; wrong UTF-8 becomes U+FFFD.
std::unique_ptr<DecodeStage> NewByteLevelStage();

// Runs of tokens <0xHH> as the characters whose bytes they are. A run that is not valid UTF-8 as a whole becomes one
// U+FFFD per token, so a run is held back until it is over.
std::unique_ptr<DecodeStage> NewByteFallbackStage();

// Matches of `pattern` in a token replaced by `content`. A token whose search fails stays as it is.
std::unique_ptr<DecodeStage> NewReplaceStage(Pattern pattern, std::string content);

// Up to `start` of character `content` cut from the front of each token and up to `stop` from its back.
std::unique_ptr<DecodeStage> NewStripStage(std::string content, int64_t start, int64_t stop);

// Marks become spaces; in the first token they are dropped, unless nothing was prepended.
std::unique_ptr<DecodeStage> NewMetaspaceStage(const MetaspaceOptions& options);

// Tokens with a space between each two, but none before one that begins with `prefix`, which is cut off it. With
// `cleanup`, also none before punctuation and English contractions.
std::unique_ptr<DecodeStage> NewWordPieceStage(std::string prefix, bool cleanup);

// What a CTC model (Graves et al., "Connectionist Temporal Classification", 2006) has said: of equal tokens in a row
// one, without those for "nothing".
struct CtcOptions {
  std::string pad;        // stands for nothing
  std::string delimiter;  // stands for a space, if `cleanup`
  bool cleanup;
};
std::unique_ptr<DecodeStage> NewCtcStage(const CtcOptions& options);

// `suffix` becomes a space, and in the last token nothing.
std::unique_ptr<DecodeStage> NewBpeSuffixStage(std::string suffix);

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_DECODE_STAGES_H_
