// snapshot.h - the training state of one moment, copied aside on the device so that a thread can save it
// while training goes on. Device to device a copy takes milliseconds where a download takes seconds.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "lanes.h"

namespace llmc {

class Snapshot {
  public:
    explicit Snapshot(Lanes &lanes) : lanes_(lanes) {}
    Snapshot(const Snapshot &) = delete;
    ~Snapshot();

    struct Part {
        const void *from;  // device memory
        size_t bytes;      // 0: left out
    };
    // Enqueues the copies on COMPUTE; of the same parts each time. The first time allocates.
    void take(const std::vector<Part> &parts);
    // Calls piece(host memory, bytes) for [from, from + bytes) as it was, in order. `from` lies in a part. Any thread.
    void read(const void *from, int64_t bytes, const std::function<void(const char *, int64_t)> &piece);
    void release();

  private:
    struct Copy {
        const char *from;
        size_t bytes;
        char *to;
    };
    void allocate(const std::vector<Part> &parts);

    Lanes &lanes_;
    std::vector<Copy> copies_;  // as long as memory is kept
    char *memory_ = nullptr, *staging_ = nullptr;  // on the device; pinned
    std::atomic<bool> held_{false};
    std::mutex reading_;  // staging_ serves one reader
};

}  // namespace llmc
