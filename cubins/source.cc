#include "cubins/source.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace llmc {
namespace {

// The names in #include "…" lines.
std::vector<absl::string_view> Includes(absl::string_view text) {
  std::vector<absl::string_view> names;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripLeadingAsciiWhitespace(line);
    if (!absl::ConsumePrefix(&line, "#")) continue;
    line = absl::StripLeadingAsciiWhitespace(line);
    if (!absl::ConsumePrefix(&line, "include")) continue;
    line = absl::StripLeadingAsciiWhitespace(line);
    if (absl::ConsumePrefix(&line, "\"")) names.push_back(line.substr(0, line.find('"')));
  }
  return names;
}

}  // namespace

std::vector<SourceFile> IncludedFiles(absl::string_view source, absl::Span<const SourceFile> headers) {
  std::vector<bool> included(headers.size());
  std::vector<absl::string_view> unread = {source};
  while (!unread.empty()) {
    const absl::string_view text = unread.back();
    unread.pop_back();
    for (const absl::string_view name : Includes(text)) {
      for (size_t i = 0; i < headers.size(); ++i) {
        if (included[i] || headers[i].name != name) continue;
        included[i] = true;
        unread.push_back(headers[i].text);
      }
    }
  }
  std::vector<SourceFile> files;
  for (size_t i = 0; i < headers.size(); ++i) {
    if (included[i]) files.push_back(headers[i]);
  }
  return files;
}

}  // namespace llmc
