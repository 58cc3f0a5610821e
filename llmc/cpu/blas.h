// blas.h - the few symbols we need of OpenBLAS (wheel scipy-openblas32, hence the prefix), row-major.
// Every call runs on the calling thread alone; linear.cpp and attention.cpp do the splitting. One team of
// threads then serves the whole step, and a sum's order does not depend on a second scheduler.
#pragma once
#include <cstdint>

extern "C" {
void scipy_cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a, int lda,
                       const float *b, int ldb, float beta, float *c, int ldc);
void scipy_cblas_sgemv(int order, int transpose, int m, int n, float alpha, const float *a, int lda, const float *x, int incx, float beta,
                       float *y, int incy);
void scipy_openblas_set_num_threads(int threads);
char *scipy_openblas_get_config(void);
char *scipy_openblas_get_corename(void);
}

namespace llmc {

constexpr int64_t FEW_ROWS = 3;

enum class Side { AS_IS = 111, TRANSPOSED = 112 };  // CBLAS's values

// c (m,n) = alpha * op(a) op(b) + beta * c with op(a) (m,k), op(b) (k,n); ld: elements from row to row.
inline void gemm(Side a_side, Side b_side, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                 const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    const int row_major = 101;
    // A few rows (generation): sgemm would first copy all of b into its packed form, which costs more than the product.
    if (m <= FEW_ROWS && a_side == Side::AS_IS && b_side == Side::TRANSPOSED) {
        for (int64_t i = 0; i < m; i++) {
            scipy_cblas_sgemv(row_major, int(Side::AS_IS), int(n), int(k), alpha, b, int(ldb), a + i * lda, 1, beta, c + i * ldc, 1);
        }
        return;
    }
    scipy_cblas_sgemm(row_major, int(a_side), int(b_side), int(m), int(n), int(k), alpha, a, int(lda), b, int(ldb), beta, c, int(ldc));
}

}  // namespace llmc
