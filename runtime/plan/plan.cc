#include "runtime/plan/plan.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/path_check.h"
#include "runtime/plan/plan_check.h"

namespace llmc {
namespace {

using plan::Section;

constexpr uint64_t kMaxManifestBytes = uint64_t{256} << 20;
constexpr int kMaxManifestDepth = 8;

uint64_t Load64(const char* p) {
  uint64_t value = 0;
  std::memcpy(&value, p, sizeof(value));
  return value;
}
uint32_t Load32(const char* p) {
  uint32_t value = 0;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

bool IsZero(absl::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
}

}  // namespace

absl::Status Plan::Wrong(absl::string_view what) const {
  return absl::InvalidArgumentError(
      absl::StrCat(path_, ": ", what, "; the plan is damaged or was not written by llmc: compile the model again"));
}

bool Plan::IsPlan(const std::string& path) {
  const absl::StatusOr<MappedFile> file = MapFile(path);
  return file.ok() && absl::StartsWith(file->view(), plan::kMagic);
}

absl::StatusOr<std::unique_ptr<Plan>> Plan::Load(const std::string& path, const PlanLoadOptions& options) {
  ASSIGN_OR_RETURN(MappedFile file, MapFile(path, {.keeps_descriptor = true}));
  auto loaded = std::unique_ptr<Plan>(new Plan);
  loaded->path_ = path;
  loaded->external_folder_ = options.external_folder;
  loaded->file_ = std::move(file);
  RETURN_IF_ERROR(loaded->CheckLayout());
  RETURN_IF_ERROR(loaded->ParseManifest());
  RETURN_IF_ERROR(loaded->CheckManifest());
  if (!options.map_external_files) return loaded;
  RETURN_IF_ERROR(loaded->MapExternalFiles());
  loaded->FindRegions();
  loaded->must_verify_weights_ = options.verify_weights && options.verify_when_copied;
  if (!options.verify_weights || options.verify_when_copied) return loaded;
  RETURN_IF_ERROR(loaded->VerifyWeights());
  return loaded;
}

absl::Status Plan::CheckLayout() {
  const char* data = file_.data.get();
  const uint64_t file_bytes = static_cast<uint64_t>(file_.size);
  if (file_bytes < plan::kHeaderBytes || !absl::StartsWith(file_.view(), plan::kMagic)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": is not a plan; `llmc compile MODEL -o plan.bin` makes one"));
  }
  const uint32_t version = Load32(data + 8);
  if (version != plan::kVersion) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": has format version ", version, ", this llmc reads ",
                                                   plan::kVersion, ": compile the model again"));
  }
  const uint32_t sections = Load32(data + 12);
  if (sections == 0 || sections > plan::kNumSections)
    return Wrong(absl::StrCat("it says it has ", sections, " sections"));
  const uint64_t table_end = plan::kHeaderBytes + sections * plan::kEntryBytes;
  if (Load64(data + 16) != file_bytes || file_bytes < table_end) {
    return Wrong(absl::StrCat("it has ", file_bytes, " bytes, but should have ", Load64(data + 16)));
  }
  if (Load64(data + 24) != 0) return Wrong("a reserved field of the header is not zero");
  plan::Sha256 hash;
  hash.Update(data, plan::kDigestOffset);
  hash.Update(data + plan::kHeaderBytes, sections * plan::kEntryBytes);
  const plan::Digest digest = hash.Finish();
  if (std::memcmp(digest.data(), data + plan::kDigestOffset, digest.size()) != 0) {
    return Wrong("the checksum of the header does not match");
  }
  uint64_t end = table_end;
  Section previous{};
  for (uint32_t i = 0; i < sections; ++i) {
    RETURN_IF_ERROR(CheckSection(i, &end, &previous));
  }
  const uint64_t padded = plan::AlignUp(end, plan::kPage);
  if (padded != file_bytes) return Wrong("there are bytes after the last section");
  if (!IsZero({data + end, padded - end})) return Wrong("the bytes after the last section are not zero");
  return absl::OkStatus();
}

// One order and one place for every section, so that none can overlap, repeat or lie outside the file.
absl::Status Plan::CheckSection(uint32_t index, uint64_t* end, Section* previous) {
  const char* data = file_.data.get();
  const char* entry = data + plan::kHeaderBytes + index * plan::kEntryBytes;
  const uint32_t kind = Load32(entry);
  if (kind == 0 || kind > plan::kNumSections) return Wrong(absl::StrCat("section ", index, " has unknown kind ", kind));
  const Section section = static_cast<Section>(kind);
  const absl::string_view name = plan::SectionName(section);
  if (section <= *previous) return Wrong(absl::StrCat("section \"", name, "\" is repeated or out of order"));
  if (Load32(entry + 4) != 0 || Load64(entry + 24) != 0) return Wrong("a reserved field of a section is not zero");
  const uint64_t offset = Load64(entry + 8);
  const uint64_t bytes = Load64(entry + 16);
  const uint64_t file_bytes = static_cast<uint64_t>(file_.size);
  if (offset != plan::AlignUp(*end, plan::kPage) || offset > file_bytes || bytes == 0 || bytes > file_bytes - offset) {
    return Wrong(absl::StrCat("section \"", name, "\" has ", bytes, " bytes at ", offset, ", which does not fit"));
  }
  if (!IsZero({data + *end, offset - *end})) {
    return Wrong(absl::StrCat("the bytes before section \"", name, "\" are not zero"));
  }
  const absl::string_view contents(data + offset, bytes);
  if (section == Section::kWeights) {
    std::memcpy(weights_digest_.data(), entry + plan::kDigestOffset, weights_digest_.size());
  } else {
    const plan::Digest digest = plan::HashBytes(contents);
    if (std::memcmp(digest.data(), entry + plan::kDigestOffset, digest.size()) != 0) {
      return Wrong(absl::StrCat("the checksum of section \"", name, "\" does not match"));
    }
  }
  sections_[kind - 1] = contents;
  *previous = section;
  *end = offset + bytes;
  return absl::OkStatus();
}

absl::Status Plan::ParseManifest() {
  const absl::string_view bytes = section(Section::kManifest);
  if (bytes.empty()) return Wrong("it has no manifest");
  if (bytes.size() > kMaxManifestBytes) return Wrong("its manifest is too large");
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()));
  google::protobuf::io::CodedInputStream coded(&stream);
  coded.SetRecursionLimit(kMaxManifestDepth);
  if (!manifest_.ParseFromCodedStream(&coded) || !coded.ConsumedEntireMessage()) {
    return Wrong("its manifest cannot be read");
  }
  return absl::OkStatus();
}

absl::Status Plan::CheckManifest() {
  const absl::Status status = plan::CheckManifest(manifest_, {.weights = section(Section::kWeights).size(),
                                                              .sources = section(Section::kSources).size(),
                                                              .cubins = section(Section::kCubins).size()});
  if (!status.ok()) return Wrong(status.message());
  if (ir_text().empty()) return Wrong("it has no ir text");
  return absl::OkStatus();
}

absl::StatusOr<MappedFile> Plan::MapExternalFile(const plan::File& file) const {
  const std::string folder =
      external_folder_.empty() ? std::filesystem::path(path_).parent_path().string() : external_folder_;
  ASSIGN_OR_RETURN(std::string path, ResolveInside(folder.empty() ? "." : folder, file.path()));
  absl::StatusOr<MappedFile> mapped = MapFile(path);
  if (!mapped.ok() || static_cast<uint64_t>(mapped->size) == file.bytes()) return mapped;
  return absl::FailedPreconditionError(absl::StrCat("it has ", mapped->size, " bytes, but had ", file.bytes(),
                                                    " when the plan was made: compile the model again"));
}

absl::Status Plan::MapExternalFiles() {
  external_.resize(manifest_.files_size());
  for (int i = 0; i < manifest_.files_size(); ++i) {
    const plan::File& file = manifest_.files(i);
    if (!file.external()) continue;
    absl::StatusOr<MappedFile> mapped = MapExternalFile(file);
    if (!mapped.ok()) {
      return absl::Status(mapped.status().code(),
                          absl::StrCat(path_, ": its weights are in \"", file.path(),
                                       "\", which must lie beside the plan: ", mapped.status().message()));
    }
    external_[i] = *std::move(mapped);
  }
  return absl::OkStatus();
}

std::shared_ptr<const char> Plan::WeightBytes(int index) const {
  const plan::Weight& weight = manifest_.weights(index);
  if (weight.has_random()) return nullptr;
  if (weight.external()) {
    const MappedFile& file = external_[weight.file()];
    return {file.data, file.data.get() + weight.offset()};
  }
  return {file_.data, section(Section::kWeights).data() + weight.offset()};
}

absl::string_view Plan::WeightView(int index) const {
  const std::shared_ptr<const char> bytes = WeightBytes(index);
  if (bytes == nullptr) return {};
  return {bytes.get(), static_cast<size_t>(manifest_.weights(index).bytes())};
}

void Plan::FindRegions() {
  if (const absl::string_view weights = section(Section::kWeights); !weights.empty()) {
    regions_.push_back({.bytes = weights, .digest = weights_digest_, .source = &file_});
  }
  for (size_t i = 0; i < external_.size(); ++i) {
    if (external_[i].data == nullptr) continue;
    WeightRegion region{.bytes = external_[i].view(),
                        .kind = plan::PieceDigest::kSha256,
                        .file = static_cast<int>(i),
                        .source = &external_[i]};
    std::memcpy(region.digest.data(), manifest_.files(region.file).pieces_sha256().data(), region.digest.size());
    regions_.push_back(region);
  }
}

absl::Status Plan::ReadRegion(const WeightRegion& region, size_t begin, size_t end, char* to) const {
  const auto offset = region.bytes.data() - region.source->data.get() + static_cast<int64_t>(begin);
  const absl::Status status = region.source->Read(offset, static_cast<int64_t>(end - begin), to);
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(region.file < 0
                       ? path_
                       : absl::StrCat(path_, ": its weight file \"", manifest_.files(region.file).path(), "\""),
                   ": ", status.message(),
                   absl::IsFailedPrecondition(status) ? "; it was cut while it was in use: compile the model again"
                                                      : "; check the disk that it is on"));
}

absl::Status Plan::RegionChanged(const WeightRegion& region) const {
  if (region.file < 0) return Wrong("the checksum of section \"weights\" does not match");
  return absl::FailedPreconditionError(absl::StrCat(path_, ": its weight file \"", manifest_.files(region.file).path(),
                                                    "\" has changed since the plan was made: compile the model again"));
}

absl::Status Plan::VerifyWeights() const {
  for (const WeightRegion& region : regions_) {
    if (plan::HashPieces(region.bytes, region.kind) != region.digest) return RegionChanged(region);
  }
  return absl::OkStatus();
}

template <typename Message>
absl::StatusOr<Message> Plan::ParseSection(plan::Section section, absl::string_view of) const {
  const absl::string_view bytes = this->section(section);
  Message message;
  if (bytes.size() > INT_MAX || !message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Wrong(absl::StrCat("its section of ", of, " cannot be read"));
  }
  return message;
}

absl::StatusOr<plan::Lowering> Plan::lowering() const {
  return ParseSection<plan::Lowering>(plan::Section::kLowering, "kernels");
}

absl::StatusOr<plan::TokenizerFiles> Plan::tokenizer() const {
  return ParseSection<plan::TokenizerFiles>(plan::Section::kTokenizer, "tokenizer files");
}

}  // namespace llmc
