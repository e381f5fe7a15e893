// Mixtures of experts in GGUF files: weights stay in blocks, and compute what the same numbers in floats do.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "frontend/import.h"
#include "ir/encoding.h"
#include "ir/eval.h"
#include "ir/ops.h"
#include "ir/step_inputs.h"
#include "tests/frontend/gguf_bytes.h"
#include "tests/frontend/test_folder.h"

namespace llmc {
namespace {

constexpr int64_t kHidden = 256, kSize = 512, kCount = 4, kVocab = 12;
constexpr uint32_t kF32 = 0, kQ8_0 = 8, kQ4_K = 12, kQ6_K = 14, kMxfp4 = 39;

const char* EncodingOf(uint32_t type) {
  return type == kQ8_0 ? "q8_0" : type == kQ4_K ? "q4_k" : type == kQ6_K ? "q6_k" : "mxfp4_gguf";
}

// Blocks of any bits with scales that make numbers of usual sizes.
Tensor RandomBlocks(const EncodingFormat& format, const Shape& shape, uint32_t seed) {
  Shape stored = shape;
  stored.back() = stored.back() / format.superblock * format.superblock_bytes;
  Tensor bytes(DType::kU8, stored);
  uint32_t state = seed;
  for (int64_t i = 0; i < bytes.size(); ++i) bytes.SetInt(i, (state = state * 1664525 + 1013904223) >> 24);
  for (int64_t block = 0; block < bytes.size(); block += format.superblock_bytes) {
    if (format.halves_at[0] < 0) bytes.SetInt(block, 119 + block % 3);  // an exponent
    for (const int at : format.halves_at) {
      if (at < 0) continue;
      const uint16_t half = FloatToHalf(0.0001f + 0.00001f * static_cast<float>((block + at) % 17));
      bytes.SetInt(block + at, half & 255);
      bytes.SetInt(block + at + 1, half >> 8);
    }
  }
  return bytes;
}

struct StoredTensor {
  std::string name;
  Shape shape;
  uint32_t type;
  std::string bytes;
};

Tensor Floats(const Shape& shape, double mean, int seed) {
  Tensor x(DType::kF32, shape);
  for (int64_t i = 0; i < x.size(); ++i) x.SetFloat(i, mean + 0.1 * std::sin(static_cast<double>((7 + seed) * i + 1)));
  return x;
}

std::string BytesOf(const Tensor& x) { return {x.raw(), static_cast<size_t>(x.bytes())}; }

struct ExpertTypes {
  uint32_t gate, up, down;
};

// A model of one layer. With `as_floats` the experts have the numbers of those blocks in f32.
std::string FileOf(const ExpertTypes& types, bool as_floats) {
  std::vector<StoredTensor> tensors;
  int seed = 0;
  const auto add = [&](const std::string& name, const Shape& shape, double mean = 0) {
    tensors.push_back({name, shape, kF32, BytesOf(Floats(shape, mean, ++seed))});
  };
  add("token_embd.weight", {kVocab, kHidden});
  add("output_norm.weight", {kHidden}, 1);
  for (const char* norm : {"attn_norm", "ffn_norm"}) add(absl::StrCat("blk.0.", norm, ".weight"), {kHidden}, 1);
  for (const char* norm : {"attn_q_norm", "attn_k_norm"}) add(absl::StrCat("blk.0.", norm, ".weight"), {32}, 1);
  add("blk.0.attn_q.weight", {64, kHidden});
  for (const char* kv : {"attn_k", "attn_v"}) add(absl::StrCat("blk.0.", kv, ".weight"), {32, kHidden});
  add("blk.0.attn_output.weight", {kHidden, 64});
  add("blk.0.ffn_gate_inp.weight", {kCount, kHidden});
  const auto add_experts = [&](const std::string& name, const Shape& shape, uint32_t type) {
    const EncodingFormat& format = *(*ParseEncoding(EncodingOf(type)))->format;
    const Tensor blocks = RandomBlocks(format, shape, static_cast<uint32_t>(++seed));
    Tensor numbers(DType::kF32, shape);
    for (int64_t i = 0; i * format.superblock < numbers.size(); ++i) {
      format.decode_superblock(blocks.data<uint8_t>() + i * format.superblock_bytes,
                               numbers.mutable_data<float>() + i * format.superblock);
    }
    tensors.push_back({name, shape, as_floats ? kF32 : type, BytesOf(as_floats ? numbers : blocks)});
  };
  add_experts("blk.0.ffn_gate_exps.weight", {kCount, kSize, kHidden}, types.gate);
  add_experts("blk.0.ffn_up_exps.weight", {kCount, kSize, kHidden}, types.up);
  add_experts("blk.0.ffn_down_exps.weight", {kCount, kHidden, kSize}, types.down);

  GgufBytes b;
  b.Header(tensors.size(), 11).Text("general.architecture").Put<uint32_t>(8).Text("qwen3moe");
  const auto number = [&](const char* key, uint32_t value) {
    b.Text(absl::StrCat("qwen3moe.", key)).Put<uint32_t>(4).Put(value);
  };
  number("block_count", 1);
  number("context_length", 32);
  number("embedding_length", kHidden);
  number("feed_forward_length", kSize);
  number("attention.head_count", 2);
  number("attention.head_count_kv", 1);
  number("attention.key_length", 32);
  number("expert_count", kCount);
  number("expert_used_count", 2);
  uint64_t offset = 0;
  b.Text("qwen3moe.expert_feed_forward_length").Put<uint32_t>(4).Put<uint32_t>(kSize);
  for (const StoredTensor& tensor : tensors) {
    b.Info(tensor.name, {tensor.shape.rbegin(), tensor.shape.rend()}, tensor.type, offset);
    offset += (tensor.bytes.size() + 31) / 32 * 32;
  }
  b.Data(0);
  std::string bytes = b.str();
  for (const StoredTensor& tensor : tensors) {
    bytes += tensor.bytes;
    bytes.resize((bytes.size() + 31) / 32 * 32);
  }
  return bytes;
}

// Of 5 tokens.
absl::StatusOr<std::vector<float>> LogitsOf(const Model& model) {
  auto evaluator = Evaluator::Create(&model);
  if (!evaluator.ok()) return evaluator.status();
  if (absl::Status s = (*evaluator)->AllocateStates({{"N", 1}}); !s.ok()) return s;
  const Step& step = *model.steps[0];
  const auto ints = [](const std::vector<int64_t>& of, Shape shape) {
    return Tensor::FromValues(DType::kI32, std::move(shape), of);
  };
  std::map<std::string, Tensor> inputs;
  for (const auto& [role, tensor] : {std::pair(StepRole::kTokenIds, ints({3, 1, 11, 0, 7}, {5})),
                                     {StepRole::kPositions, ints({0, 1, 2, 3, 4}, {5})},
                                     {StepRole::kSlots, ints({0, 1, 2, 3, 4}, {5})},
                                     {StepRole::kPageTable, ints({0}, {1, 1})},
                                     {StepRole::kLengths, ints({5}, {1})},
                                     {StepRole::kStarts, ints({0, 5}, {2})},
                                     {StepRole::kRows, ints({0, 1, 2, 3, 4}, {5})}}) {
    inputs[FindInput(step, role)->name.substr(1)] = tensor;
  }
  const auto outputs = (*evaluator)->Run(step, inputs);
  if (!outputs.ok()) return outputs.status();
  return outputs->at("logits").ToFloats();
}

std::vector<const Node*> ExpertProducts(const Model& model) {
  std::vector<const Node*> products;
  for (const auto& node : model.steps[0]->block.nodes) {
    if (Is<ExpertLinear>(node.get())) products.push_back(node.get());
  }
  return products;
}

// The encodings of the weights of products with experts, in order.
std::vector<std::string> EncodingsOfExperts(const ExpertTypes& types) {
  SCOPED_TRACE(EncodingOf(types.gate));
  const TestFolder folder;
  const auto encoded = ImportGguf(folder.Write("e.gguf", FileOf(types, false)));
  const auto floats = ImportGguf(folder.Write("f.gguf", FileOf(types, true)));
  EXPECT_TRUE(encoded.ok()) << encoded.status();
  EXPECT_TRUE(floats.ok()) << floats.status();
  if (!encoded.ok() || !floats.ok()) return {};
  const auto expected = LogitsOf(**floats), actual = LogitsOf(**encoded);
  EXPECT_TRUE(expected.ok()) << expected.status();
  EXPECT_TRUE(actual.ok()) << actual.status();
  if (!expected.ok() || !actual.ok()) return {};
  double spread = 0;
  for (size_t i = 0; i < expected->size(); ++i) {
    EXPECT_NEAR((*actual)[i], (*expected)[i], 1e-5) << i;
    spread = std::max<double>(spread, std::abs((*expected)[i]));
  }
  EXPECT_GT(spread, 0.1) << "the logits say nothing of the weights";
  std::vector<std::string> encodings;
  for (const Node* node : ExpertProducts(**encoded)) {
    const Encoding* encoding = View<ExpertLinear>(*node).weight->type.encoding;
    encodings.push_back(encoding == nullptr ? "" : encoding->text);
  }
  return encodings;
}

TEST(GgufExperts, StayInBlocks) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(EncodingsOfExperts({kQ4_K, kQ4_K, kQ6_K}), Names({"q4_k", "q6_k"}));
  EXPECT_EQ(EncodingsOfExperts({kQ8_0, kQ8_0, kQ8_0}), Names({"q8_0", "q8_0"}));
  EXPECT_EQ(EncodingsOfExperts({kMxfp4, kMxfp4, kMxfp4}), Names({"mxfp4_gguf", "mxfp4_gguf"}));
}

// Gates and ups of different types cannot be one weight.
TEST(GgufExperts, OfDifferentTypesAreProductsOfTheirOwn) {
  EXPECT_EQ(EncodingsOfExperts({kQ4_K, kQ6_K, kQ8_0}), std::vector<std::string>({"q4_k", "q6_k", "q8_0"}));
}

}  // namespace
}  // namespace llmc
