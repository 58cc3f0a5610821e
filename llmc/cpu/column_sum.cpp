// column_sum.cpp - each thread takes its own columns, so that threads do not change the order of a sum.
#include "column_sum.h"

#include <algorithm>

#include "parallel.h"
#include "vector.h"

namespace llmc {

namespace {

LLMC_CLONES void add_rows(float *sum, const float *rows, int64_t count, int64_t stride, int64_t n) {
    for (int64_t r = 0; r < count; r++, rows += stride) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) sum[i] += rows[i];
    }
}

}  // namespace

void column_sum(Lane &lane, float *sums, const float *matrix, int N, int OC, Into into) {
    parallel_slices(lane, OC, 16, int64_t(N) * OC, [=](int64_t begin, int64_t end) {
        if (into == Into::ASSIGN) std::fill(sums + begin, sums + end, 0.0f);
        add_rows(sums + begin, matrix + begin, N, OC, end - begin);
    });
}

}  // namespace llmc
