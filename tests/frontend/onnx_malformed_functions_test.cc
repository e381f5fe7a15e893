// Functions, subgraphs and names of ONNX files that would grow without end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "frontend/import.h"
#include "frontend/onnx/import.h"
#include "tests/frontend/onnx_builder.h"

namespace llmc {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using MalformedFunctions = OnnxTest;

TEST_F(MalformedFunctions, FunctionsAreInlined) {
  onnx::ModelProto model = OneNode("Twice");
  Call(model.mutable_graph()->mutable_node(0));
  AddNode(AddFunction(&model, "Twice")->mutable_node(), "Add", {"a", "a"}, {"r"});
  auto result = Import(model);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ((*result)->steps[0]->block.nodes.size(), 1u);
}

TEST_F(MalformedFunctions, RecursiveFunctions) {
  onnx::ModelProto model = OneNode("F");
  Call(model.mutable_graph()->mutable_node(0));
  Call(AddNode(AddFunction(&model, "F")->mutable_node(), "G", {"a"}, {"r"}));
  Call(AddNode(AddFunction(&model, "G")->mutable_node(), "F", {"a"}, {"r"}));
  EXPECT_THAT(ErrorOf(model), HasSubstr("recursive"));
  AddFunction(&model, "F");
  EXPECT_THAT(ErrorOf(model), HasSubstr("defined twice"));
}

// Each function calls the next one twice: 2^30 nodes if it were let.
TEST_F(MalformedFunctions, FunctionsThatGrowExponentially) {
  onnx::ModelProto model = OneNode("F0");
  Call(model.mutable_graph()->mutable_node(0));
  for (int i = 0; i < 30; ++i) {
    auto* function = AddFunction(&model, absl::StrCat("F", i));
    Call(AddNode(function->mutable_node(), absl::StrCat("F", i + 1), {"a"}, {"m"}));
    Call(AddNode(function->mutable_node(), absl::StrCat("F", i + 1), {"m"}, {"r"}));
  }
  AddNode(AddFunction(&model, "F30")->mutable_node(), "Identity", {"a"}, {"r"});
  EXPECT_THAT(ErrorOf(model), HasSubstr("nodes"));
}

TEST_F(MalformedFunctions, DeeplyNestedSubgraphs) {
  onnx::ModelProto model = OneNode("If");
  onnx::GraphProto inner;
  inner.set_name("leaf");
  for (int i = 0; i < 200; ++i) {
    onnx::GraphProto outer;
    auto* attr = AddNode(outer.mutable_node(), "If", {"x"}, {"y"})->add_attribute();
    attr->set_name("then_branch");
    attr->set_type(onnx::AttributeProto::GRAPH);
    attr->mutable_g()->Swap(&inner);
    inner.Swap(&outer);
  }
  auto* attr = model.mutable_graph()->mutable_node(0)->add_attribute();
  attr->set_name("then_branch");
  attr->mutable_g()->Swap(&inner);
  EXPECT_THAT(ErrorOf(model), HasSubstr("nested too deeply"));
}

// The bytes of a length-delimited field.
std::string FieldBytes(int number, const std::string& contents) {
  std::string size;
  size_t left = contents.size();
  for (; left >= 128; left >>= 7) size.push_back(static_cast<char>((left & 127) | 128));
  size.push_back(static_cast<char>(left));
  return absl::StrCat(std::string(1, static_cast<char>(number << 3 | 2)), size, contents);
}

// Bytes, for protobuf itself writes nothing so deep.
TEST_F(MalformedFunctions, TenThousandNestedSubgraphs) {
  std::string bytes;
  for (int i = 0; i < 10'000; ++i) bytes = FieldBytes(1, FieldBytes(5, FieldBytes(6, bytes)));  // node, attribute, g
  const std::string header("\x08\x08\x42\x02\x10\x12", 6);
  EXPECT_THAT(std::string(ImportOnnx(Write(header + FieldBytes(7, bytes)).string()).status().message()),
              HasSubstr("nested too deeply"));
}

// Two bytes each in the file, up to 300 in memory.
TEST_F(MalformedFunctions, MillionsOfEmptyParts) {
  onnx::ModelProto base = Base();
  base.clear_graph();
  for (const char* part : {"\x0a", "\x2a", "\x5a", "\x62", "\x6a", "\x72"}) {  // nodes, initializers, inputs, …
    std::string graph;
    for (int i = 0; i < 2'200'000; ++i) graph.append(part, 1).push_back('\0');
    const std::string message(
        ImportOnnx(Write(base.SerializeAsString() + FieldBytes(7, graph)).string()).status().message());
    EXPECT_THAT(message, HasSubstr("too many nodes, attributes and other parts"));
  }
  // Also where they are deeper: attributes of one node.
  std::string node;
  for (int i = 0; i < 2'200'000; ++i) node.append("\x2a\0", 2);
  EXPECT_THAT(
      std::string(
          ImportOnnx(Write(base.SerializeAsString() + FieldBytes(7, FieldBytes(1, node))).string()).status().message()),
      HasSubstr("too many"));
}

TEST_F(MalformedFunctions, LongNames) {
  const std::string name(2000, 'n');
  onnx::ModelProto model = OneNode("Neg");
  AddNode(&model, "Neg", {"x"}, {name}, "long_output");
  EXPECT_THAT(ErrorOf(model), AllOf(HasSubstr("long_output"), HasSubstr("2000 bytes")));
  model = OneNode("Neg");
  model.mutable_graph()->mutable_node(0)->set_name(name);
  EXPECT_THAT(ErrorOf(model), HasSubstr("2000 bytes"));
  model = Base();
  AddFloats(&model, name, {1}, 4);
  EXPECT_THAT(ErrorOf(model), HasSubstr("2000 bytes"));
  model = Base();
  model.mutable_graph()
      ->mutable_input(0)
      ->mutable_type()
      ->mutable_tensor_type()
      ->mutable_shape()
      ->mutable_dim(0)
      ->set_dim_param(name);
  EXPECT_THAT(ErrorOf(model), HasSubstr("2000 bytes"));
}

// 2^17 calls, whose names of 1000 bytes would add up to 128 MB, and once more with values in an attribute.
TEST_F(MalformedFunctions, FunctionsThatMultiplyNamesOrAttributes) {
  for (const bool names : {true, false}) {
    onnx::ModelProto model = OneNode("F0");
    Call(model.mutable_graph()->mutable_node(0));
    const std::string middle(names ? 1000 : 1, 'm');
    for (int i = 0; i < 17; ++i) {
      auto* function = AddFunction(&model, absl::StrCat("F", i));
      Call(AddNode(function->mutable_node(), absl::StrCat("F", i + 1), {"a"}, {middle}));
      Call(AddNode(function->mutable_node(), absl::StrCat("F", i + 1), {middle}, {"r"}));
    }
    auto* last = AddFunction(&model, "F17");
    AddNode(last->mutable_node(), "Neg", {"a"}, {"r"});
    if (!names) {
      auto* attr = AddNode(last->mutable_node(), "Constant", {}, {"c"})->add_attribute();
      attr->set_name("value_ints");
      attr->set_type(onnx::AttributeProto::INTS);
      for (int i = 0; i < 5000; ++i) attr->add_ints(i);
    }
    const auto result = Import(model);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted) << result.status();
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("calls of functions add up"));
  }
}

TEST_F(MalformedFunctions, RecurrentLayersThatUnrollWithoutEnd) {
  onnx::ModelProto model = Base();
  *model.mutable_graph()->mutable_input(0) = Info("x", {1024, 1, 1});
  AddFloats(&model, "v", {1, 1, 1}, 4);
  for (int i = 0; i < 100; ++i) {
    onnx::NodeProto* node = AddNode(&model, "RNN", {"x", "v", "v"}, {absl::StrCat("y", i)}, absl::StrCat("layer", i));
    auto* clip = node->add_attribute();
    clip->set_name("clip");
    clip->set_type(onnx::AttributeProto::FLOAT);
    clip->set_f(3);
  }
  AddNode(&model, "Relu", {"x"}, {"z"}, "");
  EXPECT_THAT(ErrorOf(model), HasSubstr("RNN: the model would have more than 500000 ops"));
}

}  // namespace
}  // namespace llmc
