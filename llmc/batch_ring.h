// batch_ring.h - batches on their way to the device: pinned host memory that a loader fills, device
// memory that a step reads, and the state machine between them. Safe for a loader thread beside the
// thread that steps.
#pragma once
#include <condition_variable>
#include <mutex>
#include <vector>

#include "arena.h"
#include "lanes.h"

namespace llmc {

class BatchRing {
  public:
    BatchRing(const llmc_config &config, const llmc_options &options, Lanes &lanes);
    ~BatchRing();
    void lay_out(Arena &arena);
    void open();  // pinned memory; after the arena's allocate

    llmc_slot acquire(int wait_ms);
    void submit(int slot);
    void release(int slot);
    // The step that reads the slot has been enqueued: its host side may be handed out again (acquire
    // waits for the upload), its device side is guarded by INPUTS_FREE and TARGETS_FREE.
    void consumed(int slot);
    void require_submitted(int slot) const;

    const int *inputs(int slot) const { return slots_[slot].inputs; }     // (B,T)
    const int *targets(int slot) const { return slots_[slot].targets; }   // (B,T)
    const void *index(int slot) const { return slots_[slot].index; }      // embedding_index of inputs, with options.train

  private:
    enum class Phase { FREE, ACQUIRED, SUBMITTED };
    struct Slot {
        Phase phase = Phase::FREE;
        int *host_inputs = nullptr, *host_targets = nullptr;
        int *inputs = nullptr, *targets = nullptr;
        void *index = nullptr;
    };
    void check_tokens(const char *what, const int *tokens) const;
    Slot &at(int slot, Phase expected, const char *expectation);

    const int tokens_, vocab_, seq_len_;
    const bool indexed_;  // the backward, if there is one, needs the index
    Lanes &lanes_;
    std::vector<Slot> slots_;
    int next_ = 0;  // where acquire starts to look
    mutable std::mutex mutex_;
    std::condition_variable freed_;
};

}  // namespace llmc
