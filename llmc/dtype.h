// dtype.h - the storage types X that parameters, gradients and activations may have.
// The CPU backend computes in float alone; bf16 exists there only as 16 bits in a host buffer.
#pragma once
#include <cstdint>
#include <cstring>

#ifdef LLMC_CUDA
#include <cuda_bf16.h>
namespace llmc {
using bf16 = __nv_bfloat16;
}
#endif

namespace llmc {

inline float widen_bf16(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

// Round to nearest, ties to even; a NaN stays a NaN (its payload could round up to infinity).
inline uint16_t narrow_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);
    return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace llmc
