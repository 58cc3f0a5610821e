// embedding.cpp - token and position tables.
//   out[b,t] = wte[tokens[b,t]] + wpe[first + t]                          (B,T,C)
//   dwte[v] += sum of dout over the positions that hold v,  dwpe[t] into= sum over b of dout[b,t]
// The backward gives every thread a range of channels and all positions in order: two positions with the
// same token then never meet, each element is summed in one order, and no index of tokens is needed.
#include "../ops.h"
#include "parallel.h"

namespace llmc {

template <class X>
void embedding_forward(Lane &lane, X *out, const int *tokens, const X *wte, const X *wpe, int B, int T, int C, const int *first) {
    const int64_t N = int64_t(B) * T, start = first ? *first : 0;
    parallel_slices(lane, N, 1, N * C, [=](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; n++) {
            const X *token = wte + int64_t(tokens[n]) * C, *position = wpe + (start + n % T) * C;
            X *row = out + n * C;
#pragma omp simd
            for (int64_t c = 0; c < C; c++) row[c] = token[c] + position[c];
        }
    });
}

size_t embedding_index_bytes(int, int) { return 0; }
void embedding_index(Lane &, void *, const int *, int, int) {}

template <class X>
void embedding_backward(Lane &lane, X *dwte, X *dwpe, const X *dout, const int *tokens, const void *, int B, int T, int C, int,
                        int maxT, Into into) {
    const int64_t N = int64_t(B) * T;
    parallel_slices(lane, C, 16, N * C, [=](int64_t begin, int64_t end) {
        for (int64_t n = 0; n < N; n++) {
            const X *from = dout + n * C;
            X *token = dwte + int64_t(tokens[n]) * C, *position = dwpe + n % T * C;
            const bool assign = into == Into::ASSIGN && n < T;  // the first sequence meets each position first
#pragma omp simd
            for (int64_t c = begin; c < end; c++) {
                token[c] += from[c];
                position[c] = assign ? from[c] : position[c] + from[c];
            }
        }
        if (into == Into::ADD) return;
        for (int64_t t = T; t < maxT; t++) std::fill(dwpe + t * C + begin, dwpe + t * C + end, X(0));
    });
}

template void embedding_forward<float>(Lane &, float *, const int *, const float *, const float *, int, int, int, const int *);
template void embedding_backward<float>(Lane &, float *, float *, const float *, const int *, const void *, int, int, int, int, int, Into);

}  // namespace llmc
