// What models are made of is recognized, whoever exported them: as many ops of each kind as the architecture has, and
// none of the primitives that they were written in.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ir/op.h"
#include "ir/text.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

struct Architecture {
  const char* name;
  std::vector<std::string> ops;    // after raise
  std::vector<std::string> fused;  // after fuse
};

// Two layers each. gemma2 caps its logits with a tanh, BERT pools with one.
const Architecture kArchitectures[] = {
    {"llama-gqa",
     {"attention=2", "rotary_embedding=4", "rms_norm=5", "silu=2", "tanh=0"},
     {"rms_norm=5", "silu_mul=2", "silu=0"}},
    {"qwen3",
     {"attention=2", "rotary_embedding=4", "rms_norm=9", "silu=2", "tanh=0"},
     {"rms_norm=9", "silu_mul=2", "silu=0"}},
    {"phi3",
     {"attention=2", "rotary_embedding=4", "rms_norm=5", "silu_mul=2", "silu=0", "tanh=0"},
     {"rms_norm=5", "silu_mul=2", "silu=0"}},
    {"gemma2", {"attention=2", "rotary_embedding=4", "rms_norm=9", "gelu_tanh=2", "tanh=1"}, {"attention=2"}},
    {"gpt2", {"attention=2", "layer_norm=5", "gelu_tanh=2", "tanh=0"}, {"attention=2"}},
    {"bert", {"attention=2", "layer_norm=5", "gelu=2", "tanh=1"}, {"attention=2"}},
    {"vit", {"attention=2", "layer_norm=5", "gelu=2", "tanh=0", "where=0"}, {"attention=2"}},
};

// What norms, activations, rotations and attention are written in.
const std::vector<std::string> kPrimitives = {"softmax=0", "is_nan=0",     "sigmoid=0", "erf=0",         "pow=0",
                                              "sqrt=0",    "reciprocal=0", "rsqrt=0",   "reduce_mean=0", "neg=0"};

void ExpectOps(const std::string& model, const std::string& pass, std::vector<std::string> ops) {
  const CommandResult result = RunLlmc({"opt", model, "--no-paginate", "--stop-after=" + pass,
                                        "--expect=" + absl::StrJoin(ops, ","), "-o", "/dev/null"});
  EXPECT_EQ(result.exit_code, 0) << model << "\n" << result.err;
}

void ExpectArchitecture(const std::string& model, const Architecture& architecture) {
  std::vector<std::string> ops = architecture.ops;
  ops.insert(ops.end(), kPrimitives.begin(), kPrimitives.end());
  ExpectOps(model, "raise", ops);
  ExpectOps(model, "fuse", architecture.fused);
}

TEST(Recognition, Exports) {
  const std::string exports = SharedData("onnx-exports");
  if (exports.empty()) GTEST_SKIP() << "the shared test data is not there";
  int count = 0;
  for (const Architecture& architecture : kArchitectures) {
    for (const char* kind : {"cache", "nocache", "encoder", "vit"}) {
      for (const char* exporter : {"dynamo18", "dynamo23", "legacy17"}) {
        const std::string name = absl::StrCat(architecture.name, "-", kind, "-", exporter);
        const std::string folder = exports + "/" + name;
        if (!std::filesystem::exists(folder)) continue;
        ++count;
        ExpectArchitecture(folder + "/model.onnx", architecture);
      }
    }
  }
  EXPECT_EQ(count, 21);
}

// The graph makes the mask of a model without a cache from positions: it is proven to be causal, and nothing of it is
// left. With a cache it depends on what the caller gives.
TEST(Recognition, CausalMasks) {
  for (const char* name : {"llama-gqa", "qwen3", "gpt2"}) {
    for (const char* exporter : {"dynamo18", "dynamo23"}) {
      const std::string folder = SharedData(absl::StrCat("onnx-exports/", name, "-nocache-", exporter));
      if (folder.empty()) GTEST_SKIP() << "the shared test data is not there";
      ExpectOps(folder + "/model.onnx", "raise",
                {"attention=2", "where=0", "and=0", "less_equal=0", "cumsum=0", "gather_nd=0"});
    }
  }
}

TEST(Recognition, TrainedModels) {
  const Architecture tale = {
      "tale",
      {"attention=8", "rotary_embedding=16", "rms_norm=17", "silu=8", "tanh=0"},
      {"rms_norm=17", "silu_mul=8", "silu=0"},
  };
  ExpectArchitecture(ShippedModel() + "/model.onnx", tale);
  for (const char* name : {"tale-7m-onnx-fp16", "tale-7m-onnx-bf16"}) {
    const std::string folder = SharedData(name);
    if (folder.empty()) GTEST_SKIP() << "the shared test data is not there";
    ExpectArchitecture(folder + "/model.onnx", tale);
  }
}

// ---- paginated decoders, after all passes
// ------------------------------------------------------------------------------
using OpCounts = std::map<std::string, int64_t>;

// The ops of a step. Literals are none: nothing runs for them, and which small weights of a file are literals differs.
OpCounts OpsAfterPasses(const std::string& model, std::vector<std::string> options) {
  const std::string file = TempFolder() + "/passed.lir";
  std::vector<std::string> args = {"opt", model, "-o", file};
  args.insert(args.end(), options.begin(), options.end());
  const CommandResult result = RunLlmc(args);
  EXPECT_EQ(result.exit_code, 0) << model << "\n" << result.err;
  absl::StatusOr<std::unique_ptr<Model>> parsed = ParseModel(ReadFile(file), file);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  OpCounts counts;
  for (const auto& node : (*parsed)->steps.front()->block.nodes) ++counts[std::string(node->op->info.name)];
  counts.erase("constant");
  return counts;
}

// Of as many layers, and what is there once.
OpCounts LayersAnd(int64_t layers, const OpCounts& layer, const OpCounts& once) {
  OpCounts counts = once;
  for (const auto& [op, count] : layer) counts[op] += layers * count;
  return counts;
}

// What makes logits of chosen rows.
const OpCounts kOnce = {{"gather", 2}, {"rms_norm", 1}, {"linear", 1}};

// What an ONNX file of a family becomes. Where llmc reads the family's folder, that becomes the same.
struct PaginatedFamily {
  const char* name;
  bool has_folder_form;
  OpCounts layer;
  OpCounts once = kOnce;
};
const PaginatedFamily kPaginated[] = {
    {"llama-gqa",
     true,
     {{"linear", 4},
      {"slice", 3},
      {"rope", 2},
      {"kv_write", 1},
      {"paged_attention", 1},
      {"add", 2},
      {"rms_norm", 2},
      {"silu_mul", 1}}},
    // Heads of queries and keys are normalized between the product and rope.
    {"qwen3",
     true,
     {{"linear", 4},
      {"slice", 3},
      {"rope", 2},
      {"kv_write", 1},
      {"paged_attention", 1},
      {"add", 2},
      {"rms_norm", 4},
      {"reshape", 4},
      {"silu_mul", 1}}},
    // Its weights are merged in the file.
    {"phi3",
     false,
     {{"linear", 4},
      {"slice", 3},
      {"rope", 2},
      {"kv_write", 1},
      {"paged_attention", 1},
      {"add", 2},
      {"rms_norm", 2},
      {"silu_mul", 1}}},
    // Norms on both sides; no op stands for gelu_tanh and the product with up; the logits are capped.
    {"gemma2",
     false,
     {{"linear", 5},
      {"slice", 3},
      {"rope", 2},
      {"kv_write", 1},
      {"paged_attention", 1},
      {"add", 2},
      {"rms_norm", 4},
      {"gelu_tanh", 1},
      {"mul", 1}},
     {{"gather", 2}, {"rms_norm", 1}, {"linear", 1}, {"mul", 2}, {"div", 1}, {"tanh", 1}}},
    // No op writes keys without rope from a merged q, k, v; biases and sums are parts of the products' kernels.
    {"gpt2",
     false,
     {{"linear", 4},
      {"add", 6},
      {"slice", 3},
      {"kv_write", 1},
      {"paged_attention", 1},
      {"layer_norm", 2},
      {"gelu_tanh", 1}},
     {{"gather", 3}, {"add", 1}, {"layer_norm", 1}, {"linear", 1}}},
};

TEST(Recognition, PaginatedLayersAreThoseOfTheFolder) {
  if (SharedData("onnx-exports").empty() || SharedData("tiny-models").empty()) {
    GTEST_SKIP() << "the shared test data is not there";
  }
  int count = 0;
  for (const PaginatedFamily& family : kPaginated) {
    const OpCounts wanted = LayersAnd(2, family.layer, family.once);
    if (family.has_folder_form) {
      EXPECT_EQ(OpsAfterPasses(SharedData(absl::StrCat("tiny-models/", family.name)), {"--dtype=f32"}), wanted)
          << family.name;
    }
    for (const char* kind : {"cache", "nocache"}) {
      for (const char* exporter : {"dynamo18", "dynamo23", "legacy17"}) {
        const std::string folder = absl::StrCat(SharedData("onnx-exports"), "/", family.name, "-", kind, "-", exporter);
        if (!std::filesystem::exists(folder)) continue;
        ++count;
        EXPECT_EQ(OpsAfterPasses(folder + "/model.onnx", {"--paginate"}), wanted) << folder;
      }
    }
  }
  EXPECT_EQ(count, 17);
}

// In the types of the files, where casts would show.
TEST(Recognition, PaginatedTrainedModelsAreThoseOfTheFolder) {
  OpCounts wanted = LayersAnd(8, kPaginated[0].layer, kOnce);
  wanted["cast"] = 1;  // of the logits
  EXPECT_EQ(OpsAfterPasses(ShippedModel(), {}), wanted);
  EXPECT_EQ(OpsAfterPasses(ShippedModel() + "/model.onnx", {"--paginate"}), wanted);
  for (const char* name : {"tale-7m-onnx-fp16", "tale-7m-onnx-bf16"}) {
    const std::string folder = SharedData(name);
    if (folder.empty()) GTEST_SKIP() << "the shared test data is not there";
    for (const char* dtype : {"", "f16", "bf16"}) {
      std::vector<std::string> options = {"--paginate"};
      if (*dtype != 0) options.push_back(absl::StrCat("--dtype=", dtype));
      EXPECT_EQ(OpsAfterPasses(folder + "/model.onnx", options), wanted) << name << " as " << dtype;
    }
  }
}

// Every pass keeps the numbers of every file, but for the rounding that rules announce.
TEST(Recognition, KeepsNumbers) {
  std::vector<std::string> models;
  const std::string exports = SharedData("onnx-exports"), contrib = SharedData("onnx-contrib");
  if (!exports.empty()) {
    for (const auto& entry : std::filesystem::directory_iterator(exports)) {
      if (entry.is_directory()) models.push_back((entry.path() / "model.onnx").string());
    }
    EXPECT_EQ(models.size(), 21u);
  }
  if (!contrib.empty()) {
    for (const auto& entry : std::filesystem::directory_iterator(contrib)) {
      if (entry.path().extension() == ".onnx") models.push_back(entry.path().string());
    }
  }
  for (const std::string& model : models) {
    const CommandResult plain = RunLlmc({"opt", model, "--no-paginate", "--check-numerics", "-o", "/dev/null"});
    EXPECT_EQ(plain.exit_code, 0) << model << "\n" << plain.err;
    const CommandResult paged = RunLlmc({"opt", model, "--check-numerics", "-o", "/dev/null"});
    EXPECT_EQ(paged.exit_code, 0) << model << ", with a paged cache\n" << paged.err;
  }
}

// What real models compute from positions through floats, at several hundred of them.
TEST(Recognition, KeepsIntegersInTypesOf16Bits) {
  const std::string real = SharedData("real-onnx");
  if (real.empty()) GTEST_SKIP() << "the shared test data is not there";
  for (const char* name : {"t5.dyn", "funnel.ts", "clip.dyn", "detr.dyn", "min_range_f32"}) {
    for (const char* dtype : {"--dtype=bf16", "--dtype=f16"}) {
      const CommandResult result = RunLlmc({"opt", absl::StrCat(real, "/", name, "/model.onnx"), dtype, "--no-paginate",
                                            "--check-numerics", "--stop-after=retype", "-o", "/dev/null"});
      EXPECT_EQ(result.exit_code, 0) << name << " " << dtype << "\n" << result.err;
    }
  }
}

// In 16 bits, eight layers that round less often differ by more than the check grants to one rounding: in f32 they must
// not.
TEST(Recognition, KeepsNumbersOfTrainedModels) {
  for (const std::string& folder : {ShippedModel(), SharedData("tale-7m-onnx-fp16"), SharedData("tale-7m-onnx-bf16")}) {
    if (folder.empty()) GTEST_SKIP() << "the shared test data is not there";
    for (const char* pagination : {"--no-paginate", "--paginate"}) {
      const CommandResult result =
          RunLlmc({"opt", folder + "/model.onnx", pagination, "--dtype=f32", "--check-numerics", "-o", "/dev/null"});
      EXPECT_EQ(result.exit_code, 0) << folder << " " << pagination << "\n" << result.err;
    }
  }
}

TEST(Recognition, ExpectNamesWhatIsMissing) {
  const std::string model = ShippedModel() + "/model.onnx";
  const CommandResult wrong = RunLlmc({"opt", model, "--stop-after=raise", "--expect=attention=9", "-o", "/dev/null"});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_NE(wrong.err.find("attention 8 times, not 9"), std::string::npos) << wrong.err;
  EXPECT_EQ(RunLlmc({"opt", model, "--expect=atention=8"}).exit_code, 2);
}

}  // namespace
}  // namespace llmc
