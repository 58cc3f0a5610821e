// device.cu - memory and facts of a CUDA device. No managed memory: pages that move by themselves would
// be waits without a name.
#include "../device.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "lane.cuh"

// nvcc's list of architectures, as in 800,900
#define TO_TEXT(...) TO_TEXT_(__VA_ARGS__)
#define TO_TEXT_(...) #__VA_ARGS__

namespace llmc {

int device_count() {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
    cudaGetLastError();  // no driver or no device: both mean none to use
    return 0;
}

llmc_device device_info(int device) {
    cudaDeviceProp p;
    cuda_check(cudaGetDeviceProperties(&p, device), "reading device properties");
    llmc_device info{};
    std::snprintf(info.name, sizeof info.name, "%.127s", p.name);
    // 8-4-4-4-12 hexadecimal digits behind "GPU-": the form NVML and nvidia-smi use.
    char *at = info.uuid + std::snprintf(info.uuid, sizeof info.uuid, "GPU-");
    for (int i = 0; i < 16; i++) {
        const bool dash = i == 4 || i == 6 || i == 8 || i == 10;
        at += std::snprintf(at, size_t(info.uuid + sizeof info.uuid - at), dash ? "-%02x" : "%02x", unsigned(static_cast<unsigned char>(p.uuid.bytes[i])));
    }
    info.compute_major = p.major;
    info.compute_minor = p.minor;
    info.multiprocessors = p.multiProcessorCount;
    // Toolkit 13 dropped the clock from the property struct; the attribute exists in all of them.
    int clock = 0;
    if (cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, device) != cudaSuccess) cudaGetLastError(), clock = 0;
    info.clock_khz = clock;
    info.memory_bytes = int64_t(p.totalGlobalMem);
    info.l2_bytes = p.l2CacheSize;
    return info;
}

namespace {
// cuDNN is opened when attention first needs it; asking must not be what loads it.
std::string cudnn_loaded() {
    void *library = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD);
    const auto version = library ? reinterpret_cast<size_t (*)()>(dlsym(library, "cudnnGetVersion")) : nullptr;
    char text[64] = "cuDNN not loaded";
    if (version) std::snprintf(text, sizeof text, "cuDNN %zu.%zu.%zu", version() / 10000, version() / 100 % 100, version() % 100);
    if (library) dlclose(library);
    return text;
}
}  // namespace

std::string build_info() {
    int runtime = 0, driver = 0;
    cudaRuntimeGetVersion(&runtime);
    if (cudaDriverGetVersion(&driver) != cudaSuccess) cudaGetLastError();
    char text[512];
    std::snprintf(text, sizeof text, "CUDA runtime %d.%d (nvcc %d.%d, code for %s), driver supports %d.%d, cuBLASLt %zu.%zu.%zu, %s", runtime / 1000, runtime % 1000 / 10,
                  __CUDACC_VER_MAJOR__, __CUDACC_VER_MINOR__, TO_TEXT(__CUDA_ARCH_LIST__), driver / 1000, driver % 1000 / 10, cublasLtGetVersion() / 10000,
                  cublasLtGetVersion() / 100 % 100, cublasLtGetVersion() % 100, cudnn_loaded().c_str());
    return text;
}

DeviceScope::DeviceScope(int device) : previous(-1) {
    cuda_check(cudaGetDevice(&previous), "reading the current device");
    if (previous != device) cuda_check(cudaSetDevice(device), "choosing the device");
    else previous = -1;
}
DeviceScope::~DeviceScope() {
    if (previous >= 0) cudaSetDevice(previous);
}

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
