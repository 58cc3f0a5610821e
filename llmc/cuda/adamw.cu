// adamw.cu - one launch over the flat parameters. With g = clip_scale * grad, per element:
//   m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  p = p - lr * (m/bias1 / (sqrt(v/bias2) + eps) + decay p)
// m, v, master fp32; params and grads X. Without master the params, widened, are p. bf16 params get p
// rounded stochastically: up with the probability that its distance from the value below asks for.
// Bytes a parameter, bf16 with master: reads 2+4+4+4, writes 2+4+4+4. Plain accesses: with the streaming
// hints, which fit what happens here, eight streams in turns come 6% slower.
#include <type_traits>

#include "lane.cuh"
#include "width.cuh"
#include "../ops.h"

namespace llmc {

namespace {

constexpr int THREADS = 256;
constexpr int DEEP = 2;    // accesses per array and thread in flight
constexpr int SWEEPS = 4;  // by which a block pays once for reading the step's constants

// Stretches of the flat buffer in which every tensor is decayed or none is, ascending.
struct Stretches {
    int64_t end[LLMC_NUM_PARAMS];
    bool decayed[LLMC_NUM_PARAMS];
    int count;
};

// 64 bits for four neighbouring elements, 16 each: a counter made unlike its neighbours by two rounds of
// multiply and fold.
__device__ __forceinline__ uint64_t random_bits(uint64_t seed, uint64_t counter) {
    uint64_t x = (seed ^ 0x2545f4914f6cdd1dull) + counter * 0xd1342543de82ef95ull;
    x = (x ^ (x >> 32)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 29)) * 0x94d049bb133111ebull;
    return x ^ (x >> 32);
}

// Adds 16 random bits below the kept ones and cuts. Exact values stay; a NaN stays a NaN; a finite value
// past the largest bf16 becomes that and not infinity.
__device__ __forceinline__ uint32_t round_stochastically(float x, uint32_t random16) {
    const uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    uint32_t up = (bits + random16) >> 16;
    if (magnitude >= 0x7f7f0000u) {
        if (magnitude > 0x7f800000u) up = (bits >> 16) | 0x40;
        else if (magnitude < 0x7f800000u) up = bits >> 16;
    }
    return up;
}

template <class X, bool MASTER, int W>
__global__ void __launch_bounds__(THREADS, 4) descend(X *__restrict__ params, float *__restrict__ master, float *__restrict__ m, float *__restrict__ v,
                                                      const X *__restrict__ grads, int64_t n, const __grid_constant__ Stretches stretches,
                                                      const StepParams *__restrict__ step, const llmc_step_result *__restrict__ record) {
    constexpr int REACH = THREADS * W;
    if (record->skipped) return;
    const llmc_hyper &h = step->hyper;
    const float lr = h.learning_rate, beta1 = h.beta1, beta2 = h.beta2, eps = h.eps, decay = h.weight_decay, clip = record->clip_scale;
    const float unbias1 = 1.0f / step->bias1, unbias2 = 1.0f / step->bias2;
    const uint64_t seed = step->rounding;

    int64_t at = int64_t(blockIdx.x) * (REACH * DEEP * SWEEPS) + threadIdx.x * W;
    int stretch = 0;
#pragma unroll 1
    for (int sweep = 0; sweep < SWEEPS; sweep++, at += REACH * DEEP) {
        if (at >= n) return;
        Few<X, W> g[DEEP], old[DEEP];
        Few<float, W> m_[DEEP], v_[DEEP], w_[DEEP];
#pragma unroll
        for (int j = 0; j < DEEP; j++) {
            const int64_t e = at + j * REACH;
            if (e >= n) continue;
            g[j] = load<W>(grads + e);
            m_[j] = load<W>(m + e);
            v_[j] = load<W>(v + e);
            if constexpr (MASTER) w_[j] = load<W>(master + e);
            else old[j] = load<W>(params + e);
        }
#pragma unroll
        for (int j = 0; j < DEEP; j++) {
            const int64_t e = at + j * REACH;
            if (e >= n) continue;
            while (e >= stretches.end[stretch]) stretch++;
            const float decay_here = stretches.decayed[stretch] ? decay : 0.0f;
            float m1[W], v1[W], p[W];
            for (int i = 0; i < W; i++) {
                const float grad = clip * g[j][i];
                if constexpr (MASTER) p[i] = w_[j][i];
                else p[i] = old[j][i];
                m1[i] = beta1 * m_[j][i] + (1.0f - beta1) * grad;
                v1[i] = beta2 * v_[j][i] + (1.0f - beta2) * grad * grad;
                const float direction = m1[i] * unbias1 / (sqrtf(v1[i] * unbias2) + eps);
                p[i] -= lr * (direction + decay_here * p[i]);
            }
            store<W>(m + e, round_few<float>(m1));
            store<W>(v + e, round_few<float>(v1));
            if constexpr (MASTER) store<W>(master + e, round_few<float>(p));
            Few<X, W> rounded;
            if constexpr (std::is_same_v<X, float>) {
                rounded = round_few<X>(p);
            } else {
                const uint64_t random = random_bits(seed, uint64_t(e) / 4) >> (16 * (e % 4));
                uint32_t half[W];
                for (int i = 0; i < W; i++) half[i] = round_stochastically(p[i], uint32_t(random >> (16 * i)) & 0xffffu);
                for (int i = 0; i < (W + 1) / 2; i++) rounded.bits[i] = W == 1 ? half[0] : __byte_perm(half[2 * i], half[(2 * i + 1) % W], 0x5410);
            }
            store<W>(params + e, rounded);
        }
    }
}

template <class X, bool MASTER, int W>
void launch(Lane &lane, X *params, float *master, float *m, float *v, const X *grads, int64_t n, const Stretches &stretches,
            const StepParams *step, const llmc_step_result *record) {
    const int64_t blocks = ceil_div(n, int64_t(THREADS) * W * DEEP * SWEEPS);
    descend<X, MASTER, W><<<unsigned(blocks), THREADS, 0, lane.stream>>>(params, master, m, v, grads, n, stretches, step, record);
    launch_check("descend");
}

// A gap between tensors is zeros throughout and stays so whichever stretch it falls to.
Stretches find_stretches(const ParamTable &table, const ParamLayout &layout) {
    Stretches s{};
    for (int i = 0; i < LLMC_NUM_PARAMS; i++) {
        if (layout.count[i] == 0) continue;
        const bool decayed = table[i].decayed != 0;
        if (s.count > 0 && layout.offset[i] < s.end[s.count - 1]) fail(LLMC_INTERNAL, "adamw: tensor %s overlaps the one before", table[i].name);
        if (s.count == 0 || s.decayed[s.count - 1] != decayed) s.decayed[s.count++] = decayed;
        s.end[s.count - 1] = i + 1 < LLMC_NUM_PARAMS ? layout.offset[i + 1] : layout.total;
    }
    if (s.count > 0) s.end[s.count - 1] = layout.total;
    return s;
}

}  // namespace

template <class X>
void adamw(Lane &lane, X *params, float *master, float *m, float *v, const X *grads, const ParamTable &table, const ParamLayout &layout,
           const StepParams *step, const llmc_step_result *record) {
    const Stretches stretches = find_stretches(table, layout);
    const int64_t n = layout.total;
    if (n < 0) fail(LLMC_INVALID, "adamw: %lld elements", (long long)n);
    if (n == 0 || stretches.count == 0) return;
    bool wide = can_pack<X>(0, params, master, m, v, grads) && n % 4 == 0;
    for (int i = 0; i < stretches.count; i++) wide = wide && stretches.end[i] % 4 == 0;
    const auto kernel = master ? (wide ? launch<X, true, 4> : launch<X, true, 1>) : (wide ? launch<X, false, 4> : launch<X, false, 1>);
    kernel(lane, params, master, m, v, grads, n, stretches, step, record);
}

template void adamw<float>(Lane &, float *, float *, float *, float *, const float *, const ParamTable &, const ParamLayout &,
                           const StepParams *, const llmc_step_result *);
template void adamw<bf16>(Lane &, bf16 *, float *, float *, float *, const bf16 *, const ParamTable &, const ParamLayout &,
                          const StepParams *, const llmc_step_result *);

}  // namespace llmc
