// device.cu - facts of a CUDA device, and which is the current one.
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

}  // namespace llmc
