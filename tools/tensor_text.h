// What a tensor holds, in short.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "ir/tensor.h"

namespace llmc {

// "1, 2, 3" of a small tensor; "min 0 max 1 mean 0.5 NaN 0 first 0, 1, …" of a large one. Minimum, maximum and mean
// leave NaN out.
std::string ContentsText(const Tensor& tensor);
// `values` of a small tensor, else `min`, `max`, `mean`, `nan` and `first`.
nlohmann::ordered_json ContentsJson(const Tensor& tensor);

}  // namespace llmc
