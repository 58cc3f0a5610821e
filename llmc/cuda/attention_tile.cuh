// attention_tile.cuh (private) - what the own attention kernels share: which tile a block works on, rows
// of qkv-like tensors to shared memory, and the tensor cores' 16x8x16 product with its operand layouts.
//
// A tile in shared memory is ROWS x D, padded by one 16-byte chunk a row so that eight consecutive rows
// start in different banks. D is the head size rounded up; the columns HS..D and rows past T are zero.
#pragma once
#include <cstdint>

#include "../error.h"
#include "attention.h"
#include "lane.cuh"
#include "pack.cuh"

namespace llmc {

constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

template <class X, int D>
constexpr int TILE_STRIDE = D + 16 / int(sizeof(X));

// Blocks run through 64 heads at a time, whose keys and values stay in the L2, and take the longest
// tiles of these first, so that short ones fill the tail.
struct TilePlace {
    int head, tile;  // head counts b*NH + h
    __device__ __forceinline__ TilePlace(int64_t block, int tiles, int heads, bool last_is_longest) {
        constexpr int GROUP = 64;
        const int group = int(block / (int64_t(GROUP) * tiles)), rest = int(block % (int64_t(GROUP) * tiles));
        const int size = min(GROUP, heads - group * GROUP);
        head = group * GROUP + rest % size;
        tile = last_is_longest ? tiles - 1 - rest / size : rest / size;
    }
};

// A head's rows in (B,T,..): row t of this head starts at first + t * stride.
template <class X>
struct HeadRows {
    X *first;
    int stride;
    __device__ __forceinline__ X *row(int t) const { return first + int64_t(t) * stride; }
};
template <class X>
__device__ __forceinline__ HeadRows<X> head_rows(X *tensor, int head, int T, int NH, int HS, int parts, int part) {
    const int C = NH * HS, b = head / NH, h = head % NH, stride = parts * C;
    return {tensor + int64_t(b) * T * stride + part * C + h * HS, stride};
}

__device__ __forceinline__ uint32_t shared_address(const void *at) { return uint32_t(__cvta_generic_to_shared(at)); }

// Asynchronous copies of 16 or 4 bytes to shared memory; zeros instead when !valid (`from` is not read).
__device__ __forceinline__ void copy16_async(void *to, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy4_async(void *to, const void *from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 4 : 0) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>  // until at most N of this thread's latest groups are outstanding
__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// ROWS rows of a head from `first` on into a tile. `packed`: 16-byte accesses are aligned.
template <class X, int D, int ROWS, int THREADS>
__device__ __forceinline__ void load_tile(X *tile, const HeadRows<const X> &from, int first, int T, int HS, bool packed) {
    constexpr int STRIDE = TILE_STRIDE<X, D>, UNIT = 16 / int(sizeof(X)), CHUNKS = D / UNIT;
    if (packed) {
#pragma unroll
        for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
            const int row = i / CHUNKS, column = i % CHUNKS * UNIT;
            const bool valid = first + row < T && column < HS;
            copy16_async(tile + row * STRIDE + column, valid ? from.row(first + row) + column : from.first, valid);
        }
    } else {
        for (int i = threadIdx.x; i < ROWS * D; i += THREADS) {
            const int row = i / D, column = i % D;
            tile[row * STRIDE + column] = first + row < T && column < HS ? from.row(first + row)[column] : from_float<X>(0.0f);
        }
    }
}
// ROWS values of a per-row statistic (T) from `first` on
template <int ROWS, int THREADS>
__device__ __forceinline__ void load_statistic(float *to, const float *from, int first, int T) {
    for (int i = threadIdx.x; i < ROWS; i += THREADS) {
        const bool valid = first + i < T;
        copy4_async(to + i, valid ? from + first + i : from, valid);
    }
}

// -- tensor cores: c(16x8) += a(16x16) b(16x8), bf16 in, fp32 out. With g = lane/4, t = lane%4 a thread holds
//   a[0..3] pairs (row g | g+8, columns 2t..2t+1 | +8), order (g,2t) (g+8,2t) (g,2t+8) (g+8,2t+8)
//   b[0..1] pairs (rows 2t..2t+1 | +8, column g)
//   c[0..3]       (g,2t) (g,2t+1) (g+8,2t) (g+8,2t+1)
// so the c of two neighbouring products, packed in pairs, is the a of the next product.
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 matrices, whose rows the lanes 0-7, 8-15, 16-23, 24-31 point at.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const bf16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const bf16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
// a = tile[row..+16)[column..+16)
template <int D>
__device__ __forceinline__ void load_left(uint32_t (&a)[4], const bf16 *tile, int row, int column, int lane) {
    load_matrices(a, tile + (row + lane % 16) * TILE_STRIDE<bf16, D> + column + lane / 16 * 8);
}
// Two b's of the transpose: b(k,n) = tile[row + n][column + k]; b[0..1] for n < 8, b[2..3] for n >= 8
template <int D>
__device__ __forceinline__ void load_right_transposed(uint32_t (&b)[4], const bf16 *tile, int row, int column, int lane) {
    load_matrices(b, tile + (row + lane / 16 * 8 + lane % 8) * TILE_STRIDE<bf16, D> + column + lane / 8 % 2 * 8);
}
// Two b's as stored: b(k,n) = tile[row + k][column + n]
template <int D>
__device__ __forceinline__ void load_right(uint32_t (&b)[4], const bf16 *tile, int row, int column, int lane) {
    load_matrices_transposed(b, tile + (row + lane % 16) * TILE_STRIDE<bf16, D> + column + lane / 16 * 8);
}

__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&pair);
}
// The a operand made of the products c0 (columns 0-7) and c1 (columns 8-15)
__device__ __forceinline__ void pack_left(uint32_t (&a)[4], const float (&c0)[4], const float (&c1)[4]) {
    a[0] = pack_pair(c0[0], c0[1]), a[1] = pack_pair(c0[2], c0[3]);
    a[2] = pack_pair(c1[0], c1[1]), a[3] = pack_pair(c1[2], c1[3]);
}

// 2^x, two units in the last place, denormals to zero: results are rounded to bf16 anyway
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Writes a warp's 16 x (8*N) sum, times factor (of rows g and g+8), to a head's rows from `first` on.
template <int N>
__device__ __forceinline__ void store_product(const HeadRows<bf16> &to, const float (&c)[N][4], float factor0, float factor1, int first, int column,
                                              int T, int HS, bool packed, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = first + g + 8 * half;
        if (row >= T) continue;
        bf16 *at = to.row(row);
        const float factor = half ? factor1 : factor0;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const int d = column + n * 8 + 2 * t;
            const float low = c[n][2 * half] * factor, high = c[n][2 * half + 1] * factor;
            if (packed) {
                if (d < HS) *reinterpret_cast<__nv_bfloat162 *>(at + d) = __floats2bfloat162_rn(low, high);
            } else {
                if (d < HS) at[d] = __float2bfloat16_rn(low);
                if (d + 1 < HS) at[d + 1] = __float2bfloat16_rn(high);
            }
        }
    }
}

// Lets a kernel use `bytes` of shared memory and launches it; a grid past the limit is refused.
template <class... P, class... A>
void launch_tiles(const char *name, void (*kernel)(P...), int64_t blocks, int threads, size_t bytes, int max_shared, cudaStream_t stream, A... arguments) {
    if (blocks > 0x7fffffff) fail(LLMC_INVALID, "%s: %lld blocks; batch * heads * positions is too large", name, (long long)blocks);
    if (bytes > size_t(max_shared))
        fail(LLMC_UNAVAILABLE, "%s needs %zu bytes of shared memory a block, this device has %d", name, bytes, max_shared);
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)), name);
    kernel<<<unsigned(blocks), threads, bytes, stream>>>(arguments...);
    launch_check(name);
}

// delta (B,NH,T) = sum over the head of dout * out, the part of the softmax gradient common to a row
template <class X>
void attention_delta(cudaStream_t, float *delta, const X *dout, const X *out, int B, int T, int C, int NH);

}  // namespace llmc
