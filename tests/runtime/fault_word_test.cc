// What a kernel tells becomes an error, once.
#include "runtime/fault_word.h"

#include <gtest/gtest.h>

namespace llmc {
namespace {

TEST(FaultWord, IsOneErrorAndThenFree) {
  plan::Manifest manifest;
  plan::Fault* fault = manifest.add_faults();
  fault->set_what("div: division of an integer by zero");
  fault->set_label("%c = div %a, %b");
  fault = manifest.add_faults();
  fault->set_what("gather: index $0 is not in an axis of $1");
  fault->set_label("%d = gather %x, %c");
  FaultWord word;
  EXPECT_TRUE(TakeFault(manifest, &word).ok());
  word = {.claimed = 1, .number = 2, .values = {-7, 5}};
  const absl::Status status = TakeFault(manifest, &word);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message(), "gather: index -7 is not in an axis of 5\n  at: %d = gather %x, %c");
  EXPECT_EQ(word.claimed, 0u) << "the next one may tell";
  EXPECT_TRUE(TakeFault(manifest, &word).ok());
  word.number = 1;
  EXPECT_EQ(TakeFault(manifest, &word).message(), "div: division of an integer by zero\n  at: %c = div %a, %b");
  word.number = 3;
  EXPECT_TRUE(absl::IsInternal(TakeFault(manifest, &word))) << "a number that the plan does not have";
}

}  // namespace
}  // namespace llmc
