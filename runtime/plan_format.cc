#include "runtime/plan_format.h"

#include <openssl/evp.h>

#include <new>
#include <utility>

#include "absl/strings/str_split.h"

namespace llmc::plan {

absl::string_view SectionName(Section section) {
  static constexpr std::array<absl::string_view, kNumSections> kNames = {
      "manifest",      "ir text",           "ledger",      "tokenizer.json", "tokenizer_config.json",
      "chat template", "generation config", "config.json", "plan text",      "weights"};
  const uint32_t index = static_cast<uint32_t>(section) - 1;
  return index < kNumSections ? kNames[index] : "unknown";
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  if (context_ == nullptr || EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr) != 1) {
    throw std::bad_alloc();
  }
}
Sha256::~Sha256() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }
void Sha256::Update(const void* data, size_t bytes) {
  EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), data, bytes);
}
Digest Sha256::Finish() {
  Digest digest{};
  EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), digest.data(), nullptr);
  return digest;
}

Digest HashBytes(absl::string_view bytes) {
  Sha256 hash;
  hash.Update(bytes.data(), bytes.size());
  return hash.Finish();
}

int BitsOf(absl::string_view dtype) {
  static constexpr std::pair<absl::string_view, int> kTypes[] = {
      {"f64", 64}, {"f32", 32}, {"f16", 16}, {"bf16", 16}, {"f8e4m3", 8}, {"f8e5m2", 8}, {"i64", 64},
      {"i32", 32}, {"i16", 16}, {"i8", 8},   {"i4", 4},    {"u8", 8},     {"u4", 4},     {"bool", 8}};
  for (const auto& [name, bits] : kTypes) {
    if (name == dtype) return bits;
  }
  return 0;
}

bool IsContainedPath(absl::string_view path) {
  if (path.empty() || path.front() == '/' || path.find('\0') != absl::string_view::npos) return false;
  for (absl::string_view part : absl::StrSplit(path, '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

}  // namespace llmc::plan
