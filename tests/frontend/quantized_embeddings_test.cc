// Embeddings that are stored as codes, of which rows are looked up and which a tied head multiplies; MLX's folders,
// which have them so.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "ir/encoding.h"
#include "ir/ops.h"
#include "tests/frontend/packed_model.h"

namespace llmc {
namespace {

const Matrix kEmbedding = {"model.embed_tokens", 12, 64}, kHead = {"lm_head", 12, 64};

// The encoding of the table whose rows are looked up, in a model that agrees with that in floats.
std::string TableOfAgreeing(json quantization, bool is_tied, const Pack& pack, bool are_words = false) {
  NamedTensors packed, plain;
  AddUnquantized(&packed);
  AddUnquantized(&plain);
  Draw draw(23);
  std::vector<Matrix> matrices(std::begin(kMatrices), std::end(kMatrices));
  matrices.push_back(kEmbedding);
  if (is_tied) {
    for (NamedTensors* tensors : {&packed, &plain}) tensors->erase("lm_head.weight");
  } else {
    matrices.push_back(kHead);
  }
  for (const Matrix& m : matrices) {
    packed.erase(m.module + ".weight");
    plain[m.module + ".weight"] = Tensor::FromValues(DType::kF32, {m.out, m.in}, pack(m, draw, &packed));
  }
  json config = SmallConfig();
  config["tie_word_embeddings"] = is_tied;
  const TestFolder quantized, floats;
  WriteFolder(floats, config, plain);
  config[are_words ? "quantization" : "quantization_config"] = std::move(quantization);
  WriteFolder(quantized, config, packed);
  if (are_words) {  // a type that llmc does not write
    std::ifstream in(quantized / "model.safetensors", std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    quantized.Write("model.safetensors", absl::StrReplaceAll(bytes, {{"\"I32\"", "\"U32\""}}));
  }
  const std::unique_ptr<Model> model = ExpectLogitsOf(floats.path(), quantized.path());
  if (model == nullptr) return "";
  const Value *table = nullptr, *head = nullptr;
  for (const auto& node : model->steps[0]->block.nodes) {
    if (table == nullptr && Is<Gather>(node.get())) table = node->operands[0];
    if (Is<Linear>(node.get())) head = node->operands[1];
  }
  EXPECT_EQ(head == table, is_tied);
  return table->type.encoding == nullptr ? "" : table->type.encoding->text;
}

std::string MlxAgrees(const MlxCase& c, bool is_tied) {
  SCOPED_TRACE(c.bits);
  const json config = {{"group_size", c.group}, {"bits", c.bits}, {"mode", "affine"}};
  return TableOfAgreeing(
      config, is_tied, [&](const Matrix& m, Draw& draw, NamedTensors* t) { return PackMlx(c, m, draw, t); }, true);
}

TEST(QuantizedMlx, CodesOfAllWidths) {
  EXPECT_EQ(MlxAgrees({.bits = 2}, true), "uint2 group=32 scale=bf16 zero=f32");
  EXPECT_EQ(MlxAgrees({.bits = 3}, true), "uint3 group=32 scale=bf16 zero=f32");
  EXPECT_EQ(MlxAgrees({.bits = 4}, true), "uint4 group=32 scale=bf16 zero=f32");
  EXPECT_EQ(MlxAgrees({.bits = 5}, true), "uint5 group=32 scale=bf16 zero=f32");
  EXPECT_EQ(MlxAgrees({.bits = 6}, true), "uint6 group=32 scale=bf16 zero=f32");
  EXPECT_EQ(MlxAgrees({.bits = 8}, false), "uint8 group=32 scale=bf16 zero=f32");
}

// Keys besides the common ones are modules.
TEST(QuantizedMlx, ModulesOfOtherWidths) {
  const json config = {{"group_size", 32},
                       {"bits", 4},
                       {"model.embed_tokens", {{"group_size", 64}, {"bits", 6}}},
                       {"model.layers.0.mlp.up_proj", {{"bits", 8}}},
                       {"model.layers.0.mlp.down_proj", false}};
  const auto pack = [](const Matrix& m, Draw& draw, NamedTensors* t) {
    if (m.module == kEmbedding.module) return PackMlx({.bits = 6, .group = 64}, m, draw, t);
    const std::vector<float> numbers = PackMlx({.bits = m.module.ends_with("up_proj") ? 8 : 4}, m, draw, t);
    if (!m.module.ends_with("down_proj")) return numbers;
    for (const char* part : {".scales", ".biases"}) t->erase(m.module + part);
    (*t)[m.module + ".weight"] = Tensor::FromValues(DType::kF32, {m.out, m.in}, numbers);
    return numbers;
  };
  EXPECT_EQ(TableOfAgreeing(config, true, pack, true), "uint6 group=64 scale=bf16 zero=f32");
}

// E2M1 and exponents.
TEST(QuantizedMlx, Mxfp4) {
  constexpr double kNumbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const auto pack = [&](const Matrix& m, Draw& draw, NamedTensors* t) {
    std::vector<std::vector<int64_t>> rows;
    Tensor scales(DType::kU8, {m.out, m.in / 32});
    std::vector<float> numbers;
    for (int64_t i = 0; i < scales.size(); ++i) scales.SetInt(i, 119 + draw.Below(4));
    for (int64_t n = 0; n < m.out; ++n) {
      rows.push_back(draw.Codes(m.in, 16));
      for (int64_t k = 0; k < m.in; ++k) {
        const int64_t code = rows.back()[static_cast<size_t>(k)], exponent = scales.GetInt((n * m.in + k) / 32);
        numbers.push_back(static_cast<float>((code < 8 ? 1 : -1) * std::ldexp(kNumbers[code % 8], exponent - 127)));
      }
    }
    (*t)[m.module + ".weight"] = WordsOf(rows, 4, true);
    (*t)[m.module + ".scales"] = scales;
    return numbers;
  };
  EXPECT_EQ(TableOfAgreeing({{"group_size", 32}, {"bits", 4}, {"mode", "mxfp4"}}, true, pack, true), "mxfp4");
}

// Tables with codes of integers one by one.
std::vector<float> PackIntegers(const Matrix& m, const char* codes_part, const char* scale_part, Draw& draw,
                                NamedTensors* t) {
  Tensor codes(DType::kI8, {m.out, m.in}), scale(DType::kF32, {m.out, 1});
  std::vector<float> numbers;
  for (int64_t n = 0; n < m.out; ++n) {
    scale.SetFloat(n, draw.Scale() / 16);
    for (int64_t k = 0; k < m.in; ++k) {
      codes.SetInt(n * m.in + k, draw.Below(256) - 128);
      numbers.push_back(static_cast<float>(codes.GetInt(n * m.in + k)) * static_cast<float>(scale.GetFloat(n)));
    }
  }
  (*t)[m.module + codes_part] = codes;
  (*t)[m.module + scale_part] = scale;
  return numbers;
}

TEST(QuantizedEmbeddings, OfCompressedTensorsAsTheirGroupSays) {
  const auto group = [](const char* target) {
    return json{{"targets", {target}},
                {"weights", {{"num_bits", 8}, {"type", "int"}, {"symmetric", true}, {"strategy", "channel"}}}};
  };
  const json config = {{"quant_method", "compressed-tensors"},
                       {"format", "int-quantized"},
                       {"config_groups", {{"group_0", group("Linear")}, {"group_1", group("Embedding")}}}};
  const auto pack = [](const Matrix& m, Draw& draw, NamedTensors* t) {
    return PackIntegers(m, ".weight", ".weight_scale", draw, t);
  };
  EXPECT_EQ(TableOfAgreeing(config, false, pack), "int8 per=channel scale=f32");
  EXPECT_EQ(TableOfAgreeing(config, true, pack), "int8 per=channel scale=f32");
}

TEST(QuantizedEmbeddings, OfTorchao) {
  const json config = {{"quant_method", "torchao"},
                       {"include_input_output_embeddings", true},
                       {"quant_type", {{"default", {{"_type", "Int8WeightOnlyConfig"}}}}}};
  const auto pack = [](const Matrix& m, Draw& draw, NamedTensors* t) {
    return PackIntegers(m, "._weight_qdata", "._weight_scale", draw, t);
  };
  EXPECT_EQ(TableOfAgreeing(config, false, pack), "int8 per=channel scale=f32");
}

// A pattern of a later group counts before the class of an earlier one.
TEST(QuantizedCompressedTensors, NamesCountBeforeClasses) {
  json config = PackQuantized(4, 32, true, "");
  json eight = PackQuantized(8, 32, true, "")["config_groups"]["group_0"];
  eight["targets"] = {"re:.*down_proj"};
  config["config_groups"]["group_1"] = eight;
  config["ignore"] = {"lm_head", "re:.*(self_attn|gate_proj|up_proj).*"};
  const auto pack = [](const Matrix& m, Draw& draw, NamedTensors* t) {
    if (!m.module.ends_with("down_proj")) {
      std::vector<float> numbers;
      for (int64_t i = 0; i < m.out * m.in; ++i) numbers.push_back(8 * draw.Scale() - 0.08f);
      (*t)[m.module + ".weight"] = Tensor::FromValues(DType::kF32, {m.out, m.in}, numbers);
      return numbers;
    }
    std::vector<std::vector<int64_t>> rows;
    Tensor scale(DType::kF32, {m.out, m.in / 32});
    std::vector<float> numbers;
    for (int64_t i = 0; i < scale.size(); ++i) scale.SetFloat(i, draw.Scale() / 16);
    for (int64_t n = 0; n < m.out; ++n) {
      rows.push_back(draw.Codes(m.in, 256));
      for (int64_t k = 0; k < m.in; ++k) {
        numbers.push_back(static_cast<float>(rows.back()[static_cast<size_t>(k)] - 128) *
                          static_cast<float>(scale.GetFloat((n * m.in + k) / 32)));
      }
    }
    (*t)[m.module + ".weight_packed"] = WordsOf(rows, 8, true);
    (*t)[m.module + ".weight_scale"] = scale;
    return numbers;
  };
  EXPECT_EQ(TableOfAgreeing(config, true, pack), "");
}

// ---- what is refused
// --------------------------------------------------------------------------------------------------

absl::Status ImportOf(const json& keys, const std::string& file = "", const std::string& contents = "") {
  NamedTensors tensors;
  AddUnquantized(&tensors);
  const TestFolder folder;
  json config = SmallConfig();
  config.update(keys);
  if (!file.empty()) folder.Write(file, contents);
  WriteFolder(folder, config, tensors);
  return ImportHuggingFace(folder.path()).status();
}

TEST(QuantizedMlx, RefusesWhatIsNotKnown) {
  const auto refuses = [](const json& quantization, absl::string_view message) {
    EXPECT_TRUE(Says(ImportOf({{"quantization", quantization}}), message));
  };
  refuses({{"group_size", 64}, {"bits", 7}}, "MLX bits 7 is not supported (2, 3, 4, 5, 6, 8)");
  refuses({{"group_size", 64}, {"bits", 4}, {"mode", "nvfp4"}}, "mode \"nvfp4\" is not supported");
  refuses({{"group_size", 64}, {"bits", 4}, {"mode", "mxfp4"}}, "mode mxfp4 is of 4 bits in groups of 32");
  refuses({{"group_size", 48}, {"bits", 4}}, "group_size 48 does not divide in_features 64");
  refuses({{"group_size", 64}, {"bits", 4}, {"model.embed_tokens", 3}}, "\"model.embed_tokens\"");
  EXPECT_TRUE(Says(ImportOf({{"quantization", {{"group_size", 64}, {"bits", 4}}},
                             {"quantization_config", {{"quant_method", "gptq"}, {"bits", 4}}}}),
                   "\"quantization\" is of MLX, but quantization_config has quant_method \"gptq\""));
}

TEST(QuantizedModelopt, FilesThatContradict) {
  const json fp8 = {{"quantization_config", {{"quant_method", "modelopt"}, {"quant_algo", "FP8"}}}};
  const std::string nvfp4 = R"({"quantization": {"quant_algo": "NVFP4"}})";
  EXPECT_TRUE(
      Says(ImportOf(fp8, "hf_quant_config.json", nvfp4), "hf_quant_config.json is of modelopt, \"NVFP4\", but "));
  const json gptq = {{"quantization_config", {{"quant_method", "gptq"}, {"bits", 4}}}};
  EXPECT_TRUE(Says(ImportOf(gptq, "hf_quant_config.json", nvfp4), "of config.json of \"gptq\"; delete the one"));
}

}  // namespace
}  // namespace llmc
