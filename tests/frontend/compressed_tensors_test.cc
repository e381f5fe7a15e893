// Checkpoints of compressed-tensors: how integers are packed, caches and inputs, and settings.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "frontend/import.h"
#include "ir/text.h"
#include "tests/frontend/packed_model.h"
#include "tests/frontend/test_folder.h"

namespace llmc {
namespace {

struct PackedCase {
  int bits = 4;
  std::string strategy = "group";  // of 32
  bool symmetric = false;
  bool across = false;       // codes begin in one word and end in the next, else 32 / bits whole ones are in each
  bool plain_zeros = false;  // i8, as the scales
  int64_t mlp = 96;
};

json ConfigOf(const PackedCase& c) {
  json config = PackQuantized(c.bits, 32, c.symmetric, "");
  json& weights = config["config_groups"]["group_0"]["weights"];
  weights["strategy"] = c.strategy;
  if (c.strategy != "group") weights["group_size"] = nullptr;
  return config;
}

// [words, lines], or [lines, words].
Tensor PackedLines(std::vector<std::vector<int64_t>> lines, const PackedCase& c, bool along_last) {
  if (c.across || 32 % c.bits == 0) return WordsOf(lines, c.bits, along_last);
  const size_t of_word = static_cast<size_t>(32 / c.bits);
  for (auto& line : lines) {
    std::vector<int64_t> words((line.size() + of_word - 1) / of_word);
    for (size_t i = 0; i < line.size(); ++i)
      words[i / of_word] |= line[i] << (i % of_word * static_cast<size_t>(c.bits));
    line = words;
  }
  return WordsOf(lines, 32, along_last);
}

std::vector<float> PackIntegers(const PackedCase& c, const Matrix& m, Draw& draw, NamedTensors* t) {
  const bool is_one = c.strategy == "tensor";
  const int64_t codes = int64_t{1} << c.bits, group = c.strategy == "group" ? 32 : m.in, groups = m.in / group;
  std::vector<std::vector<int64_t>> rows(static_cast<size_t>(m.out)), zeros(static_cast<size_t>(groups));
  for (auto& row : rows) row = draw.Codes(m.in, codes);
  for (auto& column : zeros) {
    column = draw.Codes(m.out, codes);
    if (is_one || c.symmetric) std::fill(column.begin(), column.end(), c.symmetric ? codes / 2 : 3);
  }
  Tensor scales(DType::kBF16, is_one ? Shape{1} : Shape{m.out, groups});
  Tensor plain_zeros(DType::kI8, scales.shape());
  for (int64_t i = 0; i < scales.size(); ++i) {
    scales.SetFloat(i, draw.Scale());
    plain_zeros.SetInt(i, zeros[static_cast<size_t>(i % groups)][static_cast<size_t>(i / groups)] - codes / 2);
  }
  std::vector<float> numbers;
  for (int64_t n = 0; n < m.out; ++n) {
    for (int64_t k = 0; k < m.in; ++k) {
      const int64_t code = rows[static_cast<size_t>(n)][static_cast<size_t>(k)] -
                           zeros[static_cast<size_t>(k / group)][static_cast<size_t>(n)];
      const int64_t at = is_one ? 0 : n * groups + k / group;
      numbers.push_back(static_cast<float>(static_cast<double>(code) * scales.GetFloat(at)));
    }
  }
  (*t)[m.module + ".weight_packed"] = PackedLines(rows, c, true);
  (*t)[m.module + ".weight_scale"] = scales;
  (*t)[m.module + ".weight_shape"] = Tensor::FromValues(DType::kI64, {2}, std::vector<int64_t>{m.out, m.in});
  if (c.symmetric) return numbers;
  (*t)[m.module + ".weight_zero_point"] = is_one || c.plain_zeros ? plain_zeros : PackedLines(zeros, c, false);
  return numbers;
}

// That the packed model gives the logits of the same numbers in floats.
void ExpectAgreement(const PackedCase& c) {
  SCOPED_TRACE(
      absl::StrCat(c.bits, " bits, ", c.strategy, c.symmetric ? ", symmetric" : "", c.across ? ", across" : ""));
  NamedTensors packed, plain;
  AddUnquantized(&packed);
  AddUnquantized(&plain);
  Draw draw(17);
  for (Matrix m : kMatrices) {
    if (m.out == 96) m.out = c.mlp;
    if (m.in == 96) m.in = c.mlp;
    plain[m.module + ".weight"] = Tensor::FromValues(DType::kF32, {m.out, m.in}, PackIntegers(c, m, draw, &packed));
  }
  const TestFolder quantized, floats;
  json config = SmallConfig();
  config["intermediate_size"] = c.mlp;
  WriteFolder(floats, config, plain);
  config["quantization_config"] = ConfigOf(c);
  WriteFolder(quantized, config, packed);
  ExpectLogitsOf(floats.path(), quantized.path());
}

TEST(CompressedTensors, OneZeroPointForAllIsNotPacked) {
  for (const int bits : {3, 4, 8}) ExpectAgreement({.bits = bits, .strategy = "tensor"});
  ExpectAgreement({.bits = 4, .strategy = "tensor", .symmetric = true});
}

TEST(CompressedTensors, ZeroPointsThatAreNotPacked) {
  ExpectAgreement({.bits = 4, .plain_zeros = true});
  ExpectAgreement({.bits = 8, .strategy = "channel", .plain_zeros = true});
}

TEST(CompressedTensors, CodesAcrossWords) {
  for (const int bits : {3, 5, 6, 7}) {
    for (const bool across : {false, true}) {
      ExpectAgreement({.bits = bits, .symmetric = true, .across = across});
      ExpectAgreement({.bits = bits, .strategy = "channel", .across = across});
    }
  }
}

// 40 codes of 6 bits are 8 words in either way.
TEST(CompressedTensors, AsManyWordsInEitherPacking) {
  for (const bool across : {false, true}) {
    ExpectAgreement({.bits = 6, .strategy = "channel", .across = across, .mlp = 40});
  }
}

// Two modules that cannot be made of what is stored: both are named, and nothing else happens.
TEST(CompressedTensors, DamagedModulesAreNamed) {
  for (const std::string strategy : {"tensor", "group"}) {
    const PackedCase c = {.bits = 8, .strategy = strategy};
    NamedTensors tensors;
    AddUnquantized(&tensors);
    Draw draw(17);
    for (const Matrix& m : kMatrices) {
      PackIntegers(c, m, draw, &tensors);
      if (!m.module.ends_with("k_proj") && !m.module.ends_with("up_proj")) continue;
      tensors[m.module + ".weight_zero_point"] = Tensor(DType::kI32, {3, 5});
      tensors[m.module + ".weight_scale"] = Tensor(DType::kF32, {7});
    }
    const TestFolder folder;
    json config = SmallConfig();
    config["quantization_config"] = ConfigOf(c);
    WriteFolder(folder, config, tensors);
    const absl::Status status = ImportHuggingFace(folder.path()).status();
    for (const char* part : {"k_proj.weight_zero_point is i32[3, 5]", "up_proj.weight_zero_point is i32[3, 5]",
                             "k_proj.weight_scale is f32[7]", "up_proj.weight_scale is f32[7]"}) {
      EXPECT_TRUE(absl::StrContains(status.message(), part)) << part << ": " << status;
    }
    EXPECT_FALSE(absl::StrContains(status.message(), "q_proj")) << status;
  }
}

// ---- keys, values and inputs --------------------------------------------------------------------------------------

const json kF8 = {{"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"strategy", "tensor"}, {"dynamic", false}};

// Weights in floats, with what there is besides.
NamedTensors PlainTensors() {
  NamedTensors tensors;
  AddUnquantized(&tensors);
  Draw draw(17);
  for (const Matrix& m : kMatrices) {
    Tensor x(DType::kF32, {m.out, m.in});
    for (int64_t i = 0; i < x.size(); ++i) x.SetFloat(i, 4 * (draw.Scale() - 0.01));
    tensors[m.module + ".weight"] = x;
  }
  return tensors;
}

// Only keys and values were quantized, and queries: weights are floats, and the cache takes the scales where it is
// asked.
TEST(CompressedTensors, OnlyCachesAreQuantized) {
  const json attention = {{"targets", {"LlamaAttention"}}, {"weights", nullptr}, {"input_activations", kF8}};
  const json method = {{"quant_method", "compressed-tensors"}, {"format", "dense"}, {"version", "0.20.0"}};
  const json modelopt = {{"quant_method", "modelopt"}, {"quant_algo", nullptr}, {"kv_cache_quant_algo", "FP8"}};
  json none = method, empty = method, of_attention = method;
  none["kv_cache_scheme"] = empty["kv_cache_scheme"] = of_attention["kv_cache_scheme"] = kF8;
  empty["config_groups"] = json::object();
  of_attention["config_groups"] = {{"group_0", attention}};
  NamedTensors tensors = PlainTensors();
  const TestFolder floats;
  WriteFolder(floats, SmallConfig(), tensors);
  const std::string module = "model.layers.0.self_attn.";
  for (const char* scale : {"k_scale", "v_scale", "q_scale"}) {
    tensors[module + scale] = Tensor::FromValues(DType::kBF16, {1}, std::vector<double>{0.25});
    tensors[absl::StrCat(module, std::string(1, *scale), "_zero_point")] = Tensor(DType::kF8E4M3, {1});
  }
  for (const json& quantization : {none, empty, of_attention, modelopt}) {
    const TestFolder folder;
    json config = SmallConfig();
    config["quantization_config"] = quantization;
    WriteFolder(folder, config, tensors);
    ExpectLogitsOf(floats.path(), folder.path());
    const auto model =
        ImportHuggingFace(folder.path(), nullptr, {}, DecoderForm::kServed, {.kv = QuantizedUse::Kv::kAsCheckpoint});
    ASSERT_TRUE(model.ok()) << model.status();
    const std::string text = PrintModel(**model);
    EXPECT_TRUE(absl::StrContains(text, "f8e4m3 per=tensor scale=f32")) << quantization;
    EXPECT_FALSE(absl::StrContains(text, "codes")) << quantization;
  }
}

// A scale for each head of a layer, which only floats and scales of tokens go without.
TEST(CompressedTensors, CachesWithScalesOfHeads) {
  json quantization = {{"quant_method", "compressed-tensors"}, {"config_groups", json::object()}};
  quantization["kv_cache_scheme"] = kF8;
  quantization["kv_cache_scheme"]["strategy"] = "attn_head";
  NamedTensors tensors = PlainTensors();
  for (const char* scale : {"k_scale", "v_scale"}) {
    tensors[absl::StrCat("model.layers.0.self_attn.", scale)] =
        Tensor::FromValues(DType::kBF16, {1, 1, 1}, std::vector<double>{0.25});
  }
  const TestFolder folder;
  json config = SmallConfig();
  config["quantization_config"] = quantization;
  WriteFolder(folder, config, tensors);
  EXPECT_TRUE(ImportHuggingFace(folder.path()).ok());
  const absl::Status status =
      ImportHuggingFace(folder.path(), nullptr, {}, DecoderForm::kServed, {.kv = QuantizedUse::Kv::kAsCheckpoint})
          .status();
  EXPECT_TRUE(Says(status,
                   "f8e4m3 with static scales of more than one for a layer is not supported; leave out "
                   "--kv=checkpoint, or say --kv=f8e4m3"));
}

// Zero points of inputs: any of inputs that have some, zeros of those that are symmetric.
absl::Status ImportWithInputZero(bool symmetric, DType type, double zero, bool activations) {
  NamedTensors tensors;
  AddUnquantized(&tensors);
  Draw draw(17);
  for (const Matrix& m : kMatrices) {
    PackIntegers({.bits = 8, .strategy = "channel", .symmetric = true}, m, draw, &tensors);
    tensors[m.module + ".input_scale"] = Tensor::FromValues(DType::kBF16, {1}, std::vector<double>{0.05});
    tensors[m.module + ".input_zero_point"] = Tensor::FromValues(type, {1}, std::vector<double>{zero});
  }
  json quantization = ConfigOf({.bits = 8, .strategy = "channel", .symmetric = true});
  json inputs = kF8;
  inputs["symmetric"] = symmetric;
  if (type == DType::kI8) inputs["type"] = "int";
  quantization["config_groups"]["group_0"]["input_activations"] = inputs;
  const TestFolder folder;
  json config = SmallConfig();
  config["quantization_config"] = quantization;
  WriteFolder(folder, config, tensors);
  return ImportHuggingFace(folder.path(), nullptr, {}, DecoderForm::kHiddenStates, {.activations = activations})
      .status();
}

TEST(CompressedTensors, ZeroPointsOfInputs) {
  EXPECT_TRUE(ImportWithInputZero(true, DType::kI8, 0, false).ok());
  EXPECT_TRUE(ImportWithInputZero(true, DType::kI8, 0, true).ok());
  EXPECT_TRUE(ImportWithInputZero(true, DType::kF8E4M3, 0, false).ok());
  EXPECT_TRUE(ImportWithInputZero(true, DType::kF8E4M3, 0, true).ok());
  EXPECT_TRUE(ImportWithInputZero(false, DType::kI8, -17, false).ok());
  EXPECT_TRUE(Says(ImportWithInputZero(true, DType::kI8, -17, false),
                   "q_proj.input_zero_point has numbers other than 0, but config.json says that they are symmetric"));
  EXPECT_TRUE(Says(ImportWithInputZero(false, DType::kI8, -17, true), "no inputs of layers can be quantized"));
}

// ---- how settings are written -------------------------------------------------------------------------------------

TEST(CompressedTensors, SettingsInOtherWords) {
  const PackedCase c = {.bits = 4, .symmetric = true};
  const auto with = [&](const std::string& key, const json& value) {
    json config = ConfigOf(c);
    config["config_groups"]["group_0"]["weights"][key] = value;
    return config;
  };
  const auto pack = [&](const Matrix& m, Draw& draw, NamedTensors* t) { return PackIntegers(c, m, draw, t); };
  for (const json& config : {with("actorder", false), with("type", "INT"), with("strategy", "GROUP")}) {
    EXPECT_EQ(ExpectSameNumbers(config, pack), "int4 group=32 scale=bf16");
  }
}

TEST(CompressedTensors, OldPlacesOfTheConfiguration) {
  const PackedCase c = {.bits = 4, .symmetric = true};
  const auto pack = [&](const Matrix& m, Draw& draw, NamedTensors* t) { return PackIntegers(c, m, draw, t); };
  const json nested = {
      {"quant_method", "compressed-tensors"}, {"quantization_config", ConfigOf(c)}, {"sparsity_config", nullptr}};
  EXPECT_EQ(ExpectSameNumbers(nested, pack), "int4 group=32 scale=bf16");
  const TestFolder floats, quantized, old;
  const NamedTensors plain = WritePacked(ConfigOf(c), pack, quantized);
  WriteFolder(floats, SmallConfig(), plain);
  json config = SmallConfig();
  config["compression_config"] = ConfigOf(c);
  config["compression_config"].erase("quant_method");  // the key says it
  const absl::StatusOr<NamedTensors> packed = ReadSafetensors(quantized / "model.safetensors");
  ASSERT_TRUE(packed.ok()) << packed.status();
  WriteFolder(old, config, *packed);
  ExpectLogitsOf(floats.path(), old.path());
}

// A g_idx that says nothing, without actorder.
TEST(CompressedTensors, GroupsInOrder) {
  const PackedCase c = {.bits = 4, .symmetric = true};
  for (const bool is_none : {false, true}) {
    const auto pack = [&](const Matrix& m, Draw& draw, NamedTensors* t) {
      Tensor& groups = (*t)[m.module + ".weight_g_idx"] = Tensor(DType::kI32, {m.in});
      for (int64_t k = 0; k < m.in; ++k) groups.SetInt(k, is_none ? -1 : k / 32);
      return PackIntegers(c, m, draw, t);
    };
    EXPECT_EQ(ExpectSameNumbers(ConfigOf(c), pack), "int4 group=32 scale=bf16");
  }
}

// With actorder "group" nothing can be read without g_idx, since nobody knows which columns a group has.
TEST(CompressedTensors, AnOrderThatIsMissingIsNamed) {
  for (const bool is_empty : {false, true}) {
    const auto pack = [&](const Matrix& m, Draw& draw, NamedTensors* t) {
      Tensor groups(DType::kI32, {m.module.ends_with("k_proj") && is_empty ? 0 : m.in});
      for (int64_t k = 0; k < groups.size(); ++k) groups.SetInt(k, k / 32);
      if (is_empty || !m.module.ends_with("k_proj")) (*t)[m.module + ".weight_g_idx"] = groups;
      return PackIntegers({.bits = 4, .symmetric = true}, m, draw, t);
    };
    const TestFolder folder;
    WritePacked(PackQuantized(4, 32, true, "group"), pack, folder);
    const absl::Status status = ImportHuggingFace(folder.path()).status();
    EXPECT_TRUE(absl::StrContains(status.message(), "k_proj.weight_g_idx")) << status;
    EXPECT_FALSE(absl::StrContains(status.message(), "q_proj")) << status;
  }
}

// Integers of 8 bits that are not packed have orders, too; of modules that saw no tokens they are -1.
TEST(CompressedTensors, BytesWithColumnsInAnotherOrder) {
  for (const bool is_none : {false, true}) {
    const auto pack = [&](const Matrix& m, Draw& draw, NamedTensors* t) {
      const int64_t groups = m.in / 32;
      Tensor codes(DType::kI8, {m.out, m.in}), scales(DType::kF32, {m.out, groups}), order(DType::kI32, {m.in});
      for (int64_t i = 0; i < codes.size(); ++i) codes.SetInt(i, draw.Below(255) - 127);
      for (int64_t i = 0; i < scales.size(); ++i) scales.SetFloat(i, draw.Scale() / 16);
      std::vector<float> numbers;
      for (int64_t i = 0; i < codes.size(); ++i) {
        const int64_t k = i % m.in, group = is_none ? k / 32 : k % groups;
        order.SetInt(k, is_none ? -1 : group);
        numbers.push_back(static_cast<float>(codes.GetFloat(i) * scales.GetFloat(i / m.in * groups + group)));
      }
      (*t)[m.module + ".weight"] = codes;
      (*t)[m.module + ".weight_scale"] = scales;
      (*t)[m.module + ".weight_g_idx"] = order;
      return numbers;
    };
    json config = PackQuantized(8, 32, true, "group");
    config["format"] = "int-quantized";
    config["run_compressed"] = true;  // how a program loads it
    EXPECT_EQ(ExpectSameNumbers(config, pack), "int8 group=32 scale=f32");
  }
}

// Floats of 8 bits with scales of blocks that are exponents, as u8 or as F8_E8M0, which is read as that.
TEST(CompressedTensors, BlocksWithExponents) {
  const auto pack = [](const Matrix& m, Draw& draw, NamedTensors* t) {
    const int64_t rows = (m.out + 39) / 40, columns = (m.in + 23) / 24;
    Tensor codes(DType::kF8E4M3, {m.out, m.in}), scales(DType::kU8, {rows, columns});
    for (int64_t i = 0; i < codes.size(); ++i) codes.SetFloat(i, static_cast<double>(draw.Below(33) - 16) / 4);
    for (int64_t i = 0; i < scales.size(); ++i) scales.SetInt(i, 118 + draw.Below(4));
    std::vector<float> numbers;
    for (int64_t n = 0; n < m.out; ++n) {
      for (int64_t k = 0; k < m.in; ++k) {
        const auto exponent = static_cast<int>(scales.GetInt(n / 40 * columns + k / 24)) - 127;
        numbers.push_back(static_cast<float>(std::ldexp(codes.GetFloat(n * m.in + k), exponent)));
      }
    }
    (*t)[m.module + ".weight"] = codes;
    (*t)[m.module + ".weight_scale"] = scales;
    return numbers;
  };
  for (const json& block : {json("40x24"), json({40, 24})}) {
    json config = PackQuantized(8, 32, true, "");
    config["format"] = "float-quantized";
    config["config_groups"]["group_0"]["weights"] = {
        {"num_bits", 8}, {"type", "float"}, {"strategy", "block"}, {"block_structure", block}};
    EXPECT_EQ(ExpectSameNumbers(config, pack), "f8e4m3 block=40x24 scale=f32");
  }
}

}  // namespace
}  // namespace llmc
