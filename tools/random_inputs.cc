#include "tools/random_inputs.h"

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "ir/dim.h"
#include "ir/op.h"
#include "ir/ops.h"

namespace llmc {
namespace {

constexpr int64_t kDefaultDimSize = 8;
constexpr int64_t kMaxRandomElements = int64_t{1} << 32;

// Whether results are numbers of the first operand.
bool OnlyMoves(const Node& node) { return node.op->info.Has(kMoves) || Is<Cast>(&node); }

// The smallest axis along which gathers read at the numbers of `value`; 0 if there is none.
int64_t TableSize(const Value* value, absl::flat_hash_set<const Value*>* seen) {
  if (!seen->insert(value).second) return 0;
  int64_t smallest = 0;
  const auto take = [&](int64_t size) {
    if (size > 0 && (smallest == 0 || size < smallest)) smallest = size;
  };
  for (const Node* user : value->users) {
    if (Is<Gather>(user)) {
      const auto gather = View<Gather>(*user);
      const Dims& shape = gather.x->type.shape;
      const auto axis = static_cast<size_t>(gather.axis < 0 ? gather.axis + gather.x->type.rank() : gather.axis);
      if (gather.indices == value && axis < shape.size() && shape[axis].is_constant()) take(shape[axis].value());
    } else if (OnlyMoves(*user) && !user->operands.empty() && user->operands[0] == value) {
      for (const Value* result : user->results) take(TableSize(result, seen));
    }
  }
  return smallest;
}

bool NameHas(absl::string_view name, absl::string_view part) {
  return absl::StrContains(absl::AsciiStrToLower(name), part);
}

// InputSizes of all symbols of the inputs: given ones, those of given tensors, else defaults.
class InputSizes {
 public:
  InputSizes(const std::vector<TensorInfo>& inputs, const DimEnv& fixed) : inputs_(inputs), sizes_(fixed) {}

  absl::Status Choose(const NamedTensors& given) {
    std::set<std::string> symbols;
    for (const TensorInfo& info : inputs_) {
      ASSIGN_OR_RETURN(Dims dims, DimsOf(info));
      const auto it = given.find(info.name);
      for (size_t i = 0; i < dims.size(); ++i) {
        for (const std::string& symbol : dims[i].Symbols()) symbols.insert(symbol);
        const bool tells = it != given.end() && i < it->second.shape().size() && dims[i].is_symbol();
        if (tells) sizes_.try_emplace(dims[i].ToString(), it->second.shape()[i]);
      }
    }
    for (const auto& [name, size] : sizes_) {
      if (symbols.contains(name)) continue;
      return absl::InvalidArgumentError(absl::StrCat("--dim: the model has no dim ", name, "; its inputs have ",
                                                     symbols.empty() ? "none" : absl::StrJoin(symbols, ", ")));
    }
    const std::set<std::string> totals = Totals();
    for (const std::string& symbol : symbols) {
      if (totals.contains(symbol)) continue;
      sizes_.try_emplace(symbol, symbol == "B" || NameHas(symbol, "batch") ? 1 : kDefaultDimSize);
    }
    for (const std::string& symbol : totals) sizes_.try_emplace(symbol, Total());
    return absl::OkStatus();
  }

  absl::StatusOr<Shape> Of(const TensorInfo& info) const {
    ASSIGN_OR_RETURN(Dims dims, DimsOf(info));
    Shape shape;
    for (const Dim& dim : dims) {
      ASSIGN_OR_RETURN(int64_t size, dim.Evaluate(sizes_));
      shape.push_back(size);
    }
    return shape;
  }

 private:
  static absl::StatusOr<Dims> DimsOf(const TensorInfo& info) {
    Dims dims;
    for (const std::string& text : info.shape) {
      ASSIGN_OR_RETURN(Dim dim, Dim::Parse(text));
      dims.push_back(std::move(dim));
    }
    return dims;
  }

  // The symbols of what is in a cache and what comes, together: called so, or the length of a mask and of nothing else,
  // where there is a cache.
  std::set<std::string> Totals() const {
    std::set<std::string> totals, others;
    bool has_cache = false;
    for (const TensorInfo& info : inputs_) {
      has_cache = has_cache || NameHas(info.name, "past");
      for (const std::string& symbol : info.shape) {
        if (NameHas(symbol, "total") && Dim::Parse(symbol)->is_symbol()) totals.insert(symbol);
        if (!NameHas(info.name, "mask")) others.insert(symbol);
      }
    }
    for (const TensorInfo& info : inputs_) {
      if (!has_cache || !NameHas(info.name, "mask") || info.shape.empty()) continue;
      const std::string& length = info.shape.back();
      if (!others.contains(length) && Dim::Parse(length)->is_symbol()) totals.insert(length);
    }
    return totals;
  }

  // Tokens in the cache, which has them on its last axis but one, and those that come.
  int64_t Total() const {
    int64_t past = 0, now = 0;
    for (const TensorInfo& info : inputs_) {
      const absl::StatusOr<Shape> shape = Of(info);
      if (!shape.ok() || shape->size() < 2) continue;
      if (NameHas(info.name, "past")) past = (*shape)[shape->size() - 2];
      if (NameHas(info.name, "ids")) now = shape->back();
    }
    return past + now > 0 ? past + now : kDefaultDimSize;
  }

  const std::vector<TensorInfo>& inputs_;
  DimEnv sizes_;
};

// Fills a tensor and says with what.
std::string FillRandom(const std::string& name, int64_t table, std::mt19937_64* generator, Tensor* tensor) {
  if (IsFloat(tensor->dtype()) && !NameHas(name, "mask")) {
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < tensor->size(); ++i) tensor->SetFloat(i, normal(*generator));
    return "normal";
  }
  if (NameHas(name, "mask")) {
    // A mask of floating point is added to scores, one of others chooses.
    for (int64_t i = 0; i < tensor->size(); ++i) tensor->SetInt(i, IsFloat(tensor->dtype()) ? 0 : 1);
    return IsFloat(tensor->dtype()) ? "zeros" : "ones";
  }
  const int64_t length = tensor->rank() == 0 ? 1 : tensor->shape().back();
  if (NameHas(name, "position")) {
    const int64_t end = table > 0 ? table : std::numeric_limits<int64_t>::max();
    for (int64_t i = 0; i < tensor->size(); ++i) tensor->SetInt(i, std::min(i % length, end - 1));
    return "counting up";
  }
  int64_t most = table > 0 ? table - 1 : 1;
  if (tensor->dtype() != DType::kI64)
    most = std::min<int64_t>(most, (int64_t{1} << (DTypeBits(tensor->dtype()) - 1)) - 1);
  if (tensor->dtype() == DType::kBool) most = 1;
  std::uniform_int_distribution<int64_t> uniform(0, most);
  for (int64_t i = 0; i < tensor->size(); ++i) tensor->SetInt(i, uniform(*generator));
  return absl::StrCat("from 0 to ", most);
}

}  // namespace

std::map<std::string, int64_t> TableSizes(const Model& model) {
  std::map<std::string, int64_t> tables;
  for (const auto& step : model.steps) {
    for (const Value* param : step->params) {
      absl::flat_hash_set<const Value*> seen;
      const int64_t size = IsFloat(param->type.dtype) ? 0 : TableSize(param, &seen);
      if (size <= 0) continue;
      tables[param->name.substr(1)] = size;
      // The tokens of a step with a paged cache are those of input_ids, the input of its model.
      if (param->role.role == StepRole::kTokenIds) tables["input_ids"] = size;
    }
  }
  return tables;
}

absl::StatusOr<NamedTensors> MakeRandomInputs(const std::vector<TensorInfo>& inputs, const NamedTensors& given,
                                              const RandomInputs& random, std::vector<std::string>* notes) {
  InputSizes sizes(inputs, random.sizes);
  RETURN_IF_ERROR(sizes.Choose(given));
  std::mt19937_64 generator(random.seed);
  NamedTensors made;
  for (const TensorInfo& info : inputs) {
    if (info.optional || given.contains(info.name)) continue;
    const auto dtype = static_cast<DType>(info.type);
    ASSIGN_OR_RETURN(Shape shape, sizes.Of(info));
    const absl::StatusOr<int64_t> elements = CheckedElements(dtype, shape);
    if (!elements.ok() || *elements > kMaxRandomElements) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", info.name, "' would be ", ShapeToString(shape), ": give smaller sizes with --dim"));
    }
    Tensor tensor(dtype, std::move(shape));
    const auto table = random.tables.find(info.name);
    const std::string with =
        FillRandom(info.name, table == random.tables.end() ? 0 : table->second, &generator, &tensor);
    notes->push_back(absl::StrCat(info.name, "  ", DTypeName(dtype), ShapeToString(tensor.shape()), "  ", with));
    made.emplace(info.name, std::move(tensor));
  }
  return made;
}

}  // namespace llmc
