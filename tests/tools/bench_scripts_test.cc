// Scripts of tools/bench that run the command: a session, and the time to load real weights.
#include "tests/tools/bench_scripts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>

#include "tests/tools/run_command.h"

namespace llmc {
namespace {

using testing::HasSubstr;

// With a command that writes an empty report in place of llmc.
TEST(BenchSession, SavesEachPartAndKeepsItsBudget) {
  const std::string folder = TempFolder() + "/session", out = folder + "/out";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/llmc")
      << "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" = --output ] && echo '{}' > \"$2\"; shift; done\n";
  std::filesystem::permissions(folder + "/llmc", std::filesystem::perms::owner_all);
  const std::string session = "LLMC=" + folder + "/llmc " + kScripts + "session.sh " + out;
  int status = 0;
  const std::string text = Shell(session + " --parts=8b,1b --budget=60 --archive=" + folder + "/all.tar.gz", &status);
  EXPECT_EQ(status, 0) << text;
  EXPECT_THAT(text, HasSubstr("8b: left out, needs 90 s"));
  EXPECT_THAT(text, HasSubstr(" s, exit status 0"));
  EXPECT_THAT(Shell("tar -tzf " + folder + "/all.tar.gz", &status), HasSubstr("llama-3.2-1b.json"));
  std::ofstream(out + "/commit") << "another\n";
  EXPECT_THAT(Shell(session + " --parts=1b", &status), HasSubstr("holds results of commit another"));
  EXPECT_EQ(status, 1);
}

// A tiny checkpoint on the host: that it is one, and that every time is there.
class BenchRealLoad : public testing::Test {
 protected:
  // `more`: of config.json.
  nlohmann::json Run(const std::string& more, const std::string& options) {
    const std::string folder = TempFolder() + "/real", config = folder + "/tiny";
    std::filesystem::create_directories(config);
    std::ofstream(config + "/config.json")
        << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
               "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
               "vocab_size": 256, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
               "tie_word_embeddings": false, "torch_dtype": "bfloat16", "hidden_act": "silu")"
        << more << "}";
    int status = 0;
    const std::string text = Shell("LLMC_LOAD_DEVICE=host python3 " + kScripts + "real_load.py " LLMC_BINARY " " +
                                       config + " " + folder + "/work " + folder + "/out.json" + options,
                                   &status);
    EXPECT_EQ(status, 0) << text;
    return status == 0 ? nlohmann::json::parse(ReadText(folder + "/out.json")) : nlohmann::json();
  }
};

TEST_F(BenchRealLoad, MakesACheckpointAndTimesIt) {
  const auto report = Run("", "");
  // Embedding and head; a layer's q, o, k, v, gate, up, down and two norms; the last norm.
  const int64_t numbers = 2 * 256 * 64 + 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96 + 2 * 64) + 64;
  ASSERT_EQ(report["checkpoint_bytes"], 2 * numbers);
  ASSERT_EQ(report["compile"].size(), 2U);
  EXPECT_GT(report["compile"][0]["plan_bytes"], 2 * numbers) << "the weights are in it";
  EXPECT_LT(report["compile"][1]["plan_bytes"], 2 * numbers) << "the weights are outside";
  ASSERT_EQ(report["load"].size(), 6U);
  for (const auto& load : report["load"]) EXPECT_GT(load["load_s"], 0);
}

TEST_F(BenchRealLoad, MakesOneOfFourBits) {
  const auto report = Run(R"(, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true,
                                 "desc_act": false, "checkpoint_format": "gptq"})",
                          " --cached");
  // Of a linear layer half a byte for a weight, and for 32 of them a scale of 2 bytes and half a byte of zero point.
  const int64_t weights = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96), others = 2 * 256 * 64 + 2 * 2 * 64 + 64;
  ASSERT_EQ(report["checkpoint_bytes"], 2 * others + weights / 2 + weights / 32 * 5 / 2);
  EXPECT_EQ(report["load"].size(), 4U);
}

}  // namespace
}  // namespace llmc
