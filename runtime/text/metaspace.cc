#include "runtime/text/metaspace.h"

#include "absl/strings/str_cat.h"
#include "runtime/text/utf8.h"

namespace llmc {

absl::StatusOr<MetaspaceOptions> MetaspaceOptions::FromJson(const JsonNode& node) {
  const absl::StatusOr<std::string> replacement = node.GetString("replacement", "\xE2\x96\x81");
  if (!replacement.ok()) return replacement.status();
  if (!IsOneChar(*replacement)) return node.Error("replacement must be one character");
  // Files of before prepend_scheme say add_prefix_space.
  const absl::StatusOr<bool> prefix = node.GetBool("add_prefix_space", true);
  if (!prefix.ok()) return prefix.status();
  const absl::StatusOr<std::string> scheme = node.GetString("prepend_scheme", *prefix ? "always" : "never");
  if (!scheme.ok()) return scheme.status();
  const absl::StatusOr<bool> split = node.GetBool("split", true);
  if (!split.ok()) return split.status();
  if (*scheme == "always") return MetaspaceOptions{*replacement, PrependScheme::kAlways, *split};
  if (*scheme == "first") return MetaspaceOptions{*replacement, PrependScheme::kFirst, *split};
  if (*scheme == "never") return MetaspaceOptions{*replacement, PrependScheme::kNever, *split};
  return node.Error(absl::StrCat("prepend_scheme must be always, first or never, is \"", *scheme, "\""));
}

}  // namespace llmc
