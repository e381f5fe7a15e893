// What SentencePiece does to text before its model and behind it.
#ifndef LLMC_RUNTIME_TEXT_SENTENCEPIECE_STEPS_H_
#define LLMC_RUNTIME_TEXT_SENTENCEPIECE_STEPS_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/text/byte_trie.h"
#include "runtime/text/chars_map.h"
#include "runtime/text/decoder.h"
#include "runtime/text/normalizer.h"

namespace llmc {

// The keys of the message NormalizerSpec, and one of TrainerSpec.
struct SentencePieceSpec {
  CharsMap chars_map;
  bool add_dummy_prefix = true;          // a space before each text
  bool remove_extra_whitespaces = true;  // none at the ends, one for several
  bool escape_whitespaces = true;        // spaces become U+2581
  bool treat_whitespace_as_suffix = false;
  ByteTrie symbols;  // user-defined ones, which stay as they are
};

std::unique_ptr<Normalizer> NewSentencePieceNormalizer(SentencePieceSpec spec);

struct SentencePieceDecoding {
  bool drops_first_space = true;  // the text's, as add_dummy_prefix and remove_extra_whitespaces ask for
  bool drops_all_first_spaces = true;
  bool has_bytes = false;  // tokens <0xHH> are bytes
  std::string unknown;     // the unknown token, and what stands for it
  std::string unknown_surface;
};

// Marks become spaces, runs of bytes characters; a byte that belongs to none becomes one U+FFFD.
std::unique_ptr<DecodeStage> NewSentencePieceStage(const SentencePieceDecoding& options);

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_SENTENCEPIECE_STEPS_H_
