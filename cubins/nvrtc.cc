// The only place that calls NVRTC.
#include "cubins/nvrtc.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

using Program = void*;

struct Nvrtc {
  int (*version)(int*, int*);
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
        Find(library, "nvrtcVersion", &n.version) && Find(library, "nvrtcCreateProgram", &n.create) &&
        Find(library, "nvrtcDestroyProgram", &n.destroy) && Find(library, "nvrtcCompileProgram", &n.compile) &&
        Find(library, "nvrtcGetProgramLogSize", &n.log_size) && Find(library, "nvrtcGetProgramLog", &n.log) &&
        Find(library, "nvrtcGetCUBINSize", &n.cubin_size) && Find(library, "nvrtcGetCUBIN", &n.cubin) &&
        Find(library, "nvrtcGetErrorString", &n.error);
    if (whole) return n;
  }
  return absl::NotFoundError(
      "compiling for a GPU needs NVRTC (libnvrtc.so.13 or .12): install the CUDA toolkit, or NVIDIA's wheel "
      "(pip install nvidia-cuda-nvrtc) with its folder in LD_LIBRARY_PATH");
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

// Builds of one version may differ, and do in the size of their file.
absl::StatusOr<std::string> NvrtcVersion() {
  if (!OpenedNvrtc().ok()) return OpenedNvrtc().status();
  int major = 0, minor = 0;
  if (const int result = OpenedNvrtc()->version(&major, &minor); result != 0) {
    return absl::InternalError(absl::StrCat("NVRTC: ", OpenedNvrtc()->error(result)));
  }
  Dl_info info = {};
  struct stat file = {};
  if (dladdr(reinterpret_cast<const void*>(OpenedNvrtc()->version), &info) == 0) return absl::StrCat(major, ".", minor);
  if (stat(info.dli_fname, &file) != 0) file.st_size = 0;
  return absl::StrCat(major, ".", minor, " (", file.st_size, " bytes)");
}

std::vector<const char*> NvrtcFlags(bool fast_compile) {
  std::vector<const char*> flags = {"--std=c++17", "--minimal", "--frandom-seed=0", "--no-cache",
                                    "--device-as-default-execution-space"};
  // Of its levels the one that takes the least time: with "max" kernels took half as long again.
  if (fast_compile) flags.push_back("--Ofast-compile=mid");
  return flags;
}

absl::StatusOr<std::string> CompileToCubin(const std::string& source, const std::string& name, absl::string_view target,
                                           absl::Span<const SourceFile> headers, const NvrtcOptions& options) {
  if (!OpenedNvrtc().ok()) return OpenedNvrtc().status();
  const Nvrtc& nvrtc = *OpenedNvrtc();
  std::vector<std::string> strings;  // with a zero at the end
  bool has_zero = absl::StrContains(source, '\0');
  for (const SourceFile& header : headers) {
    has_zero = has_zero || absl::StrContains(header.name, '\0') || absl::StrContains(header.text, '\0');
    strings.emplace_back(header.name);
    strings.emplace_back(header.text);
  }
  std::vector<const char*> names, texts;
  for (size_t i = 0; i < strings.size(); i += 2) {
    names.push_back(strings[i].c_str());
    texts.push_back(strings[i + 1].c_str());
  }
  if (has_zero) return absl::InternalError(absl::StrCat("NVRTC cannot compile ", name, ": a zero byte is in it"));
  Program program = nullptr;
  int result =
      nvrtc.create(&program, source.c_str(), name.c_str(), static_cast<int>(names.size()), texts.data(), names.data());
  if (result != 0) return absl::InternalError(absl::StrCat("NVRTC: ", nvrtc.error(result)));
  const std::string architecture = absl::StrCat("--gpu-architecture=", target);
  std::vector<const char*> flags = NvrtcFlags(options.fast_compile);
  flags.push_back(architecture.c_str());
  if (options.on_begin) options.on_begin();
  result = nvrtc.compile(program, static_cast<int>(flags.size()), flags.data());
  absl::StatusOr<std::string> cubin = std::string();
  size_t size = 0;
  if (result != 0) {
    cubin = absl::InternalError(absl::StrCat("NVRTC cannot compile ", name, " for ", target, ": ", nvrtc.error(result),
                                             "\n", Log(nvrtc, program)));
  } else if (nvrtc.cubin_size(program, &size) != 0 || size == 0) {
    cubin = absl::InternalError(absl::StrCat("NVRTC gives no code of ", name, " for ", target));
  } else {
    cubin->resize(size);
    result = nvrtc.cubin(program, cubin->data());
    if (result != 0) cubin = absl::InternalError(absl::StrCat("NVRTC: ", nvrtc.error(result)));
  }
  nvrtc.destroy(&program);
  return cubin;
}

}  // namespace llmc
