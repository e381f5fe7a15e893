#include "runtime/engine/page_pool.h"

#include <algorithm>

namespace llmc {

PageTable::PageTable(PagePool* pool) : pool_(pool), parts_(pool->num_pools()) {}

PageTable& PageTable::operator=(PageTable&& other) noexcept {
  if (this == &other) return *this;
  pool_->Release(this);
  pool_ = other.pool_;
  parts_ = std::exchange(other.parts_, std::vector<Part>(other.parts_.size()));
  digests_ = std::exchange(other.digests_, {});
  published_ = std::exchange(other.published_, 0);
  announced_ = std::exchange(other.announced_, 0);
  return *this;
}

PageTable::~PageTable() { pool_->Release(this); }

PoolTables PageTable::tables() const {
  PoolTables tables;
  for (const Part& part : parts_) tables.push_back(part.pages);
  return tables;
}

// ---- one pool -----------------------------------------------------------------------------------------------------

PagePool::Pool::Pool(const PoolLimits& limits)
    : page_size(limits.page_size), window(limits.window), pages(limits.num_pages) {
  free.reserve(pages.size());
  for (int64_t page = limits.num_pages - 1; page >= 0; --page) free.push_back(static_cast<int32_t>(page));
}

std::optional<int32_t> PagePool::Pool::Find(const Digest& digest) const {
  const auto it = published.find(digest);
  return it == published.end() ? std::nullopt : std::optional(it->second);
}

int32_t PagePool::Pool::TakeFree() {
  int32_t page;
  if (!free.empty()) {
    page = free.back();
    free.pop_back();
  } else {
    page = cached.front();
    cached.pop_front();
    Unpublish(page);
    ++num_evictions;
  }
  pages[page].owners = 1;
  return page;
}

void PagePool::Pool::AddOwner(int32_t page) {
  if (pages[page].owners++ == 0) cached.erase(pages[page].place);
}

void PagePool::Pool::RemoveOwner(int32_t page) {
  if (--pages[page].owners > 0) return;
  if (pages[page].is_published) {
    pages[page].place = cached.insert(cached.end(), page);
  } else {
    free.push_back(page);
  }
}

// Where an equal page is published already, this one stays its owner's alone.
void PagePool::Pool::Publish(int32_t page, const Digest& digest) {
  if (pages[page].is_published || !published.try_emplace(digest, page).second) return;
  pages[page].is_published = true;
  pages[page].digest = digest;
}

void PagePool::Pool::Unpublish(int32_t page) {
  if (!std::exchange(pages[page].is_published, false)) return;
  published.erase(pages[page].digest);
}

// ---- all pools ----------------------------------------------------------------------------------------------------

PagePool::PagePool(absl::Span<const PoolLimits> pools, bool keeps_prefixes)
    : smallest_(pools[0].page_size), stretch_(pools[0].page_size), keeps_prefixes_(keeps_prefixes) {
  for (const PoolLimits& limits : pools) {
    pools_.emplace_back(limits);
    smallest_ = std::min(smallest_, limits.page_size);
    stretch_ = std::max(stretch_, limits.page_size);
  }
}

int64_t PagePool::num_in_use() const {
  int64_t sum = 0;
  for (const Pool& pool : pools_) sum += static_cast<int64_t>(pool.pages.size()) - pool.num_available();
  return sum;
}

int64_t PagePool::num_cached() const {
  int64_t sum = 0;
  for (const Pool& pool : pools_) sum += static_cast<int64_t>(pool.cached.size());
  return sum;
}

int64_t PagePool::num_evictions() const {
  int64_t sum = 0;
  for (const Pool& pool : pools_) sum += pool.num_evictions;
  return sum;
}

int64_t PagePool::FirstSeen(int64_t position, const Pool& pool) {
  return pool.window == 0 ? 0 : std::max<int64_t>(0, position - pool.window + 1) / pool.page_size;
}

// The hash of a smallest page is that of the hash before it and its own tokens, so it stands for all tokens up to its
// end, and for the page of each pool that ends there: what follows does not change how a page is found.
void PagePool::ExtendDigests(absl::Span<const int32_t> tokens, int64_t length, PageTable* table) const {
  while (static_cast<int64_t>(table->digests_.size()) < length / smallest_) {
    const auto first = static_cast<int64_t>(table->digests_.size()) * smallest_;
    Sha256 hash;
    if (first > 0) hash.Update(table->digests_.back().data(), table->digests_.back().size());
    hash.Update(tokens.data() + first, static_cast<size_t>(smallest_) * sizeof(int32_t));
    table->digests_.push_back(hash.Finish());
  }
}

CachedPrefix PagePool::FindPrefix(absl::Span<const int32_t> tokens, PageTable* table) {
  CachedPrefix prefix;
  if (!keeps_prefixes_) return prefix;
  const int64_t most = static_cast<int64_t>(tokens.size()) - 1;
  std::vector<int64_t> in_a_row(pools_.size());  // published pages that end with the last one looked at
  bool goes_on = true;
  for (int64_t end = stretch_; end <= most && goes_on; end += stretch_) {
    ExtendDigests(tokens, end, table);
    bool suffices = true;
    for (size_t i = 0; i < pools_.size(); ++i) {
      const int64_t size = pools_[i].page_size;
      for (int64_t at = end - stretch_ + size; at <= end; at += size) {
        in_a_row[i] = pools_[i].Find(DigestAt(at, *table)).has_value() ? in_a_row[i] + 1 : 0;
      }
      suffices = suffices && in_a_row[i] >= end / size - FirstSeen(end, pools_[i]);
      goes_on = goes_on && (pools_[i].window > 0 || in_a_row[i] == end / size);
    }
    if (suffices) prefix.length = end;
  }
  const int64_t next = prefix.length + stretch_;
  if (next <= most) prefix.next_is_under_way = under_way_.contains(DigestAt(next, *table));
  return prefix;
}

void PagePool::TakePrefix(const CachedPrefix& prefix, PageTable* table) {
  for (size_t i = 0; i < pools_.size(); ++i) {
    PageTable::Part& part = table->parts_[i];
    const int64_t size = pools_[i].page_size, count = prefix.length / size;
    part.dropped = std::min(count, FirstSeen(prefix.length, pools_[i]));
    part.pages.assign(part.dropped, 0);
    for (int64_t page = part.dropped; page < count; ++page) {
      part.pages.push_back(*pools_[i].Find(DigestAt((page + 1) * size, *table)));
      pools_[i].AddOwner(part.pages.back());
    }
  }
  table->published_ = table->announced_ = prefix.length;
}

int64_t PagePool::PagesToWrite(int64_t begin, int64_t end, const PageTable& table, size_t pool) const {
  const std::vector<int32_t>& pages = table.parts_[pool].pages;
  const int64_t size = pools_[pool].page_size, count = PagesFor(end, size);
  const int64_t present = std::min(count, static_cast<int64_t>(pages.size()));
  int64_t needed = count - present;
  for (int64_t i = begin / size; i < present; ++i) needed += owners(pages[i], pool) > 1 ? 1 : 0;
  return needed;
}

void PagePool::WriteIn(size_t pool, int64_t begin, int64_t end, PageTable* table, std::vector<PageCopy>* copies) {
  Pool& own = pools_[pool];
  std::vector<int32_t>& pages = table->parts_[pool].pages;
  const int64_t count = PagesFor(end, own.page_size), present = std::min(count, static_cast<int64_t>(pages.size()));
  for (int64_t i = begin / own.page_size; i < present; ++i) {
    if (own.pages[pages[i]].owners == 1) {
      own.Unpublish(pages[i]);  // other tokens come to where it was rolled back
      continue;
    }
    const int32_t copy = own.TakeFree();
    if (i * own.page_size < begin) copies->push_back({.pool = pool, .from = pages[i], .to = copy});
    own.RemoveOwner(pages[i]);
    pages[i] = copy;
  }
  while (static_cast<int64_t>(pages.size()) < count) pages.push_back(own.TakeFree());
}

bool PagePool::Reserve(int64_t end, PageTable* table) {
  const auto missing = [&](size_t pool) {
    const auto present = static_cast<int64_t>(table->parts_[pool].pages.size());
    return std::max<int64_t>(0, PagesFor(end, pools_[pool].page_size) - present);
  };
  for (size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].window == 0 && missing(i) > pools_[i].num_available()) return false;
  }
  for (size_t i = 0; i < pools_.size(); ++i) {
    while (pools_[i].window == 0 && missing(i) > 0) table->parts_[i].pages.push_back(pools_[i].TakeFree());
  }
  return true;
}

bool PagePool::Write(int64_t begin, int64_t end, PageTable* table, std::vector<PageCopy>* copies) {
  for (size_t i = 0; i < pools_.size(); ++i) {
    if (PagesToWrite(begin, end, *table, i) > pools_[i].num_available()) return false;
  }
  for (size_t i = 0; i < pools_.size(); ++i) WriteIn(i, begin, end, table, copies);
  return true;
}

void PagePool::Announce(absl::Span<const int32_t> tokens, int64_t length, PageTable* table) {
  if (!keeps_prefixes_) return;
  ExtendDigests(tokens, length, table);
  for (int64_t end = (table->announced_ / stretch_ + 1) * stretch_; end <= length; end += stretch_) {
    ++under_way_[DigestAt(end, *table)];
  }
  table->announced_ = std::max(table->announced_, length);
}

void PagePool::Publish(absl::Span<const int32_t> tokens, int64_t length, PageTable* table) {
  if (!keeps_prefixes_) return;
  ExtendDigests(tokens, length, table);
  Withdraw(table->published_, std::min(length, table->announced_), *table);
  for (size_t i = 0; i < pools_.size(); ++i) {
    const PageTable::Part& part = table->parts_[i];
    const int64_t size = pools_[i].page_size;
    for (int64_t page = std::max(part.dropped, table->published_ / size); page < length / size; ++page) {
      pools_[i].Publish(part.pages[page], DigestAt((page + 1) * size, *table));
    }
  }
  table->published_ = std::max(table->published_, length);
  table->announced_ = std::max(table->announced_, length);
}

PageTable PagePool::Fork(const PageTable& table) {
  PageTable fork(this);
  fork.parts_ = table.parts_;
  fork.digests_.assign(table.digests_.begin(), table.digests_.begin() + table.published_ / smallest_);
  fork.published_ = fork.announced_ = table.published_;
  for (size_t i = 0; i < pools_.size(); ++i) {
    const PageTable::Part& part = fork.parts_[i];
    for (size_t page = part.dropped; page < part.pages.size(); ++page) pools_[i].AddOwner(part.pages[page]);
  }
  return fork;
}

void PagePool::Rollback(int64_t length, PageTable* table) {
  WithdrawFrom(length, table);
  table->published_ = std::min(table->published_, length);
  table->announced_ = std::min(table->announced_, length);
  const int64_t known = length / smallest_;
  if (static_cast<int64_t>(table->digests_.size()) > known) table->digests_.resize(known);
  for (size_t i = 0; i < pools_.size(); ++i) {
    std::vector<int32_t>& pages = table->parts_[i].pages;
    for (const int64_t count = PagesFor(length, pools_[i].page_size); static_cast<int64_t>(pages.size()) > count;) {
      pools_[i].RemoveOwner(pages.back());
      pages.pop_back();
    }
  }
}

bool PagePool::Holds(int64_t position, const PageTable& table) const {
  for (size_t i = 0; i < pools_.size(); ++i) {
    if (table.parts_[i].dropped > FirstSeen(position, pools_[i])) return false;
  }
  return true;
}

void PagePool::DropUnseen(int64_t position, PageTable* table) {
  for (size_t i = 0; i < pools_.size(); ++i) {
    PageTable::Part& part = table->parts_[i];
    const int64_t count = std::min(FirstSeen(position, pools_[i]), static_cast<int64_t>(part.pages.size()));
    for (; part.dropped < count; ++part.dropped) pools_[i].RemoveOwner(std::exchange(part.pages[part.dropped], 0));
  }
}

// The last page first: what comes later in a sequence is of use to fewer others, so it is evicted before.
void PagePool::Release(PageTable* table) {
  WithdrawFrom(0, table);
  for (size_t i = 0; i < table->parts_.size(); ++i) {
    PageTable::Part& part = table->parts_[i];
    for (auto page = static_cast<int64_t>(part.pages.size()); page > part.dropped; --page) {
      pools_[i].RemoveOwner(part.pages[page - 1]);
    }
    part = {};
  }
  table->published_ = table->announced_ = 0;
}

void PagePool::ForgetContents() {
  for (Pool& pool : pools_) {
    for (size_t page = 0; page < pool.pages.size(); ++page) pool.Unpublish(static_cast<int32_t>(page));
    pool.free.insert(pool.free.end(), pool.cached.begin(), pool.cached.end());
    pool.cached.clear();
  }
}

void PagePool::Withdraw(int64_t begin, int64_t end, const PageTable& table) {
  for (int64_t at = (begin / stretch_ + 1) * stretch_; at <= end; at += stretch_) {
    const auto announced = under_way_.find(DigestAt(at, table));
    if (--announced->second == 0) under_way_.erase(announced);
  }
}

void PagePool::WithdrawFrom(int64_t length, PageTable* table) {
  length = std::max(length, table->published_);
  Withdraw(length, table->announced_, *table);
  table->announced_ = std::min(table->announced_, length);
}

}  // namespace llmc
