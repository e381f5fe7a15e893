// A profiler for tests: the NVTX headers of a program load it by NVTX_INJECTION64_PATH and hand it their ranges
// (https://nvidia.github.io/NVTX). It writes them down as "push NAME" and "pop".
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstring>

namespace {

constexpr size_t kMost = 1 << 16;
char text[kMost];
size_t used = 0;

void Write(const char* word, const char* name) {
  if (used + std::strlen(word) + std::strlen(name) + 2 > kMost) return;
  used += static_cast<size_t>(std::snprintf(text + used, kMost - used, "%s%s\n", word, name));
}

int NVTX_API Push(const char* name) {
  Write("push ", name);
  return 0;
}

int NVTX_API Pop() {
  Write("pop", "");
  return 0;
}

}  // namespace

extern "C" {

const char* NvtxRecorderText() { return text; }

int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&Push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&Pop);
  return 1;
}

}  // extern "C"
