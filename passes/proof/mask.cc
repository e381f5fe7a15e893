#include "passes/proof/mask.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "ir/ops.h"
#include "passes/proof/element_evaluator.h"
#include "passes/proof/literal.h"

namespace llmc {
namespace {

using Kind = ElementValue::Kind;

constexpr double kHidden = -30000;  // scores of trained models that are lower weigh nothing
constexpr char kOtherForm[] = "a mask of another form";

bool IsHidden(double number) { return number < kHidden; }

struct Seen {
  std::optional<Condition> condition;
  std::string why;  // if there is none
};

constexpr const char* kIndices[] = {"$batch", "$head", "$query", "$key"};

// Where a mask lets query $query see the key at index `key` of scores [batch, heads, queries, keys]. `hides` tells of a
// number whether what it is added to is hidden.
template <class F>
Seen SeenBy(const Value& mask, const Dims& scores, const Dim& key, element::Evaluator& evaluator, F hides) {
  if (mask.type.rank() > 4) return {.why = mask.type.ToString()};
  Dims place;
  for (int axis = 0; axis < mask.type.rank(); ++axis) {
    const int of = axis + 4 - mask.type.rank();
    const Dim size = evaluator.SizeOf(mask, axis), wanted = evaluator.Known(scores[static_cast<size_t>(of)]);
    if (size == Dim(1)) {
      place.emplace_back(0);
    } else if (size == wanted) {
      place.push_back(of == 3 ? key : Dim::Symbol(kIndices[of]));
    } else {
      return {.why = absl::StrCat("sizes ", size.ToString(), " and ", wanted.ToString(),
                                  " of mask and scores, which may differ")};
    }
  }
  const std::optional<ElementValue> element = evaluator.At(mask, place);
  if (!element.has_value()) return {.why = evaluator.why()};
  if (element->kind == Kind::kBool) return {element->condition, kOtherForm};
  if (const std::optional<double> number = element::NumberOf(*element)) {
    if (*number == 0) return {Condition{}};
    return hides(*number) ? Seen{Condition{.never = true}} : Seen{.why = absl::StrCat("scores plus ", *number)};
  }
  if (element->kind != Kind::kMasked) return {.why = kOtherForm};
  const double number = element->number, otherwise = element->otherwise;
  if (number == 0 && hides(otherwise)) return {element->condition};
  if (otherwise == 0 && !element->is_bound && hides(number)) return {element::Negated(element->condition), kOtherForm};
  return {.why = absl::StrCat("scores plus ", number == 0 ? otherwise : number, ", which may not hide them")};
}

}  // namespace

MaskProof ProveMask(const Model& model, const Node& attention) {
  const auto op = View<Attention>(attention);
  const Dims &q = op.q->type.shape, &k = op.k->type.shape;
  const Dims scores = {q[0], q[1], q[2], k[2]};
  ElementFacts facts{.model = &model, .most = model.dims, .nonempty = scores};
  for (size_t axis = 0; axis < scores.size(); ++axis) {
    if (const auto range = scores[axis].Range(model.dims); range.ok()) facts.most[kIndices[axis]] = range->high;
  }
  element::Evaluator evaluator(facts);
  const DType dtype = op.mask->type.dtype;
  const Seen seen = SeenBy(*op.mask, scores, Dim::Symbol("$key"), evaluator,
                           [&](double number) { return HidesScores(number, dtype); });
  if (!seen.condition.has_value()) return {.why = seen.why};
  if (seen.condition->always()) return {.kind = MaskKind::kFull};
  const Dim below = Dim::Symbol("$query") - Dim::Symbol("$key"), past = scores[3] - scores[2];
  const Dims& parts = seen.condition->at_least_zero;
  if (parts == Dims{below}) return {.kind = MaskKind::kCausal};
  // With fewer keys than queries, some see nothing: additive masks then leave them with all, attention with none.
  if (evaluator.IsNeverNegative(past) && parts == Dims{below + past}) return {.kind = MaskKind::kCausalFromEnd};
  return {.why = kOtherForm};
}

CausalProof ProveCausal(const Value& mask, const Dims& scores, const Dim& shift, const ElementFacts& facts) {
  const Dim key = Dim::Symbol("$key");
  return ProveCausalAt(mask, scores, shift, {key, key}, facts);
}

CausalProof ProveCausalAt(const Value& mask, const Dims& scores, const Dim& shift, const KeyPlace& key,
                          const ElementFacts& facts) {
  element::Evaluator evaluator(facts);
  const Seen seen = SeenBy(mask, scores, key.index, evaluator, IsHidden);
  if (!seen.condition.has_value()) return {.why = seen.why};
  const Dim below = Dim::Symbol("$query") + shift - key.position;
  CausalMask causal;
  bool found = evaluator.IsNeverNegative(below);
  for (const Dim& dim : seen.condition->at_least_zero) {
    if (dim == below) {
      found = true;
      continue;
    }
    const Dim window = dim + below + Dim(1);  // of j > i + shift - window
    if (!window.is_constant() || window.value() <= 0) return {.why = kOtherForm};
    causal.window = causal.window == 0 ? window.value() : std::min(causal.window, window.value());
  }
  return found && !seen.condition->never ? CausalProof{.mask = causal} : CausalProof{.why = kOtherForm};
}

bool ProveHidden(const Value& mask, const Dims& scores, const Dim& index, const ElementFacts& facts) {
  element::Evaluator evaluator(facts);
  const Seen seen = SeenBy(mask, scores, index, evaluator, IsHidden);
  return seen.condition.has_value() && seen.condition->never;
}

}  // namespace llmc
