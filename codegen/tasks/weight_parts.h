// A weight as the readers of kernels/linear/ take it: elements of the type of x, or codes that scales and zero points
// come with. All that codegen knows of an encoded weight is here.
#pragma once

#include <optional>
#include <string>

#include "codegen/tasks/kernel_call.h"
#include "ir/encoding.h"
#include "ir/ops.h"
#include "kernels/layout/linear.h"

namespace llmc {

// The components of an encoded value, which `encode` made.
struct Components {
  const Value* codes = nullptr;  // or the elements
  const Value* scale = nullptr;  // absent: elements
  const Value* zero = nullptr;   // absent: 0
  const Value* outer = nullptr;  // absent: 1

  // A kernel takes a pointer to zero points in any case, but does not read it if there are none.
  const Value* zero_or_scale() const { return zero == nullptr ? scale : zero; }
};
Components ComponentsOf(const Value* encoded);
// The struct of kernels/linear/superblocks.cuh.
std::string DeviceSuperblock(const EncodingFormat& format);

struct WeightParts : Components {
  int64_t block = 0;       // codes along the sum that share a scale or zero point, if there are any of blocks
  int64_t block_rows = 1;  // rows of the weight that do
  bool transposed = true;  // [n, k], else [k, n]
  const EncodingFormat* format = nullptr;      // of codes that are no superblocks
  Components x;                                // of what it is multiplied with, if that is encoded too
  int64_t x_block = 0;                         // elements of x that share a scale, if those of a row have several
  const EncodingFormat* superblock = nullptr;  // of codes that are superblocks, which hold their scales
  OuterScale outer_of = OuterScale::kOfTensor;

  bool is_of_bytes() const { return x.codes != nullptr && !IsFloat(x.codes->type.dtype); }
  // x is codes of floats of 8 bits, which kernels make numbers of.
  bool has_coded_x() const { return x.codes != nullptr && IsFloat(x.codes->type.dtype) && bits_of_x() == 8; }
  int64_t bits_of_x() const { return DTypeBits(x.codes->type.dtype); }
  bool is_dense() const { return scale == nullptr && superblock == nullptr; }
  int64_t bits() const { return format != nullptr ? format->bits() : DTypeBits(codes->type.dtype); }  // of a code
  // Of a row of so many elements.
  int64_t RowBytes(int64_t elements) const;
  PartKind scale_kind() const { return KindOf(scale); }
  PartKind zero_kind() const { return KindOf(zero); }
  // kOfColumns: one for each row of the weight, or of each of several matrices.
  PartKind outer_kind() const {
    return outer == nullptr ? kNoPart : outer_of == OuterScale::kOfRows ? kOfColumns : kOneNumber;
  }
  PartKind x_scale_kind() const { return KindOf(x.scale); }  // kOfColumns: one for each row of x
  // Of the numbers of blocks, 0 if there are none.
  int64_t scale_bits() const { return scale_kind() == kOfBlocks ? DTypeBits(scale->type.dtype) : 0; }
  int64_t zero_bits() const { return zero_kind() == kOfBlocks ? DTypeBits(zero->type.dtype) : 0; }
  bool has_blocks() const { return scale_kind() == kOfBlocks || zero_kind() == kOfBlocks; }
  // Whether scales of small blocks can be applied to codes, because 16 bits hold their products: both have 4 bits.
  bool ScalesCodes() const;
  // Whether no task of a step makes any of it.
  bool IsThereBeforeStep() const;

 private:
  static PartKind KindOf(const Value* part);
};

// Of elements, of superblocks along the sum, and of codes whose scales and zero points are those of all,
// of columns, of groups along the sum or of rectangles; nothing of others, and of weights [k, n] integers of 4 and 8
// bits alone.
std::optional<WeightParts> WeightPartsOf(const Linear& op);

// Of the matrices [n, k] of experts, of known sizes, of which readers take one (OfMatrix): elements, superblocks, and
// codes of 4 or 8 bits with scales along k; nothing of others.
std::optional<WeightParts> ExpertWeightPartsOf(const Value* weight);

// Whether kernels of bytes compute it, in exact sums: with one scale of x or of each of its rows, and one of the weight
// or of each of its columns.
bool SumsBytes(const Linear& op, const WeightParts& weight, DType out);

// What codes stand for, as a type of kernels/linear/code_pairs.cuh: "llmc::i4", "llmc::Codebook<…>".
std::string CodeType(const EncodingFormat& format);

// What a Config says of a weight's reader.
void AddReader(const WeightParts& weight, KernelCall* call);
// Adds the parameters; `name` is that of the codes, or of the elements. Gives the argument: a reader.
std::string AddWeight(const WeightParts& weight, const std::string& name, KernelCall* call);
// What a Config says of a product of bytes (kernels/linear/quantized_parts.cuh).
void AddByteParts(const WeightParts& weight, KernelCall* call);

}  // namespace llmc
