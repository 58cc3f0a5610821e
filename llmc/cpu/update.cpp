// update.cpp - gradient norm, the decision whether to update, and AdamW over all tensors in one pass.
//   g = clip grad,  m = b1 m + (1-b1) g,  v = b2 v + (1-b2) g^2
//   p -= lr (m / bias1 / (sqrt(v / bias2) + eps) + decay p)
// Bound by memory: AdamW moves 28 bytes per parameter, the norm 4. Both cut the work at fixed places.
#include <cmath>

#include "../ops.h"
#include "parallel.h"
#include "vector.h"

namespace llmc {

namespace {

constexpr int64_t NORM_SLICES = 1024;   // partial sums, a fixed number: threads do not change the result
constexpr int64_t PIECE = 1 << 16;      // elements of one tensor that a thread updates at a time

LLMC_CLONES double sum_of_squares(const float *x, int64_t n) {
    double total = 0;
    for (int64_t start = 0; start < n; start += 4096) {
        const int64_t end = start + 4096 < n ? start + 4096 : n;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = start; i < end; i++) sum += x[i] * x[i];
        total += sum;
    }
    return total;
}

struct Constants {
    float clip, beta1, beta2, inverse_bias1, inverse_root_bias2, eps, rate, decay;
};

// `truth` is what is updated (the master copy if there is one), `copy` gets the same values or is null.
LLMC_CLONES void adamw_range(float *truth, float *copy, float *m, float *v, const float *grads, int64_t n, const Constants &k) {
    const Constants c = k;  // in registers: stores through the pointers could otherwise change it
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float g = c.clip * grads[i];
        const float mi = c.beta1 * m[i] + (1.0f - c.beta1) * g;
        const float vi = c.beta2 * v[i] + (1.0f - c.beta2) * g * g;
        m[i] = mi;
        v[i] = vi;
        truth[i] -= c.rate * (mi * c.inverse_bias1 / (std::sqrt(vi) * c.inverse_root_bias2 + c.eps) + c.decay * truth[i]);
    }
    if (copy) std::memcpy(copy, truth, sizeof(float) * size_t(n));
}

}  // namespace

size_t global_norm_scratch_bytes() { return sizeof(double) * NORM_SLICES; }

template <class X>
void global_norm_squared(Lane &lane, float *norm_squared, void *scratch, const X *grads, int64_t n) {
    double *sums = static_cast<double *>(scratch), total = 0;
    parallel_slices(lane, NORM_SLICES, 1, n, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const Slice s = slice(n, i, NORM_SLICES, 16);
            sums[i] = sum_of_squares(grads + s.begin, s.size());
        }
    });
    for (int64_t i = 0; i < NORM_SLICES; i++) total += sums[i];
    *norm_squared = float(total);
}

void store_step_params(Lane &, StepParams *device, const StepParams &params) { *device = params; }

void gate(Lane &, llmc_step_result *record, llmc_guard *guard, const StepParams *params, const float *mean_loss, const float *norm_squared) {
    decide_update(record, guard, *params, *mean_loss, *norm_squared);
}

template <class X>
void adamw(Lane &lane, X *params, float *master, float *m, float *v, const X *grads, const ParamTable &table, const ParamLayout &layout,
           const StepParams *step, const llmc_step_result *record) {
    if (record->skipped) return;
    const llmc_hyper &h = step->hyper;
    std::array<int64_t, LLMC_NUM_PARAMS + 1> first_piece{};
    for (int i = 0; i < LLMC_NUM_PARAMS; i++) first_piece[i + 1] = first_piece[i] + (layout.count[i] + PIECE - 1) / PIECE;
    const int64_t pieces = first_piece[LLMC_NUM_PARAMS];
    parallel_slices(lane, pieces, 1, layout.total, [&](int64_t begin, int64_t end) {
        int tensor = 0;
        for (int64_t piece = begin; piece < end; piece++) {
            while (piece >= first_piece[tensor + 1]) tensor++;
            const int64_t within = (piece - first_piece[tensor]) * PIECE, at = layout.offset[tensor] + within;
            const int64_t n = std::min(PIECE, layout.count[tensor] - within);
            const Constants constants{record->clip_scale, h.beta1, h.beta2, 1.0f / step->bias1, 1.0f / std::sqrt(step->bias2), h.eps,
                                      h.learning_rate, table[tensor].decayed ? h.weight_decay : 0.0f};
            adamw_range(master ? master + at : params + at, master ? params + at : nullptr, m + at, v + at, grads + at, n, constants);
        }
    });
}

template void global_norm_squared<float>(Lane &, float *, void *, const float *, int64_t);
template void adamw<float>(Lane &, float *, float *, float *, float *, const float *, const ParamTable &, const ParamLayout &,
                           const StepParams *, const llmc_step_result *);

}  // namespace llmc
