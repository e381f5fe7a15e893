#include "runtime/kv_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace llmc {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(KvPages, AllocatesAllOrNothing) {
  KvPages pages(3);
  std::vector<int32_t> a, b;
  EXPECT_TRUE(pages.Allocate(2, &a));
  EXPECT_FALSE(pages.Allocate(2, &b));
  EXPECT_THAT(b, IsEmpty());
  EXPECT_EQ(pages.num_free(), 1);
  EXPECT_TRUE(pages.Allocate(1, &b));
  EXPECT_FALSE(pages.Allocate(1, &b));
  EXPECT_FALSE(pages.Allocate(-1, &b));
  EXPECT_THAT(std::set<int32_t>({a[0], a[1], b[0]}), SizeIs(3));
}

TEST(KvPages, RefusesWrongFreesAndChangesNothing) {
  KvPages pages(4);
  std::vector<int32_t> a;
  ASSERT_TRUE(pages.Allocate(2, &a));
  for (const std::vector<int32_t>& wrong : {std::vector<int32_t>{a[0], a[0]}, {a[0], 3}, {a[0], 4}, {a[0], -1}}) {
    EXPECT_EQ(pages.Free(wrong).code(), absl::StatusCode::kInternal);
    EXPECT_EQ(pages.num_free(), 2);
  }
  EXPECT_TRUE(pages.Free(a).ok());
  EXPECT_EQ(pages.num_free(), 4);
  EXPECT_FALSE(pages.Free(a).ok());
}

TEST(KvPages, NeverGivesAPageTwice) {
  std::mt19937 random(1);
  KvPages pages(37);
  std::vector<std::vector<int32_t>> owned;
  for (int i = 0; i < 2000; ++i) {
    if (random() % 2 == 0 || owned.empty()) {
      std::vector<int32_t> more;
      if (pages.Allocate(random() % 6, &more)) owned.push_back(more);
    } else {
      std::swap(owned[random() % owned.size()], owned.back());
      ASSERT_TRUE(pages.Free(owned.back()).ok());
      owned.pop_back();
    }
    std::set<int32_t> all;
    size_t count = 0;
    for (const auto& list : owned) {
      all.insert(list.begin(), list.end());
      count += list.size();
    }
    ASSERT_EQ(all.size(), count);
    ASSERT_EQ(pages.num_free(), 37 - static_cast<int64_t>(count));
  }
}

}  // namespace
}  // namespace llmc
