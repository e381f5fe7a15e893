#include "runtime/device/device_choice.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace llmc {

absl::StatusOr<DeviceChoice> ParseDevice(absl::string_view text) {
  constexpr size_t kMostDigits = 4;
  if (text == "host") return DeviceChoice{};
  if (text == "cuda") return DeviceChoice{.is_gpu = true};
  absl::string_view digits = text;
  DeviceChoice choice{.is_gpu = true};
  if (absl::ConsumePrefix(&digits, "cuda:") && digits.size() <= kMostDigits &&
      std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return absl::ascii_isdigit(c); }) &&
      absl::SimpleAtoi(digits, &choice.index)) {
    return choice;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("device \"", text, "\" is not \"host\", \"cuda\" (the first GPU) or \"cuda:N\" (GPU number N)"));
}

absl::Status CheckMemoryFraction(double fraction) {
  if (fraction > 0 && fraction <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the memory fraction is ", fraction, ", must be above 0 and at most 1"));
}

}  // namespace llmc
