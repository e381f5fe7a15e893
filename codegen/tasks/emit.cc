// KernelCall to text; the only place that prints C++.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "codegen/tasks/kernel_call.h"

namespace llmc {

std::string DeviceType(DType dtype) {
  if (dtype == DType::kF64) return "double";
  if (dtype == DType::kF32) return "float";
  if (dtype == DType::kBool) return "bool";
  return absl::StrCat("llmc::", DTypeName(dtype));
}

std::string DeviceType(const Value* value) { return DeviceType(value->type.dtype); }

EmittedKernel EmitKernel(const KernelCall& call, const std::string& entry) {
  EmittedKernel kernel;
  std::string& out = kernel.source;
  out = absl::StrCat("#include \"kernels/", call.header, ".cuh\"\nnamespace {\nstruct Config {\n");
  for (const auto& [name, type] : call.types) absl::StrAppend(&out, "  using ", name, " = ", type, ";\n");
  for (const auto& [name, value] : call.constants) {
    absl::StrAppend(&out, "  static constexpr int ", name, " = ", value, ";\n");
  }
  absl::StrAppend(&out, "  static constexpr int kThreads = ", call.threads, ";\n");
  if (!call.apply_notes.empty()) {
    kernel.notes.resize(static_cast<size_t>(std::count(out.begin(), out.end(), '\n')));
    kernel.notes.insert(kernel.notes.end(), call.apply_notes.begin(), call.apply_notes.end());
  }
  absl::StrAppend(&out, call.apply, "};\n}  // namespace\n\n");
  const auto declaration = [](std::string* to, const KernelParam& p) { absl::StrAppend(to, p.type, " ", p.name); };
  const auto name = [](std::string* to, const KernelParam& p) { to->append(p.name); };
  absl::StrAppend(&out, "extern \"C\" __global__ __launch_bounds__(Config::kThreads) void ", entry, "(\n    ",
                  absl::StrJoin(call.params, ", ", declaration), ") {\n",
                  call.pdl ? "  llmc::LaunchDependents();\n" : "", "  llmc::", call.function,
                  "<Config>(llmc::LaunchContext(), ",
                  call.arguments.empty() ? absl::StrJoin(call.params, ", ", name) : call.arguments, ");\n}\n");
  return kernel;
}

}  // namespace llmc
