// What `llmc check` says of a Hugging Face folder: all findings at once.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "frontend/import.h"
#include "tools/language_files.h"
#include "tools/quantization_report.h"

namespace llmc {

// With `is_error` the model cannot be compiled; else it can, and what the text says does not work as it should.
struct FolderFinding {
  bool is_error = false;
  std::string kind;   // "config", "checkpoint", "missing tensor", "wrong tensor", "extra tensor", "number",
                      // "quantization", "tokenizer", "token"
  std::string file;   // in the folder; may be empty
  std::string place;  // field or tensor; may be empty
  std::string text;   // all of it in one sentence: file, place, what was found and what was expected
  std::string found = "", expected = "";  // where they can be told apart
};

struct FolderCheck {
  std::string path;
  HfReport report;
  std::vector<FolderFinding> findings;
  std::vector<std::string> notes;
  QuantizationReport quantization;  // of a model that can be compiled
  LanguageFiles files;              // of a decoder
  std::optional<absl::Status> gpu;  // whether GPUs can run it, of a model that can be compiled

  // OK if the model can be compiled; else the error that ends the command.
  absl::Status Verdict() const;
};

// `model` becomes the model, if it can be imported.
FolderCheck CheckFolderOf(const std::string& folder, std::unique_ptr<Model>* model);

std::string FolderCheckText(const FolderCheck& check);
// With `is_strict` a folder with warnings is not "ok".
nlohmann::ordered_json FolderCheckJson(const FolderCheck& check, bool is_strict = false);

}  // namespace llmc
