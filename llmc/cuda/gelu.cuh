// gelu.cuh - GELU (tanh form) and its slope, for gelu.cu and whatever fuses them.
//
// With 1 + tanh(u) = 2 sigmoid(2u) and z = 2 sqrt(2/pi) (x + 0.044715 x^3):
//   gelu(x)  = x s,                    s = sigmoid(z)
//   gelu'(x) = s + x z' s (1-s),       z' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
// Unlike 1 + tanh(u), nothing cancels where tanh is near -1. That is also why bf16 takes no tanh.approx:
// its error of 2^-11 would be 1% of gelu(-2); an exponential and a reciprocal cost one special-function
// result more and keep a small relative error there.
//   float  t = e^-|z| in (0,1], s = (z < 0 ? t : 1) / (1 + t), s (1-s) = t / (1+t)^2: within 6e-7 of the exact
//          value for |x| <= 10, half an ulp of the result being 4.8e-7 there.
//   bf16   t = e^-z, which may be infinite, s = 1 / (1 + t), s (1-s) = s - s s: a third fewer instructions, and
//          within a few 1e-6 of the value before it is rounded to 8 bits.
#pragma once
#include "approx.cuh"
#include "pack.cuh"

namespace llmc {

constexpr float GELU_Z1 = 1.59576912160573071176f;             // 2 sqrt(2/pi)
constexpr float GELU_Z3 = 0.044715f * 1.59576912160573071176f;

template <class X> __device__ __forceinline__ float gelu_value(float x);
template <class X> __device__ __forceinline__ float gelu_slope(float x);

template <>
__device__ __forceinline__ float gelu_value<float>(float x) {
    const float z = x * (GELU_Z1 + GELU_Z3 * (x * x));
    const float t = expf(-fabsf(z));
    return __fdiv_rn(z < 0 ? x * t : x, 1.0f + t);
}

template <>
__device__ __forceinline__ float gelu_slope<float>(float x) {
    const float square = x * x;
    const float z = x * (GELU_Z1 + GELU_Z3 * square);
    const float dz = GELU_Z1 + 3.0f * GELU_Z3 * square;
    const float t = expf(-fabsf(z));
    const float inverse = __fdiv_rn(1.0f, 1.0f + t);
    const float s = z < 0 ? t * inverse : inverse;
    return s + x * ((dz * t) * inverse * inverse);  // dz * t first: x * dz alone could overflow
}

// sigmoid(z) of x and x^2
__device__ __forceinline__ float gelu_sigmoid_approx(float x, float square) {
    return reciprocal_approx(1.0f + exp2_approx(x * (-LOG2_E * GELU_Z1 - LOG2_E * GELU_Z3 * square)));
}

template <>
__device__ __forceinline__ float gelu_value<bf16>(float x) { return x * gelu_sigmoid_approx(x, x * x); }

template <>
__device__ __forceinline__ float gelu_slope<bf16>(float x) {
    const float square = x * x, s = gelu_sigmoid_approx(x, square);
    return s + (s - s * s) * x * (GELU_Z1 + 3.0f * GELU_Z3 * square);  // x last but one: its cube could overflow
}

}  // namespace llmc
