// Templates with what jinja2 makes of them, from the files that make_expected.py writes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/chat/chat_template.h"

namespace llmc {

nlohmann::ordered_json ReadTestJson(const std::string& path);
std::string ChatTestFile(const std::string& name);  // beside the tests

// The members of `variables` as what a template is rendered for. The clock is that of make_expected.py.
ChatInput InputOf(const nlohmann::ordered_json& variables);

// What is wrong with the rendering of a case (template, and expected or error, and generation), or "".
std::string CheckCase(const nlohmann::ordered_json& one, const ChatInput& input);

}  // namespace llmc
