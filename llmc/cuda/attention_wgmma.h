// attention_wgmma.h (CUDA, private) - attention's backward by kernels of our own for compute capability 9.0.
#pragma once
#include <cstddef>

#include "../ops.h"

namespace llmc {

// The device can and the library holds the code (target sm_90a), head size 64, T % 128 == 0.
bool wgmma_attention_available(const Lane &, int T, int C, int NH);

// attention_backward of ops.h for bf16. Every pointer aligned to 16 bytes, scratch of wgmma_attention_scratch_bytes.
// Deterministic.
void wgmma_attention_backward(Lane &, bf16 *dqkv, bf16 *dsum, void *scratch, const bf16 *dout, const bf16 *qkv, const bf16 *out, const float *lse, int B,
                              int T, int C, int NH, Into);
size_t wgmma_attention_scratch_bytes(int B, int T, int NH);

}  // namespace llmc
