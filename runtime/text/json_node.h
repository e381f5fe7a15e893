// A checked view of one value of a JSON document: every wrong type or missing key is one error with its path.
#ifndef LLMC_RUNTIME_TEXT_JSON_NODE_H_
#define LLMC_RUNTIME_TEXT_JSON_NODE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "nlohmann/json.hpp"

namespace llmc {

// Parses `text` of at most 64 MiB, 8 M values and 64 levels. A duplicate key is an error: two readers may take
// different ones. `name` goes into errors.
absl::StatusOr<nlohmann::json> ParseTokenizerJson(absl::string_view text, absl::string_view name);

class JsonNode {
 public:
  // `value` must outlive the node.
  JsonNode(const nlohmann::json* value, absl::string_view file, absl::string_view path)
      : value_(value), file_(file), path_(path) {}

  const nlohmann::json& value() const { return *value_; }

  // InvalidArgument or Unimplemented, with the file's name and this node's path before `message`.
  absl::Status Error(absl::string_view message) const;
  absl::Status Unsupported(absl::string_view message) const;

  // The node itself as a value.
  absl::StatusOr<std::string> AsString() const;
  absl::StatusOr<int64_t> AsInt(int64_t low, int64_t high) const;
  absl::Status ExpectObject() const;
  absl::Status ExpectArray() const;

  // A member of an object. Find: nullopt if missing or null (or this is not an object). Get: an error then.
  absl::optional<JsonNode> Find(absl::string_view key) const;
  absl::StatusOr<JsonNode> Get(absl::string_view key) const;
  absl::StatusOr<std::vector<JsonNode>> GetArray(absl::string_view key) const;
  absl::StatusOr<std::string> GetString(absl::string_view key) const;
  absl::StatusOr<std::string> GetString(absl::string_view key, absl::string_view otherwise) const;
  absl::StatusOr<bool> GetBool(absl::string_view key, bool otherwise) const;
  absl::StatusOr<int64_t> GetInt(absl::string_view key, int64_t low, int64_t high) const;
  JsonNode Element(size_t index) const;

 private:
  const nlohmann::json* value_;
  std::string file_;
  std::string path_;
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_JSON_NODE_H_
