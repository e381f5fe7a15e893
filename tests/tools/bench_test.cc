// llmc bench: what a step costs, and what is said where there is no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "codegen/plan_writer.h"
#include "tests/runtime/fake_executor.h"
#include "tests/tools/bench_scripts.h"
#include "tests/tools/run_command.h"
#include "tools/bench_cost.h"
#include "tools/bench_prefix.h"
#include "tools/bench_report.h"
#include "tools/bench_requests.h"
#include "tools/bench_tensors.h"
#include "tools/model_source.h"
#include "tools/plan_options.h"

namespace llmc {
namespace {

using testing::HasSubstr;

const std::string kConfigs = LLMC_TEST_DATA "/../../tools/bench/configs/";

plan::Manifest ManifestOf(const std::string& name) {
  const ModelSource source = {.path = kConfigs + name, .random_weights = true};
  Progress progress;
  Ledger ledger;
  const auto model = LoadOptimized(source, {.target = "sm_90a"}, &ledger, &progress);
  EXPECT_TRUE(model.ok()) << model.status();
  auto options = MakePlanOptions(**model, source, {.targets = {*FindTarget("sm_90a")}}, ledger);
  EXPECT_TRUE(options.ok()) << options.status();
  auto manifest = MakeManifest(**model, *options);
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  return *std::move(manifest);
}

BenchStep StepOf(std::vector<BenchSequence> sequences) {
  const auto count = static_cast<int64_t>(sequences.size());
  int64_t tokens = 0;
  for (const BenchSequence& sequence : sequences) tokens += sequence.tokens;
  return {.dims = {{"T", tokens}, {"S", count}, {"R", count}, {"P", 8192}, {"N", 100000}},
          .sequences = std::move(sequences)};
}

// Computed by hand from the configurations: linear layers, head and KV cache in bf16.
TEST(BenchCost, ADecodeStepReadsWeightsAndCache) {
  struct Expected {
    double gigabytes;         // of the weights of linear layers and head
    double kv_bytes;          // of a token
    double layer_parameters;  // of linear layers, in millions
    double head_parameters;   // in millions
    double attention_width;   // layers * heads * head_dim
  };
  const std::map<std::string, Expected> kExpected = {{"llama-3.2-1b", {2.472, 32 << 10, 973.1, 262.7, 16 * 2048}},
                                                     {"llama-3.1-8b", {15.010, 128 << 10, 6979.3, 525.3, 32 * 4096}},
                                                     {"qwen3-0.6b", {1.192, 112 << 10, 440.4, 155.6, 28 * 2048}},
                                                     {"qwen3-8b", {15.137, 144 << 10, 6945.8, 622.3, 36 * 4096}}};
  for (const auto& [name, expected] : kExpected) {
    SCOPED_TRACE(name);
    const plan::Manifest manifest = ManifestOf(name);
    const TargetCode code(manifest, 0);
    const plan::Program& one = code.program(0);
    ASSERT_TRUE(one.decode());
    const StepCost cost = CostOf(one, StepOf({{.position = 999, .tokens = 1}}));
    EXPECT_NEAR(cost.weight_bytes * 1e-9, expected.gigabytes, 0.0015) << "norms and one row of the embedding are extra";
    EXPECT_EQ(cost.kv_bytes, 1001 * expected.kv_bytes) << "1000 tokens are read and one is written";

    const plan::Program& many = code.program(code.programs_size() - 2);
    const StepCost batch = CostOf(many, StepOf(std::vector<BenchSequence>(16, {.position = 99})));
    EXPECT_NEAR(batch.weight_bytes * 1e-9, expected.gigabytes, 0.0015) << "weights are read once";
    EXPECT_EQ(batch.kv_bytes, 16 * 101 * expected.kv_bytes);

    const plan::Program& prompt = code.program(code.programs_size() - 1);
    const StepCost prefill = CostOf(prompt, StepOf({{.position = 0, .tokens = 2048}}));
    const double linear = 2e6 * (expected.layer_parameters * 2048 + expected.head_parameters);
    const double attention = 4 * expected.attention_width * 2048 * 2049 / 2;
    EXPECT_NEAR(prefill.flops, linear + attention, 0.001 * linear);
    EXPECT_EQ(prefill.kv_bytes, 2 * 2048 * expected.kv_bytes);
  }
}

// Tokens at positions 6, 7 and 8: of chunks of 4 they see 3, 4 and 1 keys, of a window of 4 each sees 4.
TEST(BenchCost, CountsTheKeysThatTokensSee) {
  const auto cost = [](const std::string& range) {
    plan::Task task;
    task.mutable_cost()->set_flops("step:pairs" + range);
    task.mutable_cost()->set_state_bytes("step:keys" + range);
    const StepCost of_step = CostOf(task, StepOf({{.position = 6, .tokens = 3}}));
    return std::pair(of_step.flops, of_step.kv_bytes);
  };
  EXPECT_EQ(cost(""), std::pair(24.0, 9.0));
  EXPECT_EQ(cost(":4"), std::pair(12.0, 6.0));
  EXPECT_EQ(cost(":chunk4"), std::pair(8.0, 5.0));
}

TEST(Bench, SaysWhatItNeeds) {
  const CommandResult result = RunLlmc({"bench", kConfigs + "qwen3-0.6b", "--random-weights", "--json"});
  if (result.exit_code == 0) GTEST_SKIP() << "there is a GPU here";
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.Json()["error"]["code"], "NOT_FOUND");
  EXPECT_THAT(result.err, HasSubstr("NVIDIA"));
  EXPECT_EQ(RunLlmc({"bench", kConfigs + "qwen3-0.6b", "--batch", "0"}).exit_code, 2);
  EXPECT_EQ(RunLlmc({"bench", kConfigs + "qwen3-0.6b", "--batch", "1,x"}).exit_code, 2);
  const CommandResult over = RunLlmc({"bench", kConfigs + "qwen3-0.6b", "--output", TempFolder()});
  EXPECT_EQ(over.exit_code, 1);
  EXPECT_THAT(over.err, HasSubstr("is a folder"));
}

// One layer of BERT, its configuration alone.
std::string SmallEncoder() {
  std::string folder = TempFolder() + "/bench-bert";
  std::filesystem::create_directories(folder);
  nlohmann::json settings = nlohmann::json::parse(ReadFile(kConfigs + "bert-base/config.json"));
  settings.update({{"num_hidden_layers", 1}, {"vocab_size", 100}});
  std::ofstream(folder + "/config.json") << settings;
  return folder;
}

// Of any model that is no language model, on the host; given inputs say its sizes.
TEST(Bench, TimesModelsOverNamedTensorsOnTheHost) {
  const std::string plan = TempFolder() + "/bench-encoder.bin", model = SmallEncoder();
  ASSERT_EQ(RunLlmc({"compile", model, "--random-weights", "--target=host", "-o", plan}).exit_code, 0);
  const CommandResult result = RunLlmc({"bench", plan, "--device=host", "--dim", "B=2", "--dim", "L=5", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json report = result.Json();
  EXPECT_EQ(report["device"], "host");
  ASSERT_EQ(report["runs"].size(), 1U);
  EXPECT_EQ(report["runs"][0]["dims"], (nlohmann::json{{"B", 2}, {"L", 5}}));
  EXPECT_GT(report["runs"][0]["clock"]["median_ms"], 0.0);
  EXPECT_GE(report["runs"][0]["clock"]["runs"], 1);
  EXPECT_FALSE(report["runs"][0].contains("gpu"));
  EXPECT_THAT(result.err, HasSubstr("random: input_ids  i64[2, 5]"));

  const std::string output = TempFolder() + "/bench-encoder.json";
  const CommandResult folder =
      RunLlmc({"bench", model, "--random-weights", "--device=host", "--dim", "L=3", "--output", output});
  ASSERT_EQ(folder.exit_code, 0) << folder.err;
  EXPECT_THAT(folder.out, testing::AllOf(HasSubstr("B = 1, L = 3"), HasSubstr("on the host")));
  EXPECT_EQ(nlohmann::json::parse(ReadFile(output))["runs"][0]["dims"]["L"], 3);

  EXPECT_THAT(RunLlmc({"bench", plan, "--device=host", "--dim", "Q=2"}).err, HasSubstr("no dim Q"));
  EXPECT_THAT(RunLlmc({"bench", plan, "--device=host", "--output", plan}).err, HasSubstr("bench-encoder.bin"));
  EXPECT_EQ(RunLlmc({"bench", plan, "--device=tpu"}).exit_code, 2);
  EXPECT_EQ(RunLlmc({"bench", kModel, "--device=host"}).exit_code, 3) << "steps of a paged cache";
}

DeviceRates SomeRates() {
  return {.read_bytes = 4e12,
          .flops = 8e14,
          .hot_read = {.rate = 3.9e12, .seconds = 2, .settled = true, .gpu = {.readings = 9, .sm_mhz = 1980}},
          .hot_flops = {.rate = 6.4e14, .seconds = 3, .gpu = {.readings = 9, .sm_mhz = 1400, .watts = 700}}};
}

// 2e9 bytes at 4 TB/s are 0.5 ms, 1.6 TFLOP at 800 TFLOP/s 2 ms of 2.5.
TEST(Bench, RunsOfTensorsStandUnderTheHigherFloor) {
  TensorTimes times = {.first = 9e-3, .with_copies = {.median = 3e-3, .fastest = 2.9e-3, .runs = 7}};
  times.alone = {.median = 2.5e-3, .fastest = 2.4e-3, .runs = 11, .gpu = {.readings = 4, .sm_mhz = 1900}};
  times.pinned = {.median = 2.875e-3, .fastest = 2.75e-3, .runs = 7};
  times.on_device = {.median = 2.625e-3, .fastest = 2.5e-3, .runs = 7};
  nlohmann::ordered_json entry = TensorsJson({{"B", 3}}, times);
  AddTensorCost({.weight_bytes = 2e9, .flops = 1.6e12}, SomeRates(), &entry);
  EXPECT_NEAR(entry["floor_ms"].get<double>(), 2, 1e-9);
  EXPECT_NEAR(entry["of_floor"].get<double>(), 0.8, 1e-9);
  EXPECT_NEAR(entry["tflops"].get<double>(), 640, 1e-9);
  const std::string text = TensorsText(entry);
  for (const char* part : {"B = 3", "2.500 ms", "of 11 runs", "1900 MHz", "3.000 ms", "2.875 ms", "2.625 ms",
                           "80.0 % of it", "9.000 ms"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  AddTensorCost({.weight_bytes = 10e9, .flops = 1.6e12}, SomeRates(), &entry);
  EXPECT_NEAR(entry["floor_ms"].get<double>(), 2.5, 1e-9) << "that of bytes";
}

TEST(Bench, RowsOfAProfileAddUpToTheStep) {
  StepProfile profile = {.seconds = 100e-6};
  profile.rows = {{.name = "a", .count = 3, .seconds = 60e-6, .cost = {.weight_bytes = 120e6}},
                  {.name = "b", .count = 1, .seconds = 30e-6, .cost = {.flops = 6e9}}};
  EXPECT_EQ(RestOf(profile).name, "gaps between kernels");
  const nlohmann::ordered_json rows = ProfileJson(profile, SomeRates());
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_NEAR(rows[2]["us"].get<double>(), 10, 1e-9);
  EXPECT_NEAR(rows[2]["share"].get<double>(), 0.1, 1e-9);
  EXPECT_NEAR(rows[0]["of_roof"].get<double>(), 0.5, 1e-9) << "120 MB at 4 TB/s are 30 us of 60";
  EXPECT_THAT(ProfileText(rows), HasSubstr("gaps between kernels"));

  profile.seconds = 75e-6;  // kernels that start while others end
  const nlohmann::ordered_json overlapping = ProfileJson(profile, SomeRates());
  EXPECT_EQ(overlapping[2]["kernel"], "overlap of kernels");
  double sum = 0;
  for (const auto& row : overlapping) sum += row["us"].get<double>();
  EXPECT_NEAR(sum, 75, 1e-9);
}

TEST(Bench, StepsAreGivenWithSamplingAndWithout) {
  nlohmann::ordered_json entry = {{"batch", 8}, {"context", 4096}};
  const DecodeTimes times = {
      .step = {.median = 1e-3, .fastest = 0.9e-3, .runs = 50, .gpu = {.readings = 4, .sm_mhz = 1900, .watts = 500}},
      .greedy = {.median = 1.25e-3},
      .drawn = {.median = 1.5e-3}};
  AddDecode(times, {.weight_bytes = 2e9, .kv_bytes = 1e9}, SomeRates(), &entry);
  EXPECT_NEAR(entry["floor_us"].get<double>(), 750, 1e-6);
  EXPECT_NEAR(entry["of_floor"].get<double>(), 0.75, 1e-9);
  EXPECT_NEAR(entry["greedy_us"].get<double>(), 1250, 1e-6);
  EXPECT_NEAR(entry["drawn_us"].get<double>(), 1500, 1e-6);
  EXPECT_NEAR(entry["tokens_per_s"].get<double>(), 6400, 1e-6) << "of the step that samples";
  EXPECT_EQ(entry["watts"], 500);
  EXPECT_THAT(DecodeText(entry), HasSubstr("1900 MHz 500 W"));
}

TEST(Bench, PrefillStandsUnderTheRoofOfItsOwnHeat) {
  nlohmann::ordered_json entry = {{"prompt", 1000}};
  const PrefillTimes times = {.cold = {.median = 10e-3}, .hot = {.median = 12.5e-3}, .hot_seconds = 2};
  AddPrefill(times, 6e12, SomeRates(), &entry);
  EXPECT_NEAR(entry["of_matrix_rate"].get<double>(), 0.75, 1e-9) << "600 of 800 TFLOP/s";
  EXPECT_NEAR(entry["hot"]["of_matrix_rate"].get<double>(), 0.75, 1e-9) << "480 of 640 TFLOP/s";
  EXPECT_FALSE(entry.contains("watts")) << "what was not read is not there";
  nlohmann::ordered_json report;
  AddRates(SomeRates(), &report);
  EXPECT_NEAR(report["hot_matrix"]["tflops"].get<double>(), 640, 1e-9);
  EXPECT_EQ(report["hot_matrix"]["settled"], false);
  EXPECT_EQ(report["hot_matrix"]["watts"], 700);
}

TEST(Bench, RatesSettle) {
  std::vector<double> rates = {900, 850, 800};
  EXPECT_FALSE(HasSettled(rates));
  rates.insert(rates.end(), kSettledStretches - 1, 700);
  EXPECT_FALSE(HasSettled(rates)) << "one of the last is of the time before";
  rates.push_back(693.5);
  EXPECT_TRUE(HasSettled(rates));
  rates.push_back(690);
  EXPECT_FALSE(HasSettled(rates)) << "1.4 % less than the largest";
}

TEST(Bench, ReadingsAreSummedUp) {
  const GpuState state = Summarize({{1980, 300}, {1200, 700}, {1400, 650}});
  EXPECT_EQ(state.readings, 3);
  EXPECT_EQ(state.sm_mhz, 1400);
  EXPECT_EQ(state.least_sm_mhz, 1200);
  EXPECT_EQ(state.watts, 650);
  EXPECT_EQ(Summarize({}).sm_mhz, 0);
}

TEST(Bench, RunsAndCachesAreBounded) {
  EXPECT_EQ(RunsFor(4e-3, 0.4, 10, 50), 50);
  EXPECT_EQ(RunsFor(20e-3, 0.4, 10, 50), 20);
  EXPECT_EQ(RunsFor(1, 0.4, 10, 50), 10);
  EXPECT_EQ(LargestThatFits({128, 4096, 100000}, 50000), 4096) << "room for what cannot run anyway is not taken";
  EXPECT_EQ(LargestThatFits({100000}, 50000), 50000);
}

TEST(Bench, LoadSaysWhereWeightsComeFrom) {
  plan::Manifest manifest;
  manifest.add_weights()->set_name("@a");
  EXPECT_EQ(WeightsFrom(manifest), "files");
  manifest.add_weights()->mutable_random()->set_width(1);
  EXPECT_EQ(WeightsFrom(manifest), "random numbers, drawn on the GPU");
}

// A folder of results as a session writes it.
std::string FakeResults(const std::string& name) {
  using Json = nlohmann::ordered_json;
  std::string folder = TempFolder() + "/" + name;
  std::filesystem::create_directories(folder);
  Json decode = {{"batch", 1}, {"context", 128}, {"runs", 50}, {"graph_bytes", 0}};
  DeviceRates rates = SomeRates();
  AddDecode({.step = {.median = 1e-3, .gpu = {.readings = 2, .sm_mhz = 1905, .watts = 411}},
             .greedy = {.median = 1.125e-3},
             .drawn = {.median = 1.25e-3}},
            {.weight_bytes = 3.2e9}, rates, &decode);
  Json prefill = {{"prompt", 2048}};
  AddPrefill(
      {.cold = {.median = 2.5e-3}, .hot = {.median = 3e-3, .gpu = {.readings = 2, .sm_mhz = 1333, .watts = 699}}}, 1e12,
      rates, &prefill);
  Json report = {{"gpu", "G"},        {"driver", "1.2"}, {"date", "2026-01-02"},
                 {"compile_s", 3.25}, {"load_s", 0.5},   {"weights", 5.7e9}};
  AddRates(rates, &report);
  report["decode"] = {decode, {{"batch", 256}, {"context", 32768}, {"left_out", "too large"}}};
  report["prefill"] = {prefill};
  report["engine"] = {{{"prompt", 2048}, {"first_token_ms", 3.25}, {"token_us", 1100}}};
  const auto load = [](int requests, int prompt, double step) -> Json {
    return {{"requests", requests},
            {"prompt", prompt},
            {"answer", 128},
            {"runs", 5},
            {"seconds", 2.5},
            {"tokens_per_s", 7600},
            {"tokens_per_s_spread", {7500, 7700}},
            {"prompts", {{"seconds", 0.25}}},
            {"full", {{"median_ms", step}, {"median_ms_spread", {step - 0.25, step + 0.25}}}}};
  };
  report["requests"] = {load(1, 128, 7.24), load(256, 1024, 16)};
  std::ofstream(folder + "/llama-3.1-8b.json") << report.dump(2);
  report["decode"][0]["profile"] =
      ProfileJson({.seconds = 100e-6, .rows = {{.name = "k1_gemv", .count = 2, .seconds = 90e-6}}}, rates);
  report["decode"][0]["profile_step_us"] = 100;
  std::ofstream(folder + "/profile-llama-3.1-8b.json") << report.dump(2);
  std::ofstream(folder + "/commit") << "abc1234\n";
  std::ofstream(folder + "/torch-llama-3.1-8b.jsonl")
      << R"({"what": "prefill", "mode": "eager", "prompt": 2048, "ms": 60, "sampling": "none", "heat": "hot", )"
      << R"("transformers": "5", "torch": "2"})"
      << "\n"
      << R"({"what": "decode", "mode": "torch.compile", "batch": 1, "context": 128, "ms": 5.75, "sampling": "greedy", )"
      << R"("heat": "warm", "cache": "static", "compile_s": 41, "transformers": "5", "torch": "2"})"
      << "\n";
  std::ofstream(folder + "/whole_attention.jsonl")
      << R"({"form": "wgmma", "mask": "causal", "head": 64, "batch": 8, "length": 512, "ms": 0.0600, "tflops": 286.3})";
  std::ofstream(folder + "/whole_attention_torch.jsonl")
      << R"({"mask": "causal", "head": 64, "batch": 8, "length": 512, "ms": 0.05, "tflops": 343})";
  std::ofstream(folder + "/real_load.json") << R"({"model": "m", "cores": 16, "checkpoint_bytes": 16000000000,
             "compile": [{"weights": "inside", "seconds": 20, "plan_bytes": 16100000000}],
             "load": [{"weights": "inside", "from": "page cache", "how": "page cache", "disk_bytes": 0,
                       "is_from_disk": false, "load_s": 4, "seconds_to_first_token": 4.5},
                      {"weights": "inside", "from": "disk", "how": "posix_fadvise", "disk_bytes": 1000000000,
                       "is_from_disk": false, "load_s": 5, "seconds_to_first_token": 5.5}]})";
  return folder;
}

TEST(BenchPrefixCache, ComputesWhatIsSharedOnce) {
  FakeExecutor executor(/*num_pages=*/400);
  const auto entry = TimePrefixCache(&executor, {.requests = 10, .prompt = 100, .shared = 90, .runs = 1});
  ASSERT_TRUE(entry.ok()) << entry.status();
  EXPECT_EQ((*entry)["uncached"]["computed"], 1000);
  EXPECT_EQ((*entry)["uncached"]["found"], 0);
  EXPECT_EQ((*entry)["cached"]["computed"], 100 + 9 * 12) << "pages have 4 tokens";
  EXPECT_EQ((*entry)["cached"]["found"], 9 * 88);
  EXPECT_GT((*entry)["speedup"], 0.0);
  const std::string text = PrefixCacheText(*entry);
  EXPECT_THAT(text, HasSubstr("10 requests of 100 tokens, the first 90 of which are the same"));
  EXPECT_THAT(text, HasSubstr("208 computed, 792 found"));
  FakeExecutor small(/*num_pages=*/10);
  EXPECT_EQ(TimePrefixCache(&small, {.prompt = 40}).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(BenchRequests, TellsOneRunAndTheSpreadOfAll) {
  FakeExecutor executor(/*num_pages=*/400);
  const auto entry = TimeRequests(&executor, {.requests = 3, .prompt = 10, .answer = 5, .most_runs = 3});
  ASSERT_TRUE(entry.ok()) << entry.status();
  EXPECT_EQ((*entry)["runs"], 3);
  EXPECT_EQ((*entry)["prompts"]["steps"].get<int>() + (*entry)["full"]["steps"].get<int>() +
                (*entry)["rest"]["steps"].get<int>(),
            5);
  const double told = (*entry)["tokens_per_s"];
  EXPECT_DOUBLE_EQ(told, 15 / (*entry)["seconds"].get<double>());
  EXPECT_LE((*entry)["tokens_per_s_spread"][0].get<double>(), told);
  EXPECT_GE((*entry)["tokens_per_s_spread"][1].get<double>(), told);
  EXPECT_LE((*entry)["full"]["median_ms_spread"][0], (*entry)["full"]["median_ms"]);
  EXPECT_THAT(RequestsText(*entry), HasSubstr("3 requests of 10 and 5 tokens at once"));
  const auto enough = TimeRequests(&executor, {.requests = 1, .prompt = 10, .answer = 5, .enough = 0});
  ASSERT_TRUE(enough.ok()) << enough.status();
  EXPECT_EQ((*enough)["runs"], 1) << "as many as take the seconds that are enough";
  EXPECT_EQ(TimeRequests(&executor, {.requests = 1, .prompt = 10'000, .answer = 5}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(BenchRequests, AreThreePositiveNumbers) {
  const auto load = ParseRequestsLoad("256,1024,128");
  ASSERT_TRUE(load.ok()) << load.status();
  EXPECT_EQ(load->requests, 256);
  EXPECT_EQ(load->prompt, 1024);
  EXPECT_EQ(load->answer, 128);
  for (const char* text : {"", "1,2", "1,2,3,4", "1,0,3", "1,-2,3", "1,a,3", "1,2,3,"}) {
    EXPECT_THAT(std::string(ParseRequestsLoad(text).status().message()), HasSubstr("is not COUNT,PROMPT,ANSWER"))
        << text;
  }
}

TEST(BenchTables, EachRowSaysWhatItIs) {
  int status = 0;
  const std::string text = Shell(kScripts + "table.py " + FakeResults("tables"), &status);
  ASSERT_EQ(status, 0) << text;
  for (const char* row :
       {"commit abc1234", "| llama-3.1-8b | 1 | 128 | 1.000 | 1.125 | 1.250 | 0.800 | 80 % | 889 | 1,905 | 411 |",
        "* llama-3.1-8b, batch 256, context 32768: too large",
        "| llama-3.1-8b | 2048 | 2.50 | 400 | 50 % | 3.00 | 333 | 52 % | 1,333 | 699 |",
        "| llama-3.1-8b | 4,000 | 3,900 | 1,980 | 0 | 800 | 640 | 1,400 | 700 |", "| llama-3.1-8b | 3.25 |  | 0.50 |",
        "| inside | page cache | 4.00 | 4.50 | 4.0 |",
        "| inside | page cache dropped by posix_fadvise, but 1.0 GB came from a disk | 5.00 | 5.50 | 3.2 |",
        "| transformers 5, eager | none | hot | 2048 | 60.00 |",
        "| transformers 5, torch.compile, static cache | greedy | 1 | 128 | 5.750 |",
        "| **llmc, the step** | greedy | 1 | 128 | 1.125 |", "| 0.760 |", "| 0.795 |",
        "| 8B, batch 1, between tokens | ms | 3.62 | 7.240 | 6.990 to 7.490 | 100.0 % more | 3.23 |  |",
        "| 8B, 256 requests of 1,024 for 256 | tokens/s | 7,500 | 7,600 | 7,500 to 7,700 | reached |  |  |",
        "| 8B, first token of 2,048 | ms | 40 | 3.250 |  | reached |  |  |",
        "| llama-3.1-8b | 256 | 1024, 128 | 5 | 2.50 | 7,600 | 16.000 | 0.25 |",
        "| gaps between kernels |  | 10.0 | 10.0 % |  |", "| 64 | 8, 512 | causal | 0.060 | 286 | 0.050 | 343 |"}) {
    EXPECT_THAT(text, HasSubstr(row));
  }
}

TEST(BenchTables, GoIntoTheDocumentAndNameOneCommit) {
  const std::string folder = FakeResults("document"), document = folder + "/document.md";
  std::ofstream(document) << "# Before\n<!-- tables -->\nSTALE\n<!-- end of tables -->\nAfter\n";
  int status = 0;
  for (int i = 0; i < 2; ++i) {  // the second time from what the first has made
    EXPECT_EQ(Shell(kScripts + "table.py " + folder + " " + document, &status), "");
    ASSERT_EQ(status, 0);
  }
  const std::string text = ReadText(document);
  EXPECT_TRUE(text.starts_with("# Before\n<!-- tables -->\n\nG, driver 1.2"));
  EXPECT_TRUE(text.ends_with("\n\n<!-- end of tables -->\nAfter\n"));
  EXPECT_THAT(text, testing::Not(HasSubstr("STALE")));
  std::ofstream(folder + "/commit") << "";
  EXPECT_THAT(Shell(kScripts + "table.py " + folder, &status), HasSubstr("must name the one commit"));
  EXPECT_NE(status, 0);
}

TEST(BenchCurves, HaveALineForEachContext) {
  const std::string folder = FakeResults("curves");
  int status = 0;
  EXPECT_EQ(Shell(kScripts + "curves.py " + folder + "/llama-3.1-8b.json --out=" + folder, &status),
            folder + "/decode-llama-3.1-8b.svg\n");
  ASSERT_EQ(status, 0);
  const std::string svg = ReadText(folder + "/decode-llama-3.1-8b.svg");
  EXPECT_THAT(svg, HasSubstr("llama-3.1-8b, G, 2026-01-02"));
  EXPECT_THAT(svg, HasSubstr("128 tokens of context"));
  EXPECT_THAT(svg, Not(HasSubstr("32,768 tokens"))) << "that was left out";
  std::ofstream(folder + "/none.json") << R"({"decode": []})";
  EXPECT_THAT(Shell(kScripts + "curves.py " + folder + "/none.json --out=" + folder, &status),
              HasSubstr("has no decode steps"));
  EXPECT_NE(status, 0);
}

// With a command that quantizes, and in place of measuring keeps the configuration and writes a report.
TEST(BenchQuantizedSteps, EachSchemeHasARowAndOneWithInputsIfItQuantizesThem) {
  const std::string folder = FakeResults("quantized"), out = folder + "/out", document = folder + "/document.md";
  std::filesystem::create_directories(folder + "/model-1.5b");
  std::ofstream(folder + "/model-1.5b/config.json") << R"({"num_experts": 4})";
  std::ofstream(folder + "/command") << "#!/bin/sh\n[ $1 = quantize ] && exec " LLMC_BINARY
                                     << " \"$@\"\ncat $2/config.json\nfor option; do\n"
                                     << "  case $option in --output=*) cp " << folder
                                     << "/llama-3.1-8b.json ${option#*=}; cp $2/config.json ${option#*=}.config;;\n"
                                     << "  esac\ndone\n";
  std::filesystem::permissions(folder + "/command", std::filesystem::perms::owner_all);
  std::ofstream(document) << "Before\n<!-- quantized steps -->\nSTALE\n<!-- end of quantized steps -->\nAfter\n";
  int status = 0;
  const std::string text =
      Shell(kScripts + "quantized_steps.py " + folder + "/model-1.5b --llmc=" + folder + "/command --out=" + out +
                " --small=" LLMC_TEST_DATA "/tale-7m '--schemes=int4;fp8;nf4' --document=" + document,
            &status);
  ASSERT_EQ(status, 0) << text;
  EXPECT_EQ(ReadText(document), R"(Before
<!-- quantized steps -->
model-1.5b, G (4,000 GB/s), driver 1.2, 2026-01-02:

| scheme | GB | 1 x 128 | 256 x 32768 | prompt of 2,048 |
|---|---|---|---|---|
| `bf16` | 5.70 | 1.00 (80 %) | too large | 2.5 |
| `fp8` with inputs | 5.70 | 1.00 (80 %) | too large | 2.5 |
| `fp8` | 5.70 | 1.00 (80 %) | too large | 2.5 |
| `int4` | 5.70 | 1.00 (80 %) | too large | 2.5 |
| `nf4` | 5.70 | 1.00 (80 %) | too large | 2.5 |
<!-- end of quantized steps -->
After
)");
  const auto quantization = [&](const std::string& name) {
    return nlohmann::json::parse(ReadText(out + "/model-1.5b." + name + ".json.new.config"))
        .value("quantization_config", nlohmann::json());
  };
  EXPECT_TRUE(quantization("bf16").is_null());
  EXPECT_EQ(quantization("int4")["ignore"], nlohmann::json({"lm_head", "re:.*mlp.(gate|router)$"}))
      << "routers stay as they are";
  EXPECT_EQ(quantization("fp8.inputs")["format"], "float-quantized");
  EXPECT_EQ(quantization("nf4")["llm_int8_skip_modules"], nlohmann::json({"lm_head", "gate", "router"}));
}

}  // namespace
}  // namespace llmc
