#include "runtime/device/run_sizes.h"

#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "runtime/plan/extents.h"

namespace llmc {
namespace {

// Symbols are what the manifest gives a bound.
using Bounds = std::map<std::string, int64_t>;

absl::Status BindPlain(const plan::TensorSpec& spec, const GivenInput& tensor, const Bounds& bounds, StepDims* dims) {
  for (int i = 0; i < spec.shape_size(); ++i) {
    const auto bound = bounds.find(spec.shape(i));
    if (bound == bounds.end()) continue;
    const int64_t size = tensor.shape[static_cast<size_t>(i)];
    const auto [known, added] = dims->try_emplace(spec.shape(i), size);
    if (known->second != size) {
      return absl::InvalidArgumentError(absl::StrCat("input ", spec.name(), ": dim ", i, " is ", size, ", but ",
                                                     spec.shape(i), " is ", known->second));
    }
    if (size > bound->second) {
      return absl::InvalidArgumentError(absl::StrCat("input ", spec.name(), ": dim ", i, " is ", size,
                                                     ", the bound of ", spec.shape(i), " is ", bound->second));
    }
  }
  return absl::OkStatus();
}

// A sum such as "past + 1" whose one unknown symbol stands alone gives that symbol its size.
void SolveSum(const std::string& text, int64_t size, const Bounds& bounds, StepDims* dims) {
  if (EvaluateSize(text, *dims).ok()) return;
  for (const auto& [symbol, bound] : bounds) {
    if (dims->contains(symbol)) continue;
    StepDims trial = *dims;
    trial[symbol] = 0;
    const absl::StatusOr<int64_t> zero = EvaluateSize(text, trial);
    trial[symbol] = 1;
    const absl::StatusOr<int64_t> one = EvaluateSize(text, trial);
    int64_t rise = 0, step = 0;
    if (!zero.ok() || !one.ok() || __builtin_sub_overflow(size, *zero, &rise) ||
        __builtin_sub_overflow(*one, *zero, &step) || step == 0 || rise == std::numeric_limits<int64_t>::min() ||
        rise % step != 0) {
      continue;
    }
    trial[symbol] = rise / step;
    const absl::StatusOr<int64_t> again = EvaluateSize(text, trial);
    if (again.ok() && *again == size && trial[symbol] >= 0 && trial[symbol] <= bound) *dims = trial;
    return;
  }
}

absl::Status CheckShape(const plan::TensorSpec& spec, const GivenInput& tensor, const StepDims& dims) {
  const absl::StatusOr<std::vector<int64_t>> shape = EvaluateShape(spec.shape(), dims);
  if (!shape.ok() || *shape != tensor.shape) {
    return absl::InvalidArgumentError(absl::StrCat("input ", spec.name(), ": is [", absl::StrJoin(tensor.shape, ", "),
                                                   "], the model wants [", absl::StrJoin(spec.shape(), ", "), "]"));
  }
  return absl::OkStatus();
}

// An element of a tensor of integers.
absl::StatusOr<int64_t> ElementOf(const GivenInputs& inputs, const plan::SizeRule& rule, ReadFromDevice read) {
  const auto input = inputs.find(rule.input());
  if (input == inputs.end()) return absl::InvalidArgumentError(absl::StrCat("the input ", rule.input(), " is missing"));
  const GivenInput& tensor = input->second;
  const int64_t bytes = DTypeBits(tensor.type) / 8;
  const bool is_index = tensor.type == DType::kI64 || tensor.type == DType::kI32;
  if (!is_index || rule.element() >= tensor.bytes / bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the input ", rule.input(), " has no element ", rule.element()));
  }
  int64_t wide = 0;
  int32_t narrow = 0;
  void* const to = bytes == 8 ? static_cast<void*>(&wide) : &narrow;
  const int64_t at = rule.element() * bytes;
  if (tensor.host != nullptr) {
    std::memcpy(to, tensor.host + at, static_cast<size_t>(bytes));
  } else {
    RETURN_IF_ERROR(read(to, tensor.device + static_cast<uint64_t>(at), bytes));
  }
  return bytes == 8 ? wide : narrow;
}

// Gives sizes to the symbols that inputs leave open, and checks what must hold.
absl::Status ApplyRules(const plan::Program& program, const GivenInputs& inputs, const Bounds& bounds,
                        ReadFromDevice read, StepDims* dims) {
  for (const plan::SizeRule& rule : program.size_rules()) {
    const auto wrong = [&rule](absl::string_view why) {
      return absl::InvalidArgumentError(absl::StrCat(why, "\n  at: ", rule.label()));
    };
    const absl::StatusOr<int64_t> size =
        rule.input().empty() ? EvaluateSize(rule.size(), *dims) : ElementOf(inputs, rule, read);
    if (!size.ok()) return absl::Status(size.status().code(), wrong(size.status().message()).message());
    if (!rule.expected().empty()) {
      const absl::StatusOr<int64_t> expected = EvaluateSize(rule.expected(), *dims);
      if (!expected.ok()) return wrong(expected.status().message());
      if (*expected != *size) return wrong(absl::StrCat(rule.size(), " is ", *size, ", not ", *expected));
    }
    if (rule.symbol().empty()) continue;
    const auto bound = bounds.find(rule.symbol());
    if (bound != bounds.end() && (*size < 0 || *size > bound->second)) {
      return wrong(absl::StrCat(rule.symbol(), " is ", *size, ", its bound is ", bound->second));
    }
    if (const auto [known, added] = dims->try_emplace(rule.symbol(), *size); known->second != *size) {
      return wrong(absl::StrCat(rule.symbol(), " is ", *size, ", but also ", known->second));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckType(const plan::TensorSpec& spec, const GivenInput& tensor) {
  if (DTypeName(tensor.type) != spec.dtype() || static_cast<int>(tensor.shape.size()) != spec.shape_size()) {
    return absl::InvalidArgumentError(absl::StrCat("input ", spec.name(), ": is ", DTypeName(tensor.type), "[",
                                                   absl::StrJoin(tensor.shape, ", "), "], the model wants ",
                                                   spec.dtype(), "[", absl::StrJoin(spec.shape(), ", "), "]"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StepDims> SizesOfRun(const plan::Manifest& manifest, const plan::Program& program,
                                    const GivenInputs& inputs, ReadFromDevice read) {
  const plan::EntryPoint& entry = manifest.entry_points(0);
  Bounds bounds;
  for (const plan::DimBound& bound : manifest.dims()) bounds[bound.name()] = bound.max();
  StepDims dims;
  for (const plan::TensorSpec& spec : entry.inputs()) {
    const auto input = inputs.find(spec.name());
    if (input == inputs.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the input ", spec.name(), " is missing"));
    }
    RETURN_IF_ERROR(CheckType(spec, input->second));
    RETURN_IF_ERROR(BindPlain(spec, input->second, bounds, &dims));
  }
  for (const plan::TensorSpec& spec : entry.inputs()) {
    const GivenInput& input = inputs.at(spec.name());
    for (int i = 0; i < spec.shape_size(); ++i) {
      SolveSum(spec.shape(i), input.shape[static_cast<size_t>(i)], bounds, &dims);
    }
  }
  for (const plan::TensorSpec& spec : entry.inputs()) {
    RETURN_IF_ERROR(CheckShape(spec, inputs.at(spec.name()), dims));
  }
  RETURN_IF_ERROR(ApplyRules(program, inputs, bounds, read, &dims));
  return dims;
}

}  // namespace llmc
