// Hostile external data of ONNX files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/import.h"
#include "tests/frontend/onnx_builder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class MalformedData : public OnnxTest {
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

TEST_F(MalformedData, InsideTheFolderIsRead) {
  EXPECT_EQ(Error({{"location", "data.bin"}, {"offset", "400"}, {"length", "400"}}), "no error");
  const Tensor& tensor = (*model_)->data.at("@bad");
  EXPECT_EQ(tensor.bytes(), 400);
  EXPECT_EQ(tensor.raw()[3], static_cast<char>(403 % 7));
  EXPECT_EQ(Error({{"location", "sub/data.bin"}, {"offset", "600"}}), "no error");
  EXPECT_EQ(Error({{"location", "data.bin"}}), "no error");
}

TEST_F(MalformedData, Locations) {
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

TEST_F(MalformedData, OffsetsAndLengths) {
  for (const char* offset : {"-1", "9223372036854775808", "9223372036854775807", "18446744073709551615", "601", "1000",
                             "1001", "abc", "", " 1", "1 ", "0x10", "1e2", "+1"}) {
    EXPECT_THAT(Error({{"location", "data.bin"}, {"offset", offset}}), HasSubstr("\"bad\"")) << offset;
  }
  for (const char* length : {"-1", "0", "399", "401", "9223372036854775808", "abc", ""}) {
    EXPECT_THAT(Error({{"location", "data.bin"}, {"length", length}}), AllOf(HasSubstr("\"bad\""), HasSubstr("length")))
        << length;
  }
}

TEST_F(MalformedData, Keys) {
  for (const char* key : {"__class__", "basepath", "Location", "", "location ", "offset\n"}) {
    EXPECT_THAT(Error({{"location", "data.bin"}, {key, "1"}}), AllOf(HasSubstr("\"bad\""), HasSubstr("unknown key")))
        << key;
  }
  EXPECT_THAT(Error({{"offset", "0"}}), HasSubstr("no location"));
  EXPECT_THAT(Error({{"location", "data.bin"}, {"location", "data.bin"}}), HasSubstr("twice"));
}

TEST_F(MalformedData, DataInTheFileToo) {
  onnx::ModelProto model = Base();
  auto* tensor = AddFloats(&model, "bad", {1}, 4);
  tensor->set_data_location(onnx::TensorProto::EXTERNAL);
  EXPECT_THAT(ErrorOf(model), HasSubstr("external data and data in the file"));
}

// A constant in a node's attribute goes through the same checks as an initializer.
TEST_F(MalformedData, InAConstantsAttribute) {
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
TEST_F(MalformedData, HardLinksAreFiles) {
  const fs::path outside = folder_.string() + "-outside.bin";
  fs::copy_file(folder_ / "data.bin", outside);
  fs::create_hard_link(outside, folder_ / "hard.bin");
  EXPECT_EQ(Error({{"location", "hard.bin"}}), "no error");
  fs::remove(outside);
}

}  // namespace
}  // namespace llmc
