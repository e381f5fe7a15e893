// Fails with one sentence for every #include that goes the wrong way through the layers.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

// A file belongs to the longest entry that its path begins with. "tests" and "tools" may include everything, and all
// may include "base" and "kernels/layout". An entry "runtime/plan/" allows the files of that room.
const std::map<std::string, std::vector<std::string>> kMayInclude = {
    {"base", {}},
    {"files", {"files"}},
    {"cubins", {"cubins", "files"}},
    {"ir", {"ir"}},
    {"frontend", {"frontend", "files", "ir"}},
    {"passes", {"passes", "files", "ir"}},
    {"quantize", {"quantize", "frontend", "files", "ir", "runtime/host/"}},
    {"codegen", {"codegen", "cubins", "files", "ir", "passes/lower/", "passes/driver/", "runtime/plan/"}},
    {"kernels", {"kernels"}},
    {"kernels/layout", {}},
    {"runtime", {"runtime", "runtime/text", "cubins", "files"}},
    {"runtime/host", {"runtime/host", "runtime", "ir"}},
    {"runtime/text", {"runtime/text"}},
    {"runtime/chat", {"runtime/chat", "runtime/text", "files"}},
};

bool IsUnder(const std::string& path, const std::string& directory) { return path.rfind(directory + "/", 0) == 0; }

// The layer that `path` belongs to, or "" for system headers, tools and tests.
std::string LayerOf(const std::string& path) {
  std::string layer;
  for (const auto& [name, allowed] : kMayInclude) {
    if (IsUnder(path, name) && name.size() > layer.size()) layer = name;
  }
  return layer;
}

bool MayInclude(const std::string& layer, const std::string& header) {
  if (IsUnder(header, "tools") || IsUnder(header, "tests")) return false;
  const std::string target = LayerOf(header);
  if (target.empty() || target == "base" || target == "kernels/layout")
    return layer != "kernels/layout" || target == layer;
  for (const std::string& allowed : kMayInclude.at(layer)) {
    const bool is_layer = kMayInclude.count(allowed) > 0;
    if (is_layer ? target == allowed : header.rfind(allowed, 0) == 0) return true;
  }
  return false;
}

// Checks one source file; returns how many of its includes name a file of ours.
int CheckFile(const fs::path& root, const std::string& file) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*["<]([^">]+)[">])re");
  std::ifstream in(root / file);
  int ours = 0, line_number = 0;
  for (std::string line; std::getline(in, line);) {
    ++line_number;
    std::smatch match;
    if (!std::regex_search(line, match, kInclude)) continue;
    const std::string header = match[1];
    const std::string layer = LayerOf(file);
    ours += !LayerOf(header).empty();
    if (MayInclude(layer, header)) continue;
    ADD_FAILURE() << file << ":" << line_number << ": " << layer << "/ must not include \"" << header << "\".";
  }
  return ours;
}

TEST(LayersTest, IncludesGoTheRightWay) {
  const fs::path root = fs::path(LLMC_TEST_DATA).parent_path().parent_path();
  int includes = 0;
  for (const char* top :
       {"base", "files", "cubins", "ir", "frontend", "passes", "quantize", "codegen", "kernels", "runtime"}) {
    if (!fs::exists(root / top)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cc" && extension != ".h" && extension != ".cuh") continue;
      includes += CheckFile(root, fs::relative(entry.path(), root));
    }
  }
  EXPECT_GT(includes, 0) << "no #include of ours was found: is the tree where the test looks for it?";
}

TEST(LayersTest, TheTableTellsRightFromWrong) {
  EXPECT_TRUE(MayInclude("codegen", "runtime/plan/plan.pb.h"));
  EXPECT_FALSE(MayInclude("codegen", "runtime/engine/engine.h"));
  EXPECT_TRUE(MayInclude("runtime/host", "ir/eval.h"));
  EXPECT_FALSE(MayInclude("runtime", "ir/eval.h"));
  EXPECT_FALSE(MayInclude("runtime", "runtime/host/executor.h"));
  EXPECT_FALSE(MayInclude("runtime/text", "runtime/plan/plan.pb.h"));
  EXPECT_TRUE(MayInclude("codegen", "kernels/layout/linear.h"));
  EXPECT_FALSE(MayInclude("codegen", "kernels/linear/gemv.cuh"));
  EXPECT_FALSE(MayInclude("kernels/layout", "vector"));
  EXPECT_FALSE(MayInclude("ir", "passes/driver.h"));
  EXPECT_FALSE(MayInclude("frontend", "tools/flags.h"));
  EXPECT_TRUE(MayInclude("ir", "absl/status/status.h"));
}

}  // namespace
