// Where the scale and the zero point of an element stand among those of its tensor: what decoding and quantizing share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ir/encoding.h"

namespace llmc {

// Which of the numbers of a part are those of a row: that of column c is at `begin` + c / `run`, or at `begin` if `run`
// is 0.
struct PartOfRow {
  int64_t begin = 0, run = 0;
};

class PartPlaces {
 public:
  PartPlaces(const Encoding& e, const Shape& shape)
      : e_(e), rows_(shape.size() < 2 ? 1 : shape[shape.size() - 2]), columns_(shape.empty() ? 1 : shape.back()) {}

  int64_t OuterAt(int64_t row) const {
    if (e_.outer == OuterScale::kOfTensor) return 0;
    return e_.outer == OuterScale::kOfRows ? row : row / rows_;
  }
  PartOfRow At(Granularity per, int64_t row) const {
    const int64_t matrix = row / rows_, r = row % rows_;
    const auto runs = [](int64_t size, int64_t run) { return (size + run - 1) / run; };
    switch (per) {
      case Granularity::kTensor:
        return {};
      case Granularity::kChannel:
        return e_.k_is_last ? PartOfRow{r, 0} : PartOfRow{0, 1};
      case Granularity::kToken:
        return {row, 0};
      case Granularity::kGroup:
        if (e_.k_is_last) return {row * runs(columns_, e_.group), e_.group};
        return {(matrix * runs(rows_, e_.group) + r / e_.group) * columns_, 1};
      case Granularity::kBlock:
        return {(matrix * runs(rows_, e_.rows) + r / e_.rows) * runs(columns_, e_.columns), e_.columns};
    }
    return {};
  }

 private:
  const Encoding& e_;
  const int64_t rows_, columns_;
};

// f(begin, end, the number of the part) for each run of columns with the same one.
template <class X, class F>
void ForRuns(const PartOfRow& part, const X* numbers, int64_t columns, F f) {
  if (part.run == 0) return f(0, columns, numbers[part.begin]);
  for (int64_t begin = 0, i = part.begin; begin < columns; begin += part.run, ++i) {
    f(begin, std::min(columns, begin + part.run), numbers[i]);
  }
}

}  // namespace llmc
