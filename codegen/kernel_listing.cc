#include "codegen/kernel_listing.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace llmc {

void SetNotes(absl::Span<const std::string> notes, plan::Kernel* kernel) {
  for (size_t i = 0; i < notes.size(); ++i) {
    if (notes[i].empty()) continue;
    plan::LineNote* note = kernel->add_notes();
    note->set_line(static_cast<uint32_t>(i));
    note->set_text(notes[i]);
  }
}

std::string KernelListing(const plan::Kernel& kernel, absl::string_view sources) {
  absl::string_view source = sources.substr(kernel.source_offset(), kernel.source_bytes());
  absl::ConsumeSuffix(&source, "\n");
  std::string out;
  if (!kernel.label().empty()) {
    out = absl::StrCat("// ", absl::StrReplaceAll(kernel.label(), {{"\n", "\n// "}}), "\n");
  }
  uint32_t line = 0;
  int next = 0;
  for (const absl::string_view text : absl::StrSplit(source, '\n')) {
    out.append(text.data(), text.size());
    for (; next < kernel.notes_size() && kernel.notes(next).line() == line; ++next) {
      absl::StrAppend(&out, "  // ", kernel.notes(next).text());
    }
    out += '\n';
    ++line;
  }
  return out;
}

}  // namespace llmc
