// linear_wgmma.h (CUDA, private) - the two products of the MLP that come with GELU, by a kernel of our own
// for compute capability 9.0, where the library's epilogues stop its tensor cores (H200, N=65536, C=768:
// its product with GELU's slope takes a third longer than the product, its bias gradient twice as long again).
#pragma once
#include <cstddef>

#include "../ops.h"

namespace llmc {

// The device can and the library holds the code (target sm_90a), C % 64 == 0 and OC % 8 == 0, any N >= 1.
bool wgmma_gelu_available(const Lane &, int N, int C, int OC);

// The ops below want every pointer aligned to 16 bytes. Deterministic: no atomics, one order of sums.
//
// dpre = (dout w) * gelu'(pre), the product rounded to bf16 first, as by two kernels. column_partials, if
// not null, gets the sums of dpre (as it is stored) over each 128 rows: add_partials of column_sum.h makes
// the bias gradient of them.
void wgmma_gelu_backward(Lane &, bf16 *dpre /*(N,C)*/, float *column_partials /*(wgmma_slices(N),C)*/, const bf16 *dout /*(N,OC)*/,
                         const bf16 *w /*(OC,C)*/, const bf16 *pre /*(N,C)*/, int N, int C, int OC);
inline int wgmma_slices(int N) { return (N + 127) / 128; }

// pre = inp w^T + b, out = gelu(pre) of the rounded pre; b may be null
void wgmma_gelu_forward(Lane &, bf16 *out /*(N,OC)*/, bf16 *pre /*(N,OC)*/, const bf16 *inp /*(N,C)*/, const bf16 *w /*(OC,C)*/,
                        const bf16 *b /*(OC)*/, int N, int C, int OC);

}  // namespace llmc
