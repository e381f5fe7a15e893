#include "tools/gguf_groups.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace llmc {
namespace {

double BitsOf(const GgufTensorGroup& group) {
  return 8 * static_cast<double>(group.bytes) / static_cast<double>(group.elements);
}

}  // namespace

absl::StatusOr<std::vector<GgufTensorGroup>> ReadGgufGroups(const std::string& path) {
  ASSIGN_OR_RETURN(GgufFile file, ReadGgufModelFiles(path));
  return std::move(file.groups);
}

std::string GgufGroupsText(const std::vector<GgufTensorGroup>& groups) {
  GgufTensorGroup all = {.name = "all"};
  size_t width = all.name.size();
  for (const GgufTensorGroup& group : groups) width = std::max(width, group.name.size());
  std::string text = "tensors:\n";
  const auto add = [&](const GgufTensorGroup& group) {
    if (group.elements == 0) return;
    absl::StrAppendFormat(&text, "  %-*s  %-7s %5d x %7.3f bits a number\n", static_cast<int>(width), group.name,
                          group.type, group.tensors, BitsOf(group));
    all.tensors += group.tensors;
    all.elements += group.elements;
    all.bytes += group.bytes;
  };
  for (const GgufTensorGroup& group : groups) add(group);
  add(GgufTensorGroup(all));
  return text;
}

nlohmann::ordered_json GgufGroupsJson(const std::vector<GgufTensorGroup>& groups) {
  auto list = nlohmann::ordered_json::array();
  for (const GgufTensorGroup& group : groups) {
    list.push_back({{"name", group.name},
                    {"type", group.type},
                    {"tensors", group.tensors},
                    {"elements", group.elements},
                    {"bytes", group.bytes}});
  }
  return list;
}

}  // namespace llmc
