#include "batch_ring.h"

#include <chrono>

#include "error.h"
#include "ops.h"

namespace llmc {

BatchRing::BatchRing(const llmc_config &config, const llmc_options &options, Lanes &lanes)
    : tokens_(options.batch * options.seq_len), vocab_(config.vocab), seq_len_(options.seq_len), indexed_(options.train != 0), lanes_(lanes), slots_(options.slots) {}

BatchRing::~BatchRing() {
    for (Slot &s : slots_) {
        pinned_free(s.host_inputs);
        pinned_free(s.host_targets);
    }
}

void BatchRing::lay_out(Arena &arena) {
    for (Slot &s : slots_) {
        arena.want(&s.inputs, tokens_, Purpose::BATCHES);
        arena.want(&s.targets, tokens_, Purpose::BATCHES);
        if (indexed_) arena.want_bytes(&s.index, embedding_index_bytes(tokens_, vocab_), Purpose::BATCHES);
    }
}

void BatchRing::open() {
    for (Slot &s : slots_) {
        s.host_inputs = static_cast<int *>(pinned_alloc(size_t(tokens_) * sizeof(int)));
        s.host_targets = static_cast<int *>(pinned_alloc(size_t(tokens_) * sizeof(int)));
    }
}

llmc_slot BatchRing::acquire(int wait_ms) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(wait_ms < 0 ? 0 : wait_ms);
    std::unique_lock<std::mutex> lock(mutex_);
    int index = -1;
    const auto found_free = [&] {  // the first free one in turn: the one whose upload is oldest
        for (size_t i = 0; i < slots_.size() && index < 0; i++) {
            const int candidate = int((size_t(next_) + i) % slots_.size());
            if (slots_[candidate].phase == Phase::FREE) index = candidate;
        }
        return index >= 0;
    };
    if (wait_ms < 0) freed_.wait(lock, found_free);
    else if (!freed_.wait_until(lock, deadline, found_free)) {
        fail(LLMC_TIMEOUT, "no batch slot became free within %d ms: all %zu are acquired or submitted", wait_ms, slots_.size());
    }
    slots_[index].phase = Phase::ACQUIRED;
    next_ = (index + 1) % int(slots_.size());
    lock.unlock();
    // The previous batch of this slot may still be on its way out of the pinned memory.
    for (Edge upload : {INPUTS_READY, TARGETS_READY}) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
        if (!lanes_.host_await(upload, index, wait_ms < 0 ? -1 : left > 0 ? int(left) : 0)) {
            lock.lock();
            slots_[index].phase = Phase::FREE;
            freed_.notify_all();
            fail(LLMC_TIMEOUT, "slot %d's previous upload did not finish within %d ms", index, wait_ms);
        }
    }
    llmc_slot out{};
    out.index = index;
    out.count = tokens_;
    out.inputs = slots_[index].host_inputs;
    out.targets = slots_[index].host_targets;
    return out;
}

BatchRing::Slot &BatchRing::at(int slot, Phase expected, const char *expectation) {
    if (slot < 0 || slot >= int(slots_.size())) fail(LLMC_INVALID, "slot is %d, expected 0 to %zu", slot, slots_.size() - 1);
    if (slots_[slot].phase != expected) fail(LLMC_STATE, "slot %d is not %s", slot, expectation);
    return slots_[slot];
}

void BatchRing::check_tokens(const char *what, const int *tokens) const {
    // One unsigned comparison per token catches negatives too; the loop without exits vectorises.
    unsigned bad = 0;
    for (int i = 0; i < tokens_; i++) bad |= unsigned(tokens[i]) >= unsigned(vocab_);
    if (!bad) return;
    for (int i = 0; i < tokens_; i++) {
        if (unsigned(tokens[i]) >= unsigned(vocab_)) {
            fail(LLMC_INVALID, "%s token at row %d, position %d is %d, expected 0 to %d", what, i / seq_len_, i % seq_len_, tokens[i], vocab_ - 1);
        }
    }
}

void BatchRing::submit(int slot) {
    std::unique_lock<std::mutex> lock(mutex_);
    Slot &s = at(slot, Phase::ACQUIRED, "acquired");
    lock.unlock();  // an acquired slot has one owner: the caller
    check_tokens("input", s.host_inputs);
    check_tokens("target", s.host_targets);
    const size_t bytes = size_t(tokens_) * sizeof(int);
    {
        const auto held = lanes_.hold();
        lanes_.await(INPUTS_FREE, slot);
        {
            const auto span = lanes_.span(INPUTS, "upload inputs");
            copy_to_device(lanes_[INPUTS], s.inputs, s.host_inputs, bytes);
        }
        if (indexed_) {
            const auto span = lanes_.span(INPUTS, "token index");
            embedding_index(lanes_[INPUTS], s.index, s.inputs, tokens_, vocab_);
        }
        lanes_.signal(INPUTS_READY, slot);
        lanes_.await(TARGETS_FREE, slot);
        {
            const auto span = lanes_.span(TARGETS, "upload targets");
            copy_to_device(lanes_[TARGETS], s.targets, s.host_targets, bytes);
        }
        lanes_.signal(TARGETS_READY, slot);
    }
    lock.lock();
    s.phase = Phase::SUBMITTED;
}

void BatchRing::release(int slot) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (slot < 0 || slot >= int(slots_.size())) fail(LLMC_INVALID, "slot is %d, expected 0 to %zu", slot, slots_.size() - 1);
    if (slots_[slot].phase == Phase::FREE) fail(LLMC_STATE, "slot %d is neither acquired nor submitted", slot);
    slots_[slot].phase = Phase::FREE;
    freed_.notify_all();
}

void BatchRing::consumed(int slot) {
    const std::lock_guard<std::mutex> lock(mutex_);
    slots_[slot].phase = Phase::FREE;
    freed_.notify_all();
}

void BatchRing::require_submitted(int slot) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const_cast<BatchRing *>(this)->at(slot, Phase::SUBMITTED, "submitted");
}

}  // namespace llmc
