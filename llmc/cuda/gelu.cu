// gelu.cu - GELU forward and backward, element by element.
//
//   out = gelu(inp)                 reads 1, writes 1 value an element
//   dinp = dout * gelu'(inp)        reads 2, writes 1; dinp may be dout
// inp, out, dout, dinp (n) in X; arithmetic fp32; deterministic. Bound by memory: at bf16 and 4.27 TB/s
// an SM has 27 instructions and 3.4 special-function results for each element of the forward, 41 and
// 5.2 for the backward; they need about 14 and 2, 22 and 2.
#include "../ops.h"
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
void gelu_backward(Lane &lane, X *dinp, const X *dout, const X *inp, int64_t n) {
    if (n < 0) fail(LLMC_INVALID, "gelu_backward: n is %lld, expected >= 0", (long long)n);
    if (n == 0) return;
    if (can_pack<X>(0, dinp, dout, inp)) gelu_slope_packs<<<pack_blocks<X>(n), THREADS, 0, lane.stream>>>(dinp, dout, inp, n);
    else gelu_slope_singles<<<single_blocks(n), THREADS, 0, lane.stream>>>(dinp, dout, inp, n);
    launch_check("gelu_backward");
}

template void gelu_forward(Lane &, float *, const float *, int64_t);
template void gelu_forward(Lane &, bf16 *, const bf16 *, int64_t);
template void gelu_backward(Lane &, float *, const float *, const float *, int64_t);
template void gelu_backward(Lane &, bf16 *, const bf16 *, const bf16 *, int64_t);

}  // namespace llmc
