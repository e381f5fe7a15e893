// SHA-256.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace llmc {

using Digest = std::array<uint8_t, 32>;

// In pieces.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void Update(const void* data, size_t bytes);
  Digest Finish();  // once

 private:
  void* context_;
};
Digest HashBytes(absl::string_view bytes);

}  // namespace llmc
