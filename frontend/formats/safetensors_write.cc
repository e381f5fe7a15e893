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

using Item = NamedTensors::value_type;

absl::StatusOr<std::string> MakeHeader(const std::vector<const Item*>& items) {
  nlohmann::json header = nlohmann::json::object();  // sorted by name
  int64_t offset = 0;
  for (const Item* item : items) {
    absl::StatusOr<absl::string_view> type = SafetensorsName(item->second.dtype());
    if (!type.ok()) return absl::InvalidArgumentError(absl::StrCat(Quoted(item->first), ": ", type.status().message()));
    const int64_t end = offset + item->second.bytes();
    header[item->first] = {
        {"dtype", std::string(*type)}, {"shape", item->second.shape()}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

absl::Status WriteTo(FileWriter* file, const std::string& header, const std::vector<const Item*>& items) {
  char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  absl::Status status = file->Write({length, sizeof(length)});
  if (status.ok()) status = file->Write(header);
  for (const Item* item : items) {
    if (status.ok()) status = file->Write({item->second.raw(), static_cast<size_t>(item->second.bytes())});
  }
  return status.ok() ? file->Commit() : status;
}

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
  std::vector<const Item*> items;
  for (const Item& item : tensors) {
    if (item.first == "__metadata__") return absl::InvalidArgumentError("a tensor cannot be named __metadata__");
    items.push_back(&item);
  }
  std::stable_sort(items.begin(), items.end(), [](const Item* a, const Item* b) {
    return DTypeBits(a->second.dtype()) > DTypeBits(b->second.dtype());
  });
  absl::StatusOr<std::string> header = MakeHeader(items);
  if (!header.ok()) return absl::Status(header.status().code(), absl::StrCat(path, ": ", header.status().message()));
  ASSIGN_OR_RETURN(std::unique_ptr<FileWriter> file, FileWriter::Create(path));
  return WriteTo(file.get(), *header, items);
}

}  // namespace llmc
