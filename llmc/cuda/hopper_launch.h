// hopper_launch.h (CUDA, private) - what the launchers of kernels for target sm_90a share.
#pragma once
#include <atomic>
#include <cstdint>

#include "lane.cuh"

namespace llmc {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool FOR_SM_90A = true;
#else
constexpr bool FOR_SM_90A = false;  // for other targets such a kernel is empty
#endif

// Whether the library holds KERNEL's code for this device: an empty kernel has no static shared memory.
template <auto KERNEL>
bool has_code() {
    static const bool found = [] {
        cudaFuncAttributes facts = {};
        const cudaError_t status = cudaFuncGetAttributes(&facts, KERNEL);
        if (status != cudaSuccess) cudaGetLastError();
        return status == cudaSuccess && facts.sharedSizeBytes > 0;
    }();
    return found;
}

// Lets KERNEL have `bytes` of dynamic shared memory; a device is told once.
template <auto KERNEL>
void allow_shared(const Lane &lane, int bytes, const char *op) {
    static std::atomic<uint64_t> allowed{0};  // a bit a device
    const uint64_t device = uint64_t(1) << (lane.device % 64);
    if (allowed.load() & device) return;
    cuda_check(cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), op);
    allowed.fetch_or(device);
}

}  // namespace llmc
