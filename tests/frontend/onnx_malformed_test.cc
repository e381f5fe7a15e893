// Hostile ONNX files: each ends in an error that names the place, none crashes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/import.h"
#include "frontend/onnx/import.h"
#include "ir/text.h"
#include "tests/frontend/onnx_builder.h"
#include "tests/frontend/onnx_node_cases.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::AnyOf;
using testing::Contains;
using testing::HasSubstr;

using Malformed = OnnxTest;

TEST_F(Malformed, TheBaseIsWellFormed) {
  auto model = Import(Base());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->steps[0]->outputs[0].name, "y");
}

TEST_F(Malformed, EveryTruncationIsRefused) {
  onnx::ModelProto model = Base();
  // The graph last, so that no prefix is a whole model.
  onnx::ModelProto head = model;
  head.clear_graph();
  onnx::ModelProto tail;
  *tail.mutable_graph() = model.graph();
  const std::string bytes = head.SerializeAsString() + tail.SerializeAsString();
  ASSERT_TRUE(ImportOnnx(Write(bytes).string()).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    auto result = ImportOnnx(Write(bytes.substr(0, size)).string());
    ASSERT_FALSE(result.ok()) << size << " of " << bytes.size();
    ASSERT_THAT(std::string(result.status().message()), HasSubstr("model.onnx")) << size;
  }
}

TEST_F(Malformed, ChangedBytesDoNotCrash) {
  const std::string bytes = Base().SerializeAsString();
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int value : {0, 1, 0x7f, 0x80, 0xff}) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(value);
      (void)ImportOnnx(Write(changed).string());
    }
  }
}

TEST_F(Malformed, FilesThatAreNoModels) {
  EXPECT_FALSE(ImportOnnx((folder_ / "absent.onnx").string()).ok());
  EXPECT_FALSE(ImportOnnx(folder_.string()).ok());
  EXPECT_FALSE(ImportOnnx(Write("").string()).ok());
  EXPECT_FALSE(ImportOnnx(Write(std::string(1000, 'x')).string()).ok());
  ASSERT_EQ(mkfifo((folder_ / "fifo.onnx").c_str(), 0600), 0);
  EXPECT_FALSE(ImportOnnx((folder_ / "fifo.onnx").string()).ok());
  ASSERT_EQ(truncate(Write("", "huge.onnx").c_str(), int64_t{3} << 30), 0);
  EXPECT_THAT(std::string(ImportOnnx((folder_ / "huge.onnx").string()).status().message()), HasSubstr("2 GiB"));
}

TEST_F(Malformed, Versions) {
  onnx::ModelProto model = Base();
  model.clear_opset_import();
  EXPECT_THAT(ErrorOf(model), HasSubstr("no opset"));
  for (int64_t version :
       {int64_t{0}, int64_t{9999}, int64_t{-1}, int64_t{6}, int64_t{26}, std::numeric_limits<int64_t>::max()}) {
    model = Base();
    model.mutable_opset_import(0)->set_version(version);
    EXPECT_THAT(ErrorOf(model), AllOf(HasSubstr("opset"), HasSubstr("is not supported"))) << version;
  }
  model = Base();
  model.add_opset_import()->set_version(17);
  EXPECT_THAT(ErrorOf(model), HasSubstr("two opsets"));
  model = Base();
  model.set_ir_version(99);
  EXPECT_THAT(ErrorOf(model), HasSubstr("IR version 99"));
  model.clear_ir_version();
  EXPECT_THAT(ErrorOf(model), HasSubstr("IR version 0"));
}

TEST_F(Malformed, OddNamesPrintAndParse) {
  onnx::ModelProto model = Base();
  AddNode(&model, "Neg", {"x"}, {"/a//b c"});
  AddNode(&model, "Neg", {"/a//b c"}, {"//"});
  *model.mutable_graph()->add_output() = Info("//", {2, 3});
  auto imported = Import(model);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const std::string text = PrintModel(**imported);
  EXPECT_THAT(text, HasSubstr("%/a/_b_c"));
  auto again = ParseModel(text, "printed");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(PrintModel(**again), text);
}

TEST_F(Malformed, Names) {
  onnx::ModelProto model = Base();
  AddNode(&model, "Neg", {"x"}, {"y"});
  EXPECT_THAT(ErrorOf(model), HasSubstr("\"y\" is defined twice"));
  model = Base();
  *model.mutable_graph()->add_input() = Info("x", {1});
  EXPECT_THAT(ErrorOf(model), HasSubstr("\"x\" is defined twice"));
  model = Base();
  AddFloats(&model, "w", {1}, 4);
  EXPECT_THAT(ErrorOf(model), HasSubstr("\"w\" is defined twice"));
  model = Base();
  AddFloats(&model, "", {1}, 4);
  EXPECT_THAT(ErrorOf(model), HasSubstr("has no name"));
  EXPECT_THAT(ErrorOf(OneNode("Neg", {"nothing"})), AllOf(HasSubstr("the_node"), HasSubstr("\"nothing\"")));
  EXPECT_THAT(ErrorOf(OneNode("Neg", {"y"})), HasSubstr("in a cycle: Neg \"the_node\""));
  model = OneNode("Neg", {"b"});
  AddNode(&model, "Abs", {"y"}, {"b"});
  EXPECT_THAT(ErrorOf(model), HasSubstr("in a cycle: Abs \"Abs#1\", Neg \"the_node\""));
  model = Base();
  model.mutable_graph()->mutable_output(0)->set_name("z");
  EXPECT_THAT(ErrorOf(model), HasSubstr("output \"z\" is not made"));
  model = Base();
  *model.mutable_graph()->add_output() = Info("y", {2, 3});
  EXPECT_THAT(ErrorOf(model), HasSubstr("listed twice"));
  model = Base();
  model.mutable_graph()->clear_output();
  EXPECT_THAT(ErrorOf(model), HasSubstr("no outputs"));
}

TEST_F(Malformed, Inputs) {
  onnx::ModelProto model = Base();
  model.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type()->clear_shape();
  EXPECT_THAT(ErrorOf(model), AllOf(HasSubstr("input \"x\""), HasSubstr("no shape")));
  model = Base();
  *model.mutable_graph()->mutable_input(0) = Info("x", {std::numeric_limits<int64_t>::max(), 3});
  EXPECT_THAT(ErrorOf(model), HasSubstr("input \"x\""));
  for (int64_t dim : {int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    *model.mutable_graph()->mutable_input(0) = Info("x", {dim, 3});
    EXPECT_THAT(WarningsOf(model), Contains(HasSubstr("input \"x\""))) << dim;
  }
  model = Base();
  *model.mutable_graph()->mutable_input(0) = Info("x", {2, 3}, onnx::TensorProto::STRING);
  EXPECT_THAT(ErrorOf(model), HasSubstr("STRING"));
  model = Base();
  *model.mutable_graph()->mutable_input(0) = Info("x", std::vector<int64_t>(1000, 1));
  EXPECT_THAT(ErrorOf(model), HasSubstr("input \"x\""));
  model = Base();
  *model.mutable_graph()->mutable_output(0) = Info("y", {2, 3}, onnx::TensorProto::INT64);
  EXPECT_THAT(ErrorOf(model), HasSubstr("output \"y\""));
}

TEST_F(Malformed, InitializerShapes) {
  const std::vector<std::vector<int64_t>> shapes = {{-1},
                                                    {-1, -1},
                                                    {int64_t{1} << 62, 8},
                                                    {std::numeric_limits<int64_t>::min()},
                                                    {2, 3, 1000000000},
                                                    std::vector<int64_t>(200, 1)};
  for (const auto& dims : shapes) {
    onnx::ModelProto model = Base();
    AddFloats(&model, "bad", dims, 24);
    EXPECT_THAT(ErrorOf(model), HasSubstr("\"bad\""));
    model = Base();
    AddFloats(&model, "bad", dims, 0)->add_float_data(1);
    if (dims.size() < 100) {
      EXPECT_THAT(ErrorOf(model), HasSubstr("\"bad\""));
    }
  }
  for (size_t bytes : {0, 1, 23, 25, 48}) {
    onnx::ModelProto model = Base();
    AddFloats(&model, "bad", {2, 3}, bytes);
    EXPECT_THAT(ErrorOf(model), HasSubstr("\"bad\"")) << bytes;
  }
}

TEST_F(Malformed, InitializerData) {
  auto error = [&](const std::function<void(onnx::TensorProto*)>& change) {
    onnx::ModelProto model = Base();
    change(AddFloats(&model, "bad", {2}, 0));
    return ErrorOf(model);
  };
  EXPECT_THAT(error([](auto* t) {
                t->set_raw_data(std::string(8, '\0'));
                t->add_float_data(1);
              }),
              AllOf(HasSubstr("\"bad\""), HasSubstr("both raw_data and typed data")));
  EXPECT_THAT(error([](auto* t) {
                t->add_float_data(1);
                t->add_float_data(1);
                t->add_int32_data(1);
              }),
              HasSubstr("several fields"));
  EXPECT_THAT(error([](auto* t) { t->add_float_data(1); }), HasSubstr("float_data holds 1"));
  EXPECT_THAT(error([](auto* t) {
                t->add_int64_data(1);
                t->add_int64_data(1);
              }),
              HasSubstr("float_data holds 0"));
  EXPECT_THAT(error([](auto* t) {
                t->set_data_type(onnx::TensorProto::INT8);
                t->add_int32_data(1);
                t->add_int32_data(300);
              }),
              HasSubstr("does not fit"));
  EXPECT_THAT(error([](auto* t) {
                t->set_data_type(onnx::TensorProto::FLOAT16);
                t->add_int32_data(1);
                t->add_int32_data(70000);
              }),
              HasSubstr("too large"));
  for (int type : {0, 8, 14, 99, -1}) {
    EXPECT_THAT(error([type](auto* t) { t->set_data_type(type); }), AllOf(HasSubstr("bad"), HasSubstr("type")));
  }
  EXPECT_THAT(error([](auto* t) { t->mutable_segment()->set_begin(0); }), HasSubstr("segments"));
}

TEST_F(Malformed, EmptyAndScalarInitializersAreFine) {
  onnx::ModelProto model = Base();
  AddFloats(&model, "none", {0, 5}, 0);
  AddFloats(&model, "empty", {0}, 0)->set_raw_data("");
  AddFloats(&model, "scalar", {}, 4);
  auto* half = AddFloats(&model, "half", {1}, 0);
  half->set_data_type(onnx::TensorProto::BFLOAT16);
  half->add_int32_data(0x3f80);
  auto result = Import(model);
  EXPECT_TRUE(result.ok()) << result.status();
}

// ---- external data --------------------------------------------------------------

class External : public Malformed {
 protected:
  std::string Error(const std::vector<std::pair<std::string, std::string>>& entries) {
    onnx::ModelProto model = Base();
    auto* tensor = AddFloats(&model, "bad", {25, 4}, 0);
    tensor->set_data_location(onnx::TensorProto::EXTERNAL);
    for (const auto& [key, value] : entries) {
      auto* entry = tensor->add_external_data();
      entry->set_key(key);
      entry->set_value(value);
    }
    model_ = Import(model);
    return model_.ok() ? "no error" : std::string(model_.status().message());
  }
  void SetUp() override {
    std::string bytes(1000, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i % 7);
    Write(bytes, "data.bin");
    fs::create_directories(folder_ / "sub");
    fs::copy_file(folder_ / "data.bin", folder_ / "sub" / "data.bin");
  }
  absl::StatusOr<std::unique_ptr<Model>> model_ = absl::UnknownError("");
};

TEST_F(External, InsideTheFolderIsRead) {
  EXPECT_EQ(Error({{"location", "data.bin"}, {"offset", "400"}, {"length", "400"}}), "no error");
  const Tensor& tensor = (*model_)->data.at("@bad");
  EXPECT_EQ(tensor.bytes(), 400);
  EXPECT_EQ(tensor.raw()[3], static_cast<char>(403 % 7));
  EXPECT_EQ(Error({{"location", "sub/data.bin"}, {"offset", "600"}}), "no error");
  EXPECT_EQ(Error({{"location", "data.bin"}}), "no error");
}

TEST_F(External, Locations) {
  const fs::path outside = folder_.string() + "-outside";
  fs::create_directories(outside);
  std::ofstream(outside / "secret.bin") << std::string(1000, 's');
  fs::create_symlink(outside / "secret.bin", folder_ / "link.bin");
  fs::create_directory_symlink(outside, folder_ / "linked");
  ASSERT_EQ(mkfifo((folder_ / "fifo.bin").c_str(), 0600), 0);
  const std::string up = absl::StrCat("../", outside.filename().string(), "/secret.bin");
  for (const std::string& location :
       {up, "sub/../" + up, std::string("sub/../../x"), (outside / "secret.bin").string(),
        (folder_ / "data.bin").string(), std::string(""), std::string("."), std::string(".."), std::string("sub"),
        std::string("sub/"), std::string("link.bin"), std::string("linked/secret.bin"), std::string("fifo.bin"),
        std::string("absent.bin"), std::string("data.bin\0x", 10), std::string(65536, 'a'), std::string("/dev/zero"),
        std::string("~/data.bin")}) {
    EXPECT_THAT(Error({{"location", location}}), AllOf(HasSubstr("\"bad\""), HasSubstr("model.onnx")))
        << location.substr(0, 100);
  }
  fs::remove_all(outside);
}

TEST_F(External, OffsetsAndLengths) {
  for (const char* offset : {"-1", "9223372036854775808", "9223372036854775807", "18446744073709551615", "601", "1000",
                             "1001", "abc", "", " 1", "1 ", "0x10", "1e2", "+1"}) {
    EXPECT_THAT(Error({{"location", "data.bin"}, {"offset", offset}}), HasSubstr("\"bad\"")) << offset;
  }
  for (const char* length : {"-1", "0", "399", "401", "9223372036854775808", "abc", ""}) {
    EXPECT_THAT(Error({{"location", "data.bin"}, {"length", length}}), AllOf(HasSubstr("\"bad\""), HasSubstr("length")))
        << length;
  }
}

TEST_F(External, Keys) {
  for (const char* key : {"__class__", "basepath", "Location", "", "location ", "offset\n"}) {
    EXPECT_THAT(Error({{"location", "data.bin"}, {key, "1"}}), AllOf(HasSubstr("\"bad\""), HasSubstr("unknown key")))
        << key;
  }
  EXPECT_THAT(Error({{"offset", "0"}}), HasSubstr("no location"));
  EXPECT_THAT(Error({{"location", "data.bin"}, {"location", "data.bin"}}), HasSubstr("twice"));
}

TEST_F(External, DataInTheFileToo) {
  onnx::ModelProto model = Base();
  auto* tensor = AddFloats(&model, "bad", {1}, 4);
  tensor->set_data_location(onnx::TensorProto::EXTERNAL);
  EXPECT_THAT(ErrorOf(model), HasSubstr("external data and data in the file"));
}

// ---- nodes --------------------------------------------------------------------

TEST_F(Malformed, Arity) {
  EXPECT_THAT(ErrorOf(OneNode("Neg", {})), AllOf(HasSubstr("the_node"), HasSubstr("0 inputs")));
  EXPECT_THAT(ErrorOf(OneNode("Concat", {})), HasSubstr("0 inputs"));
  EXPECT_THAT(ErrorOf(OneNode("Neg", {"x", "x"})), HasSubstr("2 inputs"));
  EXPECT_THAT(ErrorOf(OneNode("Add", {"x", ""})), HasSubstr("input 1 is missing"));
  EXPECT_THAT(ErrorOf(OneNode("Max", {"x", ""})), HasSubstr("missing"));
  onnx::ModelProto model = Base();
  AddNode(&model, "Neg", {"x"}, {}, "bare");
  EXPECT_THAT(ErrorOf(model), AllOf(HasSubstr("bare"), HasSubstr("no outputs")));
}

TEST_F(Malformed, Axes) {
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

TEST_F(Malformed, ShapesThatDoNotFit) {
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

TEST_F(Malformed, Attributes) {
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

TEST_F(Malformed, UnsupportedNodesAreListedTogether) {
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

// ---- functions ------------------------------------------------------------------

TEST_F(Malformed, FunctionsAreInlined) {
  onnx::ModelProto model = OneNode("Twice");
  Call(model.mutable_graph()->mutable_node(0));
  AddNode(AddFunction(&model, "Twice")->mutable_node(), "Add", {"a", "a"}, {"r"});
  auto result = Import(model);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ((*result)->steps[0]->block.nodes.size(), 1u);
}

TEST_F(Malformed, RecursiveFunctions) {
  onnx::ModelProto model = OneNode("F");
  Call(model.mutable_graph()->mutable_node(0));
  Call(AddNode(AddFunction(&model, "F")->mutable_node(), "G", {"a"}, {"r"}));
  Call(AddNode(AddFunction(&model, "G")->mutable_node(), "F", {"a"}, {"r"}));
  EXPECT_THAT(ErrorOf(model), HasSubstr("recursive"));
  AddFunction(&model, "F");
  EXPECT_THAT(ErrorOf(model), HasSubstr("defined twice"));
}

// Each function calls the next one twice: 2^30 nodes if it were let.
TEST_F(Malformed, FunctionsThatGrowExponentially) {
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

TEST_F(Malformed, DeeplyNestedSubgraphs) {
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
TEST_F(Malformed, TenThousandNestedSubgraphs) {
  std::string bytes;
  for (int i = 0; i < 10'000; ++i) bytes = FieldBytes(1, FieldBytes(5, FieldBytes(6, bytes)));  // node, attribute, g
  const std::string header("\x08\x08\x42\x02\x10\x12", 6);
  EXPECT_THAT(std::string(ImportOnnx(Write(header + FieldBytes(7, bytes)).string()).status().message()),
              HasSubstr("nested too deeply"));
}

// Two bytes each in the file, up to 300 in memory.
TEST_F(Malformed, MillionsOfEmptyParts) {
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

TEST_F(Malformed, LongNames) {
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
TEST_F(Malformed, FunctionsThatMultiplyNamesOrAttributes) {
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

// Sizes that fit 64 bits, but no machine: an import makes nothing of them, so only the shape is known.
TEST_F(Malformed, ResultsLargerThanMemory) {
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

// A constant in a node's attribute goes through the same checks as an initializer.
TEST_F(External, InAConstantsAttribute) {
  for (const char* location : {"data.bin", "../data.bin", "/etc/passwd"}) {
    onnx::ModelProto model = Base();
    auto* attr = AddNode(&model, "Constant", {}, {"c"}, "the_constant")->add_attribute();
    attr->set_name("value");
    attr->set_type(onnx::AttributeProto::TENSOR);
    attr->mutable_t()->set_data_type(onnx::TensorProto::FLOAT);
    attr->mutable_t()->add_dims(250);
    attr->mutable_t()->set_data_location(onnx::TensorProto::EXTERNAL);
    auto* entry = attr->mutable_t()->add_external_data();
    entry->set_key("location");
    entry->set_value(location);
    if (location == std::string("data.bin")) {
      EXPECT_EQ(ErrorOf(model), "no error");
      attr->mutable_t()->set_dims(0, 251);
      EXPECT_THAT(ErrorOf(model), AllOf(HasSubstr("the_constant"), HasSubstr("past the end")));
    } else {
      EXPECT_THAT(ErrorOf(model), AllOf(HasSubstr("the_constant"), HasSubstr("is refused")));
    }
  }
}

// A hard link is a file of the folder like any other: nothing tells it from a copy.
TEST_F(External, HardLinksAreFiles) {
  const fs::path outside = folder_.string() + "-outside.bin";
  fs::copy_file(folder_ / "data.bin", outside);
  fs::create_hard_link(outside, folder_ / "hard.bin");
  EXPECT_EQ(Error({{"location", "hard.bin"}}), "no error");
  fs::remove(outside);
}

// Axes that only a run knows, but whose number says that they cannot be right.
TEST_F(Malformed, ComputedAxesAreNoMoreThanThereAre) {
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

TEST_F(Malformed, SizesOfSignalsAndImages) {
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

TEST_F(Malformed, ZeroPointsOfAWeightWithoutAxes) {
  onnx::ModelProto model = OneNode("ConvInteger", {"x", "w", "", "z"});
  *model.mutable_graph()->mutable_input(0) = Info("x", {1, 1, 3, 3}, onnx::TensorProto::UINT8);
  *model.mutable_graph()->add_input() = Info("w", {}, onnx::TensorProto::UINT8);
  *model.mutable_graph()->add_input() = Info("z", {4}, onnx::TensorProto::UINT8);
  EXPECT_THAT(ErrorOf(model), HasSubstr("what u8[4] belongs to has only 0 axes"));
}

// The last of equal ones is at the size less one less an index: of an empty axis that is no size.
TEST_F(Malformed, LastIndexOfAnEmptyAxis) {
  onnx::ModelProto model = OneNode("ArgMin");
  *model.mutable_graph()->mutable_input(0) = Info("x", {2, 0});
  *model.mutable_graph()->mutable_output(0) = Info("y", {2, 1}, onnx::TensorProto::INT64);
  SetInt(model.mutable_graph()->mutable_node(0), "axis", 1);
  SetInt(model.mutable_graph()->mutable_node(0), "select_last_index", 1);
  const auto imported = Import(model);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_TRUE(ParseModel(PrintModel(**imported), "printed").ok());
}

TEST_F(Malformed, RecurrentLayersThatUnrollWithoutEnd) {
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

TEST_F(Malformed, TruncatedNodeModels) {
  for (const char* name : {"test_softmax_axis_1", "test_split_equal_parts_1d_opset18", "test_attention_4d",
                           "test_reshape_negative_dim", "test_layer_normalization_2d_axis0"}) {
    const fs::path path = OnnxNodeFolder() / name / "model.onnx";
    if (OnnxNodeFolders().empty()) GTEST_SKIP() << "no tests in " << OnnxNodeFolder();
    std::ifstream in(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    for (size_t size = 0; size < bytes.size(); ++size) (void)ImportOnnx(Write(bytes.substr(0, size)).string());
  }
}

}  // namespace
}  // namespace llmc
