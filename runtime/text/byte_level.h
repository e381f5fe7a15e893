// The printable alphabet of byte-level BPE: one character for each of the 256 bytes.
#ifndef LLMC_RUNTIME_TEXT_BYTE_LEVEL_H_
#define LLMC_RUNTIME_TEXT_BYTE_LEVEL_H_

#include <string>

#include "absl/strings/string_view.h"

namespace llmc {

// The bytes of `text`, each as its character of the alphabet.
std::string BytesToAlphabet(absl::string_view text);

// The reverse. Text with a character outside the alphabet (an added token's) is returned as it is.
std::string AlphabetToBytes(absl::string_view text);

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_BYTE_LEVEL_H_
