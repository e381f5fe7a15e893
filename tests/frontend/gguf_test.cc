// GGUF files: the reader against hostile bytes, and the tokenizers that it makes.
#include "frontend/formats/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "absl/strings/str_cat.h"
#include "frontend/huggingface/gguf.h"
#include "frontend/import.h"
#include "tests/frontend/gguf_bytes.h"
#include "tests/frontend/test_folder.h"

namespace llmc {
namespace {

absl::StatusOr<GgufFile> Parse(const std::string& bytes) {
  const auto owner = std::make_shared<std::string>(bytes);
  return ReadGguf("m.gguf", {.data = std::shared_ptr<const char>(owner, owner->data()),
                             .size = static_cast<int64_t>(bytes.size())});
}

// A file with values of all types and two tensors.
std::string WholeFile(uint32_t version = 3) {
  GgufBytes b;
  b.Header(3, 14, version);
  b.Text("u8").Put<uint32_t>(0).Put<uint8_t>(255).Text("i8").Put<uint32_t>(1).Put<int8_t>(-1);
  b.Text("u16").Put<uint32_t>(2).Put<uint16_t>(65535).Text("i16").Put<uint32_t>(3).Put<int16_t>(-2);
  b.Text("u32").Put<uint32_t>(4).Put<uint32_t>(7).Text("i32").Put<uint32_t>(5).Put<int32_t>(-7);
  b.Text("f32").Put<uint32_t>(6).Put<float>(0.5F).Text("bool").Put<uint32_t>(7).Put<uint8_t>(1);
  b.Text("text").Put<uint32_t>(8).Text("héllo").Text("u64").Put<uint32_t>(10).Put<uint64_t>(UINT64_MAX);
  b.Text("i64").Put<uint32_t>(11).Put<int64_t>(-9).Text("f64").Put<uint32_t>(12).Put<double>(0.25);
  b.Text("list").Put<uint32_t>(9).Put<uint32_t>(8).Put<uint64_t>(2).Text("a").Text("b");
  b.Text("lists").Put<uint32_t>(9).Put<uint32_t>(9).Put<uint64_t>(1).Put<uint32_t>(4).Put<uint64_t>(2);
  b.Put<uint32_t>(1).Put<uint32_t>(2);
  b.Info("a", {3, 2}, 0, 0).Info("b", {4}, 30, 32).Info("c", {64}, 2, 64).Data(100);
  return b.str();
}

TEST(Gguf, ReadsValuesAndTensors) {
  for (uint32_t version : {2, 3}) {
    const auto file = Parse(WholeFile(version));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->version, version);
    EXPECT_EQ(file->metadata,
              nlohmann::json::parse(R"({"u8":255,"i8":-1,"u16":65535,"i16":-2,"u32":7,"i32":-7,"f32":0.5,
        "bool":true,"text":"héllo","u64":18446744073709551615,"i64":-9,"f64":0.25,"list":["a","b"],"lists":[[1,2]]})"));
    ASSERT_EQ(file->tensors.size(), 3u);
    EXPECT_EQ(file->tensors.at("a").shape(), Shape({2, 3}));
    EXPECT_EQ(file->tensors.at("a").dtype(), DType::kF32);
    EXPECT_EQ(file->tensors.at("b").dtype(), DType::kBF16);
  }
}

TEST(Gguf, EveryTruncationIsAnError) {
  const std::string whole = WholeFile();
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_TRUE(Says(Parse(whole.substr(0, size)).status(), "m.gguf: ")) << size;
  }
}

// Whatever a byte becomes, the answer is a file or an error; sanitizers and debug checks see the rest.
TEST(Gguf, EveryFlippedByteIsReadOrRefused) {
  const std::string whole = WholeFile();
  for (size_t i = 0; i < whole.size(); ++i) {
    for (int flip : {0x01, 0x80, 0xff}) {
      std::string bytes = whole;
      bytes[i] = static_cast<char>(bytes[i] ^ flip);
      const auto file = Parse(bytes);
      if (!file.ok()) {
        EXPECT_TRUE(Says(file.status(), "m.gguf: "));
        continue;
      }
      for (const auto& [name, tensor] : file->tensors) EXPECT_EQ(tensor.ToFloats().size(), tensor.size());
    }
  }
}

TEST(Gguf, RefusesWhatIsWrong) {
  const auto refuses = [](const std::string& bytes, absl::string_view message) {
    EXPECT_TRUE(Says(Parse(bytes).status(), message));
  };
  GgufBytes b;
  refuses("GGML", "does not begin with \"GGUF\"");
  refuses(b.Header(0, 0, 1).str(), "version 1 is not supported");
  refuses(b.Header(0, 0, 0x03000000).str(), "big-endian");
  refuses(b.Header(UINT64_MAX, 0).str(), "tensors; at most 1048576");
  refuses(b.Header(0, UINT64_MAX).str(), "entries of metadata; at most 65536");
  refuses(b.Header(0, 1).Put<uint64_t>(UINT64_MAX).str(), "ends within a key");
  refuses(b.Header(0, 1).Text(std::string(1025, 'k')).str(), "has 1025 bytes; at most 1024");
  refuses(b.Header(0, 1).Text("k").Put<uint32_t>(13).str(), "type 13 of a value is not known");
  refuses(b.Header(0, 1).Text("k").Put<uint32_t>(7).Put<uint8_t>(2).str(), "must be 0 or 1, is 2");
  refuses(b.Header(0, 1).Text("k").Put<uint32_t>(9).Put<uint32_t>(4).Put<uint64_t>(UINT64_MAX).str(), "ends within");
  refuses(b.Header(0, 2).Text("k").Put<uint32_t>(0).Put<uint8_t>(0).Text("k").Put<uint32_t>(0).Put<uint8_t>(0).str(),
          "metadata \"k\" is there twice");
  b.Header(0, 1).Text("k");
  for (int i = 0; i < 5; ++i) b.Put<uint32_t>(9);
  for (int i = 0; i < 5; ++i) b.Put<uint64_t>(1);
  refuses(b.str(), "");
  b.Header(0, 1).Text("k").Put<uint32_t>(9);
  for (int i = 0; i < 8; ++i) b.Put<uint32_t>(9).Put<uint64_t>(1);
  refuses(b.Put<uint64_t>(0).str(), "nested deeper than 4");
  b.Header(0, 1).Text("k").Put<uint32_t>(9).Put<uint32_t>(0).Put<uint64_t>((1 << 22) + 1);
  refuses(b.str() + std::string((1 << 22) + 1, 'x'), "more than 4194304 elements");
  for (uint32_t alignment : {0U, 4U, 12U, 1U << 30}) {
    refuses(b.Header(0, 1).Text("general.alignment").Put<uint32_t>(4).Put(alignment).str(), "must be a multiple of 8");
  }
}

TEST(Gguf, RefusesTensorsThatDoNotFit) {
  const auto refuses = [](const std::string& bytes, absl::string_view message) {
    EXPECT_TRUE(Says(Parse(bytes).status(), message));
  };
  GgufBytes b;
  refuses(b.Header(1, 0).Info("t", {}, 0, 0).Data(64).str(), "tensor \"t\": has 0 dims");
  refuses(b.Header(1, 0).Info("t", {1, 1, 1, 1, 1}, 0, 0).Data(64).str(), "has 5 dims");
  refuses(b.Header(1, 0).Info("t", {0}, 0, 0).Data(64).str(), "dimension 0 is out of range");
  refuses(b.Header(1, 0).Info("t", {UINT64_MAX}, 0, 0).Data(64).str(), "is out of range");
  refuses(b.Header(1, 0).Info("t", {1ull << 40, 1ull << 40}, 0, 0).Data(64).str(), "tensor \"t\": ");
  refuses(b.Header(1, 0).Info("t", {17}, 0, 0).Data(64).str(), "are not within the file's");
  refuses(b.Header(1, 0).Info("t", {8}, 0, 64).Data(64).str(), "are not within the file's");
  refuses(b.Header(1, 0).Info("t", {8}, 0, UINT64_MAX - 31).Data(64).str(), "are not within the file's");
  refuses(b.Header(1, 0).Info("t", {8}, 0, 8).Data(64).str(), "offset 8 is no multiple of the alignment 32");
  refuses(b.Header(2, 0).Info("t", {8}, 0, 0).Info("t", {8}, 0, 32).Data(64).str(), "tensor \"t\" is there twice");
  refuses(b.Header(2, 0).Info("t", {9}, 0, 0).Info("u", {8}, 0, 32).Data(64).str(), "\"t\" and \"u\" overlap");
  const std::string quantized =
      b.Header(3, 0).Info("q", {256}, 16, 0).Info("r", {256}, 16, 0).Info("s", {8}, 99, 0).str();
  refuses(quantized, "2 of type IQ2_XXS (first: \"q\"), 1 of type number 99 (first: \"s\")");
  refuses(quantized, "other types than F32, F16, Q4_0, Q4_1, ");
  refuses(quantized, "take a file of another quantization");
  EXPECT_TRUE(absl::IsUnimplemented(Parse(quantized).status()));
}

TEST(Gguf, ReadsBlocks) {
  GgufBytes b;
  b.Header(3, 0).Info("blk.0.q", {64, 3}, 2, 0).Info("blk.12.q", {64, 3}, 2, 128).Info("e", {256, 2, 5}, 14, 256);
  const auto file = Parse(b.Data(256 + 2100).str());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors.at("blk.0.q").shape(), Shape({3, 36}));
  EXPECT_EQ(file->tensors.at("blk.0.q").dtype(), DType::kU8);
  EXPECT_EQ(file->encodings.at("blk.0.q")->text, "q4_0");
  EXPECT_EQ(file->tensors.at("e").shape(), Shape({5, 2, 210}));
  EXPECT_EQ(file->encodings.at("e")->text, "q6_k");
  ASSERT_EQ(file->groups.size(), 2u);
  EXPECT_EQ(file->groups[0].name, "blk.*.q");
  EXPECT_EQ(file->groups[0].type, "Q4_0");
  EXPECT_EQ(file->groups[0].tensors, 2);
  EXPECT_EQ(file->groups[0].elements, 384);
  EXPECT_EQ(file->groups[0].bytes, 216);
}

TEST(Gguf, RefusesBlocksThatDoNotFit) {
  const auto refuses = [](const std::string& bytes, absl::string_view message) {
    EXPECT_TRUE(Says(Parse(bytes).status(), message));
  };
  GgufBytes b;
  refuses(b.Header(1, 0).Info("t", {48, 2}, 2, 0).Data(64).str(),
          "tensor \"t\": rows of 48 elements are not whole blocks of 32, as those of Q4_0 are");
  refuses(b.Header(1, 0).Info("t", {128}, 12, 0).Data(144).str(), "not whole blocks of 256, as those of Q4_K are");
  refuses(b.Header(1, 0).Info("t", {256}, 12, 0).Data(143).str(), "its 144 bytes from 0 of the data on are not within");
  refuses(b.Header(1, 0).Info("t", {32, 1ull << 58}, 8, 0).Data(64).str(), "tensor \"t\": f64");
  refuses(b.Header(1, 0).Info("t", {1ull << 32, 1ull << 24}, 8, 0).Data(64).str(), "are not within the file's");
  refuses(b.Header(1, 0).Info("t", {INT64_MAX - 31}, 8, 0).Data(64).str(), "tensor \"t\": f64");
  refuses(b.Header(1, 0).Info("t", {32}, 2, 16).Data(64).str(), "offset 16 is no multiple of the alignment 32");
  refuses(b.Header(2, 0).Info("t", {64}, 2, 0).Info("u", {32}, 2, 32).Data(64).str(), "\"t\" and \"u\" overlap");
}

// ---- models in several files ----------------------------------------------------------------------------------------
// Part `number` of `count` with tensors of four numbers, and the text that only the first has.
std::string PartOf(uint16_t number, uint16_t count, const std::vector<std::string>& names, int32_t tensors = 3) {
  GgufBytes b;
  b.Header(names.size(), number == 1 ? 4 : 3);
  if (number == 1) b.Text("text").Put<uint32_t>(8).Text("of the model");
  b.Text("split.no").Put<uint32_t>(2).Put<uint16_t>(number - 1);
  b.Text("split.count").Put<uint32_t>(2).Put<uint16_t>(count);
  b.Text("split.tensors.count").Put<uint32_t>(5).Put<int32_t>(tensors);
  for (size_t i = 0; i < names.size(); ++i) b.Info(names[i], {4}, 0, 32 * i);
  return b.Data(32 * names.size()).str();
}

TEST(GgufParts, AreReadAsOneFromAny) {
  const TestFolder folder;
  folder.Write("m-00001-of-00003.gguf", PartOf(1, 3, {"a"}));
  folder.Write("m-00002-of-00003.gguf", PartOf(2, 3, {"b", "c"}));
  folder.Write("m-00003-of-00003.gguf", PartOf(3, 3, {}));
  for (int part = 1; part <= 3; ++part) {
    const auto file = ReadGgufModelFiles(folder / absl::StrCat("m-0000", part, "-of-00003.gguf"));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->metadata.at("text"), "of the model");
    ASSERT_EQ(file->tensors.size(), 3u);
    EXPECT_EQ(file->file_of.at("a"), "m-00001-of-00003.gguf");
    EXPECT_EQ(file->file_of.at("c"), "m-00002-of-00003.gguf");
    const char* begin = file->files.at("m-00002-of-00003.gguf").get();
    EXPECT_EQ(file->tensors.at("c").raw() - file->tensors.at("b").raw(), 32);
    EXPECT_GT(file->tensors.at("b").raw(), begin);
    ASSERT_EQ(file->groups.size(), 3u);
  }
}

TEST(GgufParts, ThatDoNotFitAreRefusedByName) {
  const auto refuses = [](const std::map<std::string, std::string>& files, absl::string_view message) {
    const TestFolder folder;
    for (const auto& [name, bytes] : files) folder.Write(name, bytes);
    EXPECT_TRUE(Says(ReadGgufModelFiles(folder / files.begin()->first).status(), message));
  };
  const std::string first = PartOf(1, 2, {"a"}, 2), second = PartOf(2, 2, {"b"}, 2);
  const auto counted = [](uint32_t type) {
    GgufBytes b;
    b.Header(0, 1);
    b.Text("split.count").Put<uint32_t>(type);
    return type == 8 ? b.Text("two").str() : b.Put<uint64_t>(~uint64_t{0}).str();
  };
  for (const uint32_t type : {8, 10}) refuses({{"m.gguf", counted(type)}}, "is no number of files from 0 to 1024");
  refuses({{"m-00001-of-00002.gguf", first}}, "is part 1 of a model in 2 files, and part 2 cannot be read: ");
  refuses({{"m-00001-of-00002.gguf", first}}, "m-00002-of-00002.gguf");
  refuses({{"m-00002-of-00002.gguf", second}}, "is part 2 of a model in 2 files, and part 1 cannot be read: ");
  refuses({{"m.gguf", first}}, "a part of a model in 2 files, whose name must end with -0000N-of-00002.gguf");
  refuses({{"m-00001-of-00003.gguf", first}}, "a part of a model in 2 files, whose name must end with");
  refuses({{"m-00001-of-00002.gguf", first}, {"m-00002-of-00002.gguf", first}},
          "m-00002-of-00002.gguf: does not say that it is part 2 of 2");
  refuses({{"m-00001-of-00002.gguf", first}, {"m-00002-of-00002.gguf", PartOf(2, 2, {"a"}, 2)}},
          "m-00002-of-00002.gguf: tensor \"a\" is in m-00001-of-00002.gguf, too");
  refuses({{"m-00001-of-00002.gguf", first}, {"m-00002-of-00002.gguf", PartOf(2, 2, {"b", "c"}, 2)}},
          "the parts have 3 tensors, and \"split.tensors.count\" says 2");
  refuses({{"m-00001-of-00002.gguf", first}, {"m-00002-of-00002.gguf", second.substr(0, second.size() - 20)}},
          "m-00002-of-00002.gguf: tensor \"b\": its 16 bytes");
}

// ---- models ---------------------------------------------------------------------------------------------------------
GgufFile ModelWith(const nlohmann::json& metadata) {
  GgufFile file{.metadata = {{"general.architecture", "llama"},
                             {"llama.block_count", 1u},
                             {"llama.context_length", 8u},
                             {"llama.embedding_length", 8u},
                             {"llama.feed_forward_length", 8u},
                             {"llama.attention.head_count", 2u}}};
  if (!metadata.is_null()) file.metadata.update(metadata);
  file.tensors.emplace("token_embd.weight", Tensor(DType::kF32, {4, 8}));
  return file;
}

TEST(GgufModel, RefusesMetadataByName) {
  const auto refuses = [](const nlohmann::json& metadata, absl::string_view message) {
    EXPECT_TRUE(Says(hf::ReadGgufModel("m.gguf", ModelWith(metadata)).status(), message));
  };
  ASSERT_TRUE(hf::ReadGgufModel("m.gguf", ModelWith({{"llama.expert_count", 0u}})).ok());
  refuses({{"general.architecture", "mamba"}},
          "architecture \"mamba\" of a GGUF file is not supported; supported are llama");
  refuses({{"general.architecture", 1}}, "\"general.architecture\" must be a string");
  refuses({{"llama.surprise", 1u}, {"llama.other", true}},
          "metadata \"llama.other\", \"llama.surprise\" is not supported for architecture llama");
  refuses({{"llama.expert_count", 8u}}, "metadata \"llama.expert_used_count\" is not there");
  refuses({{"llama.expert_count", 8u}, {"llama.expert_used_count", 9u}}, "\"num_experts_per_tok\" must be an integer");
  refuses({{"llama.expert_count", 8u}, {"llama.expert_used_count", 2u}, {"llama.expert_shared_count", 1u}},
          "metadata \"llama.expert_shared_count\" is not supported");
  refuses({{"llama.block_count", {1, 2}}}, "\"num_hidden_layers\" must be an integer");
  refuses({{"llama.attention.head_count", 0u}}, "\"num_attention_heads\" must be an integer");
  refuses({{"llama.rope.dimension_count", 5u}}, "rope.dimension_count\" must be from 1 to 4; found 5");
  refuses({{"llama.attention.value_length", 2u}}, "values of another size than keys");
  refuses({{"llama.rope.scaling.type", "new"}}, "rope type \"new\" is not supported");
  refuses({{"llama.rope.scaling.type", "linear"}, {"llama.rope.scaling.yarn_beta_fast", 8.0}},
          "metadata \"llama.rope.scaling.yarn_beta_fast\" beside rope.scaling.type \"linear\" is not supported");
  refuses({{"llama.rope.scaling.type", "yarn"},
           {"llama.rope.scaling.factor", 4.0},
           {"llama.rope.scaling.yarn_ext_factor", 0.5}},
          "\"llama.rope.scaling.yarn_ext_factor\" is 0.5; another factor than 1 is not supported");
  GgufFile without = ModelWith({});
  without.metadata.erase("llama.block_count");
  EXPECT_TRUE(Says(hf::ReadGgufModel("m.gguf", without).status(), "metadata \"llama.block_count\" is not there"));
  without = ModelWith({});
  without.tensors.clear();
  EXPECT_TRUE(Says(hf::ReadGgufModel("m.gguf", without).status(), "tensor \"token_embd.weight\" must be there"));
}

// What the scaling gives for scores is multiplied by attn_factor, as llama.cpp does.
TEST(GgufModel, ReadsYarn) {
  const auto rope = [](nlohmann::json metadata) {
    metadata.update({{"llama.rope.scaling.type", "yarn"}, {"llama.rope.scaling.factor", 4.0}});
    const auto model = hf::ReadGgufModel("m.gguf", ModelWith(metadata));
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? model->spec.ropes[0].parameters : HfRope{};
  };
  EXPECT_EQ(rope({{"llama.rope.scaling.yarn_ext_factor", -1.0}}).attention_factor, std::nullopt);
  EXPECT_EQ(rope({{"llama.rope.scaling.yarn_attn_factor", 1.3}}).attention_factor, 1.3);
  EXPECT_DOUBLE_EQ(rope({{"llama.rope.scaling.attn_factor", 2.0}}).attention_factor.value_or(0),
                   2 * (0.1 * std::log(4.0) + 1));
  EXPECT_EQ(rope({{"llama.rope.scaling.yarn_beta_fast", 8.0}}).beta_fast, 8);
  EXPECT_EQ(rope({{"llama.rope.scaling.yarn_beta_slow", 2.0}}).beta_slow, 2);
}

TEST(GgufModel, FactorsOfLongSequencesNeedThoseOfShortOnes) {
  GgufFile file = ModelWith({});
  file.tensors.emplace("rope_factors_long.weight", Tensor(DType::kF32, {2}));
  EXPECT_TRUE(Says(hf::ReadGgufModel("m.gguf", file).status(), "tensor \"rope_factors_short.weight\" must be there"));
}

TEST(GgufTokenizer, RefusesWhatIsUnknownOrWrong) {
  const nlohmann::json fine = {{"tokenizer.ggml.model", "gpt2"},
                               {"tokenizer.ggml.pre", "gpt-2"},
                               {"tokenizer.ggml.tokens", {"a", "b"}},
                               {"tokenizer.ggml.merges", nlohmann::json::array()}};
  const auto refuses = [&](const nlohmann::json& change, absl::string_view message) {
    nlohmann::json metadata = fine;
    metadata.update(change);
    EXPECT_TRUE(Says(hf::ReadGgufTokenizer("m.gguf", ModelWith(metadata)).status(), message));
  };
  ASSERT_TRUE(hf::ReadGgufTokenizer("m.gguf", ModelWith(fine)).ok());
  EXPECT_EQ(hf::ReadGgufTokenizer("m.gguf", ModelWith({}))->tokenizer, "");
  refuses({{"tokenizer.ggml.model", "bert"}},
          "tokenizer.ggml.model \"bert\" is not supported; supported are gpt2 and llama");
  refuses({{"tokenizer.ggml.pre", "tekken"}}, "tokenizer.ggml.pre \"tekken\" is not supported");
  refuses({{"tokenizer.ggml.tokens", {"a", 1}}}, "\"tokenizer.ggml.tokens\" must be a list of strings");
  refuses({{"tokenizer.ggml.tokens", {"a", "a"}}}, "\"a\" is there twice");
  refuses({{"tokenizer.ggml.token_type", {1}}}, "a number from 0 to 6 for each token");
  refuses({{"tokenizer.ggml.merges", 1}}, "\"tokenizer.ggml.merges\" must be a list of strings");
  refuses({{"tokenizer.ggml.eos_token_id", 2u}}, "\"tokenizer.ggml.eos_token_id\" must be a token's number, below 2");
  refuses({{"tokenizer.ggml.add_bos_token", 1}}, "must be true or false");
  refuses({{"tokenizer.ggml.model", "llama"}},
          "\"tokenizer.ggml.scores\" must be a list of a finite number for each token");
  refuses({{"tokenizer.ggml.model", "llama"}, {"tokenizer.ggml.scores", {1.0, std::nan("")}}},
          "a list of a finite number");
}

}  // namespace
}  // namespace llmc
