// Matrix products through cuBLASLt, which is opened when first needed. Only cublaslt.cc calls it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/device/device.h"
#include "runtime/host_tensor.h"

namespace llmc {

struct CublasLt;  // the functions of libcublasLt

inline constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;  // device memory that products share

// The products of one device. One thread at a time.
class MatrixProducts {
 public:
  // NotFound: there is no cuBLASLt on this machine; the message says how to get it.
  static absl::Status Find();
  static absl::StatusOr<std::unique_ptr<MatrixProducts>> Create(Device* device);
  ~MatrixProducts();

  struct Shape {
    int64_t m = 0, n = 0, k = 0;
    DType in = DType::kBF16, out = DType::kBF16;         // f32, f16 or bf16; `in` also f8e4m3 or f8e5m2
    bool transposed = true;                              // weight is [n, k], else [k, n]
    int64_t batch = 1, x_stride = 0, weight_stride = 0;  // in elements, from one product to the next
    int64_t x_row = 0, weight_row = 0, out_row = 0;      // from one row to the next; 0: they follow each other
    // Single products only: what is done with the sums, in this order, before they are rounded to `out`.
    bool bias = false, residual = false;
    bool gelu_tanh = false;
    // Of factors of f8, which a single product of a transposed weight takes, with n and k multiples of 16.
    enum class Scales : uint8_t { kNone, kOfAll, kOfRows } scales = Scales::kNone;
    bool tf32 = false;                               // of factors of f32: they become TF32 first
    auto operator<=>(const Shape&) const = default;  // NOLINT(modernize-use-nullptr)
  };
  struct Operands {
    DevicePointer out = 0, x = 0, weight = 0;
    DevicePointer bias = 0;                       // [n], of type `out`
    DevicePointer residual = 0;                   // as `out`, which it may be
    DevicePointer x_scale = 0, weight_scale = 0;  // f32, of all or [m] and [n]; multiplied to the sums
  };
  // out[m, n] = f(x[m, k] * weight + bias + residual) with f the identity or GELU, row-major, with sums in f32, on
  // the device's stream. Finds an algorithm when it meets a shape for the first
  // time, which a capture must not do.
  absl::Status Multiply(const Shape& shape, const Operands& operands);

  // Algorithms that cuBLASLt proposes for a shape, at most kMaxProposals, what it believes to be the best first.
  static constexpr int kMaxProposals = 16;
  absl::StatusOr<int> CountProposals(const Shape& shape);
  absl::StatusOr<int> ProposalOf(const Shape& shape);  // the number of the one that computes it
  // From now on that proposal computes the shape, or the first if there are not so many.
  void Choose(const Shape& shape, int proposal);
  // Of the library: proposals of another one are others.
  uint64_t version() const;

 private:
  struct Prepared;
  MatrixProducts() = default;
  absl::StatusOr<Prepared*> Prepare(const Shape& shape);
  absl::Status Describe(const Shape& shape, Prepared* prepared) const;
  absl::Status SetScales(const Shape& shape, const Operands& operands, const Prepared& prepared) const;
  absl::Status FindAlgorithm(const Shape& shape, Prepared* prepared) const;

  Device* device_ = nullptr;
  const CublasLt* library_ = nullptr;
  void* handle_ = nullptr;
  DeviceMemory workspace_;
  std::map<Shape, std::unique_ptr<Prepared>> prepared_;  // the latest kMaxPrepared
  std::deque<Shape> prepared_order_;
  std::map<Shape, int> choices_;  // other than the first
};

}  // namespace llmc
