// Memory for what runs give to users, page-locked or on a GPU, taken again when nobody has it any more: copies into new
// memory wait for its pages, and copies into pageable memory for a copy on the host.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

namespace llmc {

// Of more, results get memory that is not taken again (of the host: pageable).
inline constexpr int64_t kMaxOutputMemory = int64_t{256} << 20;

// `Device` allocates as llmc::Device does. One thread at a time; users let go of the memory on any.
template <class Device>
class OutputMemory {
 public:
  explicit OutputMemory(Device* device, int64_t most = kMaxOutputMemory) : device_(device), most_(most) {}

  // Memory of at least so many bytes that nobody has; nullptr where there is no room for it. Blocks have sizes of few
  // kinds, so that results which grow from run to run, as a cache does, find those of the runs before; a large one is
  // not given to a small result, which may be kept.
  std::shared_ptr<char> Take(int64_t bytes) {
    const int64_t size = SizeFor(bytes);
    for (const Block& block : blocks_) {
      if (block.bytes == size && IsFree(block)) return block.memory;
    }
    if (Total() + size > most_) Release();
    if (Total() + size > most_) return nullptr;
    absl::StatusOr<std::shared_ptr<char>> memory = device_->AllocateShared(size);
    if (!memory.ok()) {
      Release();
      memory = device_->AllocateShared(size);
    }
    if (!memory.ok()) return nullptr;
    blocks_.push_back({*memory, size});
    return *memory;
  }

  // The next power of two, or one and a half of one, from kLeastBytes on.
  static int64_t SizeFor(int64_t bytes) {
    int64_t size = kLeastBytes;
    while (size < bytes) size = (size & (size - 1)) == 0 ? size + size / 2 : size / 3 * 4;
    return size;
  }
  static constexpr int64_t kLeastBytes = 4096;

  // Gives back what nobody has.
  void Release() { std::erase_if(blocks_, IsFree); }

  size_t num_blocks() const { return blocks_.size(); }

 private:
  struct Block {
    std::shared_ptr<char> memory;
    int64_t bytes = 0;
  };
  // Only this pool can share a block that it alone has. What others have read of it comes before what is written next.
  static bool IsFree(const Block& block) {
    if (block.memory.use_count() != 1) return false;
    std::atomic_thread_fence(std::memory_order_acquire);
    return true;
  }
  int64_t Total() const {
    int64_t total = 0;
    for (const Block& block : blocks_) total += block.bytes;
    return total;
  }

  Device* device_;
  int64_t most_;
  std::vector<Block> blocks_;
};

}  // namespace llmc
