// Experts of quantized folders, matrix by matrix: columns in an order of each, and gates and ups that cannot be one
// weight.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "ir/encoding.h"
#include "ir/ops.h"
#include "tests/frontend/packed_model.h"

namespace llmc {
namespace {

constexpr int64_t kExperts = 3, kExpertSize = 96;

json ExpertConfig(const json& quantization) {
  json config = SmallConfig();
  config.update({{"architectures", {"Qwen3MoeForCausalLM"}},
                 {"num_experts", kExperts},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", kExpertSize},
                 {"decoder_sparse_step", 1},
                 {"norm_topk_prob", true}});
  if (!quantization.is_null()) config["quantization_config"] = quantization;
  return config;
}

// The number of products with experts, of a model whose experts are packed and that agrees with the plain one.
size_t ProductsOfAgreeing(const json& quantization, const Pack& pack) {
  NamedTensors packed, plain;
  Draw draw(5);
  const auto of_both = [&](const std::string& name, Shape shape, double mean) {
    Tensor x(DType::kF32, std::move(shape));
    for (int64_t i = 0; i < x.size(); ++i) x.SetFloat(i, mean + 0.3 * std::sin(static_cast<double>(11 * i + 2)));
    plain[name] = packed[name] = x;
  };
  AddUnquantized(&packed);
  AddUnquantized(&plain);
  const std::string layer = "model.layers.0.";
  for (const Matrix& m : kMatrices) {
    if (absl::StrContains(m.module, "self_attn")) of_both(m.module + ".weight", {m.out, m.in}, 0);
  }
  for (const char* norm : {"self_attn.q_norm", "self_attn.k_norm"}) of_both(layer + norm + ".weight", {32}, 1);
  of_both(layer + "mlp.gate.weight", {kExperts, 64}, 0);
  for (int64_t i = 0; i < kExperts; ++i) {
    for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
      const bool is_down = part == absl::string_view("down_proj");
      const Matrix m = {absl::StrCat(layer, "mlp.experts.", i, ".", part), is_down ? 64 : kExpertSize,
                        is_down ? kExpertSize : 64};
      plain[m.module + ".weight"] = Tensor::FromValues(DType::kF32, {m.out, m.in}, pack(m, draw, &packed));
    }
  }
  const TestFolder quantized, floats;
  WriteFolder(floats, ExpertConfig({}), plain);
  WriteFolder(quantized, ExpertConfig(quantization), packed);
  const std::unique_ptr<Model> model = ExpectLogitsOf(floats.path(), quantized.path());
  if (model == nullptr) return 0;
  size_t products = 0;
  for (const auto& node : model->steps[0]->block.nodes) {
    if (!Is<ExpertLinear>(node.get())) continue;
    EXPECT_NE(View<ExpertLinear>(*node).weight->type.encoding, nullptr);
    ++products;
  }
  return products;
}

int64_t ExpertOf(const Matrix& m) { return m.module[m.module.find("experts.") + 8] - '0'; }
bool IsUp(const Matrix& m) { return absl::StrContains(m.module, "up_proj"); }

const json kGptqConfig = {
    {"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}, {"sym", false}, {"desc_act", true}};

Tensor Stacked(const std::vector<Tensor>& all) {
  Shape shape = all[0].shape();
  shape.insert(shape.begin(), static_cast<int64_t>(all.size()));
  Tensor out(all[0].dtype(), shape);
  for (size_t i = 0; i < all.size(); ++i) {
    const auto bytes = static_cast<size_t>(all[i].bytes());
    std::memcpy(out.mutable_raw() + i * bytes, all[i].raw(), bytes);
  }
  return out;
}

// The gate and up of an expert have the same order, and other experts another one, or none.
TEST(QuantizedExperts, ColumnsInAnOrderOfEach) {
  const auto products = ProductsOfAgreeing(kGptqConfig, [](const Matrix& m, Draw& draw, NamedTensors* t) {
    return PackGptq({.act_order = ExpertOf(m) != 1, .order_step = 5 + 6 * ExpertOf(m)}, m, draw, t);
  });
  EXPECT_EQ(products, 2u);
}

TEST(QuantizedExperts, GatesAndUpsInDifferentOrders) {
  const auto products = ProductsOfAgreeing(kGptqConfig, [](const Matrix& m, Draw& draw, NamedTensors* t) {
    return PackGptq({.act_order = true, .order_step = IsUp(m) ? 11 : 5}, m, draw, t);
  });
  EXPECT_EQ(products, 3u);
}

// E2M1 with scales of 16 in f8e4m3, divided by one f32 for the matrix (compressed-tensors, nvfp4-pack-quantized).
std::vector<float> PackNvfp4(const Matrix& m, double global, Draw& draw, NamedTensors* t) {
  constexpr double kNumbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  Tensor packed(DType::kU8, {m.out, m.in / 2}), scale(DType::kF8E4M3, {m.out, m.in / 16});
  for (int64_t i = 0; i < scale.size(); ++i) scale.SetFloat(i, static_cast<double>(1 + draw.Below(8)));
  std::vector<float> numbers;
  for (int64_t i = 0; i < packed.size(); ++i) {
    const int64_t low = draw.Below(16), high = draw.Below(16);
    packed.SetInt(i, low | high << 4);
    for (const int64_t code : {low, high}) {
      const double number = (code < 8 ? 1 : -1) * kNumbers[code % 8];
      numbers.push_back(static_cast<float>(number * scale.GetFloat(i / 8) / global));
    }
  }
  (*t)[m.module + ".weight_packed"] = packed;
  (*t)[m.module + ".weight_scale"] = scale;
  (*t)[m.module + ".weight_global_scale"] = Tensor::FromValues(DType::kF32, {1}, std::vector<double>{global});
  return numbers;
}

TEST(QuantizedExperts, GatesAndUpsWithScalesOfTheirOwn) {
  const json config = {{"quant_method", "compressed-tensors"},
                       {"format", "nvfp4-pack-quantized"},
                       {"ignore", {"lm_head", "re:.*self_attn.*", "re:.*mlp.gate$"}},
                       {"config_groups",
                        {{"group_0",
                          {{"targets", {"Linear"}},
                           {"weights",
                            {{"num_bits", 4},
                             {"type", "float"},
                             {"symmetric", true},
                             {"strategy", "tensor_group"},
                             {"group_size", 16},
                             {"dynamic", false}}}}}}}};
  const auto products = [&](double of_ups) {
    return ProductsOfAgreeing(config, [&](const Matrix& m, Draw& draw, NamedTensors* t) {
      return PackNvfp4(m, (IsUp(m) ? of_ups : 512) * static_cast<double>(1 + ExpertOf(m)), draw, t);
    });
  };
  EXPECT_EQ(products(512), 2u);
  EXPECT_EQ(products(256), 2u);
}

// MLX has a tensor with the gates of all experts, and so on. Its modules may have codes of different widths.
TEST(QuantizedExperts, InStacks) {
  const auto products = [&](int up_bits) {
    json config = {{"quant_method", "mlx"}, {"group_size", 32}, {"bits", 4}};
    config["model.layers.0.mlp.switch_mlp.up_proj"] = {{"bits", up_bits}};
    std::map<std::string, std::vector<Tensor>> parts;
    return ProductsOfAgreeing(config, [=, &parts](const Matrix& m, Draw& draw, NamedTensors* t) {
      NamedTensors own;
      const std::vector<float> numbers = PackMlx({.bits = IsUp(m) ? up_bits : 4}, {"m", m.out, m.in}, draw, &own);
      const std::string stack = absl::StrCat("model.layers.0.mlp.switch_mlp", m.module.substr(m.module.rfind('.')));
      for (const auto& [name, tensor] : own) {
        std::vector<Tensor>& all = parts[stack + name.substr(1)];
        all.push_back(tensor);
        if (all.size() == kExperts) (*t)[stack + name.substr(1)] = Stacked(all);
      }
      return numbers;
    });
  };
  EXPECT_EQ(products(4), 2u);
  EXPECT_EQ(products(8), 3u);
}

}  // namespace
}  // namespace llmc
