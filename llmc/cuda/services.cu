// services.cu - prefetch_l2: a hint that memory will be read soon; spin: a delay on the lane, for tests;
// widen, narrow: X to fp32 exactly, fp32 to X to nearest even. Bytes: widen and narrow (4 + sizeof(X)) n.
#include "lane.cuh"
#include "width.cuh"
#include "../ops.h"

namespace llmc {

namespace {

constexpr unsigned THREADS = 256;

// Few and small blocks: the requests are fire and forget, so one warp keeps many in flight, and the
// multiprocessors stay with the kernels beside it. Hopper's copy engine takes kilobytes per request.
constexpr int PREFETCH_BLOCKS = 8, PREFETCH_THREADS = 32;
constexpr int64_t LINE = 128;

__global__ void ask_for(const char *begin, const char *end) {
    const int64_t thread = int64_t(blockIdx.x) * PREFETCH_THREADS + threadIdx.x, threads = int64_t(gridDim.x) * PREFETCH_THREADS;
    const char *rest = begin;
#if __CUDA_ARCH__ >= 900
    constexpr int64_t REQUEST = 4096;
    const int64_t requests = (end - begin) / REQUEST;
    for (int64_t i = thread; i < requests; i += threads) {
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(begin + i * REQUEST)), "r"(int(REQUEST)) : "memory");
    }
    rest += requests * REQUEST;
#endif
    for (const char *at = rest + thread * LINE; at < end; at += threads * LINE) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(at)));
    }
}

__device__ __forceinline__ uint64_t nanoseconds() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__global__ void wait_out(int64_t duration) {
    const uint64_t start = nanoseconds();
    while (int64_t(nanoseconds() - start) < duration) {}
}

template <int W, class To, class From>
__global__ void __launch_bounds__(THREADS) convert(To *__restrict__ out, const From *__restrict__ inp, int64_t n) {
    const int64_t stride = int64_t(gridDim.x) * THREADS, first = int64_t(blockIdx.x) * THREADS + threadIdx.x, packs = n / W;
    for (int64_t i = first; i < packs; i += stride) {
        const Few<From, W> from = load_once<W>(inp + i * W);
        float x[W];
        for (int k = 0; k < W; k++) x[k] = from[k];
        store_once<W>(out + i * W, round_few<To>(x));
    }
    if (packs * W + first < n) out[packs * W + first] = from_float<To>(to_float(inp[packs * W + first]));
}

template <class To, class From>
void launch_convert(Lane &lane, To *out, const From *inp, int64_t n, const char *op) {
    if (n < 0) fail(LLMC_INVALID, "%s: n %lld", op, (long long)n);
    if (n == 0) return;
    const bool wide = can_pack<float>(0, out, inp);
    const int64_t wanted = ceil_div(n, int64_t(THREADS) * (wide ? 4 : 1)), most = int64_t(1) << 20;
    const auto kernel = wide ? convert<4, To, From> : convert<1, To, From>;
    kernel<<<unsigned(wanted < most ? wanted : most), THREADS, 0, lane.stream>>>(out, inp, n);
    launch_check(op);
}

}  // namespace

void prefetch_l2(Lane &lane, const void *memory, size_t bytes) {
    if (bytes == 0 || memory == nullptr) return;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(memory), from = (begin + LINE - 1) / LINE * LINE;
    if (from >= begin + bytes) return;  // less than a line: not worth a launch
    ask_for<<<PREFETCH_BLOCKS, PREFETCH_THREADS, 0, lane.stream>>>(reinterpret_cast<const char *>(from), reinterpret_cast<const char *>(begin + bytes));
    launch_check("prefetch_l2");
}

void spin(Lane &lane, int microseconds) {
    if (microseconds <= 0) return;
    wait_out<<<1, 1, 0, lane.stream>>>(int64_t(microseconds) * 1000);
    launch_check("spin");
}

template <class X>
void widen(Lane &lane, float *out, const X *inp, int64_t n) { launch_convert(lane, out, inp, n, "widen"); }
template <class X>
void narrow(Lane &lane, X *out, const float *inp, int64_t n) { launch_convert(lane, out, inp, n, "narrow"); }

template void widen<float>(Lane &, float *, const float *, int64_t);
template void widen<bf16>(Lane &, float *, const bf16 *, int64_t);
template void narrow<float>(Lane &, float *, const float *, int64_t);
template void narrow<bf16>(Lane &, bf16 *, const float *, int64_t);

}  // namespace llmc
