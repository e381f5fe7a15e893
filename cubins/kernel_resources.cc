#include "cubins/kernel_resources.h"

#include <elf.h>

#include <cstring>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace llmc {
namespace {

absl::Status Damaged(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("this is no cubin: ", what));
}

// The bytes of a part; none if they are not all there.
absl::StatusOr<absl::string_view> PartOf(absl::string_view file, uint64_t offset, uint64_t bytes) {
  if (offset > file.size() || bytes > file.size() - offset) return Damaged("a part lies outside of it");
  return file.substr(offset, bytes);
}

template <class T>
absl::StatusOr<T> Read(absl::string_view file, uint64_t offset) {
  ASSIGN_OR_RETURN(const absl::string_view bytes, PartOf(file, offset, sizeof(T)));
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

absl::string_view TextAt(absl::string_view strings, uint64_t offset) {
  if (offset >= strings.size()) return "";
  const absl::string_view rest = strings.substr(offset);
  return rest.substr(0, rest.find('\0'));
}

struct Section {
  absl::string_view name, bytes;  // of NOBITS no bytes
  uint64_t size = 0;
};

absl::StatusOr<std::vector<Section>> SectionsOf(absl::string_view file) {
  ASSIGN_OR_RETURN(const auto header, Read<Elf64_Ehdr>(file, 0));
  constexpr uint16_t kMachineCuda = 190;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_machine != kMachineCuda || header.e_shentsize != sizeof(Elf64_Shdr)) {
    return Damaged("its head is not that of an ELF file with code for GPUs");
  }
  std::vector<Elf64_Shdr> headers;
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    ASSIGN_OR_RETURN(headers.emplace_back(), Read<Elf64_Shdr>(file, header.e_shoff + i * sizeof(Elf64_Shdr)));
  }
  if (header.e_shstrndx >= headers.size()) return Damaged("its sections have no names");
  std::vector<Section> sections;
  for (const Elf64_Shdr& h : headers) {
    Section& section = sections.emplace_back();
    section.size = h.sh_size;
    constexpr uint64_t kMostBytes = uint64_t{1} << 32;
    if (h.sh_size > kMostBytes) return Damaged("a section is larger than any of a kernel");
    if (h.sh_type != SHT_NOBITS) {
      ASSIGN_OR_RETURN(section.bytes, PartOf(file, h.sh_offset, h.sh_size));
    }
  }
  const absl::string_view names = sections[header.e_shstrndx].bytes;
  for (size_t i = 0; i < headers.size(); ++i) sections[i].name = TextAt(names, headers[i].sh_name);
  return sections;
}

// The attributes of kernels that are numbers, by the index of their symbols. An attribute has a byte for its form, one
// for what it is and two for a number or for the size of what follows; of these a symbol and a number, each 32 bits.
absl::Status ReadAttributes(absl::string_view info, std::map<uint32_t, KernelResources>* kernels) {
  constexpr uint8_t kSized = 4, kFrameSize = 0x11, kRegisterCount = 0x2f;
  for (uint64_t at = 0; at < info.size();) {
    ASSIGN_OR_RETURN(const auto form, Read<uint8_t>(info, at));
    ASSIGN_OR_RETURN(const auto what, Read<uint8_t>(info, at + 1));
    ASSIGN_OR_RETURN(const auto size, Read<uint16_t>(info, at + 2));
    if (form == kSized && size >= 8 && (what == kRegisterCount || what == kFrameSize)) {
      ASSIGN_OR_RETURN(const auto symbol, Read<uint32_t>(info, at + 4));
      ASSIGN_OR_RETURN(const auto value, Read<uint32_t>(info, at + 8));
      KernelResources& kernel = (*kernels)[symbol];
      (what == kFrameSize ? kernel.stack_bytes : kernel.registers) = value;
    }
    at += 4 + (form == kSized ? size : 0);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<KernelResources>> ResourcesOf(absl::string_view cubin) {
  ASSIGN_OR_RETURN(const std::vector<Section> sections, SectionsOf(cubin));
  std::map<std::string, const Section*, std::less<>> by_name;
  for (const Section& section : sections) by_name.emplace(section.name, &section);
  const auto bytes_of = [&](absl::string_view name) {
    const auto it = by_name.find(name);
    return it == by_name.end() ? absl::string_view() : it->second->bytes;
  };
  std::map<uint32_t, KernelResources> kernels;
  RETURN_IF_ERROR(ReadAttributes(bytes_of(".nv.info"), &kernels));
  std::vector<KernelResources> found;
  for (auto& [symbol, kernel] : kernels) {
    ASSIGN_OR_RETURN(const auto entry, Read<Elf64_Sym>(bytes_of(".symtab"), uint64_t{symbol} * sizeof(Elf64_Sym)));
    kernel.entry = std::string(TextAt(bytes_of(".strtab"), entry.st_name));
    const auto code = by_name.find(absl::StrCat(".text.", kernel.entry));
    if (code == by_name.end()) continue;  // a function without code of its own
    kernel.code_bytes = static_cast<int64_t>(code->second->size);
    const auto shared = by_name.find(absl::StrCat(".nv.shared.", kernel.entry));
    if (shared != by_name.end()) kernel.shared_bytes = static_cast<int64_t>(shared->second->size);
    found.push_back(kernel);
  }
  return found;
}

}  // namespace llmc
