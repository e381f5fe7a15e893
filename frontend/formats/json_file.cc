#include "frontend/formats/json_file.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/mapped_file.h"
#include "files/path_check.h"

namespace llmc {
namespace {

using nlohmann::json;

// Builds the value in one pass without recursion, and stops at too much depth, too many values and duplicate keys.
class JsonBuilder : public nlohmann::json_sax<json> {
 public:
  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(json::object()); }
  bool start_array(std::size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& key) override {
    auto [member, added] = open_.back()->emplace(key, nullptr);
    if (!added) return Fail(absl::StrCat("duplicate key ", Quoted(key)));
    member_ = &*member;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
    return Fail(absl::StrCat("not JSON: ", absl::string_view(e.what()).substr(0, 300)));
  }
  const std::string& error() const { return error_; }
  json& root() { return root_; }

 private:
  bool Fail(std::string why) {
    error_ = std::move(why);
    return false;
  }
  bool Add(json value) { return Place(std::move(value)) != nullptr; }
  // Where the value now is; values stay there while the array or object around them grows no further.
  json* Place(json value) {
    if (++values_ > kMaxJsonValues) {
      Fail(absl::StrCat("more than ", kMaxJsonValues, " values"));
      return nullptr;
    }
    json* place = open_.empty() ? &root_ : member_;
    if (!open_.empty() && open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    *place = std::move(value);
    return place;
  }
  bool Open(json value) {
    if (open_.size() >= static_cast<size_t>(kMaxJsonDepth)) {
      return Fail(absl::StrCat("nested deeper than ", kMaxJsonDepth));
    }
    json* place = Place(std::move(value));
    if (place == nullptr) return false;
    open_.push_back(place);
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  json root_;
  std::vector<json*> open_;  // arrays and objects around the place that is read
  json* member_ = nullptr;   // of the innermost object, for the key that was read last
  int64_t values_ = 0;
  std::string error_;
};

}  // namespace

absl::StatusOr<json> ParseJson(absl::string_view text, absl::string_view file, int64_t max_bytes) {
  auto refuse = [file](absl::string_view why) { return absl::InvalidArgumentError(absl::StrCat(file, ": ", why)); };
  if (static_cast<int64_t>(text.size()) > max_bytes) return refuse(absl::StrCat("larger than ", max_bytes, " bytes"));
  // The JSON library takes a NUL for the end of the text.
  if (absl::StrContains(text, '\0')) return refuse("not JSON: it holds a NUL byte");
  JsonBuilder builder;
  if (!json::sax_parse(text.begin(), text.end(), &builder)) return refuse(builder.error());
  return std::move(builder.root());
}

absl::StatusOr<json> ReadJsonFile(const std::string& folder, absl::string_view name, int64_t max_bytes) {
  ASSIGN_OR_RETURN(MappedFile file, MapInside(folder, name));
  return ParseJson(file.view(), absl::StrCat(folder, "/", name), max_bytes);
}

const json* JsonFields::Find(const std::string& key) const {
  asked_->insert(key);
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

std::vector<std::string> JsonFields::Unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_->items()) {
    if (!asked_->contains(key)) keys.push_back(key);
  }
  return keys;
}

bool JsonFields::IsNull(const std::string& key) const {
  asked_->insert(key);
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
