// The KV cache pages of one loaded plan: who owns which page, and which pages that nobody owns may serve again because
// the keys and values of known tokens are in them (the prefix cache).
//
// A sequence's PageTable owns its pages. A page may have several owners, who then only read it: Write gives a page with
// one owner to write to, and says what must be copied before. A whole page whose step was collected is published under
// the hash of all tokens up to its end, and from then on other sequences that begin with the same tokens share it. When
// its last owner lets go of it, it stays published until the pool needs the page; the one that was free longest goes
// first.
//
// There may be several pools: layers with a window have pages of their own, which go back when the window has passed
// them. There a sequence has pages for what was computed or is planned, of which the first ones may be gone; in the
// others for all that was reserved.
//
// Pools may have pages of several sizes, each a power of two then. Each pool publishes its own pages, but a prefix is
// shared in stretches only: as many tokens as the largest page has, so that it ends where a page ends in every pool.
//
// The pools plan, the device follows: steps run in the order in which they were planned. So a page may be given to
// another owner while steps of the last one are still in flight, and a published page is written before it is read.
//
// Hashes are SHA-256, chained from one smallest page to the next: whoever finds two prefixes with equal hashes reads
// another user's cache, so the hash must be one for which nobody can.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "files/sha256.h"
#include "runtime/engine/executor.h"

namespace llmc {

class PagePool;

// The pages of one sequence: position p lies in pages(pool)[p / page size of the pool]. Its pages go back to the pools,
// which must outlive it, when it is destroyed.
class PageTable {
 public:
  explicit PageTable(PagePool* pool);
  PageTable(PageTable&& other) noexcept : pool_(other.pool_) { *this = std::move(other); }
  PageTable& operator=(PageTable&& other) noexcept;
  ~PageTable();

  // Those that a window has left behind are 0.
  absl::Span<const int32_t> pages(size_t pool = 0) const { return parts_[pool].pages; }
  int64_t num_dropped(size_t pool = 0) const { return parts_[pool].dropped; }  // of those
  PoolTables tables() const;                                                   // of all pools
  bool empty() const { return parts_[0].pages.empty(); }

 private:
  friend class PagePool;

  struct Part {
    std::vector<int32_t> pages;
    int64_t dropped = 0;  // first pages that a window has left behind
  };

  PagePool* pool_;
  std::vector<Part> parts_;      // by pool
  std::vector<Digest> digests_;  // of all tokens up to the end of each smallest page, as far as they were needed
  int64_t published_ = 0;        // first tokens whose step was collected
  int64_t announced_ = 0;        // first tokens that are published or under way
};

// What the pools have of a sequence's first tokens.
struct CachedPrefix {
  int64_t length = 0;              // whole stretches of tokens, of which each pool has what the token behind them sees
  bool next_is_under_way = false;  // a step that was planned and is not collected fills the stretch after these
};

// One thread at a time.
class PagePool {
 public:
  // Without `keeps_prefixes` nothing is ever published.
  PagePool(absl::Span<const PoolLimits> pools, bool keeps_prefixes);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  size_t num_pools() const { return pools_.size(); }
  int64_t num_pages(size_t pool = 0) const { return static_cast<int64_t>(pools_[pool].pages.size()); }
  int64_t page_size(size_t pool = 0) const { return pools_[pool].page_size; }
  int64_t window(size_t pool = 0) const { return pools_[pool].window; }
  // That nobody owns. Those of them that are published count too.
  int64_t num_available(size_t pool = 0) const { return pools_[pool].num_available(); }
  int64_t owners(int32_t page, size_t pool = 0) const { return pools_[pool].pages[page].owners; }
  // Of all pools: owned by a sequence; published, and nobody owns them; evicted of those, so far.
  int64_t num_in_use() const;
  int64_t num_cached() const;
  int64_t num_evictions() const;

  // The longest prefix of `tokens` whose pages are published, but without the last token: one must be computed. `table`
  // is the sequence's, and has no pages. From here on the sequence has these tokens, until a Rollback.
  CachedPrefix FindPrefix(absl::Span<const int32_t> tokens, PageTable* table);
  // Makes `table` an owner of a prefix that was just found.
  void TakePrefix(const CachedPrefix& prefix, PageTable* table);

  // Adds pages for positions up to `end` in the pools that have no window. False, with nothing changed, if there are
  // too few.
  bool Reserve(int64_t end, PageTable* table);
  // Makes positions [begin, end) of the sequence writable: pages that are missing are added, and in place of those that
  // others own too, `table` gets copies. What of these was written before `begin` is copied by the step that is planned
  // now, see StepInput::copies; what lies behind is not read any more. False, with nothing changed, if there are too
  // few pages. Costs as much as there are pages in [begin, end).
  bool Write(int64_t begin, int64_t end, PageTable* table, std::vector<PageCopy>* copies);
  // A step was planned that computes the sequence up to `length`; `tokens` has all of these. Sequences that begin with
  // the same tokens can wait for it.
  void Announce(absl::Span<const int32_t> tokens, int64_t length, PageTable* table);
  // A step was collected, without an error, that computed the sequence up to `length`; `tokens` has all of these.
  void Publish(absl::Span<const int32_t> tokens, int64_t length, PageTable* table);

  // Another sequence with the same pages, whose tokens may differ from here on.
  PageTable Fork(const PageTable& table);
  // Forgets the tokens from `length` on; the pages behind them are free. Only where Holds(length, table).
  void Rollback(int64_t length, PageTable* table);
  // Whether all is there that the token at `position` sees before itself.
  bool Holds(int64_t position, const PageTable& table) const;
  // Lets go of pages that no token from `position` on sees: no step after the last collected one reads them.
  void DropUnseen(int64_t position, PageTable* table);
  // Lets go of all pages. The table may be used again, for the same tokens.
  void Release(PageTable* table);

  // Others have written to the pages: nothing that was published is found again.
  void ForgetContents();

 private:
  struct Page {
    int64_t owners = 0;
    bool is_published = false;
    Digest digest;                       // if published
    std::list<int32_t>::iterator place;  // in `cached`, if published and without owners
  };
  // Pages that are given out together.
  struct Pool {
    explicit Pool(const PoolLimits& limits);
    int64_t num_available() const { return static_cast<int64_t>(free.size() + cached.size()); }
    std::optional<int32_t> Find(const Digest& digest) const;
    int32_t TakeFree();
    void AddOwner(int32_t page);
    void RemoveOwner(int32_t page);
    void Publish(int32_t page, const Digest& digest);
    void Unpublish(int32_t page);

    int64_t page_size, window;
    std::vector<Page> pages;
    std::vector<int32_t> free;  // without owners and not published; the next to give is last
    std::list<int32_t> cached;  // without owners and published; the next to evict is first
    absl::flat_hash_map<Digest, int32_t> published;
    int64_t num_evictions = 0;
  };

  // The first page that the token at `position` sees.
  static int64_t FirstSeen(int64_t position, const Pool& pool);
  // Of all tokens up to `end`, where a smallest page ends.
  const Digest& DigestAt(int64_t end, const PageTable& table) const { return table.digests_[end / smallest_ - 1]; }
  int64_t PagesToWrite(int64_t begin, int64_t end, const PageTable& table, size_t pool) const;
  void WriteIn(size_t pool, int64_t begin, int64_t end, PageTable* table, std::vector<PageCopy>* copies);
  void ExtendDigests(absl::Span<const int32_t> tokens, int64_t length, PageTable* table) const;
  // Of the stretches that end in (begin, end].
  void Withdraw(int64_t begin, int64_t end, const PageTable& table);
  void WithdrawFrom(int64_t length, PageTable* table);

  int64_t smallest_, stretch_;  // tokens of the smallest and of the largest page
  const bool keeps_prefixes_;
  std::vector<Pool> pools_;
  absl::flat_hash_map<Digest, int64_t> under_way_;  // of stretches: how many sequences announced it
};

}  // namespace llmc
