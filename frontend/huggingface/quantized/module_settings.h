// Settings of single modules, by their names or by patterns.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "files/path_check.h"
#include "frontend/huggingface/config_reader.h"
#include "frontend/huggingface/quantized/name_pattern.h"
#include "frontend/huggingface/quantized/part_reader.h"

namespace llmc::hf {

// Reads the patterns of one configuration. Each module is held against all of them, so that their compiled size is
// bounded, in all.
class PatternReader {
 public:
  // None if there is an error, which `config` keeps with `field` in front of it.
  std::optional<NamePattern> Parse(absl::string_view text, absl::string_view field, ConfigReader& config) {
    if (is_over_) return std::nullopt;
    absl::StatusOr<NamePattern> pattern = NamePattern::Parse(text);
    if (!pattern.ok()) {
      config.Refuse(absl::StrCat(field, ": ", pattern.status().message()));
      is_over_ = ++wrong_ == kMostWrong;
      return std::nullopt;
    }
    if (!Take(pattern->size(), field, config)) return std::nullopt;
    return *std::move(pattern);
  }
  // Of a pattern of another kind. That they are too large is said once.
  bool Take(size_t size, absl::string_view field, ConfigReader& config) {
    if (is_over_) return false;
    size_ += size;
    is_over_ = size_ > kMostOfAll;
    if (is_over_) {
      config.Refuse(
          absl::StrCat(field, ": patterns of more than ", kMostOfAll, " instructions in all are not supported"));
    }
    return !is_over_;
  }

 private:
  static constexpr size_t kMostOfAll = 64 << 10;
  static constexpr int kMostWrong = 8;

  size_t size_ = 0;
  int wrong_ = 0;
  bool is_over_ = false;
};

// For one thread: it keeps account of what was found.
template <class Settings>
class ModuleSettings {
 public:
  using Fits = std::function<bool(absl::string_view module)>;

  void AddName(const std::string& name, Settings settings) { names_[name] = {name, {}, std::move(settings)}; }
  void AddPattern(std::string text, Fits fits, Settings settings) {
    patterns_.push_back({std::move(text), std::move(fits), std::move(settings)});
    found_.clear();
  }

  // Names come before patterns; nullptr if neither names the module.
  const Settings* Find(absl::string_view module) const {
    const Row* row = RowOf(module);
    return row == nullptr ? nullptr : &row->settings;
  }

  // Whether it does not matter which pattern of those that fit comes first, since JSON's readers do not keep that; a
  // complaint of MODULE.PART if it does.
  bool AreClear(const std::string& part, absl::string_view key, PartReader& reader) const {
    const Row* own = RowOf(reader.module());
    if (own == nullptr || !own->fits) return true;
    for (const Row& other : patterns_) {
      if (!other.fits(reader.module()) || other.settings == own->settings) continue;
      reader.Wrong(part, absl::StrCat(" is of the patterns ", Quoted(own->text), " and ", Quoted(other.text), " of ",
                                      key, ", which say different things; name the module"));
      return false;
    }
    return true;
  }

 private:
  struct Row {
    std::string text;
    Fits fits;  // none: `text` is the name
    Settings settings;
  };
  const Row* RowOf(absl::string_view module) const {
    const auto named = names_.find(module);
    if (named != names_.end()) return &named->second;
    auto found = found_.find(module);
    if (found == found_.end()) {
      const auto fits = [&](const Row& row) { return row.fits(module); };
      const auto row = std::find_if(patterns_.begin(), patterns_.end(), fits);
      found = found_.emplace(module, static_cast<size_t>(row - patterns_.begin())).first;
    }
    return found->second == patterns_.size() ? nullptr : &patterns_[found->second];
  }

  std::map<std::string, Row, std::less<>> names_;  // of each expert of each layer, it may be
  std::vector<Row> patterns_;
  mutable std::map<std::string, size_t, std::less<>> found_;  // which pattern is the first that fits a module
};

}  // namespace llmc::hf
