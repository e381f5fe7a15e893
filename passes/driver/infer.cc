#include "passes/driver/infer.h"

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/op.h"
#include "ir/text.h"
#include "passes/proof/clamped_sizes.h"

namespace llmc {
namespace {

class Inference {
 public:
  Inference(Model* model, absl::FunctionRef<void(Node*)> visit) : model_(model), visit_(visit), clamped_(model) {
    for (const Value* state : model->states) AddInterface(state->type);
    for (const auto& step : model->steps) {
      for (const Value* param : step->params) AddInterface(param->type);
    }
  }

  absl::Status Run() {
    RETURN_IF_ERROR(RunBlock(&model_->prepare));
    const Known prepared = known_;
    for (const auto& step : model_->steps) {
      known_ = prepared;
      RETURN_IF_ERROR(RunBlock(&step->block));
    }
    return absl::OkStatus();
  }

 private:
  using Known = std::map<std::string, Dim, std::less<>>;

  void AddInterface(const TensorType& type) {
    for (const Dim& dim : type.shape) {
      for (const std::string& symbol : dim.Symbols()) interface_.insert(symbol);
    }
  }

  absl::Status RunBlock(Block* block) {
    for (auto it = block->nodes.begin(); it != block->nodes.end();) {
      Node* node = (it++)->get();
      RETURN_IF_ERROR(Infer(node));
      visit_(node);
    }
    if (known_.empty()) return absl::OkStatus();
    // Another node may have told the same dim, earlier.
    for (const auto& node : block->nodes) Substitute(node.get());
    return absl::OkStatus();
  }

  absl::Status Infer(Node* node) {
    Substitute(node);
    std::vector<Dims> before;
    for (const Value* result : node->results) before.push_back(result->type.shape);
    if (absl::Status status = model_->Reinfer(node); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(status.message(), "\n  in: ", PrintNode(*node)));
    }
    for (size_t i = 0; i < before.size(); ++i) {
      const Dims& now = node->results[i]->type.shape;
      for (size_t d = 0; d < std::min(before[i].size(), now.size()); ++d) Resolve(before[i][d], now[d]);
    }
    for (const auto& [symbol, dim] : clamped_.Add(*node)) Resolve(Dim::Symbol(symbol), dim);
    Substitute(node);
    return absl::OkStatus();
  }

  // Sizes of inputs and states stay what the model says.
  void Resolve(const Dim& before, const Dim& now) {
    if (before == now || !before.is_symbol()) return;
    const std::string symbol = before.Symbols()[0];
    if (interface_.contains(symbol) || known_.contains(symbol)) return;
    for (const std::string& other : now.Symbols()) {
      if (other == symbol) return;
    }
    known_.emplace(symbol, now);
  }

  // A dim that took the place of a symbol was free of the symbols known then, but not of those known later.
  void Substitute(Dims* dims) const {
    for (Dim& dim : *dims) {
      for (Dim next = dim.Substitute(known_); next != dim; next = dim.Substitute(known_)) dim = next;
    }
  }

  void Substitute(Node* node) const {
    if (known_.empty()) return;
    for (auto& [name, attr] : node->attrs) {
      if (Dims* dims = std::get_if<Dims>(&attr)) Substitute(dims);
    }
    for (Value* result : node->results) {
      Substitute(&result->type.shape);
      if (result->contents.has_value()) Substitute(&*result->contents);
    }
  }

  Model* model_;
  absl::FunctionRef<void(Node*)> visit_;
  ClampedSizes clamped_;
  absl::flat_hash_set<std::string> interface_;
  Known known_;
};

}  // namespace

absl::Status InferAgain(Model* model, absl::FunctionRef<void(Node*)> visit) { return Inference(model, visit).Run(); }

absl::Status InferAgain(Model* model) {
  return InferAgain(model, [](Node*) {});
}

}  // namespace llmc
