// Makes a syntax tree of tokens, by the grammar of jinja2 3.1 with its extension loopcontrols and the tag `generation`.
#pragma once

#include "absl/strings/string_view.h"
#include "runtime/chat/ast.h"
#include "runtime/chat/budget.h"

namespace llmc::jinja {

// Throws TemplateError: InvalidArgument for wrong syntax, Unimplemented for tags that need other files.
Program ParseTemplate(absl::string_view source, Budget* budget);

}  // namespace llmc::jinja
