// memory.cu - memory of a CUDA device, and copies from and to it. No managed memory: pages that move by themselves
// would be waits without a name.
#include "../device.h"

#include "lane.cuh"

namespace llmc {

void device_memory(int64_t *free_bytes, int64_t *total_bytes) {
    size_t free_now = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free_now, &total), "reading free memory");
    *free_bytes = int64_t(free_now);
    *total_bytes = int64_t(total);
}

namespace {
[[noreturn]] void no_memory(const char *what, size_t bytes) {
    size_t free_now = 0, total = 0;
    if (cudaMemGetInfo(&free_now, &total) != cudaSuccess) cudaGetLastError();
    fail(LLMC_NO_MEMORY, "%s: needed %zu bytes (%.2f GiB), free %zu bytes (%.2f GiB)", what, bytes, double(bytes) / (1 << 30), free_now, double(free_now) / (1 << 30));
}
}  // namespace

void *device_alloc(size_t bytes) {
    if (bytes == 0) return nullptr;
    void *memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, bytes);
    if (status == cudaErrorMemoryAllocation) cudaGetLastError(), no_memory("device memory", bytes);
    cuda_check(status, "device memory");
    return memory;
}
void device_free(void *memory) noexcept {
    if (memory && cudaFree(memory) != cudaSuccess) cudaGetLastError();
}
void *pinned_alloc(size_t bytes) {
    void *memory = nullptr;
    const cudaError_t status = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
    if (status == cudaErrorMemoryAllocation) cudaGetLastError(), no_memory("pinned host memory", bytes);
    cuda_check(status, "pinned host memory");
    return memory;
}
void pinned_free(void *memory) noexcept {
    if (memory && cudaFreeHost(memory) != cudaSuccess) cudaGetLastError();
}

void copy_to_device(Lane &lane, void *device, const void *host, size_t bytes) {
    if (bytes) cuda_check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, lane.stream), "upload");
}
void copy_to_host(Lane &lane, void *host, const void *device, size_t bytes) {
    if (bytes) cuda_check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, lane.stream), "download");
}
void copy_on_device(Lane &lane, void *to, const void *from, size_t bytes) {
    if (bytes) cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, lane.stream), "copying on the device");
}
void fill_zero(Lane &lane, void *device, size_t bytes) {
    if (bytes) cuda_check(cudaMemsetAsync(device, 0, bytes, lane.stream), "clearing memory");
}
void copy_to_device_now(Lane &lane, void *device, const void *host, size_t bytes) {
    copy_to_device(lane, device, host, bytes);
    cuda_check(cudaStreamSynchronize(lane.stream), "upload");
}
void copy_to_host_now(Lane &lane, void *host, const void *device, size_t bytes) {
    copy_to_host(lane, host, device, bytes);
    cuda_check(cudaStreamSynchronize(lane.stream), "download");
}

}  // namespace llmc
