// What ONNX nodes mean, and how models that are partly wrong are reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "frontend/formats/safetensors.h"
#include "frontend/onnx/import.h"
#include "ir/eval.h"
#include "ir/text.h"
#include "tests/frontend/onnx_builder.h"

namespace llmc {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using OnnxImport = OnnxTest;
using Numbers = std::vector<double>;

// Node `op` with x -> y at an opset.
onnx::ModelProto AtOpset(int opset, const std::string& op, onnx::ValueInfoProto x) {
  onnx::ModelProto model = OneNode(op);
  model.mutable_opset_import(0)->set_version(opset);
  *model.mutable_graph()->mutable_input(0) = std::move(x);
  model.mutable_graph()->mutable_output(0)->clear_type();
  return model;
}

onnx::NodeProto* FirstNode(onnx::ModelProto* model) { return model->mutable_graph()->mutable_node(0); }

void SetInts(onnx::NodeProto* node, const std::string& name, const std::vector<int64_t>& values) {
  auto* attr = node->add_attribute();
  attr->set_name(name);
  attr->set_type(onnx::AttributeProto::INTS);
  for (int64_t value : values) attr->add_ints(value);
}

void AddInput(onnx::ModelProto* model, const std::vector<int64_t>& values) {
  FirstNode(model)->add_input("extra");
  AddInts(model, "extra", values);
}

Tensor Floats(Shape shape, const Numbers& values) { return Tensor::FromValues(DType::kF32, std::move(shape), values); }

// The first output for x = 1, 2, 3, …, with its shape: "[2]: 3 7".
std::string RunText(const Model& model, const NamedTensors& inputs) {
  auto evaluator = Evaluator::Create(&model);
  if (!evaluator.ok()) return std::string(evaluator.status().message());
  auto outputs = (*evaluator)->Run(*model.steps[0], inputs);
  if (!outputs.ok()) return std::string(outputs.status().message());
  std::string text;
  for (const Output& output : model.steps[0]->outputs) {
    const Tensor& tensor = outputs->at(output.name);
    absl::StrAppend(&text, text.empty() ? "" : "; ", ShapeToString(tensor.shape()), ":");
    for (double value : tensor.ToDoubles()) absl::StrAppend(&text, " ", value);
  }
  return text;
}

// An input whose dims are all symbols of its own.
onnx::ValueInfoProto Symbolic(const std::string& name, int rank, int type = onnx::TensorProto::FLOAT) {
  onnx::ValueInfoProto info = Info(name, {}, type);
  auto* shape = info.mutable_type()->mutable_tensor_type()->mutable_shape();
  for (int i = 0; i < rank; ++i) shape->add_dim()->set_dim_param(absl::StrCat(name, i));
  return info;
}

class OnnxOpsets : public OnnxTest {
 protected:
  std::string Result(const onnx::ModelProto& proto) {
    auto model = Import(proto);
    if (!model.ok()) return std::string(model.status().message());
    const Value* param = (*model)->steps[0]->params[0];
    Shape shape;
    for (const Dim& dim : param->type.shape) shape.push_back(dim.value());
    Tensor x(param->type.dtype, shape);
    for (int64_t i = 0; i < x.size(); ++i) x.SetFloat(i, static_cast<double>(i + 1));
    return RunText(**model, {{"x", x}});
  }
};

// What opset 13 (18 for most reductions) changed: joined axes, and attributes that became inputs.
TEST_F(OnnxOpsets, OldAndNewForms) {
  const auto x = [](std::vector<int64_t> dims) { return Info("x", std::move(dims)); };
  onnx::ModelProto m = AtOpset(12, "Softmax", x({1, 2, 1}));
  EXPECT_THAT(Result(m), HasSubstr("[1, 2, 1]: 0.268941 0.731059")) << "axes from 1 on are one";
  m = AtOpset(13, "Softmax", x({1, 2, 1}));
  EXPECT_EQ(Result(m), "[1, 2, 1]: 1 1");
  m = AtOpset(11, "LogSoftmax", x({1, 1, 1}));
  EXPECT_EQ(Result(m), "[1, 1, 1]: 0");
  struct Form {
    const char* op;
    const char* attribute;
    int since;  // the opset from which it is an input
    std::vector<int64_t> dims, values;
    const char* result;
  };
  const Form forms[] = {{"Squeeze", "axes", 13, {1, 2, 1}, {2}, "[1, 2]: 1 2"},
                        {"Unsqueeze", "axes", 13, {2}, {0, 2}, "[1, 2, 1]: 1 2"},
                        {"ReduceSum", "axes", 13, {2, 2}, {1}, "[2, 1]: 3 7"},
                        {"ReduceMax", "axes", 18, {2, 2}, {0}, "[1, 2]: 3 4"},
                        {"ReduceMean", "axes", 18, {2, 2}, {-1}, "[2, 1]: 1.5 3.5"},
                        {"Split", "split", 13, {3}, {1, 2}, "[1]: 1; [2]: 2 3"}};
  for (const Form& form : forms) {
    for (int opset : {11, 12, form.since - 1, form.since, 17, 18}) {
      for (const bool as_input : {true, false}) {
        onnx::ModelProto model = AtOpset(opset, form.op, x(form.dims));
        if (form.op == std::string("Split")) {
          FirstNode(&model)->add_output("z");
          *model.mutable_graph()->add_output() = Info("z", {2});
        }
        as_input ? AddInput(&model, form.values) : SetInts(FirstNode(&model), form.attribute, form.values);
        const std::string where = absl::StrCat(form.op, " ", opset, as_input ? " input" : " attribute");
        if (as_input == (opset >= form.since)) {
          EXPECT_EQ(Result(model), form.result) << where;
        } else if (as_input) {
          EXPECT_THAT(Result(model), HasSubstr("has 2 inputs")) << where;
        } else {
          EXPECT_THAT(Result(model), HasSubstr("the_node")) << where;
        }
      }
    }
  }
  for (int opset : {11, 13}) {
    EXPECT_THAT(Result(AtOpset(opset, "Unsqueeze", x({2}))), HasSubstr("axes are missing")) << opset;
    EXPECT_EQ(Result(AtOpset(opset, "Squeeze", x({1, 2, 1}))), "[2]: 1 2") << opset;
  }
}

TEST_F(OnnxImport, ArgMinOfIntegers) {
  for (const auto& [type, dtype, values, where] :
       {std::tuple(onnx::TensorProto::UINT8, DType::kU8, std::vector<int64_t>{3, 0, 255}, 1.0),
        std::tuple(onnx::TensorProto::INT32, DType::kI32, std::vector<int64_t>{5, -7, INT32_MIN}, 2.0),
        std::tuple(onnx::TensorProto::INT64, DType::kI64, std::vector<int64_t>{5, INT64_MIN, INT64_MAX}, 1.0)}) {
    auto model = Import(AtOpset(18, "ArgMin", Info("x", {3}, type)));
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(RunText(**model, {{"x", Tensor::FromValues(dtype, {3}, values)}}), absl::StrCat("[1]: ", where));
  }
}

TEST_F(OnnxImport, CastReadsAllBitsOfTo) {
  onnx::ModelProto model = AtOpset(18, "Cast", Info("x", {3}));
  SetInt(FirstNode(&model), "to", (int64_t{1} << 32) + onnx::TensorProto::FLOAT);
  EXPECT_THAT(ErrorOf(model), HasSubstr("number 4294967297"));
}

TEST_F(OnnxImport, GemmBroadcastsOneWay) {
  onnx::ModelProto model = AtOpset(18, "Gemm", Info("x", {1, 2}));
  FirstNode(&model)->add_input("w");
  FirstNode(&model)->add_input("c");
  AddFloats(&model, "w", {2, 3}, 24);
  auto* c = AddFloats(&model, "c", {3}, 12);
  EXPECT_EQ(ErrorOf(model), "no error");
  c->clear_dims();
  for (int64_t dim : {2, 3}) c->add_dims(dim);
  c->set_raw_data(std::string(24, '\0'));
  EXPECT_THAT(ErrorOf(model), AllOf(HasSubstr("the_node"), HasSubstr("does not broadcast")));
}

TEST_F(OnnxImport, DeclaredElementTypesMustHold) {
  const onnx::ValueInfoProto info = Info("y", {2, 3}, onnx::TensorProto::INT64);
  onnx::ModelProto model = Base();
  *model.mutable_graph()->mutable_output(0) = info;
  EXPECT_THAT(ErrorOf(model), HasSubstr("output \"y\" is declared INT64"));
  model = Base();
  AddNode(&model, "Neg", {"y"}, {"z"});
  *model.mutable_graph()->mutable_output(0) = Info("z", {2, 3});
  *model.mutable_graph()->add_value_info() = info;
  EXPECT_THAT(ErrorOf(model), HasSubstr("value \"y\" is declared INT64"));
}

TEST_F(OnnxImport, WrongDeclaredShapesAreWarnings) {
  for (const auto& [info, says] : {std::pair(Info("y", {2, 3, 1}), "\"y\" is declared with rank 3"),
                                   std::pair(Info("y", {}), "\"y\" is declared with rank 0"),
                                   std::pair(Info("y", {2, 4}), "\"y\" is declared with 4 as dim 1")}) {
    onnx::ModelProto model = Base();
    *model.mutable_graph()->mutable_output(0) = info;
    EXPECT_THAT(WarningsOf(model), ElementsAre(AllOf(HasSubstr("output"), HasSubstr(says))));
    EXPECT_EQ(RunText(**Import(model), {{"x", Floats({2, 3}, {1, 2, 3, 4, 5, 6})}}), "[2, 3]: 1 2 3 4 5 6");
    model = Base();
    AddNode(&model, "Neg", {"y"}, {"z"});
    *model.mutable_graph()->mutable_output(0) = Info("z", {2, 3});
    *model.mutable_graph()->add_value_info() = info;
    EXPECT_THAT(WarningsOf(model), ElementsAre(AllOf(HasSubstr("value"), HasSubstr(says))));
    EXPECT_EQ(ErrorOf(model), "no error");
  }
}

TEST_F(OnnxImport, NegativeDimsAreOfAnySize) {
  onnx::ModelProto model = Base();
  *model.mutable_graph()->mutable_input(0) = Info("x", {-1, 3});
  *model.mutable_graph()->mutable_output(0) = Info("y", {-1, 3});
  model.mutable_graph()->mutable_initializer(0)->set_dims(0, 1);
  model.mutable_graph()->mutable_initializer(0)->set_raw_data(std::string(12, '\0'));
  EXPECT_THAT(WarningsOf(model), ElementsAre(HasSubstr("input \"x\" declares -1 as dim 0")));
  EXPECT_EQ(RunText(**Import(model), {{"x", Floats({1, 3}, {1, 2, 3})}}), "[1, 3]: 1 2 3");
}

TEST_F(OnnxImport, NodesAreSorted) {
  onnx::ModelProto model = OneNode("Neg", {"c"});
  AddNode(&model, "Abs", {"x"}, {"a"}, "first");
  AddNode(&model, "Exp", {"a"}, {"b"});
  AddNode(&model, "Sub", {"b", "a"}, {"c"});
  EXPECT_THAT(WarningsOf(model), ElementsAre(AllOf(HasSubstr("topological order"), HasSubstr("\"the_node\""))));
  const std::string text = PrintModel(**Import(model));
  EXPECT_LT(text.find("abs"), text.find("exp"));
  EXPECT_LT(text.find("exp"), text.find("sub"));
  EXPECT_LT(text.find("sub"), text.find("neg"));
  EXPECT_THAT(WarningsOf(Base()), IsEmpty());
}

// A body reads from outside what a later node makes.
TEST_F(OnnxImport, BodiesAreSortedBehindWhatTheyRead) {
  onnx::ModelProto model = Base();
  model.mutable_graph()->clear_node();
  auto* condition = model.mutable_graph()->add_initializer();
  condition->set_name("yes");
  condition->set_data_type(onnx::TensorProto::BOOL);
  condition->set_raw_data(std::string(1, '\1'));
  onnx::NodeProto* branch = AddNode(&model, "If", {"yes"}, {"y"}, "choice");
  for (const char* name : {"then_branch", "else_branch"}) {
    auto* attr = branch->add_attribute();
    attr->set_name(name);
    attr->set_type(onnx::AttributeProto::GRAPH);
    AddNode(attr->mutable_g()->mutable_node(), "Neg", {"later"}, {"r"});
    attr->mutable_g()->add_output()->set_name("r");
  }
  AddNode(&model, "Abs", {"x"}, {"later"});
  EXPECT_THAT(WarningsOf(model), ElementsAre(HasSubstr("\"choice\" reads what a later node makes")));
  EXPECT_EQ(RunText(**Import(model), {{"x", Floats({2, 3}, {1, -2, 3, 4, 5, 6})}}), "[2, 3]: -1 -2 -3 -4 -5 -6");
}

// ---- names -----------------------------------------------------------------------

TEST_F(OnnxImport, InputsKeepTheirNames) {
  onnx::ModelProto proto = OneNode("Sub", {"in:0", "in_0"});
  *proto.mutable_graph()->mutable_input(0) = Info("in:0", {1});
  *proto.mutable_graph()->add_input() = Info("in_0", {1});
  proto.mutable_graph()->mutable_output(0)->clear_type();
  auto model = Import(proto);
  ASSERT_TRUE(model.ok()) << model.status();
  const NamedTensors inputs = {{"in:0", Floats({1}, {5})}, {"in_0", Floats({1}, {3})}};
  EXPECT_EQ(RunText(**model, inputs), "[1]: 2");
  auto again = ParseModel(PrintModel(**model), "again.lir");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(RunText(**again, inputs), "[1]: 2");
}

TEST_F(OnnxImport, FileNamesMayHoldAHash) {
  onnx::ModelProto proto = Base();
  AddFloats(&proto, "w#1", {100}, 400);
  for (const char* name : {"a#b.onnx", "a%23b.onnx"}) {
    const auto model = ImportOnnx(Write(proto.SerializeAsString(), name).string());
    ASSERT_TRUE(model.ok()) << model.status();
    auto again = ParseModel(PrintModel(**model), "again.lir");
    ASSERT_TRUE(again.ok()) << again.status();
    const absl::Status resolved = ResolveWeights(again->get(), folder_.string());
    EXPECT_TRUE(resolved.ok()) << resolved;
    EXPECT_EQ((*again)->data.size(), 1u);
  }
}

// The ONNX package of some systems does not know the field, so it is written as bytes.
TEST_F(OnnxImport, FunctionsAreFoundByOverload) {
  onnx::ModelProto proto = AtOpset(18, "F", Info("x", {1}));
  Call(FirstNode(&proto));
  FirstNode(&proto)->mutable_unknown_fields()->AddLengthDelimited(8, "two");
  for (const char* overload : {"one", "two"}) {
    auto* function = AddFunction(&proto, "F");
    function->mutable_unknown_fields()->AddLengthDelimited(13, overload);
    AddNode(function->mutable_node(), overload == std::string("one") ? "Abs" : "Neg", {"a"}, {"r"});
  }
  auto model = Import(proto);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(RunText(**model, {{"x", Floats({1}, {5})}}), "[1]: -5");
  FirstNode(&proto)->mutable_unknown_fields()->Clear();
  EXPECT_THAT(ErrorOf(proto), HasSubstr("local.F: ops of this domain are not supported"));
}

// ---- reports ---------------------------------------------------------------------

TEST_F(OnnxImport, ReportsEverythingAtOnce) {
  onnx::ModelProto model = Base();
  for (int i = 0; i < 6; ++i) AddNode(&model, "DeformConv", {"x"}, {absl::StrCat("l", i)}, absl::StrCat("deform", i));
  AddNode(&model, "Reshape", {"x"}, {"r"}, "short_of_inputs");
  AddNode(&model, "Neg", {"nothing"}, {"n"}, "undefined");
  AddNode(&model, "Neg", {"r"}, {"rn"}, "after_a_wrong_one");
  AddFunction(&model, "F")->add_input("b");
  Call(AddNode(&model, "F", {"x"}, {"f"}, "call"));
  *model.mutable_graph()->add_input() = Info("s", {1}, onnx::TensorProto::STRING);
  AddFloats(&model, "u", {1}, 4)->set_data_type(onnx::TensorProto::UINT32);
  const std::string path = Write(model.SerializeAsString()).string();
  const auto report = CheckOnnx(path);
  ASSERT_TRUE(report.ok()) << report.status();
  std::map<std::string, std::vector<std::string>> places;
  for (const OnnxUnsupported& item : report->unsupported) places[item.op] = item.places;
  EXPECT_EQ(places.size(), 4u);
  EXPECT_THAT(places["DeformConv"], ElementsAre("deform0", "deform1", "deform2", "deform3", "deform4", "deform5"));
  EXPECT_THAT(places["local.F"], ElementsAre("call"));
  EXPECT_THAT(places["input"], ElementsAre("s"));
  EXPECT_THAT(places["initializer"], ElementsAre("u"));
  EXPECT_THAT(report->wrong, ElementsAre(AllOf(HasSubstr("short_of_inputs"), HasSubstr("has 1 inputs")),
                                         AllOf(HasSubstr("undefined"), HasSubstr("\"nothing\""))));
  const absl::Status status = ImportOnnx(path).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("deform2, …"), HasSubstr("short_of_inputs")));
}

TEST_F(OnnxImport, WhatIsValidIsUnsupportedNotWrong) {
  for (const char* op : {"Reshape", "Expand", "GatherND"}) {
    onnx::ModelProto model = AtOpset(18, op, Info("x", {2, 3}));
    FirstNode(&model)->add_input("s");
    *model.mutable_graph()->add_input() =
        Symbolic("s", op == std::string("GatherND") ? 2 : 1, onnx::TensorProto::INT64);
    const absl::Status status = Import(model).status();
    EXPECT_TRUE(absl::IsUnimplemented(status)) << op << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("known before the run"));
  }
  EXPECT_TRUE(
      absl::IsUnimplemented(Import(AtOpset(18, "ReduceL2", Info("x", {2}, onnx::TensorProto::INT32))).status()));
}

TEST_F(OnnxImport, LayerNormalizationBroadcastsItsScale) {
  onnx::ModelProto model = AtOpset(18, "LayerNormalization", Info("x", {1, 2}));
  FirstNode(&model)->add_input("scale");
  auto* scale = AddFloats(&model, "scale", {1}, 0);
  scale->add_float_data(10);
  auto imported = Import(model);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_THAT(RunText(**imported, {{"x", Floats({1, 2}, {-100, 100})}}), HasSubstr("[1, 2]: -10 10"));
}

// Which of mask and keys is shorter only a run tells; keys past the mask are hidden.
TEST_F(OnnxImport, AttentionMaskShorterThanTheKeys) {
  onnx::ModelProto model = AtOpset(23, "Attention", Symbolic("x", 4));
  for (const auto& [name, rank] : {std::pair("k", 4), std::pair("v", 4), std::pair("m", 2)}) {
    FirstNode(&model)->add_input(name);
    *model.mutable_graph()->add_input() = Symbolic(name, rank);
  }
  auto* scale = FirstNode(&model)->add_attribute();
  scale->set_name("scale");
  scale->set_type(onnx::AttributeProto::FLOAT);
  scale->set_f(1);
  auto imported = Import(model);
  ASSERT_TRUE(imported.ok()) << imported.status();
  NamedTensors inputs = {{"x", Floats({1, 1, 1, 1}, {0})},
                         {"k", Floats({1, 1, 3, 1}, {1, 2, 3})},
                         {"v", Floats({1, 1, 3, 1}, {10, 20, 60})},
                         {"m", Floats({1, 2}, {0, 0})}};
  EXPECT_EQ(RunText(**imported, inputs), "[1, 1, 1, 1]: 15");
  inputs["m"] = Floats({1, 3}, {0, 0, 0});
  EXPECT_EQ(RunText(**imported, inputs), "[1, 1, 1, 1]: 30");
}

TEST_F(OnnxImport, OneRowOfRotaryAnglesForTheBatch) {
  onnx::ModelProto model = AtOpset(23, "RotaryEmbedding", Symbolic("x", 4));
  for (const char* name : {"cos", "sin"}) {
    FirstNode(&model)->add_input(name);
    *model.mutable_graph()->add_input() = Symbolic(name, 3);
  }
  auto imported = Import(model);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const NamedTensors inputs = {
      {"x", Floats({2, 1, 1, 2}, {1, 2, 3, 4})}, {"cos", Floats({1, 1, 1}, {0})}, {"sin", Floats({1, 1, 1}, {1})}};
  EXPECT_EQ(RunText(**imported, inputs), "[2, 1, 1, 2]: -2 1 -4 3");
}

// A body of `If` that makes "y" by `op` from x.
void AddBranch(onnx::NodeProto* node, const std::string& name, const std::string& op) {
  auto* attr = node->add_attribute();
  attr->set_name(name);
  attr->set_type(onnx::AttributeProto::GRAPH);
  attr->mutable_g()->set_name(name);
  AddNode(attr->mutable_g()->mutable_node(), op, {"x"}, {"made"});
  *attr->mutable_g()->add_output() = Info("made", {3});
}

TEST_F(OnnxImport, TheBodyOfMergedDecodersIsFixed) {
  onnx::ModelProto model = AtOpset(17, "If", Info("x", {3}));
  onnx::NodeProto* node = FirstNode(&model);
  node->set_input(0, "use_cache_branch");
  AddBranch(node, "then_branch", "Neg");
  AddBranch(node, "else_branch", "Abs");
  *model.mutable_graph()->add_input() = Info("use_cache_branch", {1}, onnx::TensorProto::BOOL);
  EXPECT_THAT(ErrorOf(model), AllOf(HasSubstr("chooses between two bodies"), HasSubstr("--set use_cache_branch=1")));
  const std::string path = Write(model.SerializeAsString()).string();
  for (const auto& [text, wanted] : {std::pair("1", "[3]: -1 -2 -3"), std::pair("0", "[3]: 1 2 3")}) {
    auto imported = ImportOnnx(path, {.inputs = {{"use_cache_branch", {.text = text}}}});
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_EQ((*imported)->steps[0]->params.size(), 1u);
    EXPECT_EQ(RunText(**imported, {{"x", Floats({3}, {1, 2, 3})}}), wanted);
  }
}

// Any other input is one of a run, which chooses.
TEST_F(OnnxImport, IfOnAnInput) {
  onnx::ModelProto model = AtOpset(17, "If", Info("x", {3}));
  onnx::NodeProto* node = FirstNode(&model);
  node->set_input(0, "flag");
  AddBranch(node, "then_branch", "Neg");
  AddBranch(node, "else_branch", "Abs");
  *model.mutable_graph()->add_input() = Info("flag", {1}, onnx::TensorProto::BOOL);
  auto imported = Import(model);
  ASSERT_TRUE(imported.ok()) << imported.status();
  for (const int64_t flag : {0, 1}) {
    const NamedTensors inputs = {{"x", Floats({3}, {1, -2, 3})},
                                 {"flag", Tensor::FromValues(DType::kBool, {1}, std::vector<int64_t>{flag})}};
    EXPECT_EQ(RunText(**imported, inputs), flag != 0 ? "[3]: -1 2 -3" : "[3]: 1 2 3");
  }
  // Of other ranks they are no one value.
  auto* made = node->mutable_attribute(1)->mutable_g();
  made->mutable_node(0)->set_op_type("ReduceSum");
  SetInt(made->mutable_node(0), "keepdims", 0);
  EXPECT_THAT(ErrorOf(model),
              HasSubstr("the condition must be known at import, since the branches give f32[3] and f32[]"));
}

// An axis that is dropped if it has one element: a run in which it has more is refused.
TEST_F(OnnxImport, IfOneElementThenSqueeze) {
  onnx::ModelProto model = AtOpset(17, "Shape", Symbolic("x", 2));
  FirstNode(&model)->set_output(0, "shape");
  AddNode(&model, "Gather", {"shape", "one"}, {"columns"});
  AddNode(&model, "Equal", {"columns", "one"}, {"is_one"});
  onnx::NodeProto* node = AddNode(&model, "If", {"is_one"}, {"y"});
  AddBranch(node, "then_branch", "Squeeze");
  AddBranch(node, "else_branch", "Identity");
  node->mutable_attribute(0)->mutable_g()->mutable_node(0)->add_input("axes");
  for (const auto& [name, shape] : {std::pair<std::string, std::vector<int64_t>>{"one", {}}, {"axes", {1}}}) {
    auto* tensor = model.mutable_graph()->add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(onnx::TensorProto::INT64);
    for (const int64_t size : shape) tensor->add_dims(size);
    tensor->add_int64_data(1);
  }
  auto imported = Import(model);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(RunText(**imported, {{"x", Floats({3, 1}, {1, 2, 3})}}), "[3]: 1 2 3");
  EXPECT_THAT(RunText(**imported, {{"x", Floats({1, 3}, {1, 2, 3})}}), HasSubstr("elements"));
}

// The pads are computed from constants alone, through a matrix and floats.
TEST_F(OnnxImport, ConstantChainsAreFolded) {
  onnx::ModelProto model = AtOpset(17, "Shape", Info("x", {3, 4}));
  FirstNode(&model)->set_output(0, "shape");
  AddNode(&model, "Concat", {"shape", "shape"}, {"four"});
  SetInt(model.mutable_graph()->mutable_node(1), "axis", 0);
  AddNode(&model, "Reshape", {"four", "square"}, {"matrix"});
  AddNode(&model, "Transpose", {"matrix"}, {"turned"});
  AddNode(&model, "Cast", {"turned"}, {"floats"});
  SetInt(model.mutable_graph()->mutable_node(4), "to", onnx::TensorProto::FLOAT);
  AddNode(&model, "Sub", {"floats", "floats"}, {"zeros"});
  AddNode(&model, "Exp", {"zeros"}, {"ones"});
  AddNode(&model, "Cast", {"ones"}, {"whole"});
  SetInt(model.mutable_graph()->mutable_node(7), "to", onnx::TensorProto::INT64);
  AddNode(&model, "Reshape", {"whole", "flat"}, {"pads"});
  AddNode(&model, "Pad", {"x", "pads"}, {"y"});
  for (const auto& [name, values] : {std::pair<std::string, std::vector<int64_t>>{"square", {2, 2}}, {"flat", {-1}}}) {
    auto* tensor = model.mutable_graph()->add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(onnx::TensorProto::INT64);
    tensor->add_dims(static_cast<int64_t>(values.size()));
    for (const int64_t value : values) tensor->add_int64_data(value);
  }
  auto imported = Import(model);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ((*imported)->steps[0]->outputs[0].value->type.ToString(), "f32[5, 6]");
}

}  // namespace
}  // namespace llmc
