// two_bf16.cuh - words of two bf16 as they lie in memory and in the operands of tensor cores.
#pragma once
#include <cstdint>

#include "../dtype.h"

namespace llmc {

__device__ __forceinline__ uint32_t two_bf16(float first, float second) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const uint32_t *>(&two);
}
__device__ __forceinline__ float2 two_floats(uint32_t word) { return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)}; }

}  // namespace llmc
