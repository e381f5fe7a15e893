// The bodies of kernels know nothing of launches: they run in any context.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "codegen/kernel_headers.h"
#include "cubins/nvrtc.h"

namespace llmc {
namespace {

TEST(KernelContext, BodiesDoNotNameWhatALaunchHas) {
  for (const SourceFile& file : KernelHeaders()) {
    if (file.name == "kernels/common/context.cuh" || file.name == "kernels/common/persistent_run.cuh") continue;
    for (const char* word : {"blockIdx", "gridDim", "__syncthreads", "GridDependencyWait", "LaunchDependents"}) {
      EXPECT_FALSE(absl::StrContains(file.text, word)) << file.name << ": " << word;
    }
  }
}

// ptxas 13.0 encodes cp.async with a policy wrongly where a part of its address is the same for a warp. Bulk copies and
// those by maps are other instructions.
TEST(KernelContext, PoliciesAreOfBulkCopies) {
  int policies = 0;
  for (const SourceFile& file : KernelHeaders()) {
    for (absl::string_view rest = file.text; absl::StrContains(rest, ".L2::cache_hint");) {
      const absl::string_view before = rest.substr(0, rest.find(".L2::cache_hint"));
      rest.remove_prefix(before.size() + 1);
      ++policies;
      EXPECT_TRUE(absl::StartsWith(before.substr(before.rfind('"') + 1), "cp.async.bulk.")) << file.name;
    }
  }
  EXPECT_GT(policies, 0) << "the test finds none: is this how they are written?";
}

// One block after the other computes tiles of two bodies, in shared memory of its own making.
constexpr char kSource[] = R"(#include "kernels/attention/rope.cuh"
#include "kernels/linear/gemv.cuh"
#include "kernels/norm/rms_norm.cuh"
struct Block {
  llmc::u32 tile;
  char* memory;
  llmc::u32 TileX() const { return tile; }
  llmc::u32 TileY() const { return 0; }
  void Wait() const { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
  void LaunchNext() const {}
  void Sync() const { asm volatile("bar.sync 2, 288;" ::: "memory"); }
  template <class T>
  T& Shared() const { return *reinterpret_cast<T*>(memory); }
  template <int kAlignment>
  char* Arena() const { return memory + 4096; }
};
struct Config {
  using T = llmc::bf16;
  using Out = T;
  static constexpr int kDim = 2048, kIn = 2048, kOut = 2048, kTokens = 1, kRows = 16, kChunk = 1024, kStages = 2;
  static constexpr int kInFlight = 2, kXInRing = 0, kSharedBytes = 71744, kThreads = 288;
};
extern "C" __global__ __launch_bounds__(288) void k(llmc::bf16* out, llmc::bf16* norm, const llmc::bf16* x) {
  extern __shared__ __align__(1024) char memory[];
  for (llmc::u32 tile = blockIdx.x; tile < 128; tile += gridDim.x) {
    llmc::RmsNorm<Config>(Block{tile, memory}, norm, x, x, 1e-5f);
    llmc::Gemv<Config>(Block{tile, memory}, out, norm, x, 1);
    __syncthreads();
  }
}
)";

TEST(KernelContext, BodiesCompileInAnother) {
  if (!NvrtcVersion().ok()) GTEST_SKIP() << "there is no NVRTC on this machine";
  for (const char* target : {"sm_80", "sm_90a"}) {
    const absl::Status status = CompileToCubin(kSource, "k.cu", target, KernelHeaders()).status();
    EXPECT_TRUE(status.ok()) << status;
  }
}

}  // namespace
}  // namespace llmc
