// The commands of README.md and docs/ work, and print what is shown.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The commands ("$ " at the front) between ```, but for the build itself.
std::string CommandsOf(const std::string& document) {
  std::string commands;
  bool fenced = false;
  for (const std::string& line : LinesOf(document)) {
    fenced ^= absl::StartsWith(line, "```");
    absl::string_view command = line;
    if (!fenced || !absl::ConsumePrefix(&command, "$ ") || absl::StartsWith(command, "cmake ")) continue;
    absl::StrAppend(&commands, command, "\n");
  }
  return commands;
}

const fs::path kRoot = fs::path(LLMC_TEST_DATA).parent_path().parent_path();

// Runs the commands of a document in a folder that looks like the repository, and returns what they print.
std::string RunDocument(const std::string& document, const fs::path& folder) {
  const std::string commands = CommandsOf(document);
  EXPECT_NE(commands, "");
  fs::create_directories(folder / "build");
  fs::create_symlink(LLMC_BINARY, folder / "build/llmc");
  fs::create_symlink(kRoot / "tests", folder / "tests");
  std::ofstream(folder / "commands") << "set -euxo pipefail\n" << commands;
  const std::string shell = absl::StrCat("cd '", folder.string(), "' && bash commands >out 2>&1 </dev/null");
  EXPECT_EQ(std::system(shell.c_str()), 0) << ReadFile(folder / "out");
  return ReadFile(folder / "out");
}

TEST(Documents, TheReadmesExampleWorks) {
  const fs::path folder = fs::path(TempFolder()) / "readme";
  const std::string readme = ReadFile(kRoot / "README.md");
  const std::string example = readme.substr(readme.find("## A worked example"));
  for (const char* name : {"compile", "show", "generate", "run", "opt"}) {
    EXPECT_THAT(CommandsOf(example), testing::HasSubstr(absl::StrCat("build/llmc ", name)));
  }
  EXPECT_THAT(RunDocument(example, folder), testing::HasSubstr("Once upon a time there was"));
  EXPECT_TRUE(fs::exists(folder / "fused.lir"));
}

TEST(Documents, TheReportsCommandsWork) {
  const std::string printed = RunDocument(ReadFile(kRoot / "docs/check.md"), fs::path(TempFolder()) / "report");
  EXPECT_THAT(printed, testing::HasSubstr("the model can be compiled"));
}

TEST(Documents, TheCommandsOfVectorsWork) {
  const std::string printed = RunDocument(ReadFile(kRoot / "docs/embed.md"), fs::path(TempFolder()) / "embed");
  EXPECT_THAT(printed, testing::HasSubstr("48 numbers of 8 tokens"));
}

TEST(Documents, TheCommandsOfQuantizingWork) {
  const std::string printed = RunDocument(ReadFile(kRoot / "docs/quantize.md"), fs::path(TempFolder()) / "quantize");
  EXPECT_THAT(printed, testing::HasSubstr("tale-int4: "));
  EXPECT_THAT(printed, testing::HasSubstr("KL divergence 0."));
}

// Its commands work, and what it shows is what they print.
TEST(Documents, TheWalkthroughIsTrue) {
  const fs::path folder = fs::path(TempFolder()) / "walkthrough";
  const std::string document = ReadFile(kRoot / "docs/walkthrough.md");
  std::string printed = RunDocument(document, folder);
  for (const auto& entry : fs::directory_iterator(folder / "ir")) printed += ReadFile(entry.path());
  printed += ReadFile(kRoot / "passes/rules/fuse.cc") + ReadFile(kRoot / "passes/lower/lower_rules.cc");
  bool fenced = false;
  for (const std::string& line : LinesOf(document)) {
    fenced ^= absl::StartsWith(line, "```");
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (!fenced || text.empty() || text == "…" || absl::StartsWith(text, "$ ") || absl::StartsWith(text, "```"))
      continue;
    EXPECT_TRUE(absl::StrContains(printed, text)) << "not printed: " << text;
  }
}

}  // namespace
}  // namespace llmc
