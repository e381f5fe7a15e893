// Any bytes as a GGUF file: an error that names the file, or a model that verifies and whose text reads back; a
// tokenizer or an error.
#include "frontend/import.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string& path = llmc::FuzzFile("model.gguf", data, size);
  (void)llmc::GgufSideFiles(path);
  const auto model = llmc::ImportGguf(path);
  if (!model.ok()) {
    if (model.status().message().find("model.gguf") == absl::string_view::npos) std::abort();
    return 0;
  }
  if (!llmc::Verify(**model, llmc::Phase::kImported).ok()) std::abort();
  const std::string text = llmc::PrintModel(**model);
  const auto again = llmc::ParseModel(text, "printed");
  if (!again.ok() || llmc::PrintModel(**again) != text) std::abort();
  return 0;
}
