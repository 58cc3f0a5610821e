// attention_flash.cu - own causal attention for bf16 on tensor cores (sm_80 and later): any T, head
// sizes up to 256, no scores in memory, no atomics, hence the same bits every time.
//   s = q k^T / sqrt(HS)   p = exp(s - lse)   out = p v            lse = log sum exp s, keys <= query
//   dv = p^T dout   dp = dout v^T   ds = p (dp - delta)   delta = sum_d dout out
//   dq = ds k / sqrt(HS)   dk = ds^T q / sqrt(HS)
// Forward: a block owns query rows, streams key tiles and keeps a running maximum and sum per row.
// Backward: one kernel owns key rows (dk, dv), one owns query rows (dq); both recompute p, so it costs 7
// products of B NH T^2 HS / 2 multiply-adds instead of 5, and needs no partial sums in memory.
// A warp owns 16 rows of its block and never exchanges values with another warp.
#include <cmath>

#include "attention_tile.cuh"

namespace llmc {
namespace {

// D: padded head size. WARPS*16 rows a block, STREAM rows a streamed tile (two tiles in flight).
template <int D, int WARPS, int KEYS, int BLOCKS>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    forward_kernel(bf16 *out, float *lse, const bf16 *qkv, int T, int NH, int HS, int heads, int tiles, float scale_log2, bool packed) {
    constexpr int ROWS = WARPS * 16, THREADS = WARPS * 32, STRIDE = TILE_STRIDE<bf16, D>;
    constexpr bool KEEP_Q = D <= 128;  // in registers for the whole loop
    extern __shared__ __align__(16) unsigned char shared[];
    bf16 *const q_tile = reinterpret_cast<bf16 *>(shared);
    bf16 *const k_tiles = q_tile + ROWS * STRIDE, *const v_tiles = k_tiles + 2 * KEYS * STRIDE;

    const TilePlace place(blockIdx.x, tiles, heads, true);
    const HeadRows<const bf16> q = head_rows(qkv, place.head, T, NH, HS, 3, 0), k = head_rows(qkv, place.head, T, NH, HS, 3, 1),
                               v = head_rows(qkv, place.head, T, NH, HS, 3, 2);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int block_row = place.tile * ROWS, first = block_row + warp * 16;  // this warp's queries are first .. first+15
    const int key_tiles = (min(T, block_row + ROWS) - 1) / KEYS + 1;

    load_tile<bf16, D, ROWS, THREADS>(q_tile, q, block_row, T, HS, packed);
    load_tile<bf16, D, KEYS, THREADS>(k_tiles, k, 0, T, HS, packed);
    load_tile<bf16, D, KEYS, THREADS>(v_tiles, v, 0, T, HS, packed);
    copies_commit();

    uint32_t q_kept[KEEP_Q ? D / 16 : 1][4];
    float sum[D / 8][4] = {};
    float top[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};  // of rows g and g+8; total: this thread's columns

    for (int j = 0; j < key_tiles; j++) {
        const bf16 *const k_tile = k_tiles + j % 2 * KEYS * STRIDE, *const v_tile = v_tiles + j % 2 * KEYS * STRIDE;
        if (j + 1 < key_tiles) {
            load_tile<bf16, D, KEYS, THREADS>(k_tiles + (j + 1) % 2 * KEYS * STRIDE, k, (j + 1) * KEYS, T, HS, packed);
            load_tile<bf16, D, KEYS, THREADS>(v_tiles + (j + 1) % 2 * KEYS * STRIDE, v, (j + 1) * KEYS, T, HS, packed);
        }
        copies_commit();
        copies_wait<1>();  // all but the tile just asked for
        __syncthreads();
        if (KEEP_Q && j == 0) {
#pragma unroll
            for (int d = 0; d < D / 16; d++) load_left<D>(q_kept[KEEP_Q ? d : 0], q_tile, warp * 16, d * 16, lane);
        }
        const int key = j * KEYS;
        if (key <= first + 15) {
            float s[KEYS / 8][4] = {};
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
                if (!KEEP_Q) load_left<D>(q_kept[0], q_tile, warp * 16, d * 16, lane);
#pragma unroll
                for (int n = 0; n < KEYS / 16; n++) {
                    uint32_t b[4];
                    load_right_transposed<D>(b, k_tile, n * 16, d * 16, lane);
                    multiply_add(s[2 * n], q_kept[KEEP_Q ? d : 0], b[0], b[1]);
                    multiply_add(s[2 * n + 1], q_kept[KEEP_Q ? d : 0], b[2], b[3]);
                }
            }
            if (key + KEYS - 1 > first) {
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        if (key + n * 8 + 2 * t + e % 2 > first + g + e / 2 * 8) s[n][e] = -INFINITY;
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float largest = -INFINITY;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++) largest = fmaxf(largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
                largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));  // the row's four threads
                largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
                const float new_top = fmaxf(top[half], largest * scale_log2), shrink = exp2_fast(top[half] - new_top);
                top[half] = new_top;
                float row_sum = 0.0f;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++) {
                        s[n][e] = exp2_fast(fmaf(s[n][e], scale_log2, -new_top));
                        row_sum += s[n][e];
                    }
                total[half] = total[half] * shrink + row_sum;
#pragma unroll
                for (int n = 0; n < D / 8; n++) sum[n][2 * half] *= shrink, sum[n][2 * half + 1] *= shrink;
            }
#pragma unroll
            for (int n = 0; n < KEYS / 16; n++) {
                uint32_t p[4];
                pack_left(p, s[2 * n], s[2 * n + 1]);
#pragma unroll
                for (int d = 0; d < D / 16; d++) {
                    uint32_t b[4];
                    load_right<D>(b, v_tile, n * 16, d * 16, lane);
                    multiply_add(sum[2 * d], p, b[0], b[1]);
                    multiply_add(sum[2 * d + 1], p, b[2], b[3]);
                }
            }
        }
        __syncthreads();  // the next round overwrites this tile
    }

    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        total[half] += __shfl_xor_sync(0xffffffffu, total[half], 1);
        total[half] += __shfl_xor_sync(0xffffffffu, total[half], 2);
        inverse[half] = 1.0f / total[half];
        const int row = first + g + 8 * half;
        if (t == 0 && row < T) lse[int64_t(place.head) * T + row] = LN_2 * top[half] + logf(total[half]);
    }
    store_product(head_rows(out, place.head, T, NH, HS, 1, 0), sum, inverse[0], inverse[1], first, 0, T, HS, packed, lane);
}

// dk and dv of a block's keys. Everything is computed transposed (rows are keys) so that p^T and ds^T come
// out of one product in the layout that the next one wants. DA: columns accumulated by a block; head size
// 256 takes two blocks, because dk and dv of 16 rows would fill the register file.
template <int D, int DA, int WARPS, int STREAM, int STEP, int BLOCKS>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    backward_keys_kernel(bf16 *dqkv, const bf16 *dout, const bf16 *qkv, const float *lse, const float *delta, int T, int NH, int HS, int heads,
                         int tiles, float scale, bool packed) {
    constexpr int ROWS = WARPS * 16, THREADS = WARPS * 32, STRIDE = TILE_STRIDE<bf16, D>, SLICES = D / DA;
    extern __shared__ __align__(16) unsigned char shared[];
    bf16 *const k_tile = reinterpret_cast<bf16 *>(shared), *const v_tile = k_tile + ROWS * STRIDE;
    bf16 *const q_tiles = v_tile + ROWS * STRIDE, *const dout_tiles = q_tiles + 2 * STREAM * STRIDE;
    float *const lse_tiles = reinterpret_cast<float *>(dout_tiles + 2 * STREAM * STRIDE), *const delta_tiles = lse_tiles + 2 * STREAM;

    const TilePlace place(blockIdx.x / SLICES, tiles, heads, false);
    const int slice = blockIdx.x % SLICES * DA;
    const HeadRows<const bf16> q = head_rows(qkv, place.head, T, NH, HS, 3, 0), k = head_rows(qkv, place.head, T, NH, HS, 3, 1),
                               v = head_rows(qkv, place.head, T, NH, HS, 3, 2), dout_rows = head_rows(dout, place.head, T, NH, HS, 1, 0);
    const float *const head_lse = lse + int64_t(place.head) * T, *const head_delta = delta + int64_t(place.head) * T;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int block_row = place.tile * ROWS, first = block_row + warp * 16;
    const float scale_log2 = scale * LOG2_E;

    const auto stream = [&](int j) {
        const int at = j % 2 * STREAM;
        load_tile<bf16, D, STREAM, THREADS>(q_tiles + at * STRIDE, q, j * STREAM, T, HS, packed);
        load_tile<bf16, D, STREAM, THREADS>(dout_tiles + at * STRIDE, dout_rows, j * STREAM, T, HS, packed);
        load_statistic<STREAM, THREADS>(lse_tiles + at, head_lse, j * STREAM, T);
        load_statistic<STREAM, THREADS>(delta_tiles + at, head_delta, j * STREAM, T);
    };
    const int start = block_row / STREAM, end = (T - 1) / STREAM + 1;  // the query tiles that see these keys
    load_tile<bf16, D, ROWS, THREADS>(k_tile, k, block_row, T, HS, packed);
    load_tile<bf16, D, ROWS, THREADS>(v_tile, v, block_row, T, HS, packed);
    stream(start);
    copies_commit();

    float dk[DA / 8][4] = {}, dv[DA / 8][4] = {};
    for (int j = start; j < end; j++) {
        if (j + 1 < end) stream(j + 1);
        copies_commit();
        copies_wait<1>();
        __syncthreads();
        const bf16 *const q_tile = q_tiles + j % 2 * STREAM * STRIDE, *const dout_tile = dout_tiles + j % 2 * STREAM * STRIDE;
#pragma unroll 1
        for (int step = 0; step < STREAM; step += STEP) {
            const int query = j * STREAM + step;
            if (query + STEP - 1 < first || query >= T) continue;  // all of them before these keys, or padding
            float p[STEP / 8][4] = {}, ds[STEP / 8][4] = {};
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
                uint32_t key_part[4], value_part[4];
                load_left<D>(key_part, k_tile, warp * 16, d * 16, lane);
                load_left<D>(value_part, v_tile, warp * 16, d * 16, lane);
#pragma unroll
                for (int n = 0; n < STEP / 16; n++) {
                    uint32_t b[4];
                    load_right_transposed<D>(b, q_tile, step + n * 16, d * 16, lane);
                    multiply_add(p[2 * n], key_part, b[0], b[1]);
                    multiply_add(p[2 * n + 1], key_part, b[2], b[3]);
                    load_right_transposed<D>(b, dout_tile, step + n * 16, d * 16, lane);
                    multiply_add(ds[2 * n], value_part, b[0], b[1]);
                    multiply_add(ds[2 * n + 1], value_part, b[2], b[3]);
                }
            }
            // so far p holds k q^T and ds holds v dout^T; rows are keys, columns queries
            const bool diagonal = query < first + 15;
#pragma unroll
            for (int n = 0; n < STEP / 8; n++) {
                const int column = step + n * 8 + 2 * t, at = j % 2 * STREAM + column;
                const float2 row_lse = *reinterpret_cast<const float2 *>(lse_tiles + at), row_delta = *reinterpret_cast<const float2 *>(delta_tiles + at);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float weight = exp2_fast(fmaf(p[n][e], scale_log2, -LOG2_E * (e % 2 ? row_lse.y : row_lse.x)));
                    if (diagonal && first + g + e / 2 * 8 > j * STREAM + column + e % 2) weight = 0.0f;
                    p[n][e] = weight;
                    ds[n][e] = weight * (ds[n][e] - (e % 2 ? row_delta.y : row_delta.x));
                }
            }
#pragma unroll
            for (int n = 0; n < STEP / 16; n++) {
                uint32_t p_part[4], ds_part[4];
                pack_left(p_part, p[2 * n], p[2 * n + 1]);
                pack_left(ds_part, ds[2 * n], ds[2 * n + 1]);
#pragma unroll
                for (int d = 0; d < DA / 16; d++) {
                    uint32_t b[4];
                    load_right<D>(b, dout_tile, step + n * 16, slice + d * 16, lane);
                    multiply_add(dv[2 * d], p_part, b[0], b[1]);
                    multiply_add(dv[2 * d + 1], p_part, b[2], b[3]);
                    load_right<D>(b, q_tile, step + n * 16, slice + d * 16, lane);
                    multiply_add(dk[2 * d], ds_part, b[0], b[1]);
                    multiply_add(dk[2 * d + 1], ds_part, b[2], b[3]);
                }
            }
        }
        __syncthreads();
    }
    store_product(head_rows(dqkv, place.head, T, NH, HS, 3, 1), dk, scale, scale, first, slice, T, HS, packed, lane);
    store_product(head_rows(dqkv, place.head, T, NH, HS, 3, 2), dv, 1.0f, 1.0f, first, slice, T, HS, packed, lane);
}

// dq of a block's queries
template <int D, int WARPS, int STREAM, int STEP, int BLOCKS>
__global__ void __launch_bounds__(WARPS * 32, BLOCKS)
    backward_queries_kernel(bf16 *dqkv, const bf16 *dout, const bf16 *qkv, const float *lse, const float *delta, int T, int NH, int HS, int heads,
                            int tiles, float scale, bool packed) {
    constexpr int ROWS = WARPS * 16, THREADS = WARPS * 32, STRIDE = TILE_STRIDE<bf16, D>;
    extern __shared__ __align__(16) unsigned char shared[];
    bf16 *const q_tile = reinterpret_cast<bf16 *>(shared), *const dout_tile = q_tile + ROWS * STRIDE;
    bf16 *const k_tiles = dout_tile + ROWS * STRIDE, *const v_tiles = k_tiles + 2 * STREAM * STRIDE;

    const TilePlace place(blockIdx.x, tiles, heads, true);
    const HeadRows<const bf16> q = head_rows(qkv, place.head, T, NH, HS, 3, 0), k = head_rows(qkv, place.head, T, NH, HS, 3, 1),
                               v = head_rows(qkv, place.head, T, NH, HS, 3, 2), dout_rows = head_rows(dout, place.head, T, NH, HS, 1, 0);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int block_row = place.tile * ROWS, first = block_row + warp * 16;
    const int key_tiles = (min(T, block_row + ROWS) - 1) / STREAM + 1;
    const float scale_log2 = scale * LOG2_E;

    load_tile<bf16, D, ROWS, THREADS>(q_tile, q, block_row, T, HS, packed);
    load_tile<bf16, D, ROWS, THREADS>(dout_tile, dout_rows, block_row, T, HS, packed);
    load_tile<bf16, D, STREAM, THREADS>(k_tiles, k, 0, T, HS, packed);
    load_tile<bf16, D, STREAM, THREADS>(v_tiles, v, 0, T, HS, packed);
    copies_commit();

    float lse2[2], row_delta[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = first + g + 8 * half;
        lse2[half] = row < T ? LOG2_E * lse[int64_t(place.head) * T + row] : 0.0f;
        row_delta[half] = row < T ? delta[int64_t(place.head) * T + row] : 0.0f;
    }
    float dq[D / 8][4] = {};
    for (int j = 0; j < key_tiles; j++) {
        if (j + 1 < key_tiles) {
            load_tile<bf16, D, STREAM, THREADS>(k_tiles + (j + 1) % 2 * STREAM * STRIDE, k, (j + 1) * STREAM, T, HS, packed);
            load_tile<bf16, D, STREAM, THREADS>(v_tiles + (j + 1) % 2 * STREAM * STRIDE, v, (j + 1) * STREAM, T, HS, packed);
        }
        copies_commit();
        copies_wait<1>();
        __syncthreads();
        const bf16 *const k_tile = k_tiles + j % 2 * STREAM * STRIDE, *const v_tile = v_tiles + j % 2 * STREAM * STRIDE;
#pragma unroll 1
        for (int step = 0; step < STREAM; step += STEP) {
            const int key = j * STREAM + step;
            if (key > first + 15) break;
            float p[STEP / 8][4] = {}, ds[STEP / 8][4] = {};
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
                uint32_t query_part[4], dout_part[4];
                load_left<D>(query_part, q_tile, warp * 16, d * 16, lane);
                load_left<D>(dout_part, dout_tile, warp * 16, d * 16, lane);
#pragma unroll
                for (int n = 0; n < STEP / 16; n++) {
                    uint32_t b[4];
                    load_right_transposed<D>(b, k_tile, step + n * 16, d * 16, lane);
                    multiply_add(p[2 * n], query_part, b[0], b[1]);
                    multiply_add(p[2 * n + 1], query_part, b[2], b[3]);
                    load_right_transposed<D>(b, v_tile, step + n * 16, d * 16, lane);
                    multiply_add(ds[2 * n], dout_part, b[0], b[1]);
                    multiply_add(ds[2 * n + 1], dout_part, b[2], b[3]);
                }
            }
            const bool diagonal = key + STEP - 1 > first;
#pragma unroll
            for (int n = 0; n < STEP / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float weight = exp2_fast(fmaf(p[n][e], scale_log2, -lse2[e / 2]));
                    if (diagonal && key + n * 8 + 2 * t + e % 2 > first + g + e / 2 * 8) weight = 0.0f;
                    ds[n][e] = weight * (ds[n][e] - row_delta[e / 2]);
                }
#pragma unroll
            for (int n = 0; n < STEP / 16; n++) {
                uint32_t ds_part[4];
                pack_left(ds_part, ds[2 * n], ds[2 * n + 1]);
#pragma unroll
                for (int d = 0; d < D / 16; d++) {
                    uint32_t b[4];
                    load_right<D>(b, k_tile, step + n * 16, d * 16, lane);
                    multiply_add(dq[2 * d], ds_part, b[0], b[1]);
                    multiply_add(dq[2 * d + 1], ds_part, b[2], b[3]);
                }
            }
        }
        __syncthreads();
    }
    store_product(head_rows(dqkv, place.head, T, NH, HS, 3, 0), dq, scale, scale, first, 0, T, HS, packed, lane);
}

// A head's sum by `lanes` neighbouring threads: with PACKED each reads 16 bytes and lanes = HS/size is a
// power of two, else lanes is 32 and they read one value at a time.
template <class X, bool PACKED>
__global__ void delta_kernel(float *delta, const X *dout, const X *out, int64_t count /*B*T*NH*/, int T, int NH, int HS, int lanes) {
    const int64_t index = (blockIdx.x * int64_t(blockDim.x) + threadIdx.x) / lanes;
    const int part = threadIdx.x % lanes;
    const int64_t at = min(index, count - 1) * HS;  // surplus threads repeat the last head and do not write
    float sum = 0.0f;
    if (PACKED) {
        const Pack<X> a = load_pack(dout + at + part * Pack<X>::size), b = load_pack(out + at + part * Pack<X>::size);
#pragma unroll
        for (int i = 0; i < Pack<X>::size; i++) sum += to_float(a.value[i]) * to_float(b.value[i]);
    } else {
        for (int d = part; d < HS; d += lanes) sum += to_float(dout[at + d]) * to_float(out[at + d]);
    }
    for (int hop = lanes / 2; hop > 0; hop /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, hop);
    if (part == 0 && index < count) {
        const int64_t row = index / NH, h = index % NH, b = row / T, t = row % T;
        delta[(b * NH + h) * T + t] = sum;
    }
}

template <int D, int WARPS, int KEYS, int BLOCKS>
void launch_forward(cudaStream_t stream, int max_shared, bf16 *out, float *lse, const bf16 *qkv, int B, int T, int C, int NH) {
    const int HS = C / NH, tiles = int(ceil_div(T, WARPS * 16)), heads = B * NH;
    const size_t bytes = (WARPS * 16 + 4 * KEYS) * TILE_STRIDE<bf16, D> * sizeof(bf16);
    launch_tiles("attention forward", forward_kernel<D, WARPS, KEYS, BLOCKS>, int64_t(tiles) * heads, WARPS * 32, bytes, max_shared, stream, out, lse, qkv, T,
                 NH, HS, heads, tiles, LOG2_E / std::sqrt(float(HS)), can_pack<bf16>(HS, out, qkv));
}

template <int D, int DA, int WARPS, int STREAM, int STEP, int BLOCKS>
void launch_backward(cudaStream_t stream, int max_shared, bf16 *dqkv, const float *delta, const bf16 *dout, const bf16 *qkv, const float *lse, int B,
                     int T, int C, int NH) {
    const int HS = C / NH, tiles = int(ceil_div(T, WARPS * 16)), heads = B * NH;
    const float scale = 1.0f / std::sqrt(float(HS));
    const bool packed = can_pack<bf16>(HS, dqkv, dout, qkv);
    const size_t bytes = (2 * WARPS * 16 + 4 * STREAM) * TILE_STRIDE<bf16, D> * sizeof(bf16);
    launch_tiles("attention backward (keys)", backward_keys_kernel<D, DA, WARPS, STREAM, STEP, BLOCKS>, int64_t(tiles) * heads * (D / DA), WARPS * 32,
                 bytes + 4 * STREAM * sizeof(float), max_shared, stream, dqkv, dout, qkv, lse, delta, T, NH, HS, heads, tiles, scale, packed);
    launch_tiles("attention backward (queries)", backward_queries_kernel<D, WARPS, STREAM, STEP, BLOCKS>, int64_t(tiles) * heads, WARPS * 32, bytes,
                 max_shared, stream, dqkv, dout, qkv, lse, delta, T, NH, HS, heads, tiles, scale, packed);
}

}  // namespace

template <class X>
void attention_delta(cudaStream_t stream, float *delta, const X *dout, const X *out, int B, int T, int C, int NH) {
    const int HS = C / NH, size = Pack<X>::size, threads = 256;
    const bool packed = can_pack<X>(HS, dout, out) && HS / size <= 32 && (HS / size & (HS / size - 1)) == 0;
    const int lanes = packed ? HS / size : 32;
    const int64_t count = int64_t(B) * T * NH, blocks = ceil_div(count * lanes, threads);
    if (blocks > 0x7fffffff) fail(LLMC_INVALID, "attention delta: %lld blocks; batch * heads * positions is too large", (long long)blocks);
    if (packed)
        delta_kernel<X, true><<<unsigned(blocks), threads, 0, stream>>>(delta, dout, out, count, T, NH, HS, lanes);
    else
        delta_kernel<X, false><<<unsigned(blocks), threads, 0, stream>>>(delta, dout, out, count, T, NH, HS, lanes);
    launch_check("attention delta");
}
template void attention_delta<float>(cudaStream_t, float *, const float *, const float *, int, int, int, int);
template void attention_delta<bf16>(cudaStream_t, float *, const bf16 *, const bf16 *, int, int, int, int);

template <>
void flash_forward<bf16>(cudaStream_t stream, int max_shared, bf16 *out, float *lse, const bf16 *qkv, int B, int T, int C, int NH) {
    const int HS = C / NH;
    if (HS <= 32) launch_forward<32, 8, 64, 2>(stream, max_shared, out, lse, qkv, B, T, C, NH);
    else if (HS <= 64) launch_forward<64, 4, 64, 3>(stream, max_shared, out, lse, qkv, B, T, C, NH);
    else if (HS <= 128) launch_forward<128, 4, 64, 2>(stream, max_shared, out, lse, qkv, B, T, C, NH);
    else launch_forward<256, 4, 32, 1>(stream, max_shared, out, lse, qkv, B, T, C, NH);
}

template <>
void flash_backward<bf16>(cudaStream_t stream, int max_shared, bf16 *dqkv, float *scratch, const bf16 *dout, const bf16 *qkv, const bf16 *out,
                          const float *lse, int B, int T, int C, int NH) {
    const int HS = C / NH;
    attention_delta(stream, scratch, dout, out, B, T, C, NH);
    if (HS <= 32) launch_backward<32, 32, 4, 64, 32, 3>(stream, max_shared, dqkv, scratch, dout, qkv, lse, B, T, C, NH);
    else if (HS <= 64) launch_backward<64, 64, 4, 64, 16, 3>(stream, max_shared, dqkv, scratch, dout, qkv, lse, B, T, C, NH);
    else if (HS <= 128) launch_backward<128, 128, 4, 32, 32, 2>(stream, max_shared, dqkv, scratch, dout, qkv, lse, B, T, C, NH);
    else launch_backward<256, 128, 2, 16, 16, 2>(stream, max_shared, dqkv, scratch, dout, qkv, lse, B, T, C, NH);
}

}  // namespace llmc
