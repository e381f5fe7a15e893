#include "passes/driver/numerics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <new>
#include <numeric>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "ir/cached_rows.h"
#include "ir/ops.h"
#include "ir/state_type.h"
#include "ir/step_inputs.h"
#include "passes/proof/counts.h"

namespace llmc {
namespace {

// A stable hash: std::hash may differ between libraries, and a failure must be the same everywhere.
uint64_t HashName(absl::string_view text, uint64_t seed) {
  uint64_t hash = 14695981039346656037u ^ seed;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

absl::StatusOr<Shape> ShapeOfType(const TensorType& type, const DimEnv& dims) {
  Shape shape;
  for (const Dim& dim : type.shape) {
    ASSIGN_OR_RETURN(int64_t size, dim.Evaluate(dims));
    shape.push_back(size);
  }
  RETURN_IF_ERROR(CheckedElements(type.dtype, shape).status());
  return shape;
}

// Tokens of the pages that an input's values are places in: of the states that are used together with it.
int64_t PageSizeOf(const Value& input) {
  for (const Node* user : input.users) {
    for (const Value* operand : user->operands) {
      if (operand != nullptr && operand->state != nullptr && operand->state->kind == StateKind::kPaged) {
        return operand->state->page_size;
      }
    }
  }
  return kDefaultPageSize;
}

// A step of as many tokens, sequences and pages as its inputs have room for: sequences of about equal length, each from
// its beginning.
class SmallStep {
 public:
  SmallStep(const Step& step, const DimEnv& dims) {
    std::map<StepAxis, int64_t> sizes = {{StepAxis::kPage, 1}};
    for (const Value* param : step.params) {
      absl::StatusOr<Shape> shape = ShapeOfType(param->type, dims);
      if (!shape.ok() || param->role.role == StepRole::kNone) continue;
      const absl::Span<const StepAxis> axes = InfoOf(param->role.role).Axes();
      for (size_t i = 0; i < std::min(axes.size(), shape->size()); ++i) sizes[axes[i]] = (*shape)[i];
    }
    const int64_t tokens = sizes[StepAxis::kToken], width = sizes[StepAxis::kPage];
    const int64_t sequences = std::max<int64_t>(
        1, sizes.count(StepAxis::kSequence) > 0 ? sizes[StepAxis::kSequence] : sizes[StepAxis::kSequenceEdge] - 1);
    const auto first = [&](int64_t sequence) { return tokens * sequence / sequences; };
    ids_.resize(static_cast<size_t>(tokens));
    pages_.resize(static_cast<size_t>(sequences * width + tokens));
    std::iota(pages_.begin(), pages_.end(), 0);
    for (const Value* param : step.params) {
      const int64_t page_size = PageSizeOf(*param);
      const auto [at, is_new] = layouts_.try_emplace(page_size, PageSizes{page_size}, width);
      StepLayout& layout = at->second;
      for (int64_t s = 0; is_new && s < sequences; ++s) {
        const auto count = static_cast<size_t>(first(s + 1) - first(s));
        const auto pages = static_cast<size_t>(s * width);
        layout.Add({.ids = absl::MakeConstSpan(ids_).subspan(static_cast<size_t>(first(s)), count),
                    .pages = {absl::MakeConstSpan(pages_).subspan(pages, static_cast<size_t>(width) + count)}},
                   0);
      }
      for (int64_t row = 0; is_new && row < sizes[StepAxis::kRow]; ++row) {
        layout.AddRow(std::max<int64_t>(0, first(row % sequences + 1) - 1));
      }
    }
  }

  // What an input holds, of pools all the same; nothing if the step does not say: other inputs, and tokens, which may
  // be any.
  std::vector<int32_t> Values(const Value& param) const {
    if (param.role.role == StepRole::kNone || param.role.role == StepRole::kTokenIds) return {};
    return InputValues(param.role.role, layouts_.at(PageSizeOf(param)));
  }

 private:
  std::vector<int32_t> ids_, pages_;
  std::map<int64_t, StepLayout> layouts_;  // by the size of pages
};

double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 1e-10;
    case DType::kF32:
      return 1e-5;
    case DType::kF16:
      return 4e-3;
    case DType::kBF16:
      return 3e-2;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return 0.25;
    default:
      return 0;
  }
}

// Exported language models leave it to their caller that all batches are equal, that all past lengths are, and that a
// mask is as long as past and new tokens together. Sizes by axis keep that.
DimEnv ExportedDims(const Model& model, int64_t tokens) {
  const int64_t past = tokens - 1;
  const int64_t sizes[] = {2, tokens, past, 5, 6};  // batch, new tokens, past tokens (axis 2 of a cache), …
  DimEnv dims;
  bool cache = false, mask = false;
  for (const bool masks : {false, true}) {
    for (const auto& step : model.steps) {
      for (const Value* param : step->params) {
        const bool is_mask = absl::StrContains(param->name, "mask");
        mask = mask || is_mask;
        const bool is_cache = absl::StrContains(param->name, "past");
        cache = cache || is_cache;
        const int keys_and_values = is_cache && param->type.rank() == 5 ? 1 : 0;  // an axis in front
        for (int axis = 0; is_mask == masks && axis < param->type.rank(); ++axis) {
          const Dim& dim = param->type.shape[axis];
          if (!dim.is_symbol()) continue;
          const std::string symbol = dim.ToString();
          auto bound = model.dims.find(symbol);
          const int64_t size =
              is_mask && cache && axis > 0 ? tokens + past : sizes[std::clamp(axis - keys_and_values, 0, 4)];
          dims.emplace(symbol, bound == model.dims.end() ? size : std::min(size, bound->second));
        }
      }
    }
  }
  return mask || cache ? dims : DimEnv();
}

// Elements may differ by `tolerance` times the largest of their row (the last axis); both zeros are equal.
absl::Status CompareTensors(absl::string_view name, const Tensor& a, const Tensor& b, double tolerance) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) {
    return absl::InternalError(absl::StrCat(name, " changes from ", DTypeName(a.dtype()), ShapeToString(a.shape()),
                                            " to ", DTypeName(b.dtype()), ShapeToString(b.shape())));
  }
  const int64_t row = a.rank() == 0 ? 1 : std::max<int64_t>(1, a.shape().back());
  double largest = 0;
  for (int64_t i = 0; i < a.size(); ++i) {
    if (i % row == 0) {
      largest = 0;
      for (int64_t j = i; IsFloat(a.dtype()) && j < i + row; ++j) {
        if (std::isfinite(a.GetFloat(j))) largest = std::max(largest, std::abs(a.GetFloat(j)));
      }
    }
    bool same = false;
    if (IsFloat(a.dtype())) {
      const double x = a.GetFloat(i), y = b.GetFloat(i);
      same = x == y || (std::isnan(x) && std::isnan(y)) || std::abs(x - y) <= tolerance * largest;
    } else {
      same = a.GetInt(i) == b.GetInt(i);
    }
    if (!same) {
      return absl::InternalError(
          absl::StrCat(name, " changes at element ", i, " from ", a.GetFloat(i), " to ", b.GetFloat(i)));
    }
  }
  return absl::OkStatus();
}

constexpr int64_t kPositions = 4096;

// Below what an index must lie that an operand is; 2 for what else says where or how much.
int64_t LimitOf(const Node& node, size_t operand) {
  if (node.op->operands[operand] == "pos") return kPositions;
  if (!Is<Gather>(&node)) return 2;
  const auto op = View<Gather>(node);
  const Dim& size = op.x->type.shape[static_cast<size_t>(op.axis)];
  return size.is_constant() ? std::max<int64_t>(1, size.value()) : 2;
}

// Below what the elements of an input must lie on which operands depend that say where or how much; nothing if none
// does. What is computed on the way may ask for less.
std::optional<int64_t> PlaceLimit(const Value* param) {
  std::optional<int64_t> limit;
  absl::flat_hash_set<const Node*> seen;
  std::vector<const Value*> left = {param};
  while (!left.empty()) {
    const Value* next = left.back();
    left.pop_back();
    for (const Node* user : next->users) {
      bool is_place = false;
      for (size_t i = 0; i < user->operands.size(); ++i) {
        if (user->operands[i] != next || !IsPlace(*user, i)) continue;
        limit = std::min(limit.value_or(kPositions), LimitOf(*user, i));
        is_place = true;
      }
      if (is_place || !seen.insert(user).second) continue;
      for (const Value* result : user->results) {
        if (result->type.dtype != DType::kBool) left.push_back(result);
      }
    }
  }
  return limit;
}

// Half of what is not to be small has more digits than floats of 16 bits.
int64_t DrawInteger(DType dtype, Draws draws, std::mt19937_64* rng) {
  const bool is_wide = draws == Draws::kWide && DTypeBits(dtype) > 8 && (*rng)() % 2 == 0;
  return is_wide ? static_cast<int64_t>((*rng)() % (2 * kPositions + 1)) - kPositions
                 : static_cast<int64_t>((*rng)() % 15) - 7;
}

// Rows of a mask hide tokens on the left, in the middle or nothing; never the last one.
int64_t MaskElement(int64_t i, int64_t columns) {
  const int64_t row = i / columns, column = i % columns;
  if (column == columns - 1) return 1;
  return row % 3 == 0 ? column != 1 : row % 3 == 1 ? column >= 2 : 1;
}

// Small sizes of what a language model's step counts, and of the pages of its states.
DimEnv StepDimsOf(const Model& model) {
  static constexpr std::pair<StepAxis, int64_t> kSizes[] = {
      {StepAxis::kToken, 5}, {StepAxis::kSequence, 2}, {StepAxis::kPage, 2}, {StepAxis::kRow, 2}};
  constexpr int64_t kPages = 6;
  DimEnv dims;
  for (const auto& step : model.steps) {
    const absl::StatusOr<StepContract> contract = ContractOf(*step);
    if (!contract.ok()) continue;
    for (const auto& [axis, size] : kSizes) dims.emplace(contract->SizeOf(axis), size);
    if (contract->NameOf(StepRole::kSlots).empty()) continue;
    for (const Value* state : model.states) {
      if (state->type.rank() > 0) dims.emplace(state->type.shape[0].ToString(), kPages);
    }
  }
  return dims;
}

// What rules of algebra get wrong: both zeros, infinities, NaN, numbers at the ends of types.
void PutEdges(std::mt19937_64* rng, Tensor* tensor) {
  static constexpr double kFloats[] = {0.0, -0.0, 1, -1, INFINITY, -INFINITY, NAN, 65504, -3.4e38, 1e-40};
  static constexpr int64_t kInts[] = {0, 1, -1, 2, 127, -128, 1 << 20, -(1 << 20)};
  for (int64_t i = 0; i < tensor->size(); ++i) {
    if ((*rng)() % 2 == 0) continue;
    if (IsFloat(tensor->dtype())) {
      tensor->SetFloat(i, kFloats[(*rng)() % std::size(kFloats)]);
    } else if (tensor->dtype() != DType::kBool) {
      tensor->SetInt(i, kInts[(*rng)() % std::size(kInts)]);
    }
  }
}

}  // namespace

DimEnv SmallDims(const Model& model) {
  constexpr int64_t kTokens = 4;
  DimEnv dims = ExportedDims(model, kTokens), of_steps = StepDimsOf(model);
  int64_t next = 2;
  for (const auto& [symbol, bound] : model.dims) {
    int64_t size = 2 + next++ % 5;
    if (const auto it = of_steps.find(symbol); it != of_steps.end()) size = it->second;
    dims.emplace(symbol, std::min(size, bound));
  }
  return dims;
}

DimEnv LongDims(const Model& model, int64_t tokens) {
  DimEnv dims = ExportedDims(model, tokens);
  for (const auto& step : model.steps) {
    for (const Value* param : step->params) {
      const Dims& shape = param->type.shape;
      const auto symbols = std::count_if(shape.begin(), shape.end(), [](const Dim& dim) { return dim.is_symbol(); });
      if (symbols > 1 && shape[0].is_symbol()) dims.emplace(shape[0].ToString(), 2);
    }
  }
  int64_t next = 0;
  for (const auto& [symbol, bound] : model.dims) dims.emplace(symbol, tokens + next++ % 5);
  for (auto& [symbol, size] : dims) {
    if (const auto bound = model.dims.find(symbol); bound != model.dims.end()) size = std::min(size, bound->second);
  }
  return dims;
}

DType CoarsestFloat(const Model& model) {
  DType coarsest = DType::kF64;
  auto look = [&](const Block& block) {
    for (const auto& node : block.nodes) {
      for (const Value* result : node->results) {
        const DType dtype = result->type.dtype;
        if (IsFloat(dtype) && Tolerance(dtype) > Tolerance(coarsest)) coarsest = dtype;
      }
    }
  };
  look(model.prepare);
  for (const auto& step : model.steps) look(step->block);
  return coarsest;
}

Tensor RandomTensor(DType dtype, const Shape& shape, std::mt19937_64* rng) {
  Tensor tensor(dtype, shape);
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    if (IsFloat(dtype)) {
      tensor.SetFloat(i, normal(*rng));
    } else if (dtype == DType::kBool) {
      tensor.SetInt(i, static_cast<int64_t>((*rng)() % 2));
    } else {
      tensor.SetInt(i, DrawInteger(dtype, Draws::kNarrow, rng));
    }
  }
  return tensor;
}

absl::StatusOr<NamedTensors> RandomInputs(const Step& step, const DimEnv& dims, uint64_t seed, Draws draws) {
  const SmallStep small(step, dims);
  NamedTensors inputs;
  for (const Value* param : step.params) {
    ASSIGN_OR_RETURN(Shape shape, ShapeOfType(param->type, dims));
    const std::string name = param->name.substr(1);
    const DType dtype = param->type.dtype;
    std::mt19937_64 rng(HashName(name, seed));
    Tensor tensor = RandomTensor(dtype, shape, &rng);
    const bool mask = absl::StrContains(name, "mask");
    const std::optional<int64_t> limit = PlaceLimit(param);
    if (seed == kEdgeSeed && !limit.has_value()) PutEdges(&rng, &tensor);
    for (int64_t i = 0; !IsFloat(dtype) && i < tensor.size(); ++i) {
      if (limit.has_value()) {
        const int64_t below = draws == Draws::kWide ? *limit : std::min<int64_t>(2, *limit);
        tensor.SetInt(i, static_cast<int64_t>(rng() % static_cast<uint64_t>(below)));
      } else if (IsInteger(dtype) && seed != kEdgeSeed) {
        tensor.SetInt(i, DrawInteger(dtype, draws, &rng));
      }
      if (mask) tensor.SetInt(i, MaskElement(i, std::max<int64_t>(1, shape.empty() ? 1 : shape.back())));
    }
    const std::vector<int32_t> values = small.Values(*param);
    for (size_t i = 0; i < std::min(values.size(), static_cast<size_t>(tensor.size())); ++i) {
      tensor.SetInt(static_cast<int64_t>(i), values[i]);
    }
    inputs[name] = std::move(tensor);
  }
  return inputs;
}

absl::Status FillRandomWeights(Model* model, uint64_t seed) {
  for (const Value* weight : model->weights) {
    if (model->data.count(weight->name) > 0) continue;
    ASSIGN_OR_RETURN(Shape shape, ShapeOfType(weight->type, {}));
    std::mt19937_64 rng(HashName(weight->name, seed));
    model->data[weight->name] = RandomTensor(weight->type.dtype, shape, &rng);
  }
  return absl::OkStatus();
}

namespace {

// Inputs and states of an instance: sizes that a model gives as numbers may be of any size.
absl::Status CheckBytes(const Model& model, const DimEnv& dims) {
  constexpr double kMaxGiB = 4;
  std::vector<const Value*> values(model.states.begin(), model.states.end());
  for (const auto& step : model.steps) values.insert(values.end(), step->params.begin(), step->params.end());
  double gib = 0;
  for (const Value* value : values) {
    ASSIGN_OR_RETURN(Shape shape, ShapeOfType(value->type, dims));
    double bytes = DTypeBits(value->type.dtype) / 8.0;
    for (int64_t size : shape) bytes *= static_cast<double>(size);
    gib += bytes / (1 << 30);
    if (gib > kMaxGiB) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("a small instance of this model has more than %g GiB of inputs and states (%s is %s); the "
                          "numbers can be checked if its large dims are symbols",
                          kMaxGiB, value->name, TypeText(*value)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<NamedTensors> MakeInputs(const Model& model, const DimEnv& dims, uint64_t seed, Draws draws) {
  RETURN_IF_ERROR(CheckBytes(model, dims));
  NamedTensors all;
  for (const auto& step : model.steps) {
    ASSIGN_OR_RETURN(NamedTensors inputs, RandomInputs(*step, dims, seed, draws));
    for (auto& [name, tensor] : inputs) all[absl::StrCat(step->name, "/", name)] = std::move(tensor);
  }
  return all;
}

absl::StatusOr<NamedTensors> Evaluate(const Model& model, const NamedTensors& all) {
  ASSIGN_OR_RETURN(std::unique_ptr<Evaluator> evaluator, Evaluator::Create(&model));
  RETURN_IF_ERROR(evaluator->AllocateStates(SmallDims(model)));
  NamedTensors results;
  for (const auto& step : model.steps) {
    NamedTensors inputs;
    for (const Value* param : step->params) {
      const std::string name = param->name.substr(1);
      auto it = all.find(absl::StrCat(step->name, "/", name));
      if (it != all.end()) inputs[name] = it->second;
    }
    ASSIGN_OR_RETURN(NamedTensors outputs, evaluator->Run(*step, inputs));
    for (auto& [name, tensor] : outputs) results[absl::StrCat(step->name, "/", name)] = std::move(tensor);
  }
  for (const Value* state : model.states) {
    const Tensor& memory = *evaluator->FindState(state->name);
    for (const StateComponent& component : state->state->components) {
      results[absl::StrCat(state->name, ".", component.name)] = ContentsOf(*state->state, component, memory);
    }
  }
  return results;
}

// An allocation that fails becomes a status.
template <class F>
absl::StatusOr<NamedTensors> GuardMemory(const F& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory: the numbers of this model cannot be checked here");
  }
}

}  // namespace

absl::StatusOr<SmallRun> RunWith(const Model& model, const DimEnv& dims, uint64_t seed) {
  absl::Status status;
  for (const Draws draws : {Draws::kWide, Draws::kNarrow}) {
    ASSIGN_OR_RETURN(NamedTensors inputs, GuardMemory([&] { return MakeInputs(model, dims, seed, draws); }));
    absl::StatusOr<NamedTensors> outputs = EvaluateSmall(model, inputs);
    if (outputs.ok()) return SmallRun{std::move(inputs), *std::move(outputs)};
    status = outputs.status();
  }
  return status;
}

absl::StatusOr<SmallRun> RunSmall(const Model& model, uint64_t seed) { return RunWith(model, SmallDims(model), seed); }

absl::StatusOr<NamedTensors> SmallInputs(const Model& model, uint64_t seed) {
  ASSIGN_OR_RETURN(SmallRun run, RunSmall(model, seed));
  return std::move(run.inputs);
}

absl::StatusOr<NamedTensors> EvaluateSmall(const Model& model, const NamedTensors& inputs) {
  return GuardMemory([&] { return Evaluate(model, inputs); });
}

absl::Status CompareResults(const NamedTensors& before, const NamedTensors& after, std::optional<DType> rounded) {
  if (before.size() != after.size()) {
    return absl::InternalError(absl::StrCat("there were ", before.size(), " results, now there are ", after.size()));
  }
  for (const auto& [name, tensor] : before) {
    auto it = after.find(name);
    if (it == after.end()) return absl::InternalError(absl::StrCat(name, " is gone"));
    const double tolerance = rounded.has_value() ? std::max(Tolerance(tensor.dtype()), Tolerance(*rounded)) : 0;
    RETURN_IF_ERROR(CompareTensors(name, tensor, it->second, tolerance));
  }
  return absl::OkStatus();
}

}  // namespace llmc
