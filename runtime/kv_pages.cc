#include "runtime/kv_pages.h"

#include "absl/strings/str_cat.h"

namespace llmc {

KvPages::KvPages(int64_t num_pages) : used_(num_pages, false) {
  free_.reserve(num_pages);
  for (int64_t page = num_pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

bool KvPages::Allocate(int64_t count, std::vector<int32_t>* pages) {
  if (count < 0 || count > num_free()) return false;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t page = free_.back();
    free_.pop_back();
    used_[page] = true;
    pages->push_back(page);
  }
  return true;
}

absl::Status KvPages::Free(absl::Span<const int32_t> pages) {
  size_t done = 0;
  for (; done < pages.size(); ++done) {
    const int32_t page = pages[done];
    if (page < 0 || page >= num_pages() || !used_[page]) break;
    used_[page] = false;
  }
  if (done < pages.size()) {
    for (size_t i = 0; i < done; ++i) used_[pages[i]] = true;
    return absl::InternalError(absl::StrCat("KV page ", pages[done], " is freed but was not in use"));
  }
  free_.insert(free_.end(), pages.rbegin(), pages.rend());
  return absl::OkStatus();
}

}  // namespace llmc
