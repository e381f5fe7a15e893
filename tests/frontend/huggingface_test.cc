// The Hugging Face importer: its graph, its account of tensors, and its numbers against transformers.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "frontend/formats/safetensors.h"
#include "frontend/import.h"
#include "ir/eval.h"
#include "ir/ops.h"
#include "ir/state_type.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "tests/families.h"
#include "tests/frontend/test_folder.h"
#include "tests/shared_data.h"

namespace llmc {
namespace {

using nlohmann::json;

// ---- a made-up model -----------------------------------------------------------
json TinyConfig() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 8},
          {"intermediate_size", 12},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"vocab_size", 10},
          {"max_position_embeddings", 40}};
}

Tensor Filled(DType dtype, Shape shape) {
  Tensor t(dtype, std::move(shape));
  for (int64_t i = 0; i < t.size(); ++i) t.SetFloat(i, std::sin(static_cast<double>(i)) / 4);
  return t;
}

NamedTensors TinyTensors() {
  NamedTensors t;
  const auto add = [&t](const std::string& name, Shape shape) { t[name] = Filled(DType::kF32, std::move(shape)); };
  add("model.embed_tokens.weight", {10, 8});
  for (int i = 0; i < 2; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    add(layer + "input_layernorm.weight", {8});
    add(layer + "post_attention_layernorm.weight", {8});
    add(layer + "self_attn.q_proj.weight", {8, 8});
    add(layer + "self_attn.k_proj.weight", {4, 8});
    add(layer + "self_attn.v_proj.weight", {4, 8});
    add(layer + "self_attn.o_proj.weight", {8, 8});
    add(layer + "mlp.gate_proj.weight", {12, 8});
    add(layer + "mlp.up_proj.weight", {12, 8});
    add(layer + "mlp.down_proj.weight", {8, 12});
  }
  add("model.norm.weight", {8});
  add("lm_head.weight", {10, 8});
  return t;
}

absl::StatusOr<std::unique_ptr<Model>> Import(const json& config, const NamedTensors& tensors,
                                              std::vector<IgnoredTensor>* ignored = nullptr) {
  TestFolder folder;
  folder.Write("config.json", config.dump());
  if (absl::Status s = WriteSafetensors(folder / "model.safetensors", tensors); !s.ok()) return s;
  return ImportHuggingFace(folder.path(), ignored);
}

TEST(ImportHuggingFace, GraphIsWellFormedText) {
  const auto model = Import(TinyConfig(), TinyTensors());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(Verify(**model, Phase::kImported).ok());
  EXPECT_EQ((*model)->dims["P"], 3) << "40 positions are 3 pages of 16";
  EXPECT_EQ((*model)->states.size(), 2u);
  EXPECT_EQ(TypeText(*(*model)->states[0]), "paged[N, 16] {k: f32[1, 4], v: f32[1, 4]}");
  EXPECT_EQ((*model)->Find("@l1.wq")->source, "model.safetensors#model.layers.1.self_attn.q_proj.weight");
  const std::string text = PrintModel(**model);
  for (const char* part : {"%starts: i32[S + 1]", "loc \"model.layers.1.mlp.down_proj\"", "transpose_rhs = true"}) {
    EXPECT_TRUE(absl::StrContains(text, part)) << part << "\n" << text;
  }
  const auto again = ParseModel(text, "again.lir");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(PrintModel(**again), text);
}

TEST(ImportHuggingFace, ListsEveryTensorThatDoesNotFit) {
  NamedTensors tensors = TinyTensors();
  tensors.erase("model.layers.0.mlp.up_proj.weight");
  tensors.erase("model.norm.weight");
  tensors["model.layers.1.self_attn.q_proj.weight"] = Filled(DType::kF32, {8, 6});
  tensors["model.layers.1.self_attn.k_proj.weight"] = Tensor(DType::kI8, {4, 8});
  tensors["model.layers.0.self_attn.q_proj.bias"] = Filled(DType::kF32, {8});
  tensors["model.layers.2.input_layernorm.weight"] = Filled(DType::kF32, {8});
  const absl::Status status = Import(TinyConfig(), tensors).status();
  for (const char* part :
       {"missing tensors (2)", "model.layers.0.mlp.up_proj.weight[12, 8]", "model.norm.weight[8]",
        "wrong shape or type (2)",
        "model.safetensors: model.layers.1.self_attn.q_proj.weight is f32[8, 6], config.json asks for [8, 8]",
        "model.layers.1.self_attn.k_proj.weight is i8", "does not use (2)", "model.layers.0.self_attn.q_proj.bias",
        "model.layers.2.input_layernorm.weight"}) {
    EXPECT_TRUE(Says(status, part));
  }
}

TEST(ImportHuggingFace, IgnoresOnlyWhatHasAReason) {
  json config = TinyConfig();
  NamedTensors tensors = TinyTensors();
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = Filled(DType::kF32, {2});
  std::vector<IgnoredTensor> ignored;
  ASSERT_TRUE(Import(config, tensors, &ignored).ok());
  ASSERT_EQ(ignored.size(), 1u);
  EXPECT_EQ(ignored[0].name, "model.layers.0.self_attn.rotary_emb.inv_freq");

  for (const char* other : {"evil.rotary_emb.inv_freq", "model.layers.2.self_attn.rotary_emb.inv_freq"}) {
    NamedTensors more = tensors;
    more[other] = Filled(DType::kF32, {2});
    EXPECT_TRUE(Says(Import(config, more).status(), other)) << "there is no such module";
  }

  config["tie_word_embeddings"] = true;
  ASSERT_TRUE(Import(config, tensors, &ignored).ok()) << "lm_head is the embedding";
  EXPECT_EQ(ignored.size(), 2u);
  tensors["lm_head.weight"] = Tensor(DType::kF32, {10, 8});
  EXPECT_TRUE(Says(Import(config, tensors).status(), "lm_head.weight: differs from the embedding"));
  tensors.erase("lm_head.weight");
  const auto tied = Import(config, tensors);
  ASSERT_TRUE(tied.ok()) << tied.status();
  EXPECT_EQ((*tied)->Find("@lm_head"), nullptr);
  config["tie_word_embeddings"] = false;
  EXPECT_TRUE(Says(Import(config, tensors).status(), "lm_head.weight[10, 8]"));
}

TEST(ImportHuggingFace, WeightsOfOtherTypesAreCast) {
  NamedTensors tensors = TinyTensors();
  tensors["model.embed_tokens.weight"] = Filled(DType::kBF16, {10, 8});
  const auto model = Import(TinyConfig(), tensors);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->states[0]->state->components[0].type.dtype, DType::kBF16);
  EXPECT_EQ((*model)->Find("@l0.wq")->type.dtype, DType::kF32);
  EXPECT_EQ((*model)->Find("%q0")->type.dtype, DType::kBF16);
  EXPECT_EQ((*model)->Find("%logits")->type.dtype, DType::kF32);
}

TEST(ImportHuggingFace, FileErrors) {
  TestFolder folder;
  EXPECT_TRUE(Says(ImportHuggingFace(folder.path()).status(), "not a Hugging Face model folder: no config.json"));
  folder.Write("adapter_config.json", "{}");
  folder.Write("m.onnx", "");
  EXPECT_TRUE(Says(ImportHuggingFace(folder.path()).status(), "merge that into its base model"));
  EXPECT_TRUE(Says(ImportHuggingFace(folder.path()).status(), "give the file itself: " + (folder / "m.onnx")));
  folder.Write("config.json", "{");
  EXPECT_TRUE(Says(ImportHuggingFace(folder.path()).status(), "not JSON"));
  folder.Write("config.json", TinyConfig().dump());
  EXPECT_TRUE(Says(ImportHuggingFace(folder.path()).status(), "neither model.safetensors nor"));
  folder.Write("pytorch_model.bin", "");
  EXPECT_TRUE(Says(ImportHuggingFace(folder.path()).status(), "there are \"pytorch_model.bin\", \"m.onnx\""));
}

// ---- numbers -------------------------------------------------------------------
// The same model with every float weight and state in f32, so that it computes as the reference did.
absl::Status RetypeToF32(Model* model) {
  for (Value* weight : model->weights) {
    if (!IsFloat(weight->type.dtype)) continue;
    const Tensor& stored = model->data.at(weight->name);
    model->data[weight->name] = Tensor::FromValues(DType::kF32, stored.shape(), stored.ToFloats());
    weight->type.dtype = DType::kF32;
  }
  for (Value* state : model->states) {
    StateType type = *state->state;
    for (StateComponent& component : type.components) component.type.dtype = DType::kF32;
    Model::SetStateType(state, type);
  }
  for (auto& node : model->steps[0]->block.nodes) {
    for (auto& [name, attr] : node->attrs) {
      if (DType* to = std::get_if<DType>(&attr); to != nullptr && IsFloat(*to)) *to = DType::kF32;
    }
    if (absl::Status s = model->Reinfer(node.get()); !s.ok()) return s;
  }
  return Verify(*model, Phase::kImported);
}

Tensor Ints(Shape shape, const std::vector<int64_t>& values) {
  return Tensor::FromValues(DType::kI32, std::move(shape), values);
}

// A step over tokens [first[s], last[s]) of each sequence. Sequence s owns `pages` pages, in an order that is not the
// pool's, and wants the logits of all its tokens.
struct Chunk {
  std::vector<int64_t> ids, pos, slots, pages, lens, starts = {0}, rows;
};

Chunk MakeChunk(const std::vector<std::vector<int64_t>>& sequences, const std::vector<int64_t>& first,
                const std::vector<int64_t>& last, int64_t pages) {
  Chunk c;
  const int64_t count = static_cast<int64_t>(sequences.size());
  for (int64_t s = 0; s < count; ++s) {
    const auto page = [&](int64_t i) { return count * pages - 1 - (i * count + s); };
    for (int64_t i = 0; i < pages; ++i) c.pages.push_back(page(i));
    for (int64_t p = first[s]; p < last[s]; ++p) {
      c.rows.push_back(static_cast<int64_t>(c.ids.size()));
      c.ids.push_back(sequences[s][p]);
      c.pos.push_back(p);
      c.slots.push_back(page(p / kDefaultPageSize) * kDefaultPageSize + p % kDefaultPageSize);
    }
    c.lens.push_back(last[s]);
    c.starts.push_back(static_cast<int64_t>(c.ids.size()));
  }
  return c;
}

absl::StatusOr<Tensor> RunChunk(Evaluator* evaluator, const Chunk& c, int64_t pages) {
  const int64_t tokens = static_cast<int64_t>(c.ids.size()), sequences = static_cast<int64_t>(c.lens.size());
  const NamedTensors inputs = {{"ids", Ints({tokens}, c.ids)},      {"pos", Ints({tokens}, c.pos)},
                               {"slots", Ints({tokens}, c.slots)},  {"pages", Ints({sequences, pages}, c.pages)},
                               {"lens", Ints({sequences}, c.lens)}, {"starts", Ints({sequences + 1}, c.starts)},
                               {"rows", Ints({tokens}, c.rows)}};
  absl::StatusOr<NamedTensors> outputs = evaluator->Run(*evaluator->model().steps[0], inputs);
  if (!outputs.ok()) return outputs.status();
  return outputs->at("logits");
}

// Logits of all tokens of all sequences: the first `split` tokens of each in one step, the others in steps of one
// token.
absl::StatusOr<std::vector<std::vector<double>>> Logits(const Model& model,
                                                        const std::vector<std::vector<int64_t>>& sequences,
                                                        int64_t split) {
  absl::StatusOr<std::unique_ptr<Evaluator>> evaluator = Evaluator::Create(&model);
  if (!evaluator.ok()) return evaluator.status();
  const int64_t length = static_cast<int64_t>(sequences[0].size());
  const int64_t count = static_cast<int64_t>(sequences.size());
  const int64_t pages = (length + kDefaultPageSize - 1) / kDefaultPageSize;
  if (absl::Status s = (*evaluator)->AllocateStates({{"N", pages * count}}); !s.ok()) return s;
  std::vector<std::vector<double>> logits(count);
  for (int64_t first = 0; first < length;) {
    const int64_t last = first == 0 ? split : first + 1;
    const Chunk chunk =
        MakeChunk(sequences, std::vector<int64_t>(count, first), std::vector<int64_t>(count, last), pages);
    absl::StatusOr<Tensor> out = RunChunk(evaluator->get(), chunk, pages);
    if (!out.ok()) return out.status();
    const std::vector<double> values = out->ToDoubles();
    const int64_t part = static_cast<int64_t>(values.size()) / count;
    for (int64_t s = 0; s < count; ++s) {
      logits[s].insert(logits[s].end(), values.begin() + s * part, values.begin() + (s + 1) * part);
    }
    first = last;
  }
  return logits;
}

double MaxDifference(const std::vector<double>& a, const Tensor& b, int64_t offset) {
  double difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b.GetFloat(offset + static_cast<int64_t>(i)));
    if (!(d <= difference)) difference = d;  // keeps a NaN
  }
  return difference;
}

constexpr double kTolerance = 1e-4;

class TinyModels : public testing::TestWithParam<const char*> {};

// Where the rotation depends on the length of the sequence, what was cached for a shorter one is another's.
bool IsRotatedByLength(const std::string& folder) {
  const json config = json::parse(std::ifstream(folder + "/config.json"));
  return config.dump().find("longrope") != std::string::npos || config.dump().find("dynamic") != std::string::npos;
}

void ExpectLogitsOfTransformers(const std::string& folder) {
  const auto reference = ReadSafetensors(folder + "/reference.safetensors");
  ASSERT_TRUE(reference.ok()) << reference.status();
  const Tensor& ids = reference->at("input_ids");
  const Tensor& wanted = reference->at("logits");
  std::vector<std::vector<int64_t>> sequences(ids.shape()[0]);
  for (int64_t i = 0; i < ids.size(); ++i) sequences[i / ids.shape()[1]].push_back(ids.GetInt(i));

  const auto model = ImportHuggingFace(folder);
  ASSERT_TRUE(model.ok()) << model.status();
  const absl::Status retyped = RetypeToF32(model->get());
  ASSERT_TRUE(retyped.ok()) << retyped;
  for (int64_t split : {ids.shape()[1], int64_t{5}}) {
    if (split == 5 && IsRotatedByLength(folder)) continue;
    const auto logits = Logits(**model, sequences, split);
    ASSERT_TRUE(logits.ok()) << logits.status();
    for (size_t s = 0; s < sequences.size(); ++s) {
      const int64_t per_sequence = wanted.size() / static_cast<int64_t>(sequences.size());
      ASSERT_EQ(static_cast<int64_t>((*logits)[s].size()), per_sequence);
      const double difference = MaxDifference((*logits)[s], wanted, static_cast<int64_t>(s) * per_sequence);
      EXPECT_LE(difference, kTolerance) << "sequence " << s << ", first step of " << split;
      testing::Test::RecordProperty("max_difference", std::to_string(difference));
    }
  }
}

TEST_P(TinyModels, LogitsAreThoseOfTransformers) {
  const std::string folder = SharedData(absl::StrCat("tiny-models/", GetParam()));
  if (folder.empty()) GTEST_SKIP() << "the shared test data is not there";
  ExpectLogitsOfTransformers(folder);
}

INSTANTIATE_TEST_SUITE_P(All, TinyModels,
                         testing::Values("llama-gqa", "llama-tied-bias", "llama31-rope", "llama-rope-linear",
                                         "llama-yarn", "mistral-sliding", "qwen2-bias", "qwen3", "qwen3-moe", "mixtral",
                                         "phi3", "gpt2", "opt", "deepseek-v3"),
                         [](const auto& info) {
                           return absl::StrReplaceAll(info.param, {{"-", "_"}});
                         });

void ExpectOutputsOfTransformers(const std::string& folder) {
  const auto reference = ReadSafetensors(folder + "/reference.safetensors");
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto model = ImportHuggingFace(folder);
  ASSERT_TRUE(model.ok()) << model.status();
  const absl::Status retyped = RetypeToF32(model->get());
  ASSERT_TRUE(retyped.ok()) << retyped;
  const auto evaluator = Evaluator::Create(model->get());
  ASSERT_TRUE(evaluator.ok()) << evaluator.status();
  const Step& step = *(*model)->steps[0];
  NamedTensors inputs;
  for (const Value* param : step.params) {
    const std::string name = param->name.substr(1);
    const auto given = reference->find(name);
    if (given != reference->end()) {
      inputs[name] = given->second;
      continue;
    }
    // As transformers: all tokens are there, and of the first kind.
    const Tensor& ids = reference->at("input_ids");
    inputs[name] = Tensor::FromValues(DType::kI64, ids.shape(),
                                      std::vector<int64_t>(ids.size(), name == "attention_mask" ? 1 : 0));
  }
  const auto outputs = (*evaluator)->Run(step, inputs);
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  for (const auto& [name, output] : *outputs) {
    ASSERT_TRUE(reference->contains(name)) << name;
    ASSERT_EQ(output.shape(), reference->at(name).shape()) << name;
    EXPECT_LE(MaxDifference(output.ToDoubles(), reference->at(name), 0), kTolerance) << name;
  }
}

TEST(TinyEncoders, OutputsAreThoseOfTransformers) {
  for (const char* name : {"bert", "vit"}) {
    const std::string folder = SharedData(absl::StrCat("tiny-models/", name));
    if (folder.empty()) GTEST_SKIP() << "the shared test data is not there";
    SCOPED_TRACE(name);
    ExpectOutputsOfTransformers(folder);
  }
}

// The reference of this Gemma 2 was computed without the cap of its attention's scores; so it is that of a config
// without one. The families have one with it.
TEST(TinyGemma2, LogitsAreThoseOfTransformersWithoutTheCap) {
  const std::string gemma = SharedData("tiny-models/gemma2");
  if (gemma.empty()) GTEST_SKIP() << "the shared test data is not there";
  TestFolder folder;
  for (const char* file : {"model.safetensors", "reference.safetensors"}) {
    std::filesystem::copy_file(absl::StrCat(gemma, "/", file), folder / file);
  }
  json config = json::parse(std::ifstream(gemma + "/config.json"));
  config["attn_logit_softcapping"] = nullptr;
  folder.Write("config.json", config.dump());
  ExpectLogitsOfTransformers(folder.path());
}

// Every folder of tests/families but those of sentence-transformers, which embed_test has.
TEST(Families, GiveTheOutputsOfTransformers) {
  const std::string all = FamiliesFolder();
  ASSERT_FALSE(all.empty());
  int decoders = 0, encoders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(all)) {
    const std::string folder = entry.path().string(), name = entry.path().filename().string();
    if (absl::StartsWith(name, "sentence-") || name == "cross-encoder") continue;
    SCOPED_TRACE(name);
    const auto reference = ReadSafetensors(folder + "/reference.safetensors");
    ASSERT_TRUE(reference.ok()) << reference.status();
    if (reference->size() == 2 && reference->contains("logits") && reference->contains("input_ids")) {
      ExpectLogitsOfTransformers(folder);
      ++decoders;
    } else {
      ExpectOutputsOfTransformers(folder);
      ++encoders;
    }
  }
  EXPECT_GE(decoders, 79);
  EXPECT_GE(encoders, 23);
}

// What transformers wrote into their configurations is read, or known to change nothing.
TEST(Families, NothingOfTheirConfigsIsUnread) {
  for (const auto& entry : std::filesystem::directory_iterator(FamiliesFolder())) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, "sentence-") || name == "cross-encoder") continue;
    std::unique_ptr<Model> model;
    const HfReport report = CheckHuggingFace(entry.path().string(), &model);
    EXPECT_TRUE(report.status.ok()) << name << ": " << report.status;
    EXPECT_TRUE(report.unread_keys.empty()) << name << ": " << absl::StrJoin(report.unread_keys, ", ");
  }
}

// A Mistral whose layers say for themselves whether they have a window: with one in all, it is that Mistral.
TEST(Ministral, IsMistralWithTypesOfLayers) {
  const std::string mistral = SharedData("tiny-models/mistral-sliding");
  if (mistral.empty()) GTEST_SKIP() << "the shared test data is not there";
  TestFolder folder;
  for (const char* file : {"model.safetensors", "reference.safetensors"}) {
    std::filesystem::copy_file(absl::StrCat(mistral, "/", file), folder / file);
  }
  json config = json::parse(std::ifstream(mistral + "/config.json"));
  config["architectures"] = {"MinistralForCausalLM"};
  config["layer_types"] = {"sliding_attention", "sliding_attention"};
  folder.Write("config.json", config.dump());
  ExpectLogitsOfTransformers(folder.path());

  config["layer_types"] = {"full_attention", "sliding_attention"};
  folder.Write("config.json", config.dump());
  const auto mixed = ImportHuggingFace(folder.path());
  ASSERT_TRUE(mixed.ok()) << mixed.status();
  std::vector<int64_t> windows;
  for (const auto& node : (*mixed)->steps[0]->block.nodes) {
    if (Is<PagedAttention>(node.get())) windows.push_back(View<PagedAttention>(*node).window);
  }
  EXPECT_EQ(windows, (std::vector<int64_t>{0, 8}));
}

TEST(TrainedModel, LogitsAreThoseOfTransformers) {
  const std::string folder = absl::StrCat(LLMC_TEST_DATA, "/tale-7m");
  const auto reference = ReadSafetensors(folder + "/reference_logits.safetensors");
  ASSERT_TRUE(reference.ok()) << reference.status();
  const auto model = ImportHuggingFace(folder);
  ASSERT_TRUE(model.ok()) << model.status();
  const absl::Status retyped = RetypeToF32(model->get());
  ASSERT_TRUE(retyped.ok()) << retyped;
  int sequences = 0;
  for (; reference->contains(absl::StrCat("input_ids_", sequences)); ++sequences) {
    const std::vector<int64_t> ids = reference->at(absl::StrCat("input_ids_", sequences)).ToInts();
    const auto logits = Logits(**model, {ids}, static_cast<int64_t>(ids.size()));
    ASSERT_TRUE(logits.ok()) << logits.status();
    const Tensor& wanted = reference->at(absl::StrCat("logits_", sequences));
    ASSERT_EQ(static_cast<int64_t>((*logits)[0].size()), wanted.size());
    EXPECT_LE(MaxDifference((*logits)[0], wanted, 0), 2e-4);
  }
  EXPECT_EQ(sequences, 4);
}

}  // namespace
}  // namespace llmc
