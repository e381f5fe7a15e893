#include "files/drop_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace llmc {
namespace {

struct Maps {
  absl::Mutex mutex;
  std::map<uintptr_t, uintptr_t> ends ABSL_GUARDED_BY(mutex);  // by the beginning
};

// Never destroyed: maps may be given back while the process ends.
Maps& AllMaps() {
  static Maps& maps = *new Maps;
  return maps;
}

}  // namespace

void AddMap(const char* begin, size_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(begin);
  Maps& maps = AllMaps();
  const absl::MutexLock lock(&maps.mutex);
  maps.ends[at] = at + bytes;
}

void RemoveMap(const char* begin) {
  Maps& maps = AllMaps();
  const absl::MutexLock lock(&maps.mutex);
  maps.ends.erase(reinterpret_cast<uintptr_t>(begin));
}

void DropPages(absl::string_view part) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(part.data());
  Maps& maps = AllMaps();
  // Held while the pages go: what is here after the map was given back may be anything.
  const absl::MutexLock lock(&maps.mutex);
  auto map = maps.ends.upper_bound(begin);
  if (map == maps.ends.begin()) return;
  --map;
  const uintptr_t end = std::min(begin + part.size(), map->second);
  const uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
  // That it fails changes nothing but the use of memory.
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace llmc
