// A folder of its own for a test, removed afterwards, and the bytes of safetensors files.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace llmc {

class TestFolder {
 public:
  TestFolder() {
    std::string name = testing::TempDir() + "/llmc_XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(absl::string_view name) const { return absl::StrCat(path_, "/", name); }
  std::string Write(absl::string_view name, absl::string_view bytes) const {
    const std::string file = *this / name;
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }

 private:
  std::string path_;
};

// The 8 bytes of a length, then `header`, then `data`.
inline std::string SafetensorsBytes(absl::string_view header, absl::string_view data = "") {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(header.size() >> (8 * i) & 0xff));
  return absl::StrCat(bytes, header, data);
}

// Whether `text` is a part of the status's message, with the status for the failure's message.
inline testing::AssertionResult Says(const absl::Status& status, absl::string_view text) {
  if (!status.ok() && status.message().find(text) != absl::string_view::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "expected an error with \"" << text << "\", got " << status;
}

}  // namespace llmc
