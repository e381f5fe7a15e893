#include "codegen/tasks/select_internal.h"
#include "kernels/layout/random_numbers.h"

namespace llmc {

KernelCall RandomWeightsCall(const Value* weight, const plan::RandomNumbers& random) {
  KernelCall call{.header = "common/random_weights", .function = "RandomWeights"};
  const Dim size = Product(weight->type.shape);
  const int64_t per_block = call.threads * (8 * kRandomVectorBytes / DTypeBits(weight->type.dtype));
  call.types = {{"T", DeviceType(weight)}};
  call.params = {Out(weight, "out"), Count(size, "size"), Count(Dim(static_cast<int64_t>(random.key())), "key"),
                 Float(random.mean(), "mean"), Float(random.width(), "width")};
  call.grid[0] = Dim((size.value() + per_block - 1) / per_block);
  return call;
}

}  // namespace llmc
