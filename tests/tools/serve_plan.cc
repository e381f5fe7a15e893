#include "tests/tools/serve_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>

#include "absl/strings/match.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

constexpr int64_t kPages = 64;
// Of a step: less than most prompts have, so that these are read in pieces beside tokens of other requests.
constexpr int64_t kTokensOfStep = 16;

std::unique_ptr<LoadedPlan> Load(const std::string& plan, const std::string& device) {
  absl::StatusOr<std::unique_ptr<LoadedPlan>> loaded = LoadedPlan::Load(plan, {.device = device, .num_pages = kPages});
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return loaded.ok() ? *std::move(loaded) : nullptr;
}

std::unique_ptr<Engine> NewEngine(LoadedPlan* plan) {
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      plan->NewEngine({.max_tokens_per_step = kTokensOfStep, .max_sequences = 8});
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

Request Greedy(const std::vector<int32_t>& prompt, size_t tokens) {
  Request request{.prompt_ids = prompt, .max_new_tokens = static_cast<int64_t>(tokens), .ignore_eos = true};
  request.sampling.temperature = 0;
  return request;
}

}  // namespace

std::vector<std::vector<int32_t>> EightPrompts(int vocabulary) {
  std::mt19937 random(8);
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < 8; ++i) {
    std::vector<int32_t>& prompt = prompts.emplace_back(1 + 7 * i);
    for (int32_t& id : prompt) id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary));
  }
  return prompts;
}

std::vector<Continuation> ContinueAlone(const std::string& plan, const std::string& device,
                                        const std::vector<std::vector<int32_t>>& prompts, int64_t tokens) {
  std::vector<Continuation> continuations;
  const std::unique_ptr<LoadedPlan> loaded = Load(plan, device);
  const std::unique_ptr<Engine> engine = loaded == nullptr ? nullptr : NewEngine(loaded.get());
  if (engine == nullptr) return continuations;
  for (const std::vector<int32_t>& prompt : prompts) {
    Continuation& continuation = continuations.emplace_back(Continuation{.prompt = prompt});
    Request request = Greedy(prompt, static_cast<size_t>(tokens));
    request.log_probs = 2;
    const auto on_event = [&](const TokenEvent& event) {
      EXPECT_TRUE(event.status.ok()) << event.status;
      if (!event.token.has_value()) return;
      continuation.tokens.push_back(*event.token);
      const std::vector<TokenLogProb>& top = event.top_log_probs;
      continuation.margins.push_back(top.size() < 2 ? 0 : top[0].log_prob - top[1].log_prob);
    };
    EXPECT_TRUE(engine->AddRequest(request, on_event).ok());
    const absl::Status status = engine->RunUntilIdle();
    EXPECT_TRUE(status.ok()) << status;
  }
  return continuations;
}

void ExpectTogether(const std::string& plan, const std::string& device, const std::vector<Continuation>& expected,
                    double loose_margin) {
  const std::unique_ptr<LoadedPlan> loaded = Load(plan, device);
  ASSERT_NE(loaded, nullptr);
  ASSERT_TRUE(loaded->has_paged_cache()) << plan << " was not paginated";
  const std::unique_ptr<Engine> engine = NewEngine(loaded.get());
  ASSERT_NE(engine, nullptr);
  std::vector<Completion> completions(expected.size());
  int64_t most_running = 0;
  for (size_t step = 0; step < 2 * expected.size() || !engine->idle(); ++step) {
    const size_t i = step / 2;
    if (step % 2 == 0 && i < expected.size()) {
      const auto id = engine->AddRequest(Greedy(expected[i].prompt, expected[i].tokens.size()),
                                         [&, i](const TokenEvent& event) { completions[i].Add(event); });
      ASSERT_TRUE(id.ok()) << id.status();
    }
    const absl::Status status = engine->Step();
    ASSERT_TRUE(status.ok()) << status;
    most_running = std::max(most_running, engine->stats().running);
  }
  EXPECT_EQ(most_running, static_cast<int64_t>(std::min<size_t>(expected.size(), 8))) << "not all at once";
  size_t compared = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const Continuation& e = expected[i];
    ASSERT_TRUE(completions[i].status.ok()) << completions[i].status;
    ASSERT_EQ(completions[i].tokens.size(), e.tokens.size());
    for (size_t t = 0; t < e.tokens.size(); ++t) {
      ++compared;
      if (completions[i].tokens[t] == e.tokens[t]) continue;
      const double margin = t < e.margins.size() ? e.margins[t] : 1e9;
      EXPECT_LT(margin, loose_margin) << "prompt " << i << " token " << t << ": " << completions[i].tokens[t]
                                      << " instead of " << e.tokens[t];
      break;
    }
  }
  size_t all = 0;
  for (const Continuation& e : expected) all += e.tokens.size();
  EXPECT_GT(2 * compared, all) << "too few tokens are far enough from the second best";
}

namespace {

std::vector<std::string> ExportsOf(const std::string& family) {
  std::vector<std::string> models;
  for (const auto& entry : std::filesystem::directory_iterator(SharedData("onnx-exports"))) {
    const std::string name = entry.path().filename();
    if (absl::StartsWith(name, family + "-")) models.push_back(entry.path() / "model.onnx");
  }
  std::sort(models.begin(), models.end());
  return models;
}

// A folder of tiny-models; that of Gemma 2 without the cap of attention's scores, without which its reference and its
// exports were made.
std::string TinyModel(const std::string& name) {
  const std::string folder = SharedData("tiny-models/" + name);
  if (name != "gemma2") return folder;
  const std::string copy = TempFolder() + "/gemma2-without-cap";
  std::filesystem::create_directories(copy);
  constexpr auto kHow = std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing;
  std::filesystem::copy(folder, copy, kHow);
  nlohmann::json config = nlohmann::json::parse(ReadFile(folder + "/config.json"));
  config["attn_logit_softcapping"] = nullptr;
  std::ofstream(copy + "/config.json") << config;
  return copy;
}

// What transformers added to its prompt; nullopt: there is nothing of that kind.
std::optional<Continuation> OfTransformers(const std::string& folder) {
  const nlohmann::json reference = nlohmann::json::parse(ReadFile(folder + "/reference.json"));
  if (!reference.contains("greedy")) return std::nullopt;
  return Continuation{.prompt = reference["greedy_prompt"].get<std::vector<int32_t>>(),
                      .tokens = reference["greedy"].get<std::vector<int32_t>>(),
                      .margins = reference["greedy_margin"].get<std::vector<double>>()};
}

}  // namespace

std::vector<std::string> TinyModels() {
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(SharedData("tiny-models"))) {
    folders.push_back(TinyModel(entry.path().filename()));
  }
  return folders;
}

int ExpectTokensOfTransformers(const std::vector<std::string>& folders, const CompilePlan& compile,
                               const std::string& device) {
  int count = 0;
  for (const std::string& folder : folders) {
    const std::optional<Continuation> expected = OfTransformers(folder);
    if (!expected.has_value()) continue;
    SCOPED_TRACE(folder);
    ExpectTogether(compile(folder, {}), device, {*expected}, 0.005);
    ++count;
  }
  return count;
}

int ExpectExportsTogether(const CompilePlan& compile, const std::string& device) {
  constexpr int kVocabulary = 512, kTokens = 32;
  int count = 0;
  for (const char* family : {"llama-gqa", "qwen3", "gpt2", "phi3", "gemma2"}) {
    const std::string folder = TinyModel(family);
    const Continuation reference = OfTransformers(folder).value();
    std::vector<std::vector<int32_t>> prompts = EightPrompts(kVocabulary);
    prompts[1] = reference.prompt;
    std::vector<Continuation> expected = ContinueAlone(compile(folder, {}), device, prompts, kTokens);
    if (expected.size() != prompts.size()) return count;
    expected[1] = reference;
    for (const std::string& model : ExportsOf(family)) {
      SCOPED_TRACE(model);
      ExpectTogether(compile(model, {"--paginate"}), device, expected, 0.001);
      ++count;
    }
  }
  return count;
}

}  // namespace llmc
