// column_sum.h (CPU) - sums (OC) into= sum over n of matrix[n][c], in the order of the rows. N*OC additions.
#pragma once
#include "../ops.h"

namespace llmc {

void column_sum(Lane &, float *sums /*(OC)*/, const float *matrix /*(N,OC)*/, int N, int OC, Into);

}  // namespace llmc
