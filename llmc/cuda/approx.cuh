// approx.cuh - the special-function unit's exponential and reciprocal, 16 results a clock and SM.
// Unlike __expf and friends they do not depend on compiler flags. Results below 2^-126 become 0.
#pragma once

namespace llmc {

constexpr float LOG2_E = 1.44269504088896340736f;
constexpr float LN_2 = 0.69314718055994530942f;

// 2^x, relative error 2^-22. 2^-inf = 0, 2^inf = inf, NaN stays NaN.
__device__ __forceinline__ float exp2_approx(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// 1/x, one unit in the last place. 1/inf = 0.
__device__ __forceinline__ float reciprocal_approx(float x) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    return inverse;
}

}  // namespace llmc
