#include "runtime/chat/budget.h"

#include "absl/strings/str_cat.h"

namespace llmc::jinja {

void Budget::Fail(absl::string_view message) const {
  throw TemplateError(absl::StatusCode::kInvalidArgument, line, std::string(message));
}

void Budget::Refuse(absl::string_view message) const {
  throw TemplateError(absl::StatusCode::kUnimplemented, line, std::string(message));
}

void Budget::Exhaust(absl::string_view what, int64_t limit) const {
  throw TemplateError(absl::StatusCode::kResourceExhausted, line, absl::StrCat("more than ", limit, " ", what));
}

}  // namespace llmc::jinja
