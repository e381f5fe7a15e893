// Any bytes as text of the language: an error, or a model that reads back as it is printed.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "ir/text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto model = llmc::ParseModel(std::string(reinterpret_cast<const char*>(data), size), "fuzz.lir");
  if (!model.ok()) return 0;
  const std::string text = llmc::PrintModel(**model);
  const auto again = llmc::ParseModel(text, "printed");
  if (!again.ok() || llmc::PrintModel(**again) != text) std::abort();
  return 0;
}
