// The formats of tokenizer files. Each is read, in a source file of its own, into the same parts.
#ifndef LLMC_RUNTIME_TEXT_TOKENIZER_FORMATS_H_
#define LLMC_RUNTIME_TEXT_TOKENIZER_FORMATS_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"
#include "runtime/text/json_node.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/tokenizer_config.h"
#include "runtime/text/tokenizer_parts.h"

namespace llmc {

// What a format reads: its main file, and the files beside it.
struct TokenizerInput {
  const TokenizerFile* main;
  absl::Span<const TokenizerFile> files;
  std::string prefix;  // of a file's name in errors
  JsonNode config;     // tokenizer_config.json, an empty object if it is absent

  std::string NameOf(absl::string_view file) const { return prefix + std::string(file); }
  // nullptr: it is not there.
  const TokenizerFile* Find(absl::string_view name) const;
  // InvalidArgument with the main file's name before `message`.
  absl::Status Error(absl::string_view message) const;
  // The class that tokenizer_config.json or config.json names, else the one of config.json's model_type; without
  // "Fast", which does the same. `otherwise`: nothing says.
  absl::StatusOr<std::string> Class(absl::string_view otherwise) const;
  // For the key "added_tokens" of the steps: those of `own`, and those of tokenizer_config.json (added_tokens_decoder)
  // and added_tokens.json that are not among them.
  absl::StatusOr<nlohmann::json> AddedTokens(nlohmann::json own) const;
};

// An entry of "added_tokens" that is found in the text as it stands.
nlohmann::json AddedTokenJson(int32_t id, absl::string_view content, bool special);

struct TokenizerFormat {
  // Whether the file is of this format; `text` is empty when only the name is known.
  bool (*reads)(absl::string_view name, absl::string_view text);
  // Fills `parts`, and what `settings` leaves open where the format has a rule of its own for it.
  absl::Status (*read)(const TokenizerInput& input, TokenizerParts* parts, TokenizerConfig* settings);
  // The files beside the main one that are read too, where they are there.
  std::array<const char*, 2> beside = {};
};

extern const TokenizerFormat kTokenizerJsonFormat;
extern const TokenizerFormat kTekkenFormat;
extern const TokenizerFormat kSentencePieceFormat;
extern const TokenizerFormat kTiktokenFormat;
extern const TokenizerFormat kVocabMergesFormat;
extern const TokenizerFormat kVocabTextFormat;

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_TOKENIZER_FORMATS_H_
