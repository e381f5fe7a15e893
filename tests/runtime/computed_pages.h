// Sequences that were computed, for tests of the pools that their pages are from.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "runtime/engine/page_pool.h"

namespace llmc {

inline std::vector<int32_t> Tokens(int64_t length, int32_t first) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < length; ++i) tokens.push_back(first + static_cast<int32_t>(i));
  return tokens;
}

inline std::vector<int32_t> PagesOf(const PageTable& table, size_t pool = 0) {
  return {table.pages(pool).begin(), table.pages(pool).end()};
}

// A sequence that was computed and collected.
inline PageTable Computed(PagePool* pool, const std::vector<int32_t>& tokens) {
  PageTable table(pool);
  std::vector<PageCopy> copies;
  const auto length = static_cast<int64_t>(tokens.size());
  EXPECT_TRUE(pool->Write(0, length, &table, &copies));
  EXPECT_TRUE(copies.empty());
  pool->Publish(tokens, length, &table);
  return table;
}

inline CachedPrefix Find(PagePool* pool, const std::vector<int32_t>& tokens) {
  PageTable table(pool);
  return pool->FindPrefix(tokens, &table);
}

}  // namespace llmc
