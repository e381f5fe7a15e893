#include "runtime/plan_check.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "runtime/dim_expression.h"
#include "runtime/host_tensor.h"
#include "runtime/plan_format.h"

namespace llmc::plan {
namespace {

constexpr int kMaxRank = 64;
constexpr uint64_t kMaxBytes = uint64_t{1} << 62;

absl::Status Wrong(const std::string& what) { return absl::InvalidArgumentError(what); }

// Bits of an element by its type's name; 0 if there is no such type.
int BitsOf(absl::string_view dtype) {
  for (int i = 0; i < kNumElementTypes; ++i) {
    const ElementType type = static_cast<ElementType>(i);
    if (ElementTypeName(type) == dtype) return ElementTypeBits(type);
  }
  return 0;
}

// Bytes of a tensor; false if they overflow or the type is none of ours.
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

absl::Status CheckFiles(const Manifest& manifest) {
  absl::flat_hash_set<absl::string_view> paths;
  for (const File& file : manifest.files()) {
    if (!IsContainedPath(file.path())) {
      return Wrong(absl::StrCat("the path \"", file.path(), "\" does not stay in the plan's folder"));
    }
    if (!paths.insert(file.path()).second) return Wrong(absl::StrCat("file \"", file.path(), "\" is listed twice"));
    if (file.sha256().size() != sizeof(Digest) || (file.external() && file.pieces_sha256().size() != sizeof(Digest))) {
      return Wrong(absl::StrCat("file \"", file.path(), "\" has no SHA-256"));
    }
  }
  return absl::OkStatus();
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

absl::Status CheckLanguageModel(const Manifest& manifest) {
  const LanguageModel& lm = manifest.language_model();
  constexpr int64_t kMax = int64_t{1} << 31;
  // Models without paged states may leave sizes open.
  const int64_t least = lm.kv_states_size() == 0 && lm.page_size() == 0 ? 0 : 1;
  if (lm.vocab_size() < least || lm.vocab_size() > kMax || lm.page_size() < least || lm.page_size() > 4096 ||
      lm.max_context() < least || lm.max_context() > kMax || lm.num_layers() < 0 || lm.num_layers() > 65536) {
    return Wrong("the sizes of the language model are out of range");
  }
  const int64_t tokens = lm.vocab_size() == 0 ? kMax : lm.vocab_size();
  absl::flat_hash_set<absl::string_view> states;
  for (const State& state : manifest.states()) states.insert(state.name());
  for (const std::string& state : lm.kv_states()) {
    if (!states.contains(state)) return Wrong(absl::StrCat("KV state ", state, " is no state of the model"));
  }
  for (int64_t id : lm.eos_ids()) {
    if (id < 0 || id >= tokens) return Wrong(absl::StrCat("end token ", id, " is outside the vocabulary"));
  }
  if (lm.has_bos_id() && (lm.bos_id() < 0 || lm.bos_id() >= tokens)) {
    return Wrong(absl::StrCat("begin token ", lm.bos_id(), " is outside the vocabulary"));
  }
  return absl::OkStatus();
}

absl::Status CheckProgram(const Program& program) {
  for (const Buffer& buffer : program.buffers()) {
    if (buffer.first_step() > buffer.last_step() || buffer.last_step() > static_cast<uint32_t>(program.steps_size())) {
      return Wrong(absl::StrCat("buffer ", buffer.name(), " lives outside the steps"));
    }
    if (!program.unplanned().empty()) continue;
    if (buffer.offset() > program.arena_bytes() || buffer.bytes() > program.arena_bytes() - buffer.offset()) {
      return Wrong(absl::StrCat("buffer ", buffer.name(), " lies outside the arena"));
    }
  }
  return absl::OkStatus();
}

// ---- device plans ----------------------------------------------------------------------------------------------
constexpr uint32_t kMaxThreads = 1024;
constexpr uint32_t kMaxSharedBytes = 232448;

bool IsInside(uint64_t offset, uint64_t bytes, uint64_t whole) { return offset <= whole && bytes <= whole - offset; }

absl::Status CheckKernel(const Kernel& kernel, const SectionBytes& sections) {
  if (kernel.entry().empty() || kernel.threads() == 0 || kernel.threads() > kMaxThreads ||
      kernel.shared_bytes() > kMaxSharedBytes) {
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

bool IsSize(const std::string& text) { return DimExpression::Parse(text).ok(); }

bool IsArg(const Arg& arg, const Program& program, const Manifest& manifest) {
  const auto inside = [&arg](const auto& buffers, uint32_t index) {
    return index < static_cast<uint32_t>(buffers.size()) && arg.offset() <= buffers[static_cast<int>(index)].bytes();
  };
  switch (arg.what_case()) {
    case Arg::kBuffer:
      return inside(program.buffers(), arg.buffer());
    case Arg::kPrepared:
      return inside(manifest.prepare().buffers(), arg.prepared());
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
    case Arg::WHAT_NOT_SET:
      return false;
  }
  return false;
}

bool IsGemm(const Step& step) {
  const Gemm& gemm = step.gemm();
  const auto is_float = [](absl::string_view name) { return name == "f32" || name == "f16" || name == "bf16"; };
  constexpr int64_t kMax = int64_t{1} << 31;
  return step.args_size() == 3 && IsSize(gemm.m()) && gemm.n() > 0 && gemm.n() < kMax && gemm.k() > 0 &&
         gemm.k() < kMax && is_float(gemm.in_dtype()) && is_float(gemm.out_dtype());
}

bool IsLaunch(const Launch& launch, const Manifest& manifest) {
  return launch.kernel() < static_cast<uint32_t>(manifest.kernels_size()) && launch.grid_size() == 3 &&
         std::all_of(launch.grid().begin(), launch.grid().end(), IsSize);
}

absl::Status CheckSteps(const Program& program, const Manifest& manifest) {
  for (const Step& step : program.steps()) {
    const bool whole = step.has_launch() ? IsLaunch(step.launch(), manifest)
                       : step.has_gemm() ? IsGemm(step)
                       : step.has_copy() ? step.args_size() == 2 && IsSize(step.copy().bytes())
                                         : step.args_size() == 0;
    if (!whole) return Wrong(absl::StrCat("a step is not whole: ", step.label()));
    for (const Arg& arg : step.args()) {
      if (!IsArg(arg, program, manifest))
        return Wrong(absl::StrCat("an argument is outside its bounds: ", step.label()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckManifest(const Manifest& manifest, const SectionBytes& sections) {
  const uint64_t weights_bytes = sections.weights;
  if (manifest.format_version() != kVersion) return Wrong("the manifest has another format version");
  if (absl::Status status = CheckFiles(manifest); !status.ok()) return status;
  if (absl::Status status = CheckWeights(manifest, weights_bytes); !status.ok()) return status;
  if (absl::Status status = CheckTensors("state", manifest.states()); !status.ok()) return status;
  for (const EntryPoint& entry : manifest.entry_points()) {
    if (absl::Status status = CheckTensors("input", entry.inputs()); !status.ok()) return status;
    if (absl::Status status = CheckTensors("output", entry.outputs()); !status.ok()) return status;
  }
  if (manifest.has_language_model()) {
    if (absl::Status status = CheckLanguageModel(manifest); !status.ok()) return status;
  }
  for (const Kernel& kernel : manifest.kernels()) {
    if (absl::Status status = CheckKernel(kernel, sections); !status.ok()) return status;
  }
  std::vector<const Program*> programs = {&manifest.prepare()};
  for (const Program& program : manifest.programs()) programs.push_back(&program);
  for (const Program* program : programs) {
    if (absl::Status status = CheckProgram(*program); !status.ok()) return status;
    if (absl::Status status = CheckSteps(*program, manifest); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace llmc::plan
