#include "frontend/side_files.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "files/mapped_file.h"
#include "files/path_check.h"
#include "frontend/json_file.h"

namespace llmc {
namespace {

using nlohmann::json;

constexpr int64_t kMaxTokenId = INT32_MAX;

struct SideFile {
  const char* name;
  std::optional<std::string> SideFiles::*member;
  int64_t max_bytes;
};
constexpr int64_t kMiB = 1 << 20;
constexpr SideFile kFiles[] = {{"config.json", &SideFiles::config, kMaxConfigBytes},
                               {"generation_config.json", &SideFiles::generation_config, kMaxConfigBytes},
                               {"tokenizer.json", &SideFiles::tokenizer, 64 * kMiB},
                               {"tokenizer_config.json", &SideFiles::tokenizer_config, 16 * kMiB},
                               {"chat_template.jinja", &SideFiles::chat_template, 4 * kMiB}};

absl::StatusOr<std::optional<std::string>> ReadText(const std::string& folder, const SideFile& file) {
  absl::StatusOr<MappedFile> bytes = MapInside(folder, file.name);
  if (absl::IsNotFound(bytes.status())) return std::nullopt;
  if (!bytes.ok()) return bytes.status();
  if (bytes->size > file.max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(folder, "/", file.name, ": larger than ", file.max_bytes, " bytes"));
  }
  return std::string(bytes->view());
}

absl::StatusOr<std::vector<int64_t>> ReadIds(const JsonFields& fields, const std::string& key) {
  const json* value = fields.Find(key);
  std::vector<int64_t> ids;
  if (value == nullptr) return ids;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > kMaxTokenId) return fields.Wrong(key, "a token id or a list of them");
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

// Ids that an earlier file gave are kept.
absl::Status AddIds(const std::optional<std::string>& text, const std::string& file, SideFiles* files) {
  if (!text) return absl::OkStatus();
  absl::StatusOr<json> parsed = ParseJson(*text, file);
  if (!parsed.ok()) return parsed.status();
  if (!parsed->is_object()) return absl::InvalidArgumentError(absl::StrCat(file, ": must be a JSON object"));
  const JsonFields fields(&*parsed, file);
  absl::StatusOr<std::vector<int64_t>> eos = ReadIds(fields, "eos_token_id");
  if (!eos.ok()) return eos.status();
  if (files->eos_ids.empty()) files->eos_ids = *std::move(eos);
  absl::StatusOr<std::vector<int64_t>> bos = ReadIds(fields, "bos_token_id");
  if (!bos.ok()) return bos.status();
  if (!files->bos_id && !bos->empty()) files->bos_id = bos->front();
  return absl::OkStatus();
}

// Under the names that model families give it.
absl::Status ReadMaxPositions(const std::string& file, SideFiles* files) {
  if (!files->config) return absl::OkStatus();
  absl::StatusOr<json> parsed = ParseJson(*files->config, file);
  if (!parsed.ok()) return parsed.status();
  const JsonFields fields(&*parsed, file);
  for (const char* key : {"max_position_embeddings", "n_positions"}) {
    const json* value = fields.Find(key);
    if (value == nullptr) continue;
    if (!value->is_number_integer() || *value < 1 || *value > kMaxTokenId)
      return fields.Wrong(key, "a number of tokens");
    files->max_positions = value->get<int64_t>();
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SideFiles> ReadSideFiles(const std::string& folder) {
  SideFiles files;
  for (const SideFile& file : kFiles) {
    absl::StatusOr<std::optional<std::string>> text = ReadText(folder, file);
    if (!text.ok()) return text.status();
    files.*file.member = *std::move(text);
  }
  absl::Status s = AddIds(files.generation_config, absl::StrCat(folder, "/generation_config.json"), &files);
  s.Update(AddIds(files.config, absl::StrCat(folder, "/config.json"), &files));
  if (s.ok()) s = ReadMaxPositions(absl::StrCat(folder, "/config.json"), &files);
  if (!s.ok()) return s;
  return files;
}

}  // namespace llmc
