// A norm of rows that encoded_gemm.cuh multiplies: they are written in its order.
#pragma once
#include "kernels/linear/encoded_x.cuh"
#include "kernels/norm/rms_norm.cuh"
