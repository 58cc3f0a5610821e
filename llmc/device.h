// device.h - memory of the device the engine runs on. CPU backend: plain host memory, copies at once.
// Every function throws Error: LLMC_NO_MEMORY naming the bytes asked for and the bytes free, LLMC_DEVICE otherwise.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "llmc.h"

namespace llmc {

struct Lane;

int device_count();
llmc_device device_info(int device);
std::string build_info();

// Makes `device` current on this thread. CUDA keeps the current device per thread, so every ABI body opens one.
struct DeviceScope {
    explicit DeviceScope(int device);
    ~DeviceScope();
    DeviceScope(const DeviceScope &) = delete;
    int previous;
};

void *device_alloc(size_t bytes);  // 256-byte aligned, contents undefined; nullptr for 0 bytes
void device_free(void *memory) noexcept;
void *pinned_alloc(size_t bytes);  // host memory the device copies from without the host's help
void pinned_free(void *memory) noexcept;
void device_memory(int64_t *free_bytes, int64_t *total_bytes);

// Enqueued on the lane; `host` must be pinned and stay untouched until an event says the copy is done.
void copy_to_device(Lane &lane, void *device, const void *host, size_t bytes);
void copy_to_host(Lane &lane, void *host, const void *device, size_t bytes);
void copy_on_device(Lane &lane, void *to, const void *from, size_t bytes);
void fill_zero(Lane &lane, void *device, size_t bytes);
// Any host memory; returns when the copy is done.
void copy_to_device_now(Lane &lane, void *device, const void *host, size_t bytes);
void copy_to_host_now(Lane &lane, void *host, const void *device, size_t bytes);

}  // namespace llmc
