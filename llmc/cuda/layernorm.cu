// layernorm.cu - out = (x - mean) * rstd * w + b over the last axis of x = inp.
//   mean = sum(x)/C;  rstd = 1/sqrt(sum((x - mean)^2)/C + eps), eps 1e-5
// A row stays in registers between its statistics and its output: 8U values per thread, so that the
// variance is a true second pass at no memory cost. Bytes, bf16: 4NC.
#include "lane.cuh"
#include "width.cuh"
#include "../ops.h"

namespace llmc {

namespace {

constexpr float EPS = 1e-5f;

// A warp per row, or a block per row when BLOCK. Columns are dealt out in 16-byte packs.
template <class X, int U, bool BLOCK>
__global__ void __launch_bounds__(BLOCK ? 512 : 128) normalise(X *__restrict__ out, float *__restrict__ mean, float *__restrict__ rstd,
                                                               const X *__restrict__ inp, const X *__restrict__ w, const X *__restrict__ b,
                                                               int64_t N, int C, float per_column) {
    constexpr int W = Pack<X>::size, K = U * 8 / W;
    __shared__ float slots[32];
    const int lane = BLOCK ? threadIdx.x : threadIdx.x % 32;
    const int step = (BLOCK ? blockDim.x : 32) * W;
    const int64_t row = BLOCK ? blockIdx.x : int64_t(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= N) return;
    const auto total = [&](float part) { return BLOCK ? block_sum(part, slots) : warp_sum(part); };

    Few<X, W> held[K];
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int c = lane * W + k * step;
        held[k] = no_values<W, X>();
        if (c < C) held[k] = load<W>(inp + row * C + c);
    }
    float x[K][W], sum = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        for (int i = 0; i < W; i++) x[k][i] = held[k][i];
        for (int i = 0; i < W; i++) sum += x[k][i];
    }
    const float centre = total(sum) * per_column;
    float squares = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        if (lane * W + k * step >= C) continue;  // zeros beyond the row are not centred
        for (int i = 0; i < W; i++) squares += (x[k][i] - centre) * (x[k][i] - centre);
    }
    const float scale = rsqrtf(total(squares) * per_column + EPS);
    if (lane == 0) {
        mean[row] = centre;
        rstd[row] = scale;
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int c = lane * W + k * step;
        if (c >= C) continue;
        const Few<X, W> gain = load<W>(w + c), bias = load<W>(b + c);
        float y[W];
        for (int i = 0; i < W; i++) y[i] = (x[k][i] - centre) * scale * gain[i] + bias[i];
        store<W>(out + row * C + c, round_few<X>(y));
    }
}

// Any C and any alignment: a block per row, one value at a time, the row read again for each pass.
template <class X>
__global__ void __launch_bounds__(256) normalise_rereading(X *out, float *mean, float *rstd, const X *inp, const X *w, const X *b, int C) {
    __shared__ float slots[32];
    const int64_t row = blockIdx.x;
    const X *x = inp + row * C;
    float sum = 0;
    for (int c = threadIdx.x; c < C; c += blockDim.x) sum += to_float(x[c]);
    const float centre = block_sum(sum, slots) / C;
    float squares = 0;
    for (int c = threadIdx.x; c < C; c += blockDim.x) squares += (to_float(x[c]) - centre) * (to_float(x[c]) - centre);
    const float scale = rsqrtf(block_sum(squares, slots) / C + EPS);
    if (threadIdx.x == 0) {
        mean[row] = centre;
        rstd[row] = scale;
    }
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        out[row * C + c] = from_float<X>((to_float(x[c]) - centre) * scale * to_float(w[c]) + to_float(b[c]));
    }
}

}  // namespace

template <class X>
void layernorm_forward(Lane &lane, X *out, float *mean, float *rstd, const X *inp, const X *w, const X *b, int N, int C) {
    if (N < 0 || C < 1) fail(LLMC_INVALID, "layernorm_forward: N %d, C %d", N, C);
    if (N == 0) return;
    const int units = int(ceil_div(C, 32 * 8));  // of 8 values per lane, were a warp to take a row
    if (!can_pack<X>(C, out, inp, w, b) || units > 64) {
        const unsigned threads = C >= 256 ? 256 : unsigned(ceil_div(C, 32) * 32);
        normalise_rereading<X><<<unsigned(N), threads, 0, lane.stream>>>(out, mean, rstd, inp, w, b, C);
        return launch_check("normalise_rereading");
    }
    const auto per_warp = [&](auto kernel) {
        kernel<<<unsigned(ceil_div(N, 4)), 128, 0, lane.stream>>>(out, mean, rstd, inp, w, b, N, C, 1.0f / C);
    };
    const auto per_block = [&](auto kernel, int U) {
        kernel<<<unsigned(N), unsigned(ceil_div(units, U) * 32), 0, lane.stream>>>(out, mean, rstd, inp, w, b, N, C, 1.0f / C);
    };
    if (units == 1) per_warp(normalise<X, 1, false>);
    else if (units == 2) per_warp(normalise<X, 2, false>);
    else if (units == 3) per_warp(normalise<X, 3, false>);
    else if (units == 4) per_warp(normalise<X, 4, false>);
    else if (units <= 16) per_block(normalise<X, 2, true>, 2);
    else per_block(normalise<X, 4, true>, 4);
    launch_check("normalise");
}

template void layernorm_forward<float>(Lane &, float *, float *, float *, const float *, const float *, const float *, int, int);
template void layernorm_forward<bf16>(Lane &, bf16 *, float *, float *, const bf16 *, const bf16 *, const bf16 *, int, int);

}  // namespace llmc
