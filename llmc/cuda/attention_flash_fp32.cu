// attention_flash_fp32.cu - the same attention as attention_flash.cu for float: plain fused multiply-adds,
// fp32 all through, same tiling and order of work, deterministic.
//   forward    s = q k^T / sqrt(HS), p = exp(s - running maximum), out = p v / sum
//   backward   one kernel owns key rows (dk, dv), one owns query rows (dq); both recompute p from lse
// 256 threads, 16 x 16: thread (ty, tx) holds rows ty + 16 i of its block, against columns tx + 16 j of
// scores and columns 4 tx + 64 j of sums, so that the 16 threads of a row are neighbours in one warp.
// Cost: one 16-byte shared memory read per 8 multiply-adds at head size 64; bound by that.
#include <cmath>

#include "attention_tile.cuh"

namespace llmc {
namespace {

constexpr int THREADS = 256;

// s[i][j] += a[ty + 16 i] . b[tx + 16 j], rows of two tiles
template <int D, int I, int J>
__device__ __forceinline__ void score_product(float (&s)[I][J], const float *a, const float *b, int ty, int tx) {
    constexpr int STRIDE = TILE_STRIDE<float, D>;
#pragma unroll 4
    for (int d = 0; d < D; d += 4) {
        float4 left[I], right[J];
#pragma unroll
        for (int i = 0; i < I; i++) left[i] = *reinterpret_cast<const float4 *>(a + (ty + 16 * i) * STRIDE + d);
#pragma unroll
        for (int j = 0; j < J; j++) right[j] = *reinterpret_cast<const float4 *>(b + (tx + 16 * j) * STRIDE + d);
#pragma unroll
        for (int i = 0; i < I; i++)
#pragma unroll
            for (int j = 0; j < J; j++) {
                s[i][j] = fmaf(left[i].x, right[j].x, s[i][j]);
                s[i][j] = fmaf(left[i].y, right[j].y, s[i][j]);
                s[i][j] = fmaf(left[i].z, right[j].z, s[i][j]);
                s[i][j] = fmaf(left[i].w, right[j].w, s[i][j]);
            }
    }
}

// sum[i][j] += weights[ty + 16 i][n] * tile[n][4 tx + 64 j ..+4), n < N. A row of weights is written and
// read by the same half warp.
template <int D, int I, int N>
__device__ __forceinline__ void weighted_sum(float4 (&sum)[I][D / 64], const float *weights, const float *tile, int ty, int tx) {
    constexpr int STRIDE = TILE_STRIDE<float, D>, W_STRIDE = TILE_STRIDE<float, N>;
#pragma unroll 2
    for (int n = 0; n < N; n += 4) {
        float w[I][4];
#pragma unroll
        for (int i = 0; i < I; i++) {
            const float4 four = *reinterpret_cast<const float4 *>(weights + (ty + 16 * i) * W_STRIDE + n);
            w[i][0] = four.x, w[i][1] = four.y, w[i][2] = four.z, w[i][3] = four.w;
        }
#pragma unroll
        for (int u = 0; u < 4; u++)
#pragma unroll
            for (int j = 0; j < D / 64; j++) {
                const float4 v = *reinterpret_cast<const float4 *>(tile + (n + u) * STRIDE + 4 * tx + 64 * j);
#pragma unroll
                for (int i = 0; i < I; i++) {
                    sum[i][j].x = fmaf(w[i][u], v.x, sum[i][j].x);
                    sum[i][j].y = fmaf(w[i][u], v.y, sum[i][j].y);
                    sum[i][j].z = fmaf(w[i][u], v.z, sum[i][j].z);
                    sum[i][j].w = fmaf(w[i][u], v.w, sum[i][j].w);
                }
            }
    }
}

template <int D, int I>
__device__ __forceinline__ void store_sum(const HeadRows<float> &to, const float4 (&sum)[I][D / 64], const float (&factor)[I], int first, int T, int HS,
                                          int ty, int tx) {
#pragma unroll
    for (int i = 0; i < I; i++) {
        const int row = first + ty + 16 * i;
        if (row >= T) continue;
#pragma unroll
        for (int j = 0; j < D / 64; j++) {
            const int d = 4 * tx + 64 * j;
            const float values[4] = {sum[i][j].x, sum[i][j].y, sum[i][j].z, sum[i][j].w};
#pragma unroll
            for (int u = 0; u < 4; u++)
                if (d + u < HS) to.row(row)[d + u] = values[u] * factor[i];
        }
    }
}

template <int D, int ROWS, int KEYS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    forward_kernel(float *out, float *lse, const float *qkv, int T, int NH, int HS, int heads, int tiles, float scale_log2, bool packed) {
    constexpr int I = ROWS / 16, J = KEYS / 16, STRIDE = TILE_STRIDE<float, D>, W_STRIDE = TILE_STRIDE<float, KEYS>;
    extern __shared__ __align__(16) unsigned char shared[];
    float *const q_tile = reinterpret_cast<float *>(shared), *const k_tile = q_tile + ROWS * STRIDE, *const v_tile = k_tile + KEYS * STRIDE,
                 *const weights = v_tile + KEYS * STRIDE;
    const TilePlace place(blockIdx.x, tiles, heads, true);
    const HeadRows<const float> q = head_rows(qkv, place.head, T, NH, HS, 3, 0), k = head_rows(qkv, place.head, T, NH, HS, 3, 1),
                                v = head_rows(qkv, place.head, T, NH, HS, 3, 2);
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, first = place.tile * ROWS;

    load_tile<float, D, ROWS, THREADS>(q_tile, q, first, T, HS, packed);
    float4 sum[I][D / 64] = {};
    float top[I], total[I] = {};
#pragma unroll
    for (int i = 0; i < I; i++) top[i] = -INFINITY;

    for (int key = 0; key < min(T, first + ROWS); key += KEYS) {
        load_tile<float, D, KEYS, THREADS>(k_tile, k, key, T, HS, packed);
        load_tile<float, D, KEYS, THREADS>(v_tile, v, key, T, HS, packed);
        copies_commit();
        copies_wait<0>();
        __syncthreads();
        float s[I][J] = {};
        score_product<D>(s, q_tile, k_tile, ty, tx);
#pragma unroll
        for (int i = 0; i < I; i++) {
            const int row = ty + 16 * i;
            float largest = -INFINITY;
#pragma unroll
            for (int j = 0; j < J; j++) {
                if (key + tx + 16 * j > first + row) s[i][j] = -INFINITY;
                largest = fmaxf(largest, s[i][j]);
            }
            for (int hop = 8; hop > 0; hop /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, hop));
            const float new_top = fmaxf(top[i], largest * scale_log2), shrink = exp2f(top[i] - new_top);
            top[i] = new_top;
            total[i] *= shrink;
#pragma unroll
            for (int j = 0; j < J; j++) {
                const float weight = exp2f(fmaf(s[i][j], scale_log2, -new_top));
                total[i] += weight;
                weights[row * W_STRIDE + tx + 16 * j] = weight;
            }
#pragma unroll
            for (int j = 0; j < D / 64; j++) sum[i][j].x *= shrink, sum[i][j].y *= shrink, sum[i][j].z *= shrink, sum[i][j].w *= shrink;
        }
        __syncwarp();
        weighted_sum<D, I, KEYS>(sum, weights, v_tile, ty, tx);
        __syncthreads();
    }
    float factor[I];
#pragma unroll
    for (int i = 0; i < I; i++) {
        for (int hop = 8; hop > 0; hop /= 2) total[i] += __shfl_xor_sync(0xffffffffu, total[i], hop);
        factor[i] = 1.0f / total[i];
        const int row = first + ty + 16 * i;
        if (tx == 0 && row < T) lse[int64_t(place.head) * T + row] = LN_2 * top[i] + logf(total[i]);
    }
    store_sum<D>(head_rows(out, place.head, T, NH, HS, 1, 0), sum, factor, first, T, HS, ty, tx);
}

// KEYS: the block owns key rows and streams queries, giving dk and dv; else it owns query rows and streams
// keys, giving dq. Own and streamed pairs are then (k, v) and (q, dout), or the other way round.
template <int D, int ROWS, int STREAM, bool KEYS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    backward_kernel(float *dqkv, const float *dout, const float *qkv, const float *lse, const float *delta, int T, int NH, int HS, int heads, int tiles,
                    float scale, bool packed) {
    constexpr int I = ROWS / 16, J = STREAM / 16, STRIDE = TILE_STRIDE<float, D>, W_STRIDE = TILE_STRIDE<float, STREAM>;
    extern __shared__ __align__(16) unsigned char shared[];
    float *const own_qk = reinterpret_cast<float *>(shared), *const own_v = own_qk + ROWS * STRIDE, *const stream_qk = own_v + ROWS * STRIDE,
                 *const stream_v = stream_qk + STREAM * STRIDE, *const ds_weights = stream_v + STREAM * STRIDE,
                 *const p_weights = ds_weights + ROWS * W_STRIDE;  // p_weights: for KEYS only
    const TilePlace place(blockIdx.x, tiles, heads, !KEYS);
    const HeadRows<const float> q = head_rows(qkv, place.head, T, NH, HS, 3, 0), k = head_rows(qkv, place.head, T, NH, HS, 3, 1),
                                v = head_rows(qkv, place.head, T, NH, HS, 3, 2), dout_rows = head_rows(dout, place.head, T, NH, HS, 1, 0);
    const float *const head_lse = lse + int64_t(place.head) * T, *const head_delta = delta + int64_t(place.head) * T;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16, first = place.tile * ROWS;

    load_tile<float, D, ROWS, THREADS>(own_qk, KEYS ? k : q, first, T, HS, packed);
    load_tile<float, D, ROWS, THREADS>(own_v, KEYS ? v : dout_rows, first, T, HS, packed);
    float4 sum_ds[I][D / 64] = {}, sum_p[KEYS ? I : 1][D / 64] = {};

    const int start = KEYS ? first / STREAM * STREAM : 0, end = KEYS ? T : min(T, first + ROWS);
    for (int other = start; other < end; other += STREAM) {
        load_tile<float, D, STREAM, THREADS>(stream_qk, KEYS ? q : k, other, T, HS, packed);
        load_tile<float, D, STREAM, THREADS>(stream_v, KEYS ? dout_rows : v, other, T, HS, packed);
        copies_commit();
        copies_wait<0>();
        __syncthreads();
        float s[I][J] = {}, dp[I][J] = {};
        score_product<D>(s, own_qk, stream_qk, ty, tx);
        score_product<D>(dp, own_v, stream_v, ty, tx);
#pragma unroll
        for (int i = 0; i < I; i++)
#pragma unroll
            for (int j = 0; j < J; j++) {
                const int row = ty + 16 * i, column = tx + 16 * j;
                const int query = KEYS ? other + column : first + row, key = KEYS ? first + row : other + column;
                float weight = 0.0f, ds = 0.0f;
                if (key <= query && query < T) {
                    weight = exp2f(LOG2_E * fmaf(s[i][j], scale, -head_lse[query]));
                    ds = weight * (dp[i][j] - head_delta[query]);
                }
                ds_weights[row * W_STRIDE + column] = ds;
                if (KEYS) p_weights[row * W_STRIDE + column] = weight;
            }
        __syncwarp();
        weighted_sum<D, I, STREAM>(sum_ds, ds_weights, stream_qk, ty, tx);
        if constexpr (KEYS) weighted_sum<D, I, STREAM>(sum_p, p_weights, stream_v, ty, tx);
        __syncthreads();
    }
    float scales[I], ones[I];
#pragma unroll
    for (int i = 0; i < I; i++) scales[i] = scale, ones[i] = 1.0f;
    store_sum<D>(head_rows(dqkv, place.head, T, NH, HS, 3, KEYS ? 1 : 0), sum_ds, scales, first, T, HS, ty, tx);
    if constexpr (KEYS) store_sum<D>(head_rows(dqkv, place.head, T, NH, HS, 3, 2), sum_p, ones, first, T, HS, ty, tx);
}

template <int D, int ROWS, int KEYS>
void launch_forward(cudaStream_t stream, int max_shared, float *out, float *lse, const float *qkv, int B, int T, int C, int NH) {
    const int HS = C / NH, tiles = int(ceil_div(T, ROWS)), heads = B * NH;
    const size_t floats = (ROWS + 2 * KEYS) * TILE_STRIDE<float, D> + ROWS * TILE_STRIDE<float, KEYS>;
    launch_tiles("attention forward (fp32)", forward_kernel<D, ROWS, KEYS, 2>, int64_t(tiles) * heads, THREADS, floats * sizeof(float), max_shared, stream,
                 out, lse, qkv, T, NH, HS, heads, tiles, LOG2_E / std::sqrt(float(HS)), can_pack<float>(HS, qkv));
}

template <int D, int ROWS, int STREAM>
void launch_backward(cudaStream_t stream, int max_shared, float *dqkv, const float *delta, const float *dout, const float *qkv, const float *lse, int B,
                     int T, int C, int NH) {
    const int HS = C / NH, tiles = int(ceil_div(T, ROWS)), heads = B * NH;
    const float scale = 1.0f / std::sqrt(float(HS));
    const bool packed = can_pack<float>(HS, dout, qkv);
    const size_t floats = (2 * ROWS + 2 * STREAM) * TILE_STRIDE<float, D> + ROWS * TILE_STRIDE<float, STREAM>;
    launch_tiles("attention backward (fp32 keys)", backward_kernel<D, ROWS, STREAM, true, 1>, int64_t(tiles) * heads, THREADS,
                 (floats + ROWS * TILE_STRIDE<float, STREAM>) * sizeof(float), max_shared, stream, dqkv, dout, qkv, lse, delta, T, NH, HS, heads, tiles,
                 scale, packed);
    launch_tiles("attention backward (fp32 queries)", backward_kernel<D, ROWS, STREAM, false, 2>, int64_t(tiles) * heads, THREADS, floats * sizeof(float),
                 max_shared, stream, dqkv, dout, qkv, lse, delta, T, NH, HS, heads, tiles, scale, packed);
}

}  // namespace

template <>
void flash_forward<float>(cudaStream_t stream, int max_shared, float *out, float *lse, const float *qkv, int B, int T, int C, int NH) {
    const int HS = C / NH;
    if (HS <= 64) launch_forward<64, 64, 32>(stream, max_shared, out, lse, qkv, B, T, C, NH);
    else if (HS <= 128) launch_forward<128, 32, 32>(stream, max_shared, out, lse, qkv, B, T, C, NH);
    else launch_forward<256, 16, 16>(stream, max_shared, out, lse, qkv, B, T, C, NH);
}

template <>
void flash_backward<float>(cudaStream_t stream, int max_shared, float *dqkv, float *scratch, const float *dout, const float *qkv, const float *out,
                           const float *lse, int B, int T, int C, int NH) {
    const int HS = C / NH;
    attention_delta(stream, scratch, dout, out, B, T, C, NH);
    if (HS <= 64) launch_backward<64, 64, 32>(stream, max_shared, dqkv, scratch, dout, qkv, lse, B, T, C, NH);
    else if (HS <= 128) launch_backward<128, 32, 32>(stream, max_shared, dqkv, scratch, dout, qkv, lse, B, T, C, NH);
    else launch_backward<256, 16, 16>(stream, max_shared, dqkv, scratch, dout, qkv, lse, B, T, C, NH);
}

}  // namespace llmc
