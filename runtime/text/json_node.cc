#include "runtime/text/json_node.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace llmc {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr int64_t kMaxValues = int64_t{8} << 20;  // a value takes up to 100 bytes of memory

// Checks syntax, depth, number of values and duplicate keys, all without recursion.
class Checker : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return Count(); }
  bool boolean(bool) override { return Count(); }
  bool number_integer(number_integer_t) override { return Count(); }
  bool number_unsigned(number_unsigned_t) override { return Count(); }
  bool number_float(number_float_t, const string_t&) override { return Count(); }
  bool string(string_t&) override { return Count(); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(); }
  bool start_array(std::size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& key) override {
    return keys_.back().insert(key).second || Fail(absl::StrCat("duplicate key \"", key.substr(0, 100), "\""));
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
    return Fail(absl::StrCat("not JSON: ", absl::string_view(e.what()).substr(0, 300)));
  }
  const std::string& error() const { return error_; }

 private:
  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }
  bool Count() { return ++values_ <= kMaxValues || Fail(absl::StrCat("more than ", kMaxValues, " JSON values")); }
  bool Open() {
    keys_.emplace_back();
    if (keys_.size() > kMaxDepth) return Fail(absl::StrCat("JSON nested deeper than ", kMaxDepth, " levels"));
    return Count();
  }
  bool Close() {
    keys_.pop_back();
    return true;
  }

  std::vector<absl::flat_hash_set<std::string>> keys_;  // of each object that is open
  int64_t values_ = 0;
  std::string error_;
};

}  // namespace

absl::StatusOr<nlohmann::json> ParseTokenizerJson(absl::string_view text, absl::string_view name) {
  const auto refuse = [name](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", why));
  };
  if (text.size() > kMaxBytes) return refuse(absl::StrCat("larger than ", kMaxBytes, " bytes"));
  // The JSON library takes a NUL for the end of the text.
  if (absl::StrContains(text, '\0')) return refuse("not JSON: it holds a NUL byte");
  Checker checker;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &checker)) return refuse(checker.error());
  nlohmann::json document = nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) return refuse("not JSON");
  return document;
}

absl::Status JsonNode::Error(absl::string_view message) const {
  return absl::InvalidArgumentError(absl::StrCat(file_, ": ", path_.empty() ? "top level" : path_, ": ", message));
}

absl::Status JsonNode::Unsupported(absl::string_view message) const {
  return absl::UnimplementedError(absl::StrCat(file_, ": ", path_.empty() ? "top level" : path_, ": ", message));
}

absl::StatusOr<std::string> JsonNode::AsString() const {
  if (!value_->is_string()) return Error(absl::StrCat("must be a string, is ", value_->type_name()));
  return value_->get_ref<const std::string&>();
}

absl::StatusOr<int64_t> JsonNode::AsInt(int64_t low, int64_t high) const {
  if (!value_->is_number_integer()) return Error(absl::StrCat("must be an integer, is ", value_->type_name()));
  // A number above int64 is stored unsigned; get<int64_t> would wrap it.
  const bool too_large = value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = too_large ? INT64_MAX : value_->get<int64_t>();
  if (too_large || number < low || number > high) {
    return Error(absl::StrCat("must be from ", low, " to ", high, ", is ", value_->dump()));
  }
  return number;
}

absl::Status JsonNode::ExpectObject() const {
  if (value_->is_object()) return absl::OkStatus();
  return Error(absl::StrCat("must be an object, is ", value_->type_name()));
}

absl::Status JsonNode::ExpectArray() const {
  if (value_->is_array()) return absl::OkStatus();
  return Error(absl::StrCat("must be an array, is ", value_->type_name()));
}

absl::optional<JsonNode> JsonNode::Find(absl::string_view key) const {
  if (!value_->is_object()) return absl::nullopt;
  const auto it = value_->find(std::string(key));
  if (it == value_->end() || it->is_null()) return absl::nullopt;
  return JsonNode(&*it, file_, path_.empty() ? std::string(key) : absl::StrCat(path_, ".", key));
}

absl::StatusOr<JsonNode> JsonNode::Get(absl::string_view key) const {
  RETURN_IF_ERROR(ExpectObject());
  absl::optional<JsonNode> node = Find(key);
  if (!node) return Error(absl::StrCat("needs a key \"", key, "\""));
  return *node;
}

absl::StatusOr<std::vector<JsonNode>> JsonNode::GetArray(absl::string_view key) const {
  ASSIGN_OR_RETURN(const JsonNode node, Get(key));
  RETURN_IF_ERROR(node.ExpectArray());
  std::vector<JsonNode> elements;
  elements.reserve(node.value_->size());
  for (size_t i = 0; i < node.value_->size(); ++i) elements.push_back(node.Element(i));
  return elements;
}

absl::StatusOr<std::string> JsonNode::GetString(absl::string_view key) const {
  ASSIGN_OR_RETURN(const JsonNode node, Get(key));
  return node.AsString();
}

absl::StatusOr<std::string> JsonNode::GetString(absl::string_view key, absl::string_view otherwise) const {
  const absl::optional<JsonNode> node = Find(key);
  return node ? node->AsString() : std::string(otherwise);
}

absl::StatusOr<bool> JsonNode::GetBool(absl::string_view key, bool otherwise) const {
  const absl::optional<JsonNode> node = Find(key);
  if (!node) return otherwise;
  if (!node->value_->is_boolean()) return node->Error(absl::StrCat("must be a bool, is ", node->value_->type_name()));
  return node->value_->get<bool>();
}

absl::StatusOr<int64_t> JsonNode::GetInt(absl::string_view key, int64_t low, int64_t high) const {
  ASSIGN_OR_RETURN(const JsonNode node, Get(key));
  return node.AsInt(low, high);
}

JsonNode JsonNode::Element(size_t index) const {
  return JsonNode(&(*value_)[index], file_, absl::StrCat(path_, "[", index, "]"));
}

}  // namespace llmc
