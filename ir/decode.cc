// The reference meaning of encoded tensors, and how their components lie.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ir/encoding.h"
#include "ir/encoding_parts.h"
#include "ir/graph.h"
#include "ir/ops_internal.h"

namespace llmc {
namespace {

Shape NumbersOf(const Dims& dims) {
  Shape shape;
  for (const Dim& dim : dims) shape.push_back(dim.value());
  return shape;
}

Dims DimsOfShape(const Shape& shape) { return Dims(shape.begin(), shape.end()); }

template <class X>
class Decoder {
 public:
  explicit Decoder(const Tensor& tensor)
      : e_(*tensor.encoding()),
        places_(e_, tensor.shape()),
        columns_(tensor.shape().empty() ? 1 : tensor.shape().back()),
        codes_(tensor.encoding()->format->packed_bits > 0 ? CodesOf(tensor) : ComponentOf(tensor, 0)) {
    for (size_t i = 1; i < e_.components(); ++i) parts_.push_back(PartNumbers(ComponentOf(tensor, i), i));
  }

  void Row(int64_t row, X* out) const {
    const EncodingFormat& format = *e_.format;
    if (format.superblock > 0) return Superblocks(row, out);
    if (format.codebook == nullptr) {
      ops::Load<X>(codes_, row * columns_, columns_, out);
    } else {
      for (int64_t c = 0; c < columns_; ++c)
        out[c] = static_cast<X>(format.codebook[codes_.GetInt(row * columns_ + c)]);
    }
    if (e_.zero.has_value()) {
      ForRuns(places_.At(e_.zero->per, row), parts_[1].data(), columns_, [&](int64_t begin, int64_t end, X zero) {
        for (int64_t c = begin; c < end; ++c) out[c] -= zero;
      });
    }
    ForRuns(places_.At(e_.scale->per, row), parts_[0].data(), columns_, [&](int64_t begin, int64_t end, X scale) {
      for (int64_t c = begin; c < end; ++c) out[c] *= scale;
    });
    if (!format.outer_scale) return;
    const X outer = parts_.back()[static_cast<size_t>(places_.OuterAt(row))];
    for (int64_t c = 0; c < columns_; ++c) out[c] *= outer;
  }

 private:
  std::vector<X> PartNumbers(const Tensor& part, size_t i) const {
    std::vector<X> numbers(static_cast<size_t>(part.size()));
    ops::Load<X>(part, 0, part.size(), numbers.data());
    if (i != 1 || !e_.format->scale_is_exponent) return numbers;
    for (X& number : numbers) {
      number = number == 255 ? std::numeric_limits<X>::quiet_NaN() : std::ldexp(X{1}, static_cast<int>(number) - 127);
    }
    return numbers;
  }

  void Superblocks(int64_t row, X* out) const {
    const int64_t blocks = columns_ / e_.format->superblock, bytes = e_.format->superblock_bytes;
    const uint8_t* block = codes_.data<uint8_t>() + row * blocks * bytes;
    std::vector<float> numbers(static_cast<size_t>(e_.format->superblock));
    for (int64_t i = 0; i < blocks; ++i, block += bytes) {
      e_.format->decode_superblock(block, numbers.data());
      out = std::copy(numbers.begin(), numbers.end(), out);
    }
  }

  const Encoding& e_;
  const PartPlaces places_;
  const int64_t columns_;
  const Tensor codes_;
  std::vector<std::vector<X>> parts_;
};

template <class X>
void DecodeRows(const Tensor& encoded, X* out) {
  const int64_t columns = encoded.shape().empty() ? 1 : encoded.shape().back();
  if (encoded.size() == 0) return;
  const Decoder<X> decoder(encoded);
  ops::ParallelFor(encoded.size() / columns, static_cast<double>(encoded.size()), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) decoder.Row(row, out + row * columns);
  });
}

}  // namespace

Tensor ComponentOf(const Tensor& encoded, size_t i) {
  const Encoding& encoding = *encoded.encoding();
  const Dims shape = DimsOfShape(encoded.shape());
  const TensorType type = encoding.ComponentType(i, shape);
  const char* begin = encoded.raw() + ComponentOffset(encoding, shape, i).number();
  return Tensor(type.dtype, NumbersOf(type.shape), std::shared_ptr<const char>(encoded.owner(), begin));
}

Tensor CodesOf(const Tensor& encoded) {
  const EncodingFormat& format = *encoded.encoding()->format;
  const Tensor stored = ComponentOf(encoded, 0);
  if (format.packed_bits == 0) return stored;
  Tensor codes(format.codes, encoded.shape());
  const int64_t bits = format.packed_bits, runs = codes.size() / 8;
  const uint64_t mask = (1u << bits) - 1, sign = format.is_signed() ? 1u << (bits - 1) : 0;
  const auto* from = stored.data<uint8_t>();
  auto* to = codes.mutable_data<uint8_t>();
  ops::ParallelFor(runs, static_cast<double>(codes.size()), [&](int64_t first, int64_t last) {
    for (int64_t run = first; run < last; ++run) {
      uint64_t word = 0;
      std::memcpy(&word, from + run * bits, static_cast<size_t>(bits));
      for (int64_t i = 0; i < 8; ++i)
        to[run * 8 + i] = static_cast<uint8_t>(((word >> (i * bits) & mask) ^ sign) - sign);
    }
  });
  return codes;
}

Tensor MatrixOf(const Tensor& encoded, int64_t i) {
  const Encoding& encoding = *encoded.encoding();
  const Shape shape = {1, encoded.shape()[1], encoded.shape()[2]};
  std::vector<Tensor> parts;
  for (size_t c = 0; c < encoding.components(); ++c) {
    Tensor all = ComponentOf(encoded, c);
    const TensorType type = encoding.ComponentType(c, DimsOfShape(shape));
    const Shape part = NumbersOf(type.shape);
    if (all.shape() == part) {  // what all matrices have in common
      parts.push_back(std::move(all));
      continue;
    }
    Tensor of_matrix(type.dtype, part);
    const int64_t bits = of_matrix.size() * DTypeBits(type.dtype);
    if (bits % 8 == 0) {
      std::memcpy(of_matrix.mutable_raw(), all.raw() + i * (bits / 8), static_cast<size_t>(bits / 8));
    } else {
      for (int64_t e = 0; e < of_matrix.size(); ++e) of_matrix.SetInt(e, all.GetInt(i * of_matrix.size() + e));
    }
    parts.push_back(std::move(of_matrix));
  }
  std::vector<const Tensor*> components;
  for (const Tensor& part : parts) components.push_back(&part);
  return Bundle(&encoding, encoded.dtype(), shape, components);
}

Tensor Bundle(const Encoding* encoding, DType dtype, Shape shape, absl::Span<const Tensor* const> components) {
  const Dims dims = DimsOfShape(shape);
  Tensor out(encoding, dtype, std::move(shape));
  for (size_t i = 0; i < components.size(); ++i) {
    if (components[i]->bytes() == 0) continue;
    char* to = out.mutable_raw() + ComponentOffset(*encoding, dims, i).number();
    std::memcpy(to, components[i]->raw(), static_cast<size_t>(components[i]->bytes()));
  }
  return out;
}

Tensor Decoded(const Tensor& encoded, DType to) {
  Tensor out(to, encoded.shape());
  if (to == DType::kF64) {
    DecodeRows(encoded, out.mutable_data<double>());
  } else {
    DecodeRows(encoded, out.mutable_data<float>());
  }
  return out;
}

}  // namespace llmc
