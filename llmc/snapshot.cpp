#include "snapshot.h"

#include <algorithm>

#include "device.h"
#include "error.h"

namespace llmc {

namespace {
constexpr size_t STAGING = 16u << 20;
constexpr size_t RESERVE = 512u << 20;  // for what libraries and drivers allocate later: saving isn't worth a failed step
}  // namespace

Snapshot::~Snapshot() {
    device_free(memory_);
    pinned_free(staging_);
}

void Snapshot::allocate(const std::vector<Part> &parts) {
    std::vector<Copy> copies;
    size_t total = 0;
    for (const Part &p : parts) {
        copies.push_back({static_cast<const char *>(p.from), p.bytes, nullptr});
        total += (p.bytes + 255) / 256 * 256;
    }
    int64_t available = 0, all = 0;
    device_memory(&available, &all);
    if (total + std::min(total, RESERVE) > size_t(available)) {
        fail(LLMC_NO_MEMORY, "a snapshot needs %zu bytes and %zu that stay free, %lld are free", total, std::min(total, RESERVE), (long long)available);
    }
    char *memory = static_cast<char *>(device_alloc(total));
    try {
        staging_ = static_cast<char *>(pinned_alloc(std::min(total, STAGING)));
    } catch (...) {
        device_free(memory);
        throw;
    }
    memory_ = memory;
    for (Copy &c : copies) {
        c.to = memory;
        memory += (c.bytes + 255) / 256 * 256;
    }
    copies_ = std::move(copies);
}

void Snapshot::take(const std::vector<Part> &parts) {
    if (held_) fail(LLMC_STATE, "an earlier snapshot isn't released");
    if (!memory_) allocate(parts);
    // Stream order makes the copy the last read of the weights before the next update writes them.
    for (const Copy &c : copies_) copy_on_device(lanes_[COMPUTE], c.to, c.from, c.bytes);
    lanes_.signal(SNAPSHOT_TAKEN);
    held_ = true;
}

void Snapshot::read(const void *from, int64_t bytes, const std::function<void(const char *, int64_t)> &piece) {
    const std::lock_guard<std::mutex> lock(reading_);
    if (!held_) fail(LLMC_STATE, "no snapshot is held: call llmc_snapshot_take first");
    const char *wanted = static_cast<const char *>(from);
    const auto inside = [&](const Copy &c) { return wanted >= c.from && wanted + bytes <= c.from + c.bytes; };
    const auto found = std::find_if(copies_.begin(), copies_.end(), inside);
    if (found == copies_.end()) fail(LLMC_INTERNAL, "a snapshot was asked for memory that it doesn't keep");
    {
        const auto held = lanes_.hold();
        lanes_.await(SNAPSHOT_TAKEN);
    }
    const char *copy = found->to + (wanted - found->from);
    for (int64_t done = 0; done < bytes; done += int64_t(STAGING)) {
        const int64_t n = std::min(int64_t(STAGING), bytes - done);
        copy_to_host_now(lanes_[SAVE], staging_, copy + done, size_t(n));
        piece(staging_, n);
    }
}

void Snapshot::release() {
    const std::lock_guard<std::mutex> lock(reading_);
    held_ = false;
}

}  // namespace llmc
