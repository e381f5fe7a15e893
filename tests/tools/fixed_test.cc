// --dim and --set: sizes and inputs that are fixed when a model is imported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "frontend/formats/safetensors.h"
#include "tests/frontend/onnx_builder.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string WriteFixed(const std::string& name, const onnx::ModelProto& model) {
  const std::string path = TempFolder() + "/" + name;
  std::ofstream(path, std::ios::binary) << model.SerializeAsString();
  return path;
}

void NameFixedDim(onnx::ValueInfoProto* info, int axis, const std::string& name) {
  info->mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim(axis)->set_dim_param(name);
}

// One branch of If: y = x `op` numbers of row w[96], all `value`. They are more than a literal may have, so a weight.
onnx::GraphProto FixedBranch(const std::string& op, float value) {
  onnx::GraphProto graph;
  graph.set_name(op);
  onnx::TensorProto* w = graph.add_initializer();
  w->set_name("w");
  w->set_data_type(onnx::TensorProto::FLOAT);
  w->add_dims(96);
  for (int i = 0; i < 96; ++i) w->add_float_data(value);
  AddNode(graph.mutable_node(), op, {"x", "w"}, {"r"});
  *graph.add_output() = Info("r", {});
  graph.mutable_output(0)->mutable_type()->mutable_tensor_type()->clear_shape();
  return graph;
}

// x f32["batch size", 96], fast bool[1], scale f32[n]: y = (fast ? x + 1 : x * 3) * sum(scale).
std::string WriteFixedModel() {
  onnx::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(18);
  onnx::GraphProto* graph = model.mutable_graph();
  graph->set_name("fixed");
  *graph->add_input() = Info("x", {1, 96});
  NameFixedDim(graph->mutable_input(0), 0, "batch size");
  *graph->add_input() = Info("fast", {1}, onnx::TensorProto::BOOL);
  *graph->add_input() = Info("scale", {1});
  NameFixedDim(graph->mutable_input(2), 0, "n");
  *graph->add_output() = Info("y", {1, 96});
  NameFixedDim(graph->mutable_output(0), 0, "batch size");
  onnx::NodeProto* choice = AddNode(&model, "If", {"fast"}, {"chosen"});
  for (const auto& [name, body] :
       {std::pair("then_branch", FixedBranch("Add", 1)), {"else_branch", FixedBranch("Mul", 3)}}) {
    onnx::AttributeProto* attr = choice->add_attribute();
    attr->set_name(name);
    attr->set_type(onnx::AttributeProto::GRAPH);
    *attr->mutable_g() = body;
  }
  AddNode(&model, "ReduceSum", {"scale"}, {"sum"});
  AddNode(&model, "Mul", {"chosen", "sum"}, {"y"});
  return WriteFixed("fixed.onnx", model);
}

// x of so many rows, of twos, and scale of one number.
std::string WriteInputs(int64_t rows) {
  Tensor x(DType::kF32, {rows, 96}), scale(DType::kF32, {1});
  for (int64_t i = 0; i < x.size(); ++i) x.SetFloat(i, 2);
  scale.SetFloat(0, 10);
  const std::string path = TempFolder() + "/fixed_inputs.safetensors";
  EXPECT_TRUE(WriteSafetensors(path, {{"x", x}, {"scale", scale}}).ok());
  return path;
}

// What all elements of y are.
double RunFixed(const std::string& model, int64_t rows, std::vector<std::string> flags) {
  const std::string out = TempFolder() + "/fixed_outputs.safetensors";
  flags.insert(flags.begin(), {"run", model, "--inputs", WriteInputs(rows), "--outputs", out});
  const CommandResult result = RunLlmc(flags);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  absl::StatusOr<NamedTensors> outputs = ReadSafetensors(out);
  if (!outputs.ok() || outputs->size() != 1) return -1;
  const Tensor& y = outputs->at("y");
  EXPECT_EQ(y.shape(), (Shape{rows, 96}));
  for (int64_t i = 1; i < y.size(); ++i) EXPECT_EQ(y.GetFloat(i), y.GetFloat(0));
  return y.GetFloat(0);
}

TEST(Fixed, AnIfTakesItsBranch) {
  const std::string model = WriteFixedModel();
  EXPECT_THAT(RunLlmc({"show", model}).out, HasSubstr("fast"));  // else a run chooses
  EXPECT_EQ(RunFixed(model, 2, {"--set", "fast=true"}), (2 + 1) * 10);
  EXPECT_EQ(RunFixed(model, 2, {"--set", "fast=false"}), 2 * 3 * 10);
  EXPECT_EQ(RunFixed(model, 2, {"--set", "fast=0", "--dim", "n=1"}), 2 * 3 * 10);
  EXPECT_EQ(RunFixed(model, 1, {"--set", "fast=1", "--set", "scale=1,2,4"}), (2 + 1) * 7);
  EXPECT_EQ(RunFixed(model, 1, {"--set", "fast=1", "--dim", "n=5", "--set", "scale=0.5"}), (2 + 1) * 2.5);
}

TEST(Fixed, WhatIsFixedIsNoInputOfThePlan) {
  const std::string model = WriteFixedModel(), plan = TempFolder() + "/fixed.bin";
  const CommandResult compiled =
      RunLlmc({"compile", model, "-o", plan, "--target=host", "--set=fast=1", "--dim=batch size=2", "--set=scale=1,2"});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  const std::string text = RunLlmc({"show", plan, "--ir"}).out;
  EXPECT_THAT(text, HasSubstr("step main(\n  %x: f32[2, 96]) {"));
  EXPECT_THAT(text, Not(HasSubstr("dim ")));
  EXPECT_THAT(RunLlmc({"show", plan, "--json"}).out, HasSubstr("--dim=batch size=2"));
  EXPECT_EQ(RunFixed(plan, 2, {}), (2 + 1) * 3);
  for (const char* command : {"run", "check", "show", "explain", "fit"}) {
    std::vector<std::string> args = {command, plan, "--dim", "n=1"};
    if (args[0] == "run") args.insert(args.end(), {"--inputs", WriteInputs(2)});
    if (args[0] == "fit") args.emplace_back("--gpu-memory=1GiB");
    const CommandResult refused = RunLlmc(args);
    EXPECT_EQ(refused.exit_code, 1) << command;
    EXPECT_THAT(refused.err, HasSubstr("is a plan, whose dims and inputs are as they were compiled")) << command;
  }
}

TEST(Fixed, EveryCommandThatImportsTakesIt) {
  const std::string model = WriteFixedModel(), set = "--set=fast=1", dim = "--dim=batch_size=4";
  EXPECT_THAT(RunLlmc({"show", model, set, dim}).out, HasSubstr("x  f32[4, 96]"));
  EXPECT_THAT(RunLlmc({"opt", model, set, dim, "--passes=none"}).out,
              HasSubstr("main(\n  %x: f32[4, 96],\n  %scale: f32[n]) {"));
  const CommandResult check = RunLlmc({"check", model, set, dim});
  EXPECT_EQ(check.exit_code, 0) << check.err;
  EXPECT_THAT(check.out, Not(HasSubstr("fast: bool")));
  EXPECT_EQ(RunLlmc({"explain", model, set, dim}).exit_code, 0);
  const CommandResult fit = RunLlmc({"fit", model, set, dim, "--gpu-memory=8GiB", "--json"});
  EXPECT_EQ(fit.exit_code, 0) << fit.err;
}

// The text that resumes says the flags with which it was made.
TEST(Fixed, DumpsResume) {
  const std::string model = WriteFixedModel(), dumps = TempFolder() + "/fixed_ir", plan = TempFolder() + "/resumed.bin";
  const CommandResult compiled = RunLlmc({"compile", model, "-o", plan, "--target=host", "--set=fast=0",
                                          "--dim=batch size=3", "--stop-after=import", "--dump-ir", dumps});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  const std::string text = ReadFile(dumps + "/00-import.lir");
  const std::string first = text.substr(0, text.find('\n'));
  EXPECT_EQ(first, "// llmc opt 00-import.lir --from=1 '--dim=batch size=3' --set=fast=0");
  std::vector<std::string> args = {"opt", dumps + "/00-import.lir", "--weights-folder", TempFolder()};
  args.insert(args.end(), {"--dim=batch size=3", "--set=fast=0"});
  const CommandResult resumed = RunLlmc(args);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  // More can be fixed of the text itself.
  args.insert(args.end(), {"--dim=n=2", "--set=scale=1,2"});
  const CommandResult more = RunLlmc(args);
  EXPECT_EQ(more.exit_code, 0) << more.err;
  EXPECT_THAT(more.out, HasSubstr("step main(\n  %x: f32[3, 96]) {"));
  args.back() = "--set=nothing=1";
  const CommandResult unknown = RunLlmc(args);
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("the model has no input nothing; it has scale, x"));
}

TEST(Fixed, ErrorsSayWhatThereIs) {
  const std::string model = WriteFixedModel();
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"--dim", "Batch=2"}, "--dim: the model has no dim \"Batch\"; it has batch_size, n"},
      {{"--dim", "n=1048577"}, "--dim: n is at most 1048576, so it cannot be 1048577"},
      {{"--dim", "batch size=2", "--dim", "batch_size=3"}, "batch_size is fixed to 2 and to 3"},
      {{"--set", "slow=1"}, "--set: the model has no input \"slow\"; it has fast, scale, x"},
      {{"--set", "fast=2"}, "--set fast: \"2\" is no bool"},
      {{"--set", "scale=1,x"}, "--set scale: \"x\" is no f32"},
      {{"--set", "scale=1e39"}, "--set scale: \"1e39\" is no f32"},
      {{"--set", "scale=1"}, "--set scale: one number fills f32[n] only if its sizes are known: give --dim n=SIZE too"},
      {{"--set", "scale=1,2", "--dim", "n=3"}, "--set scale: its contents are [2], but n is fixed to 3"},
      {{"--set", "fast=1,0"}, "--set fast: its contents are [2], but the input is bool[1]"},
      {{"--set", "x=1,2"}, "--set x: a list is for one axis, and the input is f32[batch_size, 96]; give a .npy file"},
  };
  for (const auto& [flags, error] : wrong) {
    std::vector<std::string> args = {"show", model};
    args.insert(args.end(), flags.begin(), flags.end());
    const CommandResult result = RunLlmc(args);
    EXPECT_EQ(result.exit_code, 1) << flags[1] << result.out;
    EXPECT_THAT(result.err, HasSubstr(error));
  }
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--dim", "n"},
                                             {"--dim", "n=-1"},
                                             {"--dim", "n=x"},
                                             {"--dim", "=3"},
                                             {"--set", "x"},
                                             {"--set", "=3"},
                                             {"--dim", "n=1", "--dim", "n=1"},
                                             {"--set", "x=1", "--set", "x=1"}}) {
    std::vector<std::string> args = {"show", model};
    args.insert(args.end(), flags.begin(), flags.end());
    EXPECT_EQ(RunLlmc(args).exit_code, 2) << flags[1];
  }
  const CommandResult folder = RunLlmc({"show", ShippedModel(), "--dim", "T=1"});
  EXPECT_EQ(folder.exit_code, 1);
  EXPECT_THAT(folder.err, HasSubstr("--dim and --set are for ONNX files and dumps"));
}

// Of int32 and int64, and of a default that the file gives.
TEST(Fixed, IntegersAreInTheRangeOfTheirType) {
  onnx::ModelProto model = Base();
  *model.mutable_graph()->add_input() = Info("k", {}, onnx::TensorProto::INT32);
  onnx::TensorProto* standard = model.mutable_graph()->add_initializer();
  standard->set_name("k");
  standard->set_data_type(onnx::TensorProto::INT32);
  standard->add_int32_data(5);
  AddNode(&model, "Identity", {"k"}, {"z"});
  *model.mutable_graph()->add_output() = Info("z", {}, onnx::TensorProto::INT32);
  const std::string path = WriteFixed("default.onnx", model);
  EXPECT_THAT(RunLlmc({"show", path, "--ir"}).out, HasSubstr("constant {value = 5}"));
  EXPECT_THAT(RunLlmc({"show", path, "--ir", "--set", "k=-7"}).out, HasSubstr("constant {value = -7}"));
  EXPECT_THAT(RunLlmc({"show", path, "--set", "k=2147483648"}).err, HasSubstr("\"2147483648\" is no i32"));
}

}  // namespace
}  // namespace llmc
