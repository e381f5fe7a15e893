// What models are made of is recognized, whoever exported them: as many ops of each kind as the architecture has, and
// none of the primitives that they were written in.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
     {"add_rms_norm=4", "rms_norm=1", "silu_mul=2", "silu=0"}},
    {"qwen3",
     {"attention=2", "rotary_embedding=4", "rms_norm=9", "silu=2", "tanh=0"},
     {"add_rms_norm=4", "rms_norm=5", "silu_mul=2", "silu=0"}},
    {"phi3",
     {"attention=2", "rotary_embedding=4", "rms_norm=5", "silu_mul=2", "silu=0", "tanh=0"},
     {"add_rms_norm=4", "rms_norm=1", "silu_mul=2", "silu=0"}},
    {"gemma2", {"attention=2", "rotary_embedding=4", "rms_norm=9", "gelu_tanh=2", "tanh=1"}, {"attention=2"}},
    {"gpt2", {"attention=2", "layer_norm=5", "gelu_tanh=2", "tanh=0"}, {"attention=2"}},
    {"bert", {"attention=2", "layer_norm=5", "gelu=2", "tanh=1"}, {"attention=2"}},
    {"vit", {"attention=2", "layer_norm=5", "gelu=2", "tanh=0", "where=0"}, {"attention=2"}},
};

// What norms, activations, rotations and attention are written in.
const std::vector<std::string> kPrimitives = {"softmax=0", "is_nan=0",     "sigmoid=0", "erf=0",         "pow=0",
                                              "sqrt=0",    "reciprocal=0", "rsqrt=0",   "reduce_mean=0", "neg=0"};

void ExpectOps(const std::string& model, const std::string& pass, std::vector<std::string> ops) {
  const CommandResult result =
      RunLlmc({"opt", model, "--stop-after=" + pass, "--expect=" + absl::StrJoin(ops, ","), "-o", "/dev/null"});
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
        const std::string folder = SharedData("onnx-exports/" + name);
        if (folder.empty()) continue;
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
      {"add_rms_norm=16", "rms_norm=1", "silu_mul=8", "silu=0"},
  };
  ExpectArchitecture(ShippedModel() + "/model.onnx", tale);
  for (const char* name : {"tale-7m-onnx-fp16", "tale-7m-onnx-bf16"}) {
    const std::string folder = SharedData(name);
    if (folder.empty()) GTEST_SKIP() << "the shared test data is not there";
    ExpectArchitecture(folder + "/model.onnx", tale);
  }
}

// Every pass keeps the numbers of every file, but for the rounding that rules announce.
TEST(Recognition, KeepsNumbers) {
  std::vector<std::string> models = {ShippedModel() + "/model.onnx"};
  for (const char* name :
       {"onnx-exports/llama-gqa-nocache-dynamo18", "onnx-exports/llama-gqa-cache-legacy17",
        "onnx-exports/qwen3-cache-dynamo18", "onnx-exports/phi3-cache-dynamo18", "onnx-exports/gemma2-nocache-dynamo18",
        "onnx-exports/gpt2-nocache-dynamo23", "onnx-exports/gpt2-cache-legacy17", "onnx-exports/bert-encoder-legacy17",
        "onnx-exports/bert-encoder-dynamo18", "onnx-exports/vit-vit-legacy17", "onnx-exports/vit-vit-dynamo18",
        "tale-7m-onnx-fp16"}) {
    if (const std::string folder = SharedData(name); !folder.empty()) models.push_back(folder + "/model.onnx");
  }
  for (const std::string& model : models) {
    const CommandResult result = RunLlmc({"opt", model, "--check-numerics", "-o", "/dev/null"});
    EXPECT_EQ(result.exit_code, 0) << model << "\n" << result.err;
  }
}

// In bf16, eight layers that round less often differ by more than the check grants to one rounding: in f32 they must
// not.
TEST(Recognition, KeepsNumbersOfBf16) {
  const std::string folder = SharedData("tale-7m-onnx-bf16");
  if (folder.empty()) GTEST_SKIP() << "the shared test data is not there";
  const CommandResult result =
      RunLlmc({"opt", folder + "/model.onnx", "--dtype=f32", "--check-numerics", "-o", "/dev/null"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
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
