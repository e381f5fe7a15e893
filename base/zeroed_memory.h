// Memory for tensors.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace llmc {

// Zeros, aligned to 64 bytes. Large blocks are left untouched until they are used, and ask for large pages then: to
// make small ones takes longer than to fill them. Throws std::bad_alloc.
inline std::shared_ptr<char> ZeroedMemory(int64_t bytes) {
  constexpr uintptr_t kAlign = 64, kPage = 4096;
  constexpr int64_t kLarge = int64_t{16} << 20;
  void* base = std::calloc(1, static_cast<size_t>(bytes) + kAlign);
  if (base == nullptr) throw std::bad_alloc();
  const auto begin = reinterpret_cast<uintptr_t>(base);
  if (bytes >= kLarge) {
    const uintptr_t first = (begin + kPage - 1) & ~(kPage - 1),
                    last = (begin + static_cast<uintptr_t>(bytes)) & ~(kPage - 1);
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // if it is refused, all stays as it was
  }
  const uintptr_t aligned = (begin + kAlign - 1) & ~(kAlign - 1);
  return std::shared_ptr<char>(reinterpret_cast<char*>(aligned), [base](char*) { std::free(base); });
}

}  // namespace llmc
