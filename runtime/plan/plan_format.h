// The layout of a plan file, shared by its writer and its reader. All numbers are little-endian.
//
//   header      64 bytes: magic[8], u32 version, u32 sections, u64 file bytes, u64 zero,
//               SHA-256 of the 32 bytes before it and the section table
//   table       64 bytes for each section: u32 kind, u32 zero, u64 offset, u64 bytes, u64 zero, SHA-256 of the section
//               (of the weights: the digest of PiecewiseHash, of checksums)
//   sections    each at the next multiple of 4096, in the order of the table; zeros between; the file ends at a
//   multiple
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "files/sha256.h"

namespace llmc::plan {

inline constexpr char kMagic[] = "LLMCPLAN";
inline constexpr uint32_t kVersion = 12;
inline constexpr size_t kHeaderBytes = 64;
inline constexpr size_t kEntryBytes = 64;
inline constexpr size_t kDigestOffset = 32;  // in the header and in an entry
inline constexpr uint64_t kPage = 4096;
inline constexpr uint64_t kWeightAlignment = 256;  // of a weight in its section

enum class Section : uint32_t {
  kManifest = 1,
  kIrText,
  kLedger,
  kTokenizer,  // plan::TokenizerFiles
  kTokenizerConfig,
  kChatTemplate,
  kGenerationConfig,
  kConfigJson,
  kPlanText,
  kLowering,  // plan::Lowering
  kSources,   // of kernels, and what they include
  kCubins,
  kWeights,
};
inline constexpr uint32_t kNumSections = 13;
absl::string_view SectionName(Section section);

// `value` must be so small that the result does not overflow.
constexpr uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

using ::llmc::Digest;
using ::llmc::HashBytes;
using ::llmc::Sha256;

// Large contents are checked in pieces of kPieceBytes, the last one shorter, on all cores: the digest is the SHA-256 of
// the digests of the pieces.
inline constexpr size_t kPieceBytes = size_t{4} << 20;

enum class PieceDigest : uint8_t {
  // For weights in the plan, beside their digest: finds damage, at the speed of memory. Who wants to deceive can change
  // the digest too. SHA-256 of the piece's length, of four words, each made of every fourth word of the piece such that
  // no change of one word can go unnoticed, and of the rest after the last four words.
  kChecksum,
  // SHA-256, for other files, which the plan says what to find in: nobody can make another one that passes.
  kSha256,
};

class PieceHash {
 public:
  explicit PieceHash(PieceDigest kind) : kind_(kind) {}
  void Update(const void* data, size_t bytes);
  Digest Finish();  // and begins the next piece

 private:
  static constexpr size_t kBlock = 32;
  static constexpr std::array<uint64_t, 4> kStart = {1, 2, 3, 4};
  void Mix(const char* data, size_t blocks);

  PieceDigest kind_;
  std::optional<Sha256> sha_;
  std::array<uint64_t, 4> words_ = kStart;
  std::array<char, kBlock> rest_;
  size_t rest_bytes_ = 0;
  uint64_t bytes_ = 0;
};

class PiecewiseHash {
 public:
  explicit PiecewiseHash(PieceDigest kind) : piece_(kind) {}
  void Update(const void* data, size_t bytes);
  Digest Finish();  // once

 private:
  void FinishPiece();

  PieceHash piece_;
  size_t piece_bytes_ = 0;
  std::vector<Digest> digests_;
};
Digest CombinePieces(absl::Span<const Digest> digests);
// The same digest, computed on all cores.
Digest HashPieces(absl::string_view bytes, PieceDigest kind);

// Whether a path in a plan stays in the plan's folder: relative, no "..", no NUL.
bool IsContainedPath(absl::string_view path);

}  // namespace llmc::plan
