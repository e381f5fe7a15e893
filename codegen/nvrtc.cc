// The only place that calls NVRTC.
#include "codegen/nvrtc.h"

#include <dlfcn.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "codegen/kernel_headers.h"

namespace llmc {
namespace {

using Program = void*;

struct Nvrtc {
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*destroy)(Program*);
  int (*compile)(Program, int, const char* const*);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
  int (*cubin_size)(Program, size_t*);
  int (*cubin)(Program, char*);
  const char* (*error)(int);
};

template <class F>
bool Find(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  return *function != nullptr;
}

absl::StatusOr<Nvrtc> OpenNvrtc() {
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", LLMC_CUDA_LIB_DIR "/libnvrtc.so.13",
                           "/usr/local/cuda/lib64/libnvrtc.so.13", "/usr/local/cuda/lib64/libnvrtc.so.12"}) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    Nvrtc n = {};
    const bool whole =
        Find(library, "nvrtcCreateProgram", &n.create) && Find(library, "nvrtcDestroyProgram", &n.destroy) &&
        Find(library, "nvrtcCompileProgram", &n.compile) && Find(library, "nvrtcGetProgramLogSize", &n.log_size) &&
        Find(library, "nvrtcGetProgramLog", &n.log) && Find(library, "nvrtcGetCUBINSize", &n.cubin_size) &&
        Find(library, "nvrtcGetCUBIN", &n.cubin) && Find(library, "nvrtcGetErrorString", &n.error);
    if (whole) return n;
  }
  return absl::NotFoundError(
      "compiling for a GPU needs NVRTC (libnvrtc.so.13 or .12): install the CUDA toolkit, or run tools/setup.sh, which "
      "gets it as a Python wheel; --target=host needs none");
}

// Opened once and never closed.
const absl::StatusOr<Nvrtc>& OpenedNvrtc() {
  static const absl::StatusOr<Nvrtc>* nvrtc = new absl::StatusOr<Nvrtc>(OpenNvrtc());
  return *nvrtc;
}

std::string Log(const Nvrtc& nvrtc, Program program) {
  size_t size = 0;
  if (nvrtc.log_size(program, &size) != 0 || size == 0) return "";
  std::string log(size, '\0');
  nvrtc.log(program, log.data());
  log.resize(size - 1);
  return log;
}

}  // namespace

absl::StatusOr<std::string> CompileToCubin(const std::string& source, const std::string& name,
                                           absl::string_view target) {
  if (!OpenedNvrtc().ok()) return OpenedNvrtc().status();
  const Nvrtc& nvrtc = *OpenedNvrtc();
  std::vector<const char*> names, texts;
  for (const KernelHeader& header : KernelHeaders()) {
    names.push_back(header.name);
    texts.push_back(header.text);
  }
  Program program = nullptr;
  int result =
      nvrtc.create(&program, source.c_str(), name.c_str(), static_cast<int>(names.size()), texts.data(), names.data());
  if (result != 0) return absl::InternalError(absl::StrCat("NVRTC: ", nvrtc.error(result)));
  const std::string architecture = absl::StrCat("--gpu-architecture=", target);
  const char* options[] = {architecture.c_str(), "--std=c++17", "--minimal", "--frandom-seed=0", "--no-cache"};
  result = nvrtc.compile(program, std::size(options), options);
  absl::StatusOr<std::string> cubin = std::string();
  size_t size = 0;
  if (result != 0) {
    cubin = absl::InternalError(absl::StrCat("NVRTC cannot compile ", name, " for ", target, ": ", nvrtc.error(result),
                                             "\n", Log(nvrtc, program)));
  } else if (nvrtc.cubin_size(program, &size) == 0) {
    cubin->resize(size);
    nvrtc.cubin(program, cubin->data());
  }
  nvrtc.destroy(&program);
  return cubin;
}

}  // namespace llmc
