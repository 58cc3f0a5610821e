// device.cpp - memory of the emulated device: the host's, zeroed, so that a batch that is read too early still holds tokens.
// What is enqueued and what waits is as in llmc/cuda/device.cu.
#include "llmc/device.h"

#include <cstdlib>
#include <cstring>

#include "lane_work.h"
#include "llmc/cpu/blas.h"

namespace llmc {

namespace {

constexpr int64_t MEMORY = int64_t(16) << 30;

void *allocate(size_t bytes, const char *what) {
    if (emulation::captures()) cuda_check(emulation::broken(cudaErrorStreamCaptureUnsupported, std::string(what) + " was allocated in a capture"), what);
    const size_t whole = (bytes + 255) / 256 * 256;
    char *memory = int64_t(bytes) > MEMORY ? nullptr : static_cast<char *>(std::calloc(1, whole + 256));
    if (!memory) fail(LLMC_NO_MEMORY, "%s: needed %zu bytes", what, bytes);
    char *aligned = memory + 256 - reinterpret_cast<uintptr_t>(memory) % 256;  // calloc aligns to 16: there is room for the pointer
    std::memcpy(aligned - sizeof memory, &memory, sizeof memory);
    return aligned;
}
void release(void *memory) {
    if (!memory) return;
    void *whole;
    std::memcpy(&whole, static_cast<char *>(memory) - sizeof whole, sizeof whole);
    std::free(whole);
}
void copy(StreamLane &lane, void *to, const void *from, size_t bytes, const char *what) {
    if (bytes) enqueue(lane, what, [=](Lane &) { std::memcpy(to, from, bytes); });
}

}  // namespace

int device_count() { return 1; }
llmc_device device_info(int) {
    scipy_openblas_set_num_threads(1);
    llmc_device info{};
    std::strcpy(info.name, "emulated");
    info.multiprocessors = 1;
    info.memory_bytes = MEMORY;
    return info;
}
std::string build_info() { return "lanes of the CUDA backend on an emulated runtime, ops of the CPU backend"; }

DeviceScope::DeviceScope(int) : previous(-1) { scipy_openblas_set_num_threads(1); }
DeviceScope::~DeviceScope() {}

void device_memory(int64_t *free_bytes, int64_t *total_bytes) { *free_bytes = *total_bytes = MEMORY; }
void *device_alloc(size_t bytes) { return bytes ? allocate(bytes, "device memory") : nullptr; }
void device_free(void *memory) noexcept { release(memory); }
void *pinned_alloc(size_t bytes) { return allocate(bytes, "pinned host memory"); }
void pinned_free(void *memory) noexcept { release(memory); }

void copy_to_device(StreamLane &lane, void *device, const void *host, size_t bytes) { copy(lane, device, host, bytes, "upload"); }
void copy_to_host(StreamLane &lane, void *host, const void *device, size_t bytes) { copy(lane, host, device, bytes, "download"); }
void copy_on_device(StreamLane &lane, void *to, const void *from, size_t bytes) { copy(lane, to, from, bytes, "copying on the device"); }
void fill_zero(StreamLane &lane, void *device, size_t bytes) {
    if (bytes) enqueue(lane, "clearing memory", [=](Lane &) { std::memset(device, 0, bytes); });
}
void copy_to_device_now(StreamLane &lane, void *device, const void *host, size_t bytes) {
    copy_to_device(lane, device, host, bytes);
    cuda_check(cudaStreamSynchronize(lane.stream), "upload");
}
void copy_to_host_now(StreamLane &lane, void *host, const void *device, size_t bytes) {
    copy_to_host(lane, host, device, bytes);
    cuda_check(cudaStreamSynchronize(lane.stream), "download");
}

}  // namespace llmc
