// ir/OPS.md says what the structs say. `build-dev/tests/ops_doc_test --bless` writes it anew.
#include "ir/ops_doc.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/bless.h"

namespace llmc {
namespace {

TEST(OpsDoc, MatchesTheStructs) {
  const std::string path = "ir/OPS.md";
  if (Blessing()) std::ofstream(path) << OpsMarkdown();
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), OpsMarkdown()) << "it is written anew by " << BlessCommand();
}

}  // namespace
}  // namespace llmc
