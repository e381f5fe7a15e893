#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "files/path_check.h"
#include "frontend/import_options.h"
#include "ir/ops_internal.h"

namespace llmc {
namespace {

absl::Status RefuseInput(const std::string& name, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("--set ", name, ": ", why));
}

// The items of "1,2,3" or "[1, 2, 3]".
std::vector<std::string> ListItems(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (absl::ConsumePrefix(&text, "[")) absl::ConsumeSuffix(&text, "]");
  std::vector<std::string> items;
  for (const absl::string_view item : absl::StrSplit(text, ',')) items.emplace_back(absl::StripAsciiWhitespace(item));
  return items;
}

bool IsList(absl::string_view text) { return absl::StrContains(text, ',') || absl::StrContains(text, '['); }

absl::StatusOr<int64_t> ParseInteger(const std::string& text, DType dtype) {
  if (dtype == DType::kBool && (text == "true" || text == "True")) return 1;
  if (dtype == DType::kBool && (text == "false" || text == "False")) return 0;
  int64_t number = 0;
  const bool is_number = absl::SimpleAtoi(text, &number);
  Tensor one(dtype, {});
  if (is_number) one.SetInt(0, number);
  if (is_number && one.GetInt(0) == number) return number;
  return absl::InvalidArgumentError(absl::StrCat(Quoted(text), " is no ", DTypeName(dtype)));
}

absl::StatusOr<double> ParseFloat(const std::string& text, DType dtype) {
  double number = 0;
  Tensor one(dtype, {});
  const bool is_number = absl::SimpleAtod(text, &number);
  if (is_number) one.SetFloat(0, number);
  if (is_number && (std::isfinite(one.GetFloat(0)) || !std::isfinite(number))) return number;
  return absl::InvalidArgumentError(absl::StrCat(Quoted(text), " is no ", DTypeName(dtype)));
}

// The items as a row.
absl::StatusOr<Tensor> ParseRow(const std::vector<std::string>& items, DType dtype) {
  Tensor row(dtype, {static_cast<int64_t>(items.size())});
  for (size_t i = 0; i < items.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    if (IsFloat(dtype)) {
      ASSIGN_OR_RETURN(double number, ParseFloat(items[i], dtype));
      row.SetFloat(at, number);
    } else {
      ASSIGN_OR_RETURN(int64_t number, ParseInteger(items[i], dtype));
      row.SetInt(at, number);
    }
  }
  return row;
}

// The sizes that are known; -1 for others.
Shape KnownShape(const TensorType& type, const DimEnv& sizes) {
  Shape shape;
  for (const Dim& dim : type.shape) {
    const absl::StatusOr<int64_t> size = dim.Evaluate(sizes);
    shape.push_back(size.ok() ? *size : -1);
  }
  return shape;
}

absl::StatusOr<Tensor> Filled(const Tensor& one, const TensorType& type, const DimEnv& sizes) {
  Shape shape = KnownShape(type, sizes);
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("one number fills ", type.ToString(),
                                                   " only if its sizes are known: ", "give --dim ",
                                                   type.shape[i].ToString(), "=SIZE too, or a list"));
  }
  const absl::StatusOr<int64_t> elements = CheckedElements(type.dtype, shape);
  if (!elements.ok() || *elements > kMaxFixedElements) {
    return absl::InvalidArgumentError(absl::StrCat(ShapeToString(shape), " is too large to be filled"));
  }
  Tensor all(type.dtype, std::move(shape));
  for (int64_t i = 0; i < all.size(); ++i) {
    IsFloat(type.dtype) ? all.SetFloat(i, one.GetFloat(0)) : all.SetInt(i, one.GetInt(0));
  }
  return all;
}

// A row along the one axis that is not known, or is not 1.
absl::StatusOr<Tensor> AlongOneAxis(const Tensor& row, const TensorType& type, const DimEnv& sizes) {
  Shape shape = KnownShape(type, sizes);
  const auto is_long = [&](int64_t size) { return size != 1; };
  const bool fits = std::count_if(shape.begin(), shape.end(), is_long) <= 1;
  if (!fits || shape.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("a list is for one axis, and the input is ", type.ToString(),
                                                   shape.empty() ? "" : "; give a .npy file"));
  }
  const auto axis = std::find_if(shape.begin(), shape.end(), is_long);
  *(axis == shape.end() ? shape.begin() : axis) = row.size();
  return row.Reshaped(std::move(shape));
}

// Holds the contents' shape against the type and the sizes, and notes what it tells.
absl::Status TakeSizes(const Tensor& contents, const TensorType& type, DimEnv* sizes) {
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("its contents are ", ShapeToString(contents.shape()), ", but ", why));
  };
  if (contents.rank() != type.rank()) return refuse(absl::StrCat("the input is ", type.ToString()));
  for (int i = 0; i < type.rank(); ++i) {
    const Dim& dim = type.shape[static_cast<size_t>(i)];
    const int64_t size = contents.shape()[static_cast<size_t>(i)];
    const absl::StatusOr<int64_t> known = dim.Evaluate(*sizes);
    if (known.ok() && *known != size) {
      return refuse(dim.is_constant() ? absl::StrCat("the input is ", type.ToString())
                                      : absl::StrCat(dim.ToString(), " is fixed to ", *known));
    }
    if (!known.ok() && dim.is_symbol()) sizes->emplace(dim.ToString(), size);
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ContentsOf(const FixedInput& input, const TensorType& type, const DimEnv& sizes) {
  if (input.tensor.has_value()) return ConvertedTensor(*input.tensor, type.dtype);
  if (DTypeBits(type.dtype) < 8) {
    return absl::UnimplementedError(absl::StrCat("numbers of the type ", DTypeName(type.dtype), " cannot be given"));
  }
  const absl::StatusOr<Tensor> row = ParseRow(ListItems(input.text), type.dtype);
  if (!row.ok()) return row;
  return IsList(input.text) ? AlongOneAxis(*row, type, sizes) : Filled(*row, type, sizes);
}

}  // namespace

bool TellsSizes(const FixedInput& input) { return input.tensor.has_value() || IsList(input.text); }

absl::StatusOr<Tensor> FixedContents(const std::string& name, const FixedInput& input, const TensorType& type,
                                     DimEnv* sizes) {
  absl::StatusOr<Tensor> contents = ContentsOf(input, type, *sizes);
  if (!contents.ok())
    return absl::Status(contents.status().code(), RefuseInput(name, contents.status().message()).message());
  if (absl::Status status = TakeSizes(*contents, type, sizes); !status.ok()) return RefuseInput(name, status.message());
  return contents;
}

namespace {

// By all cores, through numbers of type X.
template <class X>
void ConvertBy(const Tensor& from, Tensor* to) {
  constexpr int64_t kChunk = 4096;
  const int64_t chunks = (from.size() + kChunk - 1) / kChunk;
  ops::ParallelFor(chunks, 2.0 * static_cast<double>(from.size()), [&](int64_t first, int64_t last) {
    std::vector<X> some(kChunk);
    for (int64_t chunk = first; chunk < last; ++chunk) {
      const int64_t begin = chunk * kChunk, count = std::min(kChunk, from.size() - begin);
      ops::Load<X>(from, begin, count, some.data());
      ops::Store<X>(some.data(), begin, count, to);
    }
  });
}

}  // namespace

absl::StatusOr<Tensor> ConvertedTensor(const Tensor& tensor, DType to) {
  if (tensor.dtype() == to) return tensor;
  if (IsFloat(tensor.dtype()) != IsFloat(to)) {
    return absl::InvalidArgumentError(
        absl::StrCat("it holds ", DTypeName(tensor.dtype()), ", and ", DTypeName(to), " is wanted"));
  }
  Tensor converted(to, tensor.shape());
  if (IsFloat(to)) {
    if (to == DType::kF64 || tensor.dtype() == DType::kF64) {
      ConvertBy<double>(tensor, &converted);
    } else {
      ConvertBy<float>(tensor, &converted);
    }
    return converted;
  }
  for (int64_t i = 0; i < tensor.size(); ++i) {
    converted.SetInt(i, tensor.GetInt(i));
    if (converted.GetInt(i) == tensor.GetInt(i)) continue;
    return absl::InvalidArgumentError(absl::StrCat("it holds ", tensor.GetInt(i), ", which is no ", DTypeName(to)));
  }
  return converted;
}

}  // namespace llmc
