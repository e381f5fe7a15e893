// A cache that is encoded, on the host: what a token's logits are does not depend on the steps in which the tokens
// before it came into the cache, nor on who wrote them.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "frontend/import.h"
#include "passes/pipeline.h"
#include "runtime/host/host_executor.h"
#include "tests/runtime/cached_tokens.h"
#include "tests/shared_data.h"

namespace llmc {
namespace {

void ExpectSameHoweverCached(const std::string& folder, const std::string& kv) {
  SCOPED_TRACE(folder + " with --kv=" + kv);
  const auto model = ImportHuggingFace(folder);
  ASSERT_TRUE(model.ok()) << model.status();
  const absl::Status optimized = RunPipeline(model->get(), {.dtype = DType::kF32, .kv = kv}, nullptr);
  ASSERT_TRUE(optimized.ok()) << optimized;
  const auto executor = HostExecutor::Create(model->get(), {.num_pages = 32});
  ASSERT_TRUE(executor.ok()) << executor.status();
  std::vector<int32_t> text(61);
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<int32_t>((i * i * 7 + i * 13 + 3) % 500);
  CachedTokens(executor->get(), text).ExpectSameHoweverCached(1e-4f);
}

class EncodedCache : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, EncodedCache,
                         ::testing::Values("none", "f8e4m3", "f8e4m3:tensor", "int8", "int4",
                                           "uint4 group=32 scale=f16 zero=u8"));

TEST_P(EncodedCache, HoldsTheSameHoweverItWasWritten) {
  ExpectSameHoweverCached(LLMC_TEST_DATA "/tale-7m", GetParam());
}

TEST_P(EncodedCache, HoldsTheSameOfWindows) {
  const std::string folder = SharedData("tiny-models/mistral-sliding");
  if (folder.empty()) GTEST_SKIP() << "the shared test data is not there";
  const std::string kv = GetParam();
  ExpectSameHoweverCached(folder, kv == "int4" ? "int4 group=16 scale=f16" : kv.substr(0, 5) == "uint4" ? "int8" : kv);
}

}  // namespace
}  // namespace llmc
