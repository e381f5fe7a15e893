#include "runtime/device/device_error.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace llmc {

absl::Status TakeDeviceError(const plan::Manifest& manifest, volatile DeviceErrorRecord* record) {
  const uint32_t number = record->number;
  if (number == 0) return absl::OkStatus();
  const std::string a = absl::StrCat(int64_t{record->values[0]}), b = absl::StrCat(int64_t{record->values[1]});
  record->number = 0;
  record->claimed = 0;
  if (number > static_cast<uint32_t>(manifest.device_errors_size())) {
    return absl::InternalError(
        absl::StrCat("the device gave the error ", number, ", which the plan does not know: it is damaged"));
  }
  const plan::DeviceError& device_error = manifest.device_errors(static_cast<int>(number) - 1);
  return absl::InvalidArgumentError(
      absl::StrCat(absl::StrReplaceAll(device_error.what(), {{"$0", a}, {"$1", b}}), "\n  at: ", device_error.label()));
}

}  // namespace llmc
