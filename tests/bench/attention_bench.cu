// attention_bench.cu - the CUDA backend's attention on this GPU: own kernels and cuDNN against a plain
// float64 reference at friendly and awkward shapes, repeatability, graph capture, decode, and times
// (median of 15, ms). Under 20 s and 8 GiB. Fails (1) if any line says BAD.
//
//   nvcc -std=c++17 -O3 -arch=sm_90a -DLLMC_CUDA -I. -o build/attention_bench tests/bench/attention_bench.cu
//       llmc/cuda/{attention{,_flash,_flash_fp32,_wgmma,_decode},column_sum}.cu build/cuda/cuda/attention_cudnn.o -ldl   (one line)
//   build/attention_bench [times [B NH [T]]]   "times": no checks of the large shapes; B NH: of that one alone, T or 1024, HS 64
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "llmc/cuda/lane.cuh"
#include "llmc/cuda/pack.cuh"
#include "llmc/ops.h"

using namespace llmc;

namespace {

int faults = 0;
const char *verdict(bool good) {
    faults += !good;
    return good ? "ok" : "BAD";
}

template <class X>
__global__ void fill(X *values, int64_t n, float scale, uint64_t seed) {  // roughly normal, from a hash
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
        float sum = 0.0f;
        for (uint64_t k = 0; k < 4; k++) {
            uint64_t h = (uint64_t(i) * 4 + k + seed) * 0x9e3779b97f4a7c15u;
            h ^= h >> 32, h *= 0xd6e8feb86659fd93u, h ^= h >> 32;
            sum += float(h >> 40) * (2.0f / 16777216.0f) - 1.0f;
        }
        values[i] = from_float<X>(scale * 0.87f * sum);
    }
}

// Reference for batch row b, a block per (position, head); all results double, (T,NH,HS) and (NH,T).
template <class X>
__global__ void reference_queries(double *out, double *lse, double *delta, double *dq, const X *qkv, const X *dout, int b, int T, int NH, int HS) {
    extern __shared__ double weights[];  // (T)
    __shared__ double slots[256];
    const int t = blockIdx.x, h = blockIdx.y, C = NH * HS;
    const X *const rows = qkv + int64_t(b) * T * 3 * C + h * HS, *const gradient = dout + (int64_t(b) * T + t) * C + h * HS;
    const double scale = 1.0 / sqrt(double(HS));
    const auto reduce = [&](double x, bool sum) {
        __syncthreads();
        slots[threadIdx.x] = x;
        __syncthreads();
        double all = slots[0];
        for (int i = 1; i < blockDim.x; i++) all = sum ? all + slots[i] : fmax(all, slots[i]);
        return all;
    };
    const auto dot = [&](const X *x, const X *y) {
        double sum = 0.0;
        for (int d = 0; d < HS; d++) sum += double(to_float(x[d])) * double(to_float(y[d]));
        return sum;
    };
    double top = -INFINITY, total = 0.0, mean = 0.0;
    for (int u = threadIdx.x; u <= t; u += blockDim.x) top = fmax(top, weights[u] = scale * dot(rows + int64_t(t) * 3 * C, rows + int64_t(u) * 3 * C + C));
    top = reduce(top, false);
    for (int u = threadIdx.x; u <= t; u += blockDim.x) total += weights[u] = exp(weights[u] - top);
    total = reduce(total, true);
    for (int u = threadIdx.x; u <= t; u += blockDim.x) mean += (weights[u] /= total) * dot(gradient, rows + int64_t(u) * 3 * C + 2 * C);
    mean = reduce(mean, true);
    if (threadIdx.x == 0) lse[h * T + t] = top + log(total), delta[h * T + t] = mean;
    for (int d = threadIdx.x; d < HS; d += blockDim.x) {
        double sum = 0.0;
        for (int u = 0; u <= t; u++) sum += weights[u] * double(to_float(rows[int64_t(u) * 3 * C + 2 * C + d]));
        out[int64_t(t) * C + h * HS + d] = sum;
    }
    __syncthreads();
    for (int u = threadIdx.x; u <= t; u += blockDim.x) weights[u] *= scale * (dot(gradient, rows + int64_t(u) * 3 * C + 2 * C) - mean);
    __syncthreads();
    for (int d = threadIdx.x; d < HS; d += blockDim.x) {
        double sum = 0.0;
        for (int u = 0; u <= t; u++) sum += weights[u] * double(to_float(rows[int64_t(u) * 3 * C + C + d]));
        dq[int64_t(t) * C + h * HS + d] = sum;
    }
}
template <class X>
__global__ void reference_keys(double *dk, double *dv, const double *lse, const double *delta, const X *qkv, const X *dout, int b, int T, int NH, int HS) {
    extern __shared__ double weights[];  // (2,T): p, ds
    const int u = blockIdx.x, h = blockIdx.y, C = NH * HS;
    const X *const rows = qkv + int64_t(b) * T * 3 * C + h * HS, *const gradients = dout + int64_t(b) * T * C + h * HS;
    const double scale = 1.0 / sqrt(double(HS));
    for (int t = u + threadIdx.x; t < T; t += blockDim.x) {
        double s = 0.0, dp = 0.0;
        for (int d = 0; d < HS; d++) {
            s += double(to_float(rows[int64_t(t) * 3 * C + d])) * double(to_float(rows[int64_t(u) * 3 * C + C + d]));
            dp += double(to_float(gradients[int64_t(t) * C + d])) * double(to_float(rows[int64_t(u) * 3 * C + 2 * C + d]));
        }
        weights[t] = exp(scale * s - lse[h * T + t]);
        weights[T + t] = scale * weights[t] * (dp - delta[h * T + t]);
    }
    __syncthreads();
    for (int d = threadIdx.x; d < HS; d += blockDim.x) {
        double value = 0.0, key = 0.0;
        for (int t = u; t < T; t++) {
            value += weights[t] * double(to_float(gradients[int64_t(t) * C + d]));
            key += weights[T + t] * double(to_float(rows[int64_t(t) * 3 * C + d]));
        }
        dv[int64_t(u) * C + h * HS + d] = value;
        dk[int64_t(u) * C + h * HS + d] = key;
    }
}

template <class X>
struct Array {
    X *at = nullptr;
    size_t count;
    explicit Array(size_t n) : count(n) {
        cuda_check(cudaMalloc(&at, n * sizeof(X)), "cudaMalloc");
        cuda_check(cudaMemset(at, 0xff, n * sizeof(X)), "cudaMemset");  // NaN: what is not written shows
    }
    ~Array() { cudaFree(at); }
    Array(const Array &) = delete;
    std::vector<X> host() const {
        std::vector<X> copy(count);
        cuda_check(cudaMemcpy(copy.data(), at, count * sizeof(X), cudaMemcpyDeviceToHost), "download");
        return copy;
    }
};
float value(float x) { return x; }
float value(bf16 x) { return __bfloat162float(x); }
template <class X>
bool same(const std::vector<X> &a, const std::vector<X> &b) { return std::memcmp(a.data(), b.data(), a.size() * sizeof(X)) == 0; }

// Root mean square of the error over that of the reference (or 0.1: at T = 1 dq and dk are zero), of column `part` of `parts` in a row of C
template <class X>
double error(const std::vector<X> &got, const std::vector<double> &want, size_t first, int C, int parts, int part) {
    double wrong = 0.0, size = 0.0;
    for (size_t i = 0; i < want.size(); i++) {
        const double d = value(got[first + i / C * parts * C + part * C + i % C]) - want[i];
        wrong += d * d, size += want[i] * want[i];
    }
    return std::sqrt(wrong / std::max(size, 0.01 * want.size()));
}

float median_ms(cudaStream_t stream, const std::function<void()> &work) {
    cudaEvent_t from, to;
    cuda_check(cudaEventCreate(&from), "event");
    cuda_check(cudaEventCreate(&to), "event");
    std::vector<float> times;
    for (int i = 0; i < 18; i++) {
        cuda_check(cudaEventRecord(from, stream), "record");
        work();
        cuda_check(cudaEventRecord(to, stream), "record");
        cuda_check(cudaEventSynchronize(to), "run");
        float ms = 0;
        cuda_check(cudaEventElapsedTime(&ms, from, to), "time");
        if (i >= 3) times.push_back(ms);
    }
    cudaEventDestroy(from), cudaEventDestroy(to);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

template <class X>
void shape(Lane &lane, int B, int T, int NH, int HS, bool check, bool time) {
    const bool half = sizeof(X) == 2;
    const int C = NH * HS;
    const size_t rows = size_t(B) * T;
    printf("%s B=%d T=%d NH=%d HS=%d\n", half ? "bf16" : "fp32", B, T, NH, HS);
    Array<X> qkv(rows * 3 * C), out(rows * C), dout(rows * C), dqkv(rows * 3 * C), dsum(3 * C);
    Array<float> lse(rows * NH);
    fill<<<1024, 256, 0, lane.stream>>>(qkv.at, int64_t(rows) * 3 * C, 1.3f, 1);
    fill<<<1024, 256, 0, lane.stream>>>(dout.at, int64_t(rows) * C, 1.0f, 99);

    const int b = B - 1;
    Array<double> want_out(size_t(T) * C), want_dq(size_t(T) * C), want_dk(size_t(T) * C), want_dv(size_t(T) * C), want_lse(size_t(NH) * T), delta(size_t(NH) * T);
    if (check) {
        reference_queries<<<dim3(T, NH), 128, T * sizeof(double), lane.stream>>>(want_out.at, want_lse.at, delta.at, want_dq.at, qkv.at, dout.at, b, T, NH, HS);
        reference_keys<<<dim3(T, NH), 128, 2 * T * sizeof(double), lane.stream>>>(want_dk.at, want_dv.at, want_lse.at, delta.at, qkv.at, dout.at, b, T, NH, HS);
        launch_check("reference");
        cuda_check(cudaStreamSynchronize(lane.stream), "reference");
    }

    const AttentionPlan plans[] = {{true, LLMC_ATTENTION_OWN}, {false, LLMC_ATTENTION_CUDNN}, {true, LLMC_ATTENTION_CUDNN}};
    const char *names[] = {"own", "cuDNN", "cuDNN deterministic"};
    for (int p = 0; p < 3; p++) {
        const AttentionPlan &plan = plans[p];
        const std::string note = attention_prepare<X>(lane, plan, B, T, C, NH);
        if (!note.empty()) {
            printf("  %-20s %s\n", names[p], note.c_str());
            continue;
        }
        if (!half && p > 0) continue;
        Array<char> scratch(attention_scratch_bytes<X>(lane, plan, B, T, C, NH));
        const auto forward = [&] { attention_forward(lane, plan, out.at, lse.at, qkv.at, scratch.at, B, T, C, NH); };
        const auto backward = [&] { attention_backward(lane, plan, dqkv.at, dsum.at, scratch.at, dout.at, qkv.at, out.at, lse.at, B, T, C, NH, Into::ASSIGN); };
        forward();
        backward();
        cuda_check(cudaStreamSynchronize(lane.stream), names[p]);
        const auto first_out = out.host(), first_dqkv = dqkv.host();
        if (check) {
            const auto stats = lse.host();
            const std::vector<float> row(stats.begin() + size_t(b) * NH * T, stats.end());
            const double tolerance = half ? 1e-2 : 1e-5;
            const double errors[] = {error(first_out, want_out.host(), size_t(b) * T * C, C, 1, 0), error(row, want_lse.host(), 0, NH * T, 1, 0),
                                     error(first_dqkv, want_dq.host(), size_t(b) * T * 3 * C, C, 3, 0),
                                     error(first_dqkv, want_dk.host(), size_t(b) * T * 3 * C, C, 3, 1),
                                     error(first_dqkv, want_dv.host(), size_t(b) * T * 3 * C, C, 3, 2)};
            bool good = errors[1] < (half ? 1e-3 : 1e-5);
            for (double e : errors) good = good && e < tolerance;  // a NaN is not
            printf("  %-20s errors: out %.1e lse %.1e dq %.1e dk %.1e dv %.1e  %s\n", names[p], errors[0], errors[1], errors[2], errors[3], errors[4], verdict(good));
        }
        // the same again, from a captured graph: capturable, and the same bits where that is promised
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        cuda_check(cudaStreamBeginCapture(lane.stream, cudaStreamCaptureModeThreadLocal), "begin capture");
        forward();
        backward();
        cuda_check(cudaStreamEndCapture(lane.stream, &graph), "end capture");
        cuda_check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
        bool equal = true;
        for (int i = 0; i < 3; i++) {
            cuda_check(cudaMemsetAsync(dqkv.at, 0xff, dqkv.count * sizeof(X), lane.stream), "clear");
            cuda_check(cudaGraphLaunch(executable, lane.stream), "launch");
            cuda_check(cudaStreamSynchronize(lane.stream), "replay");
            equal = equal && same(out.host(), first_out) && (!plan.deterministic || same(dqkv.host(), first_dqkv));
        }
        cudaGraphExecDestroy(executable), cudaGraphDestroy(graph);
        printf("  %-20s replayed graph %s, scratch %.1f MB", names[p], verdict(equal), scratch.count / 1e6);
        if (time) printf(", forward %.3f ms, backward %.3f ms", median_ms(lane.stream, forward), median_ms(lane.stream, backward));
        printf("\n");
    }

    // decode: the last position again, from a cache that does not have it yet
    Array<X> fresh(size_t(B) * 3 * C), one(size_t(B) * C);
    Array<int> place(1);
    const int newest = T - 1;
    cuda_check(cudaMemcpy(place.at, &newest, sizeof newest, cudaMemcpyHostToDevice), "copy");
    const auto want = (attention_forward(lane, plans[0], out.at, lse.at, qkv.at, nullptr, B, T, C, NH), out.host());
    for (int r = 0; r < B; r++) {
        X *const last = qkv.at + (size_t(r) * T + T - 1) * 3 * C;
        cuda_check(cudaMemcpyAsync(fresh.at + size_t(r) * 3 * C, last, 3 * C * sizeof(X), cudaMemcpyDeviceToDevice, lane.stream), "copy");
        cuda_check(cudaMemsetAsync(last, 0xff, 3 * C * sizeof(X), lane.stream), "clear");
    }
    const auto decode = [&] { attention_decode(lane, one.at, qkv.at, fresh.at, B, T, place.at, C, NH); };
    decode();
    cuda_check(cudaStreamSynchronize(lane.stream), "decode");
    const auto got = one.host();
    double wrong = 0.0, size = 0.0;
    for (int r = 0; r < B; r++)
        for (int i = 0; i < C; i++) {
            const double w = value(want[(size_t(r) * T + T - 1) * C + i]), d = value(got[size_t(r) * C + i]) - w;
            wrong += d * d, size += w * w;
        }
    printf("  %-20s against forward %.1e  %s", "decode", std::sqrt(wrong / size), verdict(std::sqrt(wrong / size) < (half ? 1e-2 : 1e-5)));
    if (time) printf(", %.3f ms", median_ms(lane.stream, decode));
    printf("\n");
    fflush(stdout);
}

}  // namespace

int main(int argc, char **argv) {
    try {
        const bool check = argc < 2;
        Lane lane;
        cudaDeviceProp device;
        cuda_check(cudaGetDeviceProperties(&device, 0), "device");
        cuda_check(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking), "stream");
        lane.sms = device.multiProcessorCount, lane.capability = device.major * 10 + device.minor;
        lane.max_shared = int(device.sharedMemPerBlockOptin), lane.l2_bytes = size_t(device.l2CacheSize);
        printf("%s, %d multiprocessors\n", device.name, lane.sms);

        if (argc > 3) {
            shape<bf16>(lane, std::stoi(argv[2]), argc > 4 ? std::stoi(argv[4]) : 1024, std::stoi(argv[3]), 64, false, true);
            lane.attention.reset();
            return 0;
        }
        for (auto [B, T, NH, HS] : {std::array{2, 7, 3, 16}, {1, 1, 1, 64}, {2, 130, 3, 11}, {2, 96, 3, 32}, {3, 200, 2, 40}, {1, 257, 2, 128},
                                    {1, 75, 2, 256}, {1, 33, 1, 203}, {2, 64, 100, 8},
                                    {1, 128, 1, 64}, {2, 256, 2, 64}, {3, 384, 3, 64}, {2, 640, 90, 64}}) {
            shape<bf16>(lane, B, T, NH, HS, true, false);
            shape<float>(lane, B, T, NH, HS, true, false);
        }
        shape<bf16>(lane, 1, 1024, 12, 64, check, true);
        shape<bf16>(lane, 4, 1024, 12, 64, check, true);
        shape<bf16>(lane, 64, 1024, 12, 64, check, true);
        shape<bf16>(lane, 32, 1024, 16, 64, check, true);
        shape<bf16>(lane, 16, 1024, 25, 64, check, true);
        shape<bf16>(lane, 8, 1024, 8, 128, check, true);
        shape<float>(lane, 4, 1024, 12, 64, check, true);
        lane.attention.reset();
    } catch (const std::exception &e) {
        printf("%s\n", e.what());
        return 1;
    }
    printf(faults ? "%d BAD\n" : "all good\n", faults);
    return faults != 0;
}
