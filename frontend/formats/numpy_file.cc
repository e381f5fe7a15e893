#include "frontend/formats/numpy_file.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "files/file_writer.h"
#include "files/mapped_file.h"
#include "files/path_check.h"
#include "frontend/formats/numpy_format.h"

namespace llmc {
namespace {

constexpr absl::string_view kNpyMagic = "\x93NUMPY";
constexpr size_t kMaxNumpyHeader = 1 << 16, kMaxNumpyRank = 64, kNpyAlignment = 64;

absl::Status NoNpy(absl::string_view why) { return absl::InvalidArgumentError(absl::StrCat("is no .npy file: ", why)); }

struct NumpyType {
  absl::string_view descr;
  DType dtype;
  int bytes;      // of an element in the file
  bool is_wider;  // unsigned, and the tensor's type has more bits
};
// The first row of a type is what is written.
constexpr NumpyType kNumpyTypes[] = {
    {"<f8", DType::kF64, 8, false}, {"<f4", DType::kF32, 4, false}, {"<f2", DType::kF16, 2, false},
    {"<i8", DType::kI64, 8, false}, {"<i4", DType::kI32, 4, false}, {"<i2", DType::kI16, 2, false},
    {"|i1", DType::kI8, 1, false},  {"|u1", DType::kU8, 1, false},  {"|b1", DType::kBool, 1, false},
    {"<u2", DType::kI32, 2, true},  {"<u4", DType::kI64, 4, true},  {"<u8", DType::kI64, 8, true},
};

struct NpyFields {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<Shape> shape;
};

// The header is a dict as Python writes it: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
class NpyHeaderParser {
 public:
  explicit NpyHeaderParser(absl::string_view text) : text_(text) {}

  absl::StatusOr<NpyFields> Parse() {
    NpyFields header;
    if (!Take("{")) return NoNpy("its header does not begin with '{'");
    while (!Take("}")) {
      const std::optional<std::string> key = TakeString();
      if (!key.has_value() || !Take(":")) return NoNpy("its header is no dict of names");
      if (!TakeValue(*key, &header)) return NoNpy(absl::StrCat("the member ", Quoted(*key), " of its header"));
      if (Take(",")) continue;
      if (!Take("}")) return NoNpy("its header does not end with '}'");
      break;
    }
    SkipSpace();
    if (!text_.empty()) return NoNpy("something stands behind its header");
    if (!header.descr.has_value() || !header.fortran_order.has_value() || !header.shape.has_value()) {
      return NoNpy("its header lacks descr, fortran_order or shape");
    }
    return header;
  }

 private:
  void SkipSpace() { text_ = absl::StripLeadingAsciiWhitespace(text_); }
  bool Take(absl::string_view token) {
    SkipSpace();
    return absl::ConsumePrefix(&text_, token);
  }
  std::optional<std::string> TakeString() {
    SkipSpace();
    const char quote = text_.empty() ? '\0' : text_[0];
    if (quote != '\'' && quote != '"') return std::nullopt;
    const size_t end = text_.find(quote, 1);
    if (end == absl::string_view::npos) return std::nullopt;
    std::string value(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return value;
  }
  std::optional<Shape> TakeShape() {
    Shape shape;
    if (!Take("(")) return std::nullopt;
    while (!Take(")")) {
      SkipSpace();
      const size_t digits = std::min(text_.find_first_not_of("0123456789"), text_.size());
      int64_t size = 0;
      if (!absl::SimpleAtoi(text_.substr(0, digits), &size) || shape.size() >= kMaxNumpyRank) return std::nullopt;
      text_.remove_prefix(digits);
      shape.push_back(size);
      if (Take(",")) continue;
      if (!Take(")") || shape.size() == 1) return std::nullopt;  // (3) is a number, (3,) a shape
      break;
    }
    return shape;
  }
  bool TakeValue(const std::string& key, NpyFields* header) {
    if (key == "descr" && !header->descr.has_value()) return (header->descr = TakeString()).has_value();
    if (key == "shape" && !header->shape.has_value()) return (header->shape = TakeShape()).has_value();
    if (key != "fortran_order" || header->fortran_order.has_value()) return false;
    if (Take("True")) header->fortran_order = true;
    if (!header->fortran_order.has_value() && Take("False")) header->fortran_order = false;
    return header->fortran_order.has_value();
  }

  absl::string_view text_;
};

absl::StatusOr<NumpyType> FindNumpyType(const std::string& descr) {
  for (const NumpyType& type : kNumpyTypes) {
    if (type.descr == descr) return type;
    if (type.bytes == 1 && descr.size() == 3 && descr.substr(1) == type.descr.substr(1)) return type;
  }
  const bool is_big = descr.size() > 1 && descr[0] == '>';
  return absl::InvalidArgumentError(
      absl::StrCat("holds elements of the type ", Quoted(descr), ", which is not read; write ",
                   is_big ? "little-endian numbers" : "numbers of 1 to 8 bytes, or bool", " (array.astype)"));
}

// The text of the header, and where the elements begin.
absl::StatusOr<std::pair<absl::string_view, size_t>> FindNpyHeader(absl::string_view bytes) {
  if (!absl::StartsWith(bytes, kNpyMagic) || bytes.size() < 12) return NoNpy("it does not begin as one");
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(bytes[i])); };
  if (byte(6) < 1 || byte(6) > 3 || byte(7) != 0) {
    return NoNpy(absl::StrCat("its version is ", byte(6), ".", byte(7), ", and 1.0 to 3.0 are read"));
  }
  const size_t at = byte(6) == 1 ? 10 : 12;
  const size_t length = byte(8) | byte(9) << 8 | (byte(6) == 1 ? 0 : byte(10) << 16 | byte(11) << 24);
  if (length > kMaxNumpyHeader || length > bytes.size() - at)
    return NoNpy("its header is longer than the file or 64 KiB");
  return std::pair(bytes.substr(at, length), at + length);
}

// Elements of `bytes` each, from column-major to row-major order.
void FromFortran(const char* from, const Shape& shape, size_t bytes, char* to) {
  const size_t rank = shape.size();
  Shape stride(rank, 1), index(rank, 0);
  for (size_t i = 1; i < rank; ++i) stride[i] = stride[i - 1] * shape[i - 1];
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  int64_t at = 0;
  for (int64_t i = 0; i < elements; ++i, to += bytes) {
    std::memcpy(to, from + static_cast<size_t>(at) * bytes, bytes);
    for (size_t axis = rank; axis-- > 0;) {
      at += stride[axis];
      if (++index[axis] < shape[axis]) break;
      at -= stride[axis] * shape[axis];
      index[axis] = 0;
    }
  }
}

absl::StatusOr<Tensor> WidenedNpy(const NumpyType& type, Shape shape, const char* raw) {
  Tensor tensor(type.dtype, std::move(shape));
  for (int64_t i = 0; i < tensor.size(); ++i) {
    uint64_t value = 0;
    std::memcpy(&value, raw + i * type.bytes, static_cast<size_t>(type.bytes));
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      return absl::InvalidArgumentError(absl::StrCat("holds ", value, ", which 64 bits with a sign do not"));
    }
    tensor.SetInt(i, static_cast<int64_t>(value));
  }
  return tensor;
}

Tensor CopiedNpy(DType dtype, Shape shape, const char* raw) {
  Tensor tensor(dtype, std::move(shape));
  std::memcpy(tensor.mutable_raw(), raw, static_cast<size_t>(tensor.bytes()));
  return tensor;
}

bool IsPlainBool(absl::string_view elements) {
  return std::all_of(elements.begin(), elements.end(), [](char c) { return c == 0 || c == 1; });
}

}  // namespace

absl::StatusOr<Tensor> ParseNpy(absl::string_view bytes, const std::shared_ptr<const char>& owner) {
  const auto found = FindNpyHeader(bytes);
  if (!found.ok()) return found.status();
  ASSIGN_OR_RETURN(NpyFields header, NpyHeaderParser(found->first).Parse());
  ASSIGN_OR_RETURN(const NumpyType type, FindNumpyType(*header.descr));
  Shape shape = *header.shape;
  ASSIGN_OR_RETURN(const int64_t elements, CheckedElements(type.dtype, shape));
  const absl::string_view data = bytes.substr(found->second);
  const size_t wanted = static_cast<size_t>(elements) * static_cast<size_t>(type.bytes);
  if (data.size() != wanted) {
    return NoNpy(absl::StrCat("it has ", data.size(), " bytes of elements, and ", *header.descr, ShapeToString(shape),
                              " has ", wanted));
  }
  const char* raw = data.data();
  std::vector<char> turned;
  if (*header.fortran_order && shape.size() > 1 && elements > 0) {
    turned.resize(wanted);
    FromFortran(raw, shape, static_cast<size_t>(type.bytes), turned.data());
    raw = turned.data();
  }
  if (type.is_wider) return WidenedNpy(type, std::move(shape), raw);
  if (type.dtype == DType::kBool && !IsPlainBool(data)) return NoNpy("it holds a bool that is neither 0 nor 1");
  const bool is_aligned = reinterpret_cast<uintptr_t>(raw) % static_cast<size_t>(type.bytes) == 0;
  if (!turned.empty() || !is_aligned) return CopiedNpy(type.dtype, std::move(shape), raw);
  return Tensor(type.dtype, std::move(shape), std::shared_ptr<const char>(owner, raw));
}

Tensor WithNumpyType(const Tensor& tensor) {
  DType to = tensor.dtype();
  for (const NumpyType& type : kNumpyTypes) {
    if (type.dtype == to) return tensor;
  }
  to = IsFloat(to) ? DType::kF32 : to == DType::kU4 ? DType::kU8 : DType::kI8;
  return IsFloat(to) ? Tensor::FromValues(to, tensor.shape(), tensor.ToFloats())
                     : Tensor::FromValues(to, tensor.shape(), tensor.ToInts());
}

std::string NpyHeader(const Tensor& tensor) {
  const auto* type = std::find_if(std::begin(kNumpyTypes), std::end(kNumpyTypes),
                                  [&](const auto& t) { return t.dtype == tensor.dtype(); });
  std::string shape = "(";
  for (const int64_t size : tensor.shape()) absl::StrAppend(&shape, size, ", ");
  if (tensor.rank() > 1) shape.resize(shape.size() - 2);
  if (tensor.rank() == 1) shape.pop_back();
  std::string text = absl::StrCat("{'descr': '", type->descr, "', 'fortran_order': False, 'shape': ", shape, "), }");
  text.append((kNpyAlignment - (10 + text.size() + 1) % kNpyAlignment) % kNpyAlignment, ' ');
  text.push_back('\n');
  const char length[2] = {static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return absl::StrCat(kNpyMagic, absl::string_view("\x01\x00", 2), absl::string_view(length, 2), text);
}

absl::StatusOr<Tensor> ReadNpy(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MapFile(path));
  absl::StatusOr<Tensor> tensor = ParseNpy(file.view(), file.data);
  if (tensor.ok()) return tensor;
  return absl::Status(tensor.status().code(), absl::StrCat(path, ": ", tensor.status().message()));
}

absl::Status WriteNpy(const std::string& path, const Tensor& tensor) {
  ASSIGN_OR_RETURN(std::unique_ptr<FileWriter> file, FileWriter::Create(path));
  const Tensor written = WithNumpyType(tensor);
  absl::Status status = file->Write(NpyHeader(written));
  if (status.ok()) status = file->Write({written.raw(), static_cast<size_t>(written.bytes())});
  return status.ok() ? file->Commit() : status;
}

}  // namespace llmc
