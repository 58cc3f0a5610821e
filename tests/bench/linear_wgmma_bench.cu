// linear_wgmma_bench.cu - the products with GELU of linear_wgmma.cu on this GPU (capability 9.0): first that
// they are right, by index-revealing operands and against plain fp32 sums, at friendly and awkward shapes, then
// how fast, beside cuBLASLt's best. Exit status 1 when anything is wrong. About 15 s.
//
//   nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -DLLMC_CUDA -I. -o build/linear_wgmma_bench
//       tests/bench/linear_wgmma_bench.cu llmc/cuda/{column_sum,linear_plan}.cu -lcublasLt   (one line)
//   build/linear_wgmma_bench        with -DBARE: waits unwatched, and a look from the host for kernels that hang
#ifndef BARE
#define LLMC_WATCH_WAITS 40000000ll  // cycles: 20 ms
#endif
#include "llmc/cuda/linear_wgmma.cu"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "llmc/cuda/column_sum.h"
#include "llmc/cuda/linear_plan.h"

namespace llmc {
namespace {

constexpr size_t ARENA = size_t(12) << 30, GUARD = 8192;  // GUARD: elements past an output that must stay as they are
int failures = 0;

__device__ uint32_t mix(uint64_t i) {
    i = (i + 1) * 0x9e3779b97f4a7c15u;
    i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9u;
    return uint32_t((i ^ i >> 27) * 0x94d049bb133111ebu >> 32);
}
// Normally distributed. Code of an element for index maps: see Code.
__global__ void fill_normal(bf16 *to, int64_t n, float scale, uint64_t seed) {
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
        const float a = (mix(seed + 2 * i) + 1.0f) * 2.3283064e-10f, b = mix(seed + 2 * i + 1) * 2.3283064e-10f;
        to[i] = __float2bfloat16_rn(scale * sqrtf(-2.0f * logf(fminf(a, 1.0f))) * cospif(2.0f * b));
    }
}
enum Code { ROW, COLUMN_LOW, COLUMN_HIGH, UNIT_AT_ROW, UNIT_AT_COLUMN };
// matrix (rows,columns), or its transpose: row; column % 256; column / 256; or 1 where row % columns == column
// (UNIT_AT_ROW) or column % rows == row (UNIT_AT_COLUMN).
__global__ void fill_code(bf16 *to, int rows, int columns, bool transposed, Code code) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * columns; i += gridDim.x * blockDim.x) {
        const int r = i / columns, c = i % columns;
        const int value = code == ROW ? r : code == COLUMN_LOW ? c % 256 : code == COLUMN_HIGH ? c / 256 : code == UNIT_AT_ROW ? r % columns == c : c % rows == r;
        to[transposed ? c * rows + r : i] = __float2bfloat16_rn(float(value));
    }
}
__global__ void fill_constant(bf16 *to, int64_t n, float value) {
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) to[i] = __float2bfloat16_rn(value);
}
// product (rows,width) = left (rows,inner) right, right (inner,width) or, transposed, (width,inner)
__global__ void multiply_plainly(float *product, const bf16 *left, const bf16 *right, bool transposed, int rows, int width, int inner) {
    __shared__ float a[32][33], b[32][33];
    const int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 32 + y, column = blockIdx.x * 32 + x;
    float sum = 0;
    for (int k = 0; k < inner; k += 32) {
        a[y][x] = row < rows && k + x < inner ? __bfloat162float(left[int64_t(row) * inner + k + x]) : 0.0f;
        if (transposed) {
            const int c = blockIdx.x * 32 + y;
            b[x][y] = c < width && k + x < inner ? __bfloat162float(right[int64_t(c) * inner + k + x]) : 0.0f;
        } else b[y][x] = column < width && k + y < inner ? __bfloat162float(right[int64_t(k + y) * width + column]) : 0.0f;
        __syncthreads();
        for (int i = 0; i < 32; i++) sum += a[y][i] * b[i][x];
        __syncthreads();
    }
    if (row < rows && column < width) product[int64_t(row) * width + column] = sum;
}

struct Verdict {
    unsigned long long first, wrong;
    unsigned int largest, largest_relative;  // floats as bits
    unsigned int by_row[16], by_column[32];  // wrong ones by 8 rows of a tile, 8 columns of a tile
};
__device__ double gelu_exact(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }
__device__ double slope_exact(double x) {
    const double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}
__device__ void judge(Verdict *verdict, int64_t i, int width, float got, double expected, double allowed) {
    const float error = float(fabs(got - expected));
    const auto keep_larger = [](unsigned int &largest, float value) {
        if (__float_as_uint(value) > *const_cast<volatile unsigned int *>(&largest)) atomicMax(&largest, __float_as_uint(value));
    };
    keep_larger(verdict->largest, error);
    if (fabs(expected) > 0.01) keep_larger(verdict->largest_relative, float(error / fabs(expected)));
    if (error <= allowed) return;  // not a NaN
    atomicMin(&verdict->first, static_cast<unsigned long long>(i));
    atomicAdd(&verdict->wrong, 1ull);
    atomicAdd(&verdict->by_row[i / width % 128 / 8], 1u);
    atomicAdd(&verdict->by_column[i % width % 256 / 8], 1u);
}
// Rounded to bf16 twice: twice 2^-8 at most, and a bit.
__global__ void judge_backward(Verdict *verdict, const bf16 *dpre, const float *product, const bf16 *pre, int64_t n, int width) {
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
        const double slope = slope_exact(__bfloat162float(pre[i])), expected = product[i] * slope;
        judge(verdict, i, width, __bfloat162float(dpre[i]), expected, 0.0082 * fabs(expected) + 4e-5 * fabs(slope) + 1e-6);
    }
}
__global__ void judge_forward(Verdict *pre_verdict, Verdict *out_verdict, const bf16 *out, const bf16 *pre, const float *product, const bf16 *bias, int64_t n, int width) {
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
        const double expected = product[i] + (bias ? __bfloat162float(bias[i % width]) : 0.0f), after = gelu_exact(__bfloat162float(pre[i]));
        judge(pre_verdict, i, width, __bfloat162float(pre[i]), expected, 0.004 * fabs(expected) + 4e-5);
        judge(out_verdict, i, width, __bfloat162float(out[i]), after, 0.004 * fabs(after) + 1e-6);
    }
}
__global__ void judge_partials(Verdict *verdict, const float *partials, const bf16 *dpre, int rows, int width) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x, first = blockIdx.y * 128;
    if (column >= width) return;
    double sum = 0, size = 0;
    for (int r = first; r < min(first + 128, rows); r++) {
        const double value = __bfloat162float(dpre[int64_t(r) * width + column]);
        sum += value, size += fabs(value);
    }
    const int64_t i = int64_t(blockIdx.y) * width + column;
    judge(verdict, i, width, partials[i], sum, 3e-6 * size + 1e-12);
}
__global__ void count_different(unsigned long long *count, const uint16_t *a, const uint16_t *b, int64_t n) {
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x)
        if (a[i] != b[i]) atomicAdd(count, 1ull);
}
__global__ void count_touched(unsigned long long *count, const uint16_t *guard, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        if (guard[i] != 0xffff) atomicAdd(count, 1ull);
}

// The SM clock right after what ran before: 20 us of cycles.
__global__ void count_cycles(unsigned long long *cycles_and_ns) {
    const auto nanoseconds = [] {
        unsigned long long now;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        return now;
    };
    unsigned long long from = nanoseconds(), to;
    while (from == (to = nanoseconds())) {}  // the timer goes in steps
    const long long start = clock64();
    from = to;
    while ((to = nanoseconds()) - from < 20000) {}
    cycles_and_ns[0] = clock64() - start, cycles_and_ns[1] = to - from;
}

Lane lane;
char *arena;
unsigned long long *clock_counts;
cudaEvent_t from, to;

struct Bump {  // hands out the arena, 256 bytes aligned
    size_t used = 0;
    template <class T> T *take(size_t n) {
        T *const at = reinterpret_cast<T *>(arena + used);
        used += (n * sizeof(T) + 255) / 256 * 256;
        if (used > ARENA) fail(LLMC_NO_MEMORY, "bench: arena too small");
        return at;
    }
};

bool done(const char *what) {  // false: the kernel did not work at all
    cudaError_t status = cudaGetLastError();
    const auto start = std::chrono::steady_clock::now();
    while (status == cudaSuccess && (status = cudaStreamQuery(lane.stream)) == cudaErrorNotReady) {
        status = cudaSuccess;
        if (std::chrono::steady_clock::now() - start < std::chrono::seconds(10)) {
            std::this_thread::sleep_for(std::chrono::microseconds(20));
            continue;
        }
        std::printf("HANGS: %s\n", what);
        std::fflush(stdout);
        _exit(2);
    }
    if (status != cudaSuccess) {
        std::printf("FAILED %s: CUDA error %d (%s)\n", what, int(status), cudaGetErrorString(status));
        std::exit(1);
    }
#ifdef LLMC_WATCH_WAITS
    WaitWatch watch;
    cuda_check(cudaMemcpyFromSymbol(&watch, wait_watch, sizeof watch), "watch");
    if (!watch.stuck) return true;
    const char *const KINDS[] = {"ring slot filled", "ring slot emptied", "unit handed", "unit taken", "columns summed"};
    std::printf("STUCK %s: block %u thread %u (warp %u) waits for \"%s\" %u, parity %u\n", what, watch.block, watch.thread, watch.thread / 32, KINDS[watch.kind],
                watch.index, watch.parity);
    failures++;
    watch = {};
    cuda_check(cudaMemcpyToSymbol(wait_watch, &watch, sizeof watch), "watch");
    return false;
#else
    return true;
#endif
}

void backward(bf16 *dpre, float *partials, const bf16 *dout, const bf16 *w, const bf16 *pre, int N, int C, int OC) {
    launch<false>(lane, {dpre, const_cast<bf16 *>(pre), nullptr, partials, N, C, OC}, dout, w);
}
void forward(bf16 *out, bf16 *pre, const bf16 *inp, const bf16 *w, const bf16 *b, int N, int C, int OC) {
    launch<true>(lane, {out, pre, b, nullptr, N, OC, C}, inp, w);
}

// -- which element of an operand arrives where: one operand is a unit matrix, the other holds its own indices

template <bool FORWARD>
void map_test() {
    constexpr int R = 256, W = 512, K = 128;
    const char *const name = FORWARD ? "forward" : "backward";
    Bump bump;
    bf16 *const left = bump.take<bf16>(R * K), *const right = bump.take<bf16>(K * W), *const pre = bump.take<bf16>(R * W), *const out = bump.take<bf16>(R * W);
    std::vector<uint16_t> bits(R * W);
    const auto run = [&](std::vector<int> &values) {
        if constexpr (FORWARD) forward(out, pre, left, right, nullptr, R, K, W);
        else {
            fill_constant<<<64, 256, 0, lane.stream>>>(pre, R * W, 16.0f);  // slope 1
            backward(out, nullptr, left, right, pre, R, W, K);
        }
        if (!done(name)) return false;
        cuda_check(cudaMemcpy(bits.data(), FORWARD ? pre : out, bits.size() * 2, cudaMemcpyDeviceToHost), "copy");
        values.resize(bits.size());
        for (size_t i = 0; i < bits.size(); i++) values[i] = int(std::lround(widen_bf16(bits[i])));
        return true;
    };
    for (bool of_right : {false, true}) {
        bf16 *const unit = of_right ? left : right, *const coded = of_right ? right : left;
        if (of_right) fill_code<<<64, 256, 0, lane.stream>>>(unit, R, K, false, UNIT_AT_ROW);
        else fill_code<<<64, 256, 0, lane.stream>>>(unit, K, W, FORWARD, UNIT_AT_COLUMN);
        std::vector<int> row, low, high;
        const auto coded_run = [&](Code code, std::vector<int> &values) {
            if (of_right) fill_code<<<64, 256, 0, lane.stream>>>(coded, K, W, FORWARD, code);
            else fill_code<<<64, 256, 0, lane.stream>>>(coded, R, K, false, code);
            return run(values);
        };
        if (!coded_run(ROW, row) || !coded_run(COLUMN_LOW, low) || !coded_run(COLUMN_HIGH, high)) return;
        int wrong = 0;
        const int rows[] = {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 48, 63, 64, 65, 80, 96, 127, 128, 129, 192, 255};
        const int columns[] = {0, 1, 2, 7, 8, 9, 15, 16, 31, 32, 63, 64, 65, 72, 127, 128, 129, 191, 192, 255, 256, 320, 511};
        std::string lines;
        int shown = 0;
        for (int i = 0; i < R * W; i++) {
            const int r = i / W, c = i % W, want_row = of_right ? r % K : r, want_column = of_right ? c : c % K;
            const bool right_one = row[i] == want_row && low[i] + 256 * high[i] == want_column;
            wrong += !right_one;
            if (right_one || shown >= 40 || std::find(std::begin(rows), std::end(rows), r) == std::end(rows) ||
                std::find(std::begin(columns), std::end(columns), c) == std::end(columns))
                continue;
            char line[128];
            std::snprintf(line, sizeof line, "    [%3d][%3d] shows %s[%3d][%3d], not [%3d][%3d]\n", r, c, of_right ? "right" : "left", row[i], low[i] + 256 * high[i],
                          want_row, want_column);
            lines += line, shown++;
        }
        std::printf("%-8s map of %-5s  %s (%d of %d wrong)\n%s", name, of_right ? "right" : "left", wrong ? "WRONG" : "ok", wrong, R * W, lines.c_str());
        failures += wrong > 0;
    }
}

// -- random operands

bool report(const char *what, const Verdict *device, const void *got, int width, bool floats = false) {
    Verdict v;
    cuda_check(cudaMemcpy(&v, device, sizeof v, cudaMemcpyDeviceToHost), "verdict");
    float largest, relative;
    std::memcpy(&largest, &v.largest, 4), std::memcpy(&relative, &v.largest_relative, 4);
    std::printf("  %s abs %.2e rel %.2e%s", what, largest, relative, v.wrong ? "" : " ok");
    if (!v.wrong) return true;
    failures++;
    float value = 0;
    uint16_t bits = 0;
    if (floats) cuda_check(cudaMemcpy(&value, static_cast<const float *>(got) + v.first, 4, cudaMemcpyDeviceToHost), "copy");
    else cuda_check(cudaMemcpy(&bits, static_cast<const uint16_t *>(got) + v.first, 2, cudaMemcpyDeviceToHost), "copy"), value = widen_bf16(bits);
    std::printf(" WRONG %llu, first at [%llu][%llu]: got %g\n    by 8 rows of 128:", v.wrong, v.first / width, v.first % width, value);
    for (unsigned n : v.by_row) std::printf(" %u", n);
    std::printf("\n    by 8 columns of 256:");
    for (unsigned n : v.by_column) std::printf(" %u", n);
    std::printf("\n");
    return false;
}

unsigned long long read_count(unsigned long long *count) {
    unsigned long long n = 0;
    cuda_check(cudaMemcpy(&n, count, 8, cudaMemcpyDeviceToHost), "count");
    cuda_check(cudaMemset(count, 0, 8), "count");
    return n;
}

template <bool FORWARD>
void random_test(int N, int width, int inner) {
    if (!FORWARD && width % 64) return;  // not available
    Bump bump;
    const int64_t n = int64_t(N) * width;
    const int slices = wgmma_slices(N);
    bf16 *const left = bump.take<bf16>(size_t(N) * inner), *const right = bump.take<bf16>(size_t(inner) * width), *const bias = bump.take<bf16>(width);
    bf16 *const pre = bump.take<bf16>(n + GUARD), *const out = bump.take<bf16>(n + GUARD), *const again = bump.take<bf16>(n + GUARD), *const pre_again = bump.take<bf16>(n + GUARD);
    float *const product = bump.take<float>(n), *const partials = bump.take<float>(size_t(slices) * width + GUARD), *const sums = bump.take<float>(width);
    Verdict *const verdicts = bump.take<Verdict>(2);
    unsigned long long *const count = bump.take<unsigned long long>(1);
    fill_normal<<<1024, 256, 0, lane.stream>>>(left, int64_t(N) * inner, 1.0f, 1000 + N);
    fill_normal<<<1024, 256, 0, lane.stream>>>(right, int64_t(inner) * width, 0.7f / std::sqrt(float(inner)), uint64_t(1) << 40);
    fill_normal<<<8, 256, 0, lane.stream>>>(bias, width, 0.5f, uint64_t(1) << 41);
    cuda_check(cudaMemsetAsync(pre, 0xff, (char *)product - (char *)pre, lane.stream), "poison");
    cuda_check(cudaMemsetAsync(partials, 0xff, (size_t(slices) * width + GUARD) * 4, lane.stream), "poison");
    cuda_check(cudaMemsetAsync(count, 0, 8, lane.stream), "count");
    Verdict fresh[2] = {};
    fresh[0].first = fresh[1].first = ~0ull;
    cuda_check(cudaMemcpy(verdicts, fresh, sizeof fresh, cudaMemcpyHostToDevice), "verdicts");
    if (!FORWARD) fill_normal<<<1024, 256, 0, lane.stream>>>(pre, n, 1.5f, uint64_t(1) << 42);
    multiply_plainly<<<dim3((width + 31) / 32, (N + 31) / 32), dim3(32, 32), 0, lane.stream>>>(product, left, right, FORWARD, N, width, inner);
    if (!done("reference")) return;

    std::printf("%-8s N %-5d width %-5d inner %-5d", FORWARD ? "forward" : "backward", N, width, inner);
    if constexpr (FORWARD) {
        const bf16 *const b = inner == 72 ? nullptr : bias;
        forward(out, pre, left, right, b, N, inner, width);
        if (!done("forward")) return;
        judge_forward<<<1024, 256, 0, lane.stream>>>(verdicts, verdicts + 1, out, pre, product, b, n, width);
        done("judge");
        report("pre", verdicts, pre, width);
        report("out", verdicts + 1, out, width);
        forward(again, pre_again, left, right, b, N, inner, width);
        if (!done("forward again")) return;
        count_different<<<1024, 256, 0, lane.stream>>>(count, (const uint16_t *)pre, (const uint16_t *)pre_again, n);
    } else {
        backward(out, partials, left, right, pre, N, width, inner);
        if (!done("backward")) return;
        judge_backward<<<1024, 256, 0, lane.stream>>>(verdicts, out, product, pre, n, width);
        judge_partials<<<dim3((width + 127) / 128, slices), 128, 0, lane.stream>>>(verdicts + 1, partials, out, N, width);
        done("judge");
        report("dpre", verdicts, out, width);
        report("sums", verdicts + 1, partials, width, true);
        add_partials(lane, sums, partials, slices, width, Into::ASSIGN);
        done("add_partials");
        backward(again, nullptr, left, right, pre, N, width, inner);
        if (!done("backward again")) return;
        count_touched<<<1, 256, 0, lane.stream>>>(count, (const uint16_t *)(partials + size_t(slices) * width), int(GUARD) * 2);
    }
    if (const auto different = read_count(count)) std::printf("  WRONG: %llu %s", different, FORWARD ? "bits of pre differ in a second run" : "touched past partials"), failures++;
    count_different<<<1024, 256, 0, lane.stream>>>(count, (const uint16_t *)out, (const uint16_t *)again, n);
    if (const auto different = read_count(count)) std::printf("  WRONG: %llu differ in a second run", different), failures++;
    for (bf16 *output : {pre, out, again}) {
        count_touched<<<1, 256, 0, lane.stream>>>(count, (const uint16_t *)(output + n), int(GUARD));
        if (!FORWARD && output == pre) {
            read_count(count);
            continue;
        }
        if (const auto touched = read_count(count)) std::printf("  WRONG: %llu touched past the end", touched), failures++;
    }
    std::printf("\n");
}

void capture_test() {
    const int N = 640, W = 512, K = 192;
    Bump bump;
    bf16 *const left = bump.take<bf16>(N * K), *const right = bump.take<bf16>(K * W), *const pre = bump.take<bf16>(N * W), *const out = bump.take<bf16>(N * W), *const again = bump.take<bf16>(N * W);
    unsigned long long *const count = bump.take<unsigned long long>(1);
    fill_normal<<<64, 256, 0, lane.stream>>>(left, N * K, 1.0f, 1);
    fill_normal<<<64, 256, 0, lane.stream>>>(right, K * W, 0.05f, 2);
    fill_normal<<<64, 256, 0, lane.stream>>>(pre, N * W, 1.0f, 3);
    wgmma_gelu_backward(lane, out, nullptr, left, right, pre, N, W, K);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cuda_check(cudaStreamBeginCapture(lane.stream, cudaStreamCaptureModeThreadLocal), "capture");
    wgmma_gelu_backward(lane, again, nullptr, left, right, pre, N, W, K);
    cuda_check(cudaStreamEndCapture(lane.stream, &graph), "capture");
    cuda_check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    cuda_check(cudaMemsetAsync(count, 0, 8, lane.stream), "count");
    cuda_check(cudaGraphLaunch(exec, lane.stream), "graph");
    done("graph");
    count_different<<<64, 256, 0, lane.stream>>>(count, (const uint16_t *)out, (const uint16_t *)again, N * W);
    const auto different = read_count(count);
    failures += different > 0;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 200; i++) wgmma_gelu_backward(lane, again, nullptr, left, right, pre, N, W, K);
    const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / 200;
    done("host cost");
    std::printf("captured in a graph: %s. Host cost of a call: %.1f us. available: %d\n", different ? "WRONG" : "ok", us, wgmma_gelu_available(lane, N, W, K));
}

// -- times

// us a call, after 20 ms of the same; run(i) for i = 0, 1, ... should change its operands so that they come from memory.
template <class F>
float sustained_us(F run, float warm_ms = 20, float ms = 40) {
    int turn = 0;
    const auto batch = [&](int calls) {
        cuda_check(cudaEventRecord(from, lane.stream), "record");
        for (int i = 0; i < calls; i++) run(turn++);
        cuda_check(cudaEventRecord(to, lane.stream), "record");
        count_cycles<<<1, 1, 0, lane.stream>>>(clock_counts);
        done("timed calls");
        float elapsed = 0;
        cuda_check(cudaEventElapsedTime(&elapsed, from, to), "time");
        return elapsed / calls;
    };
    batch(1);
    const float once = batch(3);
    batch(std::max(1, int(warm_ms / once)));
    return 1000 * batch(std::max(1, int(ms / once)));
}

float row(const char *name, double flop, float us, int tiles = 0) {
    done(name);
    unsigned long long counts[2];
    cuda_check(cudaMemcpy(counts, clock_counts, sizeof counts, cudaMemcpyDeviceToHost), "clock");
    const double ghz = double(counts[0]) / counts[1];
    std::printf("  %-34s %9.1f us %7.1f TFLOP/s   %.2f GHz, %4.1f%% of the tensor cores' peak at that", name, us, flop / us * 1e-6, ghz,
                100 * flop / us * 1e-3 / (4096 * ghz * lane.sms));
    if (tiles) std::printf(", %.0f cycles a tile", ghz * us * 1000 / tiles);
#ifdef LLMC_WATCH_WAITS
    WaitWatch watch;
    cuda_check(cudaMemcpyFromSymbol(&watch, wait_watch, sizeof watch), "watch");
    if (watch.cycles && tiles) {
        const auto share = [&](int kind, int warps) { return 100.0 * watch.waited[kind] / warps / watch.cycles; };
        std::printf("; %.2f GHz in it; waits for: slot filled %.1f%%, slot emptied %.1f%%, unit handed %.1f%%, unit taken %.1f%%, columns %.1f%%", double(watch.cycles) / watch.nanoseconds,
                    share(RING_FILLED, MULTIPLIERS), share(RING_EMPTIED, 1), share(HANDED, FINISHERS), share(TAKEN, MULTIPLIERS), share(SUMMED, FINISHERS));
    }
    watch = {};
    cuda_check(cudaMemcpyToSymbol(wait_watch, &watch, sizeof watch), "watch");
#endif
    std::printf("\n");
    return us;
}

float time_library(const char *name, const ProductShape &shape, const std::vector<Operands> &operands) {
    LinearState &state = linear_state(lane);
    ProductPlan &plan = state.plan(lane, shape, operands[0], CUDA_R_16BF);
    if (!plan.available) return std::printf("  %-34s not available\n", name), 1e30f;
    const auto candidates = state.candidates(lane, plan, 8);
    const auto run = [&](int i) { state.run(lane, plan, operands[i % operands.size()]); };
    float best = 1e30f;
    cublasLtMatmulAlgo_t choice = plan.algo;
    for (const auto &candidate : candidates) {
        plan.algo = candidate;
        const float us = sustained_us(run, 2, 4);
        if (us < best) best = us, choice = candidate;
    }
    plan.algo = choice;
    const float us = sustained_us(run);
    char text[64];
    std::snprintf(text, sizeof text, "%s (best of %zu)", name, candidates.size());
    return row(text, 2.0 * shape.N * shape.C * shape.OC, us);
}

void time_shape(int N, int C) {
    const int W = 4 * C;
    const double flop = 2.0 * N * C * W;
    const size_t bytes = size_t(N) * (C + 2 * W) * 2;
    const int copies = int(std::min<size_t>({8, 2 * lane.l2_bytes / bytes + 1, ARENA / (bytes + (64 << 20))}));
    std::printf("N %d, C %d, 4C %d; %d sets of operands\n", N, C, W, copies);
    Bump bump;
    bf16 *const w = bump.take<bf16>(size_t(C) * W), *const bias = bump.take<bf16>(W);
    float *const partials = bump.take<float>(size_t(wgmma_slices(N)) * W);
    bf16 *const db = bump.take<bf16>(W);
    std::vector<bf16 *> narrow, pre, wide;
    fill_normal<<<1024, 256, 0, lane.stream>>>(w, int64_t(C) * W, 0.02f, 5);
    fill_normal<<<8, 256, 0, lane.stream>>>(bias, W, 0.1f, 6);
    std::vector<Operands> plain_forward, gelu_forward, plain_backward, gelu_backward;
    for (int i = 0; i < copies; i++) {
        narrow.push_back(bump.take<bf16>(size_t(N) * C)), pre.push_back(bump.take<bf16>(size_t(N) * W)), wide.push_back(bump.take<bf16>(size_t(N) * W));
        fill_normal<<<2048, 256, 0, lane.stream>>>(narrow[i], int64_t(N) * C, 1.0f, 7 + i);
        fill_normal<<<2048, 256, 0, lane.stream>>>(pre[i], int64_t(N) * W, 1.0f, 70 + i);
        plain_forward.push_back({w, narrow[i], wide[i], bias});
        gelu_forward.push_back({w, narrow[i], wide[i], bias, pre[i]});
        plain_backward.push_back({w, narrow[i], wide[i]});
        gelu_backward.push_back({w, narrow[i], wide[i], nullptr, pre[i]});
    }
    done("fill");
    const int64_t all_tiles = ceil_div(N, ROWS) * ceil_div(W, COLUMNS);
    const int tiles = int(ceil_div(all_tiles, lane.sms));  // of the busiest block
    const auto ours_backward = [&](int i) {
        backward(wide[i % copies], partials, narrow[i % copies], w, pre[i % copies], N, W, C);
        add_partials(lane, db, partials, wgmma_slices(N), W, Into::ASSIGN);
    };
    const auto ours_forward = [&](int i) { forward(wide[i % copies], pre[i % copies], narrow[i % copies], w, bias, N, C, W); };
    time_library("backward, cuBLASLt plain", {Product::BACKWARD_INPUT, Epilogue::NONE, Into::ASSIGN, N, W, C}, plain_backward);
    const float library_slope = time_library("backward, cuBLASLt DGELU", {Product::BACKWARD_INPUT, Epilogue::GELU_SLOPE, Into::ASSIGN, N, W, C}, gelu_backward);
    const float ours_back = row("backward with sums, ours", flop, sustained_us(ours_backward), tiles);
    time_library("forward, cuBLASLt bias", {Product::FORWARD, Epilogue::BIAS, Into::ASSIGN, N, C, W}, plain_forward);
    const float library_gelu = time_library("forward, cuBLASLt GELU_AUX_BIAS", {Product::FORWARD, Epilogue::GELU_BIAS, Into::ASSIGN, N, C, W}, gelu_forward);
    const float ours_there = row("forward, ours", flop, sustained_us(ours_forward), tiles);
    const float library_sums = float(double(N) * W * sizeof(bf16) / 4.2e12 * 1e6);  // reading dpre once
    std::printf("  ours / library: backward with sums %.1f / %.1f us (DGELU and column sums at 4.2 TB/s) = %.3f, forward %.1f / %.1f us = %.3f\n", ours_back,
                library_slope + library_sums, ours_back / (library_slope + library_sums), ours_there, library_gelu, ours_there / library_gelu);
    std::fflush(stdout);
}

}  // namespace
}  // namespace llmc

using namespace llmc;

int main() try {
    cudaDeviceProp facts;
    cuda_check(cudaGetDeviceProperties(&facts, 0), "device");
    lane.sms = facts.multiProcessorCount;
    lane.capability = 10 * facts.major + facts.minor;
    lane.max_shared = int(facts.sharedMemPerBlockOptin);
    lane.l2_bytes = size_t(facts.l2CacheSize);
    lane.blas_workspace_bytes = size_t(32) << 20;
    cuda_check(cudaStreamCreate(&lane.stream), "stream");
    cuda_check(cudaMalloc(&lane.blas_workspace, lane.blas_workspace_bytes), "workspace");
    cuda_check(cudaMalloc(&arena, ARENA), "arena");
    cuda_check(cudaMalloc(&clock_counts, 2 * sizeof *clock_counts), "clock");
    cuda_check(cudaEventCreate(&from), "event");
    cuda_check(cudaEventCreate(&to), "event");
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    std::printf("%s, %d SMs, cuBLASLt %zu, %d bytes of shared memory a block\n", facts.name, lane.sms, cublasLtGetVersion(), SHARED_BYTES);
    map_test<true>();
    map_test<false>();
    const int shapes[][3] = {{128, 256, 64},  {256, 256, 128}, {128, 512, 768}, {1, 64, 64},      {64, 72, 72},       {200, 3072, 768},   {1000, 72, 3072}, {300, 1600, 200},
                             {129, 264, 8}, {130, 320, 8}, {70, 832, 104},   {385, 3072, 1600}, {4096, 3072, 768}, {4096, 768, 3072}, {4096, 6400, 1600}};
    for (const auto &s : shapes) {
        random_test<true>(s[0], s[1], s[2]);
        random_test<false>(s[0], s[1], s[2]);
    }
    capture_test();
    std::printf("%s: %d failures\n", failures ? "WRONG" : "all right", failures);
    time_shape(65536, 768);
    time_shape(4096, 768);
    time_shape(32768, 1024);
    time_shape(16384, 1600);
    for (const auto &s : {std::array<int, 3>{32768, 3072, 768}, {16384, 6400, 1600}}) {  // many tiles a block, on a warm GPU
        random_test<true>(s[0], s[1], s[2]);
        random_test<false>(s[0], s[1], s[2]);
    }
    std::printf("%s: %d failures\n", failures ? "WRONG" : "all right", failures);
    return failures > 0;
} catch (const Error &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
