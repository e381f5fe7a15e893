// Models in several GGUF files, each of which has some of the tensors.
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "files/path_check.h"
#include "frontend/formats/gguf.h"

namespace llmc {
namespace {

constexpr absl::string_view kEnding = ".gguf";
constexpr size_t kDigits = 5;
constexpr int64_t kMostParts = 1024;
constexpr uint64_t kMostCount = uint64_t{1} << 40;

std::optional<int64_t> Count(const GgufFile& file, const std::string& key) {
  const auto at = file.metadata.find(key);
  if (at == file.metadata.end()) return std::nullopt;
  // What is no such number is no part of any model.
  const bool fits = at->is_number_integer() && (!at->is_number_unsigned() || at->get<uint64_t>() <= kMostCount);
  return fits ? at->get<int64_t>() : -1;
}

bool OfDigits(absl::string_view text, int64_t* number) {
  return text.find_first_not_of("0123456789") == absl::string_view::npos && absl::SimpleAtoi(text, number);
}

// "NAME-00002-of-00003.gguf"
struct PartName {
  std::string folder, prefix;
  int64_t number = 0, count = 0;

  std::string Of(int64_t part) const { return absl::StrFormat("%s-%05d-of-%05d.gguf", prefix, part, count); }

  static std::optional<PartName> Parse(const std::string& path) {
    constexpr absl::string_view kOf = "-of-";
    constexpr size_t kTail = 1 + kDigits + kOf.size() + kDigits + kEnding.size();
    PartName name = {.folder = FolderOf(path), .prefix = std::filesystem::path(path).filename().string()};
    if (name.prefix.size() < kTail) return std::nullopt;
    const std::string tail = name.prefix.substr(name.prefix.size() - kTail);
    name.prefix.resize(name.prefix.size() - kTail);
    const bool fits = tail[0] == '-' && tail.substr(1 + kDigits, kOf.size()) == kOf && absl::EndsWith(tail, kEnding) &&
                      OfDigits(tail.substr(1, kDigits), &name.number) &&
                      OfDigits(tail.substr(1 + kDigits + kOf.size(), kDigits), &name.count);
    return fits ? std::optional<PartName>(std::move(name)) : std::nullopt;
  }
};

// Joins what the parts have to the first one, whose metadata are those of the model.
class PartsReader {
 public:
  PartsReader(const std::string& path, int64_t count) : path_(path), count_(count) {}

  absl::StatusOr<GgufFile> Read() {
    const std::optional<PartName> name = PartName::Parse(path_);
    if (!name.has_value() || name->count != count_ || name->number < 1 || name->number > count_) {
      return Refuse(path_,
                    absl::StrCat("is a part of a model in ", count_, " files, whose name must end with -0000N-of-",
                                 absl::StrFormat("%05d", count_), ".gguf, or the others cannot be found"));
    }
    for (int64_t number = 1; number <= count_; ++number) RETURN_IF_ERROR(Add(*name, number));
    const std::optional<int64_t> tensors = Count(all_, "split.tensors.count");
    const auto found = static_cast<int64_t>(all_.tensors.size());
    if (tensors.has_value() && *tensors != found) {
      return Refuse(path_, absl::StrCat("the parts have ", found, " tensors, and \"split.tensors.count\" says ",
                                        *tensors, ": they are not of one model"));
    }
    for (auto& [key, group] : groups_) all_.groups.push_back(std::move(group));
    return std::move(all_);
  }

 private:
  static absl::Status Refuse(const std::string& path, absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
  }

  absl::Status Add(const PartName& name, int64_t number) {
    const std::string file = name.Of(number), path = absl::StrCat(name.folder, "/", file);
    absl::StatusOr<MappedFile> mapped = MapInside(name.folder, file);
    if (!mapped.ok()) {
      return absl::Status(mapped.status().code(),
                          absl::StrCat(path_, ": is part ", name.number, " of a model in ", count_, " files, and part ",
                                       number, " cannot be read: ", mapped.status().message()));
    }
    ASSIGN_OR_RETURN(GgufFile part, ReadGguf(path, *mapped));
    if (Count(part, "split.count") != count_ || Count(part, "split.no") != number - 1) {
      return Refuse(path, absl::StrCat("does not say that it is part ", number, " of ", count_,
                                       " (metadata \"split.no\", \"split.count\")"));
    }
    all_.files.merge(part.files);
    all_.encodings.merge(part.encodings);
    for (auto& [tensor, contents] : part.tensors) {
      if (!all_.tensors.emplace(tensor, contents).second) {
        return Refuse(path, absl::StrCat("tensor ", Quoted(tensor), " is in ", all_.file_of[tensor], ", too"));
      }
      all_.file_of[tensor] = file;
    }
    for (const GgufTensorGroup& group : part.groups) {
      GgufTensorGroup& sum = groups_[{group.name, group.type}];
      sum.name = group.name;
      sum.type = group.type;
      sum.tensors += group.tensors;
      sum.elements += group.elements;
      sum.bytes += group.bytes;
    }
    if (number != 1) return absl::OkStatus();
    all_.version = part.version;
    all_.metadata = std::move(part.metadata);
    return absl::OkStatus();
  }

  const std::string& path_;
  const int64_t count_;
  GgufFile all_;
  std::map<std::pair<std::string, std::string>, GgufTensorGroup> groups_;
};

}  // namespace

absl::StatusOr<GgufFile> ReadGgufModelFiles(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile mapped, MapFile(path));
  return ReadGgufModelFiles(path, mapped);
}

absl::StatusOr<GgufFile> ReadGgufModelFiles(const std::string& path, const MappedFile& mapped) {
  ASSIGN_OR_RETURN(GgufFile file, ReadGguf(path, mapped));
  const int64_t count = Count(file, "split.count").value_or(1);
  if (count == 0 || count == 1) return file;  // 0: parts that were joined
  if (count < 0 || count > kMostParts) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": metadata \"split.count\" is no number of files from 0 to ", kMostParts));
  }
  return PartsReader(path, count).Read();
}

}  // namespace llmc
