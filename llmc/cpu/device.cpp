// device.cpp (CPU) - host memory as the device's memory, and what the machine is.
// An allocation beyond what the machine can give is refused here with a sentence: Linux would hand out the
// addresses anyway and kill the process when it touches them.
#include "../device.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "../error.h"
#include "blas.h"
#include "parallel.h"

namespace llmc {

namespace {

constexpr size_t HUGE_PAGE = size_t(2) << 20;

// The text after `key` in a "key: value" or "key value" file of the kernel; "" if there is none.
std::string kernel_value(const char *path, const std::string &key) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (line.compare(0, key.size(), key) != 0) continue;
        const size_t at = line.find_first_not_of(" \t:", key.size());
        return at == std::string::npos ? "" : line.substr(at);
    }
    return "";
}

int64_t kilobytes(const char *key) { return std::atoll(kernel_value("/proc/meminfo", key).c_str()) * 1024; }

// First number of a file; fallback if absent or "max".
int64_t number_in(const char *path, int64_t fallback) {
    std::ifstream file(path);
    int64_t value;
    return file >> value ? value : fallback;
}

int usable_threads() {
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : int(sysconf(_SC_NPROCESSORS_ONLN));
    // A container's quota: "quota period" in microseconds, or "max period".
    std::ifstream file("/sys/fs/cgroup/cpu.max");
    double quota, period;
    if (file >> quota >> period && period > 0) count = std::min(count, int(std::ceil(quota / period)));
    return std::max(1, count);
}

int thread_limit() {
    static const int count = usable_threads();
    return count;
}

}  // namespace

int device_count() { return 1; }

llmc_device device_info(int device) {
    if (device != 0) fail(LLMC_INVALID, "device %d: the CPU backend has one device, 0", device);
    llmc_device info{};
    std::string name = kernel_value("/proc/cpuinfo", "model name");
    if (name.empty()) name = scipy_openblas_get_corename();
    std::strncpy(info.name, name.c_str(), sizeof info.name - 1);
    info.multiprocessors = thread_limit();
    info.clock_khz = int32_t(number_in("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", 0));
    int64_t free_bytes;
    device_memory(&free_bytes, &info.memory_bytes);
    info.l2_bytes = number_in("/sys/devices/system/cpu/cpu0/cache/index2/size", 0) * 1024;  // "512K"
    return info;
}

std::string build_info() {
    std::ostringstream text;
#ifdef __clang__
    text << "Clang " << __clang_version__;
#else
    text << "GCC " << __VERSION__;
#endif
    text << "; " << scipy_openblas_get_config() << "; BLAS kernels for " << scipy_openblas_get_corename();
    return text.str();
}

DeviceScope::DeviceScope(int) : previous(0) {}
DeviceScope::~DeviceScope() = default;

void device_memory(int64_t *free_bytes, int64_t *total_bytes) {
    int64_t total = kilobytes("MemTotal"), available = kilobytes("MemAvailable") + kilobytes("SwapFree");
    // A container may have less; its page cache counts as used but gives way.
    const int64_t limit = number_in("/sys/fs/cgroup/memory.max", INT64_MAX);
    if (limit < total) {
        const int64_t used = number_in("/sys/fs/cgroup/memory.current", 0);
        const int64_t cache = std::atoll(kernel_value("/sys/fs/cgroup/memory.stat", "inactive_file").c_str());
        total = limit;
        available = std::min(available, std::max<int64_t>(0, limit - used + cache));
    }
    *free_bytes = available;
    *total_bytes = total;
}

// Large blocks get huge pages and are touched here, by the threads that will use them: the memory is then
// really ours (the next allocation sees it gone), and no step pays for page faults.
void *device_alloc(size_t bytes) {
    if (bytes == 0) return nullptr;
    const bool large = bytes >= 2 * HUGE_PAGE;
    int64_t available = 0, total = 0;
    if (large) device_memory(&available, &total);
    void *memory = nullptr;
    if ((large && bytes > uint64_t(available)) || posix_memalign(&memory, large ? HUGE_PAGE : 256, bytes) != 0) {
        device_memory(&available, &total);
        fail(LLMC_NO_MEMORY, "out of memory: %zu bytes needed, %lld available of %lld", bytes, (long long)available, (long long)total);
    }
    if (large) {
        madvise(memory, bytes, MADV_HUGEPAGE);
        const long page = sysconf(_SC_PAGESIZE);
        parallel_slices(Lane{thread_limit()}, int64_t(bytes), HUGE_PAGE, int64_t(bytes), [=](int64_t begin, int64_t end) {
            for (int64_t at = begin; at < end; at += page) static_cast<volatile char *>(memory)[at] = 0;
        });
    }
    return memory;
}

void device_free(void *memory) noexcept { std::free(memory); }
void *pinned_alloc(size_t bytes) { return device_alloc(bytes); }
void pinned_free(void *memory) noexcept { device_free(memory); }

void copy_to_device(Lane &, void *device, const void *host, size_t bytes) {
    if (bytes) std::memcpy(device, host, bytes);
}
void copy_to_host(Lane &, void *host, const void *device, size_t bytes) {
    if (bytes) std::memcpy(host, device, bytes);
}
void copy_to_device_now(Lane &lane, void *device, const void *host, size_t bytes) { copy_to_device(lane, device, host, bytes); }
void copy_to_host_now(Lane &lane, void *host, const void *device, size_t bytes) { copy_to_host(lane, host, device, bytes); }

void copy_on_device(Lane &lane, void *to, const void *from, size_t bytes) {
    parallel_slices(lane, int64_t(bytes), 4096, int64_t(bytes), [=](int64_t begin, int64_t end) {
        std::memcpy(static_cast<char *>(to) + begin, static_cast<const char *>(from) + begin, size_t(end - begin));
    });
}

void fill_zero(Lane &lane, void *device, size_t bytes) {
    parallel_slices(lane, int64_t(bytes), 4096, int64_t(bytes), [=](int64_t begin, int64_t end) {
        std::memset(static_cast<char *>(device) + begin, 0, size_t(end - begin));
    });
}

}  // namespace llmc
