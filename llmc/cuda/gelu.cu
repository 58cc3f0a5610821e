// gelu.cu - GELU forward and backward, element by element.
//
//   out = gelu(inp)                 reads 1, writes 1 value an element
//   dinp = dout * gelu'(inp)        reads 2, writes 1; dinp may be dout; its column sums cost nothing more
// inp, out, dout, dinp (n) in X; arithmetic fp32; deterministic. Bound by memory: at bf16 and 4.27 TB/s
// an SM has 27 instructions and 3.4 special-function results for each element of the forward, 41 and
// 5.2 for the backward; they need about 14 and 2, 22 and 2.
#include "../ops.h"
#include "column_sum.cuh"
#include "column_sum.h"
#include "gelu.cuh"
#include "lane.cuh"

namespace llmc {
namespace {

constexpr int THREADS = 256;
constexpr int UNROLL = 2;  // packs in flight a thread and operand: 64 KiB of loads in flight an SM

// Thread i of a block takes its packs i, i + THREADS, ...; the last n % width values go one by one.
template <class X, int WIDTH>
struct Tile {
    int64_t first, vectors, n;
    __device__ Tile(int64_t n) : first(int64_t(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x), vectors(n / WIDTH), n(n) {}
    __device__ int64_t vector(int u) const { return first + u * THREADS; }
    __device__ int64_t leftover() const { return first < n - vectors * WIDTH ? vectors * WIDTH + first : -1; }
};

template <class X>
__global__ void __launch_bounds__(THREADS) gelu_packs(X *out, const X *inp, int64_t n) {
    constexpr int W = Pack<X>::size;
    const Tile<X, W> tile(n);
    Pack<X> x[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (tile.vector(u) < tile.vectors) x[u] = load_pack(inp + tile.vector(u) * W);
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        if (tile.vector(u) >= tile.vectors) continue;
#pragma unroll
        for (int k = 0; k < W; k++) x[u].value[k] = from_float<X>(gelu_value<X>(to_float(x[u].value[k])));
        store_pack(out + tile.vector(u) * W, x[u]);
    }
    if (const int64_t i = tile.leftover(); i >= 0) out[i] = from_float<X>(gelu_value<X>(to_float(inp[i])));
}

template <class X>
__global__ void __launch_bounds__(THREADS) gelu_slope_packs(X *dinp, const X *dout, const X *inp, int64_t n) {
    constexpr int W = Pack<X>::size;
    const Tile<X, W> tile(n);
    Pack<X> x[UNROLL], d[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (tile.vector(u) < tile.vectors) {
            x[u] = load_pack(inp + tile.vector(u) * W);
            d[u] = load_pack(dout + tile.vector(u) * W);
        }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        if (tile.vector(u) >= tile.vectors) continue;
#pragma unroll
        for (int k = 0; k < W; k++) d[u].value[k] = from_float<X>(to_float(d[u].value[k]) * gelu_slope<X>(to_float(x[u].value[k])));
        store_pack(dinp + tile.vector(u) * W, d[u]);
    }
    if (const int64_t i = tile.leftover(); i >= 0) dinp[i] = from_float<X>(to_float(dout[i]) * gelu_slope<X>(to_float(inp[i])));
}

// The way for pointers that are not 16-byte aligned.
template <class X>
__global__ void __launch_bounds__(THREADS) gelu_singles(X *out, const X *inp, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i < n) out[i] = from_float<X>(gelu_value<X>(to_float(inp[i])));
}
template <class X>
__global__ void __launch_bounds__(THREADS) gelu_slope_singles(X *dinp, const X *dout, const X *inp, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i < n) dinp[i] = from_float<X>(to_float(dout[i]) * gelu_slope<X>(to_float(inp[i])));
}

// Over (N,C), with sums of the columns; see column_sum.cuh.
template <class X, int W>
__global__ void __launch_bounds__(SLICE_WARPS * 32) gelu_slope_slices(X *dinp, float *partial, const X *dout, const X *inp, int N, int C) {
    struct Pair {
        Few<X, W> d, x;
    };
    sum_slice<W, 2>(
        partial, N, C, [=](int64_t at) { return Pair{load<W>(dout + at), load<W>(inp + at)}; },
        [=](int64_t at, const Pair &held, float (&sum)[W]) {
            float g[W];
            for (int k = 0; k < W; k++) g[k] = held.d[k] * gelu_slope<X>(held.x[k]);
            const Few<X, W> rounded = round_few<X>(g);
            store<W>(dinp + at, rounded);
            for (int k = 0; k < W; k++) sum[k] += rounded[k];
        });
}

template <class X>
unsigned pack_blocks(int64_t n) { return unsigned(ceil_div(ceil_div(n, Pack<X>::size), THREADS * UNROLL)); }
unsigned single_blocks(int64_t n) { return unsigned(ceil_div(n, THREADS)); }

}  // namespace

template <class X>
void gelu_forward(Lane &lane, X *out, const X *inp, int64_t n) {
    if (n < 0) fail(LLMC_INVALID, "gelu_forward: n is %lld, expected >= 0", (long long)n);
    if (n == 0) return;
    if (can_pack<X>(0, out, inp)) gelu_packs<<<pack_blocks<X>(n), THREADS, 0, lane.stream>>>(out, inp, n);
    else gelu_singles<<<single_blocks(n), THREADS, 0, lane.stream>>>(out, inp, n);
    launch_check("gelu_forward");
}

template <class X>
void gelu_backward(Lane &lane, X *dinp, X *dsum, void *scratch, const X *dout, const X *inp, int N, int C, Into into) {
    if (N < 0 || C < 1) fail(LLMC_INVALID, "gelu_backward: N %d, C %d, expected N >= 0, C >= 1", N, C);
    const int64_t n = int64_t(N) * C;
    if (dsum && n > 0) {
        float *const partial = static_cast<float *>(scratch);
        const bool packs = can_pack<X>(C, dinp, dout, inp);
        const int slices = column_slices(N, C);
        const dim3 blocks(unsigned(ceil_div(C, 32 * (packs ? Pack<X>::size : 1))), unsigned(slices));
        const auto kernel = packs ? gelu_slope_slices<X, Pack<X>::size> : gelu_slope_slices<X, 1>;
        kernel<<<blocks, SLICE_WARPS * 32, 0, lane.stream>>>(dinp, partial, dout, inp, N, C);
        launch_check("gelu_backward");
        return add_partials(lane, dsum, partial, slices, C, into);
    }
    if (dsum && into == Into::ASSIGN) cuda_check(cudaMemsetAsync(dsum, 0, size_t(C) * sizeof(X), lane.stream), "gelu_backward: zero sums");
    if (n == 0) return;
    if (can_pack<X>(0, dinp, dout, inp)) gelu_slope_packs<<<pack_blocks<X>(n), THREADS, 0, lane.stream>>>(dinp, dout, inp, n);
    else gelu_slope_singles<<<single_blocks(n), THREADS, 0, lane.stream>>>(dinp, dout, inp, n);
    launch_check("gelu_backward");
}

template void gelu_forward(Lane &, float *, const float *, int64_t);
template void gelu_forward(Lane &, bf16 *, const bf16 *, int64_t);
template void gelu_backward(Lane &, float *, float *, void *, const float *, const float *, int, int, Into);
template void gelu_backward(Lane &, bf16 *, bf16 *, void *, const bf16 *, const bf16 *, int, int, Into);

}  // namespace llmc
