// attention.cpp - causal attention of every (b, head), on OpenBLAS, straight from the (B,T,3,NH,HS) tensor.
//   S = scale Q K^T for keys u <= t,  lse_t = log sum_u exp S_tu,  P = exp(S - lse),  out = P V
//   dV = P^T dO,  dP = dO V^T,  dS = P (dP - D) with D_t = dO_t . O_t,  dQ = scale dS K,  dK = scale dS^T Q
// Queries go in blocks of ROWS, each against the keys up to its own end: the half above the diagonal is
// never multiplied, and one thread's scores (ROWS, T) stay in its cache. P is recomputed from lse, not kept.
#include <cmath>

#include "../error.h"
#include "../ops.h"
#include "blas.h"
#include "column_sum.h"
#include "parallel.h"
#include "vector.h"

namespace llmc {

namespace {

constexpr int64_t ROWS = 64;

// scores (rows,keys): row r is query first + r. Becomes P, zero above the diagonal.
LLMC_CLONES void causal_softmax(float *scores, float *lse, float scale, int64_t rows, int64_t keys, int64_t first) {
    for (int64_t r = 0; r < rows; r++, scores += keys) {
        const int64_t seen = first + r + 1;
        float largest = scores[0];
#pragma omp simd reduction(max : largest)
        for (int64_t u = 0; u < seen; u++) largest = scores[u] > largest ? scores[u] : largest;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t u = 0; u < seen; u++) {
            const float e = fast_exp(scale * (scores[u] - largest));
            scores[u] = e;
            sum += e;
        }
        lse[r] = scale * largest + std::log(sum);
        const float normal = 1.0f / sum;
#pragma omp simd
        for (int64_t u = 0; u < seen; u++) scores[u] *= normal;
        std::memset(scores + seen, 0, sizeof(float) * size_t(keys - seen));
    }
}

// scores -> P and dp -> dS, both zero above the diagonal. dout, out: this block's rows, `stride` apart.
LLMC_CLONES void causal_softmax_backward(float *scores, float *dp, const float *dout, const float *out, const float *lse, float scale,
                                         int64_t rows, int64_t keys, int64_t first, int64_t HS, int64_t stride) {
    for (int64_t r = 0; r < rows; r++, scores += keys, dp += keys, dout += stride, out += stride) {
        const int64_t seen = first + r + 1;
        const float log_sum = lse[r];
        float dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t i = 0; i < HS; i++) dot += dout[i] * out[i];
#pragma omp simd
        for (int64_t u = 0; u < seen; u++) {
            const float p = fast_exp(scale * scores[u] - log_sum);
            scores[u] = p;
            dp[u] = p * (dp[u] - dot);
        }
        std::memset(scores + seen, 0, sizeof(float) * size_t(keys - seen));
        std::memset(dp + seen, 0, sizeof(float) * size_t(keys - seen));
    }
}

// One query against keys 0..position, a chunk at a time: sums are rescaled when a larger score appears.
LLMC_CLONES void attend_one(float *out, const float *query, const float *keys, const float *values, int64_t stride, int64_t count, int64_t HS, float scale) {
    constexpr int64_t CHUNK = 64;
    float weights[CHUNK], largest = -INFINITY, sum = 0;
    std::memset(out, 0, sizeof(float) * size_t(HS));
    for (int64_t start = 0; start < count; start += CHUNK) {
        const int64_t n = std::min(CHUNK, count - start);
        float top = largest;
        for (int64_t u = 0; u < n; u++) {
            const float *key = keys + (start + u) * stride;
            float dot = 0;
#pragma omp simd reduction(+ : dot)
            for (int64_t i = 0; i < HS; i++) dot += query[i] * key[i];
            weights[u] = dot * scale;
            top = weights[u] > top ? weights[u] : top;
        }
        const float fade = fast_exp(largest - top);
        largest = top;
        sum *= fade;
#pragma omp simd
        for (int64_t i = 0; i < HS; i++) out[i] *= fade;
        for (int64_t u = 0; u < n; u++) {
            const float *value = values + (start + u) * stride;
            const float p = fast_exp(weights[u] - largest);
            sum += p;
#pragma omp simd
            for (int64_t i = 0; i < HS; i++) out[i] += p * value[i];
        }
    }
    for (int64_t i = 0; i < HS; i++) out[i] /= sum;
}

}  // namespace

template <class X>
std::string attention_prepare(Lane &, const AttentionPlan &plan, int, int, int, int) {
    return plan.choice == LLMC_ATTENTION_CUDNN ? "attention: cuDNN does not run on a CPU; the engine's own is used" : "";
}

// A block of scores per thread, and in the backward one of their gradients.
template <class X>
size_t attention_scratch_bytes(Lane &lane, const AttentionPlan &plan, int, int T, int, int) {
    return sizeof(float) * (plan.backward ? 2 : 1) * size_t(lane.threads) * size_t(std::min<int64_t>(ROWS, T)) * size_t(T);
}

template <class X>
void attention_forward(Lane &lane, const AttentionPlan &, X *out, float *lse, const X *qkv, void *scratch, int B, int T, int C, int NH) {
    const int64_t HS = C / NH, stride = 3 * int64_t(C), block = std::min<int64_t>(ROWS, T);
    const float scale = 1.0f / std::sqrt(float(HS));
#pragma omp parallel num_threads(lane.threads) if (int64_t(B) * T * C >= WORTH_A_TEAM)
    {
        float *scores = static_cast<float *>(scratch) + omp_get_thread_num() * block * T;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < int64_t(B) * NH; i++) {
            const int64_t b = i / NH, h = i % NH;
            const float *q = qkv + b * T * stride + h * HS, *k = q + C, *v = k + C;
            float *o = out + b * T * C + h * HS;
            for (int64_t t = 0; t < T; t += block) {
                const int64_t end = std::min<int64_t>(T, t + block), rows = end - t;
                gemm(Side::AS_IS, Side::TRANSPOSED, rows, end, HS, 1, q + t * stride, stride, k, stride, 0, scores, end);
                causal_softmax(scores, lse + i * T + t, scale, rows, end, t);
                gemm(Side::AS_IS, Side::AS_IS, rows, HS, end, 1, scores, end, v, stride, 0, o + t * C, C);
            }
        }
    }
}

template <class X>
void attention_backward(Lane &lane, const AttentionPlan &, X *dqkv, X *dsum, void *scratch, const X *dout, const X *qkv, const X *out,
                        const float *lse, int B, int T, int C, int NH, Into into) {
    const int64_t HS = C / NH, stride = 3 * int64_t(C), block = std::min<int64_t>(ROWS, T);
    const float scale = 1.0f / std::sqrt(float(HS));
#pragma omp parallel num_threads(lane.threads) if (int64_t(B) * T * C >= WORTH_A_TEAM)
    {
        float *scores = static_cast<float *>(scratch) + omp_get_thread_num() * 2 * block * T, *dscores = scores + block * T;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < int64_t(B) * NH; i++) {
            const int64_t b = i / NH, h = i % NH, at = b * T * stride + h * HS;
            const float *q = qkv + at, *k = q + C, *v = k + C, *go = dout + b * T * C + h * HS, *o = out + b * T * C + h * HS;
            float *dq = dqkv + at, *dk = dq + C, *dv = dk + C;
            // From the last block up: that one sees every key and assigns dK and dV, the others add.
            for (int64_t t = (T - 1) / block * block; t >= 0; t -= block) {
                const int64_t end = std::min<int64_t>(T, t + block), rows = end - t;
                const float beta = end == T ? 0 : 1;
                gemm(Side::AS_IS, Side::TRANSPOSED, rows, end, HS, 1, q + t * stride, stride, k, stride, 0, scores, end);
                gemm(Side::AS_IS, Side::TRANSPOSED, rows, end, HS, 1, go + t * C, C, v, stride, 0, dscores, end);
                causal_softmax_backward(scores, dscores, go + t * C, o + t * C, lse + i * T + t, scale, rows, end, t, HS, C);
                gemm(Side::TRANSPOSED, Side::AS_IS, end, HS, rows, 1, scores, end, go + t * C, C, beta, dv, stride);
                gemm(Side::TRANSPOSED, Side::AS_IS, end, HS, rows, scale, dscores, end, q + t * stride, stride, beta, dk, stride);
                gemm(Side::AS_IS, Side::AS_IS, rows, HS, end, scale, dscores, end, k, stride, 0, dq + t * stride, stride);
            }
        }
    }
    if (dsum) column_sum(lane, dsum, dqkv, B * T, 3 * C, into);
}

template <class X>
void attention_decode(Lane &lane, X *out, X *cache, const X *qkv, int rows, int T, const int *place, int C, int NH) {
    const int position = *place;
    if (position < 0 || position >= T) fail(LLMC_INVALID, "attention_decode: position %d, expected 0 to %d", position, T - 1);
    const int64_t HS = C / NH, stride = 3 * int64_t(C);
    for (int64_t b = 0; b < rows; b++) std::copy(qkv + b * stride, qkv + (b + 1) * stride, cache + (b * T + position) * stride);
    parallel_slices(lane, int64_t(rows) * NH, 1, int64_t(rows) * C * (position + 1), [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const int64_t b = i / NH, h = i % NH;
            const float *keys = cache + b * T * stride + C + h * HS;
            attend_one(out + b * C + h * HS, qkv + b * stride + h * HS, keys, keys + C, stride, position + 1, HS, 1.0f / std::sqrt(float(HS)));
        }
    });
}

template std::string attention_prepare<float>(Lane &, const AttentionPlan &, int, int, int, int);
template size_t attention_scratch_bytes<float>(Lane &, const AttentionPlan &, int, int, int, int);
template void attention_forward<float>(Lane &, const AttentionPlan &, float *, float *, const float *, void *, int, int, int, int);
template void attention_backward<float>(Lane &, const AttentionPlan &, float *, float *, void *, const float *, const float *, const float *,
                                        const float *, int, int, int, int, Into);
template void attention_decode<float>(Lane &, float *, float *, const float *, int, int, const int *, int, int);

}  // namespace llmc
