// Compiled kernels in a folder, so that the next compilation of the same source finds them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cubins/source.h"
#include "files/sha256.h"

namespace llmc {

// The digest of all that decides about a cubin: every byte that the compiler gets, what it is told, and which compiler
// that is. `headers` are those that are given to it; `compiler` is NvrtcVersion().
Digest CubinKey(const KernelSource& kernel, absl::Span<const SourceFile> headers, absl::string_view compiler,
                bool fast_compile);

// A cache is a help and no need: whatever goes wrong with its folder, it holds nothing and nobody is told. Threads and
// processes may use it together.
class CubinCache {
 public:
  static constexpr int64_t kMaxBytes = int64_t{1} << 29;

  // `folder` is made when something is stored, for its owner alone. Empty: a cache that keeps nothing. So is a folder
  // that is another user's (but root's) or that others may write to; entries of that kind are not read.
  explicit CubinCache(std::string folder, int64_t max_bytes = kMaxBytes)
      : folder_(std::move(folder)), max_bytes_(max_bytes) {}

  // Nothing too if the entry is damaged.
  std::optional<std::string> Find(const Digest& key) const;
  void Store(const Digest& key, absl::string_view cubin) const;
  // Removes what was not used for the longest time until the rest fits.
  void Trim() const;

 private:
  static std::string NameOf(const Digest& key);

  std::string folder_;
  int64_t max_bytes_;
};

}  // namespace llmc
