// llmc fit, and plans of random weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cubins/targets.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

const std::string kBenchConfigs = LLMC_TEST_DATA "/../../tools/bench/configs/";
constexpr int64_t kGiB = int64_t{1} << 30;

TEST(Fit, SaysWhatFits) {
  const CommandResult result = RunLlmc({"fit", kBenchConfigs + "llama-3.1-8b", "--gpu-memory=141GiB", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json = result.Json();
  EXPECT_TRUE(json["fits"]);
  EXPECT_EQ(json["gpu_memory"], 141 * kGiB);
  EXPECT_EQ(json["kv_bytes_per_token"], 128 << 10);
  const int64_t weights = json["weights"].get<int64_t>() + json["prepared"].get<int64_t>();
  EXPECT_NEAR(static_cast<double>(weights), 2 * 8030261248.0, 0.002 * 2 * 8030261248.0);
  EXPECT_LE(json["fixed"].get<int64_t>() + json["kv_bytes"].get<int64_t>(), 141 * kGiB);
  const nlohmann::json& table = json["table"];
  EXPECT_EQ(table.front()["context"], 1024);
  EXPECT_EQ(table.back()["context"], 131072);
  for (const nlohmann::json& row : table) {
    EXPECT_LE(row["batch"].get<int64_t>() * row["context"].get<int64_t>(), json["kv_tokens"]);
  }
  // Of a step at the longest context: the weights but for the embedding, and the cache, at the rates of the target.
  const CommandResult on_b200 =
      RunLlmc({"fit", kBenchConfigs + "llama-3.1-8b", "--gpu-memory=141GiB", "--target=sm_100a", "--json"});
  ASSERT_EQ(on_b200.exit_code, 0) << on_b200.err;
  const nlohmann::json other = on_b200.Json();
  EXPECT_EQ(other["target"], "sm_100a");
  const auto batch = other["table"].back()["batch"].get<double>();
  const double bytes = 15.010e9 + batch * 131073 * (128 << 10);
  EXPECT_NEAR(other["table"].back()["floor_us"].get<double>(), 1e6 * bytes / FindTarget("sm_100a")->bandwidth, 20);
  const CommandResult text = RunLlmc({"fit", kBenchConfigs + "llama-3.1-8b", "--gpu-memory=141GiB"});
  EXPECT_THAT(text.out, HasSubstr("128.0 KiB a token"));
  EXPECT_THAT(text.out, HasSubstr("an estimate"));
  EXPECT_EQ(text.err, "");
}

TEST(Fit, SaysByHowMuchItDoesNot) {
  const CommandResult small = RunLlmc({"fit", kBenchConfigs + "llama-3.1-70b", "--gpu-memory=80GB", "--json"});
  EXPECT_EQ(small.exit_code, 1);
  EXPECT_FALSE(small.Json()["fits"]);
  EXPECT_THAT(small.Json()["reason"].get<std::string>(), HasSubstr("too few"));
  EXPECT_THAT(small.err, HasSubstr("the model does not fit: "));

  const std::vector<std::string> ask = {"fit", kBenchConfigs + "qwen3-8b", "--gpu-memory=24GiB", "--bound", "R=256"};
  const auto with = [&](const std::string& context, const std::string& batch) {
    std::vector<std::string> args = ask;
    args.insert(args.end(), {"--context", context, "--batch", batch});
    return RunLlmc(args);
  };
  EXPECT_EQ(with("1024", "8").exit_code, 0) << with("1024", "8").err;
  const CommandResult many = with("32768", "8");
  EXPECT_EQ(many.exit_code, 1);
  EXPECT_THAT(many.err, HasSubstr("KV cache 36.00 GiB"));
  EXPECT_THAT(with("40961", "1").err, HasSubstr("the model's context is 40960"));
}

// 28 layers of 4096 bytes a token, of which 14 have a window of 512: of eight sequences these need the pages that 512
// tokens lie in and two more, those of two steps of 256 tokens, and one.
TEST(Fit, CountsPagesOfEachPool) {
  const std::string folder = TempFolder() + "/windows";
  fs::create_directories(folder);
  nlohmann::json config = nlohmann::json::parse(std::ifstream(kBenchConfigs + "qwen3-0.6b/config.json"));
  config["use_sliding_window"] = true;
  config["sliding_window"] = 512;
  config["layer_types"] = std::vector<std::string>(28, "full_attention");
  for (int layer = 0; layer < 14; ++layer) config["layer_types"][layer] = "sliding_attention";
  std::ofstream(folder + "/config.json") << config;
  struct Case {
    std::vector<std::string> sizes;
    int64_t largest, of_window;
  };
  for (const Case& c :
       {Case{{}, 16, (8 * (32 + 2) + 32 + 1) * 16}, Case{{"64"}, 64, (8 * (8 + 2) + 8 + 1) * 64},
        Case{{"64", "N512=16"}, 64, (8 * (32 + 2) + 32 + 1) * 16}, Case{{"N512=64"}, 64, (8 * (8 + 2) + 8 + 1) * 64}}) {
    std::vector<std::string> args = {"fit", folder, "--gpu-memory=8GiB", "--bound", "S=8", "--bound", "T=256"};
    for (const std::string& size : c.sizes) args.push_back("--page-size=" + size);
    const std::string text = RunLlmc(args).out;
    EXPECT_THAT(text, HasSubstr("of it for layers with a window of 512, which need no more"));
    EXPECT_THAT(text, Not(HasSubstr("window of 0")));
    args.push_back("--json");
    const CommandResult result = RunLlmc(args);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const nlohmann::json json = result.Json();
    const auto tokens = json["kv_tokens"].get<int64_t>();
    EXPECT_EQ(json["kv_bytes_per_token"], 28 * 4096);
    EXPECT_EQ(tokens % c.largest, 0);
    EXPECT_EQ(json["kv_bytes"], 14 * 4096 * (tokens + c.of_window));
    EXPECT_EQ(json["max_context"], 40960);
    EXPECT_EQ(json["table"][0]["batch"], tokens / 1024);
    args.insert(args.end(), {"--context=1000", "--batch"});
    args.push_back(std::to_string(tokens / 1008));
    const int64_t of_page = c.sizes.empty() || c.sizes[0] != "64" ? 1008 : 1024;
    EXPECT_EQ(RunLlmc(args).exit_code, tokens / 1008 > tokens / of_page ? 1 : 0);
  }
}

TEST(Fit, ReadsPlansAndModels) {
  const std::string model = LLMC_TEST_DATA "/tale-7m", plan = TempFolder() + "/host.bin";
  EXPECT_EQ(RunLlmc({"fit", model, "--gpu-memory=8GiB"}).exit_code, 0);
  ASSERT_EQ(RunLlmc({"compile", model, "-o", plan, "--target=host"}).exit_code, 0);
  const CommandResult host = RunLlmc({"fit", plan, "--gpu-memory=8GiB"});
  EXPECT_EQ(host.exit_code, 1);
  EXPECT_THAT(host.err, HasSubstr("compile it with --target"));
}

// Models without a paged cache get buffers for the sizes of each run.
TEST(Fit, KnowsWhatARunTakes) {
  const std::string vit = SharedData("onnx-exports/vit-vit-dynamo18/model.onnx");
  const std::string bert = SharedData("onnx-exports/bert-encoder-legacy17/model.onnx");
  if (vit.empty() || bert.empty()) GTEST_SKIP() << "the shared test data is not there";
  const auto of_images = [&](const std::string& images) {
    return RunLlmc({"fit", vit, "--gpu-memory=8GiB", "--json", "--bound", "s77=" + images}).Json();
  };
  const nlohmann::json one = of_images("1"), many = of_images("64"), most = of_images("1000000");
  EXPECT_GT(one["run_arena"].get<int64_t>(), 0);
  EXPECT_GT(many["run_arena"].get<int64_t>(), 32 * one["run_arena"].get<int64_t>());
  EXPECT_TRUE(many["largest_run_fits"]);
  EXPECT_FALSE(most["largest_run_fits"]);
  EXPECT_TRUE(most["fits"]);
  EXPECT_THAT(RunLlmc({"fit", vit, "--gpu-memory=8GiB", "--bound", "s77=1000000"}).out,
              HasSubstr("activations of a run, which does not fit; smaller ones may, with s77 <= 1000000"));

  const std::vector<std::string> unknown = {"fit", bert, "--gpu-memory=8GiB"};
  EXPECT_THAT(RunLlmc(unknown).out, HasSubstr("not known  activations, made for each run: give --bound NAME=MAX for "));
}

// By the same arithmetic as --device=cuda, which does not take all of a GPU by default.
TEST(Fit, GoesByTheMemoryFraction) {
  const auto report = [](const std::string& fraction) {
    std::vector<std::string> args = {"fit", kBenchConfigs + "llama-3.1-8b", "--gpu-memory=80GiB", "--json"};
    if (!fraction.empty()) args.push_back("--memory-fraction=" + fraction);
    return RunLlmc(args).Json();
  };
  const auto taken = [](const nlohmann::json& json) {
    return json["fixed"].get<int64_t>() + json["kv_bytes"].get<int64_t>();
  };
  const nlohmann::json plain = report(""), half = report("0.5"), whole = report("1"), little = report("0.1");
  EXPECT_EQ(plain["memory_fraction"], 0.9);
  EXPECT_EQ(plain, report("0.9"));
  const int64_t page = 16 * plain["kv_bytes_per_token"].get<int64_t>();
  EXPECT_LE(taken(plain), 72 * kGiB);
  EXPECT_GT(taken(plain), 72 * kGiB - page);
  EXPECT_LE(taken(half), 40 * kGiB);
  EXPECT_GT(taken(half), 40 * kGiB - page);
  EXPECT_GT(taken(whole), 76 * kGiB);
  EXPECT_FALSE(little["fits"]);
  EXPECT_THAT(little["reason"].get<std::string>(), HasSubstr("of a GPU of 80.00 GiB the fraction 0.1 may be used"));
}

TEST(Fit, SizesOfMemory) {
  for (const char* wrong : {"80", "x", "80XB", "-1GiB", "0", "1e30GiB", "GiB", ""}) {
    if (std::string(wrong) == "80") continue;  // bytes
    EXPECT_EQ(RunLlmc({"fit", "nothing", std::string("--gpu-memory=") + wrong}).exit_code, 2) << wrong;
  }
  const auto bytes = [](const std::string& text) {
    return RunLlmc({"fit", kBenchConfigs + "qwen3-0.6b", "--gpu-memory=" + text, "--json"})
        .Json()["gpu_memory"]
        .get<int64_t>();
  };
  EXPECT_EQ(bytes("1.5GiB"), 3 * kGiB / 2);
  EXPECT_EQ(bytes("24 gb"), 24000000000);
  EXPECT_EQ(bytes("24G"), 24000000000);
  EXPECT_EQ(bytes("12345678"), 12345678);
}

TEST(RandomWeights, MakeSmallPlans) {
  const std::string config = kBenchConfigs + "llama-3.2-1b", plan = TempFolder() + "/random.bin";
  const CommandResult without = RunLlmc({"compile", config, "-o", plan, "--target=host"});
  EXPECT_EQ(without.exit_code, 1);
  EXPECT_THAT(without.err, HasSubstr("neither model.safetensors nor"));
  ASSERT_EQ(RunLlmc({"compile", config, "--random-weights", "-o", plan, "--target=host"}).exit_code, 0);
  EXPECT_LT(fs::file_size(plan), 1000000u);
  EXPECT_THAT(RunLlmc({"show", plan}).out, HasSubstr("weights are random numbers"));
  EXPECT_THAT(RunLlmc({"show", plan}).out, HasSubstr("146, 2.3 GiB (bf16 x146)"));
  ASSERT_EQ(RunLlmc({"compile", config, "--random-weights", "-o", plan + "2", "--target=host"}).exit_code, 0);
  EXPECT_EQ(ReadFile(plan), ReadFile(plan + "2"));
  ASSERT_EQ(
      RunLlmc({"compile", config, "--random-weights", "--weights-seed=1", "-o", plan + "2", "--target=host"}).exit_code,
      0);
  EXPECT_NE(ReadFile(plan), ReadFile(plan + "2"));
  const CommandResult run = RunLlmc({"generate", plan, "--prompt-ids", "1,2"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("run it with --device=cuda"));
  EXPECT_THAT(
      RunLlmc({"compile", LLMC_TEST_DATA "/tale-7m/model.onnx", "--random-weights", "-o", plan, "--target=host"}).err,
      HasSubstr("is for Hugging Face folders"));
}

// What times an encoder: a configuration alone, with sizes for its dims.
TEST(RandomWeights, RunOfEncodersByTheirConfigurations) {
  const std::string config = TempFolder() + "/small-bert";
  fs::create_directories(config);
  nlohmann::json settings = nlohmann::json::parse(ReadFile(kBenchConfigs + "bert-base/config.json"));
  settings.update({{"num_hidden_layers", 1}, {"vocab_size", 100}});
  std::ofstream(config + "/config.json") << settings;
  const std::vector<std::string> run = {"run",   config, "--random-weights", "--random", "--dim", "B=2",
                                        "--dim", "L=3",  "--repeat",         "3",        "--json"};
  const CommandResult result = RunLlmc(run);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json = result.Json();
  EXPECT_EQ(json["outputs"][0]["shape"], nlohmann::json::parse("[2, 3, 768]"));
  EXPECT_EQ(json["time"]["runs"], 3);
  EXPECT_FALSE(json["time"].contains("gpu_median_s")) << "on the host";
  EXPECT_EQ(RunLlmc(run).Json()["outputs"], json["outputs"]);
  std::vector<std::string> other = run;
  other.push_back("--weights-seed=1");
  EXPECT_NE(RunLlmc(other).Json()["outputs"], json["outputs"]);
  const std::string plan = TempFolder() + "/small-bert.bin";
  ASSERT_EQ(RunLlmc({"compile", config, "--random-weights", "-o", plan, "--target=host"}).exit_code, 0);
  EXPECT_THAT(RunLlmc({"run", plan, "--random-weights", "--random"}).err, HasSubstr("is a plan; --dtype"));
}

// In the type that is asked for, and without the weights that are there.
TEST(RandomWeights, OfAModelThatIsThere) {
  const std::string plan = TempFolder() + "/tale-random.bin";
  const std::vector<std::string> compile = {
      "compile", LLMC_TEST_DATA "/tale-7m", "--random-weights", "--dtype=f32", "-o", plan, "--target=host"};
  const CommandResult compiled = RunLlmc(compile);
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  EXPECT_THAT(RunLlmc({"show", plan}).out, HasSubstr("(f32 x"));
  const CommandResult run = RunLlmc({"generate", plan, "--prompt-ids", "1,2", "--max-new-tokens", "4", "--ignore-eos"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace llmc
