// gelu.h - GELU of one value, shared by gelu.cpp and the fused products of linear.cpp.
//
//   0.5 x (1 + tanh u) = x s,  s = 1 / (1 + exp(-2u)),  u = sqrt(2/pi) (x + 0.044715 x^3)
//   With q = 1 - s for x > 0, s for x < 0 (the small one of the two): gelu = max(x,0) - |x| q.
//   gelu' = s + 2 x u' s (1 - s)
//
// q never comes from a difference, so both are right to 1e-6 absolute, tails included.
#pragma once
#include <cmath>

#include "vector.h"

namespace llmc {

constexpr float GELU_2K = 1.59576912f;  // 2 sqrt(2/pi)
constexpr float GELU_CUBIC = 0.044715f;

LLMC_INLINE float gelu_small_side(float x) {
    const float e = fast_exp(-std::fabs(GELU_2K * x * (1.0f + GELU_CUBIC * x * x)));
    return e / (1.0f + e);
}

LLMC_INLINE float gelu(float x) { return (x > 0.0f ? x : 0.0f) - std::fabs(x) * gelu_small_side(x); }

LLMC_INLINE float gelu_gradient(float x) {
    const float q = gelu_small_side(x);
    const float s = x > 0.0f ? 1.0f - q : q;
    return s + x * GELU_2K * (1.0f + 3.0f * GELU_CUBIC * x * x) * q * (1.0f - q);
}

// Whole stretches, vectorised; dinp may be dout.
void gelu_range(float *out, const float *inp, int64_t n);
void gelu_gradient_range(float *dinp, const float *dout, const float *inp, int64_t n);

}  // namespace llmc
