// KernelCall to text; the only place that prints C++.
#include <algorithm>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
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

constexpr int kSmRegisters = 65536;  // of a multiprocessor

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

// The arguments of its function.
std::string PassedText(const KernelCall& call) {
  return call.arguments.empty() ? absl::StrJoin(call.params, ", ", AddName) : call.arguments;
}

std::string BodyText(const KernelCall& call, absl::string_view context, absl::string_view part = "") {
  return absl::StrCat("llmc::", call.function, part, "<Config>(", context, ", ", PassedText(call), ");\n");
}

std::string EntryText(const KernelCall& call, absl::string_view threads, const std::string& entry) {
  // A block that large would have so many registers a thread.
  const std::string bounds = call.registers > 0      ? absl::StrCat(kSmRegisters / call.registers / 128 * 128, ", 1")
                             : call.blocks_of_sm > 0 ? absl::StrCat(threads, ", ", call.blocks_of_sm)
                                                     : std::string(threads);
  const std::string cluster = call.cluster > 0 ? absl::StrCat("__cluster_dims__(", call.cluster, ", 1, 1) ") : "";
  return absl::StrCat("extern \"C\" __global__ __launch_bounds__(", bounds, ") ", cluster, "void ", entry, "(\n    ",
                      absl::StrJoin(call.params, ", ", AddDeclaration), ") {\n",
                      call.pdl && !call.launches_next ? "  llmc::LaunchDependents();\n" : "");
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

// A constant of every task, as an array that the device indexes.
std::string TableText(absl::string_view name, const std::vector<int64_t>& numbers) {
  return absl::StrCat("__constant__ llmc::u16 ", name, "[] = {", absl::StrJoin(numbers, ","), "};\n");
}

std::string TablesText(const RunCall& call) {
  std::vector<int64_t> kinds, first, joins, next;
  for (size_t i = 0; i < call.tasks.size(); ++i) {
    kinds.push_back(call.tasks[i].kind);
    first.push_back(call.tasks[i].first_word);
    joins.push_back(call.Joins(i) ? 1 : 0);
    next.push_back(call.tasks[i].next);
  }
  return absl::StrCat(TableText("kKinds", kinds), TableText("kFirst", first), TableText("kJoins", joins),
                      TableText("kNext", next));
}

// The arguments of a task, of its words from `from` on.
std::string ArgumentsText(const KernelCall& call, int from) {
  std::string text;
  for (const KernelParam& param : call.params) {
    absl::StrAppend(&text, "    const auto ", param.name, " = llmc::OfWord<", param.type, ">::From(words[", from++,
                    "]);\n");
  }
  return text;
}

// What a task that is left out would have made of the row that another one takes.
std::string BeforeText(const KernelCall* before) {
  const std::string head = "  static __device__ __forceinline__ auto Before(const llmc::u64* words) {\n";
  if (before == nullptr) return absl::StrCat(head, "    return llmc::NothingBefore();\n  }\n");
  const int words = static_cast<int>(before->params.size()) + kTileWords;
  return absl::StrCat(ConfigText(*before), "};\n", head, ArgumentsText(*before, -words), "    return llmc::BeforeOf",
                      before->function, "<Config>(", PassedText(*before), ");\n  }\n");
}

// `static constexpr bool` of a task.
std::string FlagsText(const KernelCall& call) {
  const KernelCall::Task& task = *call.task;
  const auto name = [](bool is_so) { return is_so ? "true" : "false"; };
  return absl::StrCat("kStreams = ", name(task.stage_bytes > 0), ", kWaits = ", name(call.pdl),
                      ", kTakes = ", name(task.has_taken), ", kGives = ", name(task.has_given),
                      ", kIsLeftOut = ", name(task.is_left_out), ", kFromLast = ", name(task.is_attention), ";\n");
}

std::string RunText(absl::string_view name, absl::string_view body) {
  return absl::StrCat("  template <class Context>\n  static __device__ __forceinline__ void ", name,
                      "(const Context& context, const llmc::u64* words) {\n", body, "  }\n");
}

// A task of bodies side by side: each is a task in a namespace of its own, whose tiles come behind those of the parts
// before it, as its words do.
std::string PartsText(const KernelCall& call) {
  KernelCall launch = call;  // has parameters for sizes already
  std::string parts, body;
  int64_t tiles = 0;
  for (size_t i = 0; i < launch.params.size(); ++i) {
    const KernelParam& param = launch.params[i];
    if (!absl::c_linear_search(call.sizes, param.name)) continue;
    absl::StrAppend(&body, "    const auto ", param.name, " = llmc::OfWord<", param.type, ">::From(words[", i, "]);\n");
  }
  for (size_t i = 0; i < call.parts.size(); ++i) {
    KernelCall part = call.parts[i];
    part.task->has_taken = call.task->has_taken;
    part.task->has_given = call.task->has_given;
    absl::StrAppend(&parts, "namespace part", i, " {\n", TaskText(part), "}  // namespace part", i, "\n");
    const auto first = absl::c_find_if(
        call.params, [&](const KernelParam& param) { return absl::StartsWith(param.name, ParamOfPart(i, "")); });
    const std::string own = absl::StrCat("words + ", first - call.params.begin());
    const std::string tile =
        i == 0 ? "context.tile" : absl::StrCat("context", i - 1, ".tile - context", i - 1, ".Tiles()");
    const std::string all = part.task->tiles > 0 ? absl::StrCat(part.task->tiles, ", 1, 1")
                                                 : launch.SizesText({part.grid.begin(), part.grid.end()});
    tiles += part.task->tiles;
    absl::StrAppend(&body, "    const auto context", i, " = context.template Of<part", i, "::Task>(", own, ", ", tile,
                    ", ", all, ");\n");
    const bool is_last = i + 1 == call.parts.size();
    absl::StrAppend(&body,
                    is_last ? "    " : absl::StrCat("    if (context", i, ".tile < context", i, ".Tiles()) {\n      "),
                    part.task->stage_bytes > 0 ? "" : absl::StrCat("if (threadIdx.x < part", i, "::Task::kThreads) "),
                    "part", i, "::Task::Run(context", i, ", ", own, ");\n", is_last ? "" : "      return;\n    }\n");
  }
  return absl::StrCat(parts, "struct Task {\n  static constexpr int kThreads = ", call.threads,
                      ";\n  static constexpr bool ", FlagsText(call),
                      tiles > 0 ? absl::StrCat("  static constexpr llmc::u32 kTiles = ", tiles, ";\n") : "",
                      RunText("Run", body), "};\n");
}

}  // namespace

std::string TaskText(const KernelCall& call) {
  const KernelCall::Task& task = *call.task;
  if (task.is_left_out) {
    return absl::StrCat("struct Task {\n  static constexpr int kThreads = 32;\n  static constexpr bool ",
                        FlagsText(call), "};\n");
  }
  if (!call.parts.empty()) return PartsText(call);
  // In a scope of its own: both configurations have the same name.
  std::string before;
  if (task.has_taken && task.is_attention) {
    before = absl::StrCat("struct BeforeHeads {\n", BeforeText(task.before.get()), "};\n");
  }
  const auto function = [&](absl::string_view own, absl::string_view part) {
    return RunText(own, absl::StrCat(ArgumentsText(call, 0), "    ", BodyText(call, "context", part)));
  };
  return absl::StrCat(
      before, ConfigText(call), call.apply,
      "};\nstruct Task {\n  static constexpr int kThreads = Config::kThreads;\n  static constexpr bool ",
      FlagsText(call),
      before.empty() ? ""
                     : absl::StrCat("  static __device__ __forceinline__ auto Before(const llmc::u64* words) {\n"
                                    "    return BeforeHeads::Before(words);\n  }\n",
                                    function("Ahead", "Ahead")),
      function("Run", ""), "};\n");
}

std::string EmitRun(const RunCall& call, const std::string& entry) {
  std::set<std::string> includes = {"#include \"kernels/common/persistent_run.cuh\"\n"};
  std::string kinds, cases, ahead;
  for (size_t i = 0; i < call.kinds.size(); ++i) {
    const KernelCall& kind = call.kinds[i];
    if (kind.parts.empty()) includes.insert(Include(kind));
    for (const KernelCall& part : kind.parts) includes.insert(Include(part));
    absl::StrAppend(&kinds, "namespace task", i, " {\n", TaskText(kind), "}  // namespace task", i, "\n");
    const KernelCall::Task& task = *kind.task;
    if (!task.is_attention || !task.has_taken) continue;
    absl::StrAppend(&ahead, "      case ", i, ": return llmc::RunAhead<Run, task", i, "::Task>(place, words);\n");
  }
  // Those of each layer first, so that their code lies together: 10 to 20 us of 1,770 for the 8B in int4.
  std::vector<int> counts(call.kinds.size()), order(call.kinds.size());
  for (const RunCall::Item& task : call.tasks) ++counts[static_cast<size_t>(task.kind)];
  std::iota(order.begin(), order.end(), 0);
  absl::c_stable_sort(order, [&](int a, int b) { return counts[a] > counts[b]; });
  for (const int i : order) {
    absl::StrAppend(&cases, "      case ", i, ": return llmc::RunTask<kRole, Run, task", i, "::Task>(place, words);\n");
  }
  std::string constants;
  for (const auto& [name, value] : {std::pair<absl::string_view, int64_t>("kBlocks", call.blocks),
                                    {"kTasks", static_cast<int64_t>(call.tasks.size())},
                                    {"kMathWarps", call.math_warps},
                                    {"kHasParts", call.has_parts},
                                    {"kStages", call.stages},
                                    {"kParts", call.Parts()},
                                    {"kInFlight", call.InFlight()},
                                    {"kRowWords", call.row_words},
                                    {"kStageBytes", call.stage_bytes},
                                    {"kBodyBytes", call.body_bytes},
                                    {"kArenaBytes", call.arena_bytes},
                                    {"kSharedBytes", call.SharedBytes()},
                                    {"kThreads", call.Threads()}}) {
    absl::StrAppend(&constants, "  static constexpr int ", name, " = ", value, ";\n");
  }
  return absl::StrCat(
      absl::StrJoin(includes, ""), "namespace {\n", TablesText(call), "#if LLMC_SM90\n", kinds, "struct Run {\n",
      constants,
      "  static __device__ __forceinline__ int Kind(int task) { return kKinds[task]; }\n"
      "  static __device__ __forceinline__ int First(int task) { return kFirst[task]; }\n"
      "  static __device__ __forceinline__ bool Joins(int task) { return kJoins[task] != 0; }\n"
      "  static __device__ __forceinline__ int Next(int task) { return kNext[task]; }\n"
      "  static __device__ __forceinline__ void Ahead(int kind, llmc::RunPlace<Run>& place, const llmc::u64* words) {\n"
      "    switch (kind) {\n",
      ahead,
      "    }\n  }\n"
      "  template <llmc::Role kRole>\n"
      "  static __device__ __forceinline__ void Task(int kind, llmc::RunPlace<Run>& place, const llmc::u64* words) {\n"
      "    switch (kind) {\n",
      cases, "    }\n  }\n};\n#endif\nstruct Words {\n  llmc::u64 of[", call.words,
      "];\n};\n}  // namespace\n\nextern \"C\" __global__ __launch_bounds__(", call.Threads(), ", 1) void ", entry,
      "(\n    const __grid_constant__ Words words, llmc::u32* counter, llmc::DeviceErrorRecord* device_error, "
      "llmc::i64 first_device_error, llmc::u32* rows, llmc::i64* clocks) {\n"
      "#if LLMC_SM90\n  llmc::PersistentRun<Run>(words.of, counter, {device_error, first_device_error}, rows, "
      "clocks);\n#endif\n}\n");
}

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
