// modelopt's checkpoints: small models packed here beside the same model in plain floats.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "ir/tensor.h"
#include "passes/pipeline.h"
#include "tests/frontend/packed_model.h"

namespace llmc {
namespace {

json ModeloptConfig(const char* algorithm, const json& more = json::object()) {
  json config = {{"quant_method", "modelopt"}, {"quant_algo", algorithm}, {"ignore", {"lm_head"}}};
  config.update(more);
  return config;
}

// What the inputs of all but the queries, keys and values are multiplied by; it goes over the columns of `numbers`.
void AddMultiplier(const Matrix& m, NamedTensors* t, std::vector<float>* numbers) {
  if (m.module.find("self_attn") != std::string::npos && !m.module.ends_with("o_proj")) return;
  Tensor factor(DType::kBF16, {m.in});
  for (int64_t k = 0; k < m.in; ++k) factor.SetFloat(k, 0.5 + 0.25 * static_cast<double>(k % 5));
  for (size_t i = 0; i < numbers->size(); ++i) {
    (*numbers)[i] *= static_cast<float>(factor.GetFloat(static_cast<int64_t>(i) % m.in));
  }
  (*t)[m.module + ".pre_quant_scale"] = factor;
}

// Two rows in a byte.
std::vector<float> PackInt4(const Matrix& m, Draw& draw, NamedTensors* t) {
  constexpr int64_t kGroup = 32;
  const int64_t groups = m.in / kGroup;
  Tensor codes(DType::kU8, {m.out / 2, m.in}), scale(DType::kF32, {m.out, groups});
  for (int64_t i = 0; i < scale.size(); ++i) scale.SetFloat(i, draw.Scale());
  std::vector<float> numbers;
  for (int64_t n = 0; n < m.out; ++n) {
    for (int64_t k = 0; k < m.in; ++k) {
      const int64_t code = draw.Below(16), at = n / 2 * m.in + k;
      codes.SetInt(at, n % 2 == 0 ? code : codes.GetInt(at) + 16 * code);
      numbers.push_back(static_cast<float>(code < 8 ? code : code - 16) *
                        static_cast<float>(scale.GetFloat(n * groups + k / kGroup)));
    }
  }
  (*t)[m.module + ".weight"] = codes;
  (*t)[m.module + ".weight_scale"] = scale;
  AddMultiplier(m, t, &numbers);
  return numbers;
}

TEST(QuantizedModelopt, IntegersOfFourBits) {
  // config.json does not always say how large groups are.
  EXPECT_EQ(ExpectSameNumbers(ModeloptConfig("W4A16_AWQ"), PackInt4), "int4 group=32 scale=f32");
  const json with_group = {{"group_size", 32}, {"pre_quant_scale", true}, {"has_zero_point", false}};
  const auto with_inputs = [](const Matrix& m, Draw& draw, NamedTensors* t) {
    for (const char* part : {"input_scale", "weight_scale_2"}) {
      (*t)[absl::StrCat(m.module, ".", part)] = Tensor::FromValues(DType::kF32, {}, std::vector<double>{0.01});
    }
    return PackInt4(m, draw, t);
  };
  EXPECT_EQ(ExpectSameNumbers(ModeloptConfig("W4A8_AWQ", with_group), with_inputs), "int4 group=32 scale=f32");
}

TEST(QuantizedModelopt, IntegersOfEightBits) {
  const auto pack = [](const Matrix& m, Draw& draw, NamedTensors* t) {
    Tensor codes(DType::kI8, {m.out, m.in}), scale(DType::kF32, {m.out});
    for (int64_t i = 0; i < m.out; ++i) scale.SetFloat(i, draw.Scale() / 16);
    std::vector<float> numbers;
    for (int64_t i = 0; i < codes.size(); ++i) {
      codes.SetInt(i, draw.Below(256) - 128);
      numbers.push_back(static_cast<float>(codes.GetInt(i)) * static_cast<float>(scale.GetFloat(i / m.in)));
    }
    (*t)[m.module + ".weight"] = codes;
    (*t)[m.module + ".weight_scale"] = scale;
    AddMultiplier(m, t, &numbers);
    return numbers;
  };
  EXPECT_EQ(ExpectSameNumbers(ModeloptConfig("W8A16"), pack), "int8 per=channel scale=f32");
  EXPECT_EQ(ExpectSameNumbers(ModeloptConfig("W8A8_SQ_PER_CHANNEL"), pack), "int8 per=channel scale=f32");
}

// Exponents of groups of 32, and with MIXED_PRECISION blocks whose scales have axes of 1.
TEST(QuantizedModelopt, FloatsOfEightBits) {
  const auto pack = [](bool is_block, const Matrix& m, Draw& draw, NamedTensors* t) {
    const int64_t groups = m.in / 32;
    Tensor codes(DType::kF8E4M3, {m.out, m.in}), exponents(DType::kU8, {m.out, groups});
    Tensor scale(DType::kF32, {1, 1, 1, 1});
    scale.SetFloat(0, draw.Scale());
    for (int64_t i = 0; i < exponents.size(); ++i) exponents.SetInt(i, 118 + draw.Below(3));
    std::vector<float> numbers;
    for (int64_t i = 0; i < codes.size(); ++i) {
      codes.SetFloat(i, static_cast<double>(draw.Below(33) - 16) / 4);
      const int64_t exponent = exponents.GetInt(i / m.in * groups + i % m.in / 32);
      const double factor = is_block ? scale.GetFloat(0) : std::ldexp(1, static_cast<int>(exponent) - 127);
      numbers.push_back(static_cast<float>(codes.GetFloat(i) * factor));
    }
    (*t)[m.module + ".weight"] = codes;
    (*t)[m.module + ".weight_scale"] = is_block ? scale : exponents;
    return numbers;
  };
  const auto of_exponents = [&](const Matrix& m, Draw& draw, NamedTensors* t) { return pack(false, m, draw, t); };
  EXPECT_EQ(ExpectSameNumbers(ModeloptConfig("MXFP8"), of_exponents), "f8e4m3 group=32 scale=bf16");
  const auto mixed = [&](const Matrix& m, Draw& draw, NamedTensors* t) {
    if (m.module.find("mlp") != std::string::npos) return PackInt4(m, draw, t);
    return pack(m.module.ends_with("q_proj"), m, draw, t);
  };
  json layers;
  for (const Matrix& m : kMatrices) {
    const bool is_mlp = m.module.find("mlp") != std::string::npos;
    layers[m.module] = {{"quant_algo", m.module.ends_with("q_proj") ? "fp8_pb_wo" : is_mlp ? "W4A16_AWQ" : "MXFP8"}};
  }
  EXPECT_EQ(ExpectSameNumbers(ModeloptConfig("MIXED_PRECISION", {{"quantized_layers", layers}}), mixed),
            "f8e4m3 block=128x128 scale=f32");
}

// Two codes in a byte, scales of 16 numbers in f8e4m3 and one of all that multiplies; or exponents of 32 numbers.
std::vector<float> PackFloatsOfFourBits(bool has_exponents, const Matrix& m, Draw& draw, NamedTensors* t) {
  constexpr float kNumbers[] = {0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6};
  const int64_t run = has_exponents ? 32 : 16;
  const double of_all = 0.0005 * static_cast<double>(1 + draw.Below(4));
  Tensor codes(DType::kU8, {m.out, m.in / 2});
  Tensor scale(has_exponents ? DType::kU8 : DType::kF8E4M3, {m.out, m.in / run});
  for (int64_t i = 0; i < scale.size(); ++i) {
    if (has_exponents) {
      scale.SetInt(i, 118 + draw.Below(3));
    } else {
      scale.SetFloat(i, static_cast<double>(1 + draw.Below(8)));
    }
  }
  std::vector<float> numbers;
  for (int64_t i = 0; i < m.out * m.in; ++i) {
    const int64_t code = draw.Below(16), at = i / run;
    codes.SetInt(i / 2, i % 2 == 0 ? code : codes.GetInt(i / 2) + 16 * code);
    const double factor = has_exponents ? std::ldexp(1, static_cast<int>(scale.GetInt(at)) - 127)
                                        : scale.GetFloat(at) * static_cast<float>(of_all);
    numbers.push_back(static_cast<float>(kNumbers[code] * factor));
  }
  (*t)[m.module + ".weight"] = codes;
  (*t)[m.module + ".weight_scale"] = scale;
  if (!has_exponents) {
    (*t)[m.module + ".weight_scale_2"] = Tensor::FromValues(DType::kF32, {}, std::vector<double>{of_all});
  }
  return numbers;
}

TEST(QuantizedModelopt, FloatsOfFourBits) {
  const auto pack = [](bool has_exponents, bool has_multipliers) {
    return [=](const Matrix& m, Draw& draw, NamedTensors* t) {
      std::vector<float> numbers = PackFloatsOfFourBits(has_exponents, m, draw, t);
      if (has_multipliers) AddMultiplier(m, t, &numbers);
      (*t)[m.module + ".input_scale"] = Tensor::FromValues(DType::kF32, {}, std::vector<double>{0.01});
      return numbers;
    };
  };
  for (const char* algorithm : {"NVFP4", "W4A16_NVFP4", "W4A8_NVFP4_FP8"}) {
    EXPECT_EQ(ExpectSameNumbers(ModeloptConfig(algorithm), pack(false, false)), "nvfp4") << algorithm;
  }
  EXPECT_EQ(ExpectSameNumbers(ModeloptConfig("NVFP4", {{"quant_method", "modelopt_fp4"}}), pack(false, false)),
            "nvfp4");
  EXPECT_EQ(ExpectSameNumbers(ModeloptConfig("NVFP4_AWQ", {{"group_size", 16}, {"pre_quant_scale", true}}),
                              pack(false, true)),
            "nvfp4");
  for (const char* algorithm : {"MXFP4", "W4A8_MXFP4_FP8"}) {
    EXPECT_EQ(ExpectSameNumbers(ModeloptConfig(algorithm, {{"group_size", 32}}), pack(true, false)), "mxfp4")
        << algorithm;
  }
}

// The encodings of the weights of products, and how many there are of each.
std::map<std::string, int> EncodingsOfProducts(const Model& model) {
  std::map<std::string, int> counts;
  for (const auto& node : model.steps[0]->block.nodes) {
    if (!Is<Linear>(node.get())) continue;
    const Encoding* encoding = View<Linear>(*node).rhs->type.encoding;
    ++counts[encoding == nullptr ? "" : encoding->text];
  }
  return counts;
}

// Products of one input are one, whatever the scales of their scales are; with one for all they keep it.
TEST(QuantizedModelopt, MergesProductsWithScalesOfScales) {
  const auto model_of = [](bool is_shared, DecoderForm form, Pagination pagination, NamedTensors* plain) {
    const TestFolder folder;
    const NamedTensors numbers = WritePacked(
        ModeloptConfig("NVFP4"),
        [&](const Matrix& m, Draw& draw, NamedTensors* t) {
          std::vector<float> of_codes = PackFloatsOfFourBits(false, m, draw, t);
          const double of_all = is_shared ? 0.0015 : 0.0005 * static_cast<double>(&m - kMatrices + 1);
          Tensor& stored = (*t)[m.module + ".weight_scale_2"];
          const auto factor = static_cast<float>(of_all / stored.GetFloat(0));
          stored.SetFloat(0, of_all);
          for (float& number : of_codes) number *= factor;
          (*t)[m.module + ".input_scale"] = Tensor::FromValues(DType::kF32, {}, std::vector<double>{0.01});
          return of_codes;
        },
        folder);
    if (plain != nullptr) *plain = numbers;
    auto model = ImportHuggingFace(folder.path(), nullptr, {}, form);
    EXPECT_TRUE(model.ok()) << model.status();
    EXPECT_TRUE(RunPipeline(model->get(), {.stop_after = "fuse", .pagination = pagination}, nullptr).ok());
    return *std::move(model);
  };
  using Counts = std::map<std::string, int>;
  for (const bool is_shared : {false, true}) {
    const std::string merged = is_shared ? "nvfp4" : "nvfp4 outer=row";
    Counts expected = {{"", 1}, {"nvfp4", 2}};  // the head, o and down
    expected[merged] += 2;                      // q, k and v, gate and up
    EXPECT_EQ(EncodingsOfProducts(*model_of(is_shared, DecoderForm::kServed, Pagination::kRequired, nullptr)),
              expected);

    NamedTensors plain;
    const auto model = model_of(is_shared, DecoderForm::kHiddenStates, Pagination::kNever, &plain);
    EXPECT_EQ(EncodingsOfProducts(*model)[merged], is_shared ? 6 : 1) << "gate and up are one";
    const TestFolder floats;
    WriteFolder(floats, SmallConfig(), plain);
    std::unique_ptr<Model> unmerged;
    const auto wanted = LogitsOf(floats.path(), &unmerged);
    ASSERT_TRUE(wanted.ok()) << wanted.status();
    const auto evaluator = Evaluator::Create(model.get());
    ASSERT_TRUE(evaluator.ok()) << evaluator.status();
    const auto outputs =
        (*evaluator)->Run(*model->steps[0], {{"input_ids", Tensor::FromValues(DType::kI64, {1, 7}, kIds)}});
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    const std::vector<float> logits = outputs->at("logits").ToFloats();
    ASSERT_EQ(logits.size(), wanted->size());
    for (size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], (*wanted)[i], 2e-5) << i;
  }
}

// A cache is what --kv=checkpoint is asked for; without it a model loads whatever its caches were.
TEST(QuantizedModelopt, Caches) {
  const auto imported = [](const json& cache, QuantizedUse::Kv kv, bool has_scales = true) {
    const TestFolder folder;
    WritePacked(
        ModeloptConfig("W4A16_AWQ", cache),
        [&](const Matrix& m, Draw& draw, NamedTensors* t) {
          const char* part = m.module.ends_with("k_proj") ? ".k_scale" : ".v_scale";
          const bool has_scale = has_scales && (m.module.ends_with("k_proj") || m.module.ends_with("v_proj"));
          if (has_scale) {
            (*t)[m.module + part] = Tensor::FromValues(DType::kF32, {}, std::vector<double>{0.01});
          }
          return PackInt4(m, draw, t);
        },
        folder);
    return ImportHuggingFace(folder.path(), nullptr, {}, DecoderForm::kServed, {.kv = kv}).status();
  };
  constexpr auto kFloats = QuantizedUse::Kv::kFloats, kCheckpoint = QuantizedUse::Kv::kAsCheckpoint;
  const json eight = {{"kv_cache_scheme", {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}}}};
  EXPECT_TRUE(imported(eight, kCheckpoint).ok());
  EXPECT_TRUE(imported(eight, kFloats, false).ok());
  EXPECT_TRUE(Says(imported(eight, kCheckpoint, false),
                   "missing tensors (2): model.layers.0.self_attn.k_scale (or "
                   "model.layers.0.self_attn.k_proj.output_scale, model.layers.0.self_attn.k_proj.k_scale): the cache "
                   "is to have this static scale; leave out --kv=checkpoint, or give --kv=f8e4m3, which makes scales "
                   "of its own, model.layers.0.self_attn.v_scale (or "));
  const json four = {{"kv_cache_scheme", "NVFP4"}};
  EXPECT_TRUE(imported(four, kFloats).ok());
  EXPECT_TRUE(Says(imported(four, kCheckpoint), "a cache in nvfp4"));
}

}  // namespace
}  // namespace llmc
