#include "runtime/device/plan_kernels.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "cubins/compile.h"
#include "cubins/targets.h"
#include "runtime/plan/plan_format.h"
#include "runtime/plan/target_code.h"

namespace llmc {
namespace {

// The cubin of `kernel` for `target`; nullptr if there is none.
const plan::Cubin* FindCubin(const plan::Kernel& kernel, const std::string& target) {
  for (const plan::Cubin& cubin : kernel.cubins()) {
    if (cubin.target() == target) return &cubin;
  }
  return nullptr;
}

bool HasCubins(const TargetCode& code) {
  const std::vector<int> kernels = code.Kernels();
  return std::all_of(kernels.begin(), kernels.end(),
                     [&](int kernel) { return FindCubin(code.manifest().kernels(kernel), code.target()) != nullptr; });
}

bool HasSources(const TargetCode& code) {
  const std::vector<int> kernels = code.Kernels();
  return std::all_of(kernels.begin(), kernels.end(),
                     [&](int kernel) { return code.manifest().kernels(kernel).source_bytes() > 0; });
}

// The newest of the plan's targets that `fits`, which knows the GPU best; -1 if there is none.
template <class Fits>
int NewestTarget(const plan::Manifest& manifest, Fits fits) {
  int best = -1;
  for (int i = 0; i < manifest.targets_size(); ++i) {
    const bool newer =
        best < 0 || CapabilityOf(manifest.targets(i).target()) > CapabilityOf(manifest.targets(best).target());
    if (newer && fits(TargetCode(manifest, i))) best = i;
  }
  return best;
}

std::string TargetsText(const plan::Manifest& manifest) {
  return absl::StrJoin(manifest.targets(), ", ", [](std::string* out, const plan::TargetPrograms& target) {
    absl::StrAppend(out, target.target());
  });
}

}  // namespace

absl::Status CheckHasDeviceCode(const Plan& plan) {
  if (!plan.manifest().targets().empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(plan.path(), ": has no code for a GPU; compile it with --target"));
}

absl::StatusOr<KernelChoice> ChooseKernels(const Plan& plan, const DeviceInfo& device) {
  const plan::Manifest& manifest = plan.manifest();
  RETURN_IF_ERROR(CheckHasDeviceCode(plan));
  const int exact = NewestTarget(
      manifest, [&](const TargetCode& code) { return RunsOn(code.target(), device.capability) && HasCubins(code); });
  if (exact >= 0) return KernelChoice{.target = exact, .architecture = manifest.targets(exact).target()};
  const absl::StatusOr<Target> gpu = TargetFor(device.capability);
  if (!gpu.ok()) return absl::Status(gpu.status().code(), absl::StrCat(device.name, ": ", gpu.status().message()));
  const int other = NewestTarget(manifest, [&](const TargetCode& code) {
    const absl::StatusOr<Target> target = FindTarget(code.target());
    return target.ok() && RunsProgramsOf(*gpu, *target) && HasSources(code);
  });
  if (other >= 0) return KernelChoice{.target = other, .from_sources = true, .architecture = gpu->name};
  return absl::FailedPreconditionError(absl::StrCat(plan.path(), ": has code for ", TargetsText(manifest),
                                                    ", but none for ", device.name,
                                                    "; compile it with --target=", gpu->name));
}

absl::StatusOr<std::vector<std::string>> KernelImages(const Plan& plan, const DeviceInfo& device,
                                                      const std::string& cache_folder) {
  ASSIGN_OR_RETURN(const KernelChoice choice, ChooseKernels(plan, device));
  const plan::Manifest& manifest = plan.manifest();
  const std::vector<int> needed = TargetCode(manifest, choice.target).Kernels();
  std::vector<std::string> images(static_cast<size_t>(manifest.kernels_size()));
  if (!choice.from_sources) {
    const absl::string_view cubins = plan.section(plan::Section::kCubins);
    for (const int kernel : needed) {
      const plan::Cubin* cubin = FindCubin(manifest.kernels(kernel), choice.architecture);
      images[static_cast<size_t>(kernel)] = std::string(cubins.substr(cubin->offset(), cubin->bytes()));
    }
    return images;
  }
  const absl::string_view sources = plan.section(plan::Section::kSources);
  std::vector<SourceFile> headers;
  for (const plan::Header& header : manifest.headers()) {
    headers.push_back({header.name(), sources.substr(header.offset(), header.bytes())});
  }
  std::vector<KernelSource> kernels;
  for (const int index : needed) {
    const plan::Kernel& kernel = manifest.kernels(index);
    kernels.push_back(
        {kernel.entry(), sources.substr(kernel.source_offset(), kernel.source_bytes()), choice.architecture});
  }
  absl::StatusOr<std::vector<std::string>> compiled = CompileKernels(kernels, headers, {.cache_folder = cache_folder});
  if (!compiled.ok()) {
    const bool wrong = absl::IsInternal(compiled.status());
    return absl::Status(
        wrong ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kFailedPrecondition,
        absl::StrCat(plan.path(), ": has code for ", TargetsText(manifest), ", and its sources cannot be compiled for ",
                     device.name, " (", choice.architecture, "): ", compiled.status().message(),
                     "; or compile the model with --target=", choice.architecture));
  }
  for (size_t i = 0; i < needed.size(); ++i) images[static_cast<size_t>(needed[i])] = std::move((*compiled)[i]);
  return images;
}

}  // namespace llmc
