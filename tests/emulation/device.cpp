// device.cpp - facts of the emulated device.
#include "llmc/device.h"

#include <cstring>

#include "llmc/cpu/blas.h"

namespace llmc {

int device_count() { return 1; }
llmc_device device_info(int) {
    scipy_openblas_set_num_threads(1);
    llmc_device info{};
    std::strcpy(info.name, "emulated");
    info.multiprocessors = 1;
    int64_t free_bytes;
    device_memory(&free_bytes, &info.memory_bytes);
    return info;
}
std::string build_info() { return "lanes of the CUDA backend on an emulated runtime, ops of the CPU backend"; }

DeviceScope::DeviceScope(int) : previous(-1) { scipy_openblas_set_num_threads(1); }
DeviceScope::~DeviceScope() {}

}  // namespace llmc
