#include "runtime/plan_format.h"

#include <openssl/evp.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"

namespace llmc::plan {

absl::string_view SectionName(Section section) {
  static constexpr std::array<absl::string_view, kNumSections> kNames = {"manifest",
                                                                         "ir text",
                                                                         "ledger",
                                                                         "tokenizer.json",
                                                                         "tokenizer_config.json",
                                                                         "chat template",
                                                                         "generation config",
                                                                         "config.json",
                                                                         "plan text",
                                                                         "sources",
                                                                         "cubins",
                                                                         "weights"};
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

void PiecewiseSha256::Update(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    if (!piece_.has_value()) piece_.emplace();
    const size_t n = std::min(bytes, kPieceBytes - piece_bytes_);
    piece_->Update(next, n);
    next += n;
    bytes -= n;
    piece_bytes_ += n;
    if (piece_bytes_ == kPieceBytes) FinishPiece();
  }
}
void PiecewiseSha256::FinishPiece() {
  const Digest digest = piece_->Finish();
  all_.Update(digest.data(), digest.size());
  piece_.reset();
  piece_bytes_ = 0;
}
Digest PiecewiseSha256::Finish() {
  if (piece_.has_value()) FinishPiece();
  return all_.Finish();
}

Digest HashPieces(absl::string_view bytes) {
  const size_t count = (bytes.size() + kPieceBytes - 1) / kPieceBytes;
  std::vector<Digest> digests(count);
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) digests[i] = HashBytes(bytes.substr(i * kPieceBytes, kPieceBytes));
  };
  std::vector<std::thread> others;
  try {
    for (size_t i = 1; i < std::min<size_t>(count, std::thread::hardware_concurrency()); ++i) others.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads: those that run do the work.
  }
  work();
  for (std::thread& thread : others) thread.join();
  Sha256 all;
  for (const Digest& digest : digests) all.Update(digest.data(), digest.size());
  return all.Finish();
}

bool IsContainedPath(absl::string_view path) {
  if (path.empty() || path.front() == '/' || path.find('\0') != absl::string_view::npos) return false;
  for (absl::string_view part : absl::StrSplit(path, '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

}  // namespace llmc::plan
