// JSON of untrusted files.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace llmc {

inline constexpr int kMaxJsonDepth = 64;
inline constexpr int64_t kMaxJsonValues = int64_t{1} << 20;
inline constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;

// Parses UTF-8 text of at most `max_bytes`, kMaxJsonDepth nested arrays and objects, and kMaxJsonValues values. A
// duplicate key anywhere is an error: two readers may take different ones. `file` is used in errors only.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, absl::string_view file,
                                         int64_t max_bytes = kMaxConfigBytes);

// ParseJson of a file inside `folder`.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& folder, absl::string_view name,
                                            int64_t max_bytes = kMaxConfigBytes);

// One object's fields, typed. A field that is null counts as absent. Errors name file, field and what was found. For
// one thread: it keeps account of what it was asked for.
class JsonFields {
 public:
  // `object` must be an object and outlive this.
  JsonFields(const nlohmann::json* object, std::string file) : object_(object), file_(std::move(file)) {}

  bool Has(const std::string& key) const { return Find(key) != nullptr; }
  bool IsNull(const std::string& key) const;                 // there, and null
  const nlohmann::json* Find(const std::string& key) const;  // nullptr if absent or null
  absl::StatusOr<int64_t> Int(const std::string& key, int64_t absent, int64_t min, int64_t max) const;
  absl::StatusOr<double> Double(const std::string& key, double absent, double min, double max) const;
  absl::StatusOr<bool> Bool(const std::string& key, bool absent) const;
  absl::StatusOr<std::string> String(const std::string& key, absl::string_view absent) const;
  absl::Status Wrong(const std::string& key, absl::string_view wanted) const;
  const std::string& file() const { return file_; }
  // Keys that these methods, of this or a copy of it, were asked for.
  const std::set<std::string>& asked() const { return *asked_; }
  // Keys that the object has and that none of these methods, of this or a copy of it, was asked for; sorted.
  std::vector<std::string> Unread() const;

 private:
  const nlohmann::json* object_;
  std::string file_;
  std::shared_ptr<std::set<std::string>> asked_ = std::make_shared<std::set<std::string>>();
};

}  // namespace llmc
