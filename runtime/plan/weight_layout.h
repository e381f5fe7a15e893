// Where each weight of a device plan lies on a device of a target, known before anything is loaded.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/target_code.h"

namespace llmc {

struct WeightPlace {
  enum class Where : uint8_t {
    kNowhere,   // nothing reads it
    kKept,      // in one allocation, for as long as the model is there
    kPrepared,  // where `prepare` would copy it, such as its part of merged weights: the copy is not needed
    kPassing,   // in one allocation that goes away after `prepare`, alone to read it
  };
  Where where = Where::kNowhere;
  uint64_t offset = 0;  // in that allocation, or in the buffers of `prepare`
  int group = 0;        // of tasks of `prepare`, before which it is loaded; 0 for what is not passing
};

struct WeightLayout {
  std::vector<WeightPlace> places;  // by the order of manifest.weights()
  uint64_t kept_bytes = 0, passing_bytes = 0;
  // Tasks of `prepare` run in groups, so that few passing weights are there at once: group g ends before task ends[g].
  std::vector<int> ends;
  std::vector<bool> skipped;  // tasks of `prepare`: copies whose result is already there
};

// `group_bytes`: passing weights of a group, if it has more than one task.
WeightLayout LayOutWeights(const TargetCode& code, uint64_t group_bytes = uint64_t{256} << 20);

}  // namespace llmc
