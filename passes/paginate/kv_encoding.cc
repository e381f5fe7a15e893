#include "passes/paginate/kv_encoding.h"

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "ir/encoding.h"
#include "ir/ops_lm.h"
#include "ir/ops_shape.h"
#include "ir/state_type.h"

namespace llmc::pagination {
namespace {

struct KvName {
  absl::string_view name, encoding;  // "": floats
};
constexpr KvName kNames[] = {{"none", ""},
                             {"f8e4m3", "f8e4m3 per=token scale=f32"},
                             {"f8e5m2", "f8e5m2 per=token scale=f32"},
                             {"int8", "int8 per=token scale=f32"},
                             {"int4", "int4 group=32 scale=f16"},
                             {"f8e4m3:tensor", "f8e4m3 per=tensor scale=f32"},
                             {"f8e4m3:head", "f8e4m3 per=channel scale=f32"}};

template <class... Parts>
absl::Status WrongKv(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("--kv: ", parts...));
}

absl::StatusOr<const Encoding*> EncodingOf(absl::string_view kv) {
  absl::string_view text = kv;
  for (const KvName& known : kNames) {
    if (known.name == kv) text = known.encoding;
  }
  if (text.empty()) return nullptr;
  absl::StatusOr<const Encoding*> encoding = ParseEncoding(text);
  if (encoding.ok()) return encoding;
  const auto name = [](std::string* out, const KvName& known) { absl::StrAppend(out, known.name); };
  return WrongKv("'", kv.substr(0, 100), "' is not one of ", absl::StrJoin(kNames, ", ", name),
                 " nor an encoding such as \"int4 group=64 scale=f16\" (", encoding.status().message(), ")");
}

// The operands k_scale and v_scale of a node; others behind them there are none.
constexpr size_t kScalesOfWrite = 4, kScalesOfAttention = 7;

class KvSetter {
 public:
  KvSetter(absl::string_view kv, const Encoding* encoding, Model* model)
      : kv_(kv), encoding_(encoding), model_(model) {}

  absl::Status Run() {
    std::set<Value*> done;
    std::vector<Node*> nodes;
    for (const auto& step : model_->steps) {
      for (const auto& node : step->block.nodes) {
        if (Is<KvWrite>(node.get()) || Is<PagedAttention>(node.get())) nodes.push_back(node.get());
      }
    }
    // Types first: with them it is known which scales the nodes take.
    for (Node* node : nodes) {
      const auto [state, keys, values] = KvOf(*node);
      if (keys == values && encoding_ != nullptr) {
        return absl::UnimplementedError(absl::StrCat("--kv=", kv_, ": ", state->name, " ", state->state->ToString(),
                                                     " holds latents, which are stored as they are"));
      }
      if (done.insert(state).second) RETURN_IF_ERROR(SetType(state, keys, values));
    }
    if (done.empty()) return WrongKv("the model has no cache of keys and values in pages");
    for (Node* node : nodes) RETURN_IF_ERROR(SetScales(node));
    return absl::OkStatus();
  }

 private:
  struct Kv {
    Value* state;
    std::string keys, values;
  };
  static Kv KvOf(const Node& node) {
    if (Is<KvWrite>(&node)) {
      const auto op = View<KvWrite>(node);
      return {op.kv, op.keys, op.values};
    }
    const auto op = View<PagedAttention>(node);
    return {op.kv, op.keys, op.values};
  }

  absl::Status SetType(Value* state, absl::string_view keys, absl::string_view values) {
    StateType type = *state->state;
    for (StateComponent& component : type.components) {
      if (component.name == keys || component.name == values) component.type.encoding = encoding_;
    }
    if (const absl::Status status = type.Check(); !status.ok()) return WrongKv(state->name, ": ", status.message());
    Model::SetStateType(state, type);
    return absl::OkStatus();
  }

  absl::Status SetScales(Node* node) {
    const Kv kv = KvOf(*node);
    const size_t first = Is<KvWrite>(node) ? kScalesOfWrite : kScalesOfAttention;
    node->operands.resize(first + 2, nullptr);
    for (const auto& [i, component] : {std::pair(first, kv.keys), {first + 1, kv.values}}) {
      const std::optional<TensorType> expected = kv.state->state->Find(component)->StaticScale();
      const Value* given = node->operands[i];
      if (expected.has_value() && given != nullptr && given->type == *expected) continue;
      Value* scale = nullptr;
      if (expected.has_value()) {
        if (given != nullptr || !expected->shape.empty()) {
          return WrongKv(kv_, " needs a scale ", expected->ToString(), " of component ", component, " of ",
                         kv.state->name, ", for which the model brings ",
                         given == nullptr ? "none" : given->type.ToString(), "; f8e4m3 makes scales of its own");
        }
        ASSIGN_OR_RETURN(scale, One(node->block));
      }
      model_->SetOperand(node, i, scale);
    }
    while (node->operands.back() == nullptr) node->operands.pop_back();
    return absl::OkStatus();
  }

  // The scale of whom the model gives none.
  absl::StatusOr<Value*> One(Block* block) {
    if (one_ != nullptr && one_->def->block == block) return one_;
    Builder builder(model_, block, block->nodes.front().get());
    one_ = builder.Add(Constant{.value = Tensor::FromValues(DType::kF32, {}, std::vector<double>{1})}, "%kv_scale");
    return one_ == nullptr ? absl::StatusOr<Value*>(builder.status()) : one_;
  }

  const absl::string_view kv_;
  const Encoding* encoding_;
  Model* model_;
  Value* one_ = nullptr;
};

}  // namespace

absl::Status CheckKvName(absl::string_view kv) {
  return kv == "auto" || kv == "checkpoint" ? absl::OkStatus() : EncodingOf(kv).status();
}

absl::Status SetKvEncoding(absl::string_view kv, Model* model) {
  if (kv.empty() || kv == "auto") return absl::OkStatus();
  if (kv == "checkpoint") {
    for (const Value* state : model->states) {
      const auto is_encoded = [](const StateComponent& c) { return c.type.encoding != nullptr; };
      if (absl::c_any_of(state->state->components, is_encoded)) return absl::OkStatus();
    }
    return WrongKv("'checkpoint' is for folders of quantized checkpoints that say how; this model has floats");
  }
  ASSIGN_OR_RETURN(const Encoding* encoding, EncodingOf(kv));
  return KvSetter(kv, encoding, model).Run();
}

}  // namespace llmc::pagination
