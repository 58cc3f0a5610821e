// linear.cpp - out = inp w^T + b and its gradients, on OpenBLAS.
//   out (N,OC) = [residual +] inp (N,C) w^T (C,OC) + b     dinp (N,C) = dout (N,OC) w (OC,C)
//   dw (OC,C) into= dout^T (OC,N) inp (N,C)                db (OC) into= column sums of dout
// The output is cut into a grid of tiles, one per thread, and each thread runs one single-threaded product;
// bias and GELU follow on the tile it has just written, still in its cache. N*C*OC*2 FLOPs each.
#include "../ops.h"
#include "blas.h"
#include "column_sum.h"
#include "gelu.h"
#include "parallel.h"

namespace llmc {

namespace {

struct Tile {
    Slice row, col;
};

// Cuts (M,N) into a grid with about one tile per thread. A tile's product reads M/r rows of one operand and N/c rows of the
// other, all threads together c M + r N: the grid that reads (and lets OpenBLAS pack) least wins.
template <class Body>
void for_tiles(const Lane &lane, int64_t M, int64_t N, const Body &body) {
    const int64_t grain = 16;  // a cache line, and a multiple of the kernels' register block
    int64_t r = 1, c = lane.threads, least = INT64_MAX;
    for (int64_t rows = 1; rows <= lane.threads; rows++) {
        if (lane.threads % rows != 0) continue;
        const int64_t cols = lane.threads / rows, idle = (rows > (M + grain - 1) / grain) + (cols > (N + grain - 1) / grain);
        const int64_t reads = cols * M + rows * N + idle * (INT64_MAX / 4);
        if (reads < least) r = rows, c = cols, least = reads;
    }
#pragma omp parallel for num_threads(lane.threads) schedule(static, 1) if (M *N >= WORTH_A_TEAM)
    for (int64_t i = 0; i < r * c; i++) {
        const Tile tile{slice(M, i / c, r, grain), slice(N, i % c, c, grain)};
        if (tile.row.size() > 0 && tile.col.size() > 0) body(tile);
    }
}

void add_product(const Tile &t, float *out, const float *inp, const float *w, float beta, int64_t C, int64_t OC) {
    gemm(Side::AS_IS, Side::TRANSPOSED, t.row.size(), t.col.size(), C, 1, inp + t.row.begin * C, C, w + t.col.begin * C, C, beta,
         out + t.row.begin * OC + t.col.begin, OC);
}

// The bias goes in first and the product is added to it: OpenBLAS would otherwise write zeros there.
void product_with_bias(const Tile &t, float *out, const float *inp, const float *w, const float *b, int64_t C, int64_t OC) {
    if (b) {
        for (int64_t n = t.row.begin; n < t.row.end; n++) std::copy(b + t.col.begin, b + t.col.end, out + n * OC + t.col.begin);
    }
    add_product(t, out, inp, w, b ? 1 : 0, C, OC);
}

void product_backward(const Tile &t, float *dinp, const float *dout, const float *w, int64_t C, int64_t OC) {
    gemm(Side::AS_IS, Side::AS_IS, t.row.size(), t.col.size(), OC, 1, dout + t.row.begin * OC, OC, w + t.col.begin, C, 0,
         dinp + t.row.begin * C + t.col.begin, C);
}

}  // namespace

template <class X>
void linear_forward(Lane &lane, X *out, const X *inp, const X *w, const X *b, int N, int C, int OC) {
    for_tiles(lane, N, OC, [=](const Tile &t) { product_with_bias(t, out, inp, w, b, C, OC); });
}

template <class X>
void linear_residual_forward(Lane &lane, X *out, const X *residual, const X *inp, const X *w, const X *b, int N, int C, int OC) {
    for_tiles(lane, N, OC, [=](const Tile &t) {
        for (int64_t n = t.row.begin; n < t.row.end; n++) {
            for (int64_t c = t.col.begin; c < t.col.end; c++) out[n * OC + c] = residual[n * OC + c] + (b ? b[c] : 0.0f);
        }
        add_product(t, out, inp, w, 1, C, OC);
    });
}

template <class X>
void linear_gelu_forward(Lane &lane, X *out, X *pre, const X *inp, const X *w, const X *b, int N, int C, int OC) {
    for_tiles(lane, N, OC, [=](const Tile &t) {
        product_with_bias(t, pre, inp, w, b, C, OC);
        for (int64_t n = t.row.begin; n < t.row.end; n++) {
            gelu_range(out + n * OC + t.col.begin, pre + n * OC + t.col.begin, t.col.size());
        }
    });
}

template <class X>
void linear_backward_input(Lane &lane, X *dinp, const X *dout, const X *w, int N, int C, int OC) {
    for_tiles(lane, N, C, [=](const Tile &t) { product_backward(t, dinp, dout, w, C, OC); });
}

template <class X>
void linear_gelu_backward_input(Lane &lane, X *dpre, X *dsum, void *, const X *dout, const X *w, const X *pre, int N, int C, int OC, Into into) {
    for_tiles(lane, N, C, [=](const Tile &t) {
        product_backward(t, dpre, dout, w, C, OC);
        for (int64_t n = t.row.begin; n < t.row.end; n++) {
            float *row = dpre + n * C + t.col.begin;
            gelu_gradient_range(row, row, pre + n * C + t.col.begin, t.col.size());
        }
    });
    if (dsum) column_sum(lane, dsum, dpre, N, C, into);
}

size_t linear_scratch_bytes(int, int) { return 0; }

template <class X>
void linear_backward_weight(Lane &lane, X *dw, const X *dout, const X *inp, int N, int C, int OC, Into into) {
    const float beta = into == Into::ADD ? 1 : 0;
    for_tiles(lane, OC, C, [=](const Tile &t) {
        gemm(Side::TRANSPOSED, Side::AS_IS, t.row.size(), t.col.size(), N, 1, dout + t.row.begin, OC, inp + t.col.begin, C, beta,
             dw + t.row.begin * C + t.col.begin, C);
    });
}

// OpenBLAS chooses by itself, and has nothing to tell.
template <class X>
void linear_choose(Lane &, const std::vector<LinearUse> &, bool, void *, size_t) {}
std::string linear_take_notes(Lane &) { return {}; }
std::string linear_export_tuning() { return {}; }
void linear_import_tuning(const std::string &) {}

template void linear_choose<float>(Lane &, const std::vector<LinearUse> &, bool, void *, size_t);
template void linear_forward<float>(Lane &, float *, const float *, const float *, const float *, int, int, int);
template void linear_residual_forward<float>(Lane &, float *, const float *, const float *, const float *, const float *, int, int, int);
template void linear_gelu_forward<float>(Lane &, float *, float *, const float *, const float *, const float *, int, int, int);
template void linear_backward_input<float>(Lane &, float *, const float *, const float *, int, int, int);
template void linear_gelu_backward_input<float>(Lane &, float *, float *, void *, const float *, const float *, const float *, int, int, int, Into);
template void linear_backward_weight<float>(Lane &, float *, const float *, const float *, int, int, int, Into);

}  // namespace llmc
