// Keys of config.json that a family did not look at.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "frontend/huggingface/config_reader.h"

namespace llmc::hf {

// Keeps in `config` a complaint of each key that may change what the model computes: one that other decoders read, with
// a value that none of them takes for an absent key, and one that is spelled almost like a key that the family asked
// for and that is not there. Returns the others, but for those that change nothing, or whose value changes nothing:
// notes for a user.
std::vector<std::string> CheckUnread(absl::string_view architecture, bool is_decoder, ConfigReader* config);

}  // namespace llmc::hf
