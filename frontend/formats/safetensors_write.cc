#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/file_writer.h"
#include "files/path_check.h"
#include "frontend/formats/safetensors.h"
#include "frontend/formats/safetensors_types.h"

namespace llmc {
namespace {

struct TypeName {
  absl::string_view name;
  DType dtype;
};
constexpr TypeName kTypes[] = {{"F64", DType::kF64},   {"F32", DType::kF32},        {"F16", DType::kF16},
                               {"BF16", DType::kBF16}, {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2},
                               {"I64", DType::kI64},   {"I32", DType::kI32},        {"I16", DType::kI16},
                               {"I8", DType::kI8},     {"U8", DType::kU8},          {"BOOL", DType::kBool}};
constexpr absl::string_view kOtherTypes[] = {"U16", "U32", "U64", "C64", "F4", "F6_E2M3", "F6_E3M2", "F8_E8M0"};

struct Item {
  std::string name;
  DType dtype;
  Shape shape;
  const Tensor* tensor = nullptr;  // what to write, if it is there already

  int64_t bytes() const { return Tensor(dtype, Shape(shape), nullptr).bytes(); }
};

// Falling sizes of elements align every tensor.
void SortItems(std::vector<Item>* items) {
  std::stable_sort(items->begin(), items->end(),
                   [](const Item& a, const Item& b) { return DTypeBits(a.dtype) > DTypeBits(b.dtype); });
}

absl::StatusOr<std::string> MakeHeader(const std::string& path, const std::vector<Item>& items,
                                       const nlohmann::json& metadata) {
  nlohmann::json header = nlohmann::json::object();  // sorted by name
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const Item& item : items) {
    if (item.name == "__metadata__") return absl::InvalidArgumentError("a tensor cannot be named __metadata__");
    absl::StatusOr<absl::string_view> type = SafetensorsName(item.dtype);
    if (!type.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", Quoted(item.name), ": ", type.status().message()));
    }
    const int64_t end = offset + item.bytes();
    header[item.name] = {{"dtype", std::string(*type)}, {"shape", item.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

absl::Status WriteHeader(FileWriter* file, const std::string& header) {
  char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  RETURN_IF_ERROR(file->Write({length, sizeof(length)}));
  return file->Write(header);
}

absl::string_view BytesOf(const Tensor& tensor) { return {tensor.raw(), static_cast<size_t>(tensor.bytes())}; }

}  // namespace

absl::StatusOr<DType> DTypeOfSafetensors(absl::string_view name) {
  for (const TypeName& type : kTypes) {
    if (type.name == name) return type.dtype;
  }
  if (std::find(std::begin(kOtherTypes), std::end(kOtherTypes), name) != std::end(kOtherTypes)) {
    return absl::UnimplementedError(absl::StrCat("dtype ", name, " is not supported"));
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown dtype ", Quoted(name)));
}

absl::StatusOr<absl::string_view> SafetensorsName(DType dtype) {
  for (const TypeName& type : kTypes) {
    if (type.dtype == dtype) return type.name;
  }
  return absl::InvalidArgumentError(absl::StrCat("safetensors has no type for ", DTypeName(dtype)));
}

absl::Status WriteSafetensors(const std::string& path, const NamedTensors& tensors) {
  std::vector<Item> items;
  for (const auto& [name, tensor] : tensors) items.push_back({name, tensor.dtype(), tensor.shape(), &tensor});
  SortItems(&items);
  ASSIGN_OR_RETURN(const std::string header, MakeHeader(path, items, {}));
  ASSIGN_OR_RETURN(std::unique_ptr<FileWriter> file, FileWriter::Create(path));
  RETURN_IF_ERROR(WriteHeader(file.get(), header));
  for (const Item& item : items) RETURN_IF_ERROR(file->Write(BytesOf(*item.tensor)));
  return file->Commit();
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, const std::map<std::string, Entry>& entries) {
  std::vector<Item> items;
  for (const auto& [name, entry] : entries) items.push_back({name, entry.dtype, entry.shape});
  SortItems(&items);
  ASSIGN_OR_RETURN(const std::string header, MakeHeader(path, items, {{"format", "pt"}}));
  auto writer = std::unique_ptr<SafetensorsWriter>(new SafetensorsWriter());
  writer->path_ = path;
  ASSIGN_OR_RETURN(writer->file_, FileWriter::Create(path));
  RETURN_IF_ERROR(WriteHeader(writer->file_.get(), header));
  uint64_t offset = writer->file_->size();
  for (const Item& item : items) {
    writer->places_[item.name] = {.entry = {item.dtype, item.shape}, .offset = offset};
    offset += static_cast<uint64_t>(item.bytes());
  }
  return writer;
}

absl::Status SafetensorsWriter::Write(const std::string& name, const Tensor& tensor) {
  const auto place = places_.find(name);
  const bool fits = place != places_.end() && !place->second.is_written && tensor.encoding() == nullptr &&
                    place->second.entry.dtype == tensor.dtype() && place->second.entry.shape == tensor.shape();
  if (!fits) return absl::InternalError(absl::StrCat(path_, ": ", name, " is not as it was announced"));
  place->second.is_written = true;
  return file_->WriteAt(place->second.offset, BytesOf(tensor));
}

absl::Status SafetensorsWriter::Commit() {
  for (const auto& [name, place] : places_) {
    if (!place.is_written) return absl::InternalError(absl::StrCat(path_, ": ", name, " was not written"));
  }
  return file_->Commit();
}

}  // namespace llmc
