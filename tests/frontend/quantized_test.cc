// Quantized Hugging Face folders. Small models are packed here, by what the formats' papers and files say, beside the
// same model in plain floats: both must compute the same. Checkpoints made by the formats' own packages are compared
// with those packages' numbers (quantized_folders_test).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "frontend/formats/safetensors.h"
#include "frontend/import.h"
#include "ir/encoding.h"
#include "ir/eval.h"
#include "ir/ops.h"
#include "ir/text.h"
#include "tests/frontend/packed_model.h"
#include "tests/frontend/test_folder.h"

namespace llmc {
namespace {

std::string GptqAgrees(const GptqCase& c) {
  SCOPED_TRACE(absl::StrCat(c.bits, " bits, group ", c.group));
  const json config = {{"quant_method", "gptq"},  {"bits", c.bits},
                       {"group_size", c.group},   {"sym", c.symmetric},
                       {"desc_act", c.act_order}, {"checkpoint_format", c.v2 ? "gptq_v2" : "gptq"}};
  return ExpectSameNumbers(config,
                           [&](const Matrix& m, Draw& draw, NamedTensors* t) { return PackGptq(c, m, draw, t); });
}

TEST(QuantizedGptq, CodesOfAllWidths) {
  EXPECT_EQ(GptqAgrees({.bits = 2}), "uint2 group=32 scale=f16 zero=u4");
  EXPECT_EQ(GptqAgrees({.bits = 3}), "uint3 group=32 scale=f16 zero=u4");
  EXPECT_EQ(GptqAgrees({.bits = 4}), "uint4 group=32 scale=f16 zero=u4");
  EXPECT_EQ(GptqAgrees({.bits = 8}), "uint8 group=32 scale=f16 zero=u8");
}

TEST(QuantizedGptq, SymmetricOnesNeedNoZeroPoints) {
  EXPECT_EQ(GptqAgrees({.bits = 3, .symmetric = true}), "int3 group=32 scale=f16");
  EXPECT_EQ(GptqAgrees({.bits = 4, .symmetric = true}), "int4 group=32 scale=f16");
  EXPECT_EQ(GptqAgrees({.bits = 8, .group = -1, .symmetric = true}), "int8 per=channel scale=f16");
}

TEST(QuantizedGptq, ZeroPointsOfBothVersions) {
  EXPECT_EQ(GptqAgrees({.v2 = true}), "uint4 group=32 scale=f16 zero=u4");
  EXPECT_EQ(GptqAgrees({.group = -1}), "uint4 per=channel scale=f16 zero=u4");
  EXPECT_EQ(GptqAgrees({.bits = 8, .v2 = true}), "uint8 group=32 scale=f16 zero=u8");
}

TEST(QuantizedGptq, ColumnsInAnotherOrder) {
  EXPECT_EQ(GptqAgrees({.act_order = true}), "uint4 group=32 scale=f16 zero=u4");
  EXPECT_EQ(GptqAgrees({.bits = 3, .symmetric = true, .act_order = true}), "int3 group=32 scale=f16");
}

// With desc_act, of a module or of all others, nothing can be read without g_idx; else groups lie one after the other.
TEST(QuantizedGptq, ARuleSaysWhetherColumnsHaveAnotherOrder) {
  const auto config = [](bool of_all, bool of_keys) {
    return json{{"quant_method", "gptq"},
                {"bits", 4},
                {"group_size", 32},
                {"sym", false},
                {"desc_act", of_all},
                {"checkpoint_format", "gptq"},
                {"dynamic", {{"+:.*k_proj", {{"desc_act", of_keys}}}}}};
  };
  // Columns of all but the keys are in another order.
  const auto pack = [](const Matrix& m, Draw& draw, NamedTensors* t) {
    const bool is_keys = m.module.ends_with("k_proj");
    const std::vector<float> numbers = PackGptq({.act_order = !is_keys}, m, draw, t);
    if (is_keys) t->erase(m.module + ".g_idx");
    return numbers;
  };
  EXPECT_EQ(ExpectSameNumbers(config(true, false), pack), "uint4 group=32 scale=f16 zero=u4");
  for (const bool of_all : {true, false}) {
    const TestFolder folder;
    WritePacked(config(of_all, true), pack, folder);
    EXPECT_TRUE(Says(ImportHuggingFace(folder.path()).status(), "k_proj.g_idx"));
  }
}

TEST(QuantizedAwq, WordsInItsOrder) {
  json config = {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}, {"zero_point", true}, {"version", "gemm"}};
  const auto agrees = [&](const AwqCase& c) {
    return ExpectSameNumbers(config,
                             [&](const Matrix& m, Draw& draw, NamedTensors* t) { return PackAwq(c, m, draw, t); });
  };
  EXPECT_EQ(agrees({}), "uint4 group=32 scale=f16 zero=u4");
  // As GPTQModel writes it.
  config.update({{"zero_point", false},
                 {"sym", true},
                 {"method", "awq"},
                 {"format", "gemm"},
                 {"checkpoint_format", "gemm"},
                 {"pack_dtype", "int32"},
                 {"lm_head", false},
                 {"dynamic", {{"-:.*lm_head", json::object()}}},
                 {"meta", {{"quantizer", {"gptqmodel:7.7.0"}}}}});
  EXPECT_EQ(agrees({.symmetric = true}), "int4 group=32 scale=f16");
}

// Rows of groups lie in planes: the first ones in the highest bits, at 3 bits ten in a word of 32.
std::vector<float> PackHqq(int bits, const Matrix& m, Draw& draw, NamedTensors* t, int64_t group = 32) {
  const int64_t rows = m.out * m.in / group, planes = bits == 3 ? 10 : 8 / bits, words = (rows + planes - 1) / planes;
  const std::vector<int64_t> codes = draw.Codes(rows * group, int64_t{1} << bits);
  Tensor packed(bits == 3 ? DType::kI32 : DType::kU8, {words, group}), scale(DType::kF16, {rows, 1}),
      zero(DType::kF16, {rows, 1});
  std::vector<float> numbers;
  for (int64_t r = 0; r < rows; ++r) {
    scale.SetFloat(r, draw.Scale());
    zero.SetFloat(r, 0.25 * static_cast<double>(draw.Below(16)));
    for (int64_t c = 0; c < group; ++c) {
      const int64_t code = codes[static_cast<size_t>(r * group + c)], at = r % words * group + c;
      packed.SetInt(at, packed.GetInt(at) | code << (bits * (planes - 1 - r / words)));
      numbers.push_back(static_cast<float>((static_cast<double>(code) - zero.GetFloat(r)) * scale.GetFloat(r)));
    }
  }
  (*t)[m.module + ".W_q"] = packed;
  (*t)[m.module + ".scale"] = scale;
  (*t)[m.module + ".zero"] = zero;
  return numbers;
}

json HqqWeights(int bits) { return {{"weight_quant_params", {{"nbits", bits}, {"group_size", 32}, {"axis", 1}}}}; }

std::string HqqAgrees(int bits) {
  return ExpectSameNumbers({{"quant_method", "hqq"}, {"quant_config", HqqWeights(bits)}},
                           [=](const Matrix& m, Draw& draw, NamedTensors* t) { return PackHqq(bits, m, draw, t); });
}

TEST(QuantizedHqq, RowsInPlanes) {
  EXPECT_EQ(HqqAgrees(2), "uint2 group=32 scale=f16 zero=f16");
  EXPECT_EQ(HqqAgrees(3), "uint3 group=32 scale=f16 zero=f16");
  EXPECT_EQ(HqqAgrees(4), "uint4 group=32 scale=f16 zero=f16");
  EXPECT_EQ(HqqAgrees(8), "uint8 group=32 scale=f16 zero=f16");
}

// By what is the same in all layers of modules' names; a module that is not named is not quantized.
TEST(QuantizedHqq, ARowIsAGroup) {
  json weights = HqqWeights(4);
  weights["weight_quant_params"]["group_size"] = nullptr;
  const auto pack = [](const Matrix& m, Draw& draw, NamedTensors* t) { return PackHqq(4, m, draw, t, m.in); };
  EXPECT_EQ(ExpectSameNumbers({{"quant_method", "hqq"}, {"quant_config", weights}}, pack),
            "uint4 group=64 scale=f16 zero=f16");
}

// Rows of 96 are one group and a half.
TEST(QuantizedHqq, GroupsThatDoNotEndWithRows) {
  for (const int bits : {3, 4, 8}) {
    json weights = HqqWeights(bits);
    weights["weight_quant_params"]["group_size"] = 64;
    const auto pack = [=](const Matrix& m, Draw& draw, NamedTensors* t) { return PackHqq(bits, m, draw, t, 64); };
    EXPECT_EQ(ExpectSameNumbers({{"quant_method", "hqq"}, {"quant_config", weights}}, pack),
              absl::StrCat("uint", bits, " group=64 scale=f16 zero=f16"));
  }
}

TEST(QuantizedHqq, SettingsOfSingleModules) {
  json modules;
  for (const Matrix& m : kMatrices) {
    const std::string tag = m.module.substr(std::string("model.layers.0.").size());
    if (tag != "mlp.up_proj") modules[tag] = HqqWeights(tag == "self_attn.q_proj" ? 8 : 3);
  }
  const auto pack = [](const Matrix& m, Draw& draw, NamedTensors* t) {
    if (m.module.ends_with("q_proj")) return PackHqq(8, m, draw, t);
    if (!m.module.ends_with("up_proj")) return PackHqq(3, m, draw, t);
    std::vector<float> numbers;
    for (int64_t i = 0; i < m.out * m.in; ++i) numbers.push_back(draw.Scale());
    (*t)[m.module + ".weight"] = Tensor::FromValues(DType::kF32, {m.out, m.in}, numbers);
    return numbers;
  };
  EXPECT_EQ(ExpectSameNumbers({{"quant_method", "hqq"}, {"quant_config", modules}}, pack),
            "uint8 group=32 scale=f16 zero=f16");
}

std::string PackedAgrees(int bits, bool symmetric, bool act_order) {
  const auto pack = [=](const Matrix& m, Draw& draw, NamedTensors* t) {
    const int64_t groups = m.in / 32, codes = int64_t{1} << bits;
    std::vector<std::vector<int64_t>> rows(static_cast<size_t>(m.out)), zeros(static_cast<size_t>(groups));
    for (auto& row : rows) row = draw.Codes(m.in, codes);
    for (auto& column : zeros) {
      column = symmetric ? std::vector<int64_t>(static_cast<size_t>(m.out), codes / 2) : draw.Codes(m.out, codes);
    }
    Tensor scales(DType::kBF16, {m.out, groups}), g_idx(DType::kI32, {m.in});
    for (int64_t i = 0; i < scales.size(); ++i) scales.SetFloat(i, draw.Scale());
    for (int64_t k = 0; k < m.in; ++k) g_idx.SetInt(k, act_order ? (5 * k + 3) % m.in / 32 : k / 32);
    std::vector<float> numbers;
    for (int64_t n = 0; n < m.out; ++n) {
      for (int64_t k = 0; k < m.in; ++k) {
        const int64_t g = g_idx.GetInt(k);
        const int64_t code = rows[static_cast<size_t>(n)][static_cast<size_t>(k)] -
                             zeros[static_cast<size_t>(g)][static_cast<size_t>(n)];
        numbers.push_back(static_cast<float>(code) * static_cast<float>(scales.GetFloat(n * groups + g)));
      }
    }
    // 32 / bits whole codes in a word.
    const auto spread = [&](std::vector<std::vector<int64_t>> lines) {
      if (32 % bits == 0) return lines;
      for (auto& line : lines) {
        std::vector<int64_t> wide;
        const int64_t of_word = 32 / bits;
        for (size_t begin = 0; begin < line.size(); begin += static_cast<size_t>(of_word)) {
          uint64_t word = 0;
          for (size_t i = begin; i < std::min(line.size(), begin + static_cast<size_t>(of_word)); ++i) {
            word |= static_cast<uint64_t>(line[i]) << (static_cast<int64_t>(i - begin) * bits);
          }
          wide.push_back(static_cast<int64_t>(word));
        }
        line = wide;
      }
      return lines;
    };
    const int width = 32 % bits == 0 ? bits : 32;
    (*t)[m.module + ".weight_packed"] = WordsOf(spread(rows), width, true);
    (*t)[m.module + ".weight_scale"] = scales;
    (*t)[m.module + ".weight_shape"] = Tensor::FromValues(DType::kI64, {2}, std::vector<int64_t>{m.out, m.in});
    if (!symmetric) (*t)[m.module + ".weight_zero_point"] = WordsOf(spread(zeros), width, false);
    if (act_order) (*t)[m.module + ".weight_g_idx"] = g_idx;
    return numbers;
  };
  return ExpectSameNumbers(PackQuantized(bits, 32, symmetric, act_order ? "group" : ""), pack);
}

TEST(QuantizedCompressedTensors, PackedIntegers) {
  EXPECT_EQ(PackedAgrees(4, true, false), "int4 group=32 scale=bf16");
  EXPECT_EQ(PackedAgrees(4, false, false), "uint4 group=32 scale=bf16 zero=u4");
  EXPECT_EQ(PackedAgrees(8, false, false), "uint8 group=32 scale=bf16 zero=u8");
  EXPECT_EQ(PackedAgrees(3, true, false), "int3 group=32 scale=bf16");
  EXPECT_EQ(PackedAgrees(6, false, false), "uint6 group=32 scale=bf16 zero=u8");
  EXPECT_EQ(PackedAgrees(2, false, false), "uint2 group=32 scale=bf16 zero=u4");
  EXPECT_EQ(PackedAgrees(5, true, true), "int5 group=32 scale=bf16");
  EXPECT_EQ(PackedAgrees(7, true, false), "int8 group=32 scale=bf16");
  EXPECT_EQ(PackedAgrees(4, true, true), "int4 group=32 scale=bf16");
}

// Codes of f8 with exponents of groups of 32; rotations of weights are in them.
TEST(QuantizedCompressedTensors, Mxfp8) {
  const auto pack = [](const Matrix& m, Draw& draw, NamedTensors* t) {
    Tensor codes(DType::kF8E4M3, {m.out, m.in}), exponents(DType::kU8, {m.out, m.in / 32});
    for (int64_t i = 0; i < exponents.size(); ++i) exponents.SetInt(i, 118 + draw.Below(3));
    std::vector<float> numbers;
    for (int64_t i = 0; i < codes.size(); ++i) {
      codes.SetFloat(i, static_cast<double>(draw.Below(33) - 16) / 4);
      numbers.push_back(
          static_cast<float>(std::ldexp(codes.GetFloat(i), static_cast<int>(exponents.GetInt(i / 32)) - 127)));
    }
    (*t)[m.module + ".weight"] = codes;
    (*t)[m.module + ".weight_scale"] = exponents;
    return numbers;
  };
  json arguments = {
      {"num_bits", 8}, {"type", "float"}, {"strategy", "group"}, {"group_size", 32}, {"scale_dtype", "torch.uint8"}};
  json group = {{"targets", {"Linear"}}, {"weights", arguments}};
  arguments["dynamic"] = true;
  group["input_activations"] = arguments;
  const json apply = {{{"location", "weight_output"}, {"targets", {"Linear"}}}};
  const json rotations = {{"config_groups", {{"R1", {{"type", "hadamard"}, {"apply", apply}}}}}};
  EXPECT_EQ(ExpectSameNumbers({{"quant_method", "compressed-tensors"},
                               {"format", "mxfp8-quantized"},
                               {"provider", "auto-round"},
                               {"ignore", {"lm_head"}},
                               {"transform_config", rotations},
                               {"config_groups", {{"group_0", group}}}},
                              pack),
            "f8e4m3 group=32 scale=bf16");
}

// Blocks of 64 that do not end with rows of 96, in both formats, and double quantization by its definition. Bytes are
// stored as elements of a type.
std::string BitsAndBytesAgrees(const std::string& type, bool nested, DType storage = DType::kU8) {
  const float* numbers_of = nullptr;
  for (const EncodingFormat& format : EncodingFormats()) {
    if (format.name == (type == "nf4" ? "nf4" : "bnb_fp4")) numbers_of = format.codebook;
  }
  const auto pack = [=](const Matrix& m, Draw& draw, NamedTensors* t) {
    const int64_t elements = m.out * m.in, blocks = (elements + 63) / 64, outer = (blocks + 255) / 256;
    const std::vector<int64_t> codes = draw.Codes(elements, 16), absmax = draw.Codes(blocks, 256);
    std::vector<float> scales, nested_absmax, map;
    for (int i = 0; i < 256; ++i) map.push_back(static_cast<float>(i) / 255 - 0.25f);
    for (int64_t i = 0; i < outer; ++i) nested_absmax.push_back(0.01f + draw.Scale());
    for (int64_t b = 0; b < blocks; ++b) {
      const size_t i = static_cast<size_t>(b);
      scales.push_back(nested ? map[static_cast<size_t>(absmax[i])] * nested_absmax[i / 256] + 0.02f
                              : 2 * draw.Scale());
    }
    Tensor packed(DType::kU8, {elements / 2, 1});
    std::vector<float> numbers;
    for (int64_t i = 0; i < elements; ++i) {
      const int64_t code = codes[static_cast<size_t>(i)];
      packed.SetInt(i / 2, i % 2 == 0 ? code << 4 : packed.GetInt(i / 2) | code);
      numbers.push_back(numbers_of[code] * scales[static_cast<size_t>(i / 64)]);
    }
    const std::string w = m.module + ".weight";
    json state = {{"quant_type", type}, {"blocksize", 64}, {"dtype", "bfloat16"}, {"shape", {m.out, m.in}}};
    if (nested) state.update({{"nested_blocksize", 256}, {"nested_dtype", "float32"}, {"nested_offset", 0.02}});
    const std::string text = state.dump();
    (*t)[w] = Tensor(storage, {packed.bytes() * 8 / DTypeBits(storage), 1}, packed.owner());
    (*t)[w + ".quant_map"] = Tensor::FromValues(DType::kF32, {16}, std::vector<float>(numbers_of, numbers_of + 16));
    (*t)[w + ".quant_state.bitsandbytes__" + type] = Tensor::FromValues(DType::kU8, {static_cast<int64_t>(text.size())},
                                                                        std::vector<int64_t>(text.begin(), text.end()));
    if (nested) {
      (*t)[w + ".absmax"] = Tensor::FromValues(DType::kU8, {blocks}, absmax);
      (*t)[w + ".nested_absmax"] = Tensor::FromValues(DType::kF32, {outer}, nested_absmax);
      (*t)[w + ".nested_quant_map"] = Tensor::FromValues(DType::kF32, {256}, map);
    } else {
      (*t)[w + ".absmax"] = Tensor::FromValues(DType::kF32, {blocks}, scales);
    }
    return numbers;
  };
  const json config = {{"load_in_4bit", true},
                       {"bnb_4bit_quant_storage", storage == DType::kBF16 ? "bfloat16" : "uint8"},
                       {"bnb_4bit_quant_type", type},
                       {"bnb_4bit_use_double_quant", nested}};
  return ExpectSameNumbers(config, pack);
}

TEST(QuantizedBitsAndBytes, BlocksThatDoNotEndWithRows) {
  EXPECT_EQ(BitsAndBytesAgrees("nf4", false), "nf4 group=64 scale=f32");
  EXPECT_EQ(BitsAndBytesAgrees("nf4", true), "nf4 group=64 scale=f32");
  EXPECT_EQ(BitsAndBytesAgrees("fp4", false), "bnb_fp4 group=64 scale=f32");
  EXPECT_EQ(BitsAndBytesAgrees("fp4", true), "bnb_fp4 group=64 scale=f32");
}

TEST(QuantizedBitsAndBytes, BytesAsElementsOfOtherTypes) {
  EXPECT_EQ(BitsAndBytesAgrees("nf4", true, DType::kBF16), "nf4 group=64 scale=f32");
  EXPECT_EQ(BitsAndBytesAgrees("fp4", false, DType::kF32), "bnb_fp4 group=64 scale=f32");
}

// Blocks that no size is a multiple of.
std::vector<float> PackRaggedBlocks(const Matrix& m, Draw& draw, NamedTensors* t) {
  const int64_t rows = (m.out + 39) / 40, columns = (m.in + 23) / 24;
  Tensor codes(DType::kF8E4M3, {m.out, m.in}), scales(DType::kF32, {rows, columns});
  for (int64_t i = 0; i < codes.size(); ++i) codes.SetFloat(i, static_cast<double>(draw.Below(33) - 16) / 4);
  for (int64_t i = 0; i < scales.size(); ++i) scales.SetFloat(i, 2 * draw.Scale());
  std::vector<float> numbers;
  for (int64_t n = 0; n < m.out; ++n) {
    for (int64_t k = 0; k < m.in; ++k) {
      numbers.push_back(static_cast<float>(codes.GetFloat(n * m.in + k) * scales.GetFloat(n / 40 * columns + k / 24)));
    }
  }
  (*t)[m.module + ".weight"] = codes;
  (*t)[m.module + ".weight_scale_inv"] = scales;
  return numbers;
}

const json kRaggedBlocks = {{"quant_method", "fp8"}, {"weight_block_size", {40, 24}}, {"activation_scheme", "dynamic"}};

TEST(QuantizedFp8, RaggedBlocks) {
  EXPECT_EQ(ExpectSameNumbers(kRaggedBlocks, PackRaggedBlocks), "f8e4m3 block=40x24 scale=f32");
}

// GPT-NeoX has the queries, keys and values of a head next to each other: putting all queries first takes rows out of
// their blocks.
TEST(QuantizedFp8, RowsOfBlocksInAnotherOrder) {
  const std::string layer = "gpt_neox.layers.0.";
  const Matrix matrices[] = {{layer + "attention.query_key_value", 192, 64},
                             {layer + "attention.dense", 64, 64},
                             {layer + "mlp.dense_h_to_4h", 96, 64},
                             {layer + "mlp.dense_4h_to_h", 64, 96}};
  NamedTensors packed;
  const auto add = [&](const std::string& name, const Shape& shape, double mean) {
    Tensor x(DType::kF32, shape);
    for (int64_t i = 0; i < x.size(); ++i) x.SetFloat(i, mean + 0.5 * std::sin(static_cast<double>(7 * i + 1)));
    packed[name] = x;
  };
  add("gpt_neox.embed_in.weight", {12, 64}, 0);
  add("embed_out.weight", {12, 64}, 0);
  for (const std::string norm : {"gpt_neox.final_layer_norm", "gpt_neox.layers.0.input_layernorm",
                                 "gpt_neox.layers.0.post_attention_layernorm"}) {
    add(norm + ".weight", {64}, 1);
    add(norm + ".bias", {64}, 0);
  }
  for (const Matrix& m : matrices) add(m.module + ".bias", {m.out}, 0);
  NamedTensors plain = packed;
  Draw draw(17);
  for (const Matrix& m : matrices) {
    plain[m.module + ".weight"] = Tensor::FromValues(DType::kF32, {m.out, m.in}, PackRaggedBlocks(m, draw, &packed));
  }
  json config = SmallConfig();
  config["architectures"] = {"GPTNeoXForCausalLM"};
  for (const char* key : {"num_key_value_heads", "head_dim"}) config.erase(key);
  const TestFolder floats, quantized;
  WriteFolder(floats, config, plain);
  config["quantization_config"] = kRaggedBlocks;
  WriteFolder(quantized, config, packed);
  ExpectLogitsOf(floats.path(), quantized.path());
}

// The scales of inputs as vLLM and as transformers call them.
TEST(QuantizedFp8, StaticScalesOfInputsHaveTwoNames) {
  std::vector<std::vector<float>> logits;
  for (const char* name : {"input_scale", "activation_scale"}) {
    const TestFolder folder;
    WritePacked(
        {{"quant_method", "fp8"}, {"activation_scheme", "static"}},
        [&](const Matrix& m, Draw& draw, NamedTensors* t) {
          Tensor codes(DType::kF8E4M3, {m.out, m.in});
          for (int64_t i = 0; i < codes.size(); ++i) codes.SetFloat(i, static_cast<double>(draw.Below(9) - 4));
          (*t)[m.module + ".weight"] = codes;
          (*t)[m.module + ".weight_scale_inv"] = Tensor::FromValues(DType::kF32, {}, std::vector<float>{0.02f});
          (*t)[absl::StrCat(m.module, ".", name)] = Tensor::FromValues(DType::kF32, {}, std::vector<float>{0.013f});
          return std::vector<float>(static_cast<size_t>(codes.size()));
        },
        folder);
    for (const bool of_inputs : {false, true}) {
      std::unique_ptr<Model> model;
      const auto own = LogitsOf(folder.path(), &model, {.activations = of_inputs});
      ASSERT_TRUE(own.ok()) << own.status();
      logits.push_back(*own);
    }
  }
  EXPECT_EQ(logits[0], logits[2]);
  EXPECT_EQ(logits[1], logits[3]);
  EXPECT_NE(logits[0], logits[1]);
}

// What says beside config.json, or under an older key of it, how the weights are stored.
TEST(QuantizedAwq, SettingsInAFileOfTheirOwn) {
  const TestFolder folder, floats;
  WriteFolder(floats, SmallConfig(),
              WritePacked(
                  {}, [&](const Matrix& m, Draw& draw, NamedTensors* t) { return PackAwq({}, m, draw, t); }, folder));
  folder.Write("config.json", SmallConfig().dump());
  folder.Write("quant_config.json", R"({"w_bit": 4, "q_group_size": 32, "version": "GEMM", "zero_point": true})");
  ExpectLogitsOf(floats.path(), folder.path());
}

}  // namespace
}  // namespace llmc
