// attention_decode.cu - one new position per row against the keys and values kept so far.
//   cache[b,position] = qkv[b];  out[b,h] = sum over u <= position of softmax_u(q . k_u / sqrt(HS)) v_u
// cache (rows,T,3,NH,HS), qkv (rows,3,NH,HS), out (rows,NH,HS); fp32 inside. A block owns one (row, head);
// each warp takes 32 positions at a time, one a lane for the scores, then all lanes together for the
// values, with a running maximum; warps are combined in their order, so the result never varies.
// Cost: reads 2 (position+1) HS values a head, once; latency-bound at small batch.
#include <algorithm>
#include <cmath>

#include "../ops.h"
#include "attention.h"
#include "lane.cuh"
#include "pack.cuh"

namespace llmc {
namespace {

constexpr int MAX_WARPS = 16;

// N values of a head per lane: dimensions lane, lane + 32, ...; 32 N >= HS
template <class X, int N>
__global__ void __launch_bounds__(MAX_WARPS * 32, 1)
    decode_kernel(X *out, X *cache, const X *qkv, int T, const int *place, int NH, int HS, float scale_log2, bool packed) {
    extern __shared__ __align__(16) float shared[];
    const int position = *place;
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *const query = shared, *const tops = query + N * 32, *const totals = tops + MAX_WARPS, *const sums = totals + MAX_WARPS;  // sums (warps,HS)

    const int64_t C = int64_t(NH) * HS, row = blockIdx.x / NH, head = blockIdx.x % NH;
    X *const rows = cache + row * T * 3 * C + head * HS;  // this head's q of position 0
    const X *const fresh = qkv + row * 3 * C + head * HS;
    for (int i = threadIdx.x; i < 3 * HS; i += blockDim.x) rows[position * 3 * C + i / HS * C + i % HS] = fresh[i / HS * C + i % HS];
    for (int d = threadIdx.x; d < HS; d += blockDim.x) query[d] = to_float(fresh[d]) * scale_log2;
    __syncthreads();  // also makes the new key and value visible to the block

    float top = -INFINITY, total = 0.0f, sum[N] = {};
    for (int first = warp * 32; first <= position; first += warps * 32) {
        const int mine = first + lane;
        float score = -INFINITY;
        if (mine <= position) {
            const X *const key = rows + mine * 3 * C + C;
            score = 0.0f;
            if (packed) {
                for (int d = 0; d < HS; d += Pack<X>::size) {
                    const Pack<X> part = load_pack(key + d);
#pragma unroll
                    for (int i = 0; i < Pack<X>::size; i++) score = fmaf(to_float(part.value[i]), query[d + i], score);
                }
            } else {
                for (int d = 0; d < HS; d++) score = fmaf(to_float(key[d]), query[d], score);
            }
        }
        const float new_top = fmaxf(top, warp_max(score)), shrink = exp2f(top - new_top);
        const float weight = exp2f(score - new_top);  // 0 past the position
        top = new_top;
        total = total * shrink + warp_sum(weight);
#pragma unroll
        for (int n = 0; n < N; n++) sum[n] *= shrink;
        const int count = min(32, position + 1 - first);
#pragma unroll 8
        for (int u = 0; u < count; u++) {
            const float w = __shfl_sync(0xffffffffu, weight, u);
            const X *const value = rows + (first + u) * 3 * C + 2 * C;
#pragma unroll
            for (int n = 0; n < N; n++)
                if (lane + 32 * n < HS) sum[n] = fmaf(w, to_float(value[lane + 32 * n]), sum[n]);
        }
    }
    if (lane == 0) tops[warp] = top, totals[warp] = total;
#pragma unroll
    for (int n = 0; n < N; n++)
        if (lane + 32 * n < HS) sums[warp * HS + lane + 32 * n] = sum[n];
    __syncthreads();

    float largest = tops[0];  // finite: the first warp has position 0. A warp that had none adds nothing.
    for (int w = 1; w < warps; w++) largest = fmaxf(largest, tops[w]);
    for (int d = threadIdx.x; d < HS; d += blockDim.x) {
        float above = 0.0f, below = 0.0f;
        for (int w = 0; w < warps; w++) {
            const float factor = exp2f(tops[w] - largest);
            above += factor * sums[w * HS + d];
            below += factor * totals[w];
        }
        out[row * C + head * HS + d] = from_float<X>(above / below);
    }
}

template <class X, int N>
void launch(Lane &lane, X *out, X *cache, const X *qkv, int rows, int T, const int *position, int C, int NH) {
    const int HS = C / NH, warps = int(std::min<int64_t>(MAX_WARPS, ceil_div(T, 32)));  // what the last position needs: the host doesn't know this one
    const size_t bytes = (N * 32 + 2 * MAX_WARPS + warps * HS) * sizeof(float);
    decode_kernel<X, N><<<unsigned(rows * NH), warps * 32, bytes, lane.stream>>>(out, cache, qkv, T, position, NH, HS, 1.4426950408889634f / std::sqrt(float(HS)),
                                                                                  can_pack<X>(HS, cache));
    launch_check("attention_decode");
}

}  // namespace

template <class X>
void attention_decode(Lane &lane, X *out, X *cache, const X *qkv, int rows, int T, const int *position, int C, int NH) {
    if (rows < 1 || T < 1 || NH < 1 || C < NH || C % NH != 0 || int64_t(rows) * NH > 0x7fffffff)
        fail(LLMC_INVALID, "attention_decode: rows=%d T=%d C=%d NH=%d; all must be positive and NH must divide C", rows, T, C, NH);
    const int HS = C / NH;
    if (HS > ATTENTION_MAX_HEAD_SIZE)
        fail(LLMC_UNAVAILABLE, "attention_decode: head size %d (C=%d, NH=%d); the largest this build handles is %d", HS, C, NH, ATTENTION_MAX_HEAD_SIZE);
    if (HS <= 32) launch<X, 1>(lane, out, cache, qkv, rows, T, position, C, NH);
    else if (HS <= 64) launch<X, 2>(lane, out, cache, qkv, rows, T, position, C, NH);
    else if (HS <= 128) launch<X, 4>(lane, out, cache, qkv, rows, T, position, C, NH);
    else launch<X, 8>(lane, out, cache, qkv, rows, T, position, C, NH);
}
template void attention_decode<float>(Lane &, float *, float *, const float *, int, int, const int *, int, int);
template void attention_decode<bf16>(Lane &, bf16 *, bf16 *, const bf16 *, int, int, const int *, int, int);

}  // namespace llmc
