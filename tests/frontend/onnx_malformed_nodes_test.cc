// Hostile nodes of ONNX files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/import.h"
#include "ir/text.h"
#include "tests/frontend/onnx_builder.h"

namespace llmc {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

using MalformedNodes = OnnxTest;

TEST_F(MalformedNodes, Arity) {
  EXPECT_THAT(ErrorOf(OneNode("Neg", {})), AllOf(HasSubstr("the_node"), HasSubstr("0 inputs")));
  EXPECT_THAT(ErrorOf(OneNode("Concat", {})), HasSubstr("0 inputs"));
  EXPECT_THAT(ErrorOf(OneNode("Neg", {"x", "x"})), HasSubstr("2 inputs"));
  EXPECT_THAT(ErrorOf(OneNode("Add", {"x", ""})), HasSubstr("input 1 is missing"));
  EXPECT_THAT(ErrorOf(OneNode("Max", {"x", ""})), HasSubstr("missing"));
  onnx::ModelProto model = Base();
  AddNode(&model, "Neg", {"x"}, {}, "bare");
  EXPECT_THAT(ErrorOf(model), AllOf(HasSubstr("bare"), HasSubstr("no outputs")));
}

TEST_F(MalformedNodes, Axes) {
  for (const char* op : {"Softmax", "LayerNormalization", "Concat", "Gather", "ArgMax", "Split"}) {
    for (int64_t axis :
         {int64_t{2}, int64_t{-3}, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
      onnx::ModelProto model = OneNode(op);
      if (absl::string_view(op) == "LayerNormalization") model.mutable_graph()->mutable_node(0)->add_input("x");
      if (absl::string_view(op) == "Gather") {
        model.mutable_graph()->mutable_node(0)->add_input("i");
        AddInts(&model, "i", {0});
      }
      SetInt(model.mutable_graph()->mutable_node(0), "axis", axis);
      EXPECT_THAT(ErrorOf(model), AllOf(HasSubstr("the_node"), HasSubstr("out of range"))) << op << axis;
    }
  }
  for (const char* op : {"Squeeze", "Unsqueeze", "ReduceSum"}) {
    for (const std::vector<int64_t>& axes :
         {std::vector<int64_t>{5}, {-6}, {0, 0}, {std::numeric_limits<int64_t>::max()}}) {
      onnx::ModelProto model = OneNode(op, {"x", "axes"});
      AddInts(&model, "axes", axes);
      EXPECT_THAT(ErrorOf(model), HasSubstr("the_node")) << op;
    }
  }
}

// Sizes that only a run tells, but not as a list.
TEST_F(MalformedNodes, SplitsBySomethingElseThanAList) {
  for (const std::vector<int64_t>& dims : {std::vector<int64_t>{}, {2, 1}}) {
    onnx::ModelProto model = OneNode("Split", {"x", "s"});
    *model.mutable_graph()->add_input() = Info("s", dims, onnx::TensorProto::INT64);
    EXPECT_THAT(ErrorOf(model), AllOf(HasSubstr("the_node"), HasSubstr("split is not a list")));
  }
}

TEST_F(MalformedNodes, ShapesThatDoNotFit) {
  const std::vector<std::vector<int64_t>> shapes = {
      {7}, {-1, -1}, {-2, 3}, {4, -1}, {0, 0, 0}, {int64_t{1} << 62, 8}, {std::numeric_limits<int64_t>::min()}};
  for (const auto& shape : shapes) {
    onnx::ModelProto model = OneNode("Reshape", {"x", "shape"});
    AddInts(&model, "shape", shape);
    EXPECT_THAT(ErrorOf(model), HasSubstr("the_node")) << shape[0];
  }
  for (const char* op : {"Expand", "ConstantOfShape", "Tile"}) {
    onnx::ModelProto model =
        op == std::string("ConstantOfShape") ? OneNode(op, {"shape"}) : OneNode(op, {"x", "shape"});
    AddInts(&model, "shape", {int64_t{1} << 62, int64_t{1} << 62});
    EXPECT_NE(ErrorOf(model), "no error") << op;
    model.mutable_graph()->clear_initializer();
    AddInts(&model, "shape", {-3, 3});
    EXPECT_NE(ErrorOf(model), "no error") << op;
  }
  onnx::ModelProto model = OneNode("MatMul", {"x", "w"});
  AddFloats(&model, "w", {4, 5}, 80);
  EXPECT_THAT(ErrorOf(model), HasSubstr("the_node"));
}

TEST_F(MalformedNodes, Attributes) {
  onnx::ModelProto model = OneNode("Softmax");
  SetInt(model.mutable_graph()->mutable_node(0), "axis", 1);
  SetInt(model.mutable_graph()->mutable_node(0), "axis", 1);
  EXPECT_THAT(ErrorOf(model), HasSubstr("twice"));
  model = OneNode("Softmax");
  SetInt(model.mutable_graph()->mutable_node(0), "surprise", 1);
  EXPECT_THAT(ErrorOf(model), HasSubstr("\"surprise\" is not supported"));
  model = OneNode("LayerNormalization", {"x", "w"});
  AddFloats(&model, "w", {3}, 12);
  SetInt(model.mutable_graph()->mutable_node(0), "epsilon", 1);
  EXPECT_THAT(ErrorOf(model), HasSubstr("wrong type"));
  model = OneNode("Cast");
  EXPECT_NE(ErrorOf(model), "no error");
  SetInt(model.mutable_graph()->mutable_node(0), "to", 1LL << 40);
  EXPECT_NE(ErrorOf(model), "no error");
}

TEST_F(MalformedNodes, UnsupportedNodesAreListedTogether) {
  onnx::ModelProto model = Base();
  AddNode(&model, "DeformConv", {"x"}, {"a"}, "deform_1");
  AddNode(&model, "DeformConv", {"a"}, {"b"}, "deform_2");
  AddNode(&model, "BeamSearch", {"b"}, {"c"}, "beams")->set_domain("com.microsoft");
  AddNode(&model, "Neg", {"c"}, {"d"});
  const auto result = Import(model);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(
      std::string(result.status().message()),
      AllOf(HasSubstr("DeformConv"), HasSubstr("2 places: deform_1, deform_2"), HasSubstr("com.microsoft.BeamSearch"),
            HasSubstr("\nremedy for DeformConv: "), HasSubstr("\nremedy for com.microsoft.BeamSearch: ")));
  auto report = CheckOnnx((folder_ / "model.onnx").string());
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->unsupported.size(), 2u);
  EXPECT_EQ(report->unsupported[0].places, (std::vector<std::string>{"deform_1", "deform_2"}));
  EXPECT_EQ(report->nodes["DeformConv"], 2);
  EXPECT_EQ(report->opset, 18);
}

// Sizes that fit 64 bits, but no machine: an import makes nothing of them, so only the shape is known.
TEST_F(MalformedNodes, ResultsLargerThanMemory) {
  const std::pair<const char*, std::vector<int64_t>> cases[] = {
      {"Expand", {int64_t{1} << 38, 2, 3}}, {"ConstantOfShape", {1 << 20, 1 << 18}}, {"Tile", {1 << 20, 1 << 18}}};
  for (const auto& [op, shape] : cases) {
    onnx::ModelProto model = OneNode(op, {"x", "shape"});
    if (op == std::string("ConstantOfShape"))
      model.mutable_graph()->mutable_node(0)->mutable_input()->DeleteSubrange(0, 1);
    AddInts(&model, "shape", shape);
    model.mutable_graph()->mutable_output(0)->clear_type();
    EXPECT_EQ(ErrorOf(model), "no error") << op;
  }
}

// Axes that only a run knows, but whose number says that they cannot be right.
TEST_F(MalformedNodes, ComputedAxesAreNoMoreThanThereAre) {
  for (const char* op : {"ReduceSum", "Squeeze", "Unsqueeze"}) {
    onnx::ModelProto model = Base();
    *model.mutable_graph()->add_input() = Info("axes", {int64_t{1} << 40}, onnx::TensorProto::INT64);
    onnx::NodeProto* node = AddNode(&model, op, {"x", "axes"}, {"z"}, "the_node");
    if (op == std::string("ReduceSum")) {
      onnx::AttributeProto* keep = node->add_attribute();
      keep->set_name("keepdims");
      keep->set_type(onnx::AttributeProto::INT);
      keep->set_i(0);
    }
    EXPECT_THAT(ErrorOf(model), AllOf(HasSubstr("the_node"), HasSubstr("axes has 1099511627776 elements"))) << op;
  }
}

TEST_F(MalformedNodes, SizesOfSignalsAndImages) {
  const auto with = [&](const std::string& op, std::vector<std::string> inputs, std::vector<int64_t> numbers) {
    onnx::ModelProto model = OneNode(op, inputs);
    AddInts(&model, "sizes", numbers);
    return model;
  };
  for (const int64_t length : {0, -1}) {
    onnx::ModelProto dft = with("DFT", {"x", "sizes"}, {length});
    *dft.mutable_graph()->mutable_input(0) = Info("x", {1, 4, 1});
    EXPECT_THAT(ErrorOf(dft), HasSubstr(absl::StrCat("dft_length is ", length)));
  }
  onnx::ModelProto dft = OneNode("DFT");
  *dft.mutable_graph()->mutable_input(0) = Info("x", {1, 0, 2});
  SetInt(dft.mutable_graph()->mutable_node(0), "inverse", 1);
  SetInt(dft.mutable_graph()->mutable_node(0), "onesided", 1);
  EXPECT_THAT(ErrorOf(dft), HasSubstr("the signal is empty"));

  onnx::ModelProto crop = with("CenterCropPad", {"x", "sizes"}, {1, 1});
  onnx::AttributeProto* axes = crop.mutable_graph()->mutable_node(0)->add_attribute();
  axes->set_name("axes");
  axes->set_type(onnx::AttributeProto::INTS);
  for (const int64_t axis : {0, 0}) axes->add_ints(axis);
  EXPECT_THAT(ErrorOf(crop), HasSubstr("an axis is given twice"));

  onnx::ModelProto grid = OneNode("GridSample", {"x", "grid"});
  *grid.mutable_graph()->mutable_input(0) = Info("x", {1, 1, 4, 4});
  *grid.mutable_graph()->add_input() = Info("grid", {1, 2, 2, 3});
  EXPECT_THAT(ErrorOf(grid), HasSubstr("the grid has 3 coordinates for 2 axes"));

  onnx::ModelProto resize = with("Resize", {"x", "", "", "sizes"}, {int64_t{1} << 62, 1});
  onnx::AttributeProto* policy = resize.mutable_graph()->mutable_node(0)->add_attribute();
  policy->set_name("keep_aspect_ratio_policy");
  policy->set_type(onnx::AttributeProto::STRING);
  policy->set_s("not_larger");
  EXPECT_THAT(WarningsOf(resize), Contains(HasSubstr("made as f32[1, 1]")));
  policy->set_s("not_smaller");
  EXPECT_THAT(ErrorOf(resize), HasSubstr("the result is too large"));
}

TEST_F(MalformedNodes, ZeroPointsOfAWeightWithoutAxes) {
  onnx::ModelProto model = OneNode("ConvInteger", {"x", "w", "", "z"});
  *model.mutable_graph()->mutable_input(0) = Info("x", {1, 1, 3, 3}, onnx::TensorProto::UINT8);
  *model.mutable_graph()->add_input() = Info("w", {}, onnx::TensorProto::UINT8);
  *model.mutable_graph()->add_input() = Info("z", {4}, onnx::TensorProto::UINT8);
  EXPECT_THAT(ErrorOf(model), HasSubstr("what u8[4] belongs to has only 0 axes"));
}

// The last of equal ones is at the size less one less an index: of an empty axis that is no size.
TEST_F(MalformedNodes, LastIndexOfAnEmptyAxis) {
  onnx::ModelProto model = OneNode("ArgMin");
  *model.mutable_graph()->mutable_input(0) = Info("x", {2, 0});
  *model.mutable_graph()->mutable_output(0) = Info("y", {2, 1}, onnx::TensorProto::INT64);
  SetInt(model.mutable_graph()->mutable_node(0), "axis", 1);
  SetInt(model.mutable_graph()->mutable_node(0), "select_last_index", 1);
  const auto imported = Import(model);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_TRUE(ParseModel(PrintModel(**imported), "printed").ok());
}

}  // namespace
}  // namespace llmc
