#include "codegen/tasks/select.h"
#include "kernels/layout/random_numbers.h"

namespace llmc {

KernelCall RandomWeightsCall(const Value* weight, const plan::RandomNumbers& random) {
  KernelCall call{.header = "common/random_weights", .function = "RandomWeights"};
  const std::string type = DeviceType(weight->type.dtype);
  const Dim size = Product(weight->type.shape);
  const int64_t per_block = call.threads * (8 * kRandomVectorBytes / DTypeBits(weight->type.dtype));
  call.types = {{"T", type}};
  call.params = {{type + "*", "out", KernelArg::Of(weight)},
                 {"llmc::i64", "size", KernelArg::OfDim(size)},
                 {"llmc::i64", "key", KernelArg::OfDim(Dim(static_cast<int64_t>(random.key())))},
                 {"float", "mean", KernelArg::OfNumber(random.mean())},
                 {"float", "width", KernelArg::OfNumber(random.width())}};
  call.grid[0] = Dim((size.value() + per_block - 1) / per_block);
  return call;
}

}  // namespace llmc
