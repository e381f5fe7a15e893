// config.json of a Hugging Face model, read field by field. Whatever is wrong is kept, so that all of it is reported at
// once; reading goes on with a value that is in range.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "frontend/formats/json_file.h"

namespace llmc::hf {

inline constexpr int64_t kMaxSize = int64_t{1} << 20;
inline constexpr int64_t kMaxVocab = int64_t{1} << 24;
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxPositions = int64_t{1} << 27;

// A field that is null counts as absent.
class ConfigReader {
 public:
  // `object` must be an object and outlive this; `file` is used in errors only.
  ConfigReader(const nlohmann::json* object, std::string file) : fields_(object, std::move(file)) {}

  bool Has(const std::string& key) const { return fields_.Has(key); }
  bool IsNull(const std::string& key) const { return fields_.IsNull(key); }
  const nlohmann::json* Find(const std::string& key) const { return fields_.Find(key); }
  const JsonFields& fields() const { return fields_; }
  // What was to be taken for fields where they are absent.
  const std::vector<std::pair<std::string, nlohmann::json>>& defaults() const { return defaults_; }
  const std::string& file() const { return fields_.file(); }

  int64_t Int(const std::string& key, int64_t absent, int64_t min = 1, int64_t max = kMaxSize);
  double Number(const std::string& key, double absent, double min, double max);
  bool Flag(const std::string& key, bool absent);
  std::string Text(const std::string& key, absl::string_view absent);
  // One of `known`: its index. What else there is is not supported.
  size_t Choice(const std::string& key, absl::string_view absent, absl::Span<const absl::string_view> known);
  // Of `count` strings; nullopt if it is absent.
  std::optional<std::vector<std::string>> Texts(const std::string& key, int64_t count);
  std::optional<std::vector<int64_t>> Ints(const std::string& key);
  // Of `count` numbers in a range; nullopt if it is absent.
  std::optional<std::vector<double>> Numbers(const std::string& key, int64_t count, double min, double max);

  // The fields that were asked for, but for those that are ignored.
  std::set<std::string> Asked() const;
  // Configurations of this architecture may have these fields, and it does without them.
  void Ignore(std::initializer_list<const char*> keys);
  // The field has to be absent, or to have this value.
  void Needs(const std::string& key, bool value);
  void Wrong(const std::string& key, absl::string_view wanted) { Keep(fields_.Wrong(key, wanted)); }
  void Contradicts(absl::string_view why);  // InvalidArgument
  void Refuse(absl::string_view why);       // Unimplemented
  void Keep(const absl::Status& status);

  // All that was wrong, in one error: Unimplemented if none of it is invalid.
  absl::Status Finish() const;

 private:
  template <class T>
  T Or(absl::StatusOr<T> value, T otherwise) {
    if (value.ok()) return *std::move(value);
    Keep(value.status());
    return otherwise;
  }

  JsonFields fields_;
  std::vector<absl::Status> wrong_;
  std::vector<std::pair<std::string, nlohmann::json>> defaults_;
  std::set<std::string> ignored_;
};

}  // namespace llmc::hf
