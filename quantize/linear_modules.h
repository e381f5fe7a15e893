// Which weights of a model are those of linear layers, by its graph: no names of families or of modules are known here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace llmc {

struct LinearModule {
  std::string name;    // in the checkpoint: "model.layers.0.self_attn.q_proj"
  std::string tensor;  // name + ".weight"
  std::string file;    // that holds it, relative to the folder
  const Value* weight = nullptr;
  int64_t out = 0, in = 0;
  std::vector<const Node*> products;  // linear, or expert_linear, that read it
  bool is_expert = false;             // one of several of which each token goes to some
  int64_t expert = -1;                // then: which, if the graph tells,
  int64_t first_row = 0;              // and the place of its first row among those of the expert
  bool is_router = false;             // which says to which
  bool is_head = false;               // nothing multiplies behind it
  std::string reason;                 // why it cannot be quantized; empty: it can
};

// In the order in which the model's first step uses them; of imported models. Tables of embeddings that nothing
// multiplies with are not among them.
std::vector<LinearModule> FindLinearModules(const Model& model);

}  // namespace llmc
