// ir/OPS.md says what the structs say. `LLMC_BLESS=1 build-dev/tests/ops_doc_test` writes it anew.
#include "ir/ops_doc.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace llmc {
namespace {

TEST(OpsDoc, MatchesTheStructs) {
  const std::string path = "ir/OPS.md";
  if (std::getenv("LLMC_BLESS") != nullptr) std::ofstream(path) << OpsMarkdown();
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), OpsMarkdown()) << "run with LLMC_BLESS=1 to write it anew";
}

}  // namespace
}  // namespace llmc
