// GGUF files that tests write.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace llmc {

// The bytes of a file, written value by value.
class GgufBytes {
 public:
  template <class T>
  GgufBytes& Put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  GgufBytes& Text(absl::string_view text) {
    Put<uint64_t>(text.size());
    bytes_.append(text.data(), text.size());
    return *this;
  }
  GgufBytes& Header(uint64_t tensors, uint64_t entries, uint32_t version = 3) {
    bytes_ = "GGUF";
    return Put(version).Put(tensors).Put(entries);
  }
  GgufBytes& Info(absl::string_view name, std::vector<uint64_t> dims, uint32_t type, uint64_t offset) {
    Text(name).Put<uint32_t>(dims.size());
    for (uint64_t dim : dims) Put(dim);
    return Put(type).Put(offset);
  }
  GgufBytes& Data(size_t size) {
    bytes_.resize((bytes_.size() + 31) / 32 * 32 + size, 1);
    return *this;
  }
  const std::string& str() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace llmc
