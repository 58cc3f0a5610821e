// lane.cuh (CUDA) - one stream with the library handles and scratch that belong to it alone, and the
// error checks every launcher ends with.
#pragma once
#include <cuda_runtime.h>

#include <memory>

#include "../error.h"
#include "../lanes.h"

namespace llmc {

struct Lane {
    cudaStream_t stream = nullptr;
    int device = 0;
    int sms = 0;                     // multiprocessors
    int capability = 0;              // 90 for 9.0
    int max_shared = 0;              // bytes of shared memory a block may opt in to
    size_t l2_bytes = 0;
    bool tf32 = false;               // fp32 matrix products may use TF32
    bool deterministic = false;
    void *blas_workspace = nullptr;  // for matrix products on this stream only
    size_t blas_workspace_bytes = 0;
    std::shared_ptr<void> blas;      // linear.cu's state: handle and plans, made on first use
    std::shared_ptr<void> attention; // attention's state: cuDNN handle and plans, made by attention_prepare
};

// Turns a CUDA status into Error: out of memory keeps its own status, everything else poisons the model.
inline void cuda_check(cudaError_t status, const char *what) {
    if (status == cudaSuccess) return;
    cudaGetLastError();  // clear a non-sticky error so that the next call is judged on its own
    fail(status == cudaErrorMemoryAllocation ? LLMC_NO_MEMORY : LLMC_DEVICE, "%s: CUDA error %d (%s)", what, int(status), cudaGetErrorString(status));
}

// After a kernel launch: reports a bad configuration. Faults inside the kernel surface at a later call.
inline void launch_check(const char *kernel) { cuda_check(cudaPeekAtLastError(), kernel); }

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace llmc
