// column_sum.cuh - a kernel over a matrix (N,OC) whose threads keep columns and walk down rows, so that it can
// sum what it sees. Blocks (columns, slices of rows) of SLICE_WARPS warps; lane l owns columns
// (32 * block + l) * W ..+ W, warp w the rows first + w, first + w + SLICE_WARPS, ... of the slice.
#pragma once
#include <algorithm>

#include "lane.cuh"
#include "width.cuh"

namespace llmc {

constexpr int SLICE_WARPS = 8;

// Enough blocks for several an SM, rows enough for 8 a warp; of N and OC alone, so that sums repeat.
inline int column_slices(int N, int OC) {
    const int64_t blocks_across = ceil_div(std::max(OC, 1), 256);
    return int(std::max<int64_t>(1, std::min(ceil_div(1024, blocks_across), ceil_div(N, 64))));
}

// partial (slices,OC) = sums over a slice's rows of what use(element, held, sum) adds to sum[W], where
// held = fetch(element). DEEP rows are fetched before the first is used.
template <int W, int DEEP, class Fetch, class Use>
__device__ __forceinline__ void sum_slice(float *partial, int N, int OC, Fetch fetch, Use use) {
    __shared__ float part[SLICE_WARPS][W][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t column = (int64_t(blockIdx.x) * 32 + lane) * W;
    const int64_t rows = (int64_t(N) + gridDim.y - 1) / gridDim.y;
    const int64_t first = int64_t(blockIdx.y) * rows, end = min(first + rows, int64_t(N));
    float sum[W] = {};
    if (column < OC) {
        int64_t row = first + warp;
        for (; row + (DEEP - 1) * SLICE_WARPS < end; row += DEEP * SLICE_WARPS) {
            decltype(fetch(row)) held[DEEP];
#pragma unroll
            for (int j = 0; j < DEEP; j++) held[j] = fetch((row + j * SLICE_WARPS) * OC + column);
#pragma unroll
            for (int j = 0; j < DEEP; j++) use((row + j * SLICE_WARPS) * OC + column, held[j], sum);
        }
        for (; row < end; row += SLICE_WARPS) use(row * OC + column, fetch(row * OC + column), sum);
    }
#pragma unroll
    for (int k = 0; k < W; k++) part[warp][k][lane] = sum[k];
    __syncthreads();
    for (int k = warp; k < W && column + k < OC; k += SLICE_WARPS) {
        float total = 0;
        for (int w = 0; w < SLICE_WARPS; w++) total += part[w][k][lane];
        partial[int64_t(blockIdx.y) * OC + column + k] = total;
    }
}

}  // namespace llmc
