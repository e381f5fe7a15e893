// What GPTQ knows of the inputs of a weight: how an error of one column is made up for by those behind it.
//
// With the upper triangle C of C C^T = H = X^T X, whose inverse U is the Cholesky factor of H^-1 in arXiv:2210.17323,
// errors e of a row cost |e C|^2. Where columns P have the errors e_P, the columns B that follow are best moved by
// e_P C_PB U_BB (arXiv:2507.18553), so only the blocks of U on its diagonal are needed, which are the inverses of those
// of C.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "quantize/matrices.h"

namespace llmc {

class GptqFactor {
 public:
  struct Options {
    // Columns in the order of falling activations, so that the columns that matter most have the others make up for
    // them.
    bool act_order = false;
    double damping = 0.01;  // of the mean of the diagonal, which is added to it (section 3.3, step 3)
    int64_t block = 128;    // columns whose errors are made up for at once further on (section 3.3, step 2)
    bool operator==(const Options&) const = default;
  };
  // Of gram[k, k]: the sum of x^T x over inputs x; a 0 in its diagonal counts as 1. `matrices` must outlive this.
  // InvalidArgument: it is not positive definite. Takes twice k * k numbers there, then once.
  static absl::StatusOr<std::unique_ptr<GptqFactor>> Create(const std::vector<float>& gram, int64_t k,
                                                            const Options& options, Matrices* matrices);

  int64_t k() const { return k_; }
  const Options& options() const { return options_; }
  const std::vector<int64_t>& order() const { return order_; }  // the columns as they are rounded
  int64_t blocks() const { return (k_ + options_.block - 1) / options_.block; }
  int64_t Begin(int64_t block) const { return block * options_.block; }
  int64_t Width(int64_t block) const { return std::min(options_.block, k_ - Begin(block)); }
  // U of the block's columns, [Width, Width].
  const float* Inverse(int64_t block) const { return inverse_.data() + Begin(block) * options_.block; }
  // C[k, k], for tests.
  absl::StatusOr<std::vector<float>> Read() const;

  // The errors of `rows` rows of a weight, block by block.
  class Errors {
   public:
    static absl::StatusOr<std::unique_ptr<Errors>> Create(const GptqFactor* factor, int64_t rows);
    // What is added to the columns of a block before they are rounded, [rows, Width]; errors of all blocks before it
    // are known.
    absl::Status Compensation(int64_t block, float* out);
    // Numbers less rounded numbers, [rows, Width].
    absl::Status Add(int64_t block, const float* errors);

   private:
    Errors(const GptqFactor* factor, int64_t rows) : factor_(*factor), rows_(rows) {}
    const GptqFactor& factor_;
    const int64_t rows_;
    std::unique_ptr<Matrices::Memory> errors_, sums_, block_;
  };

 private:
  GptqFactor(const Options& options, int64_t k, Matrices* matrices) : options_(options), k_(k), matrices_(*matrices) {}
  absl::Status Factor(const std::vector<float>& gram);
  absl::Status Upload(const std::vector<float>& gram, Matrices::Memory* to) const;
  absl::Status FactorBlock(int64_t block, Matrices::Memory* rest, Matrices::Memory* panel);
  Matrices::Place At(Matrices::Memory* memory, int64_t row, int64_t column) const {
    return {memory, row * k_ + column, k_};
  }

  const Options options_;
  const int64_t k_;
  Matrices& matrices_;
  std::vector<int64_t> order_;
  std::vector<float> inverse_;
  std::unique_ptr<Matrices::Memory> factor_;    // C
  std::unique_ptr<Matrices::Memory> inverses_;  // of blocks, as inverse_
  std::unique_ptr<Matrices::Memory> negative_;  // of the block at hand
  std::unique_ptr<Matrices::Memory> one_;       // the identity [block, block], which copies between rows that differ
};

}  // namespace llmc
