// The pool of KV cache pages: who has which page is the caller's affair, that no page has two owners is this class's.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace llmc {

class KvPages {
 public:
  explicit KvPages(int64_t num_pages);

  int64_t num_pages() const { return static_cast<int64_t>(used_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }

  // Appends `count` pages to `pages`, or none and returns false.
  bool Allocate(int64_t count, std::vector<int32_t>* pages);

  // Internal, with nothing freed, if a page is not of this pool, is free already or occurs twice.
  absl::Status Free(absl::Span<const int32_t> pages);

 private:
  std::vector<int32_t> free_;  // the next to give is last
  std::vector<bool> used_;
};

}  // namespace llmc
