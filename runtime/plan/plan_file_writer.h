// Writes the file that plan.h reads: sections, and the header and the table that say where they are.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "files/file_writer.h"
#include "runtime/plan/plan_format.h"

namespace llmc::plan {

// Of a file that a plan names: SHA-256, or of pieces, as Plan checks weights that lie outside. NotFound: it cannot be
// read.
absl::StatusOr<Digest> HashFile(const std::string& path, bool in_pieces);

class PlanFileWriter {
 public:
  // `file` is empty and outlives the writer.
  explicit PlanFileWriter(FileWriter* file) : file_(*file) {}

  // So many sections follow, in the order of their kinds, then Finish.
  absl::Status Begin(size_t sections);
  absl::Status Add(Section section, absl::string_view contents);
  // The last section: the weights, at their offsets in it, which are aligned to kWeightAlignment and rise.
  // `on_weight(n)`: n of them are written.
  absl::Status AddWeights(const std::vector<std::pair<uint64_t, absl::string_view>>& weights,
                          absl::FunctionRef<void(int64_t)> on_weight);
  absl::Status Finish();

 private:
  absl::Status AddPart(absl::string_view part, PiecewiseHash* hash);

  struct Entry {
    Section section;
    uint64_t offset, bytes;
    Digest digest;
  };

  FileWriter& file_;
  std::vector<Entry> entries_;
};

}  // namespace llmc::plan
