#include "runtime/engine/page_pool.h"

#include <algorithm>

namespace llmc {

PageTable& PageTable::operator=(PageTable&& other) noexcept {
  if (this == &other) return *this;
  pool_->Release(this);
  pool_ = other.pool_;
  pages_ = std::exchange(other.pages_, {});
  digests_ = std::exchange(other.digests_, {});
  dropped_ = std::exchange(other.dropped_, 0);
  published_ = std::exchange(other.published_, 0);
  announced_ = std::exchange(other.announced_, 0);
  return *this;
}

PageTable::~PageTable() { pool_->Release(this); }

PagePool::PagePool(int64_t num_pages, int64_t page_size, bool keeps_prefixes)
    : page_size_(page_size), keeps_prefixes_(keeps_prefixes), pages_(num_pages) {
  free_.reserve(num_pages);
  for (int64_t page = num_pages - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

// The hash of a page is that of the hash before it and its own tokens, so it stands for all tokens up to its end.
void PagePool::ExtendDigests(absl::Span<const int32_t> tokens, int64_t count, PageTable* table) const {
  while (static_cast<int64_t>(table->digests_.size()) < count) {
    const auto first = static_cast<int64_t>(table->digests_.size()) * page_size_;
    Sha256 hash;
    if (first > 0) hash.Update(table->digests_.back().data(), table->digests_.back().size());
    hash.Update(tokens.data() + first, static_cast<size_t>(page_size_) * sizeof(int32_t));
    table->digests_.push_back(hash.Finish());
  }
}

CachedPrefix PagePool::FindPrefix(absl::Span<const int32_t> tokens, PageTable* table) {
  CachedPrefix prefix;
  const int64_t most = keeps_prefixes_ ? (static_cast<int64_t>(tokens.size()) - 1) / page_size_ : 0;
  for (int64_t i = 0; i < most; ++i) {
    ExtendDigests(tokens, i + 1, table);
    const auto found = published_.find(table->digests_[i]);
    if (found == published_.end()) {
      prefix.next_is_under_way = under_way_.contains(table->digests_[i]);
      break;
    }
    prefix.pages.push_back(found->second);
  }
  return prefix;
}

void PagePool::TakePrefix(const CachedPrefix& prefix, PageTable* table) {
  for (const int32_t page : prefix.pages) AddOwner(page);
  table->pages_ = prefix.pages;
  table->published_ = table->announced_ = static_cast<int64_t>(prefix.pages.size());
}

bool PagePool::Write(int64_t begin, int64_t end, PageTable* table, std::vector<PageCopy>* copies) {
  std::vector<int32_t>& pages = table->pages_;
  const int64_t count = PagesFor(end, page_size_), first = begin / page_size_;
  const int64_t present = std::min(count, static_cast<int64_t>(pages.size()));
  int64_t needed = count - present;
  for (int64_t i = first; i < present; ++i) needed += owners(pages[i]) > 1 ? 1 : 0;
  if (needed > num_available()) return false;
  for (int64_t i = first; i < present; ++i) {
    if (owners(pages[i]) == 1) {
      Unpublish(pages[i]);  // other tokens come to where it was rolled back
      continue;
    }
    const int32_t copy = TakeFree();
    if (i * page_size_ < begin) copies->push_back({.from = pages[i], .to = copy});
    RemoveOwner(pages[i]);
    pages[i] = copy;
  }
  while (static_cast<int64_t>(pages.size()) < count) pages.push_back(TakeFree());
  return true;
}

void PagePool::Announce(absl::Span<const int32_t> tokens, int64_t length, PageTable* table) {
  if (!keeps_prefixes_) return;
  ExtendDigests(tokens, length / page_size_, table);
  for (; table->announced_ < length / page_size_; ++table->announced_) ++under_way_[table->digests_[table->announced_]];
}

// Where an equal page is published already, this one stays its owner's alone.
void PagePool::Publish(absl::Span<const int32_t> tokens, int64_t length, PageTable* table) {
  if (!keeps_prefixes_) return;
  const int64_t count = length / page_size_;
  ExtendDigests(tokens, count, table);
  for (int64_t i = table->published_; i < count; ++i) {
    if (i < table->announced_) Withdraw(table->digests_[i]);
    Page& page = pages_[table->pages_[i]];
    if (i < table->dropped_ || page.is_published) continue;
    if (!published_.try_emplace(table->digests_[i], table->pages_[i]).second) continue;
    page.is_published = true;
    page.digest = table->digests_[i];
  }
  table->published_ = std::max(table->published_, count);
  table->announced_ = std::max(table->announced_, count);
}

PageTable PagePool::Fork(const PageTable& table) {
  PageTable fork(this);
  fork.pages_ = table.pages_;
  fork.digests_.assign(table.digests_.begin(), table.digests_.begin() + table.published_);
  fork.dropped_ = table.dropped_;
  fork.published_ = fork.announced_ = table.published_;
  for (size_t i = fork.dropped_; i < fork.pages_.size(); ++i) AddOwner(fork.pages_[i]);
  return fork;
}

void PagePool::Rollback(int64_t length, PageTable* table) {
  const int64_t whole = length / page_size_;
  WithdrawFrom(whole, table);
  table->published_ = std::min(table->published_, whole);
  table->announced_ = std::min(table->announced_, whole);
  if (static_cast<int64_t>(table->digests_.size()) > whole) table->digests_.resize(whole);
  for (const int64_t count = PagesFor(length, page_size_); static_cast<int64_t>(table->pages_.size()) > count;) {
    RemoveOwner(table->pages_.back());
    table->pages_.pop_back();
  }
}

void PagePool::DropBefore(int64_t position, PageTable* table) {
  const int64_t count = std::min(position / page_size_, static_cast<int64_t>(table->pages_.size()));
  for (; table->dropped_ < count; ++table->dropped_) RemoveOwner(std::exchange(table->pages_[table->dropped_], 0));
}

// The last page first: what comes later in a sequence is of use to fewer others, so it is evicted before.
void PagePool::Release(PageTable* table) {
  WithdrawFrom(0, table);
  for (auto i = static_cast<int64_t>(table->pages_.size()); i > table->dropped_; --i) RemoveOwner(table->pages_[i - 1]);
  table->pages_.clear();
  table->dropped_ = table->published_ = table->announced_ = 0;
}

void PagePool::ForgetContents() {
  for (size_t page = 0; page < pages_.size(); ++page) Unpublish(static_cast<int32_t>(page));
  free_.insert(free_.end(), cached_.begin(), cached_.end());
  cached_.clear();
}

int32_t PagePool::TakeFree() {
  int32_t page;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else {
    page = cached_.front();
    cached_.pop_front();
    Unpublish(page);
    ++num_evictions_;
  }
  pages_[page].owners = 1;
  return page;
}

void PagePool::AddOwner(int32_t page) {
  if (pages_[page].owners++ == 0) cached_.erase(pages_[page].place);
}

void PagePool::RemoveOwner(int32_t page) {
  if (--pages_[page].owners > 0) return;
  if (pages_[page].is_published) {
    pages_[page].place = cached_.insert(cached_.end(), page);
  } else {
    free_.push_back(page);
  }
}

void PagePool::Unpublish(int32_t page) {
  if (!std::exchange(pages_[page].is_published, false)) return;
  published_.erase(pages_[page].digest);
}

void PagePool::Withdraw(const Digest& digest) {
  const auto announced = under_way_.find(digest);
  if (--announced->second == 0) under_way_.erase(announced);
}

void PagePool::WithdrawFrom(int64_t first, PageTable* table) {
  first = std::max(first, table->published_);
  for (int64_t i = first; i < table->announced_; ++i) Withdraw(table->digests_[i]);
  table->announced_ = std::min(table->announced_, first);
}

}  // namespace llmc
