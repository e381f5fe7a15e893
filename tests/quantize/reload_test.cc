// Folders that are written here are read here: heads, experts whose sizes no block divides, and what is refused instead
// of being written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "quantize/model_folder_writer.h"
#include "quantize/quantize.h"
#include "tests/frontend/packed_model.h"

namespace llmc {
namespace {

using testing::HasSubstr;

constexpr int64_t kExpertCount = 3;

class ReloadTest : public testing::Test {
 protected:
  // A folder in floats, with a head of its own, or with experts of this size.
  static void WriteFloats(const TestFolder& folder, int64_t expert_size = 0) {
    NamedTensors tensors;
    json config = SmallConfig();
    AddUnquantized(&tensors);
    const auto add = [&](const std::string& name, int64_t out, int64_t in) {
      Tensor x(DType::kBF16, {out, in});
      const auto seed = static_cast<double>(tensors.size());
      for (int64_t i = 0; i < x.size(); ++i) x.SetFloat(i, 0.3 * std::sin(11.0 * static_cast<double>(i) + seed));
      tensors[name + ".weight"] = std::move(x);
    };
    for (const Matrix& m : kMatrices) {
      if (expert_size == 0 || absl::StrContains(m.module, "self_attn")) add(m.module, m.out, m.in);
    }
    if (expert_size > 0) {
      config.update({{"architectures", {"MixtralForCausalLM"}},
                     {"num_local_experts", kExpertCount},
                     {"num_experts_per_tok", 2},
                     {"intermediate_size", expert_size}});
      const std::string layer = "model.layers.0.block_sparse_moe.";
      add(layer + "gate", kExpertCount, 64);
      for (int64_t i = 0; i < kExpertCount; ++i) {
        for (const char* part : {"w1", "w3"}) add(absl::StrCat(layer, "experts.", i, ".", part), expert_size, 64);
        add(absl::StrCat(layer, "experts.", i, ".w2"), 64, expert_size);
      }
    }
    WriteFolder(folder, config, tensors);
  }
  static QuantizeRequest Request(const TestFolder& folder, const std::string& output, const std::string& scheme) {
    QuantizeRequest request{.folder = folder.path(), .output = output};
    request.rules = ParseSchemeRules(scheme).value();
    return request;
  }
  // The quantized folder gives the logits of its numbers in floats.
  static void ExpectReads(const TestFolder& folder, const std::string& scheme) {
    SCOPED_TRACE(scheme);
    const TestFolder outputs;
    QuantizeRequest request = Request(folder, outputs / "codes", scheme);
    request.ignore.clear();
    EXPECT_EQ(QuantizeFolder(request).status(), absl::OkStatus());
    request.output = outputs / "floats";
    request.decoded = DType::kF32;
    EXPECT_EQ(QuantizeFolder(request).status(), absl::OkStatus());
    ExpectLogitsOf(outputs / "floats", outputs / "codes");
  }
  static std::string ErrorOf(const QuantizeRequest& request) {
    const absl::Status status = QuantizeFolder(request).status();
    EXPECT_FALSE(std::filesystem::exists(request.output)) << "something was written";
    return std::string(status.message());
  }
};

TEST_F(ReloadTest, HeadsOfBitsAndBytes) {
  const TestFolder folder;
  WriteFloats(folder);
  for (const char* scheme : {"llm.int8", "nf4", "nf4:double"})
    ExpectReads(folder, absl::StrCat("down_proj=none,*=", scheme));
}

TEST_F(ReloadTest, ExpertsOfNoWholeBlocks) {
  for (const int64_t size : {64, 192, 128}) {
    SCOPED_TRACE(size);
    const TestFolder folder;
    WriteFloats(folder, size);
    ExpectReads(folder, "fp8-block:weight-only");
  }
}

TEST_F(ReloadTest, ExpertsMustBeAlike) {
  const TestFolder folder, outputs;
  WriteFloats(folder, 64);
  EXPECT_THAT(ErrorOf(Request(folder, outputs / "a", "experts.0.*=int4:g32,*=int4:g16")),
              HasSubstr("experts.1.w1 would be made int4 group=16 scale=bf16, but "
                        "model.layers.0.block_sparse_moe.experts.0.w1 made int4 group=32 scale=bf16; all experts"));
  QuantizeRequest request = Request(folder, outputs / "a", "int8");
  request.ignore = {"experts.2.*"};
  EXPECT_THAT(ErrorOf(request), HasSubstr("experts.2.w1 would be left as it is, but"));
  ExpectReads(folder, "w1=int4:g32,*=int4:g16");
}

// Some programs say beside config.json that a folder is quantized.
TEST_F(ReloadTest, FilesBesideTheConfigurationCount) {
  for (const char* file : {"hf_quant_config.json", "quantize_config.json", "quant_config.json"}) {
    const TestFolder folder, outputs;
    WriteFloats(folder);
    folder.Write(file, R"({"bits": 4, "quantization": {"quant_algo": "FP8"}})");
    QuantizeRequest request = Request(folder, outputs / "a", "int8");
    request.ignore.clear();
    EXPECT_THAT(ErrorOf(request), HasSubstr(absl::StrCat(file, " says that it is quantized already")));
  }
}

// What cannot be read does not appear.
TEST(ModelFolder, AppearsWhenItWasChecked) {
  const TestFolder outputs;
  for (const bool is_good : {false, true}) {
    auto writer =
        ModelFolderWriter::Create(outputs / "a", {{"x", {.file = "model.safetensors", .entry = {DType::kF32, {1}}}}});
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE(writer->Write("x", Tensor(DType::kF32, {1})).ok());
    const absl::Status status = writer->Commit([&](const std::string& folder) {
      EXPECT_TRUE(std::filesystem::exists(folder + "/model.safetensors"));
      return is_good ? absl::OkStatus() : absl::InvalidArgumentError("no");
    });
    EXPECT_EQ(status.ok(), is_good);
    EXPECT_EQ(std::filesystem::exists(outputs / "a"), is_good);
  }
}

}  // namespace
}  // namespace llmc
