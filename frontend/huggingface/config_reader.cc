#include "frontend/huggingface/config_reader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "files/path_check.h"

namespace llmc::hf {

using nlohmann::json;

int64_t ConfigReader::Int(const std::string& key, int64_t absent, int64_t min, int64_t max) {
  defaults_.emplace_back(key, absent);
  return Or(fields_.Int(key, absent, min, max), std::clamp(absent, min, max));
}

double ConfigReader::Number(const std::string& key, double absent, double min, double max) {
  defaults_.emplace_back(key, absent);
  return Or(fields_.Double(key, absent, min, max), absent);
}

bool ConfigReader::Flag(const std::string& key, bool absent) {
  defaults_.emplace_back(key, absent);
  return Or(fields_.Bool(key, absent), absent);
}

std::string ConfigReader::Text(const std::string& key, absl::string_view absent) {
  defaults_.emplace_back(key, std::string(absent));
  return Or(fields_.String(key, absent), std::string(absent));
}

size_t ConfigReader::Choice(const std::string& key, absl::string_view absent,
                            absl::Span<const absl::string_view> known) {
  const std::string found = Text(key, absent);
  const auto at = std::find(known.begin(), known.end(), found);
  if (at != known.end()) return static_cast<size_t>(at - known.begin());
  Refuse(absl::StrCat(key, " ", Quoted(found), " is not supported; supported: ", absl::StrJoin(known, ", ")));
  return 0;
}

std::optional<std::vector<std::string>> ConfigReader::Texts(const std::string& key, int64_t count) {
  const json* list = Find(key);
  if (list == nullptr) return std::nullopt;
  std::vector<std::string> texts;
  if (list->is_array() && static_cast<int64_t>(list->size()) == count) {
    for (const json& item : *list) {
      if (item.is_string()) texts.push_back(item.get<std::string>());
    }
  }
  if (static_cast<int64_t>(texts.size()) == count) return texts;
  Wrong(key, absl::StrCat("a list of ", count, " strings, one for each layer"));
  return std::nullopt;
}

std::optional<std::vector<int64_t>> ConfigReader::Ints(const std::string& key) {
  const json* list = Find(key);
  if (list == nullptr) return std::nullopt;
  std::vector<int64_t> ints;
  if (list->is_array()) {
    for (const json& item : *list) {
      if (item.is_number_integer()) ints.push_back(item.get<int64_t>());
    }
    if (ints.size() == list->size()) return ints;
  }
  Wrong(key, "a list of integers");
  return std::nullopt;
}

std::optional<std::vector<double>> ConfigReader::Numbers(const std::string& key, int64_t count, double min,
                                                         double max) {
  const json* list = Find(key);
  if (list == nullptr) return std::nullopt;
  std::vector<double> numbers;
  if (list->is_array() && static_cast<int64_t>(list->size()) == count) {
    for (const json& item : *list) {
      const double number = item.is_number() ? item.get<double>() : min - 1;
      if (number >= min && number <= max) numbers.push_back(number);
    }
  }
  if (static_cast<int64_t>(numbers.size()) == count) return numbers;
  Wrong(key, absl::StrCat("a list of ", count, " numbers from ", min, " to ", max, ", one for each layer"));
  return std::nullopt;
}

void ConfigReader::Ignore(std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (fields_.asked().contains(key)) continue;
    Has(key);
    ignored_.insert(key);
  }
}

std::set<std::string> ConfigReader::Asked() const {
  std::set<std::string> keys = fields_.asked();
  for (const std::string& key : ignored_) keys.erase(key);
  return keys;
}

void ConfigReader::Needs(const std::string& key, bool value) {
  if (Flag(key, value) == value) return;
  Refuse(absl::StrCat(key, " ", value ? "false" : "true", " is not supported for this architecture"));
}

void ConfigReader::Contradicts(absl::string_view why) {
  Keep(absl::InvalidArgumentError(absl::StrCat(file(), ": ", why)));
}

void ConfigReader::Refuse(absl::string_view why) { Keep(absl::UnimplementedError(absl::StrCat(file(), ": ", why))); }

void ConfigReader::Keep(const absl::Status& status) {
  if (!status.ok() && std::find(wrong_.begin(), wrong_.end(), status) == wrong_.end()) wrong_.push_back(status);
}

absl::Status ConfigReader::Finish() const {
  if (wrong_.empty()) return absl::OkStatus();
  absl::StatusCode code = wrong_[0].code();
  std::vector<std::string> lines;
  for (const absl::Status& status : wrong_) {
    if (!absl::IsUnimplemented(status)) code = status.code();
    lines.emplace_back(status.message());
  }
  return absl::Status(code, absl::StrJoin(lines, "\n"));
}

}  // namespace llmc::hf
