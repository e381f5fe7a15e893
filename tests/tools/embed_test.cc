// `llmc embed`: texts to vectors, compared with sentence-transformers (tests/families).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "frontend/formats/numpy_file.h"
#include "frontend/formats/safetensors.h"
#include "tests/families.h"
#include "tests/tools/run_command.h"
#include "tests/tools/sentence_variants.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::HasSubstr;

// Sums of a few hundred products of numbers around 1 in f32, in another order.
constexpr double kTolerance = 1e-5;

// Of vectors as JSON.
void ExpectVectors(const CommandResult& result, const std::vector<std::vector<double>>& expected) {
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = result.Json();
  ASSERT_TRUE(json.is_object()) << result.out;
  ASSERT_EQ(json["data"].size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const Json& item = json["data"][i];
    EXPECT_EQ(item["index"], i);
    ASSERT_EQ(item["embedding"].size(), expected[i].size());
    EXPECT_EQ(json["dimensions"], expected[i].size());
    for (size_t d = 0; d < expected[i].size(); ++d) {
      EXPECT_NEAR(item["embedding"][d].get<double>(), expected[i][d], kTolerance) << "text " << i << ", number " << d;
    }
  }
}

struct SentenceFolder {
  std::string path;
  std::vector<std::string> texts;
  std::vector<std::vector<double>> vectors;
  std::vector<int> tokens;
};

SentenceFolder ReadSentenceFolder(const std::string& name) {
  SentenceFolder folder{.path = FamiliesFolder() + "/" + name};
  folder.texts = Json::parse(ReadFile(folder.path + "/reference.json"))["texts"].get<std::vector<std::string>>();
  const auto tensors = ReadSafetensors(folder.path + "/reference.safetensors");
  EXPECT_TRUE(tensors.ok()) << tensors.status();
  const Tensor& vectors = tensors->at("embeddings");
  const Tensor& mask = tensors->at("attention_mask");
  for (int64_t i = 0; i < vectors.shape()[0]; ++i) {
    std::vector<double>& row = folder.vectors.emplace_back();
    for (int64_t d = 0; d < vectors.shape()[1]; ++d) {
      row.push_back(static_cast<double>(vectors.data<float>()[i * vectors.shape()[1] + d]));
    }
    int tokens = 0;
    for (int64_t t = 0; t < mask.shape()[1]; ++t) {
      tokens += static_cast<int>(mask.data<int64_t>()[i * mask.shape()[1] + t]);
    }
    folder.tokens.push_back(tokens);
  }
  return folder;
}

// The folder sentence-mean, of which a test may change files.
std::string CopyOfSentenceMean(const std::string& name) {
  const std::string copy = TempFolder() + "/" + name;
  fs::copy(FamiliesFolder() + "/sentence-mean", copy, fs::copy_options::recursive);
  return copy;
}

class SentenceFolders : public testing::TestWithParam<const char*> {};

TEST_P(SentenceFolders, GiveTheVectorsOfSentenceTransformers) {
  const SentenceFolder folder = ReadSentenceFolder(GetParam());
  const CommandResult result = RunLlmc(With({"embed", folder.path, "--json"}, folder.texts));
  ExpectVectors(result, folder.vectors);
  EXPECT_EQ(result.Json()["model"], folder.path);
  for (size_t i = 0; i < folder.texts.size(); ++i) EXPECT_EQ(result.Json()["data"][i]["tokens"], folder.tokens[i]);
}

TEST_P(SentenceFolders, BatchesChangeNothing) {
  const SentenceFolder folder = ReadSentenceFolder(GetParam());
  ExpectVectors(RunLlmc(With({"embed", folder.path, "--json", "--batch-tokens=1"}, folder.texts)), folder.vectors);
}

TEST_P(SentenceFolders, PlansGiveThemToo) {
  const SentenceFolder folder = ReadSentenceFolder(GetParam());
  const std::string plan = TempFolder() + "/" + GetParam() + ".plan";
  const CommandResult compiled = RunLlmc({"compile", folder.path, "-o", plan, "--target=host"});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  ExpectVectors(RunLlmc(With({"embed", plan, "--json"}, folder.texts)), folder.vectors);
}

TEST_P(SentenceFolders, PackedTextsGiveThemToo) {
  const SentenceFolder folder = ReadSentenceFolder(GetParam());
  const std::string plan = TempFolder() + "/packed-" + GetParam() + ".plan";
  ExpectVectors(RunLlmc(With({"embed", folder.path, "--packed", "--json"}, folder.texts)), folder.vectors);
  ExpectVectors(RunLlmc(With({"embed", folder.path, "--packed", "--json", "--batch-tokens=12"}, folder.texts)),
                folder.vectors);
  const CommandResult compiled = RunLlmc({"compile", folder.path, "--packed", "-o", plan, "--target=host"});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  ExpectVectors(RunLlmc(With({"embed", plan, "--json"}, folder.texts)), folder.vectors);
}

INSTANTIATE_TEST_SUITE_P(Embed, SentenceFolders, testing::Values("sentence-mean", "sentence-cls"),
                         [](const auto& info) { return std::string(info.param).substr(9); });

// The scores of a variant, all with all.
void ExpectScores(const CommandResult& result, const Json& variant) {
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.Json()["similarity"], variant["similarity"]);
  const Json data = result.Json()["data"];
  const auto expected = variant["scores"].get<std::vector<std::vector<double>>>();
  ASSERT_EQ(data.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(data[i]["scores"].size(), expected.size());
    for (size_t j = 0; j < expected.size(); ++j) {
      // Dot products of 48 numbers, up to 30; distances near 0 are the difference of large sums there.
      EXPECT_NEAR(data[i]["scores"][j].get<double>(), expected[i][j], i == j ? 2e-3 : 1e-4) << i << ", " << j;
    }
  }
}

class SentenceVariant : public testing::TestWithParam<int> {};

TEST_P(SentenceVariant, GivesTheVectorsOfSentenceTransformers) {
  const Json variants = SentenceVariants();
  const auto texts = variants["texts"].get<std::vector<std::string>>();
  const Json variant = variants["variants"][GetParam()];
  SCOPED_TRACE(variant["name"]);
  const std::string folder = FolderOfVariant(variant), plan = folder + "/plan.bin";
  const auto expected = variant["embeddings"].get<std::vector<std::vector<double>>>();
  const auto run = With(RunArguments(variant), texts), compile = CompileArguments(variant);
  ExpectVectors(RunLlmc(With(With({"embed", folder, "--json"}, compile), run)), expected);
  const CommandResult compiled = RunLlmc(With({"compile", folder, "-o", plan, "--target=host"}, compile));
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  const CommandResult result = RunLlmc(With({"embed", plan, "--json", "--scores"}, run));
  ExpectVectors(result, expected);
  ExpectScores(result, variant);
}

std::string VariantName(const testing::TestParamInfo<int>& info) {
  std::string name = SentenceVariants()["variants"][info.param]["name"];
  std::erase_if(name, [](char c) { return !absl::ascii_isalnum(static_cast<unsigned char>(c)); });
  return name;
}

INSTANTIATE_TEST_SUITE_P(Embed, SentenceVariant,
                         testing::Range(0, static_cast<int>(SentenceVariants()["variants"].size())), VariantName);

// Expected of --prompt: the vectors of texts that begin so.
TEST(Embed, PromptsStandBeforeTexts) {
  const std::string folder = CopyOfSentenceMean("prompts");
  WriteText(folder + "/config_sentence_transformers.json", R"({"prompts": {"query": "what is ", "passage": "a "}})");
  const std::string whole = RunLlmc({"embed", folder, "what is cat"}).out;
  EXPECT_THAT(whole, HasSubstr("48 numbers of 5 tokens"));
  EXPECT_EQ(RunLlmc({"embed", folder, "--prompt", "what is ", "cat"}).out, whole);
  EXPECT_EQ(RunLlmc({"embed", folder, "--prompt-name", "query", "cat"}).out, whole);
  EXPECT_NE(RunLlmc({"embed", folder, "cat"}).out, whole);
  EXPECT_THAT(RunLlmc({"embed", folder, "--prompt-name", "document", "cat"}).err,
              HasSubstr("has no prompt 'document'; it has passage, query"));
}

TEST(Embed, LongTextsAreCutWithANote) {
  const SentenceFolder folder = ReadSentenceFolder("sentence-mean");
  std::string text = "cat";
  for (int i = 0; i < 29; ++i) text += " cat";
  const CommandResult fits = RunLlmc({"embed", folder.path, text});
  EXPECT_EQ(fits.err, "");
  EXPECT_THAT(fits.out, HasSubstr("of 32 tokens"));
  const CommandResult cut = RunLlmc({"embed", folder.path, text + " dog", "cat"});
  EXPECT_EQ(cut.exit_code, 0);
  EXPECT_EQ(cut.err, "note: 1 of 2 texts have more than the 32 tokens that the model takes, and were cut\n");
  EXPECT_THAT(cut.out, testing::StartsWith(fits.out));
  const CommandResult refused = RunLlmc({"embed", folder.path, "--no-truncate", "cat", text + " dog"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("text 2: has 33 tokens, the model takes 32"));
}

TEST(Embed, LinesOfFilesAndOfStandardInput) {
  const SentenceFolder folder = ReadSentenceFolder("sentence-mean");
  std::string lines;
  for (const std::string& text : folder.texts) lines += text + "\n";  // the last one is an empty line
  const std::string file = TempFolder() + "/lines.txt";
  WriteText(file, lines);
  ExpectVectors(RunLlmc({"embed", folder.path, "--json", "--file", file}), folder.vectors);
  ExpectVectors(RunLlmc({"embed", folder.path, "--json"}, 120, "", file), folder.vectors);
  WriteText(file, "");
  EXPECT_THAT(RunLlmc({"embed", folder.path, "--file", file}).err, HasSubstr("lines.txt: is empty"));
  EXPECT_EQ(RunLlmc({"embed", folder.path, "--file", file, "text"}).exit_code, 2);
}

TEST(Embed, WritesNumPyFiles) {
  const SentenceFolder folder = ReadSentenceFolder("sentence-cls");
  const std::string file = TempFolder() + "/vectors.npy";
  const CommandResult result = RunLlmc(With({"embed", folder.path, "-o", file}, folder.texts));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  const absl::StatusOr<Tensor> vectors = ReadNpy(file);
  ASSERT_TRUE(vectors.ok()) << vectors.status();
  ASSERT_EQ(vectors->shape(), (Shape{5, 48}));
  ASSERT_EQ(vectors->dtype(), DType::kF32);
  for (size_t i = 0; i < 5 * 48; ++i) {
    EXPECT_NEAR(static_cast<double>(vectors->data<float>()[i]), folder.vectors[i / 48][i % 48], kTolerance);
  }
  EXPECT_THAT(RunLlmc({"embed", folder.path, "--file", file, "-o", file}).err, HasSubstr("would be overwritten"));
}

// The cosine of two vectors, and the length of the first.
std::pair<double, double> CosineAndLength(const Json& vector, const std::vector<double>& expected) {
  double product = 0, square = 0, square_expected = 0;
  for (size_t d = 0; d < expected.size(); ++d) {
    const double x = vector[d].get<double>();
    product += x * expected[d];
    square += x * x;
    square_expected += expected[d] * expected[d];
  }
  return {product / std::sqrt(square * square_expected), std::sqrt(square)};
}

// In sentence-transformers itself cosines are at least 1 - 3e-7 in f16 and 1 - 2.1e-5 in bf16, and lengths, which are
// rounded to the type of the model too, from 0.9997 to 1.0004 and from 0.9996 to 1.0021.
TEST(Embed, OtherTypesAreNear) {
  const SentenceFolder folder = ReadSentenceFolder("sentence-mean");
  struct Case {
    const char* dtype;
    double cosine, length;
  };
  for (const Case& c : {Case{"f16", 1e-6, 1e-3}, {"bf16", 5e-5, 8e-3}}) {
    const CommandResult result =
        RunLlmc(With({"embed", folder.path, "--json", std::string("--dtype=") + c.dtype}, folder.texts));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    for (size_t i = 0; i < folder.texts.size(); ++i) {
      const auto [cosine, length] = CosineAndLength(result.Json()["data"][i]["embedding"], folder.vectors[i]);
      EXPECT_NEAR(cosine, 1, c.cosine) << c.dtype;
      EXPECT_NEAR(length, 1, c.length) << c.dtype;
    }
  }
}

// A checkpoint in bf16: all behind the hidden states is f32. In sentence-transformers cosines are at least 1 - 5.2e-5.
TEST(Embed, ABf16CheckpointIsPooledInF32) {
  const Json variants = SentenceVariants();
  for (const Json& variant : variants["variants"]) {
    if (variant["name"] != "qwen3") continue;
    const CommandResult result =
        RunLlmc(With(With({"embed", FolderOfVariant(variant), "--json"}, RunArguments(variant)),
                     variants["texts"].get<std::vector<std::string>>()));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    for (size_t i = 0; i < 3; ++i) {
      const auto [cosine, length] = CosineAndLength(result.Json()["data"][i]["embedding"], variant["embeddings"][i]);
      EXPECT_NEAR(cosine, 1, 1e-4);
      EXPECT_NEAR(length, 1, 1e-6);
    }
  }
}

// What is not known is refused, by its name and with the file.
TEST(Embed, BadFolders) {
  struct Case {
    std::string file, contents, message;
  };
  const std::string transformer = R"({"type": "sentence_transformers.models.Transformer", "path": ""})";
  const std::string pooling = R"({"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"})";
  const auto modules = [&](const std::string& rest) { return "[" + transformer + ", " + rest + "]"; };
  const std::vector<Case> cases = {
      {"modules.json", "[", "modules.json: "},
      {"modules.json", "{}", "modules.json: must be a list of 1 to 64 modules"},
      {"modules.json", modules(R"({"type": "custom.Pool", "path": ""})"),
       "is of type \"custom.Pool\", which is none of"},
      {"modules.json", modules(pooling + R"(, {"type": "sentence_transformers.models.LSTM", "path": "2"})"),
       "\"sentence_transformers.models.LSTM\" is not supported; supported are Transformer, Pooling"},
      {"modules.json", "[" + pooling + "]", "the first module is of type \"sentence_transformers.models.Pooling\""},
      {"modules.json", R"([{"type": "sentence_transformers.models.Transformer", "path": "0_BERT"}])",
       "0_BERT: has no config.json"},
      {"modules.json", R"([{"type": "sentence_transformers.models.Transformer", "path": "../x"}])",
       "\"../x/config.json\""},
      {"modules.json", modules(R"({"type": "sentence_transformers.models.Normalize", "path": ""})"),
       "stands before a Pooling"},
      {"modules.json", modules(pooling + R"(, {"type": "sentence_transformers.models.Dense", "path": "../x"})"),
       "\"../x/config.json\""},
      {"modules.json", modules(pooling + R"(, {"type": "sentence_transformers.models.Dense", "path": "2_Dense"})"),
       "in_features and out_features are needed"},
      {"1_Pooling/config.json", R"({"pooling_mode": "median"})", "pooling_mode \"median\" is not supported"},
      {"1_Pooling/config.json", R"({"pooling_mode": "mean", "embedding_dimension": 47})",
       "the Pooling takes vectors of 47 numbers, those of config.json have 48"},
      {"1_Pooling/config.json", R"({"include_prompt": 1})", "include_prompt"},
      {"2_Normalize/config.json", R"({"module_input_name": "token_embeddings"})",
       "module_input_name \"token_embeddings\" is not supported"},
      {"sentence_bert_config.json", R"({"transformer_task": "fill-mask"})", "transformer_task \"fill-mask\""},
      {"sentence_bert_config.json", R"({"max_seq_length": 2})", "takes 2 tokens, too few"},
      {"sentence_bert_config.json", R"({"max_seq_length": -3})", "max_seq_length"},
      {"sentence_bert_config.json", R"({"do_lower_case": "yes"})", "do_lower_case"},
      {"config_sentence_transformers.json", R"({"prompts": {"query": 3}})", "\"prompts\" must be an object of strings"},
      {"config_sentence_transformers.json", R"({"default_prompt_name": "query"})", "no prompt 'query'; it has none"},
      {"tokenizer.json", "", "tokenizer"},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    SCOPED_TRACE(c.file + " " + c.contents);
    const std::string folder = CopyOfSentenceMean("bad" + std::to_string(i));
    WriteText(folder + "/" + c.file, c.contents);
    const CommandResult result = RunLlmc({"embed", folder, "--json", "cat"});
    EXPECT_THAT(result.exit_code, testing::AnyOf(1, 3)) << result.err;
    EXPECT_THAT(result.err, HasSubstr(folder));
    const std::string message = result.Json()["error"].value("message", "");
    EXPECT_THAT(message, HasSubstr(c.message));
  }
}

// Positions that count from the padding's id, rotary ones, windows, and none but a table; all ways to pool.
TEST(Embed, PackedTextsAreThoseOfPaddedOnes) {
  for (const char* name : {"bert", "roberta", "distilbert", "electra", "modernbert"}) {
    for (const char* pool : {"mean", "cls", "last", "max"}) {
      SCOPED_TRACE(absl::StrCat(name, " ", pool));
      const std::vector<std::string> args = {"embed",
                                             FamiliesFolder() + "/" + name,
                                             "--tokenizer=" + FamiliesFolder() + "/sentence-mean",
                                             "--pool=" + std::string(pool),
                                             "--json",
                                             "the cat",
                                             "what is a kernel and the mat and a cat on it",
                                             "a"};
      const CommandResult padded = RunLlmc(args);
      ASSERT_EQ(padded.exit_code, 0) << padded.err;
      std::vector<std::vector<double>> vectors;
      const Json json = padded.Json();
      for (const Json& item : json["data"]) vectors.push_back(item["embedding"]);
      ExpectVectors(RunLlmc(With(args, {"--packed"})), vectors);
    }
  }
  const CommandResult refused = RunLlmc({"embed", FamiliesFolder() + "/deberta-v2", "--pool=mean", "--packed", "cat"});
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_THAT(refused.err, HasSubstr("without relative positions in attention; leave out --packed"));
  EXPECT_THAT(RunLlmc({"compile", kModel, "--packed", "-o", TempFolder() + "/none.plan"}).err,
              HasSubstr("packed texts are supported for encoders of text"));
}

// The folder sentence-mean with the vocabulary of its tokenizer alone.
std::string SentenceFolderWithVocabulary(const std::string& name, const Json& config) {
  std::string folder = CopyOfSentenceMean(name);
  const Json vocabulary = Json::parse(ReadFile(folder + "/tokenizer.json"))["model"]["vocab"];
  std::vector<std::string> words(vocabulary.size());
  for (const auto& [word, id] : vocabulary.items()) words[id.get<size_t>()] = word;
  fs::remove(folder + "/tokenizer.json");
  std::string text;
  for (const std::string& word : words) text += word + "\n";
  WriteText(folder + "/vocab.txt", text);
  WriteText(folder + "/tokenizer_config.json", config.dump());
  return folder;
}

TEST(Embed, AVocabularyAloneGivesTheSameVectors) {
  const SentenceFolder reference = ReadSentenceFolder("sentence-mean");
  const std::string folder = SentenceFolderWithVocabulary("vocabulary", {{"do_lower_case", true}});
  ExpectVectors(RunLlmc(With({"embed", folder, "--json"}, reference.texts)), reference.vectors);
  const std::string plan = TempFolder() + "/vocabulary.plan";
  ASSERT_EQ(RunLlmc({"compile", folder, "-o", plan, "--target=host"}).exit_code, 0);
  ExpectVectors(RunLlmc(With({"embed", plan, "--json"}, reference.texts)), reference.vectors);
}

TEST(Embed, LowerCaseOfAVocabularyIsAsTheFilesSay) {
  const std::string cased = SentenceFolderWithVocabulary("vocabulary_cased", {{"do_lower_case", false}});
  const auto vector = [](const std::string& folder, const std::string& text) {
    return RunLlmc({"embed", folder, "--json", text}).Json()["data"][0]["embedding"];
  };
  EXPECT_NE(vector(cased, "the CAT"), vector(cased, "the cat"));
  WriteText(cased + "/sentence_bert_config.json", R"({"do_lower_case": true})");
  EXPECT_EQ(vector(cased, "the CAT"), vector(cased, "the cat"));
}

TEST(Embed, PoolingHasToBeSaid) {
  const std::string bert = FamiliesFolder() + "/bert", sentence = FamiliesFolder() + "/sentence-mean";
  EXPECT_THAT(RunLlmc({"embed", bert, "cat"}).err,
              HasSubstr("the model gives last_hidden_state, pooler_output, no vector"));
  EXPECT_THAT(RunLlmc({"embed", sentence, "--pool=cls", "cat"}).err, HasSubstr("modules.json: says how texts become"));
  EXPECT_THAT(RunLlmc({"embed", bert, "--normalize", "cat"}).err, HasSubstr("--pool"));
  EXPECT_EQ(RunLlmc({"embed", bert, "--pool=median", "cat"}).exit_code, 2);
  EXPECT_THAT(RunLlmc({"embed", kModel, "cat"}).err, HasSubstr("the model gives logits, no vector"));
  EXPECT_THAT(RunLlmc({"embed", kModel, "--pool=last", "cat"}).out, HasSubstr("256 numbers of "));
  EXPECT_THAT(RunLlmc({"embed", FamiliesFolder() + "/clip", "--pool=last", "cat"}).err,
              HasSubstr("models of text alone"));
  EXPECT_THAT(RunLlmc({"embed", kModel + "/model.onnx", "--pool=last", "cat"}).err,
              HasSubstr("for Hugging Face folders"));
}

// Decoders of which towers lack something, each by its name.
TEST(Embed, DecodersThatMakeNoVectors) {
  const std::pair<const char*, const char*> cases[] = {{"deepseek_v3", "latent attention"},
                                                       {"bloom", "biases by distance (ALiBi)"},
                                                       {"gpt_oss", "attention sinks"},
                                                       {"llama4_text", "attention in chunks"},
                                                       {"llama4_text", "a temperature of queries"},
                                                       {"gemma3n_text", "several streams of hidden states"},
                                                       {"llama-dynamic", "(dynamic, longrope)"},
                                                       {"opt", "learned positions that do not begin at 0"}};
  for (const auto& [name, message] : cases) {
    const CommandResult result = RunLlmc({"embed", FamiliesFolder() + "/" + name, "--pool=last", "cat"});
    EXPECT_EQ(result.exit_code, 3) << name;
    EXPECT_THAT(result.err, HasSubstr(message));
    EXPECT_THAT(result.err, HasSubstr(std::string(name) + "/config.json"));
  }
}

// A model whose tokens see those behind them gives vectors, and no text.
TEST(Embed, NoTextOfWhatSeesBothWays) {
  const Json variants = SentenceVariants()["variants"];
  const auto variant =
      std::find_if(variants.begin(), variants.end(), [](const Json& v) { return v["name"] == "gemma3, both ways"; });
  ASSERT_NE(variant, variants.end());
  const std::string folder = FolderOfVariant(*variant);
  fs::remove(folder + "/modules.json");
  Json config = Json::parse(ReadFile(folder + "/config.json"));
  config["architectures"] = {"Gemma3ForCausalLM"};
  WriteText(folder + "/config.json", config.dump());
  const CommandResult result = RunLlmc({"generate", folder, "--prompt-ids=1,2"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("use_bidirectional_attention"));
}

TEST(Embed, ScoresOfTexts) {
  const std::string folder = FamiliesFolder() + "/sentence-mean";
  const CommandResult shown = RunLlmc({"embed", folder, "--scores", "cat", "the cat", "cat"});
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_THAT(shown.out, testing::StartsWith("cosine of each text with each\n0  [1.000000, 0."));
  EXPECT_THAT(shown.out, HasSubstr(", 1.000000]\n1  [0."));
  EXPECT_THAT(RunLlmc({"embed", folder, "--scores", "--similarity=euclidean", "cat", "cat"}).out,
              HasSubstr("[0.000000, 0.000000]"));
  EXPECT_THAT(RunLlmc({"embed", folder, "--scores", "--similarity=jaccard", "cat"}).err,
              HasSubstr("there are cosine, dot, euclidean, manhattan"));
  EXPECT_EQ(RunLlmc({"embed", folder, "--similarity=dot", "cat"}).exit_code, 2) << "without --scores";
  const std::string file = TempFolder() + "/compared.safetensors";
  ASSERT_EQ(RunLlmc({"embed", folder, "--scores", "cat", "the cat", "-o", file}).exit_code, 0);
  const auto tensors = ReadSafetensors(file);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->at("scores").shape(), (Shape{2, 2}));
  EXPECT_EQ(tensors->at("embeddings").shape(), (Shape{2, 48}));
  EXPECT_THAT(RunLlmc({"embed", folder, "--scores", "cat", "-o", TempFolder() + "/one.npy"}).err,
              HasSubstr("give a .npz file"));
  const std::string copy = CopyOfSentenceMean("compared");
  WriteText(copy + "/config_sentence_transformers.json", R"({"similarity_fn_name": "jaccard"})");
  EXPECT_THAT(RunLlmc({"embed", copy, "--scores", "cat"}).err, HasSubstr("'jaccard' is no similarity"));
}

TEST(Embed, APromptThatIsLeftOutNeedsText) {
  const std::string folder = CopyOfSentenceMean("long-prompt");
  WriteText(folder + "/1_Pooling/config.json", R"({"pooling_mode": "mean", "include_prompt": false})");
  std::string prompt;
  for (int i = 0; i < 40; ++i) prompt += "cat ";
  // The separator is left, as in sentence-transformers.
  EXPECT_EQ(RunLlmc({"embed", folder, "--prompt", prompt, "dog"}).exit_code, 0);
  Json tokenizer = Json::parse(ReadFile(folder + "/tokenizer.json"));
  tokenizer["post_processor"] = nullptr;
  WriteText(folder + "/tokenizer.json", tokenizer.dump());
  EXPECT_THAT(RunLlmc({"embed", folder, "--prompt", prompt, "dog"}).err,
              HasSubstr("text 1: has no token behind the prompt"));
}

}  // namespace
}  // namespace llmc
