#include "frontend/json_file.h"

#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "files/mapped_file.h"
#include "files/path_check.h"

namespace llmc {
namespace {

using nlohmann::json;

// Checks depth, duplicate keys and syntax in one pass without recursion.
class Checker : public nlohmann::json_sax<json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(); }
  bool start_array(std::size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& key) override {
    if (keys_.back().insert(key).second) return true;
    error_ = absl::StrCat("duplicate key ", Quoted(key));
    return false;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
    error_ = absl::StrCat("not JSON: ", absl::string_view(e.what()).substr(0, 300));
    return false;
  }
  const std::string& error() const { return error_; }

 private:
  bool Open() {
    keys_.emplace_back();
    if (keys_.size() <= kMaxJsonDepth) return true;
    error_ = absl::StrCat("nested deeper than ", kMaxJsonDepth);
    return false;
  }
  bool Close() {
    keys_.pop_back();
    return true;
  }

  std::vector<absl::flat_hash_set<std::string>> keys_;
  std::string error_;
};

}  // namespace

absl::StatusOr<json> ParseJson(absl::string_view text, absl::string_view file) {
  auto refuse = [file](absl::string_view why) { return absl::InvalidArgumentError(absl::StrCat(file, ": ", why)); };
  if (static_cast<int64_t>(text.size()) > kMaxJsonBytes) {
    return refuse(absl::StrCat("larger than ", kMaxJsonBytes, " bytes"));
  }
  // The JSON library takes a NUL for the end of the text.
  if (absl::StrContains(text, '\0')) return refuse("not JSON: it holds a NUL byte");
  Checker checker;
  if (!json::sax_parse(text.begin(), text.end(), &checker)) return refuse(checker.error());
  json parsed = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return refuse("not JSON");
  return parsed;
}

absl::StatusOr<json> ReadJsonFile(const std::string& folder, absl::string_view name) {
  absl::StatusOr<std::string> path = ResolveInside(folder, name);
  if (!path.ok()) return path.status();
  absl::StatusOr<MappedFile> file = MapFile(*path);
  if (!file.ok()) return file.status();
  return ParseJson(file->view(), absl::StrCat(folder, "/", name));
}

const json* JsonFields::Find(const std::string& key) const {
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

bool JsonFields::IsNull(const std::string& key) const {
  const auto it = object_->find(key);
  return it != object_->end() && it->is_null();
}

absl::Status JsonFields::Wrong(const std::string& key, absl::string_view wanted) const {
  const json* value = Find(key);
  const std::string found =
      value == nullptr ? "nothing" : value->dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 200);
  return absl::InvalidArgumentError(absl::StrCat(file_, ": \"", key, "\" must be ", wanted, "; found ", found));
}

absl::StatusOr<int64_t> JsonFields::Int(const std::string& key, int64_t absent, int64_t min, int64_t max) const {
  const json* value = Find(key);
  if (value == nullptr) return absent;
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  if (!fits || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    return Wrong(key, absl::StrCat("an integer from ", min, " to ", max));
  }
  return value->get<int64_t>();
}

absl::StatusOr<double> JsonFields::Double(const std::string& key, double absent, double min, double max) const {
  const json* value = Find(key);
  if (value == nullptr) return absent;
  if (!value->is_number() || !(value->get<double>() >= min && value->get<double>() <= max)) {
    return Wrong(key, absl::StrCat("a number from ", min, " to ", max));
  }
  return value->get<double>();
}

absl::StatusOr<bool> JsonFields::Bool(const std::string& key, bool absent) const {
  const json* value = Find(key);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) return Wrong(key, "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::string> JsonFields::String(const std::string& key, absl::string_view absent) const {
  const json* value = Find(key);
  if (value == nullptr) return std::string(absent);
  if (!value->is_string()) return Wrong(key, "a string");
  return value->get<std::string>();
}

}  // namespace llmc
