// memory_ops_bench.cu - what the memory-bound CUDA ops reach on this GPU: TB/s of the bytes each has to move,
// against a device-to-device copy measured beside them, at the shapes of GPT-2 124M with T = 1024, bf16.
// Buffers rotate through an arena, so that small shapes come from memory too. About 5 s, 12 GiB.
//
//   nvcc -std=c++17 -O3 -arch=sm_90 -DLLMC_CUDA -I. -o build/memory_ops_bench tests/bench/memory_ops_bench.cu llmc/params.cpp
//       llmc/cuda/{embedding,embedding_index,layernorm,layernorm_backward,norm,adamw,update,services}.cu   (one line)
//   build/memory_ops_bench [B[:C] ...]    rows are B * 1024 of C channels; default 64:768 4:768
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "llmc/cuda/lane.cuh"
#include "llmc/ops.h"

using namespace llmc;

namespace {

constexpr int T = 1024, V = 50257;
int C = 768;
constexpr size_t ARENA = size_t(12) << 30;

char *arena;
size_t used;        // by the op under test, in the rotation it is at
cudaEvent_t from, to;
double copy_speed;  // TB/s

// About 5e-4, as fp32 and as either half of a bf16 pair: zeros would send AdamW's root down its slow path.
__global__ void fill(uint32_t *words, int64_t n) {
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
        const uint32_t h = uint32_t(i) * 2654435761u;
        words[i] = 0x3a003a00u | (h >> 8 & 0x00ff00ffu);
    }
}

// The op's buffers one after the other.
template <class X>
X *take(int64_t count) {
    X *at = reinterpret_cast<X *>(arena + used);
    used += (size_t(count) * sizeof(X) + 255) / 256 * 256;
    if (used > ARENA) fail(LLMC_NO_MEMORY, "the bench's arena is too small");
    return at;
}

// Median of seven batches. `op` takes its buffers, and so gets others on every call.
template <class F>
void measure(Lane &lane, const char *name, int B, double bytes, F op) {
    used = 0;
    op();
    const size_t once = used, rotations = std::max<size_t>(1, std::min(ARENA / once, 2 * lane.l2_bytes / once + 1));
    size_t turn = 0;
    const auto batch = [&](int calls) {
        cuda_check(cudaEventRecord(from, lane.stream), "record");
        for (int i = 0; i < calls; i++) {
            used = turn++ % rotations * once;
            op();
        }
        cuda_check(cudaEventRecord(to, lane.stream), "record");
        cuda_check(cudaEventSynchronize(to), name);
        float ms = 0;
        cuda_check(cudaEventElapsedTime(&ms, from, to), "time");
        return ms / calls;
    };
    batch(3);
    const int calls = std::clamp(int(10.0f / batch(3)), 3, 200);
    std::vector<float> times;
    for (int i = 0; i < 7; i++) times.push_back(batch(calls));
    std::sort(times.begin(), times.end());
    const double speed = bytes / times[3] * 1e-9;
    if (copy_speed == 0) copy_speed = speed;
    std::printf("%-34s %4d %9.4f %9.4f %8.3f %7.0f%%\n", name, B, times[3], times[6] - times[0], speed, 100 * speed / copy_speed);
    std::fflush(stdout);
}

// Ids between which words of a text lie: uniform when flat, else the k-th in proportion to 1/k, or all one.
enum class Text { FLAT, ZIPF, ONE };
std::vector<int> words(int64_t N, Text kind) {
    std::vector<int> ids(N);
    uint64_t state = 1;
    for (int &id : ids) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        const double u = double(state >> 11) / double(uint64_t(1) << 53);
        id = kind == Text::ONE ? 11 : kind == Text::FLAT ? int(u * V) : std::min(V - 1, int(std::exp(u * std::log(double(V)))) - 1);
    }
    return ids;
}

void bench_rows(Lane &lane, int B) {
    const int N = B * T;
    const double row = 2.0 * C, all = row * N;
    measure(lane, "layernorm_forward", B, 2 * all, [&] {
        layernorm_forward<bf16>(lane, take<bf16>(int64_t(N) * C), take<float>(N), take<float>(N), take<bf16>(int64_t(N) * C), take<bf16>(C), take<bf16>(C), N, C);
    });
    for (const Into into : {Into::ASSIGN, Into::ADD}) {
        measure(lane, into == Into::ADD ? "layernorm_backward, dinp +=" : "layernorm_backward, dinp =", B, (into == Into::ADD ? 4 : 3) * all, [&] {
            bf16 *dinp = take<bf16>(int64_t(N) * C), *dout = take<bf16>(int64_t(N) * C), *inp = take<bf16>(int64_t(N) * C), *w = take<bf16>(4 * C);
            void *scratch = take<char>(layernorm_scratch_bytes(N, C));
            layernorm_backward<bf16>(lane, dinp, w + C, w + 2 * C, w + 3 * C, scratch, dout, inp, w, take<float>(N), take<float>(N), N, C, into, Into::ADD);
        });
    }
    const char *const names[] = {"flat", "zipf", "one token"};
    for (const Text kind : {Text::FLAT, Text::ZIPF, Text::ONE}) {
        std::vector<int> ids = words(N, kind), seen = ids;
        int *tokens = nullptr;
        void *index = nullptr;
        cuda_check(cudaMalloc(&tokens, N * sizeof(int)), "malloc");
        cuda_check(cudaMalloc(&index, embedding_index_bytes(N, V)), "malloc");
        cuda_check(cudaMemcpy(tokens, ids.data(), N * sizeof(int), cudaMemcpyHostToDevice), "memcpy");
        std::sort(seen.begin(), seen.end());
        const double different = double(std::unique(seen.begin(), seen.end()) - seen.begin());
        char name[64];
        std::snprintf(name, sizeof name, "embedding_forward, %s", names[int(kind)]);
        measure(lane, name, B, all + row * (different + T), [&] {
            embedding_forward<bf16>(lane, take<bf16>(int64_t(N) * C), tokens, take<bf16>(int64_t(V) * C), take<bf16>(T * C), B, T, C, nullptr);
        });
        std::snprintf(name, sizeof name, "embedding_index, %s", names[int(kind)]);
        measure(lane, name, B, 4.0 * N, [&] {
            take<char>(1);
            embedding_index(lane, index, tokens, N, V);
        });
        std::snprintf(name, sizeof name, "embedding_backward, %s", names[int(kind)]);
        measure(lane, name, B, 2 * all + row * (2 * different + T), [&] {
            bf16 *dwte = take<bf16>(int64_t(V) * C), *dwpe = take<bf16>(T * C), *dout = take<bf16>(int64_t(N) * C);
            embedding_backward<bf16>(lane, dwte, dwpe, dout, tokens, index, B, T, C, V, T, Into::ASSIGN);
        });
        cudaFree(tokens);
        cudaFree(index);
    }
}

void bench_update(Lane &lane) {
    const ParamTable table = param_table({T, V, 12, 12, C});
    const ParamLayout layout = param_layout(table, 12);
    const int64_t n = layout.total;
    StepParams params{};
    params.hyper = {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 0, 0, 1};
    params.bias1 = 0.1f, params.bias2 = 0.05f, params.rounding = 7;
    char *small = nullptr;
    cuda_check(cudaMalloc(&small, 8192), "malloc");
    cuda_check(cudaMemsetAsync(small, 0, 8192, lane.stream), "memset");
    StepParams *step = reinterpret_cast<StepParams *>(small);
    llmc_step_result *record = reinterpret_cast<llmc_step_result *>(small + 512);
    llmc_guard *guard = reinterpret_cast<llmc_guard *>(small + 1024);
    float *loss = reinterpret_cast<float *>(small + 4096), *norm = loss + 1;
    void *scratch = nullptr;
    cuda_check(cudaMalloc(&scratch, global_norm_scratch_bytes()), "malloc");

    measure(lane, "global_norm_squared", 0, 2.0 * n, [&] { global_norm_squared<bf16>(lane, norm, scratch, take<bf16>(n), n); });
    cuda_check(cudaMemsetAsync(loss, 0, 2 * sizeof(float), lane.stream), "memset");
    store_step_params(lane, step, params);
    measure(lane, "gate", 0, sizeof(llmc_guard), [&] {
        take<char>(1);
        gate(lane, record, guard, step, loss, norm);
    });
    measure(lane, "adamw, bf16 with master", 0, 28.0 * n, [&] {
        bf16 *p = take<bf16>(n), *g = take<bf16>(n);
        float *w = take<float>(n), *m = take<float>(n), *v = take<float>(n);
        adamw<bf16>(lane, p, w, m, v, g, table, layout, step, record);
    });
    measure(lane, "adamw, bf16 alone", 0, 22.0 * n, [&] {
        bf16 *p = take<bf16>(n), *g = take<bf16>(n);
        float *m = take<float>(n), *v = take<float>(n);
        adamw<bf16>(lane, p, nullptr, m, v, g, table, layout, step, record);
    });
    measure(lane, "adamw, fp32", 0, 28.0 * n, [&] {
        float *p = take<float>(n), *g = take<float>(n), *m = take<float>(n), *v = take<float>(n);
        adamw<float>(lane, p, nullptr, m, v, g, table, layout, step, record);
    });
    measure(lane, "widen", 0, 6.0 * n, [&] { widen<bf16>(lane, take<float>(n), take<bf16>(n), n); });
    measure(lane, "narrow", 0, 6.0 * n, [&] { narrow<bf16>(lane, take<bf16>(n), take<float>(n), n); });
    measure(lane, "prefetch_l2, one layer", 0, 2.0 * 12 * C * C, [&] { prefetch_l2(lane, take<bf16>(12 * C * C), size_t(2) * 12 * C * C); });
    cudaFree(small);
    cudaFree(scratch);
}

}  // namespace

int main(int argc, char **argv) {
    try {
        cudaDeviceProp properties;
        cuda_check(cudaGetDeviceProperties(&properties, 0), "device");
        Lane lane;
        lane.sms = properties.multiProcessorCount;
        lane.capability = 10 * properties.major + properties.minor;
        lane.l2_bytes = size_t(properties.l2CacheSize);
        cuda_check(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking), "stream");
        cuda_check(cudaEventCreate(&from), "event");
        cuda_check(cudaEventCreate(&to), "event");
        cuda_check(cudaMalloc(&arena, ARENA), "malloc");
        fill<<<4096, 256, 0, lane.stream>>>(reinterpret_cast<uint32_t *>(arena), int64_t(ARENA / 4));
        launch_check("fill");
        std::printf("%s, T %d, bf16\n%-34s %4s %9s %9s %8s %8s\n", properties.name, T, "op", "B", "ms", "spread", "TB/s", "of copy");
        const size_t half = size_t(1) << 30;
        measure(lane, "copy, 1 GiB", 0, 2.0 * double(half), [&] {
            char *a = take<char>(half), *b = take<char>(half);
            cuda_check(cudaMemcpyAsync(a, b, half, cudaMemcpyDeviceToDevice, lane.stream), "copy");
        });
        bench_update(lane);
        std::vector<std::string> shapes(argv + 1, argv + argc);
        if (shapes.empty()) shapes = {"64", "4"};
        for (const std::string &shape : shapes) {
            const size_t colon = shape.find(':');
            C = colon == std::string::npos ? 768 : std::atoi(shape.c_str() + colon + 1);
            std::printf("C = %d\n", C);
            bench_rows(lane, std::atoi(shape.c_str()));
        }
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
