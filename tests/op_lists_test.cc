// Ops say what they are (OpInfo, ir/op.h), so no other file lists them: a new op would be missing there. A list is one
// condition, or one initializer, that names three ops or more, as Is<Op>, DefOf<Op> or "op". Code of its own for each
// op
// (`if (Is<A>(node)) return ConvertA(node);`) is none: an op that has none is refused, or left as it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ir/op.h"

namespace llmc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

constexpr size_t kFewest = 3;

// Where each op has its row: what it is and what it gives, kernels and functions of sizes that compute it, the rules
// that make it and the importers that read it. Filters of chat templates have names of ops.
constexpr absl::string_view kMayList[] = {"ir/ops_",
                                          "ir/ops.h",
                                          "codegen/tasks/select",
                                          "codegen/tasks/backends.cc",
                                          "codegen/memory/size_formulas.cc",
                                          "passes/rules/",
                                          "frontend/",
                                          "runtime/chat/"};

// The lists in a C++ source, each as the ops that it names.
std::vector<std::string> ListsIn(const std::string& source) {
  // In this order: what is skipped, what ends a list, what names an op.
  static const std::regex kToken(
      R"re(//[^\n]*|'(?:\\.|[^'\\\n])'|\.Apply\("\w+"|;|\)\s*\{|\belse\s*\{|\b(?:Is|DefOf)<(\w+)>|"((?:\\.|[^"\\\n])*)")re");
  std::vector<std::string> lists;
  std::set<std::string> ops;
  const auto end = [&] {
    if (ops.size() >= kFewest) lists.push_back(absl::StrJoin(ops, " "));
    ops.clear();
  };
  for (std::sregex_iterator it(source.begin(), source.end(), kToken), last; it != last; ++it) {
    const std::smatch& token = *it;
    if (token[1].matched) {
      ops.insert(token[1]);
    } else if (token[2].matched) {
      if (FindOp(token[2].str()) != nullptr) ops.insert(token[2]);
    } else if (const char last_char = token.str().back(); last_char == ';' || last_char == '{') {
      if (!absl::StartsWith(token.str(), "//")) end();
    }
  }
  end();
  return lists;
}

TEST(OpLists, NoFileHasOne) {
  const fs::path root = fs::path(LLMC_TEST_DATA).parent_path().parent_path();
  int files = 0;
  for (const char* top :
       {"base", "files", "cubins", "ir", "frontend", "passes", "codegen", "kernels", "runtime", "tools"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cc" && extension != ".h" && extension != ".cuh") continue;
      const std::string path = fs::relative(entry.path(), root);
      ++files;
      const auto begins = [&](absl::string_view with) { return absl::StartsWith(path, with); };
      if (std::any_of(std::begin(kMayList), std::end(kMayList), begins)) continue;
      std::ifstream in(entry.path());
      const std::string source{std::istreambuf_iterator<char>(in), {}};
      for (const std::string& list : ListsIn(source)) {
        ADD_FAILURE() << path << " lists the ops " << list << ": let OpInfo say what they have in common";
      }
    }
  }
  EXPECT_GT(files, 300) << "is the tree where the test looks for it?";
}

// The real lists that the test is for.
TEST(OpLists, ListsAreFound) {
  EXPECT_THAT(ListsIn("return Is<Floor>(&node) || Is<Ceil>(&node) ||\n       Is<Round>(&node);"),
              ElementsAre("Ceil Floor Round"));
  EXPECT_THAT(ListsIn("while (!Is<RmsNorm>(node) && !Is<LayerNorm>(node) && !Is<Cast>(node)) {"),
              ElementsAre("Cast LayerNorm RmsNorm"));
  EXPECT_THAT(ListsIn("static const auto* ops = new absl::flat_hash_set<const OpDef*>{\n  DefOf<Neg>(), DefOf<Abs>(), "
                      "DefOf<Relu>()};"),
              ElementsAre("Abs Neg Relu"));
  EXPECT_THAT(ListsIn("const Row rows[] = {{\"neg\", \"-$0\"}, {\"sub\", 2}, {\"add\", 1}};"),
              ElementsAre("add neg sub"));
  EXPECT_THAT(ListsIn("if (op == \"equal\" || op == \"less\" || op == \"greater\") return;"),
              ElementsAre("equal greater less"));
}

TEST(OpLists, CodeOfEachOpIsNoList) {
  EXPECT_THAT(ListsIn("if (Is<Add>(n)) return A(n);\nif (Is<Sub>(n)) return S(n);\nif (Is<Mul>(n)) return M(n);"),
              IsEmpty());
  EXPECT_THAT(ListsIn("if (Is<Add>(n)) {\n  f();\n} else if (Is<Sub>(n)) {\n} else if (Is<Mul>(n)) {\n}"), IsEmpty());
  EXPECT_THAT(ListsIn("if (Is<Add>(n) || Is<Sub>(n)) return;  // as \"mul\" and \"div\" and \"pow\""), IsEmpty());
  EXPECT_THAT(
      ListsIn("Rules(Rule(\"a\").Apply(\"add\", A), Rule(\"b\").Apply(\"sub\", B), Rule(\"c\").Apply(\"mul\", C));"),
      IsEmpty());
  EXPECT_THAT(ListsIn("Print(\"x\", \"y\", \"z\", \"no op\");"), IsEmpty());
}

}  // namespace
}  // namespace llmc
