// Runs the llmc command for tests.
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/shared_data.h"

namespace llmc {

struct CommandResult {
  int exit_code = -1;
  std::string out;
  std::string err;
  double cpu_seconds = 0;  // unlike the time on the clock, hardly changed by what else runs
  nlohmann::json Json() const { return nlohmann::json::parse(out, nullptr, false); }
};

// The command is $LLMC_COMMAND, else the one that was built. Arguments are passed as they are, without a shell. Ends
// the program after `limit_seconds`. Standard output goes to the device `out`, if given, and is not read then. Standard
// input is the file `in`, if given.
CommandResult RunLlmc(const std::vector<std::string>& args, int limit_seconds = 120, const std::string& out = "",
                      const std::string& in = "");

// A folder of this test program that is removed at its end.
const std::string& TempFolder();
std::string ReadFile(const std::string& path);

// The folder of the shipped model.
inline const std::string kModel = LLMC_TEST_DATA "/tale-7m";
// The same, where tests may run without the repository: $LLMC_TEST_DATA names the data.
std::string ShippedModel();

// Generates greedily for all prompts of a reference.json and compares the tokens; from the first token whose margin to
// the second best is below `loose_margin` on, the rest of a prompt may differ. `extra` are more arguments.
void ExpectReferenceTokens(const std::string& model, const std::string& reference_file, double loose_margin,
                           const std::vector<std::string>& extra);

}  // namespace llmc
