// gelu.cuh - GELU (tanh form) and its slope, for gelu.cu and whatever fuses them.
//
// With 1 + tanh(u) = 2 sigmoid(2u), z = 2 sqrt(2/pi) (x + 0.044715 x^3) and t = e^-|z| in (0,1]:
//   gelu(x)  = x s,               s = sigmoid(z) = (z < 0 ? t : 1) / (1 + t)
//   gelu'(x) = s + x z' t / (1+t)^2,            z' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2)
// Unlike 1 + tanh(u), nothing cancels where tanh is near -1, and nothing overflows. That is also why
// bf16 takes no tanh.approx: its error of 2^-11 would be 1% of gelu(-2); an exponential and a
// reciprocal cost one special-function result more and keep a small relative error everywhere.
// By storage type: float stays within 6e-7 of the exact value for |x| <= 10, half an ulp of the result
// being 4.8e-7 there; bf16 is within a few 1e-6 of the value before it is rounded to 8 bits.
#pragma once
#include "approx.cuh"
#include "pack.cuh"

namespace llmc {

constexpr float GELU_Z1 = 1.59576912160573071176f;             // 2 sqrt(2/pi)
constexpr float GELU_Z3 = 0.044715f * 1.59576912160573071176f;

template <class X> struct GeluMath;
template <> struct GeluMath<float> {
    static __device__ __forceinline__ float exp_negative(float z) { return expf(z); }
    static __device__ __forceinline__ float divide(float a, float b) { return __fdiv_rn(a, b); }
};
template <> struct GeluMath<bf16> {
    static __device__ __forceinline__ float exp_negative(float z) { return exp2_approx(z * LOG2_E); }
    static __device__ __forceinline__ float divide(float a, float b) { return a * reciprocal_approx(b); }
};

template <class X>
__device__ __forceinline__ float gelu_value(float x) {
    const float z = x * (GELU_Z1 + GELU_Z3 * (x * x));
    const float t = GeluMath<X>::exp_negative(-fabsf(z));
    return GeluMath<X>::divide(z < 0 ? x * t : x, 1.0f + t);
}

template <class X>
__device__ __forceinline__ float gelu_slope(float x) {
    const float square = x * x;
    const float z = x * (GELU_Z1 + GELU_Z3 * square);
    const float dz = GELU_Z1 + 3.0f * GELU_Z3 * square;
    const float t = GeluMath<X>::exp_negative(-fabsf(z));
    const float inverse = GeluMath<X>::divide(1.0f, 1.0f + t);
    const float s = z < 0 ? t * inverse : inverse;
    return s + x * ((dz * t) * inverse * inverse);  // dz * t first: x * dz alone could overflow
}

}  // namespace llmc
