#include "frontend/weight_places.h"

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "files/mapped_file.h"
#include "files/path_check.h"
#include "frontend/onnx_file.h"
#include "frontend/safetensors.h"

namespace llmc {
namespace {

using Places = std::map<std::string, WeightPlace>;  // by the name of the tensor in its file

absl::StatusOr<Places> PlacesInOnnx(const std::string& path) {
  absl::StatusOr<std::unique_ptr<OnnxFile>> file = OnnxFile::Open(path);
  if (!file.ok()) return file.status();
  Places places;
  const onnx::GraphProto& graph = (*file)->model().graph();
  for (int i = 0; i < graph.initializer_size(); ++i) {
    const std::optional<OnnxDataPlace> place = (*file)->PlaceOf(i);
    if (place.has_value()) places[graph.initializer(i).name()] = {place->file, place->offset};
  }
  return places;
}

absl::StatusOr<Places> PlacesIn(const std::string& folder, const std::string& file) {
  absl::StatusOr<std::string> resolved = ResolveInside(folder, file);
  if (!resolved.ok()) return resolved.status();
  const std::string path = absl::StrCat(folder, "/", file);
  if (absl::EndsWith(file, ".onnx")) return PlacesInOnnx(path);
  if (!absl::EndsWith(file, ".safetensors")) return Places();
  absl::StatusOr<std::map<std::string, int64_t>> offsets = SafetensorsOffsets(path);
  if (!offsets.ok()) return offsets.status();
  Places places;
  for (const auto& [name, offset] : *offsets) places[name] = {file, offset};
  return places;
}

class Locator {
 public:
  explicit Locator(const std::string& folder) : folder_(folder) {}

  // Nothing if the tensor that the source names has no place, or other bytes there: a part, say, or a converted copy.
  absl::StatusOr<const WeightPlace*> Find(const std::string& source, const Tensor& tensor) {
    const auto parts = SplitWeightSource(source);
    if (!parts.has_value()) return nullptr;
    const auto& [name, tensor_name] = *parts;
    auto places = places_.find(name);
    if (places == places_.end()) {
      absl::StatusOr<Places> found = PlacesIn(folder_, name);
      if (!found.ok()) return found.status();
      places = places_.emplace(name, *std::move(found)).first;
    }
    const auto place = places->second.find(tensor_name);
    if (place == places->second.end()) return nullptr;
    absl::StatusOr<bool> same = SameBytes(place->second, tensor);
    if (!same.ok()) return same.status();
    return *same ? &place->second : nullptr;
  }

 private:
  absl::StatusOr<bool> SameBytes(const WeightPlace& place, const Tensor& tensor) {
    auto file = files_.find(place.file);
    if (file == files_.end()) {
      absl::StatusOr<std::string> path = ResolveInside(folder_, place.file);
      if (!path.ok()) return path.status();
      absl::StatusOr<MappedFile> mapped = MapFile(*path);
      if (!mapped.ok()) return mapped.status();
      file = files_.emplace(place.file, *std::move(mapped)).first;
    }
    const int64_t size = file->second.size;
    return place.offset >= 0 && place.offset <= size && tensor.bytes() <= size - place.offset &&
           std::memcmp(file->second.data.get() + place.offset, tensor.raw(), static_cast<size_t>(tensor.bytes())) == 0;
  }

  const std::string& folder_;
  std::map<std::string, Places> places_;
  std::map<std::string, MappedFile> files_;
};

}  // namespace

absl::StatusOr<std::map<std::string, WeightPlace>> LocateWeights(const Model& model, const std::string& folder) {
  Locator locator(folder);
  std::map<std::string, WeightPlace> located;
  for (const Value* weight : model.weights) {
    const auto data = model.data.find(weight->name);
    if (data == model.data.end()) continue;
    absl::StatusOr<const WeightPlace*> place = locator.Find(weight->source, data->second);
    if (!place.ok())
      return absl::Status(place.status().code(), absl::StrCat("weight ", weight->name, ": ", place.status().message()));
    if (*place != nullptr) located[weight->name] = **place;
  }
  return located;
}

}  // namespace llmc
