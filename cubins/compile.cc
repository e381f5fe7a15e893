#include "cubins/compile.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/on_all_cores.h"
#include "base/status_macros.h"
#include "cubins/cubin_cache.h"
#include "cubins/nvrtc.h"

namespace llmc {
namespace {

// Of a kernel, without what it includes: others have up to 3 KB.
constexpr size_t kLongText = 8000;

}  // namespace

absl::StatusOr<std::vector<std::string>> CompileKernels(absl::Span<const KernelSource> kernels,
                                                        absl::Span<const SourceFile> headers,
                                                        const CompileOptions& options) {
  ASSIGN_OR_RETURN(const std::string compiler, NvrtcVersion());
  const CubinCache cache(options.cache_folder);
  std::vector<absl::StatusOr<std::string>> results(kernels.size(), absl::UnknownError("not compiled"));
  std::mutex mutex;
  int64_t done = 0;
  std::atomic<bool> stored = false;
  // What takes longest should not begin when all else is compiled: kernels of many tasks, whose texts are long, and
  // then the last ones, which are those of the longest prompts.
  std::vector<size_t> order(kernels.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  std::stable_partition(order.begin(), order.end(), [&](size_t i) { return kernels[i].text.size() > kLongText; });
  OnAllCores(results.size(), [&](size_t place) {
    const size_t i = order[place];
    const KernelSource& kernel = kernels[i];
    const std::vector<SourceFile> included = IncludedFiles(kernel.text, headers);
    const Digest key = CubinKey(kernel, included, compiler);
    if (std::optional<std::string> found = cache.Find(key); found.has_value()) {
      results[i] = *std::move(found);
    } else {
      results[i] = CompileToCubin(std::string(kernel.text), absl::StrCat(kernel.entry, ".cu"), kernel.target, included);
      if (results[i].ok()) {
        cache.Store(key, *results[i]);
        stored = true;
      }
    }
    if (!options.on_kernel) return;
    const std::lock_guard<std::mutex> lock(mutex);
    options.on_kernel(++done, static_cast<int64_t>(results.size()));
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
