// The forward pass of the small Llama of packed_model.h by simple loops, with what becomes of the inputs of its linear
// layers, so that models whose inputs are quantized have numbers to be compared with.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/frontend/packed_model.h"

namespace llmc {

class SmallForward {
 public:
  using Row = std::vector<float>;
  using Inputs = std::function<Row(Row)>;  // of a token

  // `tensors` are plain floats, and must outlive this.
  SmallForward(const NamedTensors& tensors, Inputs inputs) : tensors_(tensors), inputs_(std::move(inputs)) {}

  // [tokens, 12]
  std::vector<float> Logits(const std::vector<int64_t>& ids) const {
    std::vector<Row> x;
    const std::vector<float> embeddings = Numbers("model.embed_tokens");
    for (const int64_t id : ids) x.emplace_back(embeddings.begin() + id * 64, embeddings.begin() + (id + 1) * 64);
    const std::string layer = "model.layers.0.";
    Add(&x, Attention(Norm(x, layer + "input_layernorm"), layer + "self_attn."));
    const std::vector<Row> h = Norm(x, layer + "post_attention_layernorm");
    std::vector<Row> gate = Linear(h, layer + "mlp.gate_proj");
    const std::vector<Row> up = Linear(h, layer + "mlp.up_proj");
    for (size_t t = 0; t < gate.size(); ++t) {
      for (size_t i = 0; i < gate[t].size(); ++i) gate[t][i] = gate[t][i] / (1 + std::exp(-gate[t][i])) * up[t][i];
    }
    Add(&x, Linear(gate, layer + "mlp.down_proj"));
    std::vector<float> logits;
    for (const Row& row : Product(Norm(x, "model.norm"), "lm_head"))
      logits.insert(logits.end(), row.begin(), row.end());
    return logits;
  }

 private:
  std::vector<float> Numbers(const std::string& module) const { return tensors_.at(module + ".weight").ToFloats(); }

  static void Add(std::vector<Row>* x, const std::vector<Row>& y) {
    for (size_t t = 0; t < x->size(); ++t) {
      for (size_t i = 0; i < y[t].size(); ++i) (*x)[t][i] += y[t][i];
    }
  }

  std::vector<Row> Norm(std::vector<Row> x, const std::string& module) const {
    const std::vector<float> weight = Numbers(module);
    for (Row& row : x) {
      double squares = 0;
      for (const float number : row) squares += static_cast<double>(number) * number;
      const double factor = 1 / std::sqrt(squares / static_cast<double>(row.size()) + 1e-6);
      for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(row[i] * factor * weight[i]);
    }
    return x;
  }

  std::vector<Row> Product(const std::vector<Row>& x, const std::string& module) const {
    const std::vector<float> weight = Numbers(module);
    std::vector<Row> out;
    for (const Row& row : x) {
      out.emplace_back();
      for (size_t begin = 0; begin < weight.size(); begin += row.size()) {
        double sum = 0;
        for (size_t i = 0; i < row.size(); ++i) sum += static_cast<double>(row[i]) * weight[begin + i];
        out.back().push_back(static_cast<float>(sum));
      }
    }
    return out;
  }
  std::vector<Row> Linear(std::vector<Row> x, const std::string& module) const {
    for (Row& row : x) row = inputs_(std::move(row));
    return Product(x, module);
  }

  // Two heads of 32, which share one head of keys and values.
  std::vector<Row> Attention(const std::vector<Row>& x, const std::string& module) const {
    const std::vector<Row> q = Rotated(Linear(x, module + "q_proj")), k = Rotated(Linear(x, module + "k_proj")),
                           v = Linear(x, module + "v_proj");
    std::vector<Row> out(x.size(), Row(64));
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t head = 0; head < 64; head += 32) {
        std::vector<double> weights;
        double sum = 0;
        for (size_t s = 0; s <= t; ++s) {
          double score = 0;
          for (size_t i = 0; i < 32; ++i) score += static_cast<double>(q[t][head + i]) * k[s][i];
          weights.push_back(std::exp(score / std::sqrt(32.0)));
          sum += weights.back();
        }
        for (size_t i = 0; i < 32; ++i) {
          double mean = 0;
          for (size_t s = 0; s <= t; ++s) mean += weights[s] / sum * v[s][i];
          out[t][head + i] = static_cast<float>(mean);
        }
      }
    }
    return Linear(out, module + "o_proj");
  }

  static std::vector<Row> Rotated(std::vector<Row> x) {
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t head = 0; head < x[t].size(); head += 32) {
        for (size_t i = 0; i < 16; ++i) {
          const double angle = static_cast<double>(t) * std::pow(10000.0, -static_cast<double>(i) / 16);
          float &a = x[t][head + i], &b = x[t][head + i + 16];
          const double first = a * std::cos(angle) - b * std::sin(angle);
          b = static_cast<float>(b * std::cos(angle) + a * std::sin(angle));
          a = static_cast<float>(first);
        }
      }
    }
    return x;
  }

  const NamedTensors& tensors_;
  const Inputs inputs_;
};

// Numbers of runs of `run` (0: all of a row) as codes times a scale: integers of 8 bits, or f8e4m3.
inline std::vector<float> InCodes(DType type, size_t run, float limit, std::vector<float> row) {
  if (run == 0) run = row.size();
  for (size_t begin = 0; begin < row.size(); begin += run) {
    float largest = 0;
    for (size_t i = begin; i < begin + run; ++i) largest = std::max(largest, std::abs(row[i]));
    const float scale = largest / limit;
    for (size_t i = begin; i < begin + run && scale > 0; ++i) {
      Tensor code(type, {1});
      if (type == DType::kI8) code.SetInt(0, std::clamp<int64_t>(std::lrint(row[i] / scale), -128, 127));
      if (type != DType::kI8) code.SetFloat(0, std::clamp(row[i] / scale, -448.0f, 448.0f));
      row[i] = (type == DType::kI8 ? static_cast<float>(code.GetInt(0)) : static_cast<float>(code.GetFloat(0))) * scale;
    }
  }
  return row;
}

}  // namespace llmc
