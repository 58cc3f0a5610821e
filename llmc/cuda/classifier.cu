// classifier.cu - softmax, cross-entropy and its gradient in one visit to each row of logits.
//
// In base 2, y_v = x_v log2(e), m = max_v y_v, s = sum_v 2^(y_v - m):
//   loss        = -ln softmax(x)[target] = (log2(s) - (y_target - m)) ln 2
//   dlogits[v]  = (2^(y_v - m) / s - [v = target]) * dloss, written over x_v
// logits (rows,Vp) in X of which columns 0..V are touched, targets (rows), losses (rows) fp32; `=`;
// deterministic. NaN or +inf logits, an all -inf row and a target outside 0..V give a NaN loss.
//
// Bytes: rows * V * sizeof(X), read once and written once: 13.2 GB at 65536 rows of 50257 bf16, 3.1 ms
// at 4.27 TB/s. A second read from L2 would make 20 GB cross the L2's port, about as long as memory
// takes; so a block parks its row in shared memory between the two passes. A bf16 row of GPT-2 is
// 98 KiB: two blocks fit a Hopper SM, one reads while the other computes and writes. The special-
// function unit is the next limit: 2 V exponentials a row are 3.6 us, memory 6.2 us (SM's share).
// What does not fit (long fp32 rows) is read again. Every thread parks and fetches packs of its own,
// so that only the two reductions need a barrier. Rows go last to first: the matrix product before
// left the last ones in L2, the one after begins with the first.
#include <algorithm>

#include "../ops.h"
#include "approx.cuh"
#include "lane.cuh"
#include "pack.cuh"

namespace llmc {
namespace {

constexpr int MAX_THREADS = 1024;  // one block an SM
constexpr int PAIR_THREADS = 512;  // two blocks an SM
constexpr int UNROLL = 4;          // packs in flight a thread: 64 KiB an SM with 1024 threads
constexpr float LOWEST = -1e38f;   // a finite start: -inf - -inf would be NaN

// A running softmax denominator: sum of 2^(y - y_max) over what was seen, y_max = max log2(e).
struct Denominator {
    float max = LOWEST, y_max = LOWEST * LOG2_E, sum = 0;

    __device__ __forceinline__ void raise(float to) {
        if (to > max) {  // never for NaN, which reaches the sum instead
            const float y_to = to * LOG2_E;
            sum *= exp2_approx(y_max - y_to);
            max = to;
            y_max = y_to;
        }
    }
    // Parts of a row joined: all lanes of the warp end with the same three values.
    __device__ __forceinline__ void join_warp() {
        const float top = warp_max(max), y_top = top * LOG2_E;
        sum = warp_sum(sum * exp2_approx(y_max - y_top));
        max = top;
        y_max = y_top;
    }
};

// W values a step: Pack<X>::size, or 1 where rows are not 16-byte aligned.
template <class X, int W>
struct alignas(W == 1 ? sizeof(X) : 16) Few {
    X value[W];
};

template <class X, int W>
__device__ __forceinline__ Few<X, W> load_few(const X *at) {
    Few<X, W> few;
    if constexpr (W == 1) few.value[0] = *at;
    else *reinterpret_cast<int4 *>(&few) = __ldcs(reinterpret_cast<const int4 *>(at));
    return few;
}

template <class X, int W>
__device__ __forceinline__ void include(Denominator &d, const Few<X, W> &few) {
    float x[W];
#pragma unroll
    for (int k = 0; k < W; k++) x[k] = to_float(few.value[k]);
    float top = x[0];
#pragma unroll
    for (int k = 1; k < W; k++) top = fmaxf(top, x[k]);
    d.raise(top);
#pragma unroll
    for (int k = 0; k < W; k++) d.sum += exp2_approx(fmaf(x[k], LOG2_E, -d.y_max));
}

// parked: how many Fews of the row fit the dynamic shared memory, which holds just these.
template <class X, int W>
__global__ void __launch_bounds__(MAX_THREADS, 1) classify_rows(float *losses, X *logits, const int *targets, float dloss, int V, int64_t Vp,
                                                             int parked, bool write_dlogits) {
    extern __shared__ int4 parking[];
    __shared__ float warp_maxima[32], warp_sums[32];
    Few<X, W> *const park = reinterpret_cast<Few<X, W> *>(parking);
    const int64_t n = int64_t(gridDim.x) - 1 - blockIdx.x;
    X *const row = logits + n * Vp;
    const int target = targets[n], fews = V / W, tail = fews * W + threadIdx.x;
    const int thread = threadIdx.x, threads = blockDim.x;

    // Both before the barrier, so before they are overwritten; early, so that the loop hides their latency.
    float x_target = NAN, x_tail = 0;
    if (tail < V) x_tail = to_float(row[tail]);
    if (thread == 0 && unsigned(target) < unsigned(V)) x_target = to_float(row[target]);

    Denominator d;
    int i = thread;
    for (; i + (UNROLL - 1) * threads < fews; i += UNROLL * threads) {
        Few<X, W> few[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) few[u] = load_few<X, W>(row + int64_t(i + u * threads) * W);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (i + u * threads < parked) park[i + u * threads] = few[u];
            include(d, few[u]);
        }
    }
    for (; i < fews; i += threads) {
        const Few<X, W> few = load_few<X, W>(row + int64_t(i) * W);
        if (i < parked) park[i] = few;
        include(d, few);
    }
    if (tail < V) {
        d.raise(x_tail);
        d.sum += exp2_approx(fmaf(x_tail, LOG2_E, -d.y_max));
    }

    d.join_warp();
    if (thread % 32 == 0) warp_maxima[thread / 32] = d.max, warp_sums[thread / 32] = d.sum;
    __syncthreads();
    const int warps = threads / 32, slot = thread % 32;
    d.max = slot < warps ? warp_maxima[slot] : LOWEST;
    d.y_max = d.max * LOG2_E;
    d.sum = slot < warps ? warp_sums[slot] : 0.0f;
    d.join_warp();

    if (thread == 0) losses[n] = (log2f(d.sum) - fmaf(x_target, LOG2_E, -d.y_max)) * LN_2;
    if (!write_dlogits) return;

    const float scale = dloss / d.sum;
    const int target_few = target / W;
    for (i = thread; i < fews; i += threads) {
        Few<X, W> few = i < parked ? park[i] : load_few<X, W>(row + int64_t(i) * W);
        float g[W];
#pragma unroll
        for (int k = 0; k < W; k++) g[k] = scale * exp2_approx(fmaf(to_float(few.value[k]), LOG2_E, -d.y_max));
        if (i == target_few) {
#pragma unroll
            for (int k = 0; k < W; k++) g[k] -= i * W + k == target ? dloss : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < W; k++) few.value[k] = from_float<X>(g[k]);
        *reinterpret_cast<Few<X, W> *>(row + int64_t(i) * W) = few;
    }
    if (tail < V) {
        const float g = scale * exp2_approx(fmaf(x_tail, LOG2_E, -d.y_max));
        row[tail] = from_float<X>(tail == target ? g - dloss : g);
    }
}

// Shared memory a block may park a row in: half an SM's where the row fits that, else all of it.
// The rest of a block's need: 256 bytes of its own and 1 KiB that the driver keeps.
struct Fit {
    int threads, parked;
    size_t bytes;
};
Fit fit(const Lane &lane, int fews, size_t few_bytes, bool write_dlogits) {
    const size_t own = 256, kept = 1024, row = fews * few_bytes;
    const size_t whole = size_t(lane.max_shared) > own ? size_t(lane.max_shared) - own : 0;
    const size_t half = (size_t(lane.max_shared) + kept) / 2 > own + kept ? (size_t(lane.max_shared) + kept) / 2 - own - kept : 0;
    const bool pair = !write_dlogits || row <= half;
    const int useful = int(std::min<int64_t>(ceil_div(std::max(fews, 1), 32) * 32, MAX_THREADS));
    const size_t bytes = write_dlogits ? std::min(row, pair ? half : whole) / few_bytes * few_bytes : 0;
    return {std::min(useful, pair ? PAIR_THREADS : MAX_THREADS), int(bytes / few_bytes), bytes};
}

template <class X, int W>
void launch(Lane &lane, float *losses, X *logits, const int *targets, float dloss, int rows, int V, int Vp, bool write_dlogits) {
    const Fit f = fit(lane, V / W, W * sizeof(X), write_dlogits);
    const auto kernel = classify_rows<X, W>;
    if (f.bytes > 0) {
        cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(f.bytes)), "classifier: shared memory");
        cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared), "classifier: carveout");
    }
    kernel<<<unsigned(rows), f.threads, f.bytes, lane.stream>>>(losses, logits, targets, dloss, V, Vp, f.parked, write_dlogits);
    launch_check("classifier");
}

// One block, one order: thread i adds losses i, i + 1024, ... in double, then warps, then the block.
__global__ void __launch_bounds__(MAX_THREADS) mean_in_order(float *mean_loss, const float *losses, float scale, int N, bool add) {
    __shared__ double warp_sums[32];
    double sum[4] = {};  // four chains: additions of one would wait for each other
    int64_t i = threadIdx.x;
    for (; i + 3 * MAX_THREADS < N; i += 4 * MAX_THREADS)
#pragma unroll
        for (int u = 0; u < 4; u++) sum[u] += losses[i + u * MAX_THREADS];
    for (; i < N; i += MAX_THREADS) sum[0] += losses[i];

    double total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (int hop = 16; hop > 0; hop /= 2) total += __shfl_xor_sync(0xffffffffu, total, hop);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    total = warp_sums[threadIdx.x];
    for (int hop = 16; hop > 0; hop /= 2) total += __shfl_xor_sync(0xffffffffu, total, hop);
    if (threadIdx.x == 0) *mean_loss = float((add ? *mean_loss : 0.0) + scale * total);
}

}  // namespace

template <class X>
void classifier(Lane &lane, float *losses, X *logits, const int *targets, float dloss, int rows, int V, int Vp, bool write_dlogits) {
    if (rows < 0 || V < 1 || Vp < V) fail(LLMC_INVALID, "classifier: rows %d, V %d, Vp %d, expected rows >= 0 and 1 <= V <= Vp", rows, V, Vp);
    if (rows == 0) return;
    if (can_pack<X>(Vp, logits)) launch<X, Pack<X>::size>(lane, losses, logits, targets, dloss, rows, V, Vp, write_dlogits);
    else launch<X, 1>(lane, losses, logits, targets, dloss, rows, V, Vp, write_dlogits);
}

void mean_loss(Lane &lane, float *mean_loss, const float *losses, float scale, int N, Into into) {
    if (N < 0) fail(LLMC_INVALID, "mean_loss: N is %d, expected >= 0", N);
    if (N == 0 && into == Into::ADD) return;
    mean_in_order<<<1, MAX_THREADS, 0, lane.stream>>>(mean_loss, losses, scale, N, into == Into::ADD);
    launch_check("mean_loss");
}

template void classifier(Lane &, float *, float *, const int *, float, int, int, int, bool);
template void classifier(Lane &, float *, bf16 *, const int *, float, int, int, int, bool);

}  // namespace llmc
