// Compiled kernels in a folder, so that the next compilation of the same source finds them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "files/sha256.h"

namespace llmc {

// A cache is a help and no need: whatever goes wrong with its folder, it holds nothing and nobody is told. Threads and
// processes may use it together.
class CubinCache {
 public:
  static constexpr int64_t kMaxBytes = int64_t{1} << 29;

  // `folder` is made when something is stored. Empty: a cache that keeps nothing.
  explicit CubinCache(std::string folder, int64_t max_bytes = kMaxBytes)
      : folder_(std::move(folder)), max_bytes_(max_bytes) {}

  // Nothing too if the entry is damaged.
  std::optional<std::string> Find(const Digest& key) const;
  void Store(const Digest& key, absl::string_view cubin) const;
  // Removes what was not used for the longest time until the rest fits.
  void Trim() const;

 private:
  std::string PathOf(const Digest& key) const;

  std::string folder_;
  int64_t max_bytes_;
};

}  // namespace llmc
