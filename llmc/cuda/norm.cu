// norm.cu - norm_squared = sum of g^2 over all gradients, in one fixed order.
// Two stages: each block adds up its strided packs in fp32, one block adds the blocks up in double.
// The number of blocks depends on n and the device alone, so equal runs give equal bits.
// Bytes: n * sizeof(X), read once; the gradients are still wanted by AdamW, so they are not streamed.
#include <algorithm>

#include "lane.cuh"
#include "width.cuh"
#include "../ops.h"

namespace llmc {

namespace {

constexpr int MAX_BLOCKS = 2048, THREADS = 256, DEEP = 4;

template <class X, int W>
__global__ void __launch_bounds__(THREADS) add_squares(float *__restrict__ sums, const X *__restrict__ grads, int64_t n) {
    __shared__ float slots[32];
    const int64_t stride = int64_t(gridDim.x) * THREADS, first = int64_t(blockIdx.x) * THREADS + threadIdx.x, packs = n / W;
    float sum[DEEP] = {};
    int64_t at = first;
    for (; at + (DEEP - 1) * stride < packs; at += DEEP * stride) {
        Few<X, W> g[DEEP];
#pragma unroll
        for (int j = 0; j < DEEP; j++) g[j] = load<W>(grads + (at + j * stride) * W);
#pragma unroll
        for (int j = 0; j < DEEP; j++) {
            for (int i = 0; i < W; i++) sum[j] += g[j][i] * g[j][i];
        }
    }
    for (; at < packs; at += stride) {
        const Few<X, W> g = load<W>(grads + at * W);
        for (int i = 0; i < W; i++) sum[0] += g[i] * g[i];
    }
    if (packs * W + first < n) {  // the last n % W values
        const float g = to_float(grads[packs * W + first]);
        sum[0] += g * g;
    }
    const float total = block_sum((sum[0] + sum[1]) + (sum[2] + sum[3]), slots);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

__global__ void __launch_bounds__(THREADS) add_blocks(float *norm_squared, const float *__restrict__ sums, int blocks) {
    __shared__ double partial[THREADS];
    double sum = 0;
#pragma unroll
    for (int i = 0; i < MAX_BLOCKS / THREADS; i++) {
        const int at = i * THREADS + threadIdx.x;
        sum += at < blocks ? sums[at] : 0.0f;
    }
    partial[threadIdx.x] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (threadIdx.x == 0) *norm_squared = float(partial[0]);
}

}  // namespace

size_t global_norm_scratch_bytes() { return MAX_BLOCKS * sizeof(float); }

template <class X>
void global_norm_squared(Lane &lane, float *norm_squared, void *scratch, const X *grads, int64_t n) {
    if (n < 0) fail(LLMC_INVALID, "global_norm_squared: n %lld", (long long)n);
    if (n == 0) {
        cuda_check(cudaMemsetAsync(norm_squared, 0, sizeof(float), lane.stream), "global_norm_squared");
        return;
    }
    float *sums = static_cast<float *>(scratch);
    const bool wide = can_pack<X>(0, grads);
    const int64_t wanted = ceil_div(n, int64_t(wide ? Pack<X>::size : 1) * THREADS);
    const int blocks = int(std::min({wanted, int64_t(lane.sms) * 8, int64_t(MAX_BLOCKS)}));
    const auto kernel = wide ? add_squares<X, Pack<X>::size> : add_squares<X, 1>;
    kernel<<<blocks, THREADS, 0, lane.stream>>>(sums, grads, n);
    launch_check("add_squares");
    add_blocks<<<1, THREADS, 0, lane.stream>>>(norm_squared, sums, blocks);
    launch_check("add_blocks");
}

template void global_norm_squared<float>(Lane &, float *, void *, const float *, int64_t);
template void global_norm_squared<bf16>(Lane &, float *, void *, const bf16 *, int64_t);

}  // namespace llmc
