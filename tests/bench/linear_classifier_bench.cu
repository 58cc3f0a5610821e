// linear_classifier_bench.cu - what the linear, GELU and classifier ops of the CUDA backend reach on this
// GPU, at the shapes of GPT-2 124M with T = 1024: the library's first proposal against the tuned choice,
// TFLOP/s; TB/s of what has to be moved. bf16. About 10 s and 16 GiB of device memory.
//
//   nvcc -std=c++17 -O3 -arch=sm_90 -DLLMC_CUDA -I. -o build/linear_classifier_bench
//       tests/bench/linear_classifier_bench.cu llmc/cuda/{linear,linear_plan,linear_tune,column_sum,gelu,classifier}.cu -lcublasLt   (one line)
//   build/linear_classifier_bench [B ...]        rows are B * 1024; default 64 4
#include <cublasLt.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llmc/cuda/column_sum.h"
#include "llmc/cuda/lane.cuh"
#include "llmc/cuda/linear.h"
#include "llmc/ops.h"

using namespace llmc;

namespace {

constexpr int C = 768, V = 50257, VP = 50304;
constexpr size_t ARENA = size_t(16) << 30;

__global__ void fill(bf16 *values, int64_t n, float scale) {
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
        const uint64_t h = (uint64_t(i) + 1) * 0x9e3779b97f4a7c15u;
        values[i] = __float2bfloat16_rn(scale * (float(h >> 40) * (2.0f / 16777216.0f) - 1.0f));
    }
}
__global__ void fill_targets(int *targets, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) targets[i] = int(uint32_t(i) * 2654435761u % V);
}

char *arena;
cudaEvent_t from, to;

// Median of five batches, ms a call. run(base): base walks through the arena so that operands of small
// shapes come from memory, as they do in a step.
template <class F>
float time_ms(Lane &lane, size_t bytes, F run) {
    const int copies = int(std::max<size_t>(1, std::min<size_t>(ARENA / bytes, 2 * lane.l2_bytes / bytes + 1)));
    bytes = bytes / 256 * 256;
    int turn = 0;
    const auto batch = [&](int calls) {
        cuda_check(cudaEventRecord(from, lane.stream), "record");
        for (int i = 0; i < calls; i++) run(arena + size_t(turn++ % copies) * bytes);
        cuda_check(cudaEventRecord(to, lane.stream), "record");
        cuda_check(cudaEventSynchronize(to), "run");
        float ms = 0;
        cuda_check(cudaEventElapsedTime(&ms, from, to), "time");
        return ms / calls;
    };
    batch(2);
    const int calls = std::clamp(int(4.0f / batch(2)), 1, 100);
    std::vector<float> times;
    for (int i = 0; i < 5; i++) times.push_back(batch(calls));
    std::sort(times.begin(), times.end());
    return times[2];
}

struct Layer { const char *name; int C, OC; bool gelu_out, gelu_in, residual; };
const Layer LAYERS[] = {
    {"qkv", C, 3 * C, false, false, false}, {"attproj", C, C, false, false, true}, {"fc", C, 4 * C, true, false, false},
    {"fcproj", 4 * C, C, false, true, true}, {"head", C, VP, false, false, false},
};

float time_linear(Lane &lane, const LinearUse &u) {
    const size_t in = size_t(u.N) * u.C, out = size_t(u.N) * u.OC, w = size_t(u.C) * u.OC;
    const bool slope = u.op == LinearOp::GELU_BACKWARD_INPUT;
    const size_t pre = u.op == LinearOp::GELU_FORWARD || u.op == LinearOp::RESIDUAL_FORWARD ? out : slope ? in : 0;
    const size_t sums = linear_scratch_bytes(u.N, slope ? u.C : u.OC) + 256;
    const auto round = [](size_t n) { return (n + 127) / 128 * 128; };
    const size_t elements = round(in) + round(out) + round(w) + round(u.C + u.OC) + round(pre) + round(sums / 2);
    return time_ms(lane, elements * 2, [&](char *base) {
        bf16 *const i = reinterpret_cast<bf16 *>(base), *const o = i + round(in), *const weight = o + round(out), *const bias = weight + round(w),
                   *const p = bias + round(u.C + u.OC), *const scratch = p + round(pre), *const b = u.bias ? bias : nullptr;
        switch (u.op) {
        case LinearOp::FORWARD: return linear_forward(lane, o, i, weight, b, u.N, u.C, u.OC);
        case LinearOp::RESIDUAL_FORWARD: return linear_residual_forward(lane, o, p, i, weight, b, u.N, u.C, u.OC);
        case LinearOp::GELU_FORWARD: return linear_gelu_forward(lane, o, p, i, weight, b, u.N, u.C, u.OC);
        case LinearOp::BACKWARD_INPUT: return linear_backward_input(lane, i, o, weight, u.N, u.C, u.OC);
        case LinearOp::GELU_BACKWARD_INPUT: return linear_gelu_backward_input(lane, i, b, scratch, o, weight, p, u.N, u.C, u.OC, u.into);
        case LinearOp::BACKWARD_WEIGHT: return linear_backward_weight(lane, weight, o, i, u.N, u.C, u.OC, u.into);
        }
    });
}

void memory_row(const char *name, double bytes, float ms) { std::printf("%-44s %9.4f ms %7.2f TB/s\n", name, ms, bytes / ms * 1e-9); }

void bench(Lane &lane, int N) {
    std::vector<LinearUse> uses;
    std::vector<const char *> names;
    for (const Layer &l : LAYERS) {
        const LinearOp forward = l.gelu_out ? LinearOp::GELU_FORWARD : l.residual ? LinearOp::RESIDUAL_FORWARD : LinearOp::FORWARD;
        uses.push_back({forward, N, l.C, l.OC, l.OC != VP, Into::ASSIGN});
        uses.push_back({l.gelu_in ? LinearOp::GELU_BACKWARD_INPUT : LinearOp::BACKWARD_INPUT, N, l.C, l.OC, l.gelu_in, Into::ASSIGN});
        uses.push_back({LinearOp::BACKWARD_WEIGHT, N, l.C, l.OC, false, Into::ASSIGN});
        names.insert(names.end(), 3, l.name);
    }
    fill<<<2048, 256, 0, lane.stream>>>(reinterpret_cast<bf16 *>(arena), ARENA / 2, 1.0f);
    std::vector<float> first, tuned;
    for (const LinearUse &u : uses) first.push_back(time_linear(lane, u));
    const std::string report = linear_tune<bf16>(lane, uses, arena, ARENA);
    for (const LinearUse &u : uses) tuned.push_back(time_linear(lane, u));
    std::printf("\nN = %d\n%-8s %-20s %10s %10s %9s\n", N, "layer", "op", "first ms", "tuned ms", "TFLOP/s");
    const char *const OPS[] = {"forward", "residual forward", "gelu forward", "backward input", "gelu backward input", "backward weight"};
    double sum_first = 0, sum_tuned = 0;
    for (size_t i = 0; i < uses.size(); i++) {
        const double flop = 2.0 * N * uses[i].C * uses[i].OC;
        const int times = uses[i].OC == VP ? 1 : 12;
        sum_first += times * first[i], sum_tuned += times * tuned[i];
        std::printf("%-8s %-20s %10.4f %10.4f %9.1f\n", names[i], OPS[int(uses[i].op)], first[i], tuned[i], flop / tuned[i] * 1e-9);
    }
    std::printf("12 layers and head: %.3f -> %.3f ms\n\n%s%s\n", sum_first, sum_tuned, report.c_str(), linear_take_notes(lane).c_str());

    const int64_t n = int64_t(N) * 4 * C;
    fill<<<2048, 256, 0, lane.stream>>>(reinterpret_cast<bf16 *>(arena), ARENA / 2, 3.0f);
    memory_row("gelu_forward (N,3072)", 4.0 * n, time_ms(lane, 4 * n, [&](char *p) { gelu_forward(lane, reinterpret_cast<bf16 *>(p) + n, reinterpret_cast<bf16 *>(p), n); }));
    memory_row("gelu_backward (N,3072), in place", 6.0 * n, time_ms(lane, 4 * n, [&](char *p) {
        bf16 *const d = reinterpret_cast<bf16 *>(p);
        gelu_backward<bf16>(lane, d, nullptr, nullptr, d, d + n, N, 4 * C, Into::ASSIGN);
    }));
    for (int OC : {C, 4 * C}) {
        const size_t matrix = size_t(N) * OC * 2, sums = linear_scratch_bytes(N, OC) + 256 + 2 * OC;
        char name[64];
        std::snprintf(name, sizeof name, "column_sum (N,%d)", OC);
        memory_row(name, double(matrix), time_ms(lane, matrix + sums / 256 * 256 + 256, [&](char *p) {
            column_sum(lane, reinterpret_cast<bf16 *>(p + matrix), p + matrix + (2 * OC + 255) / 256 * 256, reinterpret_cast<bf16 *>(p), N, OC, Into::ASSIGN);
        }));
    }

    int *const targets = reinterpret_cast<int *>(arena + ARENA - (4 << 20));
    float *const losses = reinterpret_cast<float *>(arena + ARENA - (8 << 20)), *const mean = losses + N;
    const size_t logits = size_t(N) * VP * 2;
    fill<<<2048, 256, 0, lane.stream>>>(reinterpret_cast<bf16 *>(arena), logits / 2, 4.0f);
    fill_targets<<<(N + 255) / 256, 256, 0, lane.stream>>>(targets, N);
    memory_row("classifier, losses only", 2.0 * N * V, time_ms(lane, logits, [&](char *p) {
        classifier(lane, losses, reinterpret_cast<bf16 *>(p), targets, 1.0f / N, N, V, VP, false);
    }));
    // In place: later calls see gradients as logits, the same bytes and exponentials.
    memory_row("classifier, losses and gradient", 4.0 * N * V, time_ms(lane, logits, [&](char *p) {
        classifier(lane, losses, reinterpret_cast<bf16 *>(p), targets, 1.0f / N, N, V, VP, true);
    }));
    memory_row("mean_loss", 4.0 * N, time_ms(lane, ARENA / 2, [&](char *) { mean_loss(lane, mean, losses, 1.0f / N, N, Into::ASSIGN); }));
}

}  // namespace

int main(int argc, char **argv) try {
    std::vector<int> batches;
    for (int i = 1; i < argc; i++) batches.push_back(std::clamp(std::atoi(argv[i]), 1, 128));
    if (batches.empty()) batches = {64, 4};
    Lane lane;
    cudaDeviceProp facts;
    cuda_check(cudaGetDeviceProperties(&facts, 0), "device");
    lane.sms = facts.multiProcessorCount;
    lane.capability = 10 * facts.major + facts.minor;
    lane.max_shared = int(facts.sharedMemPerBlockOptin);
    lane.l2_bytes = size_t(facts.l2CacheSize);
    lane.blas_workspace_bytes = size_t(32) << 20;
    cuda_check(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking), "stream");
    cuda_check(cudaMalloc(&lane.blas_workspace, lane.blas_workspace_bytes), "workspace");
    cuda_check(cudaMalloc(&arena, ARENA), "arena");
    cuda_check(cudaEventCreate(&from), "event");
    cuda_check(cudaEventCreate(&to), "event");
    std::printf("%s, %d SMs, cuBLASLt %zu\n", facts.name, lane.sms, cublasLtGetVersion());
    for (int B : batches) bench(lane, B * 1024);
    cuda_check(cudaStreamSynchronize(lane.stream), "end");
    return 0;
} catch (const Error &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
