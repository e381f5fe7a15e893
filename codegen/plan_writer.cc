#include "codegen/plan_writer.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/on_all_cores.h"
#include "base/status_macros.h"
#include "codegen/device_plan.h"
#include "codegen/memory/memory_plan.h"
#include "files/file_writer.h"
#include "files/random_source.h"
#include "ir/state_type.h"
#include "ir/text.h"
#include "runtime/plan/plan_check.h"
#include "runtime/plan/plan_file_writer.h"
#include "runtime/plan/plan_format.h"
#include "runtime/plan/plan_text.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using plan::Digest;
using plan::Section;

// Digests of zeros stand for none.
absl::Status DescribeFile(const PlanInputFile& input, bool hash, plan::File* file) {
  Digest digest = {};
  if (hash) {
    ASSIGN_OR_RETURN(digest, plan::HashFile(input.path, input.external));
  }
  std::error_code error;
  file->set_path(input.recorded_path);
  file->set_bytes(fs::file_size(input.path, error));
  file->set_external(input.external);
  (input.external ? file->mutable_pieces_sha256() : file->mutable_sha256())->assign(digest.begin(), digest.end());
  return error ? absl::NotFoundError(absl::StrCat(input.path, ": cannot be read")) : absl::OkStatus();
}

// SHA-256 knows one core for each file.
absl::Status AddFiles(absl::Span<const PlanInputFile> inputs, bool hash, plan::Manifest* manifest) {
  std::vector<absl::Status> results(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) manifest->add_files();
  OnAllCores(inputs.size(), [&](size_t i) {
    results[i] = DescribeFile(inputs[i], hash, manifest->mutable_files(static_cast<int>(i)));
  });
  for (const absl::Status& result : results) {
    if (!result.ok()) return result;
  }
  return absl::OkStatus();
}

void SetType(const TensorType& type, plan::TensorSpec* spec) {
  spec->set_dtype(std::string(DTypeName(type.dtype)));
  for (const Dim& dim : type.shape) spec->add_shape(dim.ToString());
}

void AddEntryPoint(const Step& step, plan::EntryPoint* entry) {
  entry->set_name(step.name);
  for (const Value* param : step.params) {
    plan::TensorSpec* input = entry->add_inputs();
    input->set_name(param->name.substr(1));
    SetType(param->type, input);
    input->set_role(param->role.ToString());
  }
  for (const Output& from : step.outputs) {
    plan::TensorSpec* output = entry->add_outputs();
    output->set_name(from.name);
    SetType(from.value->type, output);
    entry->add_output_values(from.value->name);
  }
}

// Over 250 lines: a method for each section of the file, which share what was written.
class PlanWriter {
 public:
  PlanWriter(const Model& model, const PlanOptions& options) : model_(model), options_(options) {}

  absl::Status Write(const std::string& path) {
    RETURN_IF_ERROR(MakeManifest());
    RETURN_IF_ERROR(Dump());
    ASSIGN_OR_RETURN(std::unique_ptr<FileWriter> file, FileWriter::Create(path));
    if (file->is_pipe()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": is a pipe; a plan, whose beginning is written last, needs a file"));
    }
    RETURN_IF_ERROR(WriteSections(plan::PlanFileWriter(file.get())));
    return file->Commit();
  }

  absl::StatusOr<plan::Manifest> Manifest(std::string* sources, plan::Lowering* lowering) {
    compile_ = false;
    RETURN_IF_ERROR(MakeManifest());
    if (sources != nullptr) *sources = std::move(code_.sources);
    if (lowering != nullptr) *lowering = std::move(code_.lowering);
    return std::move(manifest_);
  }

 private:
  absl::Status MakeManifest() {
    manifest_.set_format_version(plan::kVersion);
    manifest_.set_compiler_version(options_.compiler_version);
    for (const std::string& flag : options_.flags) manifest_.add_flags(flag);
    manifest_.set_model_name(model_.name);
    RETURN_IF_ERROR(AddFiles(options_.files, options_.hash_files, &manifest_));
    SetBounds(model_.dims, manifest_.mutable_dims());
    for (const Value* state : model_.states) DescribeState(*state, manifest_.add_states());
    for (const Value* weight : model_.weights) {
      RETURN_IF_ERROR(AddWeight(*weight));
    }
    if (options_.language_model.has_value()) AddLanguageModel(*options_.language_model);
    for (const auto& step : model_.steps) AddEntryPoint(*step, manifest_.add_entry_points());
    ASSIGN_OR_RETURN(bool device, options_.targets.empty() ? false : PlanForDevice());
    if (!device) {
      RETURN_IF_ERROR(PlanForHost());
    }
    if (device && compile_ && options_.tune) {
      ASSIGN_OR_RETURN(plan::TunedProducts tuned, options_.tune(manifest_));
      if (tuned.timed() > 0) *manifest_.mutable_tuned() = std::move(tuned);
    }
    plan_text_ = PlanText(manifest_);
    if (absl::Status status = Check(manifest_, code_); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("the plan would not load: ", status.message()));
    }
    return absl::OkStatus();
  }

  // Some checkpoints name tokens that their vocabulary lacks: the model never gives those.
  void AddLanguageModel(const plan::LanguageModel& from) {
    plan::LanguageModel* lm = manifest_.mutable_language_model();
    *lm = from;
    const int64_t tokens = lm->vocab_size() == 0 ? std::numeric_limits<int32_t>::max() : lm->vocab_size();
    const auto outside = [&](int64_t id) { return id < 0 || id >= tokens; };
    auto* ids = lm->mutable_eos_ids();
    ids->erase(std::remove_if(ids->begin(), ids->end(), outside), ids->end());
    if (lm->has_bos_id() && outside(lm->bos_id())) lm->clear_bos_id();
  }

  // False: there can be no code for GPUs, which `options_.on_host_only` now knows.
  absl::StatusOr<bool> PlanForDevice() {
    plan::Manifest manifest = manifest_;
    DeviceCode code;
    absl::Status status = PlanDevice(model_, options_.targets, &manifest, &code, options_.device);
    if (status.ok() && compile_) status = CompileDevicePlan(options_.compile, &manifest, &code);
    if (status.ok()) {
      if (absl::Status sound = Check(manifest, code); !sound.ok()) {  // what a reader would refuse
        status = absl::UnimplementedError(absl::StrCat("there is no GPU form that a plan can hold: ", sound.message()));
      }
    }
    if (status.ok()) {
      manifest_ = std::move(manifest);
      code_ = std::move(code);
      return true;
    }
    if (!options_.on_host_only || !(absl::IsUnimplemented(status) || absl::IsNotFound(status))) return status;
    options_.on_host_only(status);
    return false;
  }

  absl::Status Check(const plan::Manifest& manifest, const DeviceCode& code) const {
    return plan::CheckManifest(
        manifest, {.weights = weights_bytes_, .sources = code.sources.size(), .cubins = code.cubins.size()});
  }

  absl::Status PlanForHost() {
    for (const auto& step : model_.steps) {
      ASSIGN_OR_RETURN(plan::Program program, PlanMemory(*step, model_.dims, UnitsOf(*step)));
      *manifest_.add_programs() = std::move(program);
    }
    return absl::OkStatus();
  }

  // Files of a folder of the dump, in place of those that an earlier dump left there.
  absl::Status DumpFolder(absl::string_view name, const std::map<std::string, std::string>& files) const {
    const fs::path folder = fs::path(options_.dump_dir) / std::string(name);
    std::error_code error;
    std::vector<fs::path> old;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      if (it->path().extension() == (name == "kernels" ? ".cu" : ".lir")) old.push_back(it->path());
    }
    for (const fs::path& file : old) fs::remove(file, error);
    if (!files.empty()) fs::create_directories(folder, error);
    for (const auto& [file, text] : files) RETURN_IF_ERROR(WriteWholeFile((folder / file).string(), text));
    return absl::OkStatus();
  }

  absl::Status Dump() const {
    if (options_.dump_dir.empty()) return absl::OkStatus();
    std::map<std::string, std::string> kernels, lowered;
    for (const plan::Kernel& kernel : manifest_.kernels()) {
      kernels[absl::StrCat(kernel.entry(), ".cu")] = KernelListing(kernel, code_.sources);
    }
    // Each is a model that compiles to a plan with these kernels.
    for (const plan::LoweredProgram& program : code_.lowering.programs()) {
      const std::string file = absl::StrCat(absl::StrReplaceAll(program.name(), {{"/", "."}}), ".lir");
      const std::string target = program.name().substr(0, program.name().find('/'));
      const std::string flags = absl::StrJoin(options_.weight_flags, " ");
      lowered[file] = absl::StrCat("// llmc compile ", file, " --target=", target, flags.empty() ? "" : " ", flags,
                                   "\n", program.text());
    }
    RETURN_IF_ERROR(DumpFolder("kernels", kernels));
    RETURN_IF_ERROR(DumpFolder("lowered", lowered));
    return WriteWholeFile((fs::path(options_.dump_dir) / "plan.txt").string(), plan_text_);
  }

  // With its name and type, whose size is known.
  plan::Weight* NewWeight(const Value& weight) {
    plan::Weight* to = manifest_.add_weights();
    to->set_name(weight.name);
    to->set_dtype(std::string(DTypeName(weight.type.dtype)));
    for (const Dim& dim : weight.type.shape) to->add_shape(dim.value());
    to->set_bytes(static_cast<uint64_t>(weight.type.Bytes().number()));
    return to;
  }

  absl::Status AddWeight(const Value& weight) {
    if (const auto random = ParseRandomSource(weight.source)) return AddRandomWeight(weight, *random);
    auto data = model_.data.find(weight.name);
    if (data == model_.data.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("weight ", weight.name, " has no data; its source is \"", weight.source, "\""));
    }
    const Tensor& tensor = data->second;
    TensorType actual{tensor.dtype(), Dims(tensor.shape().begin(), tensor.shape().end())};
    if (actual != weight.type) {
      return absl::InvalidArgumentError(absl::StrCat("weight ", weight.name, " is declared ", weight.type.ToString(),
                                                     ", its data is ", actual.ToString()));
    }
    plan::Weight* to = NewWeight(weight);
    if (auto it = options_.external_weights.find(weight.name); it != options_.external_weights.end()) {
      return SetExternal(it->second, to);
    }
    const auto [place, added] = places_.try_emplace({tensor.raw(), tensor.bytes()}, weights_bytes_);
    if (added) {
      place->second = plan::AlignUp(weights_bytes_, plan::kWeightAlignment);
      weights_bytes_ = place->second + static_cast<uint64_t>(tensor.bytes());
      stored_.emplace_back(place->second, absl::string_view(tensor.raw(), static_cast<size_t>(tensor.bytes())));
    }
    to->set_offset(place->second);
    return absl::OkStatus();
  }

  absl::Status AddRandomWeight(const Value& weight, const RandomNumbers& random) {
    if (!weight.type.Bytes().is_number()) {
      return absl::InternalError(absl::StrCat(weight.name, ": a weight of unknown size"));
    }
    plan::Weight* to = NewWeight(weight);
    to->mutable_random()->set_key(RandomKey(weight.source));
    to->mutable_random()->set_mean(random.mean);
    to->mutable_random()->set_width(random.width);
    to->mutable_random()->set_bits(random.bits);
    return absl::OkStatus();
  }

  absl::Status SetExternal(const ExternalWeight& place, plan::Weight* weight) const {
    for (size_t i = 0; i < options_.files.size(); ++i) {
      if (options_.files[i].recorded_path != place.recorded_path || !options_.files[i].external) continue;
      weight->set_external(true);
      weight->set_file(static_cast<uint32_t>(i));
      weight->set_offset(static_cast<uint64_t>(place.offset));
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("weight ", weight->name(), " is in \"", place.recorded_path,
                                                   "\", which is no external input file"));
  }

  std::string TokenizerSection() const {
    plan::TokenizerFiles section;
    for (const SideFile& file : options_.tokenizer) {
      plan::TokenizerFiles::File* to = section.add_files();
      to->set_name(file.name);
      to->set_contents(file.text);
    }
    return section.SerializeAsString();
  }

  absl::Status WriteSections(plan::PlanFileWriter file) const {
    const std::string ir_text = PrintModel(model_), lowering = code_.lowering.SerializeAsString();
    const std::string manifest = manifest_.SerializeAsString(), tokenizer = TokenizerSection();
    plan::Manifest again;
    if (manifest.empty() || !again.ParseFromString(manifest)) {
      return absl::InvalidArgumentError("the manifest cannot be written: some name is not valid UTF-8");
    }
    std::vector<std::pair<Section, absl::string_view>> sections = {
        {Section::kManifest, manifest},
        {Section::kIrText, ir_text},
        {Section::kLedger, options_.ledger},
        {Section::kTokenizer, tokenizer},
        {Section::kTokenizerConfig, options_.tokenizer_config},
        {Section::kChatTemplate, options_.chat_template},
        {Section::kGenerationConfig, options_.generation_config},
        {Section::kConfigJson, options_.config_json},
        {Section::kPlanText, plan_text_},
        {Section::kLowering, lowering},
        {Section::kSources, code_.sources},
        {Section::kCubins, code_.cubins},
    };
    std::erase_if(sections, [](const auto& section) { return section.second.empty(); });
    RETURN_IF_ERROR(file.Begin(sections.size() + (weights_bytes_ > 0 ? 1 : 0)));
    for (const auto& [section, contents] : sections) {
      RETURN_IF_ERROR(file.Add(section, contents));
    }
    if (weights_bytes_ > 0) {
      RETURN_IF_ERROR(file.AddWeights(stored_, [&](int64_t done) {
        if (options_.on_weight) options_.on_weight(done, static_cast<int64_t>(stored_.size()));
      }));
    }
    return file.Finish();
  }

  const Model& model_;
  const PlanOptions& options_;
  bool compile_ = true;
  plan::Manifest manifest_;
  std::string plan_text_;
  DeviceCode code_;
  absl::flat_hash_map<std::pair<const char*, int64_t>, uint64_t> places_;
  std::vector<std::pair<uint64_t, absl::string_view>> stored_;  // offset in the section, in rising order
  uint64_t weights_bytes_ = 0;
};

}  // namespace

void DescribeState(const Value& state, plan::State* to) {
  const StateType& type = *state.state;
  to->set_name(state.name);
  to->set_kind(type.kind == StateKind::kPaged ? plan::State::PAGED : plan::State::PER_SEQUENCE);
  to->set_pool(type.count.ToString());
  to->set_page_size(type.page_size);
  for (const StateComponent& from : type.components) {
    for (size_t i = 0; i < from.parts(); ++i) {
      const TensorType part = from.PartType(i);
      plan::State::Component* component = to->add_components();
      component->set_name(from.PartName(i).empty() ? from.name : absl::StrCat(from.name, ".", from.PartName(i)));
      component->set_dtype(std::string(DTypeName(part.dtype)));
      for (const Dim& dim : part.shape) component->add_shape(dim.value());
      component->set_offset(static_cast<uint64_t>(type.OffsetOf(from, i)));
      component->set_bytes(static_cast<uint64_t>(type.PartBytes(from, i)));
    }
  }
  to->set_record_bytes(static_cast<uint64_t>(type.RecordBytes()));
}

absl::Status WritePlan(const Model& model, const PlanOptions& options, const std::string& path) {
  return PlanWriter(model, options).Write(path);
}

absl::StatusOr<plan::Manifest> MakeManifest(const Model& model, const PlanOptions& options, std::string* sources,
                                            plan::Lowering* lowering) {
  return PlanWriter(model, options).Manifest(sources, lowering);
}

}  // namespace llmc
