// column_sum.h (CUDA) - sums over the rows of a matrix: a bias gradient where no other op makes it in passing.
#pragma once
#include "../ops.h"

namespace llmc {

// sums (OC) into= column sums of matrix (N,OC), in fp32 and a fixed order. scratch: column_sum_bytes(N, OC).
template <class X>
void column_sum(Lane &, X *sums, void *scratch, const X *matrix, int N, int OC, Into);
size_t column_sum_bytes(int N, int OC);

// Its second half, for kernels that leave sums of their own rows: sums (OC) into= sum of partial (parts,OC).
template <class X>
void add_partials(Lane &, X *sums, const float *partial, int parts, int OC, Into);

}  // namespace llmc
