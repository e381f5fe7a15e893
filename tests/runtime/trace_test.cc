// Traces are JSON of the form that trace viewers read.
#include "runtime/device/trace.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

namespace llmc {
namespace {

TEST(Trace, IsJsonForTraceViewers) {
  Trace trace(/*kernels=*/true);
  {
    const TraceSpan step(&trace, "submit a step");
    const TraceSpan launch(&trace, "cuGraphLaunch");
  }
  trace.Add(Trace::Row::kDevice, "%q = matmul %x, @\"w\"  loc \"model.layers.0\"", 10, 12.5);
  trace.Add(Trace::Row::kDevice, "no UTF-8: \xff", 13, 14);
  const nlohmann::json json = nlohmann::json::parse(trace.ToJson());
  const nlohmann::json& events = json["traceEvents"];
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[0]["args"]["name"], "host");
  EXPECT_EQ(events[1]["args"]["name"], "device");
  EXPECT_EQ(events[2]["name"], "cuGraphLaunch") << "what ends first comes first";
  EXPECT_EQ(events[3]["name"], "submit a step");
  EXPECT_LE(events[3]["ts"], events[2]["ts"]);
  EXPECT_EQ(events[4]["name"], "%q = matmul %x, @\"w\"  loc \"model.layers.0\"");
  EXPECT_EQ(events[4]["tid"], 1);
  EXPECT_EQ(events[4]["dur"], 2.5);
}

TEST(Trace, MayBeEmptyOrAbsent) {
  EXPECT_EQ(nlohmann::json::parse(Trace(false).ToJson())["traceEvents"].size(), 2u);
  const TraceSpan span(nullptr, "nothing");
}

// As a profiler sees them: see nvtx_recorder.cc.
TEST(Trace, SpansAreNvtxRanges) {
  const char* library = std::getenv("NVTX_INJECTION64_PATH");
  if (library == nullptr) GTEST_SKIP() << "NVTX_INJECTION64_PATH names no recorder; ctest sets it";
  {
    const TraceSpan step(nullptr, "submit a step of the test");
    const ProfilerRange line("%q = matmul %x, @w");
  }
  void* recorder = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(recorder, nullptr) << "the headers of NVTX did not load the recorder";
  const auto text = reinterpret_cast<const char* (*)()>(dlsym(recorder, "NvtxRecorderText"));
  ASSERT_NE(text, nullptr);
  EXPECT_THAT(text(), ::testing::HasSubstr("push submit a step of the test\npush %q = matmul %x, @w\npop\npop\n"));
}

}  // namespace
}  // namespace llmc
