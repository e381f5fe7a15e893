// Hostile ONNX files: each ends in an error that names the place, none crashes. External data, nodes and functions have
// tests of their own: onnx_malformed_*_test.cc.
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

#include "frontend/import.h"
#include "frontend/onnx/import.h"
#include "ir/text.h"
#include "tests/frontend/onnx_builder.h"
#include "tests/frontend/onnx_node_cases.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
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
