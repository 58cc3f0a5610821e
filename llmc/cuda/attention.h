// attention.h (CUDA, private) - the seams between attention.cu (which decides) and the ways to attend:
//   attention_flash.cu       own kernels for bf16, any shape, deterministic; on attention_tile.cuh
//   attention_flash_fp32.cu  the same for float
//   attention_wgmma.cu       backward for bf16 on compute capability 9.0, head size 64, deterministic
//   attention_cudnn.cpp      cuDNN's fused attention, bf16, shapes prepared beforehand
//   attention_decode.cu      one new position against kept keys and values
// This header is plain C++: attention_cudnn.cpp is compiled by the host compiler.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

namespace llmc {

constexpr int ATTENTION_MAX_HEAD_SIZE = 256;

// One attention problem; the key of prepared plans.
struct AttentionShape {
    int B, T, C, NH;
    bool deterministic;
    bool operator<(const AttentionShape &o) const {
        return std::tie(B, T, C, NH, deterministic) < std::tie(o.B, o.T, o.C, o.NH, o.deterministic);
    }
};

// -- own kernels; scratch of the backward is fp32 (B,NH,T), the forward needs none
template <class X>
void flash_forward(cudaStream_t, int max_shared, X *out, float *lse, const X *qkv, int B, int T, int C, int NH);
template <class X>
void flash_backward(cudaStream_t, int max_shared, X *dqkv, float *scratch, const X *dout, const X *qkv, const X *out, const float *lse,
                    int B, int T, int C, int NH);

// -- cuDNN. The pointers are bf16; void keeps the CUDA types out of the host compiler's way.
class CudnnAttention {
  public:
    // Loads the library and makes a handle on the stream; null, with the reason in `why`, if that can't be.
    static std::unique_ptr<CudnnAttention> open(cudaStream_t, std::string &why);
    virtual ~CudnnAttention() = default;
    // Builds the plans of a shape, once. False, with the reason in `why`, if cuDNN has none.
    virtual bool build(const AttentionShape &, bool backward_too, std::string &why) = 0;
    virtual bool has(const AttentionShape &) const = 0;
    virtual bool has_backward(const AttentionShape &) const = 0;
    virtual size_t workspace_bytes(const AttentionShape &) const = 0;  // 0 for a shape without plans
    // For shapes that were built: enqueue and nothing else. Return "" or what cuDNN said.
    virtual std::string forward(const AttentionShape &, void *out, float *lse, const void *qkv, void *workspace) = 0;
    virtual std::string backward(const AttentionShape &, void *dqkv, void *workspace, const void *dout, const void *qkv, const void *out,
                                 const float *lse) = 0;
};

}  // namespace llmc
