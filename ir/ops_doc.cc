#include "ir/ops_doc.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "ir/op.h"
#include "ir/text.h"

namespace llmc {
namespace {

std::string Signature(const OpDef& op) {
  std::string out = "`";
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const bool optional = i >= op.min_operands;
    absl::StrAppend(&out, i == 0 ? "" : ", ", op.operands[i], optional ? "?" : "", op.variadic() ? "…" : "");
  }
  return out.size() == 1 ? "" : absl::StrCat(out, "`");
}

std::string Attributes(const OpDef& op) {
  std::vector<std::string> parts;
  for (const absl::string_view key : op.attrs) {
    const Attr& value = op.defaults.find(key)->second;
    parts.push_back(std::holds_alternative<Tensor>(value) ? absl::StrCat("`", key, "`")
                                                          : absl::StrCat("`", key, " = ", AttrToString(value), "`"));
  }
  return absl::StrJoin(parts, ", ");
}

}  // namespace

std::string OpsMarkdown() {
  std::string out =
      "# Ops\n\nMade from the op structs in `ir/ops_*.h`; a test keeps it so. `?` marks an optional operand, `…` any "
      "number;\nattributes are shown with their defaults.\n\n| op | operands | attributes | results | meaning |\n"
      "|---|---|---|---|---|\n";
  for (const OpDef* op : AllOpDefs()) {
    absl::StrAppend(&out, "| `", op->info.name, "` | ", Signature(*op), " | ", Attributes(*op), " | ", op->info.results,
                    " | ", absl::StrReplaceAll(op->info.summary, {{"|", "\\|"}}), " |\n");
  }
  return out;
}

}  // namespace llmc
