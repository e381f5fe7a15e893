#include "cubins/compile.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <numeric>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/on_all_cores.h"
#include "base/status_macros.h"
#include "cubins/cubin_cache.h"
#include "cubins/nvrtc.h"

namespace llmc {
namespace {

// Of one core of 2025, by what the name of a kernel ends in.
struct Seconds {
  absl::string_view name;
  double seconds;
};
constexpr Seconds kSeconds[] = {
    {"_persistent_run", 3},
    {"_prompt_gemm", 1.5},
    {"_expert_gemm", 1.5},
    {"_encoded_gemm", 0.8},
    {"_paged_attention_prefill", 0.8},
    {"_sample", 0.6},
    {"_expert_small_gemm", 0.6},
    {"_latent_attention", 0.5},
    {"_streamed_gemm", 0.5},
    {"_paged_attention_decode", 0.5},
};
constexpr double kOtherSeconds = 0.25;

double SecondsOf(const KernelSource& kernel) {
  const auto* const found = std::find_if(std::begin(kSeconds), std::end(kSeconds),
                                         [&](const Seconds& s) { return absl::EndsWith(kernel.entry, s.name); });
  return found == std::end(kSeconds) ? kOtherSeconds : found->seconds;
}

}  // namespace

std::vector<size_t> CompileOrder(absl::Span<const KernelSource> kernels) {
  std::vector<size_t> order(kernels.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return SecondsOf(kernels[a]) > SecondsOf(kernels[b]); });
  return order;
}

absl::StatusOr<std::vector<std::string>> CompileKernels(absl::Span<const KernelSource> kernels,
                                                        absl::Span<const SourceFile> headers,
                                                        const CompileOptions& options) {
  ASSIGN_OR_RETURN(const std::string compiler, NvrtcVersion());
  const CubinCache cache(options.cache_folder);
  std::vector<absl::StatusOr<std::string>> results(kernels.size(), absl::UnknownError("not compiled"));
  std::vector<std::vector<SourceFile>> included(kernels.size());
  std::vector<Digest> keys(kernels.size());
  OnAllCores(kernels.size(), [&](size_t i) {
    included[i] = IncludedFiles(kernels[i].text, headers);
    keys[i] = CubinKey(kernels[i], included[i], compiler, options.fast_compile);
    if (std::optional<std::string> found = cache.Find(keys[i]); found.has_value()) results[i] = *std::move(found);
  });
  std::vector<size_t> missing = CompileOrder(kernels);
  missing.erase(std::remove_if(missing.begin(), missing.end(), [&](size_t i) { return results[i].ok(); }),
                missing.end());
  const auto total = static_cast<int64_t>(kernels.size());
  int64_t done = total - static_cast<int64_t>(missing.size());
  if (options.on_kernel && done > 0) options.on_kernel(done, total);
  std::mutex entering, telling;
  size_t next = 0;
  std::atomic<bool> stored = false;
  OnAllCores(missing.size(), [&](size_t) {
    // One after another to the compiler, which reads one source at a time and lets them in as they come.
    std::unique_lock<std::mutex> lock(entering);
    const size_t i = missing[next++];
    const KernelSource& kernel = kernels[i];
    results[i] = CompileToCubin(std::string(kernel.text), absl::StrCat(kernel.entry, ".cu"), kernel.target, included[i],
                                {.fast_compile = options.fast_compile, .on_begin = [&] { lock.unlock(); }});
    if (lock.owns_lock()) lock.unlock();
    if (results[i].ok()) {
      cache.Store(keys[i], *results[i]);
      stored = true;
    }
    if (!options.on_kernel) return;
    const std::lock_guard<std::mutex> tell(telling);
    options.on_kernel(++done, total);
  });
  if (stored) cache.Trim();
  std::vector<std::string> cubins;
  for (absl::StatusOr<std::string>& result : results) {
    if (!result.ok()) return result.status();
    cubins.push_back(*std::move(result));
  }
  return cubins;
}

}  // namespace llmc
