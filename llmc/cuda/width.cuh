// width.cuh - W neighbouring values of X moved in one access: 16 or 8 bytes where alignment allows, one
// value where it doesn't. A kernel written over W serves both; "once" forms stream past the L2.
#pragma once
#include "pack.cuh"

namespace llmc {

template <int BYTES> struct Word;
template <> struct Word<16> { using type = uint4; };
template <> struct Word<8> { using type = uint2; };
template <> struct Word<4> { using type = unsigned; };
template <> struct Word<2> { using type = unsigned short; };

// Kept as 32-bit registers: an array of 16-bit values would take one register each.
template <class X, int W>
struct Few {
    static constexpr int BYTES = W * sizeof(X);
    using word = typename Word<BYTES>::type;
    uint32_t bits[(BYTES + 3) / 4];

    __device__ __forceinline__ float operator[](int i) const {
        if constexpr (sizeof(X) == 4) return __uint_as_float(bits[i]);
        else return __uint_as_float(i % 2 == 0 ? bits[i / 2] << 16 : bits[i / 2] & 0xffff0000u);
    }
    __device__ __forceinline__ word packed() const {
        if constexpr (BYTES == 16) return make_uint4(bits[0], bits[1], bits[2], bits[3]);
        else if constexpr (BYTES == 8) return make_uint2(bits[0], bits[1]);
        else return word(bits[0]);
    }
    __device__ __forceinline__ static Few of(const word &packed) {
        if constexpr (BYTES == 16) return {{packed.x, packed.y, packed.z, packed.w}};
        else if constexpr (BYTES == 8) return {{packed.x, packed.y}};
        else return {{packed}};
    }
};

template <int W, class X>
__device__ __forceinline__ Few<X, W> load(const X *at) {
    return Few<X, W>::of(*reinterpret_cast<const typename Few<X, W>::word *>(at));
}
template <int W, class X>
__device__ __forceinline__ Few<X, W> load_once(const X *at) {
    return Few<X, W>::of(__ldcs(reinterpret_cast<const typename Few<X, W>::word *>(at)));
}
template <int W, class X>
__device__ __forceinline__ void store(X *at, const Few<X, W> &few) {
    *reinterpret_cast<typename Few<X, W>::word *>(at) = few.packed();
}
template <int W, class X>
__device__ __forceinline__ void store_once(X *at, const Few<X, W> &few) {
    __stcs(reinterpret_cast<typename Few<X, W>::word *>(at), few.packed());
}

template <int W, class X>
__device__ __forceinline__ Few<X, W> no_values() { return {}; }

// Nearest even. bf16 goes in pairs: the hardware converts two values in one instruction.
template <class X, int W>
__device__ __forceinline__ Few<X, W> round_few(const float (&x)[W]) {
    Few<X, W> few;
    if constexpr (sizeof(X) == 4) {
        for (int i = 0; i < W; i++) few.bits[i] = __float_as_uint(x[i]);
    } else if constexpr (W == 1) {
        few.bits[0] = __bfloat16_as_ushort(__float2bfloat16_rn(x[0]));
    } else {
        for (int i = 0; i < W; i += 2) {
            const __nv_bfloat162 pair = __floats2bfloat162_rn(x[i], x[i + 1]);
            few.bits[i / 2] = *reinterpret_cast<const uint32_t *>(&pair);
        }
    }
    return few;
}

// sum += the W values at at(k), at(k + stride), ... while k < end. DEEP loads are issued before the first is
// used, without which the compiler waits for each in turn; k is left at the first term not yet added.
template <int DEEP, int W, class At>
__device__ __forceinline__ void add_in_flight(float (&sum)[W], int64_t &k, int64_t end, int64_t stride, At at) {
    for (; k + (DEEP - 1) * stride < end; k += DEEP * stride) {
        decltype(load<W>(at(k))) next[DEEP];
#pragma unroll
        for (int j = 0; j < DEEP; j++) next[j] = load<W>(at(k + j * stride));
#pragma unroll
        for (int j = 0; j < DEEP; j++) {
#pragma unroll
            for (int i = 0; i < W; i++) sum[i] += next[j][i];
        }
    }
}

}  // namespace llmc
