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
#include "frontend/onnx_import.h"
#include "ir/text.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

// A folder of its own, removed afterwards.
class Malformed : public testing::Test {
 protected:
  Malformed() {
    std::string pattern = (fs::temp_directory_path() / "llmc-onnx-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~Malformed() override { fs::remove_all(folder_); }

  fs::path Write(const std::string& bytes, const std::string& name = "model.onnx") {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  absl::StatusOr<std::unique_ptr<Model>> Import(const onnx::ModelProto& model) {
    return ImportOnnx(Write(model.SerializeAsString()).string());
  }
  std::string ErrorOf(const onnx::ModelProto& model) {
    auto result = Import(model);
    return result.ok() ? "no error" : std::string(result.status().message());
  }

  fs::path folder_;
};

onnx::ValueInfoProto Info(const std::string& name, std::vector<int64_t> dims, int type = onnx::TensorProto::FLOAT) {
  onnx::ValueInfoProto info;
  info.set_name(name);
  auto* tensor = info.mutable_type()->mutable_tensor_type();
  tensor->set_elem_type(type);
  tensor->mutable_shape();
  for (int64_t dim : dims) tensor->mutable_shape()->add_dim()->set_dim_value(dim);
  return info;
}

onnx::NodeProto* AddNode(google::protobuf::RepeatedPtrField<onnx::NodeProto>* nodes, const std::string& op,
                         std::vector<std::string> inputs, std::vector<std::string> outputs,
                         const std::string& name = "") {
  onnx::NodeProto* node = nodes->Add();
  node->set_op_type(op);
  node->set_name(name);
  for (const std::string& input : inputs) node->add_input(input);
  for (const std::string& output : outputs) node->add_output(output);
  return node;
}

onnx::NodeProto* AddNode(onnx::ModelProto* model, const std::string& op, std::vector<std::string> inputs,
                         std::vector<std::string> outputs, const std::string& name = "") {
  return AddNode(model->mutable_graph()->mutable_node(), op, std::move(inputs), std::move(outputs), name);
}

void SetInt(onnx::NodeProto* node, const std::string& name, int64_t value) {
  auto* attr = node->add_attribute();
  attr->set_name(name);
  attr->set_type(onnx::AttributeProto::INT);
  attr->set_i(value);
}

onnx::TensorProto* AddFloats(onnx::ModelProto* model, const std::string& name, std::vector<int64_t> dims,
                             size_t raw_bytes) {
  auto* tensor = model->mutable_graph()->add_initializer();
  tensor->set_name(name);
  tensor->set_data_type(onnx::TensorProto::FLOAT);
  for (int64_t dim : dims) tensor->add_dims(dim);
  if (raw_bytes > 0) tensor->set_raw_data(std::string(raw_bytes, '\0'));
  return tensor;
}

onnx::TensorProto* AddInts(onnx::ModelProto* model, const std::string& name, std::vector<int64_t> values) {
  auto* tensor = model->mutable_graph()->add_initializer();
  tensor->set_name(name);
  tensor->set_data_type(onnx::TensorProto::INT64);
  tensor->add_dims(static_cast<int64_t>(values.size()));
  for (int64_t value : values) tensor->add_int64_data(value);
  return tensor;
}

// y = x + w, with w f32[2, 3].
onnx::ModelProto Base() {
  onnx::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(18);
  auto* graph = model.mutable_graph();
  graph->set_name("g");
  *graph->add_input() = Info("x", {2, 3});
  *graph->add_output() = Info("y", {2, 3});
  AddNode(&model, "Add", {"x", "w"}, {"y"}, "the_add");
  AddFloats(&model, "w", {2, 3}, 24);
  return model;
}

// One node of `op` on x f32[2, 3].
onnx::ModelProto OneNode(const std::string& op, std::vector<std::string> inputs = {"x"}) {
  onnx::ModelProto model = Base();
  model.mutable_graph()->clear_node();
  model.mutable_graph()->clear_initializer();
  AddNode(&model, op, std::move(inputs), {"y"}, "the_node");
  return model;
}

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
       {int64_t{0}, int64_t{9999}, int64_t{-1}, int64_t{10}, int64_t{26}, std::numeric_limits<int64_t>::max()}) {
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
  EXPECT_THAT(ErrorOf(OneNode("Neg", {"y"})), HasSubstr("topological order"));
  model = OneNode("Neg", {"b"});
  AddNode(&model, "Neg", {"y"}, {"b"});
  EXPECT_THAT(ErrorOf(model), HasSubstr("topological order"));
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
  for (int64_t dim : {int64_t{-1}, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    model = Base();
    *model.mutable_graph()->mutable_input(0) = Info("x", {dim, 3});
    EXPECT_THAT(ErrorOf(model), HasSubstr("input \"x\"")) << dim;
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
    EXPECT_THAT(error([type](auto* t) { t->set_data_type(type); }), AllOf(HasSubstr("\"bad\""), HasSubstr("type")));
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
  model = OneNode("LayerNormalization", {"x", "x"});
  SetInt(model.mutable_graph()->mutable_node(0), "epsilon", 1);
  EXPECT_THAT(ErrorOf(model), HasSubstr("wrong type"));
  model = OneNode("Cast");
  EXPECT_NE(ErrorOf(model), "no error");
  SetInt(model.mutable_graph()->mutable_node(0), "to", 1LL << 40);
  EXPECT_NE(ErrorOf(model), "no error");
}

TEST_F(Malformed, UnsupportedNodesAreListedTogether) {
  onnx::ModelProto model = Base();
  AddNode(&model, "LSTM", {"x"}, {"a"}, "lstm_1");
  AddNode(&model, "LSTM", {"a"}, {"b"}, "lstm_2");
  AddNode(&model, "Attention", {"b"}, {"c"}, "att")->set_domain("com.microsoft");
  AddNode(&model, "Neg", {"c"}, {"d"});
  const auto result = Import(model);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(result.status().message()),
              AllOf(HasSubstr("LSTM"), HasSubstr("2 nodes: lstm_1, lstm_2"), HasSubstr("com.microsoft.Attention")));
  auto report = CheckOnnx((folder_ / "model.onnx").string());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->unsupported.size(), 2u);
  EXPECT_EQ(report->nodes["LSTM"], 2);
  EXPECT_EQ(report->opset, 18);
}

// ---- functions ------------------------------------------------------------------

onnx::FunctionProto* AddFunction(onnx::ModelProto* model, const std::string& name) {
  auto* function = model->add_functions();
  function->set_name(name);
  function->set_domain("local");
  function->add_opset_import()->set_version(18);
  function->add_input("a");
  function->add_output("r");
  return function;
}

onnx::NodeProto* Call(onnx::NodeProto* node) {
  node->set_domain("local");
  return node;
}

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

}  // namespace
}  // namespace llmc
