// arena.h - the memory plan. Buffers say what they want; then the plan is either only added up, or
// backed by one device allocation. One block: nothing to leak half-way, and no allocator inside a step.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "device.h"

namespace llmc {

enum class Purpose { PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, LOGITS, WORKSPACE, BATCHES, COUNT };

class Arena {
  public:
    Arena() = default;
    Arena(const Arena &) = delete;
    ~Arena() { device_free(block_); }

    // *where points to `count` elements once allocate() has run. Starts are 256-byte aligned.
    template <class T>
    void want(T **where, int64_t count, Purpose purpose) {
        want_bytes(reinterpret_cast<void **>(where), size_t(count) * sizeof(T), purpose);
    }
    void want_bytes(void **where, size_t bytes, Purpose purpose) {
        const size_t rounded = (bytes + 255) / 256 * 256;
        wishes_.push_back({where, total_});
        total_ += rounded;
        by_purpose_[size_t(purpose)] += rounded;
    }
    void allocate() {
        block_ = static_cast<char *>(device_alloc(total_));
        for (const Wish &w : wishes_) *w.where = block_ + w.offset;
    }
    int64_t total() const { return int64_t(total_); }
    int64_t bytes(Purpose purpose) const { return int64_t(by_purpose_[size_t(purpose)]); }

  private:
    struct Wish {
        void **where;
        size_t offset;
    };
    std::vector<Wish> wishes_;
    std::array<size_t, size_t(Purpose::COUNT)> by_purpose_{};
    size_t total_ = 0;
    char *block_ = nullptr;
};

}  // namespace llmc
