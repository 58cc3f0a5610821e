// linear.cu - the matrix products of a linear layer, by cuBLASLt (linear_plan.h), and what goes around them.
//
//   out (N,OC) = [residual +] inp (N,C) w(OC,C)^T + b        dinp (N,C) = dout (N,OC) w
//   dw (OC,C) into= dout^T inp                               db (OC) into= column sums of dout
// 2*N*C*OC FLOP each; X in and out, fp32 (or TF32) inside; deterministic.
//
// Epilogues that save a pass over memory, and what runs where the library has none for the shape:
//   bias, residual      fp32, bf16   both written into out first, the product added to it
//   gelu, gelu'         bf16         gelu.cu over the stored pre-activation (N*OC*4 bytes, 6 for the slope), or
//                                    linear_wgmma.cu, product and all; which, linear_tune.cu finds by timing
//   bias gradient       bf16         column_sum.cu (N*OC*2 bytes)
// fp32 does the last two by its own kernels always: the library does not say how exact its tanh is
// (ours: 1e-6), and under TF32 it would sum rounded values. LinearState::notes tells of fallbacks.
#include <algorithm>

#include "column_sum.h"
#include "lane.cuh"
#include "linear.h"
#include "linear_plan.h"
#include "linear_wgmma.h"
#include "pack.cuh"

namespace llmc {
namespace {

constexpr int THREADS = 256;

template <class X>
constexpr bool fuses_more_than_bias = sizeof(X) == 2;

void check_sizes(const char *op, int N, int C, int OC) {
    if (N < 0 || C < 1 || OC < 1) fail(LLMC_INVALID, "%s: N %d, C %d, OC %d, expected N >= 0, C >= 1, OC >= 1", op, N, C, OC);
}

// Whether tuning found our own product the quickest for these operands.
bool runs_own(Lane &lane, const ProductShape &shape, const Operands &operands) {
    return linear_state(lane).plan(lane, shape, operands, CUDA_R_16BF).way == Way::OWN;
}

// False, and nothing is enqueued, where the epilogue is missing or was found slower.
template <class X>
bool try_product(Lane &lane, const ProductShape &shape, const Operands &operands) {
    LinearState &state = linear_state(lane);
    ProductPlan &plan = state.plan(lane, shape, operands, cuda_type<X>());
    if (!plan.available || plan.way != Way::LIBRARY) return false;
    state.run(lane, plan, operands);
    return true;
}

template <class X>
void product(Lane &lane, const ProductShape &shape, const Operands &operands) {
    if (!try_product<X>(lane, shape, operands))
        fail(LLMC_UNAVAILABLE, "linear: cuBLASLt has no algorithm for the %s", describe(shape, cuda_type<X>()).c_str());
}

// out = residual + row, each where it isn't null
template <class X>
__global__ void __launch_bounds__(THREADS) start_rows(X *out, const X *residual, const X *row, int64_t n, int OC) {
    const int64_t i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (i < n) out[i] = from_float<X>((residual ? to_float(residual[i]) : 0.0f) + (row ? to_float(row[i % OC]) : 0.0f));
}

template <class X>
void add_product_to_rows(Lane &lane, X *out, const X *residual, const X *inp, const X *w, const X *b, int N, int C, int OC) {
    const int64_t n = int64_t(N) * OC;
    start_rows<<<unsigned(ceil_div(n, THREADS)), THREADS, 0, lane.stream>>>(out, residual, b, n, OC);
    launch_check("linear: bias and residual");
    product<X>(lane, {Product::FORWARD, Epilogue::NONE, Into::ADD, N, C, OC}, {w, inp, out});
}

}  // namespace

template <class X>
void linear_forward(Lane &lane, X *out, const X *inp, const X *w, const X *b, int N, int C, int OC) {
    check_sizes("linear_forward", N, C, OC);
    if (N == 0) return;
    const Operands operands{w, inp, out, b};
    if (!b) return product<X>(lane, {Product::FORWARD, Epilogue::NONE, Into::ASSIGN, N, C, OC}, operands);
    if (try_product<X>(lane, {Product::FORWARD, Epilogue::BIAS, Into::ASSIGN, N, C, OC}, operands)) return;
    add_product_to_rows<X>(lane, out, nullptr, inp, w, b, N, C, OC);
}

template <class X>
void linear_residual_forward(Lane &lane, X *out, const X *residual, const X *inp, const X *w, const X *b, int N, int C, int OC) {
    check_sizes("linear_residual_forward", N, C, OC);
    if (N == 0) return;
    const Epilogue epilogue = b ? Epilogue::BIAS : Epilogue::NONE;
    if (try_product<X>(lane, {Product::FORWARD, epilogue, Into::ADD, N, C, OC}, {w, inp, out, b, nullptr, residual})) return;
    add_product_to_rows(lane, out, residual, inp, w, b, N, C, OC);
}

template <class X>
void linear_gelu_forward(Lane &lane, X *out, X *pre, const X *inp, const X *w, const X *b, int N, int C, int OC) {
    check_sizes("linear_gelu_forward", N, C, OC);
    if (N == 0) return;
    if constexpr (fuses_more_than_bias<X>) {
        const ProductShape shape{Product::FORWARD, b ? Epilogue::GELU_BIAS : Epilogue::GELU, Into::ASSIGN, N, C, OC};
        const Operands operands{w, inp, out, b, pre};
        if (runs_own(lane, shape, operands)) return wgmma_gelu_forward(lane, out, pre, inp, w, b, N, C, OC);
        if (try_product<X>(lane, shape, operands)) return;
    }
    linear_forward(lane, pre, inp, w, b, N, C, OC);
    gelu_forward(lane, out, pre, int64_t(N) * OC);
}

template <class X>
void linear_backward_input(Lane &lane, X *dinp, const X *dout, const X *w, int N, int C, int OC) {
    check_sizes("linear_backward_input", N, C, OC);
    if (N == 0) return;
    product<X>(lane, {Product::BACKWARD_INPUT, Epilogue::NONE, Into::ASSIGN, N, C, OC}, {w, dout, dinp});
}

template <class X>
void linear_gelu_backward_input(Lane &lane, X *dpre, X *dsum, void *scratch, const X *dout, const X *w, const X *pre, int N, int C, int OC, Into into) {
    check_sizes("linear_gelu_backward_input", N, C, OC);
    if constexpr (fuses_more_than_bias<X>) {
        const ProductShape shape{Product::BACKWARD_INPUT, Epilogue::GELU_SLOPE, Into::ASSIGN, N, C, OC};
        const Operands operands{w, dout, dpre, nullptr, pre};
        if (N > 0 && runs_own(lane, shape, operands)) {
            float *const partials = dsum ? static_cast<float *>(scratch) : nullptr;
            wgmma_gelu_backward(lane, dpre, partials, dout, w, pre, N, C, OC);
            if (dsum) add_partials(lane, dsum, partials, wgmma_slices(N), C, into);
            return;
        }
        if (N > 0 && try_product<X>(lane, shape, operands)) {
            if (dsum) column_sum(lane, dsum, scratch, dpre, N, C, into);
            return;
        }
    }
    linear_backward_input(lane, dpre, dout, w, N, C, OC);
    gelu_backward(lane, dpre, dsum, scratch, dpre, pre, N, C, into);
}

template <class X>
void linear_backward_weight(Lane &lane, X *dw, const X *dout, const X *inp, int N, int C, int OC, Into into) {
    check_sizes("linear_backward_weight", N, C, OC);
    if (N == 0) {  // a sum of nothing
        if (into == Into::ASSIGN) cuda_check(cudaMemsetAsync(dw, 0, size_t(OC) * C * sizeof(X), lane.stream), "linear_backward_weight: zero dw");
        return;
    }
    product<X>(lane, {Product::BACKWARD_WEIGHT, Epilogue::NONE, into, N, C, OC}, {inp, dout, dw});
}

size_t linear_scratch_bytes(int N, int OC) { return std::max(column_sum_bytes(N, OC), size_t(wgmma_slices(N)) * size_t(std::max(OC, 0)) * sizeof(float)); }

void linear_prepare(Lane &lane) { linear_state(lane); }

std::string linear_take_notes(Lane &lane) {
    std::string notes;
    if (lane.blas) std::swap(notes, linear_state(lane).notes);
    return notes;
}

#define INSTANTIATE(X)                                                                                                       \
    template void linear_forward(Lane &, X *, const X *, const X *, const X *, int, int, int);                               \
    template void linear_residual_forward(Lane &, X *, const X *, const X *, const X *, const X *, int, int, int);            \
    template void linear_gelu_forward(Lane &, X *, X *, const X *, const X *, const X *, int, int, int);                     \
    template void linear_backward_input(Lane &, X *, const X *, const X *, int, int, int);                                   \
    template void linear_gelu_backward_input(Lane &, X *, X *, void *, const X *, const X *, const X *, int, int, int, Into);  \
    template void linear_backward_weight(Lane &, X *, const X *, const X *, int, int, int, Into);
INSTANTIATE(float)
INSTANTIATE(bf16)
#undef INSTANTIATE

}  // namespace llmc
