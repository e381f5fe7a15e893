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

namespace {

void AddDeclaration(std::string* to, const KernelParam& param) { absl::StrAppend(to, param.type, " ", param.name); }
void AddName(std::string* to, const KernelParam& param) { to->append(param.name); }

std::string Include(const KernelCall& call) { return absl::StrCat("#include \"kernels/", call.header, ".cuh\"\n"); }

// `struct Config` up to its functions.
std::string ConfigText(const KernelCall& call) {
  std::string out = "struct Config {\n";
  for (const auto& [name, type] : call.types) absl::StrAppend(&out, "  using ", name, " = ", type, ";\n");
  for (const auto& [name, value] : call.constants) {
    absl::StrAppend(&out, "  static constexpr int ", name, " = ", value, ";\n");
  }
  absl::StrAppend(&out, "  static constexpr int kThreads = ", call.threads, ";\n");
  return out;
}

std::string BodyText(const KernelCall& call, absl::string_view context) {
  return absl::StrCat("llmc::", call.function, "<Config>(", context, ", ",
                      call.arguments.empty() ? absl::StrJoin(call.params, ", ", AddName) : call.arguments, ");\n");
}

std::string EntryText(const KernelCall& call, absl::string_view threads, const std::string& entry) {
  return absl::StrCat("extern \"C\" __global__ __launch_bounds__(", threads, ") void ", entry, "(\n    ",
                      absl::StrJoin(call.params, ", ", AddDeclaration), ") {\n",
                      call.pdl ? "  llmc::LaunchDependents();\n" : "");
}

// The parameter of a launch for one of its part.
std::string ParamOfPart(size_t part, const std::string& name) { return absl::StrCat("p", part, "_", name); }

// Each part is a function in a namespace of its own, and the entry calls that of its block.
std::string EmitParts(const KernelCall& call, const std::string& entry) {
  std::string includes, functions, body;
  KernelCall launch = call;  // has parameters for sizes already
  for (size_t i = 0; i < call.parts.size(); ++i) {
    const KernelCall& part = call.parts[i];
    const std::string name = absl::StrCat("part", i);
    absl::StrAppend(&includes, Include(part));
    absl::StrAppend(&functions, "namespace ", name, " {\n", ConfigText(part), part.apply,
                    "};\n__device__ __forceinline__ void Run(const llmc::PartContext& context,\n    ",
                    absl::StrJoin(part.params, ", ", AddDeclaration), ") {\n  ", BodyText(part, "context"),
                    "}\n}  // namespace ", name, "\n");
    const std::string block =
        i == 0 ? "blockIdx.x" : absl::StrCat("context", i - 1, ".block - context", i - 1, ".Tiles()");
    const std::string tiles = launch.SizesText({part.grid.begin(), part.grid.end()});
    absl::StrAppend(&body, "  const llmc::PartContext context", i, "(", block, ", ", tiles, ");\n");
    const std::string arguments = absl::StrJoin(
        part.params, ", ", [&](std::string* to, const KernelParam& param) { to->append(ParamOfPart(i, param.name)); });
    const bool is_last = i + 1 == call.parts.size();
    absl::StrAppend(&body, is_last ? "" : absl::StrCat("  if (context", i, ".block < context", i, ".Tiles()) {\n"),
                    "  if (threadIdx.x < ", name, "::Config::kThreads) ", name, "::Run(context", i, ", ", arguments,
                    ");\n", is_last ? "" : "  return;\n  }\n");
  }
  return absl::StrCat(includes, "namespace {\n", functions, "}  // namespace\n\n",
                      EntryText(call, absl::StrCat(call.threads), entry), body, "}\n");
}

}  // namespace

void KernelCall::AddPart(KernelCall part) {
  for (KernelParam param : part.params) {
    param.name = ParamOfPart(parts.size(), param.name);
    params.push_back(std::move(param));
  }
  for (const Size& tiles : part.grid) SizeText(tiles);
  const Size blocks = part.grid[0] * part.grid[1] * part.grid[2];
  grid[0] = parts.empty() ? blocks : grid[0] + blocks;
  threads = parts.empty() ? part.threads : std::max(threads, part.threads);
  shared_bytes = std::max(shared_bytes, part.UsedBytes());
  parts.push_back(std::move(part));
}

std::string KernelCall::Name() const {
  if (parts.empty()) return header.substr(header.rfind('/') + 1);
  return absl::StrJoin(parts, "_and_", [](std::string* to, const KernelCall& part) { to->append(part.Name()); });
}

EmittedKernel EmitKernel(const KernelCall& call, const std::string& entry) {
  if (!call.parts.empty()) return {.source = EmitParts(call, entry), .notes = {}};
  EmittedKernel kernel;
  std::string& out = kernel.source;
  out = absl::StrCat(Include(call), "namespace {\n", ConfigText(call));
  if (!call.apply_notes.empty()) {
    kernel.notes.resize(static_cast<size_t>(std::count(out.begin(), out.end(), '\n')));
    kernel.notes.insert(kernel.notes.end(), call.apply_notes.begin(), call.apply_notes.end());
  }
  absl::StrAppend(&out, call.apply, "};\n}  // namespace\n\n", EntryText(call, "Config::kThreads", entry), "  ",
                  BodyText(call, "llmc::LaunchContext()"), "}\n");
  return kernel;
}

}  // namespace llmc
