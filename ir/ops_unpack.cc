// Codes of a few bits out of words.
#include <algorithm>
#include <numeric>

#include "base/status_macros.h"
#include "ir/ops_encoded.h"
#include "ir/ops_internal.h"

namespace llmc {
namespace {

using ops::Fail;
using ops::Str;
using ops::TypeOf;

bool IsPermutation(std::vector<int64_t> order, int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  std::sort(order.begin(), order.end());
  return order == all;
}

// Where the codes lie along an axis of `words` words.
class CodePlaces {
 public:
  CodePlaces(const Unpack& op, int64_t word_bits, int64_t words)
      : op_(op), word_bits_(word_bits), words_(words), of_word_(word_bits / op.bits) {}

  // The first bit of code i, counted from the first word on.
  int64_t BitOf(int64_t i) const {
    if (op_.across) return i * op_.bits;
    const int64_t word = op_.planes ? i % words_ : i / of_word_, n = op_.planes ? i / words_ : i % of_word_;
    const int64_t place = op_.order.empty() ? n : op_.order[static_cast<size_t>(n)];
    return word * word_bits_ + place * op_.bits;
  }

 private:
  const Unpack& op_;
  const int64_t word_bits_, words_, of_word_;
};

// A code of a few bits to zeros, from a bit on.
void AddCode(int64_t code, int64_t bit, uint8_t* bytes) {
  const auto bits = static_cast<uint32_t>(code) << bit % 8;
  bytes[bit / 8] |= static_cast<uint8_t>(bits);
  if (bits > 255) bytes[bit / 8 + 1] |= static_cast<uint8_t>(bits >> 8);
}

int64_t CodesIn(int64_t words, int64_t word_bits, const Unpack& op) {
  return op.across ? words * word_bits / op.bits : words * (word_bits / op.bits);
}

}  // namespace

absl::StatusOr<Types> Unpack::Infer() const {
  const TensorType& type = TypeOf(x);
  const bool is_word = type.dtype == DType::kI32 || type.dtype == DType::kU8 || type.dtype == DType::kI8;
  if (!is_word || type.rank() == 0) return Fail("unpack_c1: ", Str(x), " holds no words: i32, u8 or i8 with an axis");
  if (bits < 1 || bits > 8) return Fail("unpack_c2: codes of ", bits, " bits; 1 to 8 are known");
  const bool is_code = to == DType::kU4 || to == DType::kI4 || to == DType::kU8 || to == DType::kI8;
  if (!is_code || bits > DTypeBits(to)) return Fail("unpack_c3: ", DTypeName(to), " holds no codes of ", bits, " bits");
  RETURN_IF_ERROR(ops::CheckAxis("unpack_c4", axis, type.rank()));
  if (axis + 2 < type.rank()) return Fail("unpack_c4: axis ", axis, " is not one of the last two of ", Str(x));
  if (transpose && type.rank() < 2) return Fail("unpack_c4: ", Str(x), " has no two axes to exchange");
  const int64_t word_bits = DTypeBits(type.dtype), of_word = word_bits / bits;
  const bool ordered = order.empty() || (!across && IsPermutation(order, of_word));
  if (!ordered || (across && planes)) {
    return Fail("unpack_c5: the order of codes in a word is no permutation of 0 to ", of_word - 1,
                across ? ", and codes across words have none" : "");
  }
  if (add < 0 || add >= int64_t{1} << bits) return Fail("unpack_c6: add ", add, " is no code of ", bits, " bits");
  Dims shape = type.shape;
  Dim& codes = shape[static_cast<size_t>(axis)];
  if (!codes.is_constant()) return Fail("unpack_c7: axis ", axis, " of ", Str(x), " is of unknown size");
  const int64_t all = CodesIn(codes.value(), word_bits, *this);
  if (count < 0 || count > all) return Fail("unpack_c7: ", count, " codes of ", all, " along axis ", axis);
  codes = Dim(count == 0 ? all : count);
  if (index != nullptr) {
    const TensorType& of = TypeOf(index);
    const bool is_index = (of.dtype == DType::kI32 || of.dtype == DType::kI64) && of.rank() == 1;
    if (!is_index) return Fail("unpack_c8: index ", Str(index), " is not i32 or i64 with one axis");
    codes = of.shape[0];
  }
  if (transpose) std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  if (!packed) return Types{{to, std::move(shape)}};
  Dim& last = shape.back();
  if (DTypeBits(to) != 8 || !last.is_constant() || last.value() % 8 != 0) {
    return Fail("unpack_c9: rows of ", last.ToString(), " codes as ", DTypeName(to),
                " are not packed: bytes, and 8 divides rows");
  }
  last = Dim(last.value() / 8 * bits);
  return Types{{to, std::move(shape)}};
}

absl::StatusOr<Tensors> Unpack::Eval(const EvalArgs& args) const {
  const Tensor& in = args[0];
  const int64_t word_bits = DTypeBits(in.dtype()), words = in.shape()[static_cast<size_t>(axis)];
  const bool is_last = axis + 1 == in.rank();
  const int64_t inner = is_last ? 1 : in.shape().back();
  const int64_t outer = in.size() == 0 ? 0 : in.size() / (words * inner);
  const int64_t kept = count == 0 ? CodesIn(words, word_bits, *this) : count;
  // The first bit of each code of the result along the axis.
  std::vector<int64_t> bit;
  const CodePlaces places(*this, word_bits, words);
  if (args.has(1)) {
    for (const int64_t i : args[1].ToInts()) {
      if (i < 0 || i >= kept) return Fail("unpack: index ", i, " is not one of ", kept, " codes");
      bit.push_back(places.BitOf(i));
    }
  } else {
    for (int64_t i = 0; i < kept; ++i) bit.push_back(places.BitOf(i));
  }
  Shape shape = in.shape();
  const int64_t codes = static_cast<int64_t>(bit.size());
  shape[static_cast<size_t>(axis)] = codes;
  if (transpose) std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  if (packed) shape.back() = shape.back() / 8 * bits;
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("unpack", to, std::move(shape)));
  auto* packed_bytes = reinterpret_cast<uint8_t*>(out.mutable_raw());
  const uint32_t mask = (1u << bits) - 1, sign = to == DType::kI4 || to == DType::kI8 ? 1u << (bits - 1) : 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(in.raw());
  // Words are little-endian, so that bit b of one is bit b % 8 of its byte b / 8.
  const auto code_at = [&](int64_t o, int64_t i, int64_t c) {
    const auto byte = [&](int64_t b) -> uint32_t {
      const int64_t word = b / word_bits, at = b % word_bits / 8;
      return word < words ? bytes[((o * words + word) * inner + i) * (word_bits / 8) + at] : 0;
    };
    const int64_t b = bit[static_cast<size_t>(c)];
    uint32_t code = byte(b) >> b % 8;
    if (b % 8 + bits > 8) code |= byte(b + 8) << (8 - b % 8);
    code = (code + static_cast<uint32_t>(add)) & mask;
    return static_cast<int64_t>(code ^ sign) - static_cast<int64_t>(sign);
  };
  // The result is [outer, codes, inner], with transpose [outer, inner, codes]; where the words lie along the last axis,
  // outer is of all rows, and the axis before it is exchanged.
  const int64_t rows = is_last && in.rank() > 1 ? in.shape()[static_cast<size_t>(axis) - 1] : 1;
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t c = 0; c < codes; ++c) {
      for (int64_t i = 0; i < inner; ++i) {
        int64_t at = (o * codes + c) * inner + i;
        if (transpose) at = is_last ? (o / rows * codes + c) * rows + o % rows : (o * inner + i) * codes + c;
        if (packed) {
          AddCode(code_at(o, i, c) & mask, at * bits, packed_bytes);
        } else {
          out.SetInt(at, code_at(o, i, c));
        }
      }
    }
  }
  return Tensors{std::move(out)};
}

}  // namespace llmc
