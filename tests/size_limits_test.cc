// Fails with one sentence for every file of more than 500 lines, function of more than 60 and class of more than 250.
// One that is better long says why in the comment at its head: "Over 60 lines: a table, a row a line".
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

constexpr int kMostFileLines = 500, kMostFunctionLines = 60, kMostClassLines = 250;

// Where the comment, literal or preprocessor line that begins at `at` ends; `at` if none does.
size_t EndOfNoCode(const std::string& text, size_t at) {
  const auto after = [&](const std::string& end, size_t from) {
    const size_t found = text.find(end, from);
    return found == std::string::npos ? text.size() : found + end.size();
  };
  const bool in_word = at > 0 && (std::isalnum(static_cast<unsigned char>(text[at - 1])) != 0 || text[at - 1] == '_');
  if (text.compare(at, 2, "//") == 0) return after("\n", at) - 1;
  if (text.compare(at, 2, "/*") == 0) return after("*/", at);
  if (text.compare(at, 2, "R\"") == 0 && !in_word) {
    const size_t open = text.find('(', at);
    return open == std::string::npos ? text.size() : after(")" + text.substr(at + 2, open - at - 2) + "\"", open);
  }
  if (text[at] == '"' || (text[at] == '\'' && !in_word)) {
    size_t end = at + 1;
    while (end < text.size() && text[end] != text[at] && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
    return std::min(end + 1, text.size());
  }
  if (text[at] == '#' && (at == 0 || text.find_last_not_of(' ', at - 1) == text.rfind('\n', at))) {
    size_t end = after("\n", at);
    while (end >= 2 && text[end - 2] == '\\' && end < text.size()) end = after("\n", end);
    return end - 1;
  }
  return at;
}

// The text with spaces in place of comments, literals and preprocessor lines, whose braces need not match.
std::string CodeOnly(const std::string& text) {
  std::string code = text;
  for (size_t at = 0; at < text.size(); ++at) {
    const size_t end = EndOfNoCode(text, at);
    for (size_t i = at; i < end; ++i) {
      if (code[i] != '\n') code[i] = ' ';
    }
    if (end > at) at = end - 1;
  }
  return code;
}

enum class Scope { kNamespace, kClass, kFunction, kOther };

// What a brace opens, by the code between it and the statement before. `inside`: what it stands in.
Scope ScopeOf(const std::string& head, Scope inside) {
  static const std::regex kTemplate(R"re(template\s*<[^{;]*?>\s*(?=template|struct|class|union|enum))re");
  static const std::regex kClass(R"re(^\s*(typedef\s+)?(class|struct|union|enum)\b)re");
  static const std::regex kNamespace(R"re(^\s*(inline\s+)?namespace\b|^\s*extern\s*$)re");
  if (inside != Scope::kNamespace && inside != Scope::kClass) return Scope::kOther;
  if (std::regex_search(head, kNamespace)) return Scope::kNamespace;
  if (std::regex_search(std::regex_replace(head, kTemplate, ""), kClass)) return Scope::kClass;
  // One in the initializer of a table: what stands before it is no part of it.
  static const std::regex kLambda(R"re(\[[^\[\]]*\]\s*\([^()]*\)\s*$)re");
  if (head.find("operator") == std::string::npos && std::regex_search(head, kLambda)) return Scope::kOther;
  const size_t parenthesis = head.find('('), equals = head.find('=');
  const bool assigned = equals < parenthesis && head.find("operator") == std::string::npos;
  return parenthesis != std::string::npos && !assigned ? Scope::kFunction : Scope::kOther;
}

// Where the declaration that ends before `end` begins: behind what stands between `from` and it.
size_t BeginOfHead(const std::string& code, size_t from, size_t end) {
  size_t begin = std::min(end, code.find_first_not_of(" \n", from));
  for (const char* label : {"public:", "protected:", "private:"}) {
    const size_t size = std::strlen(label);
    if (code.compare(begin, size, label) == 0) begin = std::min(end, code.find_first_not_of(" \n", begin + size));
  }
  return begin;
}

struct Part {
  Scope scope = Scope::kOther;
  int first = 0, last = 0;  // lines, from 1 on
};

int LineOf(const std::string& text, size_t at) {
  return 1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n'));
}

// The functions and classes of a file, and all else that stands in braces. Nothing where braces do not match.
std::vector<Part> PartsOf(const std::string& text) {
  const std::string code = CodeOnly(text);
  std::vector<Part> parts, open = {{.scope = Scope::kNamespace}};
  size_t head = 0;
  for (size_t i = 0; i < code.size(); ++i) {
    const Scope inside = open.back().scope;
    if (code[i] == '{') {
      const size_t begin = BeginOfHead(code, head, i);
      open.push_back({.scope = ScopeOf(code.substr(begin, i - begin), inside), .first = LineOf(code, begin)});
    } else if (code[i] == '}') {
      if (open.size() == 1) return {};
      parts.push_back(open.back());
      parts.back().last = LineOf(code, i);
      open.pop_back();
    } else if (code[i] != ';') {
      continue;
    }
    head = i + 1;
  }
  return open.size() == 1 ? parts : std::vector<Part>();
}

// Whether the comment that ends before line `first`, or for a file begins on it, has a reason.
bool HasReason(const std::vector<std::string>& lines, int first, int most) {
  static const std::regex kReason(R"re(^\s*(//|#)\s*Over (\d+) lines: \S.+)re");
  const auto is_comment = [&](int line) {
    return line >= 1 && line <= static_cast<int>(lines.size()) &&
           std::regex_search(lines[static_cast<size_t>(line) - 1], std::regex(R"re(^\s*(//|#))re"));
  };
  const int step = most == kMostFileLines ? 1 : -1;
  for (int line = step == 1 ? first : first - 1; is_comment(line); line += step) {
    std::smatch match;
    if (!std::regex_search(lines[static_cast<size_t>(line) - 1], match, kReason)) continue;
    if (match[2] == std::to_string(most)) return true;
  }
  return false;
}

// A sentence for all that is too long in a file.
std::vector<std::string> TooLong(const std::string& name, const std::string& text) {
  std::vector<std::string> lines, found;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  const auto check = [&](const std::string& what, int first, int count, int most) {
    if (count <= most || HasReason(lines, first, most)) return;
    found.push_back(name + ":" + std::to_string(first) + ": " + what + " of " + std::to_string(count) +
                    " lines: split it, or say why at its head: \"Over " + std::to_string(most) + " lines: ...\"");
  };
  check("a file", 1, static_cast<int>(lines.size()), kMostFileLines);
  if (fs::path(name).extension() == ".py") return found;
  const std::vector<Part> parts = PartsOf(text);
  if (parts.empty() && CodeOnly(text).find('{') != std::string::npos)
    found.push_back(name + ": braces that do not match");
  for (const Part& part : parts) {
    const int count = part.last - part.first + 1;
    if (part.scope == Scope::kFunction) check("a function", part.first, count, kMostFunctionLines);
    if (part.scope == Scope::kClass) check("a class", part.first, count, kMostClassLines);
  }
  return found;
}

TEST(SizeLimitsTest, NothingIsTooLongWithoutAReason) {
  const fs::path root = fs::path(LLMC_TEST_DATA).parent_path().parent_path();
  const std::set<std::string> extensions = {".cc", ".h", ".cuh", ".py"};
  int files = 0;
  for (const char* top :
       {"base", "files", "cubins", "ir", "frontend", "passes", "codegen", "kernels", "runtime", "tools", "tests"}) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / top)) {
      if (!extensions.contains(entry.path().extension().string())) continue;
      std::ifstream in(entry.path());
      std::stringstream text;
      text << in.rdbuf();
      ++files;
      for (const std::string& sentence : TooLong(fs::relative(entry.path(), root).string(), text.str())) {
        ADD_FAILURE() << sentence;
      }
    }
  }
  EXPECT_GT(files, 300) << "is the tree where the test looks for it?";
}

std::string Lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "  f(\"{\");  // {\n";
  return text;
}

TEST(SizeLimitsTest, FindsWhatIsTooLong) {
  const auto too_long = [](const std::string& text) { return TooLong("a.cc", text).size(); };
  EXPECT_EQ(too_long("int x;\n"), 0u);
  EXPECT_EQ(too_long("#include \"a.h\"\nnamespace a {\nvoid f() {\n" + Lines(59) + "}\n}\n"), 1u);
  EXPECT_EQ(too_long("namespace a {\nvoid f(int x = 1) {\n" + Lines(58) + "}\n}\n"), 0u);
  EXPECT_EQ(too_long("namespace a {\nvoid f(int x = 1) {\n" + Lines(59) + "}\n}\n"), 1u);
  EXPECT_EQ(too_long("template <class T>\nvoid f(T x,\n       T y) {\n" + Lines(58) + "}\n"), 1u) << "its head counts";
  EXPECT_EQ(too_long("class A : public B<int> {\n  void f() const {\n" + Lines(59) + "  }\n};\n"), 1u);
  EXPECT_EQ(too_long("bool operator==(A a, A b) {\n" + Lines(59) + "}\n"), 1u);
  EXPECT_EQ(too_long("A::A(int x) : x_{x}, y_(1) {\n" + Lines(59) + "}\n"), 1u);
  EXPECT_EQ(too_long("// Why.\n// Over 60 lines: a table.\nvoid f() {\n" + Lines(59) + "}\n"), 0u);
  EXPECT_EQ(too_long("// Over 60 lines:\nvoid f() {\n" + Lines(59) + "}\n"), 1u) << "no reason";
  EXPECT_EQ(too_long("const T kTable[] = {\n" + std::string(100, '\n') + "};\n"), 0u);
  EXPECT_EQ(too_long("struct A {\n" + std::string(250, '\n') + "};\n"), 1u);
  EXPECT_EQ(too_long("template <class T, int N>\nclass A : B<T> {\n" + std::string(250, '\n') + "};\n"), 1u);
  EXPECT_EQ(too_long("// Over 250 lines: one idea.\nstruct A {\n" + std::string(250, '\n') + "};\n"), 0u);
  EXPECT_EQ(too_long(std::string(501, '\n')), 1u);
  EXPECT_EQ(too_long("// Over 500 lines: a list.\n" + std::string(501, '\n')), 0u);
  EXPECT_EQ(too_long("void f() {\n"), 1u) << "braces that do not match";
}

}  // namespace
