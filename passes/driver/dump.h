// Dumps of the pipeline: NN-pass.lir for each pass that changed the text, index.txt, and times.txt.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "ir/graph.h"
#include "passes/driver/ledger.h"

namespace llmc {

// Does nothing with an empty folder. index.txt holds no times, paths or addresses, so that two runs compare with diff
// -r.
class Dump {
 public:
  // `flags` are those with which `llmc opt` resumes as this run goes on, such as " --no-paginate"; `weight_flags` are
  // for texts that have weights.
  Dump(std::string dir, std::string flags, absl::Span<const std::string> weight_flags);

  // The text before the first pass; `label` is "00 import". Creates the folder.
  absl::Status Begin(const Model& model, const std::string& target, const std::string& label);
  absl::Status Add(const Model& model, const std::string& label, const Ledger& ledger,
                   const std::map<std::string, int64_t>& fired_before, double seconds);
  absl::Status End();

 private:
  struct Counts {
    int64_t ops = 0;
    int64_t prepare = 0;
  };
  absl::Status AddText(const Model& model, const std::string& label, const std::string& what);
  static Counts CountsOf(const Model& model);

  std::string dir_, flags_, weight_flags_, index_, times_, text_;
  Counts counts_;
};

}  // namespace llmc
