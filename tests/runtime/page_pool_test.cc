#include "runtime/engine/page_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/runtime/computed_pages.h"

namespace llmc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kPageSize = 4;

std::vector<std::vector<int32_t>> AllPagesOf(const PageTable& table) {
  std::vector<std::vector<int32_t>> pages;
  for (const absl::Span<const int32_t> of_pool : table.tables()) pages.emplace_back(of_pool.begin(), of_pool.end());
  return pages;
}

TEST(PagePool, AllocatesAllOrNothing) {
  PagePool pool({{.num_pages = 3, .page_size = kPageSize}}, true);
  std::vector<PageCopy> copies;
  PageTable a(&pool), b(&pool);
  EXPECT_TRUE(pool.Write(0, 5, &a, &copies));
  EXPECT_FALSE(pool.Write(0, 8, &b, &copies));
  EXPECT_THAT(b.pages(), IsEmpty());
  EXPECT_EQ(pool.num_available(), 1);
  EXPECT_TRUE(pool.Write(0, 1, &b, &copies));
  EXPECT_TRUE(pool.Write(1, 4, &b, &copies)) << "there is room in its page";
  EXPECT_FALSE(pool.Write(4, 5, &b, &copies));
  EXPECT_THAT(std::set<int32_t>({a.pages()[0], a.pages()[1], b.pages()[0]}), SizeIs(3));
  a = PageTable(&pool);
  EXPECT_EQ(pool.num_available(), 2) << "a table gives its pages back";
}

TEST(PagePool, FindsTheLongestPrefixButTheLastToken) {
  PagePool pool({{.num_pages = 8, .page_size = kPageSize}}, true);
  const PageTable table = Computed(&pool, Tokens(14, 0));
  EXPECT_EQ(Find(&pool, Tokens(14, 0)).length, 3 * kPageSize);
  {
    PageTable same(&pool);
    pool.TakePrefix(pool.FindPrefix(Tokens(14, 0), &same), &same);
    EXPECT_EQ(same.pages(), table.pages().subspan(0, 3));
  }
  EXPECT_EQ(Find(&pool, Tokens(12, 0)).length, 2 * kPageSize) << "one token is computed at least";
  EXPECT_EQ(Find(&pool, Tokens(13, 0)).length, 3 * kPageSize);
  EXPECT_EQ(Find(&pool, Tokens(14, 1)).length, 0);
  std::vector<int32_t> other = Tokens(14, 0);
  other[5] = 99;
  EXPECT_EQ(Find(&pool, other).length, 1 * kPageSize);
  other[0] = 99;
  EXPECT_EQ(Find(&pool, other).length, 0) << "pages 1 and 2 have the same tokens, but not before them";
}

TEST(PagePool, WithoutPrefixesFindsNothing) {
  PagePool pool({{.num_pages = 8, .page_size = kPageSize}}, false);
  const PageTable table = Computed(&pool, Tokens(14, 0));
  EXPECT_EQ(Find(&pool, Tokens(14, 0)).length, 0);
}

TEST(PagePool, PublishesWhatIsCollectedOnly) {
  PagePool pool({{.num_pages = 8, .page_size = kPageSize}}, true);
  const std::vector<int32_t> tokens = Tokens(12, 0);
  std::vector<PageCopy> copies;
  {
    PageTable table(&pool);
    ASSERT_TRUE(pool.Write(0, 12, &table, &copies));
    pool.Announce(tokens, 11, &table);
    EXPECT_EQ(Find(&pool, tokens).length, 0);
    EXPECT_TRUE(Find(&pool, tokens).next_is_under_way);
    pool.Publish(tokens, 6, &table);
    EXPECT_EQ(Find(&pool, tokens).length, 1 * kPageSize);
    EXPECT_TRUE(Find(&pool, tokens).next_is_under_way);
    EXPECT_FALSE(Find(&pool, Tokens(12, 5)).next_is_under_way);
  }
  EXPECT_EQ(Find(&pool, tokens).length, 1 * kPageSize) << "it stays when its owner is gone";
  EXPECT_FALSE(Find(&pool, tokens).next_is_under_way) << "nobody computes it any more";
  EXPECT_EQ(pool.num_available(), 8);
  EXPECT_EQ(pool.num_cached(), 1);
}

TEST(PagePool, EvictsWhatWasFreeLongestAndEndsFirst) {
  PagePool pool({{.num_pages = 6, .page_size = kPageSize}}, true);
  Computed(&pool, Tokens(12, 0));
  Computed(&pool, Tokens(8, 100));
  EXPECT_EQ(pool.num_cached(), 5);
  {
    PageTable hit(&pool);
    const CachedPrefix prefix = pool.FindPrefix(Tokens(12, 0), &hit);
    pool.TakePrefix(prefix, &hit);
    EXPECT_EQ(pool.num_cached(), 3);
  }
  std::vector<PageCopy> copies;
  PageTable table(&pool);
  ASSERT_TRUE(pool.Write(0, 16, &table, &copies));  // the page that is free, and three evictions
  EXPECT_EQ(pool.num_evictions(), 3);
  EXPECT_EQ(Find(&pool, Tokens(12, 0)).length, 2 * kPageSize) << "it was used last";
  EXPECT_EQ(Find(&pool, Tokens(9, 100)).length, 0);
  ASSERT_TRUE(pool.Write(16, 20, &table, &copies));
  EXPECT_EQ(Find(&pool, Tokens(12, 0)).length, 1 * kPageSize) << "its end goes before its beginning";
  ASSERT_TRUE(pool.Write(20, 24, &table, &copies));
  EXPECT_FALSE(pool.Write(24, 25, &table, &copies));
}

TEST(PagePool, CopiesOnWrite) {
  PagePool pool({{.num_pages = 8, .page_size = kPageSize}}, true);
  const std::vector<int32_t> tokens = Tokens(6, 0);
  PageTable parent = Computed(&pool, tokens);
  PageTable child = pool.Fork(parent);
  EXPECT_EQ(child.pages(), parent.pages());
  const std::vector<int32_t> before = PagesOf(parent);
  std::vector<PageCopy> copies;
  ASSERT_TRUE(pool.Write(6, 7, &child, &copies));
  ASSERT_THAT(copies, SizeIs(1));
  EXPECT_EQ(copies[0].from, before[1]);
  EXPECT_EQ(copies[0].to, child.pages()[1]);
  EXPECT_EQ(PagesOf(parent), before);
  EXPECT_THAT(PagesOf(child), ElementsAre(before[0], copies[0].to));
  ASSERT_TRUE(pool.Write(6, 7, &parent, &copies));
  EXPECT_THAT(copies, SizeIs(1)) << "the page is its own now";
  PageTable at_the_border = pool.Fork(Computed(&pool, Tokens(8, 50)));
  ASSERT_TRUE(pool.Write(8, 9, &at_the_border, &copies));
  EXPECT_THAT(copies, SizeIs(1)) << "nothing is in the new page";
  PageTable full = pool.Fork(parent);
  PageTable rest(&pool);
  ASSERT_TRUE(pool.Write(0, pool.num_available() * kPageSize, &rest, &copies));
  EXPECT_FALSE(pool.Write(7, 8, &full, &copies)) << "no page is left for the copy";
  EXPECT_EQ(full.pages(), parent.pages());
}

TEST(PagePool, RollsBackIntoAPublishedPage) {
  PagePool pool({{.num_pages = 8, .page_size = kPageSize}}, true);
  std::vector<int32_t> tokens = Tokens(12, 0);
  PageTable table = Computed(&pool, tokens);
  pool.Rollback(6, &table);
  EXPECT_THAT(table.pages(), SizeIs(2));
  EXPECT_EQ(pool.num_cached(), 1) << "what is behind may serve others";
  EXPECT_EQ(Find(&pool, tokens).length, 2 * kPageSize);
  std::vector<PageCopy> copies;
  ASSERT_TRUE(pool.Write(6, 8, &table, &copies));
  EXPECT_THAT(copies, IsEmpty());
  EXPECT_EQ(Find(&pool, tokens).length, 1 * kPageSize) << "other tokens come into the second page";
  tokens[6] = 77;
  pool.Publish(tokens, 8, &table);
  EXPECT_EQ(Find(&pool, tokens).length, 2 * kPageSize);
  EXPECT_EQ(Find(&pool, Tokens(12, 0)).length, 1 * kPageSize);
}

// Tokens see 8 positions up to their own.
TEST(PagePool, DropsWhatAWindowHasLeft) {
  PagePool pool({{.num_pages = 8, .page_size = kPageSize, .window = 8}}, true);
  PageTable table = Computed(&pool, Tokens(14, 0));
  const std::vector<int32_t> before = PagesOf(table);
  pool.DropUnseen(14, &table);
  EXPECT_EQ(pool.num_available(), 5);
  EXPECT_THAT(PagesOf(table), ElementsAre(0, before[1], before[2], before[3]));
  EXPECT_TRUE(pool.Holds(11, table));
  EXPECT_FALSE(pool.Holds(10, table)) << "it would see the first page";
  pool.DropUnseen(12, &table);
  pool.DropUnseen(15, &table);
  EXPECT_EQ(pool.num_available(), 6);
  EXPECT_EQ(Find(&pool, Tokens(14, 0)).length, 3 * kPageSize) << "until they are evicted";
  pool.Release(&table);
  EXPECT_EQ(pool.num_available(), 8);
}

// Of a prefix a pool with a window needs what the next token sees; the others need all of it.
TEST(PagePool, FindsPrefixesThatEveryPoolHolds) {
  PagePool pool({{.num_pages = 8, .page_size = kPageSize}, {.num_pages = 5, .page_size = kPageSize, .window = 5}},
                true);
  PageTable table = Computed(&pool, Tokens(20, 0));
  const std::vector<int32_t> windowed = {table.pages(1).begin(), table.pages(1).end()};
  pool.DropUnseen(20, &table);
  EXPECT_EQ(pool.num_available(0), 3);
  EXPECT_EQ(pool.num_available(1), 4) << "the last page holds what is seen";
  std::vector<PageCopy> copies;
  PageTable other(&pool);
  ASSERT_TRUE(pool.Write(0, 8, &other, &copies)) << "evicts the first two pages of the window's pool";
  EXPECT_EQ(Find(&pool, Tokens(21, 0)).length, 5 * kPageSize);
  EXPECT_EQ(Find(&pool, Tokens(17, 0)).length, 4 * kPageSize);
  EXPECT_EQ(Find(&pool, Tokens(13, 0)).length, 3 * kPageSize);
  EXPECT_EQ(Find(&pool, Tokens(9, 0)).length, 0) << "no longer in the window's pool";
  PageTable same(&pool);
  pool.TakePrefix(pool.FindPrefix(Tokens(17, 0), &same), &same);
  EXPECT_EQ(same.pages(0), table.pages(0).subspan(0, 4));
  EXPECT_THAT(same.pages(1), ElementsAre(0, 0, 0, windowed[3]));
  EXPECT_EQ(pool.num_in_use(), 5 + 1 + 2 * 2 + 1);
}

TEST(PagePool, ReservesWhereThereIsNoWindow) {
  PagePool pool({{.num_pages = 8, .page_size = kPageSize}, {.num_pages = 2, .page_size = kPageSize, .window = 5}},
                true);
  PageTable table(&pool);
  EXPECT_FALSE(pool.Reserve(33, &table));
  EXPECT_TRUE(table.empty());
  ASSERT_TRUE(pool.Reserve(30, &table));
  EXPECT_THAT(table.pages(0), SizeIs(8));
  EXPECT_THAT(table.pages(1), IsEmpty());
  std::vector<PageCopy> copies;
  EXPECT_FALSE(pool.Write(0, 9, &table, &copies));
  for (int64_t begin = 0; begin < 30; begin += 4) {
    ASSERT_TRUE(pool.Write(begin, begin + 4, &table, &copies)) << begin;
    pool.DropUnseen(begin + 4, &table);
  }
  EXPECT_EQ(pool.num_available(1), 1);
}

TEST(PagePool, ForgetsContents) {
  PagePool pool({{.num_pages = 8, .page_size = kPageSize}}, true);
  const PageTable kept = Computed(&pool, Tokens(8, 0));
  Computed(&pool, Tokens(8, 50));
  pool.ForgetContents();
  EXPECT_EQ(pool.num_cached(), 0);
  EXPECT_EQ(pool.num_available(), 6);
  EXPECT_EQ(Find(&pool, Tokens(9, 0)).length, 0);
  EXPECT_EQ(Find(&pool, Tokens(9, 50)).length, 0);
}

std::vector<PoolLimits> RandomPools(uint32_t seed) {
  const int64_t sizes[] = {kPageSize, 8, 2}, size = sizes[seed % 5 % 3];
  std::vector<PoolLimits> pools = {{.num_pages = 4 + seed % 30, .page_size = kPageSize}};
  if (seed % 3 > 0) pools.push_back({.num_pages = 4 + seed % 13, .page_size = size, .window = 1 + seed % 11});
  if (seed % 6 == 5) std::swap(pools[0], pools[1]);
  return pools;
}

// The pools beside a memory that steps write and copy, and plain lists of what each sequence has computed. Steps are
// collected late and some fail.
class Reference {
 public:
  explicit Reference(uint32_t seed) : random_(seed), pool_(RandomPools(seed), seed % 7 != 0) { Clear(); }

  void Run(int operations) {
    for (int i = 0; i < operations && !testing::Test::HasFailure(); ++i) {
      switch (Pick(8)) {
        case 0:
          Begin();
          break;
        case 1:
          Fork();
          break;
        case 2:
          Rollback();
          break;
        case 3:
          End();
          break;
        case 4:
          Collect();
          break;
        case 5:
          if (Pick(40) == 0) Forget();
          break;
        default:
          Compute();
      }
      while (flights_.size() > 3) Collect();
      Check();
    }
    while (!flights_.empty()) Collect();
    sequences_.clear();
    EXPECT_EQ(pool_.num_in_use(), 0) << "a leak";
  }

  int64_t hits = 0, copies = 0;
  int64_t evictions() const { return pool_.num_evictions(); }

 private:
  struct Sequence {
    PageTable pages;
    std::vector<int32_t> tokens;  // that are computed
    bool is_broken = false;       // a step of it failed
  };
  // Of one sequence.
  struct Flight {
    int64_t sequence = 0;
    std::vector<int32_t> tokens;  // up to its end
    bool fails = false;
  };
  using Slot = std::pair<int64_t, int32_t>;  // position and token

  void Clear() {
    memory_.clear();
    for (size_t i = 0; i < pool_.num_pools(); ++i) {
      memory_.emplace_back(pool_.num_pages(i) * pool_.page_size(i), Slot(-1, -1));
    }
  }

  size_t Pick(size_t count) { return random_() % count; }

  Sequence* PickOne(bool in_flight_too) {
    std::vector<Sequence*> some;
    for (auto& [id, sequence] : sequences_) {
      if (sequence.is_broken || (!in_flight_too && IsInFlight(id))) continue;
      some.push_back(&sequence);
      picked_ = id;
      if (Pick(2) == 0) break;
    }
    return some.empty() ? nullptr : some.back();
  }
  bool IsInFlight(int64_t id) const {
    return std::any_of(flights_.begin(), flights_.end(), [&](const Flight& f) { return f.sequence == id; });
  }

  // Few tokens, so that many sequences begin alike.
  std::vector<int32_t> Continue(std::vector<int32_t> tokens, int64_t count) {
    for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(Pick(tokens.size() % 5 == 0 ? 2 : 1)));
    return tokens;
  }

  void Begin() {
    if (sequences_.size() > 5) End();
    const std::vector<int32_t> prompt = Continue({}, 1 + Pick(20));
    PageTable table(&pool_);
    const CachedPrefix prefix = pool_.FindPrefix(prompt, &table);
    const int64_t found = prefix.length;
    ASSERT_LT(found, static_cast<int64_t>(prompt.size()));
    pool_.TakePrefix(prefix, &table);
    hits += prefix.length / kPageSize;
    Sequence sequence{std::move(table), {prompt.begin(), prompt.begin() + found}};
    if (Step(next_, &sequence, prompt)) sequences_.emplace(next_++, std::move(sequence));
  }

  void Compute() {
    Sequence* s = PickOne(true);
    if (s != nullptr && !Step(picked_, s, Continue(s->tokens, 1 + Pick(6)))) End();
  }

  // Computes the sequence up to the end of `tokens`. False: there are too few pages.
  bool Step(int64_t id, Sequence* s, const std::vector<int32_t>& tokens) {
    const auto begin = static_cast<int64_t>(s->tokens.size()), end = static_cast<int64_t>(tokens.size());
    std::vector<PageCopy> to_copy;
    const std::vector<std::vector<int32_t>> before = AllPagesOf(s->pages);
    const int64_t in_use = pool_.num_in_use();
    if (!pool_.Write(begin, end, &s->pages, &to_copy)) {
      EXPECT_EQ(AllPagesOf(s->pages), before);
      EXPECT_EQ(pool_.num_in_use(), in_use);
      bool lacks = false;
      for (size_t i = 0; i < pool_.num_pools(); ++i) {
        const int64_t size = pool_.page_size(i);
        lacks = lacks || pool_.num_available(i) < PagesFor(end, size) - begin / size;
      }
      EXPECT_TRUE(lacks) << "there were enough";
      return false;
    }
    pool_.Announce(tokens, end, &s->pages);
    copies += static_cast<int64_t>(to_copy.size());
    for (const PageCopy& copy : to_copy) {
      std::vector<Slot>& memory = memory_[copy.pool];
      const int64_t size = pool_.page_size(copy.pool);
      std::copy_n(memory.begin() + copy.from * size, size, memory.begin() + copy.to * size);
    }
    const bool fails = Pick(15) == 0;
    for (size_t i = 0; i < pool_.num_pools(); ++i) {
      const int64_t size = pool_.page_size(i);
      for (int64_t p = begin; p < end; ++p) {
        const int32_t page = s->pages.pages(i)[p / size];
        EXPECT_EQ(pool_.owners(page, i), 1) << "two may write to page " << page;
        memory_[i][page * size + p % size] = {p, fails ? -7 : tokens[p]};
      }
    }
    s->tokens = tokens;
    s->is_broken = fails;
    flights_.push_back({id, tokens, fails});
    return true;
  }

  void Collect() {
    if (flights_.empty()) return;
    const Flight flight = flights_.front();
    flights_.erase(flights_.begin());
    const auto it = sequences_.find(flight.sequence);
    if (it == sequences_.end()) return;
    if (flight.fails) {
      sequences_.erase(it);
    } else {
      const auto length = static_cast<int64_t>(flight.tokens.size());
      pool_.Publish(flight.tokens, length, &it->second.pages);
      pool_.DropUnseen(length, &it->second.pages);
    }
  }

  void Fork() {
    Sequence* s = PickOne(false);
    if (s == nullptr || sequences_.size() > 12) return;
    sequences_.emplace(next_++, Sequence{pool_.Fork(s->pages), s->tokens});
  }

  void Rollback() {
    Sequence* s = PickOne(false);
    if (s == nullptr || s->tokens.empty()) return;
    const size_t length = 1 + Pick(s->tokens.size());
    if (!pool_.Holds(static_cast<int64_t>(length), s->pages)) return;
    s->tokens.resize(length);
    pool_.Rollback(static_cast<int64_t>(s->tokens.size()), &s->pages);
  }

  void End() {
    if (!sequences_.empty()) sequences_.erase(std::next(sequences_.begin(), Pick(sequences_.size())));
  }

  void Forget() {
    if (!sequences_.empty() || !flights_.empty()) return;
    pool_.ForgetContents();
    Clear();
  }

  // Every sequence finds in its pages those of its own tokens that the next one sees; owners are the tables that hold a
  // page.
  void Check() {
    for (size_t i = 0; i < pool_.num_pools(); ++i) CheckPool(i);
    EXPECT_LE(pool_.num_cached() + pool_.num_in_use(), NumPages());
  }
  int64_t NumPages() const {
    int64_t sum = 0;
    for (size_t i = 0; i < pool_.num_pools(); ++i) sum += pool_.num_pages(i);
    return sum;
  }
  void CheckPool(size_t pool) {
    std::map<int32_t, int64_t> owners;
    for (const auto& [id, s] : sequences_) {
      const absl::Span<const int32_t> pages = s.pages.pages(pool);
      for (auto i = s.pages.num_dropped(pool); i < static_cast<int64_t>(pages.size()); ++i) ++owners[pages[i]];
      const int64_t page_size = pool_.page_size(pool);
      EXPECT_GE(static_cast<int64_t>(pages.size()), PagesFor(s.tokens.size(), page_size));
      const int64_t window = pool_.window(pool), size = static_cast<int64_t>(s.tokens.size());
      const int64_t seen = window == 0 ? 0 : std::max<int64_t>(0, size - window + 1);
      for (int64_t p = seen; p < size && !s.is_broken; ++p) {
        const Slot& slot = memory_[pool][pages[p / page_size] * page_size + p % page_size];
        ASSERT_EQ(slot, Slot(p, s.tokens[p])) << "sequence " << id;
      }
    }
    for (int32_t page = 0; page < pool_.num_pages(pool); ++page) {
      ASSERT_EQ(pool_.owners(page, pool), owners[page]) << page;
    }
    const auto in_use = std::count_if(owners.begin(), owners.end(), [](const auto& entry) { return entry.second > 0; });
    EXPECT_EQ(pool_.num_available(pool), pool_.num_pages(pool) - in_use);
  }

  std::mt19937 random_;
  PagePool pool_;
  std::vector<std::vector<Slot>> memory_;  // by pool
  std::map<int64_t, Sequence> sequences_;
  std::vector<Flight> flights_;  // oldest first
  int64_t next_ = 0, picked_ = 0;
};

TEST(PagePool, DoesWhatAReferenceDoes) {
  int64_t hits = 0, copies = 0, evictions = 0;
  for (uint32_t seed = 0; seed < 60 && !HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Reference reference(seed);
    reference.Run(600);
    hits += reference.hits;
    copies += reference.copies;
    evictions += reference.evictions();
  }
  EXPECT_GT(hits, 1000);
  EXPECT_GT(copies, 500);
  EXPECT_GT(evictions, 1000);
}

}  // namespace
}  // namespace llmc
