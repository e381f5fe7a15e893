// What `llmc check` says of an ONNX file.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "frontend/onnx/import.h"
#include "tools/examine.h"
#include "tools/language_files.h"

namespace llmc {

// What was found in a file. `examination` is of the part that could be imported.
struct OnnxCheck {
  std::string path;
  OnnxReport report;
  absl::StatusOr<Examination> examination = absl::UnknownError("not examined");
  absl::Status gpu = absl::UnknownError("not examined");  // whether GPUs can run it, of a whole model
  LanguageFiles files;                                    // beside a language model

  bool IsWhole() const { return report.unsupported.empty() && report.wrong.empty(); }
  // OK if the model can be compiled; else the error that ends the command.
  absl::Status Verdict() const;
};

std::string OnnxCheckText(const OnnxCheck& check, bool all);
nlohmann::ordered_json OnnxCheckJson(const OnnxCheck& check);

}  // namespace llmc
