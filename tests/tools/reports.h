// Reports of commands as JSON, and the files they are about.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/tools/run_command.h"

namespace llmc {

using Json = nlohmann::json;

// A file in the folder of the test; its path.
inline std::string WriteFile(const std::string& name, const std::string& bytes) {
  const std::string path = TempFolder() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

// The findings of a kind.
inline std::vector<Json> Findings(const Json& report, const std::string& kind) {
  std::vector<Json> found;
  for (const Json& finding : report["findings"]) {
    if (finding["kind"] == kind) found.push_back(finding);
  }
  return found;
}

// A row of what was recognized: how many of how many.
inline void ExpectRecognized(const Json& report, const std::string& what, int found, int of) {
  const Json rows = report.value("recognized", Json::object());
  EXPECT_EQ(rows.value(what, Json()), (Json{{"found", found}, {"of", of}})) << what;
}
inline void ExpectAll(const Json& report, const std::string& what, int count) {
  ExpectRecognized(report, what, count, count);
}

}  // namespace llmc
