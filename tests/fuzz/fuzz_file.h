// The bytes of a fuzzer as a file, for what reads files.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace llmc {

// A file of this process in memory, written anew each time; `name` ends as its kind does.
inline const std::string& FuzzFile(const std::string& name, const uint8_t* data, size_t size) {
  static const std::string* const path = [&] {
    std::string folder = "/dev/shm/llmc-fuzz-XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) std::abort();
    static std::string made = folder;
    std::atexit([] { std::filesystem::remove_all(made); });
    return new std::string(folder + "/" + name);
  }();
  std::ofstream(*path, std::ios::binary).write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  return *path;
}

}  // namespace llmc
