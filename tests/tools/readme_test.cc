// The commands of README.md do what it says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

// The lines after "$ " between ``` in the section "A worked example", but for the build itself.
std::string WorkedExample(const std::string& readme) {
  std::istringstream lines(readme.substr(readme.find("## A worked example")));
  std::string commands;
  int fences = 0;
  for (std::string line; fences < 2 && std::getline(lines, line);) {
    fences += absl::StartsWith(line, "```");
    absl::string_view command = line;
    if (!absl::ConsumePrefix(&command, "$ ") || absl::StartsWith(command, "cmake ")) continue;
    absl::StrAppend(&commands, command, "\n");
  }
  return commands;
}

TEST(Readme, TheWorkedExampleWorks) {
  const fs::path root = fs::path(LLMC_TEST_DATA).parent_path().parent_path();
  const std::string commands = WorkedExample(ReadFile(root / "README.md"));
  for (const char* name : {"compile", "show", "generate", "run", "opt"}) {
    EXPECT_THAT(commands, testing::HasSubstr(absl::StrCat("build/llmc ", name)));
  }
  const fs::path folder = fs::path(TempFolder()) / "readme";
  fs::create_directories(folder / "build");
  fs::create_symlink(LLMC_BINARY, folder / "build/llmc");
  fs::create_symlink(root / "tests", folder / "tests");
  std::ofstream(folder / "commands") << "set -euxo pipefail\n" << commands;
  const std::string shell = absl::StrCat("cd '", folder.string(), "' && bash commands >out 2>&1 </dev/null");
  EXPECT_EQ(std::system(shell.c_str()), 0) << ReadFile(folder / "out");
  EXPECT_THAT(ReadFile(folder / "out"), testing::HasSubstr("Once upon a time there was"));
  EXPECT_TRUE(fs::exists(folder / "fused.lir"));
}

}  // namespace
}  // namespace llmc
