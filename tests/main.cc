// The main function of all test programs. --tests_of=NAME runs the tests that NAME.cc defines, for programs that hold
// the tests of several files; --bless is described in bless.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "tests/bless.h"

namespace {

bool g_blessing = false;
std::string g_command;

bool IsIn(std::string_view path, std::string_view file) {
  return path.size() > file.size() && path.substr(path.size() - file.size()) == file &&
         path[path.size() - file.size() - 1] == '/';
}

// A filter for the tests of `file`, empty if there are none.
std::string TestsOf(const std::string& file) {
  std::string filter;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      if (IsIn(test.file(), file)) filter += std::string(filter.empty() ? "" : ":") + suite.name() + "." + test.name();
    }
  }
  return filter;
}

}  // namespace

namespace llmc {

bool Blessing() { return g_blessing; }
std::string BlessCommand() { return g_command + " --bless"; }

}  // namespace llmc

int main(int argc, char** argv) {
  for (int i = 0; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--bless") {
      g_blessing = true;
    } else {
      g_command += (i == 0 ? "" : " ") + std::string(argv[i]);
    }
  }
  testing::InitGoogleMock(&argc, argv);
  constexpr std::string_view kTestsOf = "--tests_of=";
  if (argc > 1 && std::string_view(argv[1]).substr(0, kTestsOf.size()) == kTestsOf) {
    const std::string file = std::string(argv[1]).substr(kTestsOf.size()) + ".cc";
    const std::string filter = TestsOf(file);
    if (filter.empty()) {
      std::fprintf(stderr, "there are no tests of %s in this program\n", file.c_str());
      return 1;
    }
    testing::GTEST_FLAG(filter) = filter;
  }
  return RUN_ALL_TESTS();
}
