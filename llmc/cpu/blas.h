// blas.h - the few symbols we need of OpenBLAS (wheel scipy-openblas32, hence the prefix), row-major.
// Every call runs on the calling thread alone; linear.cpp and attention.cpp do the splitting. One team of
// threads then serves the whole step, and a sum's order does not depend on a second scheduler.
#pragma once
#include <cstdint>

extern "C" {
void scipy_cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a, int lda,
                       const float *b, int ldb, float beta, float *c, int ldc);
void scipy_openblas_set_num_threads(int threads);
char *scipy_openblas_get_config(void);
char *scipy_openblas_get_corename(void);
}

namespace llmc {

enum class Side { AS_IS = 111, TRANSPOSED = 112 };  // CBLAS's values

// c (m,n) = alpha * op(a) op(b) + beta * c with op(a) (m,k), op(b) (k,n); ld: elements from row to row.
inline void gemm(Side a_side, Side b_side, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                 const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    const int row_major = 101;
    scipy_cblas_sgemm(row_major, int(a_side), int(b_side), int(m), int(n), int(k), alpha, a, int(lda), b, int(ldb), beta, c, int(ldc));
}

}  // namespace llmc
