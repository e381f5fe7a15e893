// A small Llama whose linear layers tests pack themselves.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "frontend/formats/safetensors.h"
#include "frontend/import.h"
#include "ir/encoding.h"
#include "ir/eval.h"
#include "ir/ops.h"
#include "tests/frontend/test_folder.h"

namespace llmc {

using nlohmann::json;

inline json SmallConfig() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 1},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"vocab_size", 12},
          {"head_dim", 32},
          {"max_position_embeddings", 40}};
}

struct Matrix {
  std::string module;
  int64_t out, in;
};
inline const Matrix kMatrices[] = {
    {"model.layers.0.self_attn.q_proj", 64, 64}, {"model.layers.0.self_attn.k_proj", 32, 64},
    {"model.layers.0.self_attn.v_proj", 32, 64}, {"model.layers.0.self_attn.o_proj", 64, 64},
    {"model.layers.0.mlp.gate_proj", 96, 64},    {"model.layers.0.mlp.up_proj", 96, 64},
    {"model.layers.0.mlp.down_proj", 64, 96},
};

class Draw {
 public:
  explicit Draw(uint32_t seed) : random_(seed) {}
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint32_t>(n)); }
  float Scale() { return 0.005f + 0.0001f * static_cast<float>(Below(100)); }
  std::vector<int64_t> Codes(int64_t count, int64_t below) {
    std::vector<int64_t> codes;
    for (int64_t i = 0; i < count; ++i) codes.push_back(Below(below));
    return codes;
  }

 private:
  std::mt19937 random_;
};

// Packs random codes of a matrix, and gives the numbers [out, in] that they stand for.
using Pack = std::function<std::vector<float>(const Matrix&, Draw&, NamedTensors*)>;

inline void AddUnquantized(NamedTensors* t) {
  const auto add = [&](const std::string& name, Shape shape, double mean) {
    Tensor x(DType::kF32, std::move(shape));
    for (int64_t i = 0; i < x.size(); ++i) x.SetFloat(i, mean + 0.5 * std::sin(static_cast<double>(7 * i + 1)));
    (*t)[name] = std::move(x);
  };
  add("model.embed_tokens.weight", {12, 64}, 0);
  add("lm_head.weight", {12, 64}, 0);
  for (const char* norm : {"layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"}) {
    add(absl::StrCat("model.", norm, ".weight"), {64}, 1);
  }
}

inline void WriteFolder(const TestFolder& folder, const json& config, const NamedTensors& tensors) {
  folder.Write("config.json", config.dump());
  ASSERT_TRUE(WriteSafetensors(folder / "model.safetensors", tensors).ok());
}

// Of 7 tokens, without a cache.
inline const std::vector<int64_t> kIds = {3, 1, 11, 0, 7, 2, 5};
inline absl::StatusOr<std::vector<float>> LogitsOf(const std::string& folder, std::unique_ptr<Model>* model,
                                                   const QuantizedUse& use = {}) {
  auto imported = ImportHuggingFace(folder, nullptr, {}, DecoderForm::kHiddenStates, use);
  if (!imported.ok()) return imported.status();
  *model = *std::move(imported);
  auto evaluator = Evaluator::Create(model->get());
  if (!evaluator.ok()) return evaluator.status();
  const auto outputs =
      (*evaluator)->Run(*(*model)->steps[0], {{"input_ids", Tensor::FromValues(DType::kI64, {1, 7}, kIds)}});
  if (!outputs.ok()) return outputs.status();
  return outputs->at("logits").ToFloats();
}

// That the packed model gives the logits of the plain one; returns it, or nullptr after a failure.
inline std::unique_ptr<Model> ExpectLogitsOf(const std::string& plain, const std::string& packed) {
  std::unique_ptr<Model> a, b;
  const auto expected = LogitsOf(plain, &a), actual = LogitsOf(packed, &b);
  EXPECT_TRUE(expected.ok()) << expected.status();
  EXPECT_TRUE(actual.ok()) << actual.status();
  if (!expected.ok() || !actual.ok()) return nullptr;
  double spread = 0;
  for (size_t i = 0; i < expected->size(); ++i) {
    EXPECT_NEAR((*actual)[i], (*expected)[i], 2e-5) << i;
    spread = std::max<double>(spread, std::abs((*expected)[i]));
  }
  EXPECT_GT(spread, 0.5) << "the logits say nothing of the weights";
  return b;
}

// The folder of a model whose matrices are packed, and its tensors in plain floats.
inline NamedTensors WritePacked(const json& quantization, const Pack& pack, const TestFolder& folder) {
  NamedTensors packed, plain;
  AddUnquantized(&packed);
  AddUnquantized(&plain);
  Draw draw(17);
  for (const Matrix& m : kMatrices) {
    plain[m.module + ".weight"] = Tensor::FromValues(DType::kF32, {m.out, m.in}, pack(m, draw, &packed));
  }
  json config = SmallConfig();
  config["quantization_config"] = quantization;
  WriteFolder(folder, config, packed);
  return plain;
}

// The model of a method, packed and in floats, gives the same logits. Returns the encoding of the queries' weight.
inline std::string ExpectSameNumbers(const json& quantization, const Pack& pack) {
  const TestFolder quantized, floats;
  WriteFolder(floats, SmallConfig(), WritePacked(quantization, pack, quantized));
  const std::unique_ptr<Model> model = ExpectLogitsOf(floats.path(), quantized.path());
  if (model == nullptr) return "";
  for (const auto& node : model->steps[0]->block.nodes) {
    if (Is<Encode>(node.get()) && absl::EndsWith(node->loc, "q_proj")) return node->results[0]->type.encoding->text;
  }
  return "";
}

// ---- words --------------------------------------------------------------------------------------------------------

// A stream of bits, the lowest first, as words of 32.
class Words {
 public:
  void Put(uint64_t code, int bits) {
    for (int b = 0; b < bits; ++b) bits_.push_back((code >> b & 1) != 0);
  }
  void Fill() {
    while (bits_.size() % 32 != 0) bits_.push_back(false);
  }
  int32_t Get(size_t word) const {
    uint32_t x = 0;
    for (size_t b = 0; b < 32; ++b) x |= static_cast<uint32_t>(bits_[32 * word + b]) << b;
    return static_cast<int32_t>(x);
  }
  size_t size() const { return bits_.size() / 32; }

 private:
  std::vector<bool> bits_;
};

// Lines of codes along an axis of a matrix of words: [words, lines], or [lines, words] if they lie along the last axis.
inline Tensor WordsOf(const std::vector<std::vector<int64_t>>& lines, int bits, bool along_last) {
  std::vector<Words> words(lines.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    for (const int64_t code : lines[i]) words[i].Put(static_cast<uint64_t>(code), bits);
    words[i].Fill();
  }
  const int64_t count = static_cast<int64_t>(words[0].size()), n = static_cast<int64_t>(lines.size());
  Tensor out(DType::kI32, along_last ? Shape{n, count} : Shape{count, n});
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t w = 0; w < count; ++w) {
      out.SetInt(along_last ? i * count + w : w * n + i, words[static_cast<size_t>(i)].Get(static_cast<size_t>(w)));
    }
  }
  return out;
}

struct GptqCase {
  int bits = 4;
  int64_t group = 32;  // -1: one for a channel
  bool symmetric = false, v2 = false, act_order = false;
  int64_t order_step = 5;  // of act_order: odd, as the number of columns is even
};

inline std::vector<float> PackGptq(const GptqCase& c, const Matrix& m, Draw& draw, NamedTensors* t) {
  const int64_t group = c.group < 0 ? m.in : c.group, groups = m.in / group, codes = int64_t{1} << c.bits;
  std::vector<std::vector<int64_t>> columns(static_cast<size_t>(m.out)), zeros(static_cast<size_t>(groups));
  Tensor scales(DType::kF16, {groups, m.out}), g_idx(DType::kI32, {m.in});
  for (int64_t k = 0; k < m.in; ++k) g_idx.SetInt(k, c.act_order ? (c.order_step * k + 3) % m.in / group : k / group);
  for (auto& column : columns) column = draw.Codes(m.in, codes);
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t n = 0; n < m.out; ++n) {
      scales.SetFloat(g * m.out + n, draw.Scale());
      zeros[static_cast<size_t>(g)].push_back(c.symmetric ? codes / 2 : draw.Below(codes));
    }
  }
  std::vector<float> numbers;
  for (int64_t n = 0; n < m.out; ++n) {
    for (int64_t k = 0; k < m.in; ++k) {
      const int64_t g = g_idx.GetInt(k);
      const int64_t code = columns[static_cast<size_t>(n)][static_cast<size_t>(k)],
                    zero = zeros[static_cast<size_t>(g)][static_cast<size_t>(n)];
      numbers.push_back(static_cast<float>(code - zero) * static_cast<float>(scales.GetFloat(g * m.out + n)));
    }
  }
  if (!c.v2) {
    for (auto& row : zeros) {
      for (int64_t& zero : row) zero = (zero + codes - 1) % codes;
    }
  }
  (*t)[m.module + ".qweight"] = WordsOf(columns, c.bits, false);
  (*t)[m.module + ".qzeros"] = WordsOf(zeros, c.bits, true);
  (*t)[m.module + ".scales"] = scales;
  (*t)[m.module + ".g_idx"] = g_idx;
  return numbers;
}

struct AwqCase {
  std::string codes = "qweight", scale = "scales", zero = "qzeros";
  bool symmetric = false;    // all zero points are in the middle
  bool is_signed = false;    // codes and zero points are stored less 8
  bool is_in_order = false;  // in words, else 0, 2, 4, 6, 1, 3, 5, 7
};

// Groups of 32.
inline std::vector<float> PackAwq(const AwqCase& c, const Matrix& m, Draw& draw, NamedTensors* t) {
  constexpr int kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
  const auto words = [&](const std::vector<int64_t>& codes, int64_t rows, int64_t columns) {
    Tensor out(DType::kI32, {rows, columns / 8});
    for (int64_t w = 0; w < out.size(); ++w) {
      uint32_t word = 0;
      for (int i = 0; i < 8; ++i) {
        const int64_t code = codes[static_cast<size_t>(8 * w + (c.is_in_order ? i : kOrder[i]))];
        word |= static_cast<uint32_t>(code ^ (c.is_signed ? 8 : 0)) << 4 * i;
      }
      out.SetInt(w, static_cast<int32_t>(word));
    }
    return out;
  };
  const int64_t groups = m.in / 32;
  const std::vector<int64_t> codes = draw.Codes(m.in * m.out, 16);
  std::vector<int64_t> zeros = draw.Codes(groups * m.out, 16);
  if (c.symmetric) std::fill(zeros.begin(), zeros.end(), 8);
  Tensor scales(DType::kF16, {groups, m.out});
  for (int64_t i = 0; i < scales.size(); ++i) scales.SetFloat(i, draw.Scale());
  (*t)[absl::StrCat(m.module, ".", c.codes)] = words(codes, m.in, m.out);
  (*t)[absl::StrCat(m.module, ".", c.zero)] = words(zeros, groups, m.out);
  (*t)[absl::StrCat(m.module, ".", c.scale)] = scales;
  std::vector<float> numbers;
  for (int64_t n = 0; n < m.out; ++n) {
    for (int64_t k = 0; k < m.in; ++k) {
      const size_t g = static_cast<size_t>(k / 32 * m.out + n);
      const int64_t code = codes[static_cast<size_t>(k * m.out + n)] - zeros[g];
      numbers.push_back(static_cast<float>(code) * static_cast<float>(scales.GetFloat(static_cast<int64_t>(g))));
    }
  }
  return numbers;
}

struct MlxCase {
  int bits = 4;
  int64_t group = 32;
};

// Codes along k, each times a scale plus a bias.
inline std::vector<float> PackMlx(const MlxCase& c, const Matrix& m, Draw& draw, NamedTensors* t) {
  const int64_t groups = m.in / c.group;
  std::vector<std::vector<int64_t>> rows;
  Tensor scales(DType::kBF16, {m.out, groups}), biases(DType::kBF16, {m.out, groups});
  const double most = static_cast<double>((int64_t{1} << c.bits) - 1);
  for (int64_t i = 0; i < scales.size(); ++i) {
    scales.SetFloat(i, 16 * draw.Scale() / most);
    biases.SetFloat(i, i % 5 == 0 ? 0 : -8 * draw.Scale());
  }
  std::vector<float> numbers;
  for (int64_t n = 0; n < m.out; ++n) {
    rows.push_back(draw.Codes(m.in, int64_t{1} << c.bits));
    for (int64_t k = 0; k < m.in; ++k) {
      const int64_t group = n * groups + k / c.group;
      numbers.push_back(static_cast<float>(
          static_cast<double>(rows.back()[static_cast<size_t>(k)]) * scales.GetFloat(group) + biases.GetFloat(group)));
    }
  }
  (*t)[m.module + ".weight"] = WordsOf(rows, c.bits, true);
  (*t)[m.module + ".scales"] = scales;
  (*t)[m.module + ".biases"] = biases;
  return numbers;
}

inline json PackQuantized(int bits, int64_t group, bool symmetric, const std::string& order) {
  const json weights = {{"num_bits", bits},
                        {"type", "int"},
                        {"symmetric", symmetric},
                        {"strategy", "group"},
                        {"group_size", group},
                        {"dynamic", false},
                        {"actorder", order.empty() ? json() : json(order)}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"ignore", {"lm_head"}},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
}

}  // namespace llmc
