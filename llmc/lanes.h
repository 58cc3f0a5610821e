// lanes.h - the engine's lanes (CUDA streams; on the CPU everything is done when the call returns), the
// events between them, captured graphs and the timeline. Every wait of the engine has its name in EDGES.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "llmc.h"

namespace llmc {

// SAVE downloads snapshots for a saving thread; options.streams = 1 leaves it a stream of its own, for a thread that
// waits there must not wait for steps.
enum LaneId { INPUTS, TARGETS, COMPUTE, LOSS, SAVE, NUM_LANES };

// What an op needs to run: stream, BLAS handle and workspace of its own, device facts. Backend-defined.
// Each lane owns its handle and workspace, so two lanes never share scratch behind our back.
struct Lane;

// An edge: the producer records the event after its last access to the buffer, the consumer waits for
// it before its own first access. Names are past-tense facts. "per" says which index picks the event.
enum Edge {
    INPUTS_READY, TARGETS_READY, INPUTS_FREE, TARGETS_FREE,
    TOKEN_LOSSES_READY, MEAN_LOSS_READY, RESULT_READY, RESULT_ON_HOST, SNAPSHOT_TAKEN,
    NUM_EDGES
};
enum class Per { SLOT, RESULT, MODEL };
struct EdgeInfo {
    const char *event;
    LaneId producer, consumer;
    Per per;
    const char *buffer;
    const char *why;
};
constexpr EdgeInfo EDGES[NUM_EDGES] = {
    {"inputs_ready", INPUTS, COMPUTE, Per::SLOT, "slot.inputs, slot.index",
     "upload and token index precede the embedding; the host also waits for it before refilling pinned memory"},
    {"targets_ready", TARGETS, COMPUTE, Per::SLOT, "slot.targets",
     "upload precedes the classifier, not the embedding; the host also waits for it"},
    {"inputs_free", COMPUTE, INPUTS, Per::SLOT, "slot.inputs, slot.index",
     "the embedding's backward is the last read; the next upload into the slot comes after it"},
    {"targets_free", COMPUTE, TARGETS, Per::SLOT, "slot.targets", "the classifier is the last read"},
    {"token_losses_ready", COMPUTE, LOSS, Per::MODEL, "token_losses", "the classifier writes, the mean reads"},
    {"mean_loss_ready", LOSS, COMPUTE, Per::MODEL, "token_losses, mean_loss",
     "the mean is the last read of token_losses before the next classifier, and its value feeds the gate"},
    {"result_ready", COMPUTE, LOSS, Per::RESULT, "result record", "the gate writes, the download reads"},
    {"result_on_host", LOSS, COMPUTE, Per::RESULT, "result record",
     "the download was the last read; the host waits for it in llmc_result, the gate before it writes the record again"},
    {"snapshot_taken", COMPUTE, SAVE, Per::MODEL, "snapshot",
     "the copy aside writes, the download reads; the host lets the next copy begin when the download is done"},
};

// Names one captured body: what it does and every value that is baked into it.
struct GraphKey {
    enum Kind : int32_t { FORWARD, HEAD, BACKWARD, UPDATE, EVAL_HEAD, DECODE } kind;
    int32_t slot = 0;     // or the result record
    int32_t first = 0;    // first micro-step assigns gradients, the others add
    int32_t of = 1;       // micro-steps that the loss is averaged over; rows that are decoded
    bool operator<(const GraphKey &o) const {
        return std::tie(kind, slot, first, of) < std::tie(o.kind, o.slot, o.first, o.of);
    }
};

class Lanes {
  public:
    explicit Lanes(const llmc_options &options);
    ~Lanes();
    Lanes(const Lanes &) = delete;

    Lane &operator[](LaneId id);

    // The two ends of an edge. await is nothing when both lanes are one stream: order does it.
    void signal(Edge edge, int index = 0);
    void await(Edge edge, int index = 0);
    // Host side of an edge; wait_ms < 0 waits for ever, 0 looks. False: not yet.
    bool host_await(Edge edge, int index, int wait_ms);

    // Held while enqueueing from a loader thread, and by run while it captures: a stream that is being
    // captured must not receive anybody else's work.
    std::unique_lock<std::mutex> hold();

    // Runs body(key.slot): replays its captured graph if there is one, or calls it (switch off, or capture failed:
    // then once with a note). The first time it is called, and while the device works on that, graphs are captured of
    // body(0 .. slots-1): captured when its turn comes, each slot would make the device wait once. body enqueues
    // kernels on COMPUTE and nothing else: a graph that is a plain chain of kernels is the quickest to launch, where
    // each event in it costs the host microseconds. Edges stand between bodies.
    void run(const GraphKey &key, int slots, const std::function<void(int slot)> &body);
    // While a timeline is recorded, graphs that have the events of spans in them take the place of the others. Made
    // here, before the first of several launches; made by run, the device would wait between one and the next.
    void prepare(const GraphKey &key, const std::function<void(int slot)> &body);

    // A step's device time: marks on COMPUTE, read back by result record; NaN if not both were passed.
    void mark_step_start(int record);
    void mark_step_end(int record);
    float step_ms(int record);

    // Timeline. While recording, span() notes a start and its destructor an end on the lane.
    class Span {
      public:
        Span(Lanes *lanes, LaneId lane, int index) : lanes_(lanes), lane_(lane), index_(index) {}
        ~Span();
        Span(Span &&o) noexcept : lanes_(o.lanes_), lane_(o.lane_), index_(o.index_) { o.lanes_ = nullptr; }
        Span(const Span &) = delete;
      private:
        Lanes *lanes_;
        LaneId lane_;
        int index_;
    };
    Span span(LaneId lane, const char *name, int layer = -1);
    void record_timeline(bool on);  // on: drop the old spans, record until off
    std::vector<llmc_span> read_timeline();

    void synchronize();
    std::string take_notes();  // since the last call
    void note(const std::string &text);  // each text once

    struct State;  // backend-defined

  private:
    std::unique_ptr<State> state_;
};

}  // namespace llmc
