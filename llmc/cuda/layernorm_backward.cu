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
constexpr int FEW_THREADS = 224, FEW_RESIDENT = 672;  // blocks of so few may use 96 registers a thread: so many threads fit an SM

// Makes the compiler unpack the values again when they are next used rather than keep W floats alive in
// between: registers are what limits the rows in flight here.
template <class X, int W>
__device__ __forceinline__ void keep_packed(Few<X, W> &few) {
    for (uint32_t &word : few.bits) asm volatile("" : "+r"(word));
}

// A block per row, 16 bytes of the row per thread. The next row is on its way while this one is worked on.
template <class X, bool ADD, bool SUM, bool FEW>
__global__ void __launch_bounds__(FEW ? FEW_THREADS : 1024, FEW ? FEW_RESIDENT / FEW_THREADS : 1) differentiate(X *dinp, float *__restrict__ shares, const X *dout, const X *inp, const X *__restrict__ w,
                                                      const float *__restrict__ mean, const float *__restrict__ rstd, int64_t N, int C, float per_column) {
    constexpr int W = Pack<X>::size, PARTS = SUM ? 3 : 2;
    __shared__ float2 slots[2][32];  // two sets: a row's sums are read while the next row's are written
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32, c = threadIdx.x * W;
    const bool mine = c < C;
    Few<X, W> gain = mine ? load<W>(w + c) : no_values<W, X>();
    float sums[PARTS][W] = {};

    Few<X, W> next_dout = no_values<W, X>(), next_inp = next_dout, next_old = next_dout;
    float next_mean = 0, next_rstd = 0;
    const auto fetch = [&](int64_t row) {
        if (row >= N) return;
        next_mean = mean[row];
        next_rstd = rstd[row];
        if (!mine) return;
        next_dout = load_once<W>(dout + row * C + c);
        next_inp = load<W>(inp + row * C + c);
        if constexpr (ADD) next_old = load<W>(dinp + row * C + c);
    };
    fetch(blockIdx.x);
    int turn = 0;
    for (int64_t row = blockIdx.x; row < N; row += gridDim.x, turn ^= 1) {
        Few<X, W> d = next_dout, x = next_inp;
        const Few<X, W> old = next_old;
        const float centre = next_mean, scale = next_rstd;
        fetch(row + gridDim.x);

        float sum_g = 0, sum_gx = 0;
        for (int i = 0; i < W; i++) {
            const float xhat = (x[i] - centre) * scale, g = gain[i] * d[i];
            sums[0][i] += d[i] * xhat;
            sums[1][i] += d[i];
            sum_g += g;
            sum_gx += g * xhat;
        }
        keep_packed(d);
        keep_packed(x);
        keep_packed(gain);
        sum_g = warp_sum(sum_g);
        sum_gx = warp_sum(sum_gx);
        if (threadIdx.x % 32 == 0) slots[turn][warp] = make_float2(sum_g, sum_gx);
        __syncthreads();
        sum_g = sum_gx = 0;
        for (int i = 0; i < warps; i++) {
            sum_g += slots[turn][i].x;
            sum_gx += slots[turn][i].y;
        }
        if (!mine) continue;
        const float mean_g = sum_g * per_column, mean_gx = sum_gx * per_column;
        float dx[W];
        for (int i = 0; i < W; i++) {
            const float xhat = (x[i] - centre) * scale;
            dx[i] = scale * (gain[i] * d[i] - mean_g - xhat * mean_gx);
            if constexpr (ADD) dx[i] += old[i];
        }
        const Few<X, W> rounded = round_few<X>(dx);
        store<W>(dinp + row * C + c, rounded);
        if constexpr (SUM)
            for (int i = 0; i < W; i++) sums[2][i] += rounded[i];
    }
    if (!mine) return;
    float *share = shares + int64_t(blockIdx.x) * PARTS * C + c;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
#pragma unroll
        for (int i = 0; i < W; i += 4) {
            *reinterpret_cast<float4 *>(share + part * C + i) = make_float4(sums[part][i], sums[part][i + 1], sums[part][i + 2], sums[part][i + 3]);
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
    const int64_t threads = ceil_div(C, Pack<X>::size * 32) * 32;
    const int64_t enough_rows = ceil_div(N, 8);  // per block, lest the shares outweigh the rows
    if (can_pack<X>(C, dinp, dout, inp, w) && threads <= 1024) {
        const bool few = threads <= FEW_THREADS;
        const int64_t resident = lane.sms * std::clamp<int64_t>(FEW_RESIDENT / threads, 1, 8);
        const int64_t blocks = std::min({enough_rows, resident, int64_t(MAX_BLOCKS)});
        const auto kernel = few ? differentiate<X, ADD, SUM, true> : differentiate<X, ADD, SUM, false>;
        kernel<<<unsigned(blocks), unsigned(threads), 0, lane.stream>>>(dinp, shares, dout, inp, w, mean, rstd, N, C, 1.0f / C);
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
