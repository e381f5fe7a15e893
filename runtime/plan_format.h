// The layout of a plan file, shared by its writer and its reader. All numbers are little-endian.
//
//   header      64 bytes: magic[8], u32 version, u32 sections, u64 file bytes, u64 zero,
//               SHA-256 of the 32 bytes before it and the section table
//   table       64 bytes for each section: u32 kind, u32 zero, u64 offset, u64 bytes, u64 zero, SHA-256 of the section
//               (of the weights: the digest of PiecewiseSha256)
//   sections    each at the next multiple of 4096, in the order of the table; zeros between; the file ends at a
//   multiple
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace llmc::plan {

inline constexpr char kMagic[] = "LLMCPLAN";
inline constexpr uint32_t kVersion = 3;
inline constexpr size_t kHeaderBytes = 64;
inline constexpr size_t kEntryBytes = 64;
inline constexpr size_t kDigestOffset = 32;  // in the header and in an entry
inline constexpr uint64_t kPage = 4096;
inline constexpr uint64_t kWeightAlignment = 256;  // of a weight in its section

enum class Section : uint32_t {
  kManifest = 1,
  kIrText,
  kLedger,
  kTokenizerJson,
  kTokenizerConfig,
  kChatTemplate,
  kGenerationConfig,
  kConfigJson,
  kPlanText,
  kSources,  // of kernels
  kCubins,
  kWeights,
};
inline constexpr uint32_t kNumSections = 12;
absl::string_view SectionName(Section section);

// `value` must be so small that the result does not overflow.
constexpr uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

using Digest = std::array<uint8_t, 32>;

// SHA-256, in pieces.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void Update(const void* data, size_t bytes);
  Digest Finish();  // once

 private:
  void* context_;
};
Digest HashBytes(absl::string_view bytes);

// SHA-256 of the SHA-256s of the pieces of kPieceBytes each, the last one shorter: what large contents are checked
// by, since all cores can work on it.
inline constexpr size_t kPieceBytes = size_t{4} << 20;
class PiecewiseSha256 {
 public:
  void Update(const void* data, size_t bytes);
  Digest Finish();  // once

 private:
  void FinishPiece();

  std::optional<Sha256> piece_;
  size_t piece_bytes_ = 0;
  Sha256 all_;
};
// The same digest, computed on all cores.
Digest HashPieces(absl::string_view bytes);

// Whether a path in a plan stays in the plan's folder: relative, no "..", no NUL.
bool IsContainedPath(absl::string_view path);

}  // namespace llmc::plan
