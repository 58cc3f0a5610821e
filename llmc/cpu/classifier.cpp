// classifier.cpp - softmax, cross-entropy and its gradient of each row of logits (rows,Vp), columns < V.
//   loss = log sum_v exp(x_v - max) - (x_target - max),  dx_v = (exp(x_v - max) / sum - [v = target]) dloss
// Three visits to a row (max, exp and sum, scale); a row of GPT-2 is 200 KB and stays in L2 between them.
// With gradients the exponentials are left in the row, so each is computed once. NaN in a row: NaN loss.
#include <cmath>

#include "../ops.h"
#include "parallel.h"
#include "vector.h"

namespace llmc {

namespace {

LLMC_CLONES float largest_of(const float *x, int64_t V) {
    float largest = x[0];
#pragma omp simd reduction(max : largest)
    for (int64_t v = 0; v < V; v++) largest = x[v] > largest ? x[v] : largest;
    return largest;
}

// Sum of exp(x - largest); keeps the exponentials in `x` when asked. Stretches of 1024 are added in
// double: a float sum of 50,000 terms would lose three digits.
LLMC_CLONES double exponentials(float *x, float largest, int64_t V, bool keep) {
    double total = 0;
    for (int64_t start = 0; start < V; start += 1024) {
        const int64_t end = start + 1024 < V ? start + 1024 : V;
        float sum = 0;
        if (keep) {
#pragma omp simd reduction(+ : sum)
            for (int64_t v = start; v < end; v++) {
                const float e = fast_exp(x[v] - largest);
                x[v] = e;
                sum += e;
            }
        } else {
#pragma omp simd reduction(+ : sum)
            for (int64_t v = start; v < end; v++) sum += fast_exp(x[v] - largest);
        }
        total += sum;
    }
    return total;
}

LLMC_CLONES void scale_by(float *x, float factor, int64_t V) {
#pragma omp simd
    for (int64_t v = 0; v < V; v++) x[v] *= factor;
}

}  // namespace

template <class X>
void classifier(Lane &lane, float *losses, X *logits, const int *targets, float dloss, int rows, int V, int Vp, bool write_dlogits) {
    parallel_slices(lane, rows, 1, int64_t(rows) * V, [=](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; n++) {
            float *x = logits + n * Vp;
            const int target = targets[n];
            const float largest = largest_of(x, V), at_target = x[target] - largest;
            const double sum = exponentials(x, largest, V, write_dlogits);
            losses[n] = float(std::log(sum) - at_target);
            if (!write_dlogits) continue;
            const float p = float(x[target] / sum);
            scale_by(x, float(dloss / sum), V);
            x[target] = (p - 1.0f) * dloss;
        }
    });
}

void mean_loss(Lane &, float *mean_loss, const float *losses, float scale, int N, Into into) {
    double sum = 0;
    for (int64_t n = 0; n < N; n++) sum += losses[n];
    *mean_loss = float(sum * scale) + (into == Into::ADD ? *mean_loss : 0.0f);
}

template void classifier<float>(Lane &, float *, float *, const int *, float, int, int, int, bool);

}  // namespace llmc
