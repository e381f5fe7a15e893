#include "runtime/device/plan_kernels.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "cubins/compile.h"
#include "cubins/targets.h"
#include "runtime/plan/plan_format.h"

namespace llmc {
namespace {

// The cubin of `kernel` for `target`; nullptr if there is none.
const plan::Cubin* FindCubin(const plan::Kernel& kernel, const std::string& target) {
  for (const plan::Cubin& cubin : kernel.cubins()) {
    if (cubin.target() == target) return &cubin;
  }
  return nullptr;
}

// A target for which all kernels have code that runs on the GPU; the newest, which knows it best.
std::string CubinTarget(const plan::Manifest& manifest, int capability) {
  std::string best;
  for (const plan::Cubin& cubin : manifest.kernels(0).cubins()) {
    bool whole = RunsOn(cubin.target(), capability);
    for (const plan::Kernel& kernel : manifest.kernels()) whole = whole && FindCubin(kernel, cubin.target()) != nullptr;
    if (whole && cubin.target() > best) best = cubin.target();
  }
  return best;
}

bool HasSources(const plan::Manifest& manifest) {
  for (const plan::Kernel& kernel : manifest.kernels()) {
    if (kernel.source_bytes() == 0) return false;
  }
  return true;
}

}  // namespace

absl::Status CheckHasDeviceCode(const Plan& plan) {
  if (plan.manifest().target() != "host") return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(plan.path(), ": has no code for a GPU; compile it with --target"));
}

absl::StatusOr<KernelChoice> ChooseKernels(const Plan& plan, const DeviceInfo& device) {
  const plan::Manifest& manifest = plan.manifest();
  RETURN_IF_ERROR(CheckHasDeviceCode(plan));
  if (manifest.kernels_size() == 0) return KernelChoice{.target = manifest.target()};  // library calls only
  if (const std::string target = CubinTarget(manifest, device.capability); !target.empty()) {
    return KernelChoice{.target = target};
  }
  absl::StatusOr<std::string> target = TargetFor(device.capability);
  if (!target.ok()) {
    return absl::Status(target.status().code(), absl::StrCat(device.name, ": ", target.status().message()));
  }
  if (!HasSources(manifest)) {
    return absl::FailedPreconditionError(absl::StrCat(plan.path(), ": has code for ", manifest.target(),
                                                      ", but none for ", device.name,
                                                      "; compile it with --target=", *target));
  }
  return KernelChoice{.from_sources = true, .target = *std::move(target)};
}

absl::StatusOr<std::vector<std::string>> KernelImages(const Plan& plan, const DeviceInfo& device,
                                                      const std::string& cache_folder) {
  ASSIGN_OR_RETURN(const KernelChoice choice, ChooseKernels(plan, device));
  const plan::Manifest& manifest = plan.manifest();
  if (!choice.from_sources) {
    const absl::string_view cubins = plan.section(plan::Section::kCubins);
    std::vector<std::string> images;
    for (const plan::Kernel& kernel : manifest.kernels()) {
      const plan::Cubin* cubin = FindCubin(kernel, choice.target);
      images.emplace_back(cubins.substr(cubin->offset(), cubin->bytes()));
    }
    return images;
  }
  const absl::string_view sources = plan.section(plan::Section::kSources);
  std::vector<SourceFile> headers;
  for (const plan::Header& header : manifest.headers()) {
    headers.push_back({header.name(), sources.substr(header.offset(), header.bytes())});
  }
  std::vector<KernelSource> kernels;
  for (const plan::Kernel& kernel : manifest.kernels()) {
    kernels.push_back({kernel.entry(), sources.substr(kernel.source_offset(), kernel.source_bytes())});
  }
  absl::StatusOr<std::vector<std::string>> images =
      CompileKernels(kernels, headers, {choice.target}, {.cache_folder = cache_folder});
  if (images.ok()) return images;
  return absl::Status(
      absl::IsInternal(images.status()) ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kFailedPrecondition,
      absl::StrCat(plan.path(), ": has code for ", manifest.target(), ", and its sources cannot be compiled for ",
                   device.name, " (", choice.target, "): ", images.status().message(),
                   "; or compile the model with --target=", choice.target));
}

}  // namespace llmc
