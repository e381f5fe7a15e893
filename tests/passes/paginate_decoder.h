// A decoder over whole sequences, for tests of its pagination.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph.h"
#include "ir/tensor.h"

namespace llmc {

inline constexpr char kRotate[] = R"(
  %posf = cast %pos {to = f32}
  %pos3 = reshape %posf {shape = [1, 1, S]}
  %angles0 = matmul @freq, %pos3
  %angles1 = transpose %angles0 {perm = [0, 2, 1]}
  %angles = expand %angles1 {shape = [B, S, 4]}
  %cos = cos %angles
  %sin = sin %angles
  %q = rotary_embedding %q2, %cos, %sin
  %k = rotary_embedding %k2, %cos, %sin
)";

// One layer with two query heads on one head of keys and values.
struct Decoder {
  bool cache = false;
  bool renamed = false;    // the output is not what comes in again
  bool positions = false;  // position_ids come in
  std::string mask = "  %mask = less_equal %j, %i";
  std::string mix = "  %mixed = identity %o";
  std::string tail = "  %logits = matmul %y, @head {transpose_rhs = true}";
  std::string weights = {}, output = {};  // more of them
  std::string rotate = kRotate;
  std::string attend = "  %a = attention %q, KEYS, VALUES, %mask {scale = 0.3}";
  std::string caches = {};  // how keys and values join the past; empty: by concat
};

std::unique_ptr<Model> Parse(const Decoder& d);

// Runs the pipeline; the ledger of it.
std::string Paginated(Model* model);

// Of two sequences of 8 tokens.
Tensor LogitsOf(std::unique_ptr<Model> model, bool cache);

// Of one sequence, whose positions are given.
absl::StatusOr<Tensor> LogitsAt(std::unique_ptr<Model> model, const std::vector<int64_t>& positions);

// It is paginated, and gives the logits that it gave.
void ExpectSameLogits(const Decoder& d);

// It stays as it is, the ledger says `why`, and it runs.
void ExpectRefused(const Decoder& d, const std::string& why);

}  // namespace llmc
