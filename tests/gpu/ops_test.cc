// Every op on a GPU against the evaluator.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/gpu/device_check.h"
#include "tests/gpu/op_cases.h"

namespace llmc {
namespace {

// A test's parameter is the place of its case among all.
class OpsOnDevice : public ::testing::TestWithParam<int> {};

const std::vector<OpCase>& Listed() {
  static const auto& cases = *new std::vector<OpCase>(OpCasesWithoutInputs());
  return cases;
}

TEST_P(OpsOnDevice, GiveTheNumbersOfTheEvaluator) {
  LLMC_NEEDS_GPU();
  static const auto& cases = *new std::vector<OpCase>(OpCases());
  const size_t at = static_cast<size_t>(GetParam());
  ASSERT_EQ(cases[at].device_case.text, Listed()[at].device_case.text);
  ExpectDeviceAgrees(cases[at].device_case);
}

std::string NameOf(const ::testing::TestParamInfo<int>& info) {
  std::string name;
  for (const char c : Listed()[static_cast<size_t>(info.param)].name) name.push_back(c == ' ' ? '_' : c);
  return name;
}

INSTANTIATE_TEST_SUITE_P(Every, OpsOnDevice, ::testing::Range(0, static_cast<int>(Listed().size())), NameOf);

}  // namespace
}  // namespace llmc
