// Runs the cases of tests/ir/ops/*.lir. A case is a fragment and, in comments, what to expect of it:
//   // %y = f32[2] 1 -2.5        the value (within 1e-5 of it, relative above 1; exactly for integers and bools)
//   // %y : f32[B, S]            the inferred type
//   // %y contents B, 64         the contents as dims; `none` if unknown
//   // error: text               a substring of the error of inference or of the run
//   // with %x = f32[2] 1 2      the value of an input
// Cases are separated by "// -----".
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "ir/eval.h"
#include "ir/op.h"
#include "ir/text.h"

namespace llmc {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream stream;
  stream << file.rdbuf();
  return stream.str();
}

struct Case {
  std::string file;
  int line = 0;
  std::string text;
};

std::vector<Case> LoadCases() {
  std::vector<Case> cases;
  std::set<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator("tests/ir/ops")) paths.insert(entry.path());
  for (const auto& path : paths) {
    std::ifstream file(path);
    std::string line;
    int number = 0;
    cases.push_back({path.filename(), 1, ""});
    while (std::getline(file, line)) {
      ++number;
      if (absl::StartsWith(line, "// -----")) {
        cases.push_back({path.filename(), number + 1, ""});
      } else {
        absl::StrAppend(&cases.back().text, line, "\n");
      }
    }
  }
  return cases;
}

// "f32[2] 1 -2.5"
Tensor ParseTensor(absl::string_view text) {
  const size_t bracket = text.find(']') + 1;
  absl::StatusOr<TensorType> type = TensorType::Parse(text.substr(0, bracket));
  EXPECT_TRUE(type.ok()) << text;
  Shape shape;
  for (const Dim& dim : type->shape) shape.push_back(dim.value());
  const std::vector<std::string> words = absl::StrSplit(text.substr(bracket), ' ', absl::SkipEmpty());
  Tensor tensor(type->dtype, shape);
  EXPECT_EQ(static_cast<int64_t>(words.size()), tensor.size()) << text;
  for (size_t i = 0; i < words.size() && static_cast<int64_t>(i) < tensor.size(); ++i) {
    int64_t integer = 0;
    double real = 0;
    if (!IsFloat(type->dtype) && absl::SimpleAtoi(words[i], &integer)) {
      tensor.SetInt(i, integer);
    } else {
      EXPECT_TRUE(absl::SimpleAtod(words[i], &real)) << words[i];
      tensor.SetFloat(i, real);
    }
  }
  return tensor;
}

std::string Show(const Tensor& tensor) {
  std::string out = absl::StrCat(DTypeName(tensor.dtype()), ShapeToString(tensor.shape()));
  for (int64_t i = 0; i < tensor.size(); ++i) {
    absl::StrAppend(&out, " ");
    if (IsFloat(tensor.dtype())) {
      absl::StrAppend(&out, tensor.GetFloat(i));
    } else {
      absl::StrAppend(&out, tensor.GetInt(i));
    }
  }
  return out;
}

bool Near(const Tensor& got, const Tensor& want) {
  if (got.dtype() != want.dtype() || got.shape() != want.shape()) return false;
  for (int64_t i = 0; i < got.size(); ++i) {
    if (!IsFloat(got.dtype())) {
      if (got.GetInt(i) != want.GetInt(i)) return false;
      continue;
    }
    const double a = got.GetFloat(i), b = want.GetFloat(i);
    if (std::isnan(b)   ? !std::isnan(a)
        : std::isinf(b) ? a != b
                        : !(std::abs(a - b) <= 1e-5 * std::max(1.0, std::abs(b)))) {
      return false;
    }
  }
  return true;
}

struct Expectations {
  std::vector<std::pair<std::string, std::string>> values, types, contents;
  NamedTensors inputs;
  std::string error;
};

Expectations ParseExpectations(const std::string& text) {
  Expectations want;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, "// ")) continue;
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 2));
    if (absl::ConsumePrefix(&line, "error: ")) {
      want.error = std::string(line);
    } else if (absl::ConsumePrefix(&line, "with %")) {
      const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(" = ", 1));
      want.inputs[parts[0]] = ParseTensor(parts[1]);
    } else if (words[0][0] == '%' && words.size() == 3) {
      auto* list = words[1] == "=" ? &want.values : words[1] == ":" ? &want.types : &want.contents;
      list->emplace_back(words[0], words[2]);
    }
  }
  return want;
}

// What a model prints parses, and prints the same again.
void CheckRoundTrip(const Model& model) {
  const std::string text = PrintModel(model);
  absl::StatusOr<std::unique_ptr<Model>> again = ParseModel(text, "printed");
  ASSERT_TRUE(again.ok()) << again.status().message() << "\n" << text;
  EXPECT_EQ(PrintModel(**again), text);
}

absl::Status RunCase(const std::string& text, const Expectations& want) {
  absl::StatusOr<std::unique_ptr<Model>> model = ParseFragment(text, "case");
  if (!model.ok()) return model.status();
  CheckRoundTrip(**model);
  for (const auto& [name, type] : want.types) {
    const Value* value = (*model)->Find(name);
    if (value == nullptr) return absl::NotFoundError(name);
    EXPECT_EQ(value->type.ToString(), type) << name;
  }
  for (const auto& [name, dims] : want.contents) {
    const Value* value = (*model)->Find(name);
    if (value == nullptr) return absl::NotFoundError(name);
    EXPECT_EQ(value->contents.has_value() ? DimsToString(*value->contents) : "none", dims) << name;
  }
  if (want.values.empty() && want.error.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<Evaluator>> evaluator = Evaluator::Create(model->get());
  if (!evaluator.ok()) return evaluator.status();
  if (absl::Status status = (*evaluator)->AllocateStates({}); !status.ok()) return status;
  absl::StatusOr<NamedTensors> outputs = (*evaluator)->Run(*(*model)->steps[0], want.inputs);
  if (!outputs.ok()) return outputs.status();
  for (const auto& [name, value] : want.values) {
    auto it = outputs->find(name.substr(1));
    if (it == outputs->end()) return absl::NotFoundError(name);
    EXPECT_TRUE(Near(it->second, ParseTensor(value))) << name << " = " << Show(it->second) << "\nexpected " << value;
  }
  return absl::OkStatus();
}

TEST(Ops, Cases) {
  const std::vector<Case> cases = LoadCases();
  ASSERT_GT(cases.size(), 100u);
  for (const Case& c : cases) {
    SCOPED_TRACE(absl::StrCat("tests/ir/ops/", c.file, ":", c.line, "\n", c.text));
    const Expectations want = ParseExpectations(c.text);
    EXPECT_FALSE(want.values.empty() && want.types.empty() && want.contents.empty() && want.error.empty());
    const absl::Status status = RunCase(c.text, want);
    if (want.error.empty()) {
      EXPECT_TRUE(status.ok()) << status.message();
    } else {
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(want.error));
    }
  }
}

// Changed cases fail with a place, or round-trip.
TEST(Ops, ChangedCasesParseOrFailCleanly) {
  const std::vector<Case> cases = LoadCases();
  const std::vector<std::string> words = {"0",      "-1",      "9223372036854775807",
                                          "1e999",  "nan",     "[]",
                                          "[0, 1]", "f32[0]",  "i64[]",
                                          "i4[3]",  "S*S",     "S - 9",
                                          "(S)/2",  "_",       "?",
                                          "%x",     "@w",      "\"",
                                          "//",     "{",       "}",
                                          "%x, %x", "bool[T]", "\xff"};
  std::mt19937 rng(5);
  for (int i = 0; i < 4000; ++i) {
    std::string text = cases[rng() % cases.size()].text;
    for (int n = 0; n <= i % 3; ++n) {
      const size_t at = text.find_first_not_of(" \n", rng() % text.size());
      if (at == text.npos) continue;
      const size_t end = text.find_first_of(" ,[]{}\n", at + 1);
      text.replace(at, std::min(end, text.size()) - at, words[rng() % words.size()]);
    }
    SCOPED_TRACE(text);
    absl::StatusOr<std::unique_ptr<Model>> model = ParseFragment(text, "case");
    if (model.ok()) {
      CheckRoundTrip(**model);
    } else {
      EXPECT_THAT(std::string(model.status().message()), ::testing::StartsWith("case:"));
    }
  }
}

// Every op has a case that checks its value.
TEST(Ops, EachHasACase) {
  std::set<std::string> computed;
  for (const Case& c : LoadCases()) {
    if (ParseExpectations(c.text).values.empty()) continue;
    absl::StatusOr<std::unique_ptr<Model>> model = ParseFragment(c.text, "case");
    if (!model.ok()) continue;
    for (const auto& node : (*model)->steps[0]->block.nodes) computed.insert(std::string(node->op->info.name));
  }
  for (const OpDef* op : AllOpDefs()) {
    EXPECT_TRUE(computed.contains(std::string(op->info.name))) << "no case of tests/ir/ops runs " << op->info.name;
  }
}

// Every label of an error in the sources has a case, or a test in ops_invariance_test.cc, that raises it.
TEST(Ops, EachLabelHasACase) {
  std::string all = ReadFile("tests/ir/ops_invariance_test.cc");
  for (const Case& c : LoadCases()) absl::StrAppend(&all, c.text);
  for (const auto& entry : std::filesystem::directory_iterator("ir")) {
    if (!absl::StartsWith(entry.path().filename().string(), "ops_") || entry.path().extension() != ".cc") continue;
    const std::string source = ReadFile(entry.path());
    for (size_t at = source.find("_c"); at != std::string::npos; at = source.find("_c", at + 1)) {
      if (at + 2 >= source.size() || !std::isdigit(source[at + 2])) continue;
      size_t begin = at, end = at + 2;
      while (begin > 0 && (std::islower(source[begin - 1]) || source[begin - 1] == '_')) --begin;
      while (std::isdigit(source[end])) ++end;
      const std::string label = source.substr(begin, end - begin);
      if (begin == at) continue;  // A suffix, put after the name of one of several ops.
      EXPECT_TRUE(absl::StrContains(all, absl::StrCat("error: ", label)) ||
                  absl::StrContains(all, absl::StrCat(": ", label, ": ")))
          << entry.path() << ": no case raises " << label;
    }
  }
}

}  // namespace
}  // namespace llmc
