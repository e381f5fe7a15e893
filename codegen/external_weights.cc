// Finds the places of weights in safetensors files.
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "codegen/plan_writer.h"
#include "runtime/plan_format.h"

namespace llmc {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // as the format says

// Where each tensor of one file begins, and its bytes.
using Places = std::map<std::string, std::pair<int64_t, int64_t>, std::less<>>;

absl::StatusOr<Places> ReadPlaces(const std::string& path) {
  const auto fail = [&] { return absl::InvalidArgumentError(absl::StrCat(path, ": is no safetensors file")); };
  std::ifstream in(path, std::ios::binary);
  uint64_t length = 0;
  if (!in.read(reinterpret_cast<char*>(&length), sizeof(length)) || length > kMaxHeader) return fail();
  std::string text(length, '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(length))) return fail();
  const nlohmann::json header = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return fail();
  Places places;
  for (const auto& [name, entry] : header.items()) {
    const auto offsets = entry.find("data_offsets");
    if (offsets == entry.end()) continue;  // __metadata__
    if (!offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
        !(*offsets)[1].is_number_unsigned()) {
      return fail();
    }
    const int64_t begin = (*offsets)[0].get<int64_t>();
    const int64_t end = (*offsets)[1].get<int64_t>();
    if (begin < 0 || end < begin) return fail();
    places[name] = {static_cast<int64_t>(sizeof(length) + length) + begin, end - begin};
  }
  return places;
}

// Whether the file has the tensor's bytes there: a model may hold others, such as a part or a converted copy.
bool SameBytes(std::ifstream& in, int64_t offset, const Tensor& tensor) {
  std::vector<char> buffer(size_t{1} << 20);
  in.clear();
  in.seekg(offset);
  for (int64_t done = 0; done < tensor.bytes();) {
    const int64_t n = std::min<int64_t>(static_cast<int64_t>(buffer.size()), tensor.bytes() - done);
    if (!in.read(buffer.data(), n) || std::memcmp(buffer.data(), tensor.raw() + done, static_cast<size_t>(n)) != 0) {
      return false;
    }
    done += n;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::map<std::string, ExternalWeight>> LocateExternalWeights(const Model& model,
                                                                            const std::string& folder,
                                                                            const std::string& prefix) {
  struct File {
    Places places;
    std::ifstream in;
  };
  std::map<std::string, File> files;
  std::map<std::string, ExternalWeight> located;
  for (const Value* weight : model.weights) {
    const size_t hash = weight->source.find('#');
    const auto data = model.data.find(weight->name);
    if (hash == std::string::npos || data == model.data.end()) continue;
    const std::string name = weight->source.substr(0, hash);
    if (!absl::EndsWith(name, ".safetensors") || !plan::IsContainedPath(name)) continue;
    auto file = files.find(name);
    if (file == files.end()) {
      const std::string path = absl::StrCat(folder, "/", name);
      absl::StatusOr<Places> places = ReadPlaces(path);
      if (!places.ok()) return places.status();
      file = files.emplace(name, File{*std::move(places), std::ifstream(path, std::ios::binary)}).first;
    }
    const auto place = file->second.places.find(absl::string_view(weight->source).substr(hash + 1));
    if (place == file->second.places.end()) continue;
    const auto& [offset, bytes] = place->second;
    if (bytes != data->second.bytes() || !SameBytes(file->second.in, offset, data->second)) continue;
    located[weight->name] = {prefix + name, offset};
  }
  return located;
}

}  // namespace llmc
