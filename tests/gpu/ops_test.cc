// Every op on a GPU against the evaluator.
#include <gtest/gtest.h>

#include "tests/gpu/device_check.h"
#include "tests/gpu/op_cases.h"

namespace llmc {
namespace {

class OpsOnDevice : public ::testing::TestWithParam<OpCase> {};

TEST_P(OpsOnDevice, GiveTheNumbersOfTheEvaluator) {
  LLMC_NEEDS_GPU();
  ExpectDeviceAgrees(GetParam().device_case);
}

std::string NameOf(const ::testing::TestParamInfo<OpCase>& info) {
  std::string name;
  for (const char c : info.param.name) name.push_back(c == ' ' ? '_' : c);
  return name;
}

INSTANTIATE_TEST_SUITE_P(Every, OpsOnDevice, ::testing::ValuesIn(OpCases()), NameOf);

}  // namespace
}  // namespace llmc
