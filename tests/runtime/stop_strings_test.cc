#include "runtime/engine/stop_strings.h"

#include <gtest/gtest.h>

namespace llmc {
namespace {

// What a text shows when it comes in pieces of `size` bytes.
std::string Shown(const std::vector<std::string>& stops, const std::string& text, size_t size) {
  StopStrings strings(stops);
  std::string shown;
  for (size_t i = 0; i < text.size(); i += size) shown += strings.Push(text.substr(i, size));
  return shown + strings.Finish();
}

TEST(StopStrings, EndTheTextHoweverItIsCut) {
  struct Case {
    std::vector<std::string> stops;
    std::string text, shown;
  };
  for (const Case& c : std::vector<Case>{{{"END"}, "one END two", "one "},
                                         {{"END"}, "one EN two E", "one EN two E"},
                                         {{"aab"}, "aaaab", "aa"},
                                         {{"abcd", "c"}, "xabcdx", "xab"},
                                         {{"bc", "abc"}, "xabc", "x"},
                                         {{"abc", "bc"}, "xabc", "x"},
                                         {{"\n\n"}, "a\nb\n\nc", "a\nb"},
                                         {{}, "plain", "plain"}}) {
    for (size_t size = 1; size <= c.text.size(); ++size) EXPECT_EQ(Shown(c.stops, c.text, size), c.shown) << size;
  }
}

TEST(StopStrings, HoldBackOnlyWhatMayBecomeOne) {
  StopStrings strings({"stop here"});
  EXPECT_EQ(strings.Push("please st"), "please ");
  EXPECT_EQ(strings.Push("op"), "");
  EXPECT_EQ(strings.Push(" there"), "stop there");
  EXPECT_FALSE(strings.found());
  EXPECT_EQ(strings.Push(" stop"), " ");
  EXPECT_EQ(strings.Finish(), "stop");
}

}  // namespace
}  // namespace llmc
