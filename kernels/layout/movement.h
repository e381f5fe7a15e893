// How copies are cut into tiles, and how scatters join what is there.
#pragma once
#include "kernels/layout/base.h"

namespace llmc {

constexpr int kTransposeTile = 32;  // elements along both axes

// How an update joins the element that is there.
enum ScatterJoin { kReplace, kAdd, kMultiply, kMost, kLeast };

}  // namespace llmc
