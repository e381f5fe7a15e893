// Small ONNX models for tests, and a folder to import them from.
#pragma once

#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/import.h"
#include "frontend/onnx/import.h"

namespace llmc {

// A folder of its own, removed afterwards.
class OnnxTest : public testing::Test {
 protected:
  OnnxTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "llmc-onnx-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~OnnxTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path Write(const std::string& bytes, const std::string& name = "model.onnx") {
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
  std::vector<std::string> WarningsOf(const onnx::ModelProto& model) {
    const auto report = CheckOnnx(Write(model.SerializeAsString()).string());
    return report.ok() ? report->warnings : std::vector<std::string>{std::string(report.status().message())};
  }

  std::filesystem::path folder_;
};

inline onnx::ValueInfoProto Info(const std::string& name, std::vector<int64_t> dims,
                                 int type = onnx::TensorProto::FLOAT) {
  onnx::ValueInfoProto info;
  info.set_name(name);
  auto* tensor = info.mutable_type()->mutable_tensor_type();
  tensor->set_elem_type(type);
  tensor->mutable_shape();
  for (int64_t dim : dims) tensor->mutable_shape()->add_dim()->set_dim_value(dim);
  return info;
}

inline onnx::NodeProto* AddNode(google::protobuf::RepeatedPtrField<onnx::NodeProto>* nodes, const std::string& op,
                                std::vector<std::string> inputs, std::vector<std::string> outputs,
                                const std::string& name = "") {
  onnx::NodeProto* node = nodes->Add();
  node->set_op_type(op);
  node->set_name(name);
  for (const std::string& input : inputs) node->add_input(input);
  for (const std::string& output : outputs) node->add_output(output);
  return node;
}

inline onnx::NodeProto* AddNode(onnx::ModelProto* model, const std::string& op, std::vector<std::string> inputs,
                                std::vector<std::string> outputs, const std::string& name = "") {
  return AddNode(model->mutable_graph()->mutable_node(), op, std::move(inputs), std::move(outputs), name);
}

inline void SetInt(onnx::NodeProto* node, const std::string& name, int64_t value) {
  auto* attr = node->add_attribute();
  attr->set_name(name);
  attr->set_type(onnx::AttributeProto::INT);
  attr->set_i(value);
}

inline onnx::TensorProto* AddFloats(onnx::ModelProto* model, const std::string& name, std::vector<int64_t> dims,
                                    size_t raw_bytes) {
  auto* tensor = model->mutable_graph()->add_initializer();
  tensor->set_name(name);
  tensor->set_data_type(onnx::TensorProto::FLOAT);
  for (int64_t dim : dims) tensor->add_dims(dim);
  if (raw_bytes > 0) tensor->set_raw_data(std::string(raw_bytes, '\0'));
  return tensor;
}

inline onnx::TensorProto* AddInts(onnx::ModelProto* model, const std::string& name, std::vector<int64_t> values) {
  auto* tensor = model->mutable_graph()->add_initializer();
  tensor->set_name(name);
  tensor->set_data_type(onnx::TensorProto::INT64);
  tensor->add_dims(static_cast<int64_t>(values.size()));
  for (int64_t value : values) tensor->add_int64_data(value);
  return tensor;
}

// y = x + w, with w f32[2, 3].
inline onnx::ModelProto Base() {
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
inline onnx::ModelProto OneNode(const std::string& op, std::vector<std::string> inputs = {"x"}) {
  onnx::ModelProto model = Base();
  model.mutable_graph()->clear_node();
  model.mutable_graph()->clear_initializer();
  AddNode(&model, op, std::move(inputs), {"y"}, "the_node");
  return model;
}

inline onnx::FunctionProto* AddFunction(onnx::ModelProto* model, const std::string& name) {
  auto* function = model->add_functions();
  function->set_name(name);
  function->set_domain("local");
  function->add_opset_import()->set_version(18);
  function->add_input("a");
  function->add_output("r");
  return function;
}

inline onnx::NodeProto* Call(onnx::NodeProto* node) {
  node->set_domain("local");
  return node;
}

}  // namespace llmc
