// step.h - the small structs that live on the device so that a step never asks the host, and the
// decision whether an update happens. Plain data; the one function runs on host and device alike.
#pragma once
#include <cmath>
#include <cstdint>

#include "llmc.h"

#ifdef __CUDACC__
#define LLMC_HD __host__ __device__
#else
#define LLMC_HD
#endif

namespace llmc {

// One update's constants, written before it by an op (kernel arguments are copied at launch, so no
// host memory has to outlive the call).
struct StepParams {
    llmc_hyper hyper;
    float bias1, bias2;  // 1 - beta^step
    uint64_t rounding;   // seed of this update's stochastic rounding
    int64_t ticket;
};

// z-score of `value` in the ring of the last 128, `value` included; NaN for the first 128, as in llm.c.
// Recomputed from the ring each time: no running sum to drift or to be poisoned.
LLMC_HD inline float push_and_score(float *ring, int64_t *seen, float value) {
    ring[*seen % LLMC_GUARD_WINDOW] = value;
    *seen += 1;
    if (*seen <= LLMC_GUARD_WINDOW) return NAN;
    double sum = 0, squares = 0;
    for (int i = 0; i < LLMC_GUARD_WINDOW; i++) sum += ring[i];
    const double mean = sum / LLMC_GUARD_WINDOW;
    for (int i = 0; i < LLMC_GUARD_WINDOW; i++) squares += (ring[i] - mean) * (ring[i] - mean);
    const double deviation = sqrt(squares / LLMC_GUARD_WINDOW);
    return deviation > 0 ? float((value - mean) / deviation) : 0.0f;
}

// Fills the record from the step's loss and squared gradient norm. A non-finite value never enters
// the rings: it would make every later score NaN and so switch the guard off for ever.
LLMC_HD inline void decide_update(llmc_step_result *record, llmc_guard *guard, const StepParams &params, float loss, float norm_squared) {
    const float norm = sqrtf(norm_squared);
    const bool loss_ok = std::isfinite(loss), norm_ok = std::isfinite(norm);
    const llmc_hyper &h = params.hyper;
    record->ticket = params.ticket;
    record->loss = loss;
    record->grad_norm = norm;
    record->clip_scale = h.grad_clip > 0 && norm > h.grad_clip ? h.grad_clip / norm : 1.0f;
    record->loss_z = loss_ok ? push_and_score(guard->loss, &guard->loss_seen, loss) : NAN;
    record->norm_z = norm_ok ? push_and_score(guard->norm, &guard->norm_seen, norm) : NAN;
    record->device_ms = NAN;
    record->skipped = LLMC_SKIP_NONE;
    if (!loss_ok || !norm_ok) record->skipped = LLMC_SKIP_NONFINITE;
    else if (h.max_loss_z > 0 && record->loss_z > h.max_loss_z) record->skipped = LLMC_SKIP_LOSS_Z;
    else if (h.max_norm_z > 0 && record->norm_z > h.max_norm_z) record->skipped = LLMC_SKIP_NORM_Z;
}

}  // namespace llmc
