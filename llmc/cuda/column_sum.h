// column_sum.h (CUDA) - sums over the rows of a matrix: the bias gradient where no product's epilogue makes it.
#pragma once
#include "../ops.h"

namespace llmc {

// sums (OC) into= column sums of matrix (N,OC), in fp32 and a fixed order. scratch: column_sum_bytes(N, OC).
template <class X>
void column_sum(Lane &, X *sums, void *scratch, const X *matrix, int N, int OC, Into);
size_t column_sum_bytes(int N, int OC);

}  // namespace llmc
