#include "tests/shared_data.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace llmc {

std::string Environment(const char* name, const char* value) {
  const char* set = std::getenv(name);
  return set != nullptr ? set : value;
}

std::string FindSharedData(const std::string& name) {
  const std::string data = Environment("LLMC_SHARED_DATA", LLMC_SHARED_DATA);
  return !data.empty() && std::filesystem::exists(data + "/" + name) ? data + "/" + name : "";
}

void MissingData(const std::string& name) {
  if (Environment("LLMC_REQUIRE_DATA", LLMC_REQUIRE_DATA) != "1") return;
  ADD_FAILURE() << "test data is required (LLMC_REQUIRE_DATA), but LLMC_SHARED_DATA (\""
                << Environment("LLMC_SHARED_DATA", LLMC_SHARED_DATA) << "\") has no " << name;
}

std::string SharedData(const std::string& name) {
  std::string path = FindSharedData(name);
  if (path.empty()) MissingData(name);
  return path;
}

}  // namespace llmc
