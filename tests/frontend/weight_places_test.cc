#include "frontend/weight_places.h"

#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>

#include <cstring>

#include "frontend/import.h"
#include "tests/frontend/test_folder.h"

namespace llmc {
namespace {

constexpr int kElements = 100;

std::string Floats(float first) {
  std::vector<float> values(kElements);
  for (int i = 0; i < kElements; ++i) values[i] = first + static_cast<float>(i);
  return std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size());
}

// y = x * a weight of each kind.
class OnnxModel {
 public:
  OnnxModel() {
    model_.set_ir_version(8);
    model_.add_opset_import()->set_version(17);
    graph().set_name("g");
    *graph().add_input() = Info("x");
  }

  onnx::TensorProto* Add(const std::string& name) {
    onnx::TensorProto* tensor = graph().add_initializer();
    tensor->set_name(name);
    tensor->set_data_type(onnx::TensorProto::FLOAT);
    tensor->add_dims(kElements);
    onnx::NodeProto* node = graph().add_node();
    node->set_op_type("Mul");
    node->add_input("x");
    node->add_input(name);
    node->add_output("y_" + name);
    *graph().add_output() = Info("y_" + name);
    return tensor;
  }
  void AddExternal(const std::string& name, const std::string& file, int64_t offset) {
    onnx::TensorProto* tensor = Add(name);
    tensor->set_data_location(onnx::TensorProto::EXTERNAL);
    onnx::StringStringEntryProto* entry = tensor->add_external_data();
    entry->set_key("location");
    entry->set_value(file);
    entry = tensor->add_external_data();
    entry->set_key("offset");
    entry->set_value(absl::StrCat(offset));
  }
  std::string Bytes() const { return model_.SerializeAsString(); }

 private:
  onnx::GraphProto& graph() { return *model_.mutable_graph(); }
  static onnx::ValueInfoProto Info(const std::string& name) {
    onnx::ValueInfoProto info;
    info.set_name(name);
    info.mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
    info.mutable_type()->mutable_tensor_type()->mutable_shape()->add_dim()->set_dim_value(kElements);
    return info;
  }

  onnx::ModelProto model_;
};

TEST(LocateWeights, InOnnxFilesAndTheirExternalData) {
  TestFolder folder;
  std::filesystem::create_directory(folder / "sub");
  folder.Write("data.bin", "1234" + Floats(10) + Floats(20));
  folder.Write("sub/odd.bin", "1" + Floats(30));
  OnnxModel onnx;
  // Of four names of growing length, three at least leave their data unaligned.
  for (const std::string name : {"raw", "raw_", "raw__", "raw___"}) onnx.Add(name)->set_raw_data(Floats(1));
  onnx.AddExternal("first", "data.bin", 4);
  onnx.AddExternal("second", "data.bin", 404);
  onnx.AddExternal("unaligned", "sub/odd.bin", 1);
  onnx::TensorProto* typed = onnx.Add("typed");
  for (int i = 0; i < kElements; ++i) typed->add_float_data(1);
  const std::string bytes = onnx.Bytes();
  auto model = ImportOnnx(folder.Write("m.onnx", bytes));
  ASSERT_TRUE(model.ok()) << model.status();
  auto places = LocateWeights(**model, folder.path());
  ASSERT_TRUE(places.ok()) << places.status();
  ASSERT_EQ(places->size(), 7u);
  EXPECT_FALSE(places->contains("@typed"));
  for (const char* name : {"@raw", "@raw_", "@raw__", "@raw___"}) {
    ASSERT_TRUE(places->contains(name)) << name;
    EXPECT_EQ((*places)[name].file, "m.onnx");
    EXPECT_EQ(bytes.substr((*places)[name].offset, 4 * kElements), Floats(1));
  }
  EXPECT_EQ((*places)["@first"].file, "data.bin");
  EXPECT_EQ((*places)["@first"].offset, 4);
  EXPECT_EQ((*places)["@second"].offset, 404);
  EXPECT_EQ((*places)["@unaligned"].file, "sub/odd.bin");
  EXPECT_EQ((*places)["@unaligned"].offset, 1);

  // What a pass made of a weight is nowhere in a file.
  (*model)->data["@first"] = Tensor(DType::kF32, {kElements});
  EXPECT_FALSE(LocateWeights(**model, folder.path())->contains("@first"));
}

TEST(LocateWeights, InSafetensorsFiles) {
  TestFolder folder;
  const std::string header = R"({"__metadata__":{"a":"b"},"v":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("w":{"dtype":"F32","shape":[100],"data_offsets":[1,401]}})";
  const std::string bytes = SafetensorsBytes(header, "v" + Floats(1));
  folder.Write("m.safetensors", bytes);
  Model model;
  model.AddWeight("@w", {DType::kF32, {kElements}}, "m.safetensors#w");
  model.AddWeight("@tied", {DType::kF32, {kElements}}, "m.safetensors#w");
  model.AddWeight("@other", {DType::kF32, {kElements}}, "m.safetensors#w");
  model.AddWeight("@absent", {DType::kF32, {kElements}}, "m.safetensors#absent");
  for (const char* name : {"@other", "@absent"}) model.data[name] = Tensor(DType::kF32, {kElements});
  Tensor tensor(DType::kF32, {kElements});
  std::memcpy(tensor.mutable_raw(), Floats(1).data(), 4 * kElements);
  for (const char* name : {"@w", "@tied"}) model.data[name] = tensor;
  auto places = LocateWeights(model, folder.path());
  ASSERT_TRUE(places.ok()) << places.status();
  EXPECT_EQ(places->size(), 2u);
  EXPECT_EQ((*places)["@w"].file, "m.safetensors");
  EXPECT_EQ(bytes.substr((*places)["@w"].offset, 4 * kElements), Floats(1));
  EXPECT_EQ((*places)["@tied"].offset, (*places)["@w"].offset);

  folder.Write("m.safetensors", "short");
  EXPECT_TRUE(Says(LocateWeights(model, folder.path()).status(), "m.safetensors"));
}

}  // namespace
}  // namespace llmc
