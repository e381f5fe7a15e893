// Matrices of f32 where they are multiplied: in the memory of the host, or of a device.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace llmc {

// One thread at a time.
class Matrices {
 public:
  class Memory {
   public:
    virtual ~Memory() = default;
  };
  // A matrix in rows that begins at number `at`; from one row to the next are `row` numbers.
  struct Place {
    Memory* memory = nullptr;
    int64_t at = 0, row = 0;
  };
  struct Product {
    int64_t m = 0, n = 0, k = 0;
    bool transposed = false;  // w is [n, k], else [k, n]
    bool adds = false;        // to what is there
  };

  virtual ~Matrices() = default;
  // Zeros. ResourceExhausted: they do not fit.
  virtual absl::StatusOr<std::unique_ptr<Memory>> Allocate(int64_t numbers) = 0;
  // `count` numbers that follow each other.
  virtual absl::Status Write(const float* from, int64_t count, const Place& to) = 0;
  virtual absl::Status Read(const Place& from, int64_t count, float* to) = 0;
  // out[m, n] = x[m, k] w. `out` overlaps neither.
  virtual absl::Status Multiply(const Product& product, const Place& x, const Place& w, const Place& out) = 0;
};

// With all cores.
std::unique_ptr<Matrices> NewHostMatrices();

}  // namespace llmc
