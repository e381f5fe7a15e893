#include "ir/sizes.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace llmc {
namespace {

absl::Status Misfit(size_t axis, int64_t size, absl::string_view what, int64_t want) {
  return absl::InvalidArgumentError(absl::StrCat("dim ", axis, " is ", size, ", but ", what, " is ", want));
}

}  // namespace

int SymbolTable::Add(const std::string& name) {
  auto [it, added] = index_.emplace(name, size());
  if (added) {
    int64_t bound = std::numeric_limits<int64_t>::max();
    if (bounds_ != nullptr) {
      if (auto b = bounds_->find(name); b != bounds_->end()) bound = b->second;
    }
    symbols_.push_back({name, bound});
  }
  return it->second;
}

int SymbolTable::Find(absl::string_view name) const {
  auto it = index_.find(name);
  return it == index_.end() ? -1 : it->second;
}

IndexedType IndexType(const TensorType& type, SymbolTable* table) {
  IndexedType indexed{&type, {}};
  for (const Dim& dim : type.shape) {
    IndexedType::Item item;
    if (dim.is_constant()) {
      item.constant = dim.value();
    } else if (dim.is_symbol()) {
      item.symbol = table->Add(dim.Symbols()[0]);
    } else {
      for (const std::string& symbol : dim.Symbols()) table->Add(symbol);
      item.expr = &dim;
    }
    indexed.dims.push_back(item);
  }
  return indexed;
}

absl::Status SymbolSizes::Set(int symbol, int64_t size) {
  if (size < 0 || size > table_->bound(symbol)) {
    return absl::InvalidArgumentError(
        absl::StrCat(table_->name(symbol), " would be ", size, ", but its bound is ", table_->bound(symbol)));
  }
  values_[symbol] = size;
  env_[table_->name(symbol)] = size;
  return absl::OkStatus();
}

absl::Status SymbolSizes::Bind(absl::string_view symbol, int64_t size) {
  const int index = table_->Find(symbol);
  if (index >= 0) return Set(index, size);
  env_[std::string(symbol)] = size;
  return absl::OkStatus();
}

absl::Status SymbolSizes::BindPlain(const IndexedType& type, absl::Span<const int64_t> shape) {
  if (shape.size() != type.dims.size()) {
    return absl::InvalidArgumentError(absl::StrCat("it has ", shape.size(), " dims, not ", type.dims.size()));
  }
  for (size_t i = 0; i < shape.size(); ++i) {
    const IndexedType::Item& item = type.dims[i];
    if (item.expr != nullptr) continue;
    if (item.symbol < 0) {
      if (shape[i] != item.constant) {
        return absl::InvalidArgumentError(absl::StrCat("dim ", i, " is ", shape[i], ", not ", item.constant));
      }
      continue;
    }
    const int64_t value = values_[item.symbol];
    if (value == shape[i]) continue;
    if (value >= 0) return Misfit(i, shape[i], table_->name(item.symbol), value);
    RETURN_IF_ERROR(Set(item.symbol, shape[i]));
  }
  return absl::OkStatus();
}

absl::Status SymbolSizes::CheckExpressions(const IndexedType& type, absl::Span<const int64_t> shape) {
  for (size_t i = 0; i < type.dims.size(); ++i) {
    const Dim* expr = type.dims[i].expr;
    if (expr == nullptr) continue;
    absl::StatusOr<int64_t> value = expr->Evaluate(env_);
    if (!value.ok()) {
      RETURN_IF_ERROR(Solve(*expr, shape[i]));
    } else if (*value != shape[i]) {
      return Misfit(i, shape[i], expr->ToString(), *value);
    }
  }
  return absl::OkStatus();
}

absl::Status SymbolSizes::Solve(const Dim& dim, int64_t size) {
  int unbound = -1;
  for (const std::string& symbol : dim.Symbols()) {
    const int index = table_->Find(symbol);
    if (index < 0 || values_[index] >= 0) continue;
    if (unbound >= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("nothing tells the sizes of ", table_->name(unbound), " and ", symbol, " in ", dim.ToString()));
    }
    unbound = index;
  }
  const auto at = [&](int64_t value) -> absl::StatusOr<int64_t> {
    DimEnv env = env_;
    env[table_->name(unbound)] = value;
    return dim.Evaluate(env);
  };
  if (unbound < 0) return dim.Evaluate(env_).status();
  const absl::StatusOr<int64_t> zero = at(0);
  const absl::StatusOr<int64_t> one = at(1);
  if (zero.ok() && one.ok() && *one != *zero) {
    int64_t difference = 0;
    int64_t slope = 0;
    if (!__builtin_sub_overflow(size, *zero, &difference) && !__builtin_sub_overflow(*one, *zero, &slope) &&
        slope != -1 && difference % slope == 0) {
      const int64_t value = difference / slope;
      const absl::StatusOr<int64_t> found = at(value);
      if (value >= 0 && found.ok() && *found == size) return Set(unbound, value);
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no size of ", table_->name(unbound), " makes ", dim.ToString(), " equal to ", size));
}

absl::Status SymbolSizes::Check(const IndexedType& type, const Tensor& tensor) {
  if (tensor.dtype() != type.type->dtype) {
    return absl::InvalidArgumentError("the element type differs");
  }
  if (tensor.encoding() != type.type->encoding) return absl::InvalidArgumentError("the encoding differs");
  RETURN_IF_ERROR(BindPlain(type, tensor.shape()));
  return CheckExpressions(type, tensor.shape());
}

absl::Status SymbolSizes::CheckBytes(const IndexedType& type) {
  scratch_.clear();
  for (const IndexedType::Item& item : type.dims) {
    if (item.expr != nullptr) {
      const absl::StatusOr<int64_t> size = item.expr->Evaluate(env_);
      if (!size.ok()) return absl::OkStatus();
      scratch_.push_back(*size);
    } else if (item.symbol >= 0) {
      if (values_[item.symbol] < 0) return absl::OkStatus();
      scratch_.push_back(values_[item.symbol]);
    } else {
      scratch_.push_back(item.constant);
    }
  }
  return CheckedElements(type.type->dtype, scratch_).status();
}

}  // namespace llmc
