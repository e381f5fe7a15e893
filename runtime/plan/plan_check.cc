#include "runtime/plan/plan_check.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/layout/base.h"
#include "runtime/host_tensor.h"
#include "runtime/plan/dim_expression.h"
#include "runtime/plan/plan_check_internal.h"
#include "runtime/plan/plan_format.h"
#include "runtime/plan/step_programs.h"

namespace llmc::plan {
namespace {

using internal::BitsOf;
using internal::kMaxBytes;
using internal::kMaxRank;
using internal::TensorBytes;
using internal::Wrong;

absl::Status CheckFiles(const Manifest& manifest) {
  absl::flat_hash_set<absl::string_view> paths;
  for (const File& file : manifest.files()) {
    if (!IsContainedPath(file.path())) {
      return Wrong(absl::StrCat("the path \"", file.path(), "\" does not stay in the plan's folder"));
    }
    if (!paths.insert(file.path()).second) return Wrong(absl::StrCat("file \"", file.path(), "\" is listed twice"));
    const std::string& digest = file.external() ? file.pieces_sha256() : file.sha256();
    const std::string& none = file.external() ? file.sha256() : file.pieces_sha256();
    if (digest.size() != sizeof(Digest) || !none.empty()) {
      return Wrong(absl::StrCat("file \"", file.path(), "\" has no SHA-256"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRandom(const Weight& weight) {
  constexpr absl::string_view kFloats[] = {"f32", "f16", "bf16", "f8e4m3", "f8e5m2"};
  constexpr absl::string_view kIntegers[] = {"i32", "i8", "u8", "i4", "u4"};
  const RandomNumbers& random = weight.random();
  const bool is_integer = absl::c_linear_search(kIntegers, weight.dtype());
  const bool is_rounded = is_integer && BitsOf(weight.dtype()) == 8;
  const bool fits = random.bits() ? is_integer : is_rounded || absl::c_linear_search(kFloats, weight.dtype());
  if (fits && !weight.external() && weight.offset() == 0 && random.key() >> 63 == 0 && std::isfinite(random.mean()) &&
      std::isfinite(random.width())) {
    return absl::OkStatus();
  }
  return Wrong(absl::StrCat("weight ", weight.name(), " cannot be of random numbers"));
}

absl::Status CheckWeights(const Manifest& manifest, uint64_t weights_bytes) {
  absl::flat_hash_set<absl::string_view> names;
  for (const Weight& weight : manifest.weights()) {
    const std::string name = absl::StrCat("weight ", weight.name());
    if (!names.insert(weight.name()).second) return Wrong(absl::StrCat(name, " is listed twice"));
    uint64_t bytes = 0;
    if (!TensorBytes(weight.dtype(), weight.shape(), &bytes) || bytes != weight.bytes()) {
      return Wrong(absl::StrCat(name, " has a type and a size that do not agree"));
    }
    if (weight.has_random()) {
      RETURN_IF_ERROR(CheckRandom(weight));
      continue;
    }
    if (weight.external() &&
        (weight.file() >= static_cast<uint32_t>(manifest.files_size()) || !manifest.files(weight.file()).external())) {
      return Wrong(absl::StrCat(name, " is in file ", weight.file(), ", which is not listed as external"));
    }
    const uint64_t end = weight.external() ? manifest.files(weight.file()).bytes() : weights_bytes;
    if (weight.offset() > end || weight.bytes() > end - weight.offset()) {
      return Wrong(absl::StrCat(name, " has ", weight.bytes(), " bytes at ", weight.offset(), ", but there are ", end));
    }
    if (!weight.external() && weight.offset() % kWeightAlignment != 0) {
      return Wrong(absl::StrCat(name, " is not aligned"));
    }
  }
  return absl::OkStatus();
}

template <class Tensors>
absl::Status CheckTensors(absl::string_view what, const Tensors& tensors) {
  absl::flat_hash_set<absl::string_view> names;
  for (const auto& tensor : tensors) {
    if (!names.insert(tensor.name()).second) return Wrong(absl::StrCat(what, " ", tensor.name(), " is listed twice"));
    if (BitsOf(tensor.dtype()) == 0 || tensor.shape_size() > kMaxRank) {
      return Wrong(absl::StrCat(what, " ", tensor.name(), " has no valid type"));
    }
  }
  return absl::OkStatus();
}

bool IsSize(const std::string& text) { return DimExpression::Parse(text).ok(); }

template <class Bounds>
absl::Status CheckBounds(const std::string& of, const Bounds& bounds) {
  for (const DimBound& bound : bounds) {
    if (bound.max() < 0) return Wrong(absl::StrCat("dim ", bound.name(), " of ", of, " has no bound"));
  }
  return absl::OkStatus();
}

absl::Status CheckProgram(const Program& program) {
  const std::string name = absl::StrCat("program ", program.entry_point());
  RETURN_IF_ERROR(CheckBounds(name, program.bounds()));
  if (program.temporary_bytes() > program.arena_bytes()) return Wrong("temporary memory is larger than its arena");
  for (const Buffer& buffer : program.buffers()) {
    if (buffer.first_task() > buffer.last_task() || buffer.last_task() > static_cast<uint32_t>(program.tasks_size())) {
      return Wrong(absl::StrCat("buffer ", buffer.name(), " lives outside the tasks"));
    }
    if (!program.unplanned().empty()) continue;
    if (buffer.offset() > program.arena_bytes() || buffer.bytes() > program.arena_bytes() - buffer.offset()) {
      return Wrong(absl::StrCat("buffer ", buffer.name(), " lies outside the arena"));
    }
    const uint64_t kept = program.arena_bytes() - program.temporary_bytes();
    if (buffer.offset() < kept && buffer.bytes() > kept - buffer.offset()) {
      return Wrong(absl::StrCat("buffer ", buffer.name(), " is temporary in part"));
    }
  }
  return absl::OkStatus();
}

// ---- device plans ----------------------------------------------------------------------------------------------
constexpr uint32_t kMaxThreads = 1024, kMaxBlocks = 65535;

bool IsInside(uint64_t offset, uint64_t bytes, uint64_t whole) { return offset <= whole && bytes <= whole - offset; }

absl::Status CheckKernel(const Kernel& kernel, const SectionBytes& sections) {
  if (kernel.entry().empty() || kernel.threads() == 0 || kernel.threads() > kMaxThreads ||
      kernel.shared_bytes() > uint32_t{kMostSharedBytes}) {
    return Wrong(absl::StrCat("kernel ", kernel.entry(), " cannot be launched"));
  }
  if (!IsInside(kernel.source_offset(), kernel.source_bytes(), sections.sources)) {
    return Wrong(absl::StrCat("the source of kernel ", kernel.entry(), " lies outside its section"));
  }
  for (const Cubin& cubin : kernel.cubins()) {
    if (!IsInside(cubin.offset(), cubin.bytes(), sections.cubins)) {
      return Wrong(absl::StrCat("the code of kernel ", kernel.entry(), " lies outside its section"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHeaders(const Manifest& manifest, uint64_t sources) {
  for (const Header& header : manifest.headers()) {
    if (header.name().empty() || header.name().find('\0') != std::string::npos ||
        !IsInside(header.offset(), header.bytes(), sources)) {
      return Wrong(absl::StrCat("the header ", header.name(), " lies outside the sources"));
    }
  }
  return absl::OkStatus();
}

// Whether a buffer of `prepare` is there when it is done.
bool IsKept(const Program& prepare, const Buffer& buffer) {
  return buffer.bytes() == 0 || buffer.offset() < prepare.arena_bytes() - prepare.temporary_bytes();
}

// A program and what its tasks refer to.
struct Context {
  const Program& program;
  const Program& prepare;  // of its target
  const TargetPrograms& target;
  const Manifest& manifest;
};

bool IsTileMap(const TileMap& map) {
  constexpr uint64_t kMostRowBytes = uint64_t{1} << 31;
  return (map.all_rows() ? map.rows().empty() : IsSize(map.rows())) && map.row_bytes() > 0 &&
         map.row_bytes() % 16 == 0 && map.row_bytes() <= kMostRowBytes && map.tile_rows() > 0 && map.tile_rows() <= 256;
}

bool IsArg(const Arg& arg, const Context& context) {
  const auto& [program, prepare, target, manifest] = context;
  const bool is_prepare = &program == &prepare;
  const auto inside = [&arg](const auto& buffers, uint32_t index) {
    return index < static_cast<uint32_t>(buffers.size()) && arg.offset() <= buffers[static_cast<int>(index)].bytes();
  };
  switch (arg.what_case()) {
    case Arg::kBuffer:  // what `prepare` computes is named as prepared there, too
      return !is_prepare && inside(program.buffers(), arg.buffer());
    case Arg::kPrepared:
      return inside(prepare.buffers(), arg.prepared()) &&
             (is_prepare || IsKept(prepare, prepare.buffers(static_cast<int>(arg.prepared()))));
    case Arg::kWeight:
      return inside(manifest.weights(), arg.weight());
    case Arg::kState:
      return arg.state() < static_cast<uint32_t>(manifest.states_size()) && arg.offset() == 0;
    case Arg::kConstant:
      return arg.constant() < static_cast<uint32_t>(manifest.constants_size()) && arg.offset() == 0;
    case Arg::kDim:
      return IsSize(arg.dim());
    case Arg::kNumber:
      return std::isfinite(arg.number());
    case Arg::kPersistent:
      return inside(target.persistent(), arg.persistent());
    case Arg::kStepMessages:
      return arg.offset() == 0;
    case Arg::kDeviceErrorRecord:
      return arg.offset() == 0 && manifest.device_errors_size() > 0;
    case Arg::WHAT_NOT_SET:
      return false;
  }
  return false;
}

// After a device error record comes the number of the first device error that the kernel can meet.
bool HasDeviceErrorNumbers(const google::protobuf::RepeatedPtrField<Arg>& args, const Manifest& manifest) {
  for (int i = 0; i < args.size(); ++i) {
    if (!args.at(i).has_device_error_record()) continue;
    int number = 0;
    const bool is_number = i + 1 < args.size() && absl::SimpleAtoi(args.at(i + 1).dim(), &number);
    if (!is_number || number < 0 || number >= manifest.device_errors_size()) return false;
  }
  return true;
}

bool IsFloat(absl::string_view name) { return name == "f32" || name == "f16" || name == "bf16"; }
// Factors of f8 come with scales, others do not.
bool IsFactor(absl::string_view name, FactorScales scales) {
  if (scales == FactorScales::NO_SCALES) return IsFloat(name);
  return FactorScales_IsValid(scales) && (name == "f8e4m3" || name == "f8e5m2");
}

bool IsGemm(const Task& task) {
  const Gemm& gemm = task.gemm();
  const bool is_scaled = gemm.scales() != FactorScales::NO_SCALES;
  const int parts = (gemm.bias() ? 1 : 0) + (gemm.residual() ? 1 : 0), args = 3 + parts + (is_scaled ? 2 : 0);
  const bool plain = parts == 0 && !is_scaled && !gemm.gelu_tanh();
  if (gemm.tf32() && gemm.in_dtype() != "f32") return false;
  return task.args_size() == args && IsSize(gemm.m()) && IsSize(gemm.n()) && IsSize(gemm.k()) && IsSize(gemm.batch()) &&
         IsSize(gemm.x_stride()) && IsSize(gemm.weight_stride()) && IsFactor(gemm.in_dtype(), gemm.scales()) &&
         IsFloat(gemm.out_dtype()) && (plain || gemm.batch() == "1");
}

absl::Status CheckTuned(const TunedProducts& tuned) {
  constexpr size_t kMaxName = 256;
  constexpr int64_t kMaxSize = int64_t{1} << 31;
  if (tuned.gpu().size() > kMaxName || tuned.products_size() > kMaxTunedProducts) {
    return Wrong("the list of tuned products is too long");
  }
  const auto is_size = [](int64_t size) { return size > 0 && size < kMaxSize; };
  for (const TunedProduct& p : tuned.products()) {
    if (!is_size(p.m()) || !is_size(p.n()) || !is_size(p.k()) || !IsFactor(p.in_dtype(), p.scales()) ||
        !IsFloat(p.out_dtype()) || (p.tf32() && p.in_dtype() != "f32") ||
        p.proposal() >= static_cast<uint32_t>(kMaxProposals)) {
      return Wrong("a tuned product is none");
    }
  }
  return absl::OkStatus();
}

bool IsKernelTask(const KernelTask& kernel, const Manifest& manifest) {
  return kernel.kernel() < static_cast<uint32_t>(manifest.kernels_size()) && kernel.tiles_size() == 3 &&
         std::all_of(kernel.tiles().begin(), kernel.tiles().end(), IsSize);
}

bool IsCost(const Cost& cost) {
  const std::string* sizes[] = {&cost.weight_bytes(), &cost.state_bytes(), &cost.activation_bytes(), &cost.flops()};
  return std::all_of(std::begin(sizes), std::end(sizes),
                     [](const std::string* size) { return size->empty() || IsSize(*size); });
}

// Each task in one launch, in their order.
absl::Status CheckLaunches(const Program& program) {
  bool whole = program.launches_size() == program.tasks_size();
  for (int i = 0; whole && i < program.tasks_size(); ++i) {
    const Launch& launch = program.launches(i);
    const bool may_depend = program.tasks(i).has_kernel();
    whole = launch.first() == static_cast<uint32_t>(i) && launch.count() == 1 &&
            (launch.mode() == Launch::SERIAL || (launch.mode() == Launch::DEPENDENT && may_depend));
  }
  return whole ? absl::OkStatus()
               : Wrong(absl::StrCat("the launches of program ", program.entry_point(), " are not those of its tasks"));
}

// Tasks of its own, all of kernels, whose arguments are words.
bool IsRun(const Run& run, const Program& program, uint32_t from) {
  const auto tasks = static_cast<uint32_t>(program.tasks_size());
  if (run.first() < from || run.first() > tasks || run.count() == 0 || run.count() > tasks - run.first()) return false;
  for (uint32_t i = run.first(); i < run.first() + run.count(); ++i) {
    const Task& task = program.tasks(static_cast<int>(i));
    const auto is_map = [](const Arg& arg) { return arg.has_tiles(); };
    const bool is_word = std::none_of(task.args().begin(), task.args().end(), is_map);
    if (!task.has_kernel() || task.sampling_size() > 0 || !is_word) return false;
  }
  return true;
}

// What it waits for comes before it.
bool HasOrder(const Task& task, int index) {
  for (int i = 0; i < task.after_size(); ++i) {
    if (task.after(i) >= static_cast<uint32_t>(index) || (i > 0 && task.after(i) <= task.after(i - 1))) return false;
  }
  return true;
}

// `index`: of the task.
absl::Status CheckTask(const Task& task, int index, const Context& context) {
  const bool is_memory = task.has_gemm() || task.has_copy();
  const bool whole = task.has_kernel() ? IsKernelTask(task.kernel(), context.manifest)
                     : task.has_gemm() ? IsGemm(task)
                     : task.has_copy() ? task.args_size() == 2 && IsSize(task.copy().bytes())
                                       : task.args_size() == 0;
  if (!whole || !HasOrder(task, index) || !IsCost(task.cost())) {
    return Wrong(absl::StrCat("a task is not whole: ", task.label()));
  }
  if (!HasDeviceErrorNumbers(task.args(), context.manifest)) {
    return Wrong(absl::StrCat("a device error is not the plan's: ", task.label()));
  }
  for (const Arg& arg : task.args()) {
    const bool is_none = arg.has_dim() || arg.has_number() || arg.has_device_error_record();
    if ((is_memory || arg.has_tiles()) && (is_none || (is_memory && arg.has_tiles()))) {
      return Wrong(absl::StrCat("an argument is no memory: ", task.label()));
    }
    if (!IsArg(arg, context) || (arg.has_tiles() && !IsTileMap(arg.tiles())))
      return Wrong(absl::StrCat("an argument is outside its bounds: ", task.label()));
  }
  return absl::OkStatus();
}

bool IsSizeRule(const SizeRule& rule) {
  const bool expected = rule.expected().empty() || IsSize(rule.expected());
  return rule.input().empty() ? IsSize(rule.size()) && expected
                              : !rule.symbol().empty() && rule.size().empty() && rule.element() >= 0 &&
                                    rule.element() < (int64_t{1} << 40) && expected;
}

absl::Status CheckRuns(const Context& context) {
  uint32_t from = 0;
  for (const Run& run : context.program.runs()) {
    const bool fits = run.kernel() < static_cast<uint32_t>(context.manifest.kernels_size()) && run.blocks() > 0 &&
                      run.blocks() <= kMaxBlocks && IsRun(run, context.program, from);
    if (!fits ||
        !std::all_of(run.args().begin(), run.args().end(), [&](const Arg& arg) { return IsArg(arg, context); })) {
      return Wrong(absl::StrCat("a run of tasks of program ", context.program.entry_point(), " is not whole"));
    }
    if (!HasDeviceErrorNumbers(run.args(), context.manifest)) {
      return Wrong(
          absl::StrCat("a device error is not the plan's: a run of tasks of program ", context.program.entry_point()));
    }
    from = run.first() + run.count();
  }
  return absl::OkStatus();
}

absl::Status CheckTasks(const Context& context) {
  const Program& program = context.program;
  for (const SizeRule& rule : program.size_rules()) {
    if (!IsSizeRule(rule)) return Wrong(absl::StrCat("a rule for sizes is not whole: ", rule.label()));
  }
  for (const Buffer& buffer : program.buffers()) {  // places are found at run time
    if (program.unplanned().empty() || context.manifest.targets().empty()) break;
    if (!IsSize(buffer.size())) return Wrong(absl::StrCat("buffer ", buffer.name(), " has no size"));
  }
  for (int i = 0; i < program.tasks_size(); ++i) {
    RETURN_IF_ERROR(CheckTask(program.tasks(i), i, context));
  }
  return CheckRuns(context);
}

absl::Status CheckPersistent(const TargetPrograms& target) {
  for (const Buffer& buffer : target.persistent()) {
    if (buffer.offset() > kMaxBytes || buffer.bytes() > kMaxBytes) {
      return Wrong(absl::StrCat("the persistent buffer ", buffer.name(), " is too large"));
    }
  }
  return absl::OkStatus();
}

// The indices of a target's programs, each once: no program has two roles.
absl::Status CheckIndices(const TargetPrograms& target, int count) {
  std::vector<uint32_t> indices(target.programs().begin(), target.programs().end());
  indices.push_back(target.prepare());
  std::sort(indices.begin(), indices.end());
  const bool repeated = std::adjacent_find(indices.begin(), indices.end()) != indices.end();
  if (repeated || indices.back() >= static_cast<uint32_t>(count)) {
    return Wrong(absl::StrCat("the programs of target ", target.target(), " are not those of the plan"));
  }
  return absl::OkStatus();
}

// Targets share programs: each is checked with the `prepare` and the persistent memory of each target.
absl::Status CheckTargets(const Manifest& manifest) {
  constexpr size_t kMaxName = 32;
  if (manifest.targets_size() > kMaxTargets) return Wrong("there are too many targets");
  absl::flat_hash_set<absl::string_view> names;
  std::vector<bool> used(static_cast<size_t>(manifest.programs_size()));
  for (const TargetPrograms& target : manifest.targets()) {
    if (target.target().empty() || target.target().size() > kMaxName || !names.insert(target.target()).second) {
      return Wrong(absl::StrCat("target ", target.target(), " is none, or listed twice"));
    }
    RETURN_IF_ERROR(CheckIndices(target, manifest.programs_size()));
    const Program& prepare = manifest.programs(static_cast<int>(target.prepare()));
    RETURN_IF_ERROR(CheckPersistent(target));
    const auto check = [&](uint32_t index) -> absl::Status {
      used[index] = true;
      const Program& program = manifest.programs(static_cast<int>(index));
      RETURN_IF_ERROR(CheckLaunches(program));
      return CheckTasks({program, prepare, target, manifest});
    };
    for (const uint32_t program : target.programs()) {
      RETURN_IF_ERROR(check(program));
    }
    RETURN_IF_ERROR(check(target.prepare()));
    if (!prepare.unplanned().empty()) return Wrong("what runs at load has no places in memory");
  }
  const auto unused = std::find(used.begin(), used.end(), false);
  if (unused == used.end()) return absl::OkStatus();
  return Wrong(absl::StrCat("no target runs program ", unused - used.begin()));
}

}  // namespace

namespace internal {

absl::Status Wrong(const std::string& what) { return absl::InvalidArgumentError(what); }

int BitsOf(absl::string_view dtype) {
  const absl::StatusOr<DType> type = ParseDType(dtype);
  return type.ok() ? DTypeBits(*type) : 0;
}

bool TensorBytes(absl::string_view dtype, const google::protobuf::RepeatedField<int64_t>& shape, uint64_t* bytes) {
  const int bits = BitsOf(dtype);
  if (bits == 0 || shape.size() > kMaxRank) return false;
  uint64_t elements = 1;
  for (int64_t dim : shape) {
    if (dim < 0) return false;
    if (__builtin_mul_overflow(elements, static_cast<uint64_t>(dim), &elements)) return false;
  }
  if (__builtin_mul_overflow(elements, static_cast<uint64_t>(bits), &elements) || elements > kMaxBytes) return false;
  *bytes = (elements + 7) / 8;
  return true;
}

}  // namespace internal

absl::Status CheckManifest(const Manifest& manifest, const SectionBytes& sections) {
  const uint64_t weights_bytes = sections.weights;
  if (manifest.format_version() != kVersion) return Wrong("the manifest has another format version");
  RETURN_IF_ERROR(CheckFiles(manifest));
  RETURN_IF_ERROR(CheckWeights(manifest, weights_bytes));
  RETURN_IF_ERROR(internal::CheckStates(manifest));
  RETURN_IF_ERROR(CheckBounds("the model", manifest.dims()));
  for (const EntryPoint& entry : manifest.entry_points()) {
    if (!manifest.targets().empty() && entry.output_values_size() != entry.outputs_size()) {
      return Wrong(absl::StrCat("entry point ", entry.name(), " does not name the value of each output"));
    }
    RETURN_IF_ERROR(CheckTensors("input", entry.inputs()));
    RETURN_IF_ERROR(ContractOf(entry).status());
    RETURN_IF_ERROR(CheckTensors("output", entry.outputs()));
  }
  if (manifest.has_language_model()) {
    RETURN_IF_ERROR(internal::CheckLanguageModel(manifest));
  }
  RETURN_IF_ERROR(CheckHeaders(manifest, sections.sources));
  for (const Kernel& kernel : manifest.kernels()) {
    RETURN_IF_ERROR(CheckKernel(kernel, sections));
  }
  RETURN_IF_ERROR(CheckTuned(manifest.tuned()));
  for (const Program& program : manifest.programs()) {
    RETURN_IF_ERROR(CheckProgram(program));
  }
  if (!manifest.targets().empty()) return CheckTargets(manifest);
  for (const Program& program : manifest.programs()) {
    const bool runs = std::any_of(program.tasks().begin(), program.tasks().end(),
                                  [](const Task& task) { return task.what_case() != Task::WHAT_NOT_SET; });
    if (runs || program.launches_size() > 0) return Wrong("there is no target, but tasks for one");
    RETURN_IF_ERROR(CheckTasks({program, Program::default_instance(), TargetPrograms::default_instance(), manifest}));
  }
  return absl::OkStatus();
}

}  // namespace llmc::plan
