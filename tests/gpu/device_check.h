// A program in the language, on the GPU and on the host: both must give the same numbers.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/status/statusor.h"
#include "codegen/device_plan.h"
#include "ir/eval.h"
#include "runtime/device/device_target.h"

namespace llmc {

// Whether tests of devices can run here: a driver with a device, NVRTC and cuBLASLt. If not, `why` says what is
// missing.
bool HasGpu(std::string* why);

#define LLMC_NEEDS_GPU()                                                                \
  do {                                                                                  \
    std::string why;                                                                    \
    if (!HasGpu(&why)) {                                                                \
      if (std::getenv("LLMC_REQUIRE_GPU") != nullptr) FAIL() << "needs a GPU: " << why; \
      GTEST_SKIP() << "needs a GPU: " << why;                                           \
    }                                                                                   \
  } while (false)

struct DeviceCase {
  std::string text;  // of a model with one step; its weights are drawn at random
  NamedTensors
      inputs;   // by name without sigil; others are drawn at random: floats from a normal distribution, booleans
  DimEnv dims;  // the sizes of the symbols, for inputs that are drawn
  uint64_t seed = 1;
  // |device - host| <= tolerance * max(|host|, root mean square of the host's tensor); 0: by type, 1e-12 for
  // f64, 1e-5 for f32, one unit in the last place for 16-bit types. Integers and booleans are equal.
  double tolerance = 0;
  bool by_row = false;  // with the root mean square of the element's row, the last axis, in place of the tensor's
  // What it is compiled for; where that is not the GPU that is here, its sources are compiled again when it is loaded.
  std::string target = {};   // empty: the GPU that is here
  std::string in_code = {};  // what its CUDA source must have, so that the kernel is the one that a test is for
};

// Compiles, runs on both, and adds a failure of the test for every output that differs.
void ExpectDeviceAgrees(const DeviceCase& c);

// Of kernels that tests compile, for those that come after: equal ones are compiled once.
std::string KernelCacheFolder();

// The outputs on the device alone.
absl::StatusOr<NamedTensors> RunOnDevice(const Model& model, const NamedTensors& inputs,
                                         const Target& target = TargetHere(), const DevicePlanOptions& device = {});

// Normally distributed floats, or integers in [low, high).
Tensor RandomFloats(DType dtype, Shape shape, uint64_t seed, double scale = 1);
// For large tensors: 65,537 such numbers, again and again, which takes little time.
Tensor RepeatedFloats(DType dtype, Shape shape, uint64_t seed);
Tensor RandomInts(DType dtype, Shape shape, int64_t low, int64_t high, uint64_t seed);
Tensor Ints(DType dtype, const std::vector<int64_t>& values);  // of rank 1

// While one lives, RandomFloats and RandomInts give zeros, which takes next to no time.
class NothingDrawn {
 public:
  NothingDrawn();
  ~NothingDrawn();
  NothingDrawn(const NothingDrawn&) = delete;
  NothingDrawn& operator=(const NothingDrawn&) = delete;
};

}  // namespace llmc
