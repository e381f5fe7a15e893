// Ops do what their traits say: along the axes that an op does not mix it does the same at each place, views and moves
// give elements of the first operand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ir/eval.h"
#include "ir/op.h"
#include "ir/text.h"

namespace llmc {
namespace {

constexpr int64_t kRows = 3, kColumns = 4;

// A program of one op on [3, 4], along axis 1 where it has one. Empty if it takes no operands of the type.
struct TraitCase {
  std::unique_ptr<Model> model;
  NamedTensors inputs;
};

TraitCase CaseOf(const OpDef& op, DType dtype) {
  TraitCase c;
  std::string text;
  std::vector<std::string> names, results, attrs;
  const size_t operands = op.variadic() ? 2 : op.operands.size();
  for (size_t i = 0; i < operands; ++i) {
    const bool is_condition = op.operands[std::min(i, op.operands.size() - 1)] == "condition";
    const bool is_row = op.UseOf(i) == Use::kParameter, is_scale = op.UseOf(i) == Use::kComponent;
    if (is_scale && i >= op.min_operands) break;
    const DType own = is_condition ? DType::kBool : dtype;
    names.push_back(absl::StrCat("%x", i));
    absl::StrAppend(&text, "in ", names.back(), ": ", DTypeName(own),
                    is_row     ? "[4]\n"
                    : is_scale ? "[3]\n"
                               : "[3, 4]\n");
    Tensor tensor(own, is_row ? Shape{kColumns} : is_scale ? Shape{kRows} : Shape{kRows, kColumns});
    for (int64_t j = 0; j < tensor.size(); ++j) {
      const int64_t number = 1 + (j * 5 + static_cast<int64_t>(i) * 3) % 13;
      const bool is_index = op.UseOf(i) == Use::kPlaces;
      tensor.SetInt(j, own == DType::kBool ? number % 2 : is_index ? number % kRows : number);
    }
    c.inputs[names.back().substr(1)] = std::move(tensor);
  }
  for (int i = 0; i < op.info.results; ++i) results.push_back(absl::StrCat("%y", i));
  for (const absl::string_view attr : op.attrs) {
    if (attr == "axis") attrs.push_back("axis = 1");
    if (attr == "axes") attrs.push_back("axes = [1]");
    if (attr == "start") attrs.push_back("start = [1]");
    if (attr == "end") attrs.push_back("end = [3]");
    if (attr == "as") attrs.push_back("as = \"int8 per=token scale=f32\"");
    if (attr == "limit") attrs.push_back("limit = 127.0");
  }
  absl::StrAppend(&text, absl::StrJoin(results, ", "), " = ", op.info.name, " ", absl::StrJoin(names, ", "));
  if (!attrs.empty()) absl::StrAppend(&text, " {", absl::StrJoin(attrs, ", "), "}");
  absl::StatusOr<std::unique_ptr<Model>> model = ParseFragment(text + "\n", "case");
  if (model.ok()) c.model = *std::move(model);
  return c;
}

TraitCase CaseOf(const OpDef& op) {
  for (const DType dtype : {DType::kF32, DType::kI64, DType::kBool}) {
    if (TraitCase c = CaseOf(op, dtype); c.model != nullptr) return c;
  }
  return {};
}

NamedTensors Evaluated(const TraitCase& c, const NamedTensors& inputs) {
  absl::StatusOr<std::unique_ptr<Evaluator>> evaluator = Evaluator::Create(c.model.get());
  if (!evaluator.ok()) return {};
  absl::StatusOr<NamedTensors> outputs = (*evaluator)->Run(*c.model->steps[0], inputs);
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  return outputs.ok() ? *outputs : NamedTensors();
}

// The first row comes last.
Tensor Rotated(const Tensor& tensor) {
  Tensor rotated(tensor.dtype(), tensor.shape());
  const int64_t columns = tensor.size() / kRows;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    rotated.SetFloat((i / columns + kRows - 1) % kRows * columns + i % columns, tensor.GetFloat(i));
  }
  return rotated;
}

TEST(OpTraits, RowsAreIndependentWhereColumnsMix) {
  int checked = 0;
  for (const OpDef* op : AllOpDefs()) {
    if (op->info.mixes == Mixes::kAll || op->info.mixes == Mixes::kAllButFirst) continue;
    SCOPED_TRACE(op->info.name);
    const TraitCase c = CaseOf(*op);
    ASSERT_NE(c.model, nullptr);
    NamedTensors turned = c.inputs;
    for (auto& [name, tensor] : turned) {
      if (tensor.shape()[0] == kRows) tensor = Rotated(tensor);
    }
    const NamedTensors before = Evaluated(c, c.inputs), after = Evaluated(c, turned);
    ASSERT_EQ(before.size(), static_cast<size_t>(op->info.results));
    for (const auto& [name, tensor] : before) {
      ASSERT_EQ(tensor.shape()[0], kRows);
      const Tensor expected = Rotated(tensor), &actual = after.at(name);
      for (int64_t i = 0; i < tensor.size(); ++i) EXPECT_EQ(actual.GetFloat(i), expected.GetFloat(i)) << name << i;
    }
    ++checked;
  }
  EXPECT_GT(checked, 55);
}

// Their operands differ too much for CaseOf: a program for each.
TEST(OpTraits, PlacesOfTheFirstAxisAreIndependentWhereAllElseMixes) {
  const std::map<std::string, std::string, std::less<>> programs = {
      {"route", "in %x: f32[3, 4]\n%y0, %y1 = route %x {top_k = 2}\n"},
      {"expert_linear",
       "in %x: f32[3, 4]\nin %e: i32[3, 2]\n%w = constant {value = [1, 2, 3, 4, 4, 1, -3, 2]} : f32[2, 1, 4]\n"
       "%y0 = expert_linear %x, %w, %e {transpose_weight = true}\n"}};
  const NamedTensors all = {
      {"x", Tensor::FromValues(DType::kF32, {3, 4}, std::vector<double>{1, 2, 3, 4, 4, 1, 2, 5, 9, 8, 7, 6})},
      {"e", Tensor::FromValues(DType::kI32, {3, 2}, std::vector<double>{0, 1, 1, 1, 1, 0})}};
  for (const OpDef* op : AllOpDefs()) {
    if (op->info.mixes != Mixes::kAllButFirst) continue;
    SCOPED_TRACE(op->info.name);
    const auto program = programs.find(op->info.name);
    ASSERT_NE(program, programs.end());
    TraitCase c{.model = ParseFragment(program->second, "case").value()};
    NamedTensors turned;
    for (const Value* param : c.model->steps[0]->params) {
      const std::string name = param->name.substr(1);
      c.inputs[name] = all.at(name);
      turned[name] = Rotated(all.at(name));
    }
    const NamedTensors before = Evaluated(c, c.inputs), after = Evaluated(c, turned);
    ASSERT_EQ(before.size(), static_cast<size_t>(op->info.results));
    for (const auto& [name, tensor] : before) EXPECT_EQ(after.at(name).ToDoubles(), Rotated(tensor).ToDoubles());
  }
}

TEST(OpTraits, ElementwiseOpsMixNoColumns) {
  for (const OpDef* op : AllOpDefs()) {
    if (!op->info.is_elementwise()) continue;
    SCOPED_TRACE(op->info.name);
    const TraitCase c = CaseOf(*op);
    ASSERT_NE(c.model, nullptr);
    NamedTensors changed = c.inputs;
    for (auto& [name, tensor] : changed) tensor.SetInt(0, tensor.GetInt(0) == 0 ? 1 : 0);
    // A zero divisor of integers is an error; that of floats is not.
    if (c.inputs.size() == 2 && !IsFloat(changed.begin()->second.dtype())) continue;
    const NamedTensors before = Evaluated(c, c.inputs), after = Evaluated(c, changed);
    for (const auto& [name, tensor] : before) {
      for (int64_t i = 1; i < tensor.size(); ++i) EXPECT_EQ(after.at(name).GetFloat(i), tensor.GetFloat(i)) << i;
    }
  }
}

TEST(OpTraits, WhatMovesGivesElementsOfItsOperands) {
  int checked = 0;
  for (const OpDef* op : AllOpDefs()) {
    if (!op->info.Has(kMoves)) continue;
    SCOPED_TRACE(op->info.name);
    const TraitCase c = CaseOf(*op);
    if (c.model == nullptr) continue;  // it takes a shape, indices or a permutation
    std::set<double> elements;
    const Tensor& first = c.inputs.at("x0");
    for (int64_t i = 0; i < first.size(); ++i) elements.insert(first.GetFloat(i));
    if (op->variadic()) elements.insert({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13});
    for (const auto& [name, tensor] : Evaluated(c, c.inputs)) {
      for (int64_t i = 0; i < tensor.size(); ++i) EXPECT_TRUE(elements.contains(tensor.GetFloat(i))) << i;
    }
    ++checked;
  }
  EXPECT_GE(checked, 3);
}

}  // namespace
}  // namespace llmc
