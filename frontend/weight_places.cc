#include "frontend/weight_places.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/drop_pages.h"
#include "files/mapped_file.h"
#include "files/path_check.h"
#include "frontend/formats/gguf.h"
#include "frontend/formats/safetensors.h"
#include "frontend/huggingface/gguf.h"
#include "frontend/onnx/file.h"

namespace llmc {
namespace {

using Places = std::map<std::string, FilePlace>;  // by the name of the tensor in its file

absl::StatusOr<Places> PlacesInOnnx(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<OnnxFile> file, OnnxFile::Open(path));
  Places places;
  const onnx::GraphProto& graph = file->model().graph();
  for (int i = 0; i < graph.initializer_size(); ++i) {
    const std::optional<OnnxDataPlace> place = file->PlaceOf(i);
    if (place.has_value()) places[graph.initializer(i).name()] = {place->file, place->offset};
  }
  return places;
}

absl::StatusOr<Places> PlacesInGguf(const std::string& path, const std::string& name) {
  ASSIGN_OR_RETURN(const GgufFile file, ReadGgufModelFiles(path));
  ASSIGN_OR_RETURN(const hf::GgufModel model, hf::ReadGgufModel(path, file));
  Places places;
  for (const auto& [tensor, entry] : model.checkpoint) {
    if (entry.file == name) places[tensor] = {name, entry.tensor.raw() - file.files.at(name).get()};
  }
  return places;
}

absl::StatusOr<Places> PlacesIn(const std::string& folder, const std::string& file) {
  RETURN_IF_ERROR(ResolveInside(folder, file).status());
  const std::string path = absl::StrCat(folder, "/", file);
  if (absl::EndsWith(file, ".onnx")) return PlacesInOnnx(path);
  if (absl::EndsWith(file, ".gguf")) return PlacesInGguf(path, file);
  if (!absl::EndsWith(file, ".safetensors")) return Places();
  ASSIGN_OR_RETURN(auto offsets, SafetensorsOffsets(path));
  Places places;
  for (const auto& [name, offset] : offsets) places[name] = {file, offset};
  return places;
}

class Locator {
 public:
  explicit Locator(const std::string& folder) : folder_(folder) {}

  // Nothing if the tensor that the source names has no place, or other bytes there: a part, say, or a converted copy.
  absl::StatusOr<const FilePlace*> Find(const std::string& source, const Tensor& tensor) {
    const auto parts = SplitWeightSource(source);
    if (!parts.has_value()) return nullptr;
    const auto& [name, tensor_name] = *parts;
    auto places = places_.find(name);
    if (places == places_.end()) {
      ASSIGN_OR_RETURN(Places found, PlacesIn(folder_, name));
      places = places_.emplace(name, std::move(found)).first;
    }
    const auto place = places->second.find(tensor_name);
    if (place == places->second.end()) return nullptr;
    ASSIGN_OR_RETURN(bool same, SameBytes(place->second, tensor));
    return same ? &place->second : nullptr;
  }

 private:
  absl::StatusOr<bool> SameBytes(const FilePlace& place, const Tensor& tensor) {
    auto file = files_.find(place.file);
    if (file == files_.end()) {
      ASSIGN_OR_RETURN(std::string path, ResolveInside(folder_, place.file));
      ASSIGN_OR_RETURN(MappedFile mapped, MapFile(path));
      file = files_.emplace(place.file, std::move(mapped)).first;
    }
    const absl::string_view whole = file->second.view();
    const auto size = static_cast<size_t>(tensor.bytes());
    if (place.offset < 0 || static_cast<size_t>(place.offset) > whole.size()) return false;
    const absl::string_view there = whole.substr(static_cast<size_t>(place.offset), size);
    return there.size() == size && EqualInParts(there, {tensor.raw(), size});
  }

  // A part after the other leaves memory again: files may be larger than it.
  static bool EqualInParts(absl::string_view a, absl::string_view b) {
    constexpr size_t kPart = size_t{64} << 20;
    bool equal = true;
    for (size_t at = 0; at < a.size() && equal; at += kPart) {
      const absl::string_view of_a = a.substr(at, kPart), of_b = b.substr(at, kPart);
      equal = of_a == of_b;
      DropPages(of_a);
      DropPages(of_b);
    }
    return equal;
  }

  const std::string& folder_;
  std::map<std::string, Places> places_;
  std::map<std::string, MappedFile> files_;
};

}  // namespace

absl::StatusOr<std::map<std::string, FilePlace>> LocateWeights(const Model& model, const std::string& folder) {
  Locator locator(folder);
  std::map<std::string, FilePlace> located;
  for (const Value* weight : model.weights) {
    const auto data = model.data.find(weight->name);
    if (data == model.data.end()) continue;
    absl::StatusOr<const FilePlace*> place = locator.Find(weight->source, data->second);
    if (!place.ok())
      return absl::Status(place.status().code(), absl::StrCat("weight ", weight->name, ": ", place.status().message()));
    if (*place != nullptr) located[weight->name] = **place;
  }
  return located;
}

}  // namespace llmc
