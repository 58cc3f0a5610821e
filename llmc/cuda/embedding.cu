// embedding.cu - out[b,t] = wte[tokens[b,t]] + wpe[first + t], and its gradient.
//   dwte[v] += sum over n with tokens[n] = v of dout[n];   dwpe[t] (+)= sum over b of dout[b,t]
// The backward walks positions sorted by token (embedding_index.cu), so equal tokens are neighbours and
// each table row has one writer: no atomics, one order, fp32 sums rounded once.
// Bytes, bf16: forward writes 2NC and reads at most as much; backward reads dout twice (4NC) and reads
// and writes the touched rows of dwte.
#include "embedding_index.cuh"
#include "lane.cuh"
#include "width.cuh"
#include "../ops.h"

namespace llmc {

namespace {

constexpr int WARPS = 8;

// A warp per position and 32*W channels.
template <class X, int W>
__global__ void __launch_bounds__(WARPS * 32) look_up(X *__restrict__ out, const int *__restrict__ tokens, const X *__restrict__ wte,
                                                      const X *__restrict__ wpe, int N, int T, int C, const int *first) {
    const int n = blockIdx.x * WARPS + threadIdx.x / 32;
    const int c = (blockIdx.y * 32 + threadIdx.x % 32) * W;
    if (n >= N || c >= C) return;
    const Few<X, W> place = load<W>(wpe + int64_t((first ? *first : 0) + n % T) * C + c);
    const Few<X, W> word = load<W>(wte + int64_t(tokens[n]) * C + c);
    float sum[W];
    for (int i = 0; i < W; i++) sum[i] = word[i] + place[i];
    store<W>(out + int64_t(n) * C + c, round_few<X>(sum));
}

// A warp per sorted slot and 32*W channels. The warp whose slot starts a run sums the run; the others,
// and runs longer than SHORT_RUN, are not its business.
template <class X, int W>
__global__ void __launch_bounds__(WARPS * 32) sum_short_runs(X *__restrict__ dwte, const X *__restrict__ dout, TokenRuns runs, int64_t N, int C) {
    const int lane = threadIdx.x % 32;
    const int64_t slot = int64_t(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (slot >= N) return;
    const int token = runs.tokens[slot];
    if (slot > 0 && runs.tokens[slot - 1] == token) return;
    const bool inside = slot + lane < N;
    const int equal = __popc(__ballot_sync(0xffffffffu, inside && runs.tokens[slot + lane] == token));
    if (equal == SHORT_RUN && slot + SHORT_RUN < N && runs.tokens[slot + SHORT_RUN] == token) return;
    const int position = inside ? runs.positions[slot + lane] : 0;

    const int c = (blockIdx.y * 32 + lane) * W;
    const bool mine = c < C;
    X *row = dwte + int64_t(token) * C + c;
    Few<X, W> old = no_values<W, X>();
    if (mine) old = load<W>(row);  // early, so that its latency is hidden behind the sum
    float sum[W] = {};
    const auto at = [&](int64_t k) { return dout + int64_t(__shfl_sync(0xffffffffu, position, int(k))) * C + (mine ? c : 0); };
    int64_t k = 0;
    add_in_flight<4>(sum, k, equal, 1, at);
    add_in_flight<1>(sum, k, equal, 1, at);
    for (int i = 0; i < W; i++) sum[i] += old[i];
    if (mine) store<W>(row, round_few<X>(sum));
}

// A block per long run and tile of 4*W channels (64 bytes): 64 positions at a time, eight such groups in
// flight, so that even one token repeated N times keeps C/32 blocks busy at full width.
constexpr int TILE_LANES = 4;

template <class X, int W>
__global__ void __launch_bounds__(WARPS * 32, 4) sum_long_runs(X *__restrict__ dwte, const X *__restrict__ dout, TokenRuns runs, int C) {
    constexpr int GROUPS = WARPS * 32 / TILE_LANES, TILE = TILE_LANES * W;
    __shared__ float partial[WARPS][TILE];
    const int column = threadIdx.x % TILE_LANES, group = threadIdx.x / TILE_LANES;
    const int64_t tiles = (C + TILE - 1) / TILE, items = *runs.long_count * tiles;
    for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
        const int64_t start = runs.long_start[item / tiles], length = runs.long_length[item / tiles];
        const int *positions = runs.positions + start;
        const int c = int(item % tiles) * TILE + column * W;
        const bool mine = c < C;
        float sum[W] = {};
        const auto at = [&](int64_t k) { return dout + int64_t(positions[k]) * C + c; };
        int64_t k = mine ? group : length;
        add_in_flight<8>(sum, k, length, GROUPS, at);
        add_in_flight<2>(sum, k, length, GROUPS, at);
        add_in_flight<1>(sum, k, length, GROUPS, at);
        __syncthreads();  // the tile before has been read
        for (int i = 0; i < W; i++) {
            for (int hop = 16; hop >= TILE_LANES; hop /= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], hop);
            if (threadIdx.x % 32 < TILE_LANES) partial[threadIdx.x / 32][column * W + i] = sum[i];
        }
        __syncthreads();
        if (threadIdx.x < TILE && int(item % tiles) * TILE + int(threadIdx.x) < C) {
            float total = 0;
            for (int warp = 0; warp < WARPS; warp++) total += partial[warp][threadIdx.x];
            X *at = dwte + int64_t(runs.tokens[start]) * C + int(item % tiles) * TILE + threadIdx.x;
            *at = from_float<X>(to_float(*at) + total);
        }
    }
}

// W values of the flat (T,C) table per thread; blockDim.y threads share the B terms of each.
template <class X, int W>
__global__ void __launch_bounds__(WARPS * 32) sum_over_batch(X *__restrict__ dwpe, const X *__restrict__ dout, int B, int64_t used /*T*C*/,
                                                            int64_t all /*maxT*C, or used*/, bool add) {
    __shared__ float partial[WARPS * 32 * W];
    const int64_t at = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * W;
    float sum[W] = {};
    if (at < used) {
        const auto term = [&](int64_t b) { return dout + b * used + at; };
        int64_t b = threadIdx.y;
        add_in_flight<4>(sum, b, B, blockDim.y, term);
        add_in_flight<1>(sum, b, B, blockDim.y, term);
    }
    for (int i = 0; i < W; i++) partial[(threadIdx.y * W + i) * blockDim.x + threadIdx.x] = sum[i];
    __syncthreads();
    if (threadIdx.y != 0 || at >= all) return;
    for (int i = 0; i < W; i++) {
        for (int y = 1; y < int(blockDim.y); y++) sum[i] += partial[(y * W + i) * blockDim.x + threadIdx.x];
    }
    if (add) {
        const Few<X, W> old = load<W>(dwpe + at);
        for (int i = 0; i < W; i++) sum[i] += old[i];
    }
    store<W>(dwpe + at, round_few<X>(sum));
}

template <class X, int W>
void launch_backward(Lane &lane, X *dwte, X *dwpe, const X *dout, const TokenRuns &runs, int64_t N, int B, int T, int C, int maxT, bool add) {
    const dim3 slots(unsigned(ceil_div(N, WARPS)), unsigned(ceil_div(C, 32 * W)));
    sum_short_runs<X, W><<<slots, WARPS * 32, 0, lane.stream>>>(dwte, dout, runs, N, C);
    launch_check("sum_short_runs");
    if (const int64_t longest_list = max_long_runs(N); longest_list > 0) {
        const int64_t items = longest_list * ceil_div(C, TILE_LANES * W);
        const int64_t resident = int64_t(lane.sms) * 8;
        sum_long_runs<X, W><<<unsigned(items < resident ? items : resident), WARPS * 32, 0, lane.stream>>>(dwte, dout, runs, C);
        launch_check("sum_long_runs");
    }
    const int64_t used = int64_t(T) * C, all = add ? used : int64_t(maxT) * C;
    const dim3 block = B >= 16 ? dim3(32, WARPS) : dim3(WARPS * 32, 1);
    sum_over_batch<X, W><<<unsigned(ceil_div(all, int64_t(block.x) * W)), block, 0, lane.stream>>>(dwpe, dout, B, used, all, add);
    launch_check("sum_over_batch");
}

}  // namespace

template <class X>
void embedding_forward(Lane &lane, X *out, const int *tokens, const X *wte, const X *wpe, int B, int T, int C, const int *first) {
    const int64_t N = int64_t(B) * T;
    if (B < 0 || T < 0 || N > INT32_MAX || C < 1) fail(LLMC_INVALID, "embedding_forward: B %d, T %d, C %d", B, T, C);
    if (N == 0) return;
    const bool wide = can_pack<X>(C, out, wte, wpe);
    const dim3 blocks(unsigned(ceil_div(N, WARPS)), unsigned(ceil_div(C, 32 * (wide ? Pack<X>::size : 1))));
    const auto kernel = wide ? look_up<X, Pack<X>::size> : look_up<X, 1>;
    kernel<<<blocks, WARPS * 32, 0, lane.stream>>>(out, tokens, wte, wpe, int(N), T, C, first);
    launch_check("look_up");
}

template <class X>
void embedding_backward(Lane &lane, X *dwte, X *dwpe, const X *dout, const int * /*tokens: the index has them sorted*/, const void *index,
                        int B, int T, int C, int V, int maxT, Into into) {
    const int64_t N = int64_t(B) * T;
    if (B < 0 || T < 0 || N > INT32_MAX || C < 1 || V < 1 || maxT < T) {
        fail(LLMC_INVALID, "embedding_backward: B %d, T %d, C %d, V %d, maxT %d", B, T, C, V, maxT);
    }
    const bool add = into == Into::ADD;
    if (N == 0) {
        if (!add) cuda_check(cudaMemsetAsync(dwpe, 0, size_t(maxT) * C * sizeof(X), lane.stream), "embedding_backward");
        return;
    }
    const TokenRuns runs = token_runs(const_cast<void *>(index), N);
    if (can_pack<X>(C, dwte, dwpe, dout)) {
        launch_backward<X, Pack<X>::size>(lane, dwte, dwpe, dout, runs, N, B, T, C, maxT, add);
    } else {
        launch_backward<X, 1>(lane, dwte, dwpe, dout, runs, N, B, T, C, maxT, add);
    }
}

template void embedding_forward<float>(Lane &, float *, const int *, const float *, const float *, int, int, int, const int *);
template void embedding_forward<bf16>(Lane &, bf16 *, const int *, const bf16 *, const bf16 *, int, int, int, const int *);
template void embedding_backward<float>(Lane &, float *, float *, const float *, const int *, const void *, int, int, int, int, int, Into);
template void embedding_backward<bf16>(Lane &, bf16 *, bf16 *, const bf16 *, const int *, const void *, int, int, int, int, int, Into);

}  // namespace llmc
