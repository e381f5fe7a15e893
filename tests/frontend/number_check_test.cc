// NaN and infinities among codes and scales are found, wherever they are.
#include "frontend/huggingface/number_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "frontend/formats/gguf.h"
#include "frontend/import.h"
#include "ir/superblocks.h"
#include "tests/frontend/packed_model.h"
#include "tests/frontend/test_folder.h"
#include "tests/shared_data.h"

namespace llmc {
namespace {

constexpr int64_t kMany = (int64_t{5} << 20) + 3;  // several parts, and an end that is no whole word

TEST(NumberCheck, FindsTheFirstCodeThatIsNoNumber) {
  struct Case {
    DType dtype;
    std::vector<int> bad, good;
  };
  for (const Case& c : {Case{DType::kF8E4M3, {0x7f, 0xff}, {0x7e, 0xfe, 0x80}},
                        Case{DType::kF8E5M2, {0x7c, 0x7f, 0xfc, 0xff}, {0x7b, 0xfb, 0x80}}}) {
    for (const int64_t at : {int64_t{0}, int64_t{8}, int64_t{3} << 20, kMany - 1}) {
      Tensor codes(c.dtype, {kMany});
      auto* bytes = codes.mutable_data<uint8_t>();
      for (const int code : c.good) {
        bytes[at] = static_cast<uint8_t>(code);
        EXPECT_EQ(hf::FirstNotFinite(codes), std::nullopt) << code << " at " << at;
      }
      for (const int code : c.bad) {
        bytes[kMany - 1] = bytes[at] = static_cast<uint8_t>(code);
        EXPECT_EQ(hf::FirstNotFinite(codes), at) << code;
      }
    }
  }
}

TEST(NumberCheck, FindsTheFirstFloatThatIsNoNumber) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    SCOPED_TRACE(DTypeName(dtype));
    constexpr int64_t kCount = (int64_t{1} << 20) + 3;
    Tensor numbers(dtype, {kCount});
    for (const int64_t at : {int64_t{0}, int64_t{5}, int64_t{700'000}, kCount - 1}) {
      numbers.SetFloat(at, -60000);  // near the end of f16
      EXPECT_EQ(hf::FirstNotFinite(numbers), std::nullopt) << at;
      for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
        numbers.SetFloat(at, bad);
        EXPECT_EQ(hf::FirstNotFinite(numbers), at) << bad;
      }
      numbers.SetFloat(at, 0);
    }
  }
  EXPECT_EQ(hf::FirstNotFinite(Tensor(DType::kF32, {0, 3})), std::nullopt);
  EXPECT_EQ(hf::PlaceOf(7, {2, 2, 3}), "[1, 0, 1]");
}

TEST(NumberCheck, FindsTheFirstSuperblockWithABadScale) {
  for (const EncodingFormat& format : SuperblockFormats()) {
    SCOPED_TRACE(format.name);
    const int64_t count = (int64_t{3} << 20) / format.superblock_bytes;
    Tensor blocks(DType::kU8, {count * format.superblock_bytes});
    EXPECT_EQ(hf::FirstBadSuperblock(blocks, format), std::nullopt);
    for (const int at : format.halves_at) {
      if (at < 0) continue;
      for (const int64_t block : {count - 1, count / 2, int64_t{0}}) {
        auto* half = blocks.mutable_data<uint8_t>() + block * format.superblock_bytes + at;
        half[1] = 0xfb;
        EXPECT_NE(hf::FirstBadSuperblock(blocks, format), block);
        half[1] = 0xfc;
        EXPECT_EQ(hf::FirstBadSuperblock(blocks, format), block);
      }
      std::fill_n(blocks.mutable_data<uint8_t>(), blocks.size(), 0);
    }
  }
}

TEST(NumberCheck, ImportsNameTheTensor) {
  NamedTensors tensors;
  AddUnquantized(&tensors);
  for (const Matrix& m : kMatrices) {
    tensors[m.module + ".weight"] = Tensor(DType::kF8E4M3, {m.out, m.in});
    tensors[m.module + ".weight_scale"] = Tensor::FromValues(DType::kF32, {1}, std::vector<float>{0.5f});
  }
  const auto import = [&] {
    const TestFolder folder;
    json config = SmallConfig();
    config["quantization_config"] = {{"quant_method", "fp8"}};
    WriteFolder(folder, config, tensors);
    return ImportHuggingFace(folder.path()).status();
  };
  EXPECT_TRUE(import().ok()) << import();
  tensors["model.layers.0.mlp.down_proj.weight"].mutable_data<uint8_t>()[96 * 7 + 5] = 0xff;
  EXPECT_TRUE(Says(import(), "model.layers.0.mlp.down_proj.weight[7, 5] is NaN"));
}

TEST(NumberCheck, GgufFilesNameTheTensor) {
  const std::string data = SharedData("quant");
  if (data.empty()) GTEST_SKIP() << "the shared test data is not there";
  const std::string source = data + "/gguf-q4_k/model.gguf";
  const auto file = ReadGgufModelFiles(source);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string name = "blk.1.ffn_up.weight";
  const Tensor& tensor = file->tensors.at(name);
  ASSERT_EQ(file->encodings.at(name)->text, "q4_k");
  std::ifstream in(source, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  // The minimum of the first block of row 2.
  const int64_t at = tensor.raw() - file->files.at("model.gguf").get() + 2 * tensor.shape()[1] + 2;
  bytes[at] = 0;
  bytes[at + 1] = '\x7c';
  const TestFolder folder;
  const absl::Status status = ImportModel(folder.Write("model.gguf", bytes)).status();
  EXPECT_TRUE(Says(status, "a scale of block 0 of row 2 is NaN or infinite (q4_k)")) << status;
  EXPECT_TRUE(Says(status, name)) << status;
}

}  // namespace
}  // namespace llmc
