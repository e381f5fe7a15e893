// How tests run the scripts of tools/bench.
#pragma once

#include <stdio.h>
#include <sys/wait.h>

#include <fstream>
#include <iterator>
#include <string>

namespace llmc {

// What a command of the shell prints, without its errors; its exit status goes to `status`.
inline std::string Shell(const std::string& command, int* status) {
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return "";
  std::string text;
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) text += static_cast<char>(c);
  *status = WEXITSTATUS(pclose(pipe));
  return text;
}

inline const std::string kScripts = LLMC_TEST_DATA "/../../tools/bench/";

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace llmc
