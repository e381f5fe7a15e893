// Logits of a text whose keys and values came into the cache in different ways.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "runtime/engine/executor.h"

namespace llmc {

// A text of an executor with one pool, by chunks of our own choice.
class CachedTokens {
 public:
  CachedTokens(Executor* executor, std::vector<int32_t> text)
      : executor_(executor), text_(std::move(text)), page_size_(executor->limits().pools[0].page_size) {}

  // `tolerance`: of logits. Texts of more than three pages.
  void ExpectSameHoweverCached(float tolerance) {
    ASSERT_GT(size(), 3 * page_size_);
    const std::vector<int32_t> pages = NewPages();
    const std::vector<float> whole = Add(1, true, pages, 0, text_);
    const auto expect_same = [&](const std::vector<float>& logits, const char* how) {
      ASSERT_EQ(logits.size(), whole.size()) << how;
      float most = 0;
      for (size_t i = 0; i < whole.size(); ++i) most = std::max(most, std::abs(logits[i] - whole[i]));
      EXPECT_LE(most, tolerance) << how;
    };
    expect_same(InChunks(), "several chunks");
    expect_same(AfterPrefix(pages), "after pages of another sequence");
    expect_same(AfterCopiedPage(pages), "after a copy of a page");
    expect_same(RolledBack(), "over tokens that were taken back");
    executor_->EndSequence(1);
    // Another text has other logits, or nothing above could fail.
    std::vector<int32_t> other = text_;
    std::reverse(other.begin(), other.end() - 1);
    const std::vector<float> others = Add(9, true, NewPages(), 0, other);
    float most = 0;
    for (size_t i = 0; i < whole.size(); ++i) most = std::max(most, std::abs(others[i] - whole[i]));
    EXPECT_GT(most, 4 * tolerance);
    executor_->EndSequence(9);
  }

 private:
  int64_t size() const { return static_cast<int64_t>(text_.size()); }

  std::vector<int32_t> NewPages() {
    std::vector<int32_t> pages(static_cast<size_t>((size() + page_size_ - 1) / page_size_));
    std::iota(pages.begin(), pages.end(), next_page_);
    next_page_ += static_cast<int32_t>(pages.size());
    EXPECT_LE(next_page_, executor_->limits().pools[0].num_pages);
    std::reverse(pages.begin(), pages.end());
    return pages;
  }

  // The logits after `ids`, from position `begin` on.
  std::vector<float> Add(int64_t sequence, bool begins, const std::vector<int32_t>& pages, int64_t begin,
                         const std::vector<int32_t>& ids, std::vector<PageCopy> copies = {}) {
    StepInput step = {.copies = std::move(copies)};
    step.chunks.push_back({.sequence = sequence,
                           .begins = begins,
                           .ids = ids,
                           .position = begin,
                           .pages = {pages},
                           .logits = WantedLogits::kLast});
    const auto result = executor_->RunStep(step);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->logits.values : std::vector<float>();
  }
  std::vector<int32_t> Part(int64_t begin, int64_t end) const { return {text_.begin() + begin, text_.begin() + end}; }

  // Of one token, of few, of many.
  std::vector<float> InChunks() {
    const std::vector<int32_t> pages = NewPages();
    std::vector<float> logits;
    int64_t begin = 0;
    for (const int64_t tokens : {int64_t{7}, int64_t{1}, int64_t{3}, page_size_ + 5, size()}) {
      const int64_t end = std::min(begin + tokens, size());
      logits = Add(2, begin == 0, pages, begin, Part(begin, end));
      begin = end;
    }
    executor_->EndSequence(2);
    return logits;
  }

  // The first two pages are another sequence's.
  std::vector<float> AfterPrefix(const std::vector<int32_t>& others) {
    std::vector<int32_t> pages = NewPages();
    std::copy(others.begin(), others.begin() + 2, pages.begin());
    std::vector<float> logits = Add(3, true, pages, 2 * page_size_, Part(2 * page_size_, size()));
    executor_->EndSequence(3);
    return logits;
  }

  // Of the second page, the first five tokens are kept.
  std::vector<float> AfterCopiedPage(const std::vector<int32_t>& others) {
    std::vector<int32_t> pages = NewPages();
    pages[0] = others[0];
    const int64_t begin = page_size_ + 5;
    std::vector<float> logits =
        Add(4, true, pages, begin, Part(begin, size()), {{.pool = 0, .from = others[1], .to = pages[1]}});
    executor_->EndSequence(4);
    return logits;
  }

  // Wrong tokens, up to the end, are written over.
  std::vector<float> RolledBack() {
    const std::vector<int32_t> pages = NewPages();
    const int64_t kept = page_size_ + 3;
    Add(5, true, pages, 0, Part(0, kept));
    std::vector<int32_t> wrong = Part(kept, size());
    std::reverse(wrong.begin(), wrong.end());
    Add(5, false, pages, kept, wrong);
    std::vector<float> logits = Add(5, true, pages, kept, Part(kept, size()));
    executor_->EndSequence(5);
    return logits;
  }

  Executor* executor_;
  std::vector<int32_t> text_;
  int64_t page_size_;
  int32_t next_page_ = 0;
};

}  // namespace llmc
