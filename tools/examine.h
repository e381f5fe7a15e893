// What the passes make of a model: how much of it was recognized, and why the rest was not.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "passes/pipeline.h"
#include "tools/findings.h"

namespace llmc {

// "attention 26 of 28": 26 ops of that kind, and 2 places whose ops give one away.
struct Recognized {
  std::string what;
  int64_t found = 0, of = 0;
};

struct CacheReport {
  enum class Kind {
    kNone,     // the model is no decoder, or not of the form that decoders have: then `why` says what is missing
    kPaged,    // its program has a paged cache
    kPaging,   // it was proven that it can have one
    kTensors,  // the proof failed: `why` says where
    kUnknown,  // only a part of the model is there
  };
  Kind kind = Kind::kNone;
  std::string why;
};
// "none", "paged", "can be paged", "tensors", "unknown"
absl::string_view CacheKindName(CacheReport::Kind kind);

// Ops of one name.
struct Primitive {
  static constexpr size_t kMaxPlaces = 64;
  int64_t count = 0;
  std::vector<LedgerPlace> places;  // the first kMaxPlaces
};

struct Examination {
  std::vector<Recognized> recognized;             // of each kind that the model has
  int64_t attention = 0, causal = 0, masked = 0;  // attention ops: proven causal, and with a mask as an operand
  // Ops that norms, activations, rotations and attention are written in, and that are left: by name, with places.
  std::map<std::string, Primitive> primitives;
  std::vector<Finding> findings;  // those of kind "pagination" belong to the cache
  CacheReport cache;
};

// Runs the passes (`options.pagination` and `options.after` are set here). An error is what compiling the model would
// give. Of a model that is not the whole one nothing is said of a cache.
absl::StatusOr<Examination> Examine(Model* model, PipelineOptions options, bool is_whole = true);

// Without what is said of masks where a paged cache does without them.
std::string ExaminationText(const Examination& examination, size_t max_places);
nlohmann::ordered_json ExaminationJson(const Examination& examination);

}  // namespace llmc
