#include "frontend/formats/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/mapped_file.h"
#include "files/path_check.h"
#include "frontend/formats/safetensors_types.h"

namespace llmc {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxTensors = 1 << 18;
constexpr size_t kMaxMetadata = 1 << 16;
constexpr size_t kMaxRank = 64;

struct Entry {
  std::string name;
  std::string dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

// Collects the entries of a header, one token at a time, and stops at the first thing that is not as it must be.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(absl::StrCat("the number ", text));
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (list_ == nullptr) return Unexpected("a number");
    if (list_->size() >= kMaxRank) return Fail(absl::StrCat("more than ", kMaxRank, " numbers in ", field_));
    list_->push_back(value);
    return true;
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kEntry || field_ != "dtype" || list_ != nullptr) return Unexpected("a string");
    entries_.back().dtype = text;
    return true;
  }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        place_ = name_ == "__metadata__" ? Place::kMetadata : Place::kEntry;
        fields_.clear();
        if (place_ == Place::kEntry) entries_.push_back({.name = name_});
        return entries_.size() <= kMaxTensors || Fail(absl::StrCat("more than ", kMaxTensors, " tensors"));
      default:
        return Unexpected("an object");
    }
  }

  bool end_object() override {
    if (place_ == Place::kEntry) {
      const Entry& e = entries_.back();
      if (e.dtype.empty()) return Fail("\"dtype\" is missing");
      if (!e.shape) return Fail("\"shape\" is missing");
      if (!e.offsets || e.offsets->size() != 2) return Fail("\"data_offsets\" must be two numbers");
    }
    place_ = place_ == Place::kTop ? Place::kStart : Place::kTop;
    name_.clear();
    return true;
  }

  bool key(string_t& key) override {
    if (place_ == Place::kTop) {
      name_ = key;
      field_.clear();
      return names_.insert(key).second || Fail("duplicate name");
    }
    field_ = key;
    if (!fields_.insert(key).second) return Fail(absl::StrCat("duplicate key ", Quoted(key)));
    if (fields_.size() > kMaxMetadata) return Fail(absl::StrCat("more than ", kMaxMetadata, " keys"));
    if (place_ == Place::kMetadata || key == "dtype" || key == "shape" || key == "data_offsets") return true;
    return Fail(absl::StrCat("unknown key ", Quoted(key)));
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kEntry || list_ != nullptr || field_ == "dtype") return Unexpected("an array");
    list_ = &(field_ == "shape" ? entries_.back().shape : entries_.back().offsets).emplace();
    return true;
  }
  bool end_array() override {
    list_ = nullptr;
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
    error_ = absl::StrCat("the header is not JSON: ", absl::string_view(e.what()).substr(0, 300));
    return false;
  }

  const std::string& error() const { return error_; }
  std::vector<Entry>& entries() { return entries_; }

 private:
  enum class Place { kStart, kTop, kEntry, kMetadata };

  bool Fail(absl::string_view why) {
    error_ = name_.empty() ? std::string(why) : absl::StrCat("tensor ", Quoted(name_), ": ", why);
    return false;
  }
  bool Unexpected(absl::string_view what) {
    if (place_ == Place::kMetadata) return Fail("its values must be strings");
    return Fail(absl::StrCat("unexpected ", what, field_.empty() ? "" : absl::StrCat(" in ", Quoted(field_))));
  }

  Place place_ = Place::kStart;
  std::string name_, field_, error_;
  std::vector<uint64_t>* list_ = nullptr;
  std::vector<Entry> entries_;
  absl::flat_hash_set<std::string> names_, fields_;
};

absl::Status Refuse(const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
}
absl::Status Refuse(const std::string& path, const Entry& entry, absl::string_view why) {
  return Refuse(path, absl::StrCat("tensor ", Quoted(entry.name), ": ", why));
}

absl::StatusOr<absl::string_view> HeaderOf(const std::string& path, absl::string_view bytes) {
  if (bytes.size() < 8) return Refuse(path, "too short for a safetensors file (fewer than 8 bytes)");
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(bytes[i]);
  if (length > kMaxHeaderBytes) {
    return Refuse(path, absl::StrCat("header of ", length, " bytes; the format allows ", kMaxHeaderBytes));
  }
  if (length > bytes.size() - 8) {
    return Refuse(path, absl::StrCat("header of ", length, " bytes, but the file ends after ", bytes.size() - 8,
                                     "; it may be cut off: download it again"));
  }
  absl::string_view header = bytes.substr(8, length);
  const size_t start = header.find_first_not_of(" \t\r\n");
  if (start == absl::string_view::npos || header[start] != '{') return Refuse(path, "the header must begin with '{'");
  // The JSON library takes a NUL for the end of the text.
  if (absl::StrContains(header, '\0')) return Refuse(path, "the header holds a NUL byte");
  return header;
}

// Every byte of the data belongs to exactly one tensor.
absl::Status CheckLayout(const std::string& path, std::vector<Entry>* entries, uint64_t data_bytes) {
  std::sort(entries->begin(), entries->end(), [](const Entry& a, const Entry& b) { return *a.offsets < *b.offsets; });
  uint64_t next = 0;
  for (const Entry& e : *entries) {
    const uint64_t begin = (*e.offsets)[0], end = (*e.offsets)[1];
    if (begin > end || end > data_bytes) {
      return Refuse(path, e,
                    absl::StrCat("bytes [", begin, ", ", end, ") are not within the file's ", data_bytes,
                                 " bytes of data; it may be cut off: download it again"));
    }
    if (begin != next) {
      return Refuse(path, e,
                    absl::StrCat("it begins at byte ", begin, " of the data, but ", next,
                                 " comes next: ", begin < next ? "tensors overlap" : "bytes belong to no tensor"));
    }
    next = end;
  }
  if (next != data_bytes) {
    return Refuse(path, absl::StrCat(data_bytes - next, " bytes at the end belong to no tensor"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> TensorOf(const std::string& path, const Entry& e, const MappedFile& file, uint64_t data_start,
                                bool takes_words) {
  absl::StatusOr<DType> dtype = DTypeOfSafetensors(takes_words && e.dtype == "U32" ? "I32" : e.dtype);
  if (!dtype.ok()) {
    return absl::Status(dtype.status().code(),
                        absl::StrCat(path, ": tensor ", Quoted(e.name), ": ", dtype.status().message()));
  }
  Shape shape;
  for (uint64_t dim : *e.shape) {
    if (dim > static_cast<uint64_t>(INT64_MAX))
      return Refuse(path, e, absl::StrCat("dimension ", dim, " is too large"));
    shape.push_back(static_cast<int64_t>(dim));
  }
  absl::StatusOr<int64_t> elements = CheckedElements(*dtype, shape);
  if (!elements.ok()) return Refuse(path, e, elements.status().message());
  const uint64_t begin = (*e.offsets)[0], end = (*e.offsets)[1];
  const uint64_t size = static_cast<uint64_t>(DTypeBits(*dtype)) / 8;
  if (static_cast<uint64_t>(*elements) * size != end - begin) {
    return Refuse(path, e,
                  absl::StrCat(e.dtype, ShapeToString(shape), " needs ", *elements * static_cast<int64_t>(size),
                               " bytes, but data_offsets give ", end - begin));
  }
  const char* data = file.data.get() + data_start + begin;
  if (*dtype == DType::kBool && std::any_of(data, data + (end - begin), [](char c) { return c != 0 && c != 1; })) {
    return Refuse(path, e, "a BOOL byte is neither 0 nor 1");
  }
  if (reinterpret_cast<uintptr_t>(data) % size == 0) {
    return Tensor(*dtype, std::move(shape), std::shared_ptr<const char>(file.data, data));
  }
  Tensor copy(*dtype, std::move(shape));
  if (end > begin) std::memcpy(copy.mutable_raw(), data, end - begin);
  return copy;
}

struct Contents {
  std::vector<Entry> entries;
  uint64_t data_start = 0;
};

absl::StatusOr<Contents> ReadContents(const std::string& path, const MappedFile& file) {
  ASSIGN_OR_RETURN(absl::string_view header, HeaderOf(path, file.view()));
  HeaderReader reader;
  if (!json::sax_parse(header.begin(), header.end(), &reader)) return Refuse(path, reader.error());
  const uint64_t data_start = 8 + header.size();
  if (absl::Status s = CheckLayout(path, &reader.entries(), file.size - data_start); !s.ok()) return s;
  return Contents{std::move(reader.entries()), data_start};
}

}  // namespace

absl::StatusOr<NamedTensors> ReadSafetensors(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile file, MapFile(path));
  return ReadSafetensors(path, file);
}

absl::StatusOr<NamedTensors> ReadSafetensors(const std::string& path, const MappedFile& file, bool takes_words) {
  ASSIGN_OR_RETURN(Contents contents, ReadContents(path, file));
  NamedTensors tensors;
  for (Entry& e : contents.entries) {
    ASSIGN_OR_RETURN(Tensor tensor, TensorOf(path, e, file, contents.data_start, takes_words));
    tensors.emplace(std::move(e.name), std::move(tensor));
  }
  return tensors;
}

absl::StatusOr<std::map<std::string, int64_t>> SafetensorsOffsets(const std::string& path) {
  ASSIGN_OR_RETURN(MappedFile file, MapFile(path));
  ASSIGN_OR_RETURN(Contents contents, ReadContents(path, file));
  std::map<std::string, int64_t> offsets;
  for (Entry& e : contents.entries) {
    offsets.emplace(std::move(e.name), static_cast<int64_t>(contents.data_start + (*e.offsets)[0]));
  }
  return offsets;
}

}  // namespace llmc
