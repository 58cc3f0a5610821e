// attention_wgmma_rows.cuh - for attention_wgmma.cu: what becomes of a warpgroup's (64,64) sums, 32 a thread, each warp
// with 16 rows. Thread 4 g + t of a warp has in sum[4 j + e] row g + 8 (e/2), column 8 j + 2 t + e%2.
#pragma once
#include "hopper.cuh"
#include "two_bf16.cuh"

namespace llmc::wgmma_attention {

__device__ __forceinline__ float dot_two(uint32_t a, uint32_t b) {
    const float2 x = two_floats(a), y = two_floats(b);
    return fmaf(x.x, y.x, x.y * y.y);
}

// A word for each pair of sums, as products take them on their left.
__device__ __forceinline__ void round_pairs(uint32_t (&left)[4][4], const float (&sum)[32]) {
#pragma unroll
    for (int i = 0; i < 16; i++) left[i / 4][i % 4] = two_bf16(sum[2 * i], sum[2 * i + 1]);
}

// A warp's 16 rows of sums to rows of memory `stride` values apart, by way of 2 KiB of shared memory. Leaves in column[2 j + e]
// the sum of what this thread has stored of column 8 j + 2 t + e.
__device__ __forceinline__ void write_rows(bf16 *to, int64_t stride, uint32_t by_way_of, const float (&sum)[32], float factor, float (&column)[16]) {
    const int lane = threadIdx.x % 32;
    const uint32_t corner = by_way_of + lane / 8 % 2 * 1024 + lane % 8 * 128;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; i++) word[i] = two_bf16(sum[4 * j + 2 * i] * factor, sum[4 * j + 2 * i + 1] * factor);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float2 upper = two_floats(word[2 * i]), lower = two_floats(word[2 * i + 1]);
            column[2 * (j + i)] = upper.x + lower.x, column[2 * (j + i) + 1] = upper.y + lower.y;
        }
        store_blocks(corner + (((j + lane / 16) ^ lane % 8) << 4), word[0], word[1], word[2], word[3]);
    }
    __syncwarp();
#pragma unroll
    for (int row = lane / 8; row < 16; row += 4) {
        uint4 piece;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                     : "r"(by_way_of + row * 128 + ((lane % 8 ^ row % 8) << 4)));
        *reinterpret_cast<uint4 *>(to + row * stride + lane % 8 * 8) = piece;
    }
    __syncwarp();
}

// The sums over a warp's rows: each exchange with a lane of other rows halves the columns that a lane looks after, until
// those of 8 g + 2 t and the next are left.
template <int LEFT>
__device__ __forceinline__ void exchange(float (&column)[16]) {
    const bool upper = threadIdx.x & 2 * LEFT;
#pragma unroll
    for (int k = 0; k < LEFT; k++) {
        const float mine = upper ? column[LEFT + k] : column[k], others = upper ? column[k] : column[LEFT + k];
        column[k] = mine + __shfl_xor_sync(0xffffffffu, others, 2 * LEFT);
    }
}
__device__ __forceinline__ float2 sum_rows(float (&column)[16]) {
    exchange<8>(column);
    exchange<4>(column);
    exchange<2>(column);
    return {column[0], column[1]};
}

}  // namespace llmc::wgmma_attention
