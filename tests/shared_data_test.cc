// Missing test data is an error where it is required.
#include "tests/shared_data.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace llmc {
namespace {

TEST(SharedData, IsAnErrorWhereItIsRequired) {
  setenv("LLMC_SHARED_DATA", "no-such-folder", 1);
  setenv("LLMC_REQUIRE_DATA", "0", 1);
  EXPECT_EQ(SharedData("tiny-models"), "");
  setenv("LLMC_REQUIRE_DATA", "1", 1);
  EXPECT_NONFATAL_FAILURE(SharedData("tiny-models"), "has no tiny-models");
  setenv("LLMC_SHARED_DATA", LLMC_TEST_DATA, 1);
  EXPECT_EQ(SharedData("tale-7m"), LLMC_TEST_DATA "/tale-7m");
}

}  // namespace
}  // namespace llmc
