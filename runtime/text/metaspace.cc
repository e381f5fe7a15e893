#include "runtime/text/metaspace.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/text/utf8.h"

namespace llmc {

absl::StatusOr<MetaspaceOptions> MetaspaceOptions::FromJson(const JsonNode& node) {
  ASSIGN_OR_RETURN(const std::string replacement, node.GetString("replacement", "\xE2\x96\x81"));
  if (!IsOneChar(replacement)) return node.Error("replacement must be one character");
  // Files of before prepend_scheme say add_prefix_space.
  ASSIGN_OR_RETURN(const bool prefix, node.GetBool("add_prefix_space", true));
  ASSIGN_OR_RETURN(const std::string scheme, node.GetString("prepend_scheme", prefix ? "always" : "never"));
  ASSIGN_OR_RETURN(const bool split, node.GetBool("split", true));
  if (scheme == "always") return MetaspaceOptions{replacement, PrependScheme::kAlways, split};
  if (scheme == "first") return MetaspaceOptions{replacement, PrependScheme::kFirst, split};
  if (scheme == "never") return MetaspaceOptions{replacement, PrependScheme::kNever, split};
  return node.Error(absl::StrCat("prepend_scheme must be always, first or never, is \"", scheme, "\""));
}

}  // namespace llmc
