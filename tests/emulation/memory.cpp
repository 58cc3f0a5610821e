// memory.cpp - memory of the emulated device: pages of the host's, which the system hands out zeroed, so that a batch that
// is read too early still holds tokens.
#include <sys/mman.h>

#include <cstring>
#include <map>

#include "runtime.h"

namespace {

constexpr size_t MEMORY = size_t(16) << 30;

std::mutex mutex;
std::map<void *, size_t> allocated;

cudaError_t allocate(void **memory, size_t bytes, const char *call) {
    if (emulation::captures()) return emulation::broken(cudaErrorStreamCaptureUnsupported, std::string(call) + " in a capture");
    void *const pages = bytes > MEMORY ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return emulation::failed(cudaErrorMemoryAllocation, "out of memory");
    const std::lock_guard<std::mutex> lock(mutex);
    allocated[*memory = pages] = bytes;
    return cudaSuccess;
}

cudaError_t release(void *memory, const char *call) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = allocated.find(memory);
    if (found == allocated.end()) return emulation::broken(cudaErrorInvalidValue, std::string(call) + " of what isn't allocated");
    munmap(memory, found->second);
    allocated.erase(found);
    return cudaSuccess;
}

}  // namespace

cudaError_t cudaMalloc(void **memory, size_t bytes) { return allocate(memory, bytes, "cudaMalloc"); }
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned) { return allocate(memory, bytes, "cudaHostAlloc"); }
cudaError_t cudaFree(void *memory) { return release(memory, "cudaFree"); }
cudaError_t cudaFreeHost(void *memory) { return release(memory, "cudaFreeHost"); }
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    *free = *total = MEMORY;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    const char *const name = kind == cudaMemcpyHostToDevice ? "upload" : kind == cudaMemcpyDeviceToHost ? "download" : "copying on the device";
    return emulation::submit(stream, {emulation::Work::RUN, name, [=] { std::memcpy(to, from, bytes); }});
}
cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream) {
    return emulation::submit(stream, {emulation::Work::RUN, "clearing memory", [=] { std::memset(memory, value, bytes); }});
}
