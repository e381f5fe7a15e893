// Operators of com.microsoft where no other program is needed to say what is right; tests/frontend/contrib/ has the
// rest.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "frontend/onnx/import.h"
#include "ir/text.h"
#include "tests/frontend/onnx_builder.h"

namespace llmc {
namespace {

using testing::HasSubstr;
using OnnxContrib = OnnxTest;

// One node of com.microsoft with input x f32[2, 32].
onnx::ModelProto OneContribNode(const std::string& op) {
  onnx::ModelProto model = OneNode(op);
  auto* import = model.add_opset_import();
  import->set_domain("com.microsoft");
  import->set_version(1);
  onnx::NodeProto* node = model.mutable_graph()->mutable_node(0);
  node->set_domain("com.microsoft");
  *model.mutable_graph()->mutable_input(0) = Info("x", {2, 32});
  model.mutable_graph()->mutable_output(0)->clear_type();
  return model;
}

onnx::NodeProto* TheNode(onnx::ModelProto* model) { return model->mutable_graph()->mutable_node(0); }

// MatMulNBits with 5 rows of 2 blocks of 16 numbers.
onnx::ModelProto FourBitProduct() {
  onnx::ModelProto model = OneContribNode("MatMulNBits");
  onnx::NodeProto* node = TheNode(&model);
  for (const char* input : {"b", "scales"}) node->add_input(input);
  SetInt(node, "N", 5);
  SetInt(node, "K", 32);
  SetInt(node, "block_size", 16);
  auto* packed = model.mutable_graph()->add_initializer();
  packed->set_name("b");
  packed->set_data_type(onnx::TensorProto::UINT8);
  for (int dim : {5, 2, 8}) packed->add_dims(dim);
  std::string bytes;
  for (int i = 0; i < 80; ++i) bytes.push_back(static_cast<char>(i * 37));
  packed->set_raw_data(bytes);
  AddFloats(&model, "scales", {5, 2}, 40);
  return model;
}

TEST_F(OnnxContrib, FourBitConstantsStayPacked) {
  const onnx::ModelProto proto = FourBitProduct();
  auto model = Import(proto);
  ASSERT_TRUE(model.ok()) << model.status();
  int found = 0;
  for (const Value* weight : (*model)->weights) {
    EXPECT_NE(weight->type.dtype, DType::kU8) << weight->name;
    if (weight->type.dtype != DType::kU4) continue;
    ++found;
    EXPECT_EQ(weight->source, "model.onnx#b");
    const Tensor& tensor = (*model)->data.at(weight->name);
    const std::string& bytes = proto.graph().initializer(0).raw_data();
    ASSERT_EQ(tensor.bytes(), static_cast<int64_t>(bytes.size()));
    EXPECT_EQ(std::memcmp(tensor.raw(), bytes.data(), bytes.size()), 0);
  }
  EXPECT_EQ(found, 1);
}

// The text names the tensor by its place in the file, under the type that the ops read.
TEST_F(OnnxContrib, TextFindsPackedConstantsAgain) {
  auto model = Import(FourBitProduct());
  ASSERT_TRUE(model.ok()) << model.status();
  auto again = ImportText(Write(PrintModel(**model), "model.lir").string(), folder_.string());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(PrintModel(**again), PrintModel(**model));
}

TEST_F(OnnxContrib, RefusesPrepackedWeights) {
  onnx::ModelProto model = FourBitProduct();
  SetInt(TheNode(&model), "weight_prepacked", 1);
  EXPECT_THAT(ErrorOf(model), HasSubstr("com.microsoft.MatMulNBits: weight_prepacked is not supported: the layout is "
                                        "that of one GPU; export with 0"));
}

TEST_F(OnnxContrib, RefusesUnknownAttributesOpsAndVersions) {
  onnx::ModelProto model = OneContribNode("Gelu");
  EXPECT_TRUE(Import(model).ok());
  SetInt(TheNode(&model), "approximate", 1);
  EXPECT_THAT(ErrorOf(model), HasSubstr("com.microsoft.Gelu: attribute \"approximate\" is not supported"));
  EXPECT_THAT(ErrorOf(OneContribNode("BeamSearch")), HasSubstr("com.microsoft.BeamSearch: this op is not supported"));
  // An op of the default domain is not one of this domain, nor the other way round.
  EXPECT_THAT(ErrorOf(OneContribNode("Relu")), HasSubstr("com.microsoft.Relu: this op is not supported"));
  EXPECT_THAT(ErrorOf(OneContribNode("If")), HasSubstr("com.microsoft.If: this op is not supported"));
  EXPECT_THAT(ErrorOf(OneNode("FastGelu")), HasSubstr("FastGelu: this op is not supported"));
  model = OneContribNode("Gelu");
  model.mutable_opset_import(1)->set_version(2);
  EXPECT_THAT(ErrorOf(model), HasSubstr("version 2 of com.microsoft is not supported; 1 is"));
}

// A mixture computes the chosen experts only, gates in one product: numbers are held against ONNX Runtime elsewhere.
TEST_F(OnnxContrib, MixturesComputeTheChosenExpertsOnly) {
  onnx::ModelProto proto = OneContribNode("MoE");
  onnx::NodeProto* node = TheNode(&proto);
  for (const char* input : {"router", "up", "", "down", "", "gate"}) node->add_input(input);
  SetInt(node, "k", 2);
  *proto.mutable_graph()->add_input() = Info("router", {2, 4});
  AddFloats(&proto, "up", {4, 16, 32}, 8192);
  AddFloats(&proto, "down", {4, 32, 16}, 8192);
  AddFloats(&proto, "gate", {4, 16, 32}, 8192);
  const auto model = Import(proto);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::string text = PrintModel(**model);
  EXPECT_THAT(text, HasSubstr("= route %router {top_k = 2}"));
  const std::vector<std::string> parts = absl::StrSplit(text, " = expert_linear ");
  EXPECT_EQ(parts.size(), 3u) << text;
  EXPECT_THAT(text, HasSubstr("f32[2, 2, 32]"));
  // The weights tell how many experts there are, too.
  auto* shape = proto.mutable_graph()->mutable_input(1)->mutable_type()->mutable_tensor_type()->mutable_shape();
  shape->mutable_dim(1)->set_dim_param("experts");
  const auto open = Import(proto);
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_THAT(PrintModel(**open), HasSubstr("= route "));
  *proto.mutable_graph()->mutable_input(1) = Info("router", {2, 5});
  EXPECT_THAT(std::string(Import(proto).status().message()), HasSubstr("router_probs has 5 columns, for 4 experts"));
}

TEST_F(OnnxContrib, LocalFunctionsGoBeforeOps) {
  onnx::ModelProto model = OneContribNode("Gelu");
  onnx::FunctionProto* function = model.add_functions();
  function->set_domain("com.microsoft");
  function->set_name("Gelu");
  function->add_input("a");
  function->add_output("b");
  *function->add_opset_import() = model.opset_import(0);
  AddNode(function->mutable_node(), "Neg", {"a"}, {"b"});
  auto imported = Import(model);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const std::string text = PrintModel(**imported);
  EXPECT_TRUE(absl::StrContains(text, "neg %x")) << text;
  EXPECT_FALSE(absl::StrContains(text, "gelu")) << text;
}

}  // namespace
}  // namespace llmc
