#include "runtime/plan/plan_format.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/on_all_cores.h"

namespace llmc::plan {

absl::string_view SectionName(Section section) {
  static constexpr std::array<absl::string_view, kNumSections> kNames = {"manifest",
                                                                         "ir text",
                                                                         "ledger",
                                                                         "tokenizer",
                                                                         "tokenizer_config.json",
                                                                         "chat template",
                                                                         "generation config",
                                                                         "config.json",
                                                                         "plan text",
                                                                         "lowering",
                                                                         "sources",
                                                                         "cubins",
                                                                         "weights"};
  const uint32_t index = static_cast<uint32_t>(section) - 1;
  return index < kNumSections ? kNames[index] : "unknown";
}

void PieceHash::Mix(const char* data, size_t blocks) {
  // Odd, so that multiplying loses nothing; twice, so that a change of any bit spreads over many.
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15, kOtherFactor = 0xbf58476d1ce4e5b9;
  std::array<uint64_t, 4> words = words_;
  for (size_t i = 0; i < blocks; ++i, data += kBlock) {
    std::array<uint64_t, 4> block;
    std::memcpy(block.data(), data, kBlock);
    for (size_t w = 0; w < 4; ++w) {
      const uint64_t mixed = (words[w] ^ block[w]) * kFactor;
      words[w] = (mixed ^ mixed >> 32) * kOtherFactor;
    }
  }
  words_ = words;
}

void PieceHash::Update(const void* data, size_t bytes) {
  if (kind_ == PieceDigest::kSha256) {
    if (!sha_.has_value()) sha_.emplace();
    return sha_->Update(data, bytes);
  }
  const char* next = static_cast<const char*>(data);
  bytes_ += bytes;
  if (rest_bytes_ > 0) {
    const size_t n = std::min(bytes, kBlock - rest_bytes_);
    std::memcpy(rest_.data() + rest_bytes_, next, n);
    rest_bytes_ += n;
    next += n;
    bytes -= n;
    if (rest_bytes_ < kBlock) return;
    Mix(rest_.data(), 1);
  }
  Mix(next, bytes / kBlock);
  rest_bytes_ = bytes % kBlock;
  std::memcpy(rest_.data(), next + (bytes - rest_bytes_), rest_bytes_);
}

Digest PieceHash::Finish() {
  if (kind_ == PieceDigest::kSha256) {
    const Digest digest = sha_.has_value() ? sha_->Finish() : HashBytes("");
    sha_.reset();
    return digest;
  }
  Sha256 hash;
  hash.Update(&bytes_, sizeof(bytes_));
  hash.Update(words_.data(), sizeof(words_));
  hash.Update(rest_.data(), rest_bytes_);
  words_ = kStart;
  rest_bytes_ = 0;
  bytes_ = 0;
  return hash.Finish();
}

void PiecewiseHash::Update(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const size_t n = std::min(bytes, kPieceBytes - piece_bytes_);
    piece_.Update(next, n);
    next += n;
    bytes -= n;
    piece_bytes_ += n;
    if (piece_bytes_ == kPieceBytes) FinishPiece();
  }
}
void PiecewiseHash::FinishPiece() {
  digests_.push_back(piece_.Finish());
  piece_bytes_ = 0;
}
Digest PiecewiseHash::Finish() {
  if (piece_bytes_ > 0) FinishPiece();
  return CombinePieces(digests_);
}

Digest CombinePieces(absl::Span<const Digest> digests) {
  Sha256 all;
  for (const Digest& digest : digests) all.Update(digest.data(), digest.size());
  return all.Finish();
}

Digest HashPieces(absl::string_view bytes, PieceDigest kind) {
  const size_t count = (bytes.size() + kPieceBytes - 1) / kPieceBytes;
  std::vector<Digest> digests(count);
  OnAllCores(count, [&](size_t i) {
    const absl::string_view piece = bytes.substr(i * kPieceBytes, kPieceBytes);
    PieceHash hash(kind);
    hash.Update(piece.data(), piece.size());
    digests[i] = hash.Finish();
  });
  return CombinePieces(digests);
}

bool IsContainedPath(absl::string_view path) {
  if (path.empty() || path.front() == '/' || path.find('\0') != absl::string_view::npos) return false;
  for (absl::string_view part : absl::StrSplit(path, '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

}  // namespace llmc::plan
