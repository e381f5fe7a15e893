// Runs the llmc command for tests.
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace llmc {

struct CommandResult {
  int exit_code = -1;
  std::string out;
  std::string err;
  double cpu_seconds = 0;  // unlike the time on the clock, hardly changed by what else runs
  nlohmann::json Json() const { return nlohmann::json::parse(out, nullptr, false); }
};

// The command is $LLMC_COMMAND, else the one that was built. Arguments are passed as they are, without a shell. Ends
// the program after `limit_seconds`. Standard output goes to the device `out`, if given, and is not read then.
CommandResult RunLlmc(const std::vector<std::string>& args, int limit_seconds = 120, const std::string& out = "");

// A folder of this test program that is removed at its end.
const std::string& TempFolder();
std::string ReadFile(const std::string& path);
// Path below the optional shared test data ($LLMC_SHARED_DATA, else as configured), or "" when it is not there.
std::string SharedData(const std::string& name);

// The folder of the shipped model; $LLMC_TEST_DATA names the data where the repository is not.
std::string ShippedModel();

// Generates greedily for all prompts of a reference.json and compares the tokens; from the first token whose margin to
// the second best is below `loose_margin` on, the rest of a prompt may differ. `extra` are more arguments.
void ExpectReferenceTokens(const std::string& model, const std::string& reference_file, double loose_margin,
                           const std::vector<std::string>& extra);

// reference.json and reference_logits of the tale models come from models that had been converted to bf16 and back,
// their table of rope's inverse frequencies too. Writes the program of a folder, in f32 and with such frequencies, and
// returns its path, for --weights-folder=FOLDER.
std::string WriteProgramOfReferences(const std::string& folder);

}  // namespace llmc
