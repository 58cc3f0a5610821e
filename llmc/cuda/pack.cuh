// pack.cuh - 16 bytes at a time, and sums over a warp or a block. Shared by the memory-bound kernels.
#pragma once
#include <cstdint>

#include "../dtype.h"

namespace llmc {

// The widest access a thread can make. X is float (4 values) or bf16 (8 values).
template <class X>
struct alignas(16) Pack {
    static constexpr int size = 16 / sizeof(X);
    X value[size];
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
template <class X> __device__ __forceinline__ X from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }

template <class X>
__device__ __forceinline__ Pack<X> load_pack(const X *at) {
    Pack<X> p;
    *reinterpret_cast<int4 *>(&p) = *reinterpret_cast<const int4 *>(at);
    return p;
}
template <class X>
__device__ __forceinline__ void store_pack(X *at, const Pack<X> &p) {
    *reinterpret_cast<int4 *>(at) = *reinterpret_cast<const int4 *>(&p);
}
// Streaming forms: data read or written once should not push reused data out of the L2.
template <class X>
__device__ __forceinline__ Pack<X> load_pack_streaming(const X *at) {
    Pack<X> p;
    *reinterpret_cast<int4 *>(&p) = __ldcs(reinterpret_cast<const int4 *>(at));
    return p;
}
template <class X>
__device__ __forceinline__ void store_pack_streaming(X *at, const Pack<X> &p) {
    __stcs(reinterpret_cast<int4 *>(at), *reinterpret_cast<const int4 *>(&p));
}

// True when every pointer and the row length allow 16-byte accesses of X; else kernels go one by one.
template <class X, class... P>
inline bool can_pack(int64_t row, const P *...pointers) {
    return row % Pack<X>::size == 0 && ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

// Butterfly: every thread of the warp ends with the same value, in an order that never changes.
__device__ __forceinline__ float warp_sum(float x) {
    for (int hop = 16; hop > 0; hop /= 2) x += __shfl_xor_sync(0xffffffffu, x, hop);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
    for (int hop = 16; hop > 0; hop /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, hop));
    return x;
}

// Sum over a block of whole warps; `slots` is 32 floats of shared memory. Every thread gets the sum.
__device__ __forceinline__ float block_sum(float x, float *slots) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    x = warp_sum(x);
    __syncthreads();  // slots may still be read from an earlier call
    if (lane == 0) slots[warp] = x;
    __syncthreads();
    return warp_sum(lane < warps ? slots[lane] : 0.0f);
}

}  // namespace llmc
