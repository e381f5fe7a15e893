#include "files/random_source.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "files/path_check.h"
#include "kernels/layout/random_numbers.h"

namespace llmc {
namespace {

// What stands before `end` in `text`, which goes on after it.
absl::string_view Take(absl::string_view end, absl::string_view* text) {
  const size_t at = text->find(end);
  if (at == absl::string_view::npos) return {};
  const absl::string_view part = text->substr(0, at);
  text->remove_prefix(at + end.size());
  return part;
}

}  // namespace

std::string RandomSource(const RandomNumbers& numbers, absl::string_view tensor) {
  if (numbers.bits) return WeightSource(absl::StrCat("random(seed=", numbers.seed, ", bits)"), tensor);
  return WeightSource(
      absl::StrCat("random(seed=", numbers.seed, ", mean=", numbers.mean, ", width=", numbers.width, ")"), tensor);
}

std::optional<RandomNumbers> ParseRandomSource(absl::string_view source) {
  RandomNumbers numbers;
  if (!absl::ConsumePrefix(&source, "random(seed=")) return std::nullopt;
  if (absl::string_view rest = source; absl::SimpleAtoi(Take(", bits)#", &rest), &numbers.seed)) {
    numbers.bits = true;
    return numbers;
  }
  if (!absl::SimpleAtoi(Take(", mean=", &source), &numbers.seed)) return std::nullopt;
  if (!absl::SimpleAtod(Take(", width=", &source), &numbers.mean)) return std::nullopt;
  if (!absl::SimpleAtod(Take(")#", &source), &numbers.width)) return std::nullopt;
  if (!std::isfinite(numbers.mean) || !std::isfinite(numbers.width)) return std::nullopt;
  return numbers;
}

uint64_t RandomKey(absl::string_view source) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : source) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return RandomBits(hash, 0) >> 1;
}

}  // namespace llmc
