#include "frontend/formats/gguf.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/path_check.h"
#include "frontend/formats/gguf_types.h"

namespace llmc {
namespace {

using nlohmann::json;

constexpr uint64_t kMostGgufEntries = uint64_t{1} << 16, kMostGgufElements = uint64_t{1} << 22;
constexpr uint64_t kMostGgufTensors = uint64_t{1} << 20, kMostGgufNameBytes = 1024;
constexpr int kMostGgufDepth = 4;
constexpr uint32_t kMostGgufDims = 4;
constexpr uint64_t kMostGgufAlignment = uint64_t{1} << 20;

// Types of values of metadata, by their numbers.
enum GgufType : uint32_t {
  kGgufU8,
  kGgufI8,
  kGgufU16,
  kGgufI16,
  kGgufU32,
  kGgufI32,
  kGgufF32,
  kGgufBool,
  kGgufString,
  kGgufArray,
  kGgufU64,
  kGgufI64,
  kGgufF64,
};

// "blk.3.attn_q.weight": "blk.*.attn_q.weight".
std::string GroupOf(const std::string& tensor) {
  constexpr absl::string_view kLayer = "blk.";
  const size_t end = tensor.find_first_not_of("0123456789", kLayer.size());
  if (!absl::StartsWith(tensor, kLayer) || end == std::string::npos || end == kLayer.size()) return tensor;
  return absl::StrCat(kLayer, "*", tensor.substr(end));
}

struct GgufTensorInfo {
  std::string name;
  Shape shape;
  uint32_t type = 0;
  uint64_t offset = 0;  // from the beginning of the data
};

class GgufReader {
 public:
  GgufReader(const std::string& path, const MappedFile& file) : path_(path), file_(file) {}

  absl::StatusOr<GgufFile> Read() {
    uint64_t tensors = 0, entries = 0;
    RETURN_IF_ERROR(ReadHeader(&tensors, &entries));
    out_.metadata = json::object();
    for (uint64_t i = 0; i < entries; ++i) RETURN_IF_ERROR(ReadEntry());
    for (uint64_t i = 0; i < tensors; ++i) RETURN_IF_ERROR(ReadInfo());
    RETURN_IF_ERROR(CheckTypes());
    ASSIGN_OR_RETURN(const uint64_t alignment, Alignment());
    data_start_ = (at_ + alignment - 1) / alignment * alignment;
    for (const GgufTensorInfo& info : infos_) RETURN_IF_ERROR(AddTensor(info, alignment));
    RETURN_IF_ERROR(CheckOverlaps());
    for (auto& [key, group] : groups_) {
      group.name = key.first;
      out_.groups.push_back(std::move(group));
    }
    const std::string name = std::filesystem::path(path_).filename().string();
    out_.files[name] = file_.data;
    for (const auto& [tensor, contents] : out_.tensors) out_.file_of[tensor] = name;
    return std::move(out_);
  }

 private:
  absl::Status Refuse(absl::string_view why) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", why));
  }
  absl::Status CutOff(absl::string_view in) const {
    return Refuse(
        absl::StrCat("ends within ", in, ", after ", file_.size, " bytes; it may be cut off: download it again"));
  }
  uint64_t left() const { return static_cast<uint64_t>(file_.size) - at_; }

  template <class T>
  absl::StatusOr<T> Number(absl::string_view in) {
    if (left() < sizeof(T)) return CutOff(in);
    T value;
    std::memcpy(&value, file_.data.get() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  absl::StatusOr<std::string> String(absl::string_view in, uint64_t max_bytes) {
    ASSIGN_OR_RETURN(const uint64_t size, Number<uint64_t>(in));
    if (size > left()) return CutOff(in);
    if (size > max_bytes) return Refuse(absl::StrCat(in, " has ", size, " bytes; at most ", max_bytes, " are read"));
    std::string text(file_.data.get() + at_, size);
    at_ += size;
    return text;
  }

  absl::Status ReadHeader(uint64_t* tensors, uint64_t* entries) {
    if (left() < 4 || std::memcmp(file_.data.get(), "GGUF", 4) != 0) {
      return Refuse("does not begin with \"GGUF\", so it is no GGUF file");
    }
    at_ = 4;
    ASSIGN_OR_RETURN(const uint32_t version, Number<uint32_t>("the header"));
    if (version != 2 && version != 3) {
      const bool is_swapped = version != 0 && (version & 0xffff) == 0;
      return absl::UnimplementedError(
          absl::StrCat(path_, is_swapped ? ": is a big-endian GGUF file; convert the model to little-endian"
                                         : absl::StrCat(": GGUF version ", version,
                                                        " is not supported; 2 and 3 are: convert the "
                                                        "model again")));
    }
    out_.version = version;
    ASSIGN_OR_RETURN(*tensors, Number<uint64_t>("the header"));
    ASSIGN_OR_RETURN(*entries, Number<uint64_t>("the header"));
    if (*tensors > kMostGgufTensors)
      return Refuse(absl::StrCat("has ", *tensors, " tensors; at most ", kMostGgufTensors));
    if (*entries <= kMostGgufEntries) return absl::OkStatus();
    return Refuse(absl::StrCat("has ", *entries, " entries of metadata; at most ", kMostGgufEntries));
  }

  absl::Status ReadEntry() {
    ASSIGN_OR_RETURN(const std::string key, String("a key of the metadata", kMostGgufNameBytes));
    const std::string place = absl::StrCat("metadata ", Quoted(key));
    ASSIGN_OR_RETURN(const uint32_t type, Number<uint32_t>(place));
    ASSIGN_OR_RETURN(json value, Value(type, place, 0));
    if (!out_.metadata.emplace(key, std::move(value)).second) return Refuse(absl::StrCat(place, " is there twice"));
    return absl::OkStatus();
  }

  template <class T>
  absl::StatusOr<json> JsonNumber(absl::string_view in) {
    ASSIGN_OR_RETURN(const T value, Number<T>(in));
    return json(value);
  }

  absl::StatusOr<json> Value(uint32_t type, absl::string_view place, int depth) {
    switch (type) {
      case kGgufU8:
        return JsonNumber<uint8_t>(place);
      case kGgufI8:
        return JsonNumber<int8_t>(place);
      case kGgufU16:
        return JsonNumber<uint16_t>(place);
      case kGgufI16:
        return JsonNumber<int16_t>(place);
      case kGgufU32:
        return JsonNumber<uint32_t>(place);
      case kGgufI32:
        return JsonNumber<int32_t>(place);
      case kGgufF32:
        return JsonNumber<float>(place);
      case kGgufU64:
        return JsonNumber<uint64_t>(place);
      case kGgufI64:
        return JsonNumber<int64_t>(place);
      case kGgufF64:
        return JsonNumber<double>(place);
      case kGgufBool: {
        ASSIGN_OR_RETURN(const uint8_t value, Number<uint8_t>(place));
        if (value > 1) return Refuse(absl::StrCat(place, ": a bool must be 0 or 1, is ", value));
        return json(value == 1);
      }
      case kGgufString: {
        ASSIGN_OR_RETURN(std::string text, String(place, static_cast<uint64_t>(file_.size)));
        return json(std::move(text));
      }
      case kGgufArray:
        return Array(place, depth);
      default:
        return Refuse(absl::StrCat(place, ": type ", type, " of a value is not known; GGUF has 0 to 12"));
    }
  }

  absl::StatusOr<json> Array(absl::string_view place, int depth) {
    if (depth >= kMostGgufDepth) return Refuse(absl::StrCat(place, ": arrays are nested deeper than ", kMostGgufDepth));
    ASSIGN_OR_RETURN(const uint32_t type, Number<uint32_t>(place));
    ASSIGN_OR_RETURN(const uint64_t count, Number<uint64_t>(place));
    // Every element has a byte at least.
    if (count > left()) return CutOff(place);
    if (count > kMostGgufElements - elements_) {
      return Refuse(absl::StrCat(place, ": arrays have more than ", kMostGgufElements, " elements together"));
    }
    elements_ += count;
    json list = json::array();
    for (uint64_t i = 0; i < count; ++i) {
      ASSIGN_OR_RETURN(json value, Value(type, place, depth + 1));
      list.push_back(std::move(value));
    }
    return list;
  }

  absl::Status ReadInfo() {
    GgufTensorInfo info;
    ASSIGN_OR_RETURN(info.name, String("the name of a tensor", kMostGgufNameBytes));
    const std::string place = absl::StrCat("tensor ", Quoted(info.name));
    ASSIGN_OR_RETURN(const uint32_t dims, Number<uint32_t>(place));
    if (dims < 1 || dims > kMostGgufDims)
      return Refuse(absl::StrCat(place, ": has ", dims, " dims; 1 to ", kMostGgufDims));
    for (uint32_t i = 0; i < dims; ++i) {
      ASSIGN_OR_RETURN(const uint64_t dim, Number<uint64_t>(place));
      if (dim == 0 || dim > static_cast<uint64_t>(INT64_MAX)) {
        return Refuse(absl::StrCat(place, ": dimension ", dim, " is out of range"));
      }
      info.shape.insert(info.shape.begin(), static_cast<int64_t>(dim));
    }
    ASSIGN_OR_RETURN(info.type, Number<uint32_t>(place));
    ASSIGN_OR_RETURN(info.offset, Number<uint64_t>(place));
    infos_.push_back(std::move(info));
    return absl::OkStatus();
  }

  absl::Status CheckTypes() const {
    std::vector<std::pair<uint32_t, absl::string_view>> refused;
    for (const GgufTensorInfo& info : infos_) {
      const GgmlType* type = FindGgmlType(info.type);
      if (type == nullptr || !type->is_supported()) refused.emplace_back(info.type, info.name);
    }
    return refused.empty() ? absl::OkStatus() : UnsupportedGgmlTypes(path_, refused);
  }

  absl::StatusOr<uint64_t> Alignment() const {
    const auto value = out_.metadata.find("general.alignment");
    if (value == out_.metadata.end()) return 32;
    const bool is_number = value->is_number_unsigned();
    const uint64_t alignment = is_number ? value->get<uint64_t>() : 0;
    if (alignment >= 8 && alignment <= kMostGgufAlignment && alignment % 8 == 0) return alignment;
    return Refuse(absl::StrCat("metadata \"general.alignment\" must be a multiple of 8 up to ", kMostGgufAlignment));
  }

  absl::Status AddTensor(const GgufTensorInfo& info, uint64_t alignment) {
    const std::string place = absl::StrCat("tensor ", Quoted(info.name));
    const GgmlType& type = *FindGgmlType(info.type);
    const DType dtype = type.dtype.value_or(DType::kU8);
    Shape shape = info.shape;
    // Of the widest type: so that nothing that is computed of sizes overflows.
    absl::StatusOr<int64_t> elements = CheckedElements(type.dtype.value_or(DType::kF64), shape);
    if (!elements.ok()) return Refuse(absl::StrCat(place, ": ", elements.status().message()));
    if (!type.dtype.has_value()) {
      ASSIGN_OR_RETURN(const Encoding* encoding, ParseEncoding(type.encoding));
      const EncodingFormat& format = *encoding->format;
      if (shape.back() % format.superblock != 0) {
        return Refuse(absl::StrCat(place, ": rows of ", shape.back(), " elements are not whole blocks of ",
                                   format.superblock, ", as those of ", type.name, " are"));
      }
      shape.back() = shape.back() / format.superblock * format.superblock_bytes;
      out_.encodings.emplace(info.name, encoding);
    }
    const Tensor sized(dtype, shape, nullptr);
    const auto bytes = static_cast<uint64_t>(sized.bytes());
    const auto size = static_cast<uint64_t>(file_.size);
    if (info.offset % alignment != 0) {
      return Refuse(absl::StrCat(place, ": offset ", info.offset, " is no multiple of the alignment ", alignment));
    }
    if (data_start_ > size || info.offset > size - data_start_ || bytes > size - data_start_ - info.offset) {
      return Refuse(absl::StrCat(place, ": its ", bytes, " bytes from ", info.offset, " of the data on are not within ",
                                 "the file's ", size, "; it may be cut off: download it again"));
    }
    ends_.push_back({info.offset, info.offset + bytes, &info.name});
    GgufTensorGroup& group = groups_[{GroupOf(info.name), type.number}];
    group.type = std::string(type.name);
    ++group.tensors;
    group.elements += *elements;
    group.bytes += sized.bytes();
    const char* data = file_.data.get() + data_start_ + info.offset;
    Tensor tensor(dtype, std::move(shape), std::shared_ptr<const char>(file_.data, data));
    if (out_.tensors.emplace(info.name, std::move(tensor)).second) return absl::OkStatus();
    return Refuse(absl::StrCat(place, " is there twice"));
  }

  absl::Status CheckOverlaps() {
    std::sort(ends_.begin(), ends_.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < ends_.size(); ++i) {
      if (ends_[i].begin >= ends_[i - 1].end) continue;
      return Refuse(absl::StrCat("tensors ", Quoted(*ends_[i - 1].name), " and ", Quoted(*ends_[i].name), " overlap"));
    }
    return absl::OkStatus();
  }

  struct Extent {
    uint64_t begin, end;
    const std::string* name;
  };

  const std::string& path_;
  const MappedFile& file_;
  uint64_t at_ = 0, elements_ = 0, data_start_ = 0;
  std::vector<GgufTensorInfo> infos_;
  std::vector<Extent> ends_;
  std::map<std::pair<std::string, uint32_t>, GgufTensorGroup> groups_;
  GgufFile out_;
};

}  // namespace

absl::StatusOr<GgufFile> ReadGguf(const std::string& path, const MappedFile& file) {
  return GgufReader(path, file).Read();
}

}  // namespace llmc
