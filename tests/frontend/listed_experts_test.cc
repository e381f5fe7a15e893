// gpt-oss as programs take its experts apart to quantize them: a matrix and a bias of each, in lists of fused ones or
// as gates and ups, beside the same model with all experts in one tensor.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "ir/eval.h"
#include "ir/op.h"
#include "ir/ops.h"
#include "passes/pipeline.h"
#include "tests/frontend/packed_model.h"

namespace llmc {
namespace {

constexpr int64_t kGptOssHidden = 64, kGptOssExperts = 3, kGptOssSize = 96;
const std::string kGptOssLayer = "model.layers.0.";

struct Layout {
  std::string gate_up, gate, up, down;  // behind mlp.experts, with N for the expert; gate_up, or gate and up
  std::string router = "mlp.router";
};
const Layout kUnsloth = {.gate_up = "gate_up_projs.N", .down = "down_projs.N", .router = "mlp.router.linear"};
const Layout kGptqModel = {.gate_up = "gate_up.N", .down = "down.N"};
const Layout kLinear = {.gate = "N.gate_proj", .up = "N.up_proj", .down = "N.down_proj"};

json GptOssConfig(const json& quantization) {
  json config = SmallConfig();
  config.update({{"architectures", {"GptOssForCausalLM"}},
                 {"num_local_experts", kGptOssExperts},
                 {"num_experts_per_tok", 2},
                 {"intermediate_size", kGptOssSize},
                 {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}}}});
  if (!quantization.is_null()) config["quantization_config"] = quantization;
  return config;
}

// Numbers in the order of their rows, [rows, columns], with a bias of each row.
struct Rows {
  std::vector<std::vector<float>> rows;
  std::vector<float> biases;
};

Rows PackRows(const std::string& module, int64_t out, int64_t in, const Pack& pack, Draw& draw, NamedTensors* t) {
  const std::vector<float> numbers = pack({module, out, in}, draw, t);
  Rows all;
  for (int64_t i = 0; i < out; ++i) {
    all.rows.emplace_back(numbers.begin() + i * in, numbers.begin() + (i + 1) * in);
    all.biases.push_back(static_cast<float>(0.01 * static_cast<double>(draw.Below(41) - 20)));
  }
  (*t)[module + ".bias"] = Tensor::FromValues(DType::kF32, {out}, all.biases);
  return all;
}

// Gates and ups by turns, as in the one tensor.
Rows ByTurns(const Rows& gate, const Rows& up) {
  Rows all;
  for (size_t i = 0; i < gate.rows.size(); ++i) {
    for (const Rows* half : {&gate, &up}) {
      all.rows.push_back(half->rows[i]);
      all.biases.push_back(half->biases[i]);
    }
  }
  return all;
}

// [experts, columns, rows] and [experts, rows], as transformers has them.
void AddFused(const std::string& name, const std::vector<Rows>& experts, NamedTensors* t) {
  const auto rows = static_cast<int64_t>(experts[0].rows.size()),
             columns = static_cast<int64_t>(experts[0].rows[0].size());
  std::vector<float> numbers, biases;
  for (const Rows& one : experts) {
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = 0; r < rows; ++r) numbers.push_back(one.rows[static_cast<size_t>(r)][static_cast<size_t>(c)]);
    }
    biases.insert(biases.end(), one.biases.begin(), one.biases.end());
  }
  (*t)[name] = Tensor::FromValues(DType::kF32, {kGptOssExperts, columns, rows}, numbers);
  (*t)[name + "_bias"] = Tensor::FromValues(DType::kF32, {kGptOssExperts, rows}, biases);
}

// The tensors of `apart`.
NamedTensors WriteBoth(const Layout& layout, const json& quantization, const Pack& pack, const TestFolder& apart,
                       const TestFolder& fused) {
  NamedTensors tensors, whole;
  Draw draw(7);
  AddUnquantized(&whole);
  AddUnquantized(&tensors);
  const auto of_both = [&](const std::string& name, const std::string& own, const Shape& shape) {
    Tensor x(DType::kF32, shape);
    for (int64_t i = 0; i < x.size(); ++i) x.SetFloat(i, 0.3 * std::sin(static_cast<double>(11 * i + 2)));
    whole[kGptOssLayer + name] = tensors[kGptOssLayer + own] = x;
  };
  for (const Matrix& m : kMatrices) {
    if (!absl::StrContains(m.module, "self_attn")) continue;
    const std::string name = m.module.substr(kGptOssLayer.size());
    of_both(name + ".weight", name + ".weight", {m.out, m.in});
    of_both(name + ".bias", name + ".bias", {m.out});
  }
  of_both("self_attn.sinks", "self_attn.sinks", {2});
  of_both("mlp.router.weight", layout.router + ".weight", {kGptOssExperts, kGptOssHidden});
  of_both("mlp.router.bias", layout.router + ".bias", {kGptOssExperts});
  const std::string experts = kGptOssLayer + "mlp.experts.";
  std::vector<Rows> gate_ups, downs;
  for (int64_t i = 0; i < kGptOssExperts; ++i) {
    const auto add = [&](const std::string& part, int64_t out, int64_t in) {
      const std::string name = absl::StrReplaceAll(part, {{"N", absl::StrCat(i)}});
      return PackRows(experts + name, out, in, pack, draw, &tensors);
    };
    gate_ups.push_back(layout.gate_up.empty() ? ByTurns(add(layout.gate, kGptOssSize, kGptOssHidden),
                                                        add(layout.up, kGptOssSize, kGptOssHidden))
                                              : add(layout.gate_up, 2 * kGptOssSize, kGptOssHidden));
    downs.push_back(add(layout.down, kGptOssHidden, kGptOssSize));
  }
  AddFused(experts + "gate_up_proj", gate_ups, &whole);
  AddFused(experts + "down_proj", downs, &whole);
  WriteFolder(fused, GptOssConfig({}), whole);
  WriteFolder(apart, GptOssConfig(quantization), tensors);
  return tensors;
}

std::vector<float> PackFloats(const Matrix& m, Draw& draw, NamedTensors* t) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < m.out * m.in; ++i) numbers.push_back(0.02f * static_cast<float>(draw.Below(17) - 8));
  (*t)[m.module + ".weight"] = Tensor::FromValues(DType::kF32, {m.out, m.in}, numbers);
  return numbers;
}

// The numbers of the products with experts, weights and biases in turn, as `prepare` makes them.
struct ExpertNumbers {
  std::vector<std::vector<float>> numbers;
  int64_t encoded = 0;  // so many weights are
};

absl::StatusOr<ExpertNumbers> NumbersOf(const TestFolder& folder) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, ImportHuggingFace(folder.path()));
  RETURN_IF_ERROR(RunPipeline(model.get(), {.stop_after = "hoist-weights"}, nullptr));
  ExpertNumbers read;
  auto numbers = std::make_unique<Step>();
  numbers->name = "numbers";
  Builder builder(model.get(), &model->prepare);
  const auto add = [&](Value* value) {
    const bool is_encoded = value->type.encoding != nullptr;
    read.encoded += is_encoded ? 1 : 0;
    if (is_encoded) value = builder.Add(Decode{.x = value});
    numbers->outputs.push_back({absl::StrCat(numbers->outputs.size()), value});
  };
  for (const auto& node : model->steps[0]->block.nodes) {
    if (!Is<ExpertLinear>(node.get())) continue;
    add(View<ExpertLinear>(*node).weight);
    add(View<ExpertLinear>(*node).bias);
  }
  model->steps.push_back(std::move(numbers));
  ASSIGN_OR_RETURN(const auto evaluator, Evaluator::Create(model.get()));
  ASSIGN_OR_RETURN(const NamedTensors outputs, evaluator->Run(*model->steps.back(), {}));
  for (const auto& [name, tensor] : outputs) read.numbers.push_back(tensor.ToFloats());
  return read;
}

void ExpectSame(const TestFolder& apart, const TestFolder& fused, int64_t encoded) {
  const absl::StatusOr<ExpertNumbers> actual = NumbersOf(apart), expected = NumbersOf(fused);
  ASSERT_TRUE(actual.ok() && expected.ok()) << actual.status() << expected.status();
  EXPECT_EQ(actual->encoded, encoded);
  ASSERT_EQ(expected->numbers.size(), 4u) << "gates and ups, downs, and their biases";
  ASSERT_EQ(actual->numbers.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(actual->numbers[i], expected->numbers[i]) << i;
}

TEST(ListedExperts, AreThoseOfOneTensor) {
  for (const Layout& layout : {kUnsloth, kGptqModel, kLinear}) {
    SCOPED_TRACE(layout.down);
    const TestFolder apart, fused;
    WriteBoth(layout, {}, PackFloats, apart, fused);
    ExpectSame(apart, fused, 0);
  }
}

TEST(ListedExperts, AreEncodedAsTheyWereStored) {
  const json gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}, {"sym", false}};
  for (const Layout& layout : {kUnsloth, kGptqModel, kLinear}) {
    SCOPED_TRACE(layout.down);
    const auto pack = [](const Matrix& m, Draw& draw, NamedTensors* t) { return PackGptq({}, m, draw, t); };
    const TestFolder apart, fused;
    WriteBoth(layout, gptq, pack, apart, fused);
    ExpectSame(apart, fused, 2);
  }
}

// An expert without its bias, and one without its weight: an error that names the tensor.
TEST(ListedExperts, WhatIsMissingIsNamed) {
  for (const std::string part : {"1.weight", "0.bias", "1.bias"}) {
    const TestFolder apart, fused;
    NamedTensors tensors = WriteBoth(kUnsloth, {}, PackFloats, apart, fused);
    const std::string name = kGptOssLayer + "mlp.experts.down_projs." + part;
    ASSERT_EQ(tensors.erase(name), 1u);
    WriteFolder(apart, GptOssConfig({}), tensors);
    EXPECT_TRUE(Says(ImportHuggingFace(apart.path()).status(), name)) << part;
  }
}

}  // namespace
}  // namespace llmc
