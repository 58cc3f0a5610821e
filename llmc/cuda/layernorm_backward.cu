// layernorm_backward.cu - with xhat = (inp - mean) * rstd and g = w * dout, per row of C values:
//   dinp (+)= rstd * (g - sum(g)/C - xhat * sum(g * xhat)/C)
//   sums over rows: dw (+)= of dout * xhat;  db (+)= of dout;  dsum (+)= of dinp, which saves reading it again
// One visit to memory: a block keeps its columns' share of the sums in registers over all its rows,
// then writes it to scratch (blocks, 2 or 3, C) fp32; a second kernel adds the blocks up in order.
// Bytes, bf16: 6NC, or 8NC when dinp is added to; scratch is at most MAX_BLOCKS * 24C beside it.
#include <algorithm>

#include "lane.cuh"
#include "width.cuh"
#include "../ops.h"

namespace llmc {

namespace {

constexpr int MAX_BLOCKS = 1280;
constexpr int ALONE_WARPS = 4;     // of a block whose warps take a row each
constexpr int MOST_THREADS = 384;  // of a block that takes a row: leaves 168 registers a thread

// Makes the compiler unpack the values again when they are next used rather than keep W floats alive in
// between: registers are what limits the rows in flight here.
template <class X, int W>
__device__ __forceinline__ void keep_packed(Few<X, W> &few) {
    for (uint32_t &word : few.bits) asm volatile("" : "+r"(word));
}

// A warp for a row where 32 lanes of K packs reach across it, without a barrier; else a block for a row. K packs
// a thread share the cost of a row's two sums. The next row is on its way while this one is worked on.
template <class X, int K, bool ALONE, bool ADD, bool SUM>
__global__ void __launch_bounds__(ALONE ? ALONE_WARPS * 32 : MOST_THREADS, !ALONE ? 1 : K == 3 ? 2 : 3)
    differentiate(X *dinp, float *__restrict__ shares, const X *dout, const X *inp, const X *__restrict__ w, const float *__restrict__ mean,
                  const float *__restrict__ rstd, int64_t N, int C, float per_column) {
    constexpr int W = Pack<X>::size, PARTS = SUM ? 3 : 2;
    __shared__ float2 slots[2][ALONE ? 1 : MOST_THREADS / 32];  // two sets: a row's sums are read while the next row's are written
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32, lane = threadIdx.x % 32;
    const int step = (ALONE ? 32 : blockDim.x) * W, c = (ALONE ? lane : threadIdx.x) * W;
    const int64_t first = ALONE ? int64_t(blockIdx.x) * ALONE_WARPS + warp : blockIdx.x, stride = int64_t(gridDim.x) * (ALONE ? ALONE_WARPS : 1);
    using Values = Few<X, W>;
    Values gain[K];
    float sums[PARTS][K][W] = {};
#pragma unroll
    for (int k = 0; k < K; k++) gain[k] = c + k * step < C ? load<W>(w + c + k * step) : no_values<W, X>();

    Values next_dout[K], next_inp[K];
    float next_mean = 0, next_rstd = 0;
    for (int k = 0; k < K; k++) next_dout[k] = next_inp[k] = no_values<W, X>();
    const auto fetch = [&](int64_t row) {
        if (row >= N) return;
        next_mean = mean[row];
        next_rstd = rstd[row];
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (c + k * step >= C) continue;
            next_dout[k] = load_once<W>(dout + row * C + c + k * step);
            next_inp[k] = load<W>(inp + row * C + c + k * step);
        }
    };
    fetch(first);
    int turn = 0;
    for (int64_t row = first; row < N; row += stride, turn ^= 1) {
        Values d[K], x[K], old[K];
#pragma unroll
        for (int k = 0; k < K; k++) {
            d[k] = next_dout[k], x[k] = next_inp[k], old[k] = no_values<W, X>();
            if (ADD && c + k * step < C) old[k] = load<W>(dinp + row * C + c + k * step);  // needed last
        }
        const float centre = next_mean, scale = next_rstd;
        fetch(row + stride);

        float sum_g = 0, sum_gx = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
#pragma unroll
            for (int i = 0; i < W; i++) {
                const float xhat = (x[k][i] - centre) * scale, g = gain[k][i] * d[k][i];
                sums[0][k][i] += d[k][i] * xhat;
                sums[1][k][i] += d[k][i];
                sum_g += g;
                sum_gx += g * xhat;
            }
            keep_packed(d[k]), keep_packed(x[k]), keep_packed(gain[k]);
        }
        sum_g = warp_sum(sum_g);
        sum_gx = warp_sum(sum_gx);
        if constexpr (!ALONE) {
            if (lane == 0) slots[turn][warp] = make_float2(sum_g, sum_gx);
            __syncthreads();
            sum_g = sum_gx = 0;
            for (int i = 0; i < warps; i++) {
                sum_g += slots[turn][i].x;
                sum_gx += slots[turn][i].y;
            }
        }
        // rstd * (g - mean(g) - xhat * mean(g * xhat)), its row's factors made once
        const float shift = -scale * sum_g * per_column, slope = -scale * sum_gx * per_column;
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (c + k * step >= C) continue;
            float dx[W];
#pragma unroll
            for (int i = 0; i < W; i++) {
                const float xhat = (x[k][i] - centre) * scale;
                dx[i] = scale * (gain[k][i] * d[k][i]) + (slope * xhat + shift);
                if constexpr (ADD) dx[i] += old[k][i];
            }
            const Values rounded = round_few<X>(dx);
            store<W>(dinp + row * C + c + k * step, rounded);
            if constexpr (SUM)
                for (int i = 0; i < W; i++) sums[2][k][i] += rounded[i];
        }
    }

    float *const share = shares + int64_t(blockIdx.x) * PARTS * C;
    if constexpr (ALONE) {  // the warps of the block meet first, in order
        __shared__ float meeting[ALONE_WARPS][32 * W];
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
#pragma unroll
            for (int k = 0; k < K; k++) {
                for (int i = 0; i < W; i++) meeting[warp][lane * W + i] = sums[part][k][i];
                __syncthreads();
                for (int i = threadIdx.x; i < 32 * W; i += ALONE_WARPS * 32) {
                    float total = 0;
                    for (int other = 0; other < ALONE_WARPS; other++) total += meeting[other][i];
                    if (k * step + i < C) share[part * C + k * step + i] = total;
                }
                __syncthreads();
            }
        }
    } else {
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (c + k * step >= C) continue;
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
#pragma unroll
                for (int i = 0; i < W; i += 4) {
                    const float(&s)[W] = sums[part][k];
                    *reinterpret_cast<float4 *>(share + part * C + c + k * step + i) = make_float4(s[i], s[i + 1], s[i + 2], s[i + 3]);
                }
            }
        }
    }
}

// Any C and any alignment, in two or three visits: first the columns' sums, a thread per column and share of rows ...
template <class X>
__global__ void __launch_bounds__(256) differentiate_columns(float *shares, int parts, const X *dout, const X *inp, const float *mean,
                                                             const float *rstd, int64_t N, int C) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) return;
    float dw = 0, db = 0;
#pragma unroll 4
    for (int64_t row = blockIdx.y; row < N; row += gridDim.y) {
        const float d = to_float(dout[row * C + c]);
        dw += d * (to_float(inp[row * C + c]) - mean[row]) * rstd[row];
        db += d;
    }
    shares[int64_t(blockIdx.y) * parts * C + c] = dw;
    shares[int64_t(blockIdx.y) * parts * C + C + c] = db;
}

// ... last the sums of what was made ...
template <class X>
__global__ void __launch_bounds__(256) sum_columns(float *shares, int parts, const X *dinp, int64_t N, int C) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) return;
    float sum = 0;
#pragma unroll 4
    for (int64_t row = blockIdx.y; row < N; row += gridDim.y) sum += to_float(dinp[row * C + c]);
    shares[(int64_t(blockIdx.y) * parts + 2) * C + c] = sum;
}

// ... and between them a block per row.
template <class X, bool ADD>
__global__ void __launch_bounds__(256) differentiate_row(X *dinp, const X *dout, const X *inp, const X *w, const float *mean, const float *rstd, int C) {
    __shared__ float slots[32];
    const int64_t row = blockIdx.x;
    const float centre = mean[row], scale = rstd[row];
    float sum_g = 0, sum_gx = 0;
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        const float g = to_float(w[c]) * to_float(dout[row * C + c]);
        sum_g += g;
        sum_gx += g * (to_float(inp[row * C + c]) - centre) * scale;
    }
    const float mean_g = block_sum(sum_g, slots) / C, mean_gx = block_sum(sum_gx, slots) / C;
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        const float g = to_float(w[c]) * to_float(dout[row * C + c]), xhat = (to_float(inp[row * C + c]) - centre) * scale;
        const float dx = scale * (g - mean_g - xhat * mean_gx);
        dinp[row * C + c] = from_float<X>(ADD ? to_float(dinp[row * C + c]) + dx : dx);
    }
}

// A block per 32 of the parts * C columns; its 32 warps take every 32nd share each, and meet in order.
template <class X>
__global__ void __launch_bounds__(1024) add_up_shares(X *dw, X *db, X *dsum, const float *__restrict__ shares, int64_t blocks, int parts, int C, bool add) {
    __shared__ float partial[32][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int64_t column = int64_t(blockIdx.x) * 32 + lane;
    const bool mine = column < parts * int64_t(C);
    float sum[1] = {0};
    int64_t k = mine ? warp : blocks;
    const auto at = [&](int64_t k) { return shares + k * parts * C + column; };
    add_in_flight<8>(sum, k, blocks, 32, at);
    add_in_flight<4>(sum, k, blocks, 32, at);
    add_in_flight<1>(sum, k, blocks, 32, at);
    partial[warp][lane] = sum[0];
    __syncthreads();
    if (warp != 0 || !mine) return;
    float total = 0;
    for (int i = 0; i < 32; i++) total += partial[i][lane];
    X *to = column < C ? dw + column : column < 2 * int64_t(C) ? db + (column - C) : dsum + (column - 2 * int64_t(C));
    *to = from_float<X>(add ? to_float(*to) + total : total);
}

template <class X, bool ADD, bool SUM>
int64_t launch(Lane &lane, X *dinp, float *shares, const X *dout, const X *inp, const X *w, const float *mean, const float *rstd, int64_t N, int C) {
    const int64_t enough_rows = ceil_div(N, 8);  // per block, lest the shares outweigh the rows
    const int64_t packs = C / Pack<X>::size;
    if (can_pack<X>(C, dinp, dout, inp, w) && packs <= MOST_THREADS * 2) {
        const auto kernel = packs <= 32   ? differentiate<X, 1, true, ADD, SUM>
                            : packs <= 64 ? differentiate<X, 2, true, ADD, SUM>
                            : packs <= 96 ? differentiate<X, 3, true, ADD, SUM>
                                          : differentiate<X, 2, false, ADD, SUM>;
        const int threads = packs <= 96 ? ALONE_WARPS * 32 : int(ceil_div(packs, 64)) * 32;
        int resident = 0;  // blocks of a multiprocessor
        cuda_check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, 0), "layernorm_backward: occupancy");
        const int64_t blocks = std::min({enough_rows, int64_t(lane.sms) * std::max(resident, 1), int64_t(MAX_BLOCKS)});
        kernel<<<unsigned(blocks), threads, 0, lane.stream>>>(dinp, shares, dout, inp, w, mean, rstd, N, C, 1.0f / C);
        launch_check("differentiate");
        return blocks;
    }
    const int64_t blocks = std::min<int64_t>(enough_rows, MAX_BLOCKS);
    const dim3 columns(unsigned(ceil_div(C, 256)), unsigned(blocks));
    differentiate_columns<X><<<columns, 256, 0, lane.stream>>>(shares, SUM ? 3 : 2, dout, inp, mean, rstd, N, C);
    launch_check("differentiate_columns");
    differentiate_row<X, ADD><<<unsigned(N), 256, 0, lane.stream>>>(dinp, dout, inp, w, mean, rstd, C);
    launch_check("differentiate_row");
    if constexpr (SUM) sum_columns<X><<<columns, 256, 0, lane.stream>>>(shares, 3, dinp, N, C);
    launch_check("sum_columns");
    return blocks;
}

}  // namespace

size_t layernorm_scratch_bytes(int N, int C) { return size_t(std::min<int64_t>(ceil_div(N, 8), MAX_BLOCKS)) * 3 * C * sizeof(float); }

template <class X>
void layernorm_backward(Lane &lane, X *dinp, X *dw, X *db, X *dsum, void *scratch, const X *dout, const X *inp, const X *w,
                        const float *mean, const float *rstd, int N, int C, Into into_inp, Into into_param) {
    if (N < 0 || C < 1) fail(LLMC_INVALID, "layernorm_backward: N %d, C %d", N, C);
    if (reinterpret_cast<uintptr_t>(scratch) % 16 != 0) fail(LLMC_INTERNAL, "layernorm_backward: scratch is not 16-byte aligned");
    const bool add = into_param == Into::ADD;
    if (N == 0) {
        if (add) return;
        for (X *sums : {dw, db, dsum})
            if (sums) cuda_check(cudaMemsetAsync(sums, 0, C * sizeof(X), lane.stream), "layernorm_backward");
        return;
    }
    float *shares = static_cast<float *>(scratch);
    const auto rows = into_inp == Into::ADD ? (dsum ? launch<X, true, true> : launch<X, true, false>)
                                            : (dsum ? launch<X, false, true> : launch<X, false, false>);
    const int64_t blocks = rows(lane, dinp, shares, dout, inp, w, mean, rstd, N, C);
    const int parts = dsum ? 3 : 2;
    add_up_shares<X><<<unsigned(ceil_div(parts * int64_t(C), 32)), 1024, 0, lane.stream>>>(dw, db, dsum, shares, blocks, parts, C, add);
    launch_check("add_up_shares");
}

template void layernorm_backward<float>(Lane &, float *, float *, float *, float *, void *, const float *, const float *, const float *,
                                        const float *, const float *, int, int, Into, Into);
template void layernorm_backward<bf16>(Lane &, bf16 *, bf16 *, bf16 *, bf16 *, void *, const bf16 *, const bf16 *, const bf16 *,
                                       const float *, const float *, int, int, Into, Into);

}  // namespace llmc
