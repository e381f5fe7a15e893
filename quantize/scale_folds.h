// Where factors of a product's input channels go without a node that divides: into the weights of what makes the input.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "quantize/linear_modules.h"
#include "quantize/scale_search.h"

namespace llmc {

// A weight whose rows, or elements, are divided: element or row i of it, from `first` on, by the factor i - first.
struct FoldTarget {
  const Value* weight = nullptr;
  int64_t first = 0;
  double added = 0;  // what is added to the weight before it multiplies: 1 of norms that multiply by 1 + weight
};

struct ScaleFold {
  const Value* input = nullptr;  // what is divided
  std::vector<FoldTarget> targets;
  ChannelSharing sharing;  // of input channels; factor i of the targets is that of sharing.count
  bool is_norm = false;    // targets are a norm's weight and bias
};

// The fold of an input of products of `channels`: of a norm; of the product of an activated gate and a linear layer, or
// of silu_mul; of attention, whose values are a linear layer's. Nothing: there is none, or something else than linear
// layers reads the input, so that it must not change; `why` says which. `linears`: all of the model.
std::optional<ScaleFold> FindFold(const Value* input, int64_t channels, const std::vector<LinearModule>& linears,
                                  std::string* why);
// The same of the rows of an input [T, K, channels] that one expert gets: of silu_mul, or of a product, of the rows
// that another layer of the same expert gives.
std::optional<ScaleFold> FindExpertFold(const Value* input, int64_t channels, int64_t expert,
                                        const std::vector<LinearModule>& linears, std::string* why);

// The weights that multiply an input whose factors have a fold, or what of it goes to `expert` (-1: all).
std::vector<const Value*> WeightsOf(const Value* input, int64_t expert, const std::vector<LinearModule>& linears);

}  // namespace llmc
