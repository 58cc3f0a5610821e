// layernorm.cpp - normalisation of each row of (N,C).
//   mean = sum x / C,  rstd = 1 / sqrt(sum (x - mean)^2 / C + 1e-5),  z = (x - mean) rstd,  out = z w + b
//   dx into= rstd (g - mean(g) - z mean(g z)),  g = dout w      dw into= sum over rows of dout z,  db of dout,  dsum of dx
// The variance takes a second pass over the row (it is in L1): E[x^2] - E[x]^2 would cancel.
#include <cmath>

#include "../ops.h"
#include "parallel.h"
#include "vector.h"

namespace llmc {

namespace {

constexpr int64_t ROW_GROUPS = 64;  // partial sums of dw, db, dsum; fixed, so that threads do not change the result

LLMC_CLONES void normalise_rows(float *out, float *mean, float *rstd, const float *inp, const float *w, const float *b, int64_t rows, int64_t C) {
    for (int64_t n = 0; n < rows; n++, inp += C, out += C) {
        float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < C; c++) sum += inp[c];
        const float m = sum / float(C);
#pragma omp simd reduction(+ : squares)
        for (int64_t c = 0; c < C; c++) squares += (inp[c] - m) * (inp[c] - m);
        const float r = 1.0f / std::sqrt(squares / float(C) + 1e-5f);
#pragma omp simd
        for (int64_t c = 0; c < C; c++) out[c] = (inp[c] - m) * r * w[c] + b[c];
        mean[n] = m;
        rstd[n] = r;
    }
}

LLMC_CLONES void add_row(float *sum, const float *row, int64_t C) {
#pragma omp simd
    for (int64_t c = 0; c < C; c++) sum[c] += row[c];
}

// dw, db, dsum: this group's partial sums (C) each, added to.
LLMC_CLONES void backward_rows(float *dinp, float *dw, float *db, float *dsum, const float *dout, const float *inp, const float *w,
                               const float *mean, const float *rstd, int64_t rows, int64_t C, bool add) {
    const float keep = add ? 1.0f : 0.0f;
    for (int64_t n = 0; n < rows; n++, dinp += C, dout += C, inp += C) {
        const float m = mean[n], r = rstd[n];
        float g_sum = 0, gz_sum = 0;
#pragma omp simd reduction(+ : g_sum, gz_sum)
        for (int64_t c = 0; c < C; c++) {
            const float z = (inp[c] - m) * r, g = dout[c] * w[c];
            g_sum += g;
            gz_sum += g * z;
            dw[c] += dout[c] * z;
            db[c] += dout[c];
        }
        const float g_mean = g_sum / float(C), gz_mean = gz_sum / float(C);
#pragma omp simd
        for (int64_t c = 0; c < C; c++) {
            const float z = (inp[c] - m) * r;
            const float dx = r * (dout[c] * w[c] - g_mean - z * gz_mean);
            dinp[c] = keep != 0 ? dinp[c] + dx : dx;
            dsum[c] += dinp[c];
        }
    }
}

}  // namespace

template <class X>
void layernorm_forward(Lane &lane, X *out, float *mean, float *rstd, const X *inp, const X *w, const X *b, int N, int C) {
    parallel_slices(lane, N, 1, int64_t(N) * C, [=](int64_t begin, int64_t end) {
        normalise_rows(out + begin * C, mean + begin, rstd + begin, inp + begin * C, w, b, end - begin, C);
    });
}

size_t layernorm_scratch_bytes(int, int C) { return sizeof(float) * 3 * ROW_GROUPS * size_t(C); }

template <class X>
void layernorm_backward(Lane &lane, X *dinp, X *dw, X *db, X *dsum, void *scratch, const X *dout, const X *inp, const X *w, const float *mean,
                        const float *rstd, int N, int C, Into into_inp, Into into_param) {
    const int64_t groups = std::min<int64_t>(ROW_GROUPS, N);
    float *partial = static_cast<float *>(scratch);  // (groups,3,C)
    parallel_slices(lane, groups, 1, int64_t(N) * C, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            const Slice rows = slice(N, i, groups);
            float *sums = partial + i * 3 * C;
            std::fill(sums, sums + 3 * int64_t(C), 0.0f);
            backward_rows(dinp + rows.begin * C, sums, sums + C, sums + 2 * C, dout + rows.begin * C, inp + rows.begin * C, w, mean + rows.begin,
                          rstd + rows.begin, rows.size(), C, into_inp == Into::ADD);
        }
    });
    parallel_slices(lane, C, 16, groups * C, [=](int64_t begin, int64_t end) {
        X *const to[] = {dw, db, dsum};
        for (int64_t part = 0; part < (dsum ? 3 : 2); part++) {
            if (into_param == Into::ASSIGN) std::fill(to[part] + begin, to[part] + end, X(0));
            for (int64_t i = 0; i < groups; i++) add_row(to[part] + begin, partial + (i * 3 + part) * C + begin, end - begin);
        }
    });
}

template void layernorm_forward<float>(Lane &, float *, float *, float *, const float *, const float *, const float *, int, int);
template void layernorm_backward<float>(Lane &, float *, float *, float *, float *, void *, const float *, const float *, const float *,
                                        const float *, const float *, int, int, Into, Into);

}  // namespace llmc
