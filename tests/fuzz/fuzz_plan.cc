// Any bytes as the manifest of a plan, whose digests are right: an error, or a manifest whose needs of memory can be
// told. The first byte chooses that or the file as a whole.
#include "runtime/plan/memory_needs.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/plan_check.h"
#include "tests/fuzz/fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  if (data[0] % 4 == 0) {
    (void)llmc::Plan::Load(llmc::FuzzFile("fuzz.plan", data + 1, size - 1));
    return 0;
  }
  llmc::plan::Manifest manifest;
  if (!manifest.ParseFromArray(data + 1, static_cast<int>(size - 1))) return 0;
  const llmc::plan::SectionBytes sections = {.weights = 1 << 20, .sources = 1 << 20, .cubins = 1 << 20};
  if (!llmc::plan::CheckManifest(manifest, sections).ok()) return 0;
  for (int i = 0; i < manifest.targets_size(); ++i) (void)llmc::MemoryNeedsOf(llmc::TargetCode(manifest, i));
  return 0;
}
