#include "files/drop_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace llmc {

void DropPages(absl::string_view part) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(part.data());
  const uintptr_t first = (begin + page - 1) / page * page, last = (begin + part.size()) / page * page;
  // That it fails changes nothing but the use of memory.
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace llmc
