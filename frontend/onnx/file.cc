#include "frontend/onnx/file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "files/path_check.h"
#include "frontend/onnx/wire.h"

namespace llmc {
namespace {

// Nodes, attributes, names and other parts of a model, all together; those of real models are some ten thousands. A
// part of a real file has a name or a number in it: files of millions of them are as large as that takes.
constexpr int64_t kMaxElements = int64_t{1} << 23, kElementsOfAnyFile = int64_t{1} << 21, kBytesOfElement = 6;

int64_t MostElements(absl::string_view bytes) {
  const int64_t fit = static_cast<int64_t>(bytes.size()) / kBytesOfElement;
  return std::min(kMaxElements, std::max(kElementsOfAnyFile, fit));
}

// Field numbers of the ONNX schema.
constexpr int kModelGraph = 7;
constexpr int kGraphInitializer = 5;
constexpr int kTensorRawData = 9;

// Newer than the enum of the oldest supported ONNX package.
constexpr int kFloat8E4M3FN = 17, kFloat8E5M2 = 19, kUInt4 = 21, kInt4 = 22;

absl::StatusOr<int64_t> ParseDecimal(const std::string& text) {
  int64_t value = 0;
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos || !absl::SimpleAtoi(text, &value)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text.substr(0, 40), "\" is not a size in bytes"));
  }
  return value;
}

// Checks the number of values in a typed field.
absl::Status CheckTypedCount(int64_t count, int64_t expected, absl::string_view field) {
  if (count == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " holds ", count, " values where the shape needs ", expected));
}

// Numbers of int32_data that stand for one element each.
absl::Status FillFromInt32(const onnx::TensorProto& proto, Tensor* tensor) {
  const int bits = DTypeBits(tensor->dtype());
  const int64_t count = bits == 4 ? (tensor->size() + 1) / 2 : tensor->size();
  if (auto s = CheckTypedCount(proto.int32_data_size(), count, "int32_data"); !s.ok()) return s;
  // Floats are stored as the number that their bits make, 4-bit elements as whole bytes.
  const bool as_bits = IsFloat(tensor->dtype()) || bits == 4;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t value = proto.int32_data(static_cast<int>(i));
    const int64_t limit = int64_t{1} << (as_bits && bits == 16 ? 16 : 8);
    if (as_bits) {
      if (value < -limit / 2 || value >= limit) return absl::InvalidArgumentError("a value of int32_data is too large");
      if (bits == 16) {
        const uint16_t half = static_cast<uint16_t>(value);
        std::memcpy(tensor->mutable_raw() + 2 * i, &half, 2);
      } else {
        tensor->mutable_raw()[i] = static_cast<char>(value);
      }
      continue;
    }
    tensor->SetInt(i, value);
    if (tensor->GetInt(i) != value) return absl::InvalidArgumentError("a value of int32_data does not fit its type");
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> FromTypedData(const onnx::TensorProto& proto, DType dtype, Shape shape, int64_t elements) {
  const int fields = (proto.float_data_size() > 0) + (proto.int32_data_size() > 0) + (proto.int64_data_size() > 0) +
                     (proto.double_data_size() > 0) + (proto.uint64_data_size() > 0) + (proto.string_data_size() > 0);
  if (fields > 1) return absl::InvalidArgumentError("has data in several fields");
  // Counts are checked before memory of the declared size is taken.
  auto wrong = [&](int64_t count, absl::string_view field) { return CheckTypedCount(count, elements, field); };
  switch (dtype) {
    case DType::kF32:
      if (auto s = wrong(proto.float_data_size(), "float_data"); !s.ok()) return s;
      break;
    case DType::kF64:
      if (auto s = wrong(proto.double_data_size(), "double_data"); !s.ok()) return s;
      break;
    case DType::kI64:
      if (auto s = wrong(proto.int64_data_size(), "int64_data"); !s.ok()) return s;
      break;
    default:
      if (DTypeBits(dtype) != 4) {
        if (auto s = wrong(proto.int32_data_size(), "int32_data"); !s.ok()) return s;
      } else if (proto.int32_data_size() != elements / 2 + elements % 2) {
        return absl::InvalidArgumentError("int32_data does not hold as many bytes as the shape needs");
      }
  }
  Tensor tensor(dtype, std::move(shape));
  if (elements == 0) return tensor;
  if (dtype == DType::kF32) {
    std::memcpy(tensor.mutable_raw(), proto.float_data().data(), elements * sizeof(float));
  } else if (dtype == DType::kF64) {
    std::memcpy(tensor.mutable_raw(), proto.double_data().data(), elements * sizeof(double));
  } else if (dtype == DType::kI64) {
    std::memcpy(tensor.mutable_raw(), proto.int64_data().data(), elements * sizeof(int64_t));
  } else if (auto s = FillFromInt32(proto, &tensor); !s.ok()) {
    return s;
  }
  return tensor;
}

// A view of `bytes`, which `owner` keeps alive, if they are aligned; else (or without an owner) a copy.
Tensor FromBytes(DType dtype, Shape shape, absl::string_view bytes, const std::shared_ptr<const char>& owner) {
  const uintptr_t element = static_cast<uintptr_t>((DTypeBits(dtype) + 7) / 8);
  if (owner != nullptr && reinterpret_cast<uintptr_t>(bytes.data()) % element == 0) {
    return Tensor(dtype, std::move(shape), std::shared_ptr<const char>(owner, bytes.data()));
  }
  Tensor tensor(dtype, std::move(shape));
  if (!bytes.empty()) std::memcpy(tensor.mutable_raw(), bytes.data(), bytes.size());
  return tensor;
}

}  // namespace

absl::StatusOr<DType> DTypeOfOnnx(int64_t data_type) {
  switch (data_type) {
    case onnx::TensorProto::FLOAT:
      return DType::kF32;
    case onnx::TensorProto::DOUBLE:
      return DType::kF64;
    case onnx::TensorProto::FLOAT16:
      return DType::kF16;
    case onnx::TensorProto::BFLOAT16:
      return DType::kBF16;
    case onnx::TensorProto::INT64:
      return DType::kI64;
    case onnx::TensorProto::INT32:
      return DType::kI32;
    case onnx::TensorProto::INT16:
      return DType::kI16;
    case onnx::TensorProto::INT8:
      return DType::kI8;
    case onnx::TensorProto::UINT8:
      return DType::kU8;
    case onnx::TensorProto::BOOL:
      return DType::kBool;
    case kFloat8E4M3FN:
      return DType::kF8E4M3;
    case kFloat8E5M2:
      return DType::kF8E5M2;
    case kUInt4:
      return DType::kU4;
    case kInt4:
      return DType::kI4;
    default:
      return absl::UnimplementedError(absl::StrCat("element type ", OnnxTypeName(data_type), " is not supported"));
  }
}

std::string OnnxTypeName(int64_t data_type) {
  static constexpr absl::string_view kNames[] = {
      "UNDEFINED",      "FLOAT",      "UINT8",          "INT8",       "UINT16",   "INT16",
      "INT32",          "INT64",      "STRING",         "BOOL",       "FLOAT16",  "DOUBLE",
      "UINT32",         "UINT64",     "COMPLEX64",      "COMPLEX128", "BFLOAT16", "FLOAT8E4M3FN",
      "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "UINT4",      "INT4",     "FLOAT4E2M1"};
  if (data_type < 0 || data_type >= static_cast<int64_t>(std::size(kNames))) return absl::StrCat("number ", data_type);
  return std::string(kNames[data_type]);
}

absl::StatusOr<std::unique_ptr<OnnxFile>> OnnxFile::Open(const std::string& path) {
  auto bytes = MapFile(path);
  if (!bytes.ok()) return bytes.status();
  return Open(path, *std::move(bytes));
}

absl::StatusOr<std::unique_ptr<OnnxFile>> OnnxFile::Open(const std::string& path, MappedFile bytes) {
  if (bytes.size > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": larger than 2 GiB; save the model with external data"));
  }
  std::unique_ptr<OnnxFile> file(new OnnxFile);
  file->path_ = path;
  file->file_ = std::move(bytes);
  if (absl::Status s = file->Parse(file->file_.view()); !s.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not an ONNX model: ", s.message()));
  }
  return file;
}

// The graph and its initializers are parsed piece by piece: everything but raw_data goes through protobuf.
absl::Status OnnxFile::Parse(absl::string_view bytes) {
  absl::Status s = CheckElements(bytes, *onnx::ModelProto::descriptor(), MostElements(bytes));
  if (!s.ok()) return s;
  std::string rest;
  std::optional<absl::string_view> graph;
  s = SplitFields(bytes, kModelGraph, &rest, [&](absl::string_view field) {
    if (graph.has_value()) return absl::InvalidArgumentError("more than one graph");
    graph = field;
    return absl::OkStatus();
  });
  if (!s.ok()) return s;
  if (s = ParseMessage(rest, &model_, "model"); !s.ok()) return s;
  if (!graph.has_value()) return absl::InvalidArgumentError("there is no graph");
  return ParseGraph(*graph);
}

absl::Status OnnxFile::ParseGraph(absl::string_view bytes) {
  std::string rest;
  std::vector<absl::string_view> initializers;
  absl::Status s = SplitFields(bytes, kGraphInitializer, &rest, [&](absl::string_view field) {
    initializers.push_back(field);
    return absl::OkStatus();
  });
  if (!s.ok()) return s;
  if (s = ParseMessage(rest, model_.mutable_graph(), "graph"); !s.ok()) return s;
  for (absl::string_view field : initializers) {
    if (s = ParseInitializer(field); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status OnnxFile::ParseInitializer(absl::string_view bytes) {
  std::string rest;
  std::optional<absl::string_view> raw;
  absl::Status s = SplitFields(bytes, kTensorRawData, &rest, [&](absl::string_view field) {
    if (raw.has_value()) return absl::InvalidArgumentError("an initializer with raw_data twice");
    raw = field;
    return absl::OkStatus();
  });
  if (!s.ok()) return s;
  raw_data_.push_back(raw);
  return ParseMessage(rest, model_.mutable_graph()->add_initializer(), "initializer");
}

absl::StatusOr<Tensor> OnnxFile::Initializer(int index) {
  return Load(model_.graph().initializer(index), raw_data_[index]);
}

std::optional<OnnxDataPlace> OnnxFile::PlaceOf(int index) const {
  const onnx::TensorProto& tensor = model_.graph().initializer(index);
  if (tensor.data_type() == onnx::TensorProto::UINT16) return std::nullopt;
  if (tensor.data_location() == onnx::TensorProto::EXTERNAL) {
    OnnxDataPlace place;
    for (const auto& entry : tensor.external_data()) {
      if (entry.key() == "location") place.file = entry.value();
      if (entry.key() == "offset") place.offset = ParseDecimal(entry.value()).value_or(0);
    }
    return place;
  }
  const std::optional<absl::string_view>& raw = raw_data_[index];
  if (!raw.has_value() || raw->empty()) return std::nullopt;
  return OnnxDataPlace{std::filesystem::path(path_).filename().string(), raw->data() - file_.data.get()};
}

absl::StatusOr<Tensor> OnnxFile::Literal(const onnx::TensorProto& tensor) {
  if (!tensor.has_raw_data()) return Load(tensor, std::nullopt);
  return Load(tensor, absl::string_view(tensor.raw_data()));
}

absl::StatusOr<Tensor> OnnxFile::Load(const onnx::TensorProto& tensor, std::optional<absl::string_view> raw) {
  if (tensor.data_type() != onnx::TensorProto::UINT16) {
    auto dtype = DTypeOfOnnx(tensor.data_type());
    return dtype.ok() ? LoadAs(*dtype, tensor, raw) : dtype.status();
  }
  // Typed data has an i32 for each.
  auto numbers = LoadAs(tensor.int32_data_size() > 0 ? DType::kI32 : DType::kI16, tensor, raw);
  if (!numbers.ok()) return numbers.status();
  Tensor wide(DType::kI32, numbers->shape());
  for (int64_t i = 0; i < wide.size(); ++i) wide.SetInt(i, numbers->GetInt(i) & 0xffff);
  return wide;
}

absl::StatusOr<Tensor> OnnxFile::LoadAs(DType dtype, const onnx::TensorProto& tensor,
                                        std::optional<absl::string_view> raw) {
  if (tensor.dims_size() > kMaxOnnxRank)
    return absl::InvalidArgumentError(absl::StrCat("has rank ", tensor.dims_size()));
  if (tensor.has_segment()) return absl::UnimplementedError("is split in segments, which is not supported");
  Shape shape(tensor.dims().begin(), tensor.dims().end());
  auto elements = CheckedElements(dtype, shape);
  if (!elements.ok()) return elements.status();
  const bool typed = tensor.float_data_size() > 0 || tensor.int32_data_size() > 0 || tensor.int64_data_size() > 0 ||
                     tensor.double_data_size() > 0 || tensor.uint64_data_size() > 0 || tensor.string_data_size() > 0;
  if (tensor.data_location() == onnx::TensorProto::EXTERNAL) {
    if (typed || (raw.has_value() && !raw->empty())) {
      return absl::InvalidArgumentError("has external data and data in the file");
    }
    return LoadExternal(tensor, dtype, std::move(shape));
  }
  if (tensor.external_data_size() > 0)
    return absl::InvalidArgumentError("has external_data but is not marked EXTERNAL");
  if (!raw.has_value() || (raw->empty() && typed)) return FromTypedData(tensor, dtype, std::move(shape), *elements);
  if (typed) return absl::InvalidArgumentError("has both raw_data and typed data");
  const uint64_t bytes = (static_cast<uint64_t>(*elements) * DTypeBits(dtype) + 7) / 8;
  if (raw->size() != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("raw_data holds ", raw->size(), " bytes where ", DTypeName(dtype),
                                                   ShapeToString(shape), " needs ", bytes));
  }
  const absl::string_view file = file_.view();
  const bool in_file = raw->data() >= file.data() && raw->data() < file.data() + file.size();
  return FromBytes(dtype, std::move(shape), *raw, in_file ? file_.data : nullptr);
}

absl::StatusOr<Tensor> OnnxFile::LoadExternal(const onnx::TensorProto& tensor, DType dtype, Shape shape) {
  std::map<std::string, std::string> entries;
  for (const auto& entry : tensor.external_data()) {
    const std::string& key = entry.key();
    if (key != "location" && key != "offset" && key != "length" && key != "checksum") {
      return absl::InvalidArgumentError(absl::StrCat("external data has the unknown key \"", key.substr(0, 40), "\""));
    }
    if (!entries.emplace(key, entry.value()).second) {
      return absl::InvalidArgumentError(absl::StrCat("external data has \"", key, "\" twice"));
    }
  }
  if (entries.count("location") == 0) return absl::InvalidArgumentError("external data has no location");
  const std::string& location = entries["location"];
  const int64_t elements = *CheckedElements(dtype, shape);
  const int64_t needed = (elements * DTypeBits(dtype) + 7) / 8;
  int64_t offset = 0;
  if (auto it = entries.find("offset"); it != entries.end()) {
    auto value = ParseDecimal(it->second);
    if (!value.ok()) return absl::InvalidArgumentError(absl::StrCat("external data offset ", value.status().message()));
    offset = *value;
  }
  if (auto it = entries.find("length"); it != entries.end()) {
    auto value = ParseDecimal(it->second);
    if (!value.ok()) return absl::InvalidArgumentError(absl::StrCat("external data length ", value.status().message()));
    if (*value != needed) {
      return absl::InvalidArgumentError(
          absl::StrCat("external data has the length ", *value, " where the shape needs ", needed, " bytes"));
    }
  }
  auto it = external_files_.find(location);
  if (it == external_files_.end()) {
    auto mapped = MapInside(FolderOf(path_), location);
    if (!mapped.ok()) return mapped.status();
    it = external_files_.emplace(location, *std::move(mapped)).first;
  }
  const MappedFile& file = it->second;
  const uint64_t size = static_cast<uint64_t>(file.size);
  if (static_cast<uint64_t>(offset) > size || static_cast<uint64_t>(needed) > size - static_cast<uint64_t>(offset)) {
    return absl::InvalidArgumentError(absl::StrCat("external data at ", offset, " of ", needed,
                                                   " bytes is past the end of \"", location, "\" of ", size, " bytes"));
  }
  return FromBytes(dtype, std::move(shape),
                   file.view().substr(static_cast<size_t>(offset), static_cast<size_t>(needed)), file.data);
}

}  // namespace llmc
