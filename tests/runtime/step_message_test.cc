#include "runtime/engine/step_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace llmc {
namespace {

using ::testing::ElementsAre;

// The words after header and draws.
std::vector<int32_t> Words(const std::vector<char>& place) {
  StepHeader header;
  std::memcpy(&header, place.data(), sizeof(header));
  const size_t begin = sizeof(header) + header.draws * sizeof(DrawRequest);
  std::vector<int32_t> words((header.words * 4 - begin) / 4);
  std::memcpy(words.data(), place.data() + begin, words.size() * 4);
  return words;
}

TEST(StepMessage, HoldsChunksOneAfterTheOther) {
  const StepSizes sizes = {.tokens = 4, .sequences = 2, .rows = 2, .draws = 1};
  std::vector<char> place(StepMessage::MaxBytes(sizes, /*pools=*/1, /*table_width=*/3));
  StepMessage message(place.data(), sizes, /*page_sizes=*/{16});
  const std::vector<int32_t> prompt = {7, 8, 9}, pages = {5, 2, 1}, other_pages = {4};
  const Sampling sampling;
  message.Add({.sequence = 1, .ids = prompt, .position = 15, .pages = {pages}, .logits = WantedLogits::kLast}, 0);
  message.Add({.sequence = 2,
               .ids = absl::MakeConstSpan(&kSampledToken, 1),
               .position = 3,
               .pages = {other_pages},
               .sampling = &sampling},
              /*id=*/-6);
  message.Add(DrawRequest{.row = 1});
  message.Pad();
  EXPECT_THAT(Words(place), ElementsAre(7, 8, 9, -6,     // ids
                                        15, 16, 17, 3,   // pos
                                        95, 32, 33, 67,  // slots
                                        18, 4,           // lens
                                        0, 3, 4,         // starts
                                        2, 3,            // rows
                                        0, 2, 3,         // first pages
                                        5, 2, 4));       // of two pages that are used, and one
}

TEST(StepMessage, PadsToTheSizeOfAGraph) {
  const StepSizes sizes = {.tokens = 3, .sequences = 3, .rows = 3, .draws = 3};
  std::vector<char> place(StepMessage::MaxBytes(sizes, /*pools=*/1, /*table_width=*/1));
  StepMessage message(place.data(), sizes, /*page_sizes=*/{4});
  const std::vector<int32_t> ids = {7}, pages = {5};
  message.Add({.ids = ids, .position = 2, .pages = {pages}, .logits = WantedLogits::kLast}, 0);
  message.Pad();
  EXPECT_THAT(Words(place),
              ElementsAre(7, 0, 0, 2, 0, 0, 22, -1, -1, 3, 1, 1, 0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 5, 0, 0));
  DrawRequest draw;
  std::memcpy(&draw, place.data() + sizeof(StepHeader), sizeof(draw));
  EXPECT_EQ(draw.result, nullptr) << "nothing is drawn";
}

// Of two pools: slots of one after those of the other, and the tables of a sequence side by side.
TEST(StepMessage, HoldsPlacesInEachPool) {
  const StepSizes sizes = {.tokens = 3, .sequences = 2, .rows = 1, .draws = 0};
  std::vector<char> place(StepMessage::MaxBytes(sizes, /*pools=*/2, /*table_width=*/2));
  StepMessage message(place.data(), sizes, /*page_sizes=*/{4, 4});
  const std::vector<int32_t> ids = {7, 8}, pages = {5, 6}, windowed = {0, 9};
  message.Add({.ids = ids, .position = 3, .pages = {pages, windowed}, .logits = WantedLogits::kLast}, 0);
  message.Pad();
  EXPECT_THAT(Words(place),
              ElementsAre(7, 8, 0, 3, 4, 0, 23, 24, -1, 3, 36, -1, 5, 1, 0, 2, 3, 1, 0, 4, 6, 5, 6, 0, 9, 0, 0));
}

// Pages of 4 tokens and of 2: the shorter table of a sequence is filled up, as the device takes both as equally long.
TEST(StepMessage, HoldsPagesOfSeveralSizes) {
  const StepSizes sizes = {.tokens = 3, .sequences = 2, .rows = 1, .draws = 0};
  for (const bool swaps : {false, true}) {
    std::vector<char> place(StepMessage::MaxBytes(sizes, /*pools=*/2, /*table_width=*/3));
    StepMessage message(place.data(), sizes, swaps ? PageSizes{2, 4} : PageSizes{4, 2});
    const std::vector<int32_t> ids = {7, 8}, large = {5, 6, 3}, small = {0, 9, 1, 2};
    PoolTables tables = {large, small};
    if (swaps) std::swap(tables[0], tables[1]);
    message.Add({.ids = ids, .position = 3, .pages = tables, .logits = WantedLogits::kLast}, 0);
    message.Pad();
    const std::vector<int32_t> words = Words(place);
    const std::vector<int32_t> slots(words.begin() + 6, words.begin() + 12), first(words.end() - 11, words.end() - 8);
    const std::vector<int32_t> pages(words.end() - 8, words.end());
    EXPECT_THAT(first, ElementsAre(0, 6, 8));
    if (swaps) {
      EXPECT_THAT(slots, ElementsAre(19, 2, -1, 23, 24, -1));
      EXPECT_THAT(pages, ElementsAre(0, 9, 1, 5, 6, 0, 0, 0));
    } else {
      EXPECT_THAT(slots, ElementsAre(23, 24, -1, 19, 2, -1));
      EXPECT_THAT(pages, ElementsAre(5, 6, 0, 0, 9, 1, 0, 0));
    }
  }
}

}  // namespace
}  // namespace llmc
