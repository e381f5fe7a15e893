// Times a tokenizer on one core, or prints the ids of each line, to compare with other programs (tokenizer_bench.py).
//
// usage: tokenizer_bench FOLDER TEXT [--ids]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/text/tokenizer.h"

namespace {

namespace fs = std::filesystem;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<llmc::TokenizerFile> ReadFolder(const std::string& folder) {
  std::vector<llmc::TokenizerFile> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (llmc::Tokenizer::IsTokenizerFile(name)) files.push_back({name, ReadAll(entry.path())});
  }
  return files;
}

double ProcessorSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Megabytes of text a second of the processor, the best of several runs: what else runs hardly changes it.
template <typename Run>
double Speed(size_t bytes, Run run) {
  double best = 0;
  for (int i = 0; i < 7; ++i) {
    const double start = ProcessorSeconds();
    run();
    best = std::max(best, static_cast<double>(bytes) / 1e6 / (ProcessorSeconds() - start));
  }
  return best;
}

int PrintIds(const llmc::Tokenizer& tokenizer, const std::string& text) {
  for (const auto& line : absl::StrSplit(text, '\n')) {
    const auto ids = tokenizer.Encode(line, {.add_special_tokens = false});
    if (!ids.ok()) return std::fprintf(stderr, "%s\n", ids.status().ToString().c_str()), 1;
    std::printf("%s\n", absl::StrJoin(*ids, " ").c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: tokenizer_bench FOLDER TEXT [--ids]\n"), 2;
  const auto loading = std::chrono::steady_clock::now();
  const auto tokenizer = llmc::Tokenizer::FromFiles(ReadFolder(argv[1]), std::string(argv[1]) + "/");
  if (!tokenizer.ok()) return std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str()), 1;
  const std::chrono::duration<double> load_seconds = std::chrono::steady_clock::now() - loading;
  const std::string text = ReadAll(argv[2]);
  if (argc > 3) return PrintIds(**tokenizer, text);
  std::vector<int32_t> ids;
  const double encode = Speed(text.size(), [&] {
    auto encoded = (*tokenizer)->Encode(text, {.add_special_tokens = false});
    if (encoded.ok()) ids = *std::move(encoded);
  });
  std::string decoded;
  const double decode = Speed(text.size(), [&] { decoded = (*tokenizer)->Decode(ids, /*skip_special_tokens=*/true); });
  std::printf("load %.2f s, %zu tokens, encode %.1f MB/s, decode %.1f MB/s\n", load_seconds.count(), ids.size(), encode,
              decode);
  return 0;
}
