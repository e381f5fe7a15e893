// Decoders of ONNX files get a paged cache: then they generate the tokens that the same model gives from its Hugging
// Face folder, eight requests at once, and score texts alike. With --no-paginate their cache goes in and out as
// tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/families.h"
#include "tests/tools/run_command.h"
#include "tests/tools/serve_plan.h"
#include "tests/window_folder.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTokens = 32;

std::string Compile(const std::string& model, const std::vector<std::string>& extra, const std::string& name) {
  const std::string plan = TempFolder() + "/" + name;
  std::vector<std::string> args = {"compile", model, "--dtype=f32", "--target=host", "-o", plan};
  args.insert(args.end(), extra.begin(), extra.end());
  const CommandResult result = RunLlmc(args);
  EXPECT_EQ(result.exit_code, 0) << model << ": " << result.err;
  return plan;
}

TEST(Pagination, ExportsServeTheTokensOfTheFolder) {
  if (SharedData("onnx-exports").empty() || SharedData("tiny-models").empty()) {
    GTEST_SKIP() << "the shared test data is not there";
  }
  const auto compile = [](const std::string& model, const std::vector<std::string>& options) {
    return Compile(model, options, "served.bin");
  };
  EXPECT_EQ(ExpectExportsTogether(compile, "host"), 17);
}

std::string CompileTiny(const std::string& model, const std::vector<std::string>& options) {
  return Compile(model, options, "tiny.bin");
}

TEST(Greedy, TinyModelsGoOnAsTransformersDoes) {
  if (SharedData("tiny-models").empty()) GTEST_SKIP() << "the shared test data is not there";
  EXPECT_EQ(ExpectTokensOfTransformers(TinyModels(), CompileTiny, "host"), 15);
}

TEST(Greedy, FamiliesGoOnAsTransformersDoes) {
  std::vector<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(FamiliesFolder())) {
    // Its prompt is read in pieces, and rotated as long as each made the sequence; transformers rotates it at once.
    if (absl::StrContains(entry.path().string(), "longrope-long")) continue;
    folders.push_back(entry.path());
  }
  EXPECT_GE(ExpectTokensOfTransformers(folders, CompileTiny, "host"), 77);
}

// Exported from bf16 weights in f16: a few of the smallest differ.
TEST(Pagination, TrainedModelServesTheTokensOfTheFolder) {
  const std::string folder = ShippedModel();
  const std::vector<Continuation> expected =
      ContinueAlone(Compile(folder, {}, "folder.bin"), "host", EightPrompts(4096), kTokens);
  ExpectTogether(Compile(folder + "/model.onnx", {}, "shipped.bin"), "host", expected, 0.01);
  for (const char* name : {"tale-7m-onnx-fp16", "tale-7m-onnx-bf16"}) {
    const std::string onnx = SharedData(name);
    if (onnx.empty()) GTEST_SKIP() << "the shared test data is not there";
    SCOPED_TRACE(name);
    ExpectTogether(Compile(onnx + "/model.onnx", {"--paginate"}, "tale.bin"), "host", expected, 0.01);
  }
}

TEST(Pagination, ShippedOnnxGivesTheReferenceTokens) {
  const std::string folder = ShippedModel();
  ExpectReferenceTokens(Compile(folder + "/model.onnx", {}, "tale.bin"), folder + "/reference.json", 0.01, {});
}

TEST(Pagination, ScoresWhatPyTorchDoes) {
  int count = 0;
  for (const char* name :
       {"llama-gqa-nocache-dynamo18", "llama-gqa-nocache-dynamo23", "qwen3-nocache-dynamo18", "qwen3-nocache-dynamo23",
        "gpt2-nocache-dynamo18", "gpt2-nocache-dynamo23", "gemma2-nocache-dynamo18"}) {
    const std::string folder = SharedData(absl::StrCat("onnx-exports/", name));
    if (folder.empty()) GTEST_SKIP() << "the shared test data is not there";
    const CommandResult scored =
        RunLlmc({"run", Compile(folder + "/model.onnx", {}, "scored.bin"), "--inputs", folder + "/inputs.safetensors",
                 "--compare", folder + "/outputs.safetensors", "--rtol", "1e-3", "--atol", "1e-4"});
    EXPECT_EQ(scored.exit_code, 0) << scored.out << scored.err;
    ++count;
  }
  EXPECT_EQ(count, 7);
}

// A plan that keeps its cache does not drop one that it is given.
TEST(Pagination, ACacheIsFedToPlansThatTakeOne) {
  const std::string folder = ShippedModel(), inputs = folder + "/onnx_inputs.safetensors";
  const std::vector<std::string> compare = {"--inputs", inputs, "--compare", folder + "/onnx_outputs.safetensors",
                                            "--rtol",   "0",    "--atol",    "5e-3"};
  const auto run = [&](const std::vector<std::string>& model) {
    std::vector<std::string> args = {"run"};
    args.insert(args.end(), model.begin(), model.end());
    args.insert(args.end(), compare.begin(), compare.end());
    return RunLlmc(args);
  };
  const CommandResult paged = run({Compile(folder + "/model.onnx", {}, "paged.bin")});
  EXPECT_EQ(paged.exit_code, 1);
  EXPECT_THAT(paged.err, HasSubstr("holds 'past_key_values.0.key'"));
  EXPECT_THAT(paged.err, HasSubstr("--no-paginate"));
  const CommandResult plain = run({Compile(folder + "/model.onnx", {"--no-paginate"}, "plain.bin")});
  EXPECT_EQ(plain.exit_code, 0) << plain.out << plain.err;
  const CommandResult file = run({folder + "/model.onnx", "--dtype=f32"});
  EXPECT_EQ(file.exit_code, 0) << file.out << file.err;
}

// Two rows of tokens, a mask and an empty past, for a program that takes its cache as tensors.
NamedHostTensors Inputs(const LoadedPlan& plan, int64_t length, const std::vector<int64_t>& mask) {
  NamedHostTensors inputs;
  for (const TensorInfo& info : plan.inputs()) {
    if (info.name == "input_ids") {
      std::vector<int64_t> ids;
      for (int64_t i = 0; i < 2 * length; ++i) ids.push_back(5 + i * 37 % 400);
      inputs[info.name] = *HostTensor::FromInts(ids, {2, length});
    } else if (info.name == "attention_mask") {
      inputs[info.name] = *HostTensor::FromInts(mask, {2, static_cast<int64_t>(mask.size()) / 2});
    } else if (absl::StartsWith(info.name, "past")) {
      std::vector<int64_t> shape = {2};
      for (size_t axis = 1; axis < info.shape.size(); ++axis) {
        int64_t size = 0;
        shape.push_back(absl::SimpleAtoi(info.shape[axis], &size) ? size : 0);
      }
      inputs[info.name] = *HostTensor::Zeros(info.type, shape);
    }
  }
  return inputs;
}

// The paged plan gives what the file gives, or refuses with what to do: whatever the mask.
void ExpectTheNumbersOfTheFileOrNone(const std::string& file) {
  SCOPED_TRACE(file);
  const auto load = [&](const std::string& path) { return *LoadedPlan::Load(path, {}); };
  const std::unique_ptr<LoadedPlan> paged = load(Compile(file, {"--paginate"}, "paged.bin"));
  const std::unique_ptr<LoadedPlan> plain = load(Compile(file, {"--no-paginate"}, "plain.bin"));
  const std::vector<std::pair<std::vector<int64_t>, bool>> masks = {
      {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, true},         // no padding
      {{0, 0, 1, 1, 1, 1, 1, 1, 1, 1}, false},        // on the left of one row
      {{1, 1, 1, 1, 1, 1, 1, 1, 0, 0}, false},        // on the right of the other
      {{1, 0, 1, 1, 1, 1, 1, 1, 1, 1}, false},        // a hole
      {{0, 1, 1, 1, 1, 0, 0, 0, 1, 1}, false},        // of two lengths
      {{1, 1, 1, 1, 1, 0, 0, 0, 0, 0}, false},        // nothing but padding
      {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, false},  // longer than the keys
      {{1, 1, 1, 1, 1, 1, 1, 1}, false},              // shorter
  };
  for (const auto& [mask, gives] : masks) {
    const auto want = plain->Run(Inputs(*plain, 5, mask));
    const auto got = paged->Run(Inputs(*paged, 5, mask));
    ASSERT_EQ(got.ok(), gives) << got.status();
    EXPECT_TRUE(want.ok() || mask.size() != 10) << want.status();
    if (!gives) {
      EXPECT_THAT(std::string(got.status().message()), HasSubstr("--no-paginate"));
      continue;
    }
    const auto expected = want->at("logits").values<float>(), logits = got->at("logits").values<float>();
    ASSERT_EQ(logits.size(), expected.size());
    for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 2e-4) << i;
  }
  NamedHostTensors with_past = Inputs(*paged, 5, masks[0].first);
  with_past["past_key_values.0.key"] = *HostTensor::Zeros(DType::kF32, {2, 1, 3, 8});
  EXPECT_THAT(std::string(paged->Run(with_past).status().message()), HasSubstr("--no-paginate to feed a cache"));
}

TEST(Pagination, GivesTheNumbersOfTheFileOrNone) {
  ExpectTheNumbersOfTheFileOrNone(ShippedModel() + "/model.onnx");
  for (const char* name :
       {"gpt2-cache-dynamo18", "llama-gqa-cache-legacy17", "qwen3-cache-dynamo23", "phi3-cache-dynamo18"}) {
    const std::string folder = SharedData(absl::StrCat("onnx-exports/", name));
    if (folder.empty()) GTEST_SKIP() << "the shared test data is not there";
    ExpectTheNumbersOfTheFileOrNone(folder + "/model.onnx");
  }
}

// A plan of a folder has no file with other numbers: what is hidden is not there.
TEST(Pagination, FoldersLeaveOutHiddenTokens) {
  const std::unique_ptr<LoadedPlan> plan = *LoadedPlan::Load(Compile(ShippedModel(), {}, "hidden.bin"), {});
  const auto logits = plan->Run(Inputs(*plan, 5, {0, 0, 1, 1, 1, 1, 1, 1, 0, 0}));
  ASSERT_TRUE(logits.ok()) << logits.status();
  const auto values = logits->at("logits").values<float>();
  for (size_t row = 0; row < 10; ++row) {
    const auto begin = values.begin() + static_cast<ptrdiff_t>(row * values.size() / 10);
    const bool is_hidden = row == 0 || row == 1 || row == 8 || row == 9;
    EXPECT_EQ(std::all_of(begin, begin + 9, [](float x) { return x == 0; }), is_hidden) << row;
  }
}

TEST(Pagination, DemandedButNotProvenIsAnError) {
  const std::string file = TempFolder() + "/mixes.lir";
  std::ofstream(file) << "model \"m\"\ndim B <= 8\ndim S <= 64\nstep main(%input_ids: i64[B, S]) {\n"
                         "  %x = cast %input_ids {to = f32}\n  %y = reshape %x {shape = [B, S, 1]}\n"
                         "  %logits = cumsum %y {axis = 1}\n  return \"logits\" = %logits\n}\n";
  const CommandResult demanded = RunLlmc({"compile", file, "--paginate", "--target=host", "-o", file + ".bin"});
  EXPECT_EQ(demanded.exit_code, 1);
  EXPECT_THAT(demanded.err, HasSubstr("cumsum"));
  EXPECT_THAT(demanded.err, HasSubstr("leave --paginate out"));
  EXPECT_EQ(RunLlmc({"compile", file, "--target=host", "-o", file + ".bin"}).exit_code, 0);
  EXPECT_EQ(RunLlmc({"compile", file, "--paginate", "--no-paginate", "-o", file + ".bin"}).exit_code, 2);
}

// Layers with a window may have pages of another size, which changes no token.
TEST(Pagination, PagesOfOnePoolMayHaveAnotherSize) {
  const std::string folder = TempFolder() + "/window-sizes";
  if (!MakeFolderWithAWindow(folder)) GTEST_SKIP() << "the shared test data is not there";
  const std::string plan = Compile(folder, {"--page-size", "64", "--page-size", "N8=16"}, "sizes.bin");
  const nlohmann::json json = RunLlmc({"show", plan, "--json"}).Json();
  const nlohmann::json& pools = json["language_model"]["pools"];
  ASSERT_EQ(pools.size(), 2u);
  EXPECT_EQ(pools[0], (nlohmann::json{{"pages", "N"}, {"window", 0}, {"page_size", 64}}));
  EXPECT_EQ(pools[1], (nlohmann::json{{"pages", "N8"}, {"window", 8}, {"page_size", 16}}));
  EXPECT_THAT(json["flags"].dump(), HasSubstr(R"("--page-size=64","--page-size=N8=16")"));
  EXPECT_THAT(RunLlmc({"show", plan}).out, HasSubstr("pages of 64 tokens, a window of 8 in pages of 16\n"));
  const std::vector<Continuation> expected =
      ContinueAlone(Compile(folder, {}, "one-size.bin"), "host", EightPrompts(512), kTokens);
  ExpectTogether(plan, "host", expected, 0);
  ExpectTogether(Compile(folder, {"--page-size=N8=64"}, "sizes.bin"), "host", expected, 0);
}

TEST(Pagination, PageSizesThatAreNoneAreRefused) {
  const auto compile = [](const std::vector<std::string>& sizes) {
    std::vector<std::string> args = {"compile", ShippedModel(), "--target=host", "-o", TempFolder() + "/none.bin"};
    for (const std::string& size : sizes) args.push_back("--page-size=" + size);
    return RunLlmc(args);
  };
  const CommandResult unknown = compile({"64", "N8=16"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("--page-size: the model has no pool N8; it has N\n"));
  for (const std::string text : {"24", "x", "N=24", "N=", "=16", "16=N", "N=16=16"}) {
    const CommandResult wrong = compile({text});
    EXPECT_EQ(wrong.exit_code, 2) << text;
    EXPECT_THAT(wrong.err, HasSubstr("--page-size: '" + text + "' is not TOKENS or POOL=TOKENS")) << text;
  }
  EXPECT_THAT(compile({"16", "64"}).err, HasSubstr("--page-size: that of all pools is given twice"));
  EXPECT_THAT(compile({"N=16", "N=64"}).err, HasSubstr("--page-size: that of N is given twice"));
}

// The bounds of the file's dims are those of the sequences that the plan serves.
TEST(Pagination, BoundsHoldForSequences) {
  const std::string model = ShippedModel() + "/model.onnx";
  const nlohmann::json dims = RunLlmc({"show", model, "--json"}).Json()["dims"];
  std::vector<std::string> bounds;
  for (const auto& [name, max] : dims.items()) {
    bounds.push_back("--bound");
    bounds.push_back(name + "=32");
  }
  const nlohmann::json bounded = RunLlmc({"show", Compile(model, bounds, "bounded.bin"), "--json"}).Json()["dims"];
  EXPECT_EQ(bounded["S"], 32);
  EXPECT_EQ(bounded["T"], 32 * 32);
  EXPECT_EQ(bounded["P"], 4) << "32 tokens behind 32, in pages of 16";
}

}  // namespace
}  // namespace llmc
