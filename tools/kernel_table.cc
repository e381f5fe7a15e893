#include "tools/kernel_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "cubins/kernel_resources.h"

namespace llmc {

using Json = nlohmann::ordered_json;

absl::StatusOr<Json> KernelTableJson(const Plan& plan) {
  const absl::string_view cubins = plan.section(plan::Section::kCubins);
  Json rows = Json::array();
  for (const plan::Kernel& kernel : plan.manifest().kernels()) {
    for (const plan::Cubin& cubin : kernel.cubins()) {
      const auto resources = ResourcesOf(cubins.substr(cubin.offset(), cubin.bytes()));
      if (!resources.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(plan.path(), ": ", kernel.entry(), " for ", cubin.target(), ": ",
                                                       resources.status().message()));
      }
      for (const KernelResources& r : *resources) {
        rows.push_back({{"entry", r.entry},
                        {"target", cubin.target()},
                        {"threads", kernel.threads()},
                        {"registers", r.registers},
                        {"stack_bytes", r.stack_bytes},
                        {"shared_bytes", r.shared_bytes + kernel.shared_bytes()},
                        {"code_bytes", r.code_bytes},
                        {"label", kernel.label()}});
      }
    }
  }
  if (rows.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(plan.path(), ": has no code for GPUs; compile it with --target, such as --target=sm_90a"));
  }
  return rows;
}

absl::StatusOr<std::string> KernelTableText(const Plan& plan) {
  ASSIGN_OR_RETURN(const Json rows, KernelTableJson(plan));
  size_t width = 6;
  for (const Json& row : rows) width = std::max(width, row["entry"].get_ref<const std::string&>().size());
  const int column = static_cast<int>(width);
  std::string text = absl::StrFormat("%-*s  %8s  %7s  %9s  %5s  %7s  %7s  %s\n", column, "kernel", "target", "threads",
                                     "registers", "stack", "shared", "code", "first of");
  for (const Json& row : rows) {
    const std::string label = row["label"];
    absl::StrAppend(&text, absl::StrFormat("%-*s  %8s  %7d  %9d  %5d  %7d  %7d  %s\n", column,
                                           row["entry"].get<std::string>(), row["target"].get<std::string>(),
                                           row["threads"].get<int64_t>(), row["registers"].get<int64_t>(),
                                           row["stack_bytes"].get<int64_t>(), row["shared_bytes"].get<int64_t>(),
                                           row["code_bytes"].get<int64_t>(), label.substr(0, label.find(" = "))));
  }
  return text;
}

}  // namespace llmc
