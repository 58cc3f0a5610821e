// vector.h - loops that fill a vector register on any CPU: function multiversioning and an exp without
// branches, so that one portable binary runs SSE2, AVX2 or AVX-512 code, whichever the machine has.
//
//   exp(x) = 2^n e^r,  n = round(x / ln 2),  r = x - n ln 2 in [-0.35, 0.35],  e^r by a degree-6 polynomial
//
// Relative error below 2e-7. NaN stays NaN; the loops need no -ffast-math.
#pragma once
#include <cstdint>
#include <cstring>

// LLMC_CLONES compiles a function once per instruction set; the loader picks. It has to sit on functions
// without OpenMP regions (the compiler outlines a region before it clones, and would clone only the shell)
// and in an unnamed namespace (a cloned symbol ignores -fvisibility=hidden).
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && __GNUC__ >= 12
#define LLMC_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LLMC_CLONES
#endif
#define LLMC_INLINE __attribute__((always_inline)) inline

namespace llmc {

// For x <= 88; below -87 the result is 0 (it would leave the normal range).
LLMC_INLINE float fast_exp(float x) {
    const float log2e = 1.44269504f, ln2_high = 0.693145752f, ln2_low = 1.42860677e-6f;
    const float shift = 12582912.0f;  // 1.5 * 2^23: adding it leaves round(n) in the low mantissa bits
    const float safe = x < -87.0f ? -87.0f : x;
    const float shifted = safe * log2e + shift;
    const float n = shifted - shift;
    const float r = (safe - n * ln2_high) - n * ln2_low;
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    std::memcpy(&bits, &shifted, 4);
    bits = (bits << 23) + 0x3f800000u;  // the exponent field of 2^n
    float scale;
    std::memcpy(&scale, &bits, 4);
    return x < -87.0f ? 0.0f : p * scale;
}

}  // namespace llmc
