#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "files/hub_cache.h"
#include "files/path_check.h"
#include "frontend/formats/json_file.h"
#include "frontend/formats/safetensors.h"

namespace llmc {
namespace {

constexpr absl::string_view kSingle = "model.safetensors";
constexpr absl::string_view kIndex = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = int64_t{64} << 20;

// shard -> names of its tensors
using Shards = std::map<std::string, std::set<std::string>>;

absl::StatusOr<Shards> ReadIndex(const std::string& folder, const std::string& prefix) {
  ASSIGN_OR_RETURN(nlohmann::json index, ReadJsonFile(folder, absl::StrCat(prefix, kIndex), kMaxIndexBytes));
  const std::string file = absl::StrCat(folder, "/", prefix, kIndex);
  auto refuse = [&file](absl::string_view why) { return absl::InvalidArgumentError(absl::StrCat(file, ": ", why)); };
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return refuse("\"weight_map\" must be an object from tensor names to file names");
  }
  Shards shards;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (!shard.is_string()) return refuse(absl::StrCat("the file of tensor ", Quoted(name), " must be a string"));
    shards[absl::StrCat(prefix, shard.get<std::string>())].insert(name);
  }
  return shards;
}

std::string Some(const std::vector<std::string>& names) {
  constexpr size_t kShown = 20;
  if (names.size() <= kShown) return absl::StrJoin(names, ", ");
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + kShown, ", "), " and ", names.size() - kShown,
                      " more");
}

absl::Status CheckShard(const std::string& path, const NamedTensors& found, const std::set<std::string>& wanted) {
  std::vector<std::string> extra, missing;
  for (const auto& [name, tensor] : found) {
    if (!wanted.contains(name)) extra.push_back(Quoted(name));
  }
  for (const std::string& name : wanted) {
    if (!found.contains(name)) missing.push_back(Quoted(name));
  }
  if (extra.empty() && missing.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": its tensors are not those that ", kIndex, " says;",
      missing.empty() ? "" : absl::StrCat(" missing: ", Some(missing), ";"),
      extra.empty() ? "" : absl::StrCat(" not in the index: ", Some(extra), ";"), " download the checkpoint again"));
}

absl::Status AddFile(const std::string& folder, const std::string& name, const std::set<std::string>* wanted,
                     Checkpoint* checkpoint) {
  absl::StatusOr<MappedFile> file = MapInside(folder, name);
  if (!file.ok()) {
    return absl::Status(file.status().code(),
                        absl::StrCat(folder, ": shard ", Quoted(name), ": ", file.status().message(),
                                     absl::IsNotFound(file.status()) ? DownloadHint(folder) : ""));
  }
  ASSIGN_OR_RETURN(NamedTensors tensors, ReadSafetensors(absl::StrCat(folder, "/", name), *file, /*takes_words=*/true));
  if (wanted != nullptr) {
    if (absl::Status s = CheckShard(absl::StrCat(folder, "/", name), tensors, *wanted); !s.ok()) return s;
  }
  for (auto& [tensor_name, tensor] : tensors) checkpoint->emplace(tensor_name, CheckpointTensor{tensor, name});
  return absl::OkStatus();
}

// What files of weights there are instead, and what to do with them.
std::string SeenFiles(const std::string& folder) {
  std::vector<std::string> seen;
  for (const char* ending : {".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth", ".gguf", ".onnx"}) {
    for (const std::string& name : FilesEndingIn(folder, ending)) seen.push_back(Quoted(name));
  }
  if (seen.empty()) return ", and no other file of weights";
  return absl::StrCat("; there are ", Some(seen), ": rename a .safetensors file to ", kSingle,
                      ", convert pickled weights (.bin, .pt) to safetensors first, and give a .onnx file itself");
}

}  // namespace

absl::StatusOr<Checkpoint> ReadCheckpoint(const std::string& folder, const std::string& module) {
  Checkpoint checkpoint;
  const std::string prefix = module.empty() ? "" : module + "/";
  const std::string single_file = absl::StrCat(prefix, kSingle);
  ASSIGN_OR_RETURN(bool single, ExistsInside(folder, single_file));
  ASSIGN_OR_RETURN(bool sharded, ExistsInside(folder, absl::StrCat(prefix, kIndex)));
  if (single) {
    if (absl::Status s = AddFile(folder, single_file, nullptr, &checkpoint); !s.ok()) return s;
    return checkpoint;
  }
  if (!sharded) {
    const std::string place = module.empty() ? folder : absl::StrCat(folder, "/", module);
    return absl::NotFoundError(absl::StrCat(place, ": neither ", kSingle, " nor ", kIndex, " is there",
                                            SeenFiles(place), DownloadHint(folder)));
  }
  ASSIGN_OR_RETURN(Shards shards, ReadIndex(folder, prefix));
  absl::Status first;
  std::vector<std::string> wrong;
  for (const auto& [shard, names] : shards) {
    const absl::Status status = AddFile(folder, shard, &names, &checkpoint);
    if (status.ok()) continue;
    first.Update(status);
    wrong.emplace_back(status.message());
  }
  if (!first.ok()) return absl::Status(first.code(), absl::StrJoin(wrong, "\n"));
  return checkpoint;
}

}  // namespace llmc
