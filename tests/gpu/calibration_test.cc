// `llmc quantize --device=cuda`: parts of a decoder on the GPU must lead to what the host comes to.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "tests/gpu/device_check.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

std::string TextFile() {
  const std::string path = TempFolder() + "/calibration.txt";
  std::ofstream file(path);
  for (int i = 0; i < 200; ++i) {
    file << "Once upon a time there was a king who had " << i << " daughters, and the " << i % 7
         << "th of them went to the sea.\n";
  }
  return path;
}

nlohmann::json Report(const std::string& scheme, const std::string& device) {
  const CommandResult made =
      RunLlmc({"quantize", ShippedModel(), "-o", TempFolder() + "/" + scheme + "-" + device, "--scheme=" + scheme,
               "--calibration", TextFile(), "--samples=6", "--sample-tokens=100", "--device=" + device, "--json"});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  return made.Json();
}

// `nearest`: by how much errors of weights that are rounded to nearest may differ, of themselves; `method`: of those of
// the scheme, which may round otherwise where sums differ in their last bits.
void ExpectSameErrors(const std::string& scheme, double nearest, double method) {
  std::string why;
  if (!HasGpu(&why)) GTEST_SKIP() << why;
  const nlohmann::json host = Report(scheme, "host"), device = Report(scheme, "cuda");
  ASSERT_EQ(host["modules"].size(), 56u);
  ASSERT_EQ(device["modules"].size(), 56u);
  for (size_t i = 0; i < 56; ++i) {
    const nlohmann::json &a = host["modules"][i], &b = device["modules"][i];
    const double of_nearest = a["nearest_output_error"], of_method = a["output_error"];
    EXPECT_NEAR(b["nearest_output_error"].get<double>(), of_nearest, nearest * of_nearest) << a["name"];
    EXPECT_NEAR(b["output_error"].get<double>(), of_method, method * of_method) << a["name"];
  }
}

TEST(CalibrationOnDevice, RoundingToNearestHasTheSameErrors) { ExpectSameErrors("int4", 1e-2, 1e-2); }

TEST(CalibrationOnDevice, GptqHasTheSameErrors) { ExpectSameErrors("gptq", 3e-2, 5e-2); }

TEST(CalibrationOnDevice, AwqHasTheSameErrors) { ExpectSameErrors("awq", 2e-2, 2e-2); }

}  // namespace
}  // namespace llmc
