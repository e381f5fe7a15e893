// GGUF files that tests/families/make_gguf.py made, against what transformers, tokenizers and SentencePiece computed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "frontend/formats/safetensors.h"
#include "frontend/import.h"
#include "ir/encoding.h"
#include "runtime/engine/generation_config.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The unpacked archive.
const std::string& GgufFolder() {
  static const std::string folder = [] {
    std::string path = TempFolder() + "/gguf";
    fs::create_directories(path);
    const std::string archive = LLMC_TEST_DATA "/../families/data/gguf.tar.gz";
    EXPECT_EQ(std::system(absl::StrCat("tar -xzf '", archive, "' -C '", path, "'").c_str()), 0);
    return path;
  }();
  return folder;
}

TEST(GgufFiles, LogitsAreThoseOfTransformers) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(GgufFolder())) {
    const std::string path = entry.path();
    const std::string stem(absl::StripSuffix(path, ".gguf"));
    if (!absl::EndsWith(path, ".gguf") || !fs::exists(stem + ".outputs.safetensors")) continue;
    ++count;
    // Of f32, from the weights as the file has them; logits are up to 7.
    const CommandResult result = RunLlmc({"run", path, "--dtype=f32", "--inputs", stem + ".inputs.safetensors",
                                          "--compare", stem + ".outputs.safetensors", "--rtol", "0", "--atol", "1e-4"});
    EXPECT_EQ(result.exit_code, 0) << path << "\n" << result.out << result.err;
  }
  EXPECT_EQ(count, 19);
}

TEST(GgufFiles, QuantizedModelsOfOthersAgree) {
  const std::string quant = SharedData("quant");
  if (quant.empty()) GTEST_SKIP() << "the shared test data is not there";
  int count = 0;
  for (const auto& entry : fs::directory_iterator(quant)) {
    const std::string name = entry.path().filename(),
                      reference = absl::StrCat(quant, "/", name, "/reference.safetensors");
    if (!absl::StartsWith(name, "gguf-")) continue;
    ++count;
    // The file's notes: 2^-15 of the logits is rounded off.
    const CommandResult result =
        RunLlmc({"run", absl::StrCat(quant, "/", name, "/model.gguf"), "--dtype=f32", "--inputs", reference,
                 "--compare", reference, "--rtol", "0", "--atol", "2e-3"});
    EXPECT_EQ(result.exit_code, 0) << name << "\n" << result.out << result.err;
  }
  EXPECT_GE(count, 13);
  const CommandResult cut = RunLlmc({"run", quant + "/bad-gguf-truncated/model.gguf"});
  EXPECT_EQ(cut.exit_code, 1);
  EXPECT_THAT(cut.err, HasSubstr("are not within the file's"));
  EXPECT_THAT(cut.err, HasSubstr("it may be cut off: download it again"));
}

// ---- a model in blocks and its twin in F32
// ----------------------------------------------------------------------------
struct WrittenTensor {
  std::string name;
  Shape shape;              // the last dim varies fastest
  uint32_t type = 0;        // 0: F32
  std::string format = {};  // the encoding of other types
  int64_t zero_blocks = 0;  // so many at the front have scales of 0
};

// The bytes of a GGUF file: of random blocks, or with what they decode to.
class GgufWriter {
 public:
  explicit GgufWriter(bool decodes) : decodes_(decodes) {}

  // `own` are numbers by their whole keys.
  std::string Write(const std::vector<std::pair<std::string, uint32_t>>& numbers, const std::string& architecture,
                    absl::Span<const WrittenTensor> tensors,
                    const std::vector<std::pair<std::string, uint32_t>>& own = {}) {
    bytes_ = "GGUF";
    Put<uint32_t>(3);
    Put<uint64_t>(tensors.size());
    Put<uint64_t>(numbers.size() + own.size() + 2);
    for (const auto& [key, number] : own) {
      Text(key);
      Put<uint32_t>(4);
      Put(number);
    }
    Text("general.architecture");
    Put<uint32_t>(8);
    Text(architecture);
    Text(architecture + ".attention.layer_norm_rms_epsilon");
    Put<uint32_t>(6);
    Put<float>(1e-5F);
    for (const auto& [key, number] : numbers) {
      Text(absl::StrCat(architecture, ".", key));
      Put<uint32_t>(4);
      Put(number);
    }
    std::string data;
    for (const WrittenTensor& tensor : tensors) {
      Text(tensor.name);
      Put<uint32_t>(static_cast<uint32_t>(tensor.shape.size()));
      for (auto dim = tensor.shape.rbegin(); dim != tensor.shape.rend(); ++dim) Put<uint64_t>(*dim);
      Put<uint32_t>(decodes_ ? 0 : tensor.type);
      Put<uint64_t>(data.size());
      data += Contents(tensor);
      data.resize((data.size() + 31) / 32 * 32);
    }
    bytes_.resize((bytes_.size() + 31) / 32 * 32);
    return bytes_ + data;
  }

 private:
  template <class T>
  void Put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void Text(const std::string& text) {
    Put<uint64_t>(text.size());
    bytes_ += text;
  }
  uint32_t Random() {
    return static_cast<uint32_t>((state_ = state_ * 6364136223846793005 + 1442695040888963407) >> 40);
  }

  std::string Contents(const WrittenTensor& tensor) {
    int64_t elements = 1;
    for (int64_t dim : tensor.shape) elements *= dim;
    std::vector<float> numbers(static_cast<size_t>(elements));
    if (tensor.type == 0) {
      for (float& number : numbers) number = static_cast<float>(Random() % 64) / 128 - 0.25F;
    }
    std::string blocks;
    if (tensor.type != 0) {
      const EncodingFormat& format = *(*ParseEncoding(tensor.format))->format;
      blocks.resize(static_cast<size_t>(elements / format.superblock * format.superblock_bytes));
      for (char& byte : blocks) byte = static_cast<char>(Random());
      auto* block = reinterpret_cast<uint8_t*>(blocks.data());
      for (int64_t i = 0; i < elements; i += format.superblock, block += format.superblock_bytes) {
        if (format.halves_at[0] < 0) *block = static_cast<uint8_t>(120 + Random() % 4);  // an exponent
        for (const int at : format.halves_at) {
          const bool is_zero = i < tensor.zero_blocks * format.superblock;
          const uint16_t half = is_zero ? 0 : FloatToHalf(0.0004F + 1e-6F * static_cast<float>(Random() % 256));
          if (at >= 0) std::memcpy(block + at, &half, 2);
        }
        format.decode_superblock(block, numbers.data() + i);
      }
    }
    if (tensor.type != 0 && !decodes_) return blocks;
    return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)};
  }

  const bool decodes_;
  std::string bytes_;
  uint64_t state_ = 1;
};

// Experts are cut from one tensor, the embedding is tied, queries, keys and values are of different types.
const std::vector<WrittenTensor>& ExpertTensors() {
  static const auto* const tensors = new std::vector<WrittenTensor>{
      {"token_embd.weight", {40, 256}, 11, "q3_k"},
      {"output_norm.weight", {256}},
      {"blk.0.attn_norm.weight", {256}},
      {"blk.0.attn_q.weight", {256, 256}, 12, "q4_k"},
      {"blk.0.attn_k.weight", {128, 256}, 12, "q4_k"},
      {"blk.0.attn_v.weight", {128, 256}, 14, "q6_k"},
      {"blk.0.attn_output.weight", {256, 256}, 7, "q5_1"},
      {"blk.0.attn_q_norm.weight", {64}},
      {"blk.0.attn_k_norm.weight", {64}},
      {"blk.0.ffn_norm.weight", {256}},
      {"blk.0.ffn_gate_inp.weight", {3, 256}},
      {"blk.0.ffn_gate_exps.weight", {3, 256, 256}, 23, "iq4_xs"},
      {"blk.0.ffn_up_exps.weight", {3, 256, 256}, 10, "q2_k"},
      {"blk.0.ffn_down_exps.weight", {3, 256, 256}, 39, "mxfp4_gguf"},
  };
  return *tensors;
}

const std::vector<std::pair<std::string, uint32_t>>& ExpertNumbers() {
  static const auto* const numbers =
      new std::vector<std::pair<std::string, uint32_t>>{{"block_count", 1},
                                                        {"context_length", 64},
                                                        {"embedding_length", 256},
                                                        {"feed_forward_length", 256},
                                                        {"attention.head_count", 4},
                                                        {"attention.head_count_kv", 2},
                                                        {"attention.key_length", 64},
                                                        {"attention.value_length", 64},
                                                        {"expert_count", 3},
                                                        {"expert_used_count", 2},
                                                        {"expert_feed_forward_length", 256}};
  return *numbers;
}

// Writes FOLDER/ids.safetensors, and the logits of these numbers in F32 to FOLDER/logits.safetensors.
void WriteExpectedLogits(const std::string& folder) {
  std::ofstream(folder + "/numbers.gguf", std::ios::binary)
      << GgufWriter(true).Write(ExpertNumbers(), "qwen3moe", ExpertTensors());
  Tensor ids(DType::kI64, {1, 12});
  for (int64_t i = 0; i < 12; ++i) ids.SetInt(i, i * 7 % 40);
  ASSERT_TRUE(WriteSafetensors(folder + "/ids.safetensors", {{"input_ids", ids}}).ok());
  const CommandResult run = RunLlmc({"run", folder + "/numbers.gguf", "--dtype=f32", "--inputs",
                                     folder + "/ids.safetensors", "--outputs", folder + "/logits.safetensors"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
}

void ExpectThoseLogits(const std::string& folder, const std::string& model, const std::vector<std::string>& options) {
  std::vector<std::string> args = {
      "run", model,    "--inputs", folder + "/ids.safetensors", "--compare", folder + "/logits.safetensors", "--rtol",
      "0",   "--atol", "1e-4"};
  args.insert(args.end(), options.begin(), options.end());
  const CommandResult run = RunLlmc(args);
  EXPECT_EQ(run.exit_code, 0) << model << "\n" << run.out << run.err;
}

TEST(GgufFiles, BlocksComputeWhatTheirNumbersDo) {
  const std::string folder = TempFolder(), blocks = folder + "/blocks.gguf", plan = folder + "/blocks.bin";
  WriteExpectedLogits(folder);
  std::ofstream(blocks, std::ios::binary) << GgufWriter(false).Write(ExpertNumbers(), "qwen3moe", ExpertTensors());
  ExpectThoseLogits(folder, blocks, {"--dtype=f32"});
  // The same from a plan, which leaves the blocks in the file, and from a dump, which finds them there again.
  ASSERT_EQ(RunLlmc({"compile", blocks, "--dtype=f32", "--weights=external", "--fast-compile", "-o", plan}).exit_code,
            0);
  ExpectThoseLogits(folder, plan, {});
  EXPECT_THAT(RunLlmc({"show", plan}).out, HasSubstr("blocks.gguf"));
  ASSERT_EQ(RunLlmc({"opt", blocks, "-o", folder + "/blocks.lir"}).exit_code, 0);
  EXPECT_EQ(RunLlmc({"opt", folder + "/blocks.lir", "-o", folder + "/again.lir"}).exit_code, 0);
}

// A plan leaves the blocks in every file of the model, and does without none of them; so does a dump.
TEST(GgufFiles, BlocksInSeveralFilesStayThere) {
  const std::string folder = TempFolder(), plan = folder + "/parts.bin";
  WriteExpectedLogits(folder);
  const auto path = [&](uint32_t part) { return absl::StrCat(folder, "/parts-0000", part, "-of-00002.gguf"); };
  const absl::Span<const WrittenTensor> all = ExpertTensors();
  GgufWriter writer(false);
  for (const uint32_t part : {1, 2}) {
    std::ofstream(path(part), std::ios::binary)
        << writer.Write(ExpertNumbers(), "qwen3moe", part == 1 ? all.first(6) : all.subspan(6),
                        {{"split.no", part - 1}, {"split.count", 2}});
  }
  const CommandResult compiled =
      RunLlmc({"compile", path(1), "--dtype=f32", "--target=host", "--weights=external", "-o", plan});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  EXPECT_LT(fs::file_size(plan), fs::file_size(path(2)));
  ExpectThoseLogits(folder, plan, {});
  const std::string dump = folder + "/parts.lir";
  ASSERT_EQ(RunLlmc({"opt", path(2), "--dtype=f32", "-o", dump}).exit_code, 0);
  ExpectThoseLogits(folder, dump, {});
  for (const uint32_t part : {1, 2}) {
    const std::string name = fs::path(path(part)).filename().string();
    EXPECT_THAT(RunLlmc({"show", plan}).out, HasSubstr(name));
    fs::rename(path(part), folder + "/elsewhere");
    for (const std::string& model : {plan, dump}) {
      const CommandResult lost = RunLlmc({"run", model, "--inputs", folder + "/ids.safetensors"});
      EXPECT_NE(lost.exit_code, 0) << model;
      EXPECT_THAT(lost.err, HasSubstr(name));
    }
    fs::rename(folder + "/elsewhere", path(part));
  }
}

std::vector<WrittenTensor> ChangedExperts(const std::string& name, const std::function<void(WrittenTensor*)>& change) {
  std::vector<WrittenTensor> tensors = ExpertTensors();
  for (WrittenTensor& tensor : tensors) {
    if (tensor.name == name) change(&tensor);
  }
  return tensors;
}

TEST(GgufFiles, CheckTellsOfScales) {
  const std::string file = TempFolder() + "/scales.gguf";
  const auto write = [&](const std::vector<WrittenTensor>& tensors) {
    std::ofstream(file, std::ios::binary) << GgufWriter(false).Write(ExpertNumbers(), "qwen3moe", tensors);
  };
  write(ExpertTensors());
  const CommandResult fine = RunLlmc({"check", file});
  EXPECT_THAT(fine.out, HasSubstr("  quantized: blk.*.attn_k.weight (1): q4_k, 4.50 bits a weight, scales 0.0004"));
  EXPECT_THAT(fine.out, Not(HasSubstr("warning")));
  const auto zero = [](int64_t blocks) { return [blocks](WrittenTensor* tensor) { tensor->zero_blocks = blocks; }; };
  write(ChangedExperts("blk.0.attn_k.weight", zero(2)));
  const CommandResult text = RunLlmc({"check", file}), strict = RunLlmc({"check", file, "--strict", "--json"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("warning: blk.0.attn_k.weight: 2 of 128 blocks have a scale of zero, as block 0"));
  EXPECT_THAT(text.out, HasSubstr("warning: blk.0.attn_k.weight: 2 outputs have weights of zero alone"));
  EXPECT_EQ(strict.exit_code, 1);
  EXPECT_EQ(strict.Json()["ok"], false);
  EXPECT_EQ(strict.Json()["findings"].size(), 2);
  // Of a vocabulary some rows may be of no token.
  write(ChangedExperts("token_embd.weight", zero(2)));
  EXPECT_THAT(RunLlmc({"check", file}).out, Not(HasSubstr("warning")));
  // One expert of three, whose matrix has 256 blocks.
  write(ChangedExperts("blk.0.ffn_up_exps.weight", zero(256)));
  EXPECT_THAT(RunLlmc({"check", file}).out, HasSubstr("warning: blk.0.ffn_up_exps.weight, expert 0: "));
}

TEST(GgufFiles, ErrorsHaveTheNamesOfTheFile) {
  const std::string file = TempFolder() + "/names.gguf";
  const auto error_of = [&](const std::vector<WrittenTensor>& tensors) {
    std::ofstream(file, std::ios::binary) << GgufWriter(false).Write(ExpertNumbers(), "qwen3moe", tensors);
    return RunLlmc({"check", file}).err;
  };
  EXPECT_THAT(
      error_of(ChangedExperts("blk.0.attn_q.weight", [](WrittenTensor* t) { t->name = "blk.0.attn_p.weight"; })),
      AllOf(HasSubstr("the tensors do not fit the metadata"), HasSubstr("missing tensors (1): blk.0.attn_q.weight"),
            HasSubstr("\"blk.0.attn_p.weight\"")));
  EXPECT_THAT(error_of(ChangedExperts("blk.0.attn_k.weight",
                                      [](WrittenTensor* t) {
                                        t->shape = {64, 256};
                                      })),
              HasSubstr("blk.0.attn_k.weight is q4_k[64, 256], the metadata ask for [128, 256]"));
}

TEST(GgufFiles, CheckTellsHowTensorsAreStored) {
  const std::string quant = SharedData("quant");
  if (quant.empty()) GTEST_SKIP() << "the shared test data is not there";
  const std::string file = quant + "/gguf-q4_k/model.gguf";
  const CommandResult text = RunLlmc({"check", file});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("  blk.*.attn_q.weight       Q4_K        2 x   4.500 bits a number\n"));
  EXPECT_THAT(text.out, HasSubstr("  output.weight             Q6_K        1 x   6.562 bits a number\n"));
  const nlohmann::json json = nlohmann::json::parse(RunLlmc({"check", file, "--json"}).out);
  EXPECT_EQ(json["tensors"][0]["name"], "blk.*.attn_k.weight");
  // Memory is counted as blocks, in the plan too.
  const nlohmann::json fit = nlohmann::json::parse(RunLlmc({"fit", file, "--gpu-memory=8GiB", "--json"}).out);
  EXPECT_LT(fit["weights"].get<int64_t>(), 900'000) << fit;
}

TEST(GgufFiles, TokenizersAreThoseOfTheirPackages) {
  for (const char* name : {"tokenizer-gpt2", "tokenizer-qwen2", "tokenizer-llama"}) {
    SCOPED_TRACE(name);
    const std::string stem = absl::StrCat(GgufFolder(), "/", name);
    const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = ReadTokenizer(GgufSideFiles(stem + ".gguf"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const nlohmann::json rows = nlohmann::json::parse(ReadFile(stem + ".json"));
    ASSERT_GT(rows.size(), 5u);
    for (const nlohmann::json& row : rows) {
      const absl::StatusOr<std::vector<int32_t>> ids = (*tokenizer)->Encode(row["text"].get<std::string>(), {});
      ASSERT_TRUE(ids.ok());
      EXPECT_EQ(nlohmann::json(*ids), row["ids"]) << row["text"];
    }
  }
}

TEST(GgufFiles, GenerateAndCompile) {
  const std::string file = GgufFolder() + "/tokenizer-gpt2.gguf", plan = TempFolder() + "/gguf.bin";
  const CommandResult direct = RunLlmc({"generate", file, "--prompt", "a plan", "--max-new-tokens", "4"});
  EXPECT_EQ(direct.exit_code, 0) << direct.err;
  EXPECT_EQ(RunLlmc({"compile", file, "--fast-compile", "-o", plan}).exit_code, 0);
  EXPECT_EQ(RunLlmc({"generate", plan, "--prompt", "a plan", "--max-new-tokens", "4"}).out, direct.out);
  // A dump finds its weights in the file again.
  const std::string dump = TempFolder() + "/gguf.lir";
  EXPECT_EQ(RunLlmc({"opt", file, "-o", dump}).exit_code, 0);
  const CommandResult shown = RunLlmc({"check", dump, "--dim", "none=1"});
  EXPECT_NE(shown.exit_code, 4) << shown.err;
  EXPECT_EQ(RunLlmc({"opt", dump, "--weights-folder", GgufFolder(), "-o", TempFolder() + "/again.lir"}).exit_code, 0);
  EXPECT_THAT(RunLlmc({"check", file, "--dim", "B=1"}).err, HasSubstr("--dim and --set are for ONNX files"));
}

}  // namespace
}  // namespace llmc
