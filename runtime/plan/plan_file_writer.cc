#include "runtime/plan/plan_file_writer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/drop_pages.h"
#include "files/mapped_file.h"

namespace llmc::plan {
namespace {

// Of maps, read at once and dropped behind it.
constexpr size_t kPart = size_t{64} << 20;

}  // namespace

absl::StatusOr<Digest> HashFile(const std::string& path, bool in_pieces) {
  const absl::StatusOr<MappedFile> file = MapFile(path);
  if (!file.ok()) return absl::NotFoundError(absl::StrCat(path, ": cannot be read: ", file.status().message()));
  // A part after the other leaves memory again: files may be larger than it.
  const auto digest = [&](auto hash) {
    for (absl::string_view rest = file->view(); !rest.empty(); rest.remove_prefix(std::min(kPart, rest.size()))) {
      const absl::string_view part = rest.substr(0, kPart);
      hash.Update(part.data(), part.size());
      DropPages(part);
    }
    return hash.Finish();
  };
  return in_pieces ? digest(PiecewiseHash(PieceDigest::kSha256)) : digest(Sha256());
}

// The header and the table need the checksums: their place is kept first.
absl::Status PlanFileWriter::Begin(size_t sections) { return file_.PadTo(kHeaderBytes + sections * kEntryBytes); }

absl::Status PlanFileWriter::Add(Section section, absl::string_view contents) {
  RETURN_IF_ERROR(file_.PadTo(AlignUp(file_.size(), kPage)));
  entries_.push_back({section, file_.size(), contents.size(), HashBytes(contents)});
  return file_.Write(contents);
}

absl::Status PlanFileWriter::AddPart(absl::string_view part, PiecewiseHash* hash) {
  // In pieces, so that each is hashed while it is in the processor's cache.
  while (!part.empty()) {
    const absl::string_view piece = part.substr(0, size_t{1} << 20);
    hash->Update(piece.data(), piece.size());
    RETURN_IF_ERROR(file_.Write(piece));
    part.remove_prefix(piece.size());
  }
  return absl::OkStatus();
}

absl::Status PlanFileWriter::AddWeights(const std::vector<std::pair<uint64_t, absl::string_view>>& weights,
                                        absl::FunctionRef<void(int64_t)> on_weight) {
  RETURN_IF_ERROR(file_.PadTo(AlignUp(file_.size(), kPage)));
  const uint64_t begin = file_.size();
  int64_t done = 0;
  PiecewiseHash hash(PieceDigest::kChecksum);
  const std::array<char, kWeightAlignment> zeros = {};
  for (auto [offset, rest] : weights) {
    hash.Update(zeros.data(), begin + offset - file_.size());
    RETURN_IF_ERROR(file_.PadTo(begin + offset));
    // In parts, which leave memory again: all weights may be larger than it.
    while (!rest.empty()) {
      const absl::string_view part = rest.substr(0, kPart);
      RETURN_IF_ERROR(AddPart(part, &hash));
      DropPages(part);
      rest.remove_prefix(part.size());
    }
    on_weight(++done);
  }
  entries_.push_back({Section::kWeights, begin, file_.size() - begin, hash.Finish()});
  return absl::OkStatus();
}

absl::Status PlanFileWriter::Finish() {
  RETURN_IF_ERROR(file_.PadTo(AlignUp(file_.size(), kPage)));
  std::string bytes(kHeaderBytes + entries_.size() * kEntryBytes, '\0');
  const auto put = [&](size_t at, auto value) { std::memcpy(bytes.data() + at, &value, sizeof(value)); };
  std::memcpy(bytes.data(), kMagic, sizeof(kMagic) - 1);
  put(8, kVersion);
  put(12, static_cast<uint32_t>(entries_.size()));
  put(16, file_.size());
  size_t at = kHeaderBytes;
  for (const Entry& entry : entries_) {
    put(at, static_cast<uint32_t>(entry.section));
    put(at + 8, entry.offset);
    put(at + 16, entry.bytes);
    put(at + kDigestOffset, entry.digest);
    at += kEntryBytes;
  }
  Sha256 hash;
  hash.Update(bytes.data(), kDigestOffset);
  hash.Update(bytes.data() + kHeaderBytes, bytes.size() - kHeaderBytes);
  put(kDigestOffset, hash.Finish());
  return file_.WriteAt(0, bytes);
}

}  // namespace llmc::plan
