#include "tools/weight_numbers.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "files/path_check.h"
#include "frontend/huggingface/number_check.h"

namespace llmc {

std::vector<WeightFinding> WeightsThatAreNotFinite(const Model& model) {
  std::vector<WeightFinding> findings;
  for (const Value* weight : model.weights) {
    const auto data = model.data.find(weight->name);
    if (data == model.data.end() || !IsFloat(data->second.dtype())) continue;
    const Tensor& numbers = data->second;
    const std::optional<int64_t> bad = hf::FirstNotFinite(numbers);
    if (!bad.has_value()) continue;
    WeightFinding finding{.file = "", .tensor = weight->source, .text = ""};
    if (const auto parts = SplitWeightSource(weight->source)) {
      finding.file = parts->first;
      finding.tensor = parts->second;
    }
    finding.text = absl::StrCat(finding.file, finding.file.empty() ? "" : ": ", "tensor ", Quoted(finding.tensor),
                                hf::PlaceOf(*bad, numbers.shape()),
                                std::isnan(numbers.GetFloat(*bad)) ? " is NaN" : " is infinite",
                                ": the model may compute noise; copy or export the weights again");
    findings.push_back(finding);
  }
  return findings;
}

}  // namespace llmc
