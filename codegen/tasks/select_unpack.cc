// Codes of a few bits out of words.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"

namespace llmc {
namespace {

// A function of C++ from the number of a code in its word to its place there.
std::string OrderFunction(const std::vector<int64_t>& order) {
  std::string body = "n";
  for (size_t n = 0; n < order.size(); ++n) {
    if (n == 0) body = absl::StrCat(order.back());
    if (n + 1 < order.size()) body = absl::StrCat("n == ", n, " ? ", order[n], " : ", body);
  }
  return absl::StrCat("  static __device__ __forceinline__ constexpr int OrderOf(int n) {\n    return ", body,
                      ";\n  }\n");
}

}  // namespace

Calls SelectUnpack(const Node& node, const ProgramScope&) {
  const auto op = View<Unpack>(node);
  const Value* out = node.results[0];
  const Dims& shape = op.x->type.shape;
  const size_t axis = static_cast<size_t>(op.axis);
  const bool is_last = axis + 1 == shape.size();
  const int64_t word_bits = DTypeBits(op.x->type.dtype);
  const Size words = shape[axis], inner = is_last ? Size(1) : Size(shape.back());
  const Size outer = ElementsOf(Dims(shape.begin(), shape.begin() + op.axis));
  const Size rows = is_last && shape.size() > 1 ? Size(shape[axis - 1]) : Size(1);
  const int64_t all =
      op.across ? shape[axis].value() * word_bits / op.bits : shape[axis].value() * (word_bits / op.bits);
  const Size kept = Size(op.count == 0 ? all : op.count);
  const Size codes = op.index == nullptr ? kept : Size(op.index->type.shape[0]);
  const int64_t out_bits = op.packed ? op.bits : DTypeBits(op.to);
  KernelCall call{.header = "linear/unpack", .function = "Unpack"};
  const Value* index = op.index == nullptr ? op.x : op.index;
  call.types = {{"Index", DeviceType(index->type.dtype)}};
  call.constants = {{"kWordBits", word_bits}, {"kBits", op.bits},
                    {"kPlanes", op.planes},   {"kAcross", op.across},
                    {"kOutBits", out_bits},   {"kSigned", op.to == DType::kI4 || op.to == DType::kI8},
                    {"kAdd", op.add},         {"kTransposed", op.transpose},
                    {"kLast", is_last},       {"kIndexed", op.index != nullptr}};
  call.apply = OrderFunction(op.order);
  call.params = {Out(out, "out", "llmc::u8"), In(op.x, "x", "llmc::u8"), In(index, "index")};
  call.AddParams({Count(outer, "outer"), Count(rows, "rows"), Count(words, "words"), Count(inner, "inner"),
                  Count(codes, "codes"), Count(kept, "kept")});
  AddDeviceErrors({{"unpack: index $0 is not one of $1 codes", &node}}, &call);
  call.arguments = "out, x, index, outer, rows, words, inner, codes, kept, {device_error, first_device_error}";
  call.grid[0] = Blocks(out->type.Bytes(), call.threads);
  call.pdl = true;
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
