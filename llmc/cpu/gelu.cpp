// gelu.cpp - the activation between the two layers of the MLP; the maths is in gelu.h.
// out = gelu(inp); dinp = dout * gelu'(inp), dsum into= its column sums. Deterministic.
#include "gelu.h"

#include "../ops.h"
#include "column_sum.h"
#include "parallel.h"

namespace llmc {

namespace {

LLMC_CLONES void forward(float *out, const float *inp, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = gelu(inp[i]);
}

LLMC_CLONES void backward(float *dinp, const float *dout, const float *inp, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) dinp[i] = dout[i] * gelu_gradient(inp[i]);
}

}  // namespace

void gelu_range(float *out, const float *inp, int64_t n) { forward(out, inp, n); }
void gelu_gradient_range(float *dinp, const float *dout, const float *inp, int64_t n) { backward(dinp, dout, inp, n); }

template <class X>
void gelu_forward(Lane &lane, X *out, const X *inp, int64_t n) {
    parallel_slices(lane, n, 16, n, [=](int64_t begin, int64_t end) { gelu_range(out + begin, inp + begin, end - begin); });
}

template <class X>
void gelu_backward(Lane &lane, X *dinp, X *dsum, void *, const X *dout, const X *inp, int N, int C, Into into) {
    const int64_t n = int64_t(N) * C;
    parallel_slices(lane, n, 16, n, [=](int64_t begin, int64_t end) {
        gelu_gradient_range(dinp + begin, dout + begin, inp + begin, end - begin);
    });
    if (dsum) column_sum(lane, dsum, dinp, N, C, into);
}

template void gelu_forward<float>(Lane &, float *, const float *, int64_t);
template void gelu_backward<float>(Lane &, float *, float *, void *, const float *, const float *, int, int, Into);

}  // namespace llmc
