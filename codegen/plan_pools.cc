#include "codegen/plan_pools.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "codegen/kernel_headers.h"
#include "ir/text.h"

namespace llmc {
namespace {

// A literal, with one number repeated to fill its type.
absl::StatusOr<std::string> LiteralBytes(const Node& node) {
  const Tensor& value = std::get<Tensor>(node.attrs.at("value"));
  const Dim elements = Product(node.results[0]->type.shape);
  if (!elements.is_constant()) return absl::UnimplementedError("constant: there is no GPU form of one of unknown size");
  const std::string bytes(value.raw(), static_cast<size_t>(value.bytes()));
  if (elements.value() == value.size()) return bytes;
  std::string filled;
  for (int64_t i = 0; i < elements.value(); ++i) filled += bytes;
  return filled;
}

// notes[i] belongs beside line i of the source; empty: nothing does.
void SetNotes(absl::Span<const std::string> notes, plan::Kernel* kernel) {
  for (size_t i = 0; i < notes.size(); ++i) {
    if (notes[i].empty()) continue;
    plan::LineNote* note = kernel->add_notes();
    note->set_line(static_cast<uint32_t>(i));
    note->set_text(notes[i]);
  }
}

}  // namespace

uint32_t PlanPools::AddProgram(const plan::Program& program) {
  const auto [it, added] =
      programs_.try_emplace(program.SerializeAsString(), static_cast<uint32_t>(manifest_->programs_size()));
  if (added) *manifest_->add_programs() = program;
  return it->second;
}

absl::StatusOr<uint32_t> PlanPools::AddConstant(const Node& node) {
  if (const auto it = constants_.find(node.results[0]->name); it != constants_.end()) return it->second;
  ASSIGN_OR_RETURN(std::string bytes, LiteralBytes(node));
  const auto index = static_cast<uint32_t>(manifest_->constants_size());
  manifest_->add_constants(std::move(bytes));
  constants_[node.results[0]->name] = index;
  return index;
}

template <class Emit>
uint32_t PlanPools::Add(plan::Kernel kernel, const Emit& emit) {
  const std::string text = absl::StrCat(emit("ENTRY").source, kernel.shared_bytes());
  const auto [it, added] = kernels_.try_emplace(text, static_cast<uint32_t>(kernels_.size()));
  if (added) {
    kernel.set_entry(absl::StrCat("k", it->second, "_", kernel.entry()));
    EmittedKernel emitted = emit(kernel.entry());
    SetNotes(emitted.notes, &kernel);
    sources_.push_back(std::move(emitted.source));
    *manifest_->add_kernels() = std::move(kernel);
  }
  return it->second;
}

uint32_t PlanPools::AddKernel(const KernelCall& call, const std::string& label) {
  plan::Kernel kernel;
  kernel.set_entry(call.Name());
  kernel.set_threads(static_cast<uint32_t>(call.threads));
  kernel.set_shared_bytes(static_cast<uint32_t>(call.shared_bytes));
  kernel.set_adapts(call.adapts);
  kernel.set_label(label);
  return Add(std::move(kernel), [&](const std::string& entry) { return EmitKernel(call, entry); });
}

uint32_t PlanPools::AddRun(const RunCall& call, const std::string& label) {
  plan::Kernel kernel;
  kernel.set_entry("persistent_run");
  kernel.set_threads(static_cast<uint32_t>(call.Threads()));
  kernel.set_shared_bytes(static_cast<uint32_t>(call.SharedBytes()));
  kernel.set_label(label);
  return Add(std::move(kernel),
             [&](const std::string& entry) { return EmittedKernel{.source = EmitRun(call, entry), .notes = {}}; });
}

int PlanPools::AddDeviceErrors(const std::vector<KernelDeviceError>& device_errors) {
  std::vector<std::string> key;
  for (const KernelDeviceError& device_error : device_errors) {
    key.push_back(device_error.what);
    key.push_back(device_error.node == nullptr ? device_error.label : PrintNode(*device_error.node));
  }
  const auto [it, added] = device_errors_.try_emplace(key, manifest_->device_errors_size());
  for (size_t i = 0; added && i < key.size(); i += 2) {
    plan::DeviceError* device_error = manifest_->add_device_errors();
    device_error->set_what(key[i]);
    device_error->set_label(key[i + 1]);
  }
  return it->second;
}

void PlanPools::WriteSources(std::string* section) {
  const auto add = [section](absl::string_view text, auto set_place) {
    set_place(section->size(), text.size());
    absl::StrAppend(section, text);
  };
  for (const SourceFile& file : IncludedFiles(absl::StrJoin(sources_, "\n"), KernelHeaders())) {
    plan::Header* header = manifest_->add_headers();
    header->set_name(std::string(file.name));
    add(file.text, [&](uint64_t offset, uint64_t bytes) {
      header->set_offset(offset);
      header->set_bytes(bytes);
    });
  }
  for (size_t i = 0; i < sources_.size(); ++i) {
    plan::Kernel* kernel = manifest_->mutable_kernels(static_cast<int>(i));
    add(sources_[i], [&](uint64_t offset, uint64_t bytes) {
      kernel->set_source_offset(offset);
      kernel->set_source_bytes(bytes);
    });
  }
}

}  // namespace llmc
