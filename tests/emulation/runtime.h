// runtime.h - the objects behind the emulated runtime's handles.
//
// A stream is a queue of work in order. Who takes from it is chosen before the stream is made (emulated_schedule):
//   threads   each stream has a thread: everything that may run at once does
//   turns     the host runs the work, when it waits and now and then when it enqueues; whose turn it is is drawn from a
//             seed, so that a lane is starved for long and a missing edge shows the same way every time
// A destroyed object stays in memory, marked: its use is an error then, and no crash.
#pragma once
#include <cuda_runtime.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace emulation {

struct Work {
    enum Kind { RUN, RECORD, WAIT } kind = RUN;
    std::string name;
    std::function<void()> run;   // RUN
    cudaEvent_t event = nullptr; // RECORD, WAIT
    uint64_t count = 0;          // which record of the event; 0: the one that is made now (in a graph)
};

// Every call begins here: writes it down if a log is kept; false if it is the one that was asked to fail.
bool allowed(const std::string &call);
// An error, with what went wrong as its text. A rule that was broken is kept for emulated_violations, too.
cudaError_t failed(cudaError_t code, const std::string &text);
cudaError_t broken(cudaError_t code, const std::string &rule);
std::string text_of_last_failure();
void pause_in_capture();

// Puts work at a stream's end, or into the graph that is captured from it; append: at its end.
cudaError_t submit(cudaStream_t stream, Work work);
void append(cudaStream_t stream, Work work);
// True while the calling thread captures: it may then neither wait nor allocate.
bool captures();

// In turns: runs one piece of work of some stream; false if none can run.
bool take_turn();
bool in_turns();
// In turns: runs work until `done`. False: it never will be.
bool turns_until(const std::function<bool()> &done);

}  // namespace emulation

struct CUevent_st {
    using Clock = std::chrono::steady_clock;
    const bool timed;
    std::mutex mutex;
    std::condition_variable changed;
    bool destroyed = false;
    uint64_t recorded = 0, done = 0;
    Clock::time_point at;

    explicit CUevent_st(bool with_time) : timed(with_time) {}
    uint64_t next_record();
    void finish(uint64_t count);
    bool passed(uint64_t count);
    void wait(uint64_t count);
};

struct CUgraph_st {
    std::vector<emulation::Work> nodes;
    bool instantiated = false, destroyed = false;
};

struct CUgraphExec_st {
    std::vector<emulation::Work> nodes;
    bool destroyed = false;
};

struct CUstream_st {
    std::string name = "stream";
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<emulation::Work> queue;
    uint64_t pushed = 0, done = 0;
    bool closing = false, destroyed = false;
    std::thread worker;                  // none in turns

    cudaGraph_t graph = nullptr;         // being captured
    std::thread::id capturer;
    std::string invalid;                 // why the capture is lost

    bool idle(uint64_t until);
    bool step();                         // runs the next piece; false: there is none, or it waits
    void serve();                        // the worker's loop
    void perform_first(std::unique_lock<std::mutex> &lock);  // which it lets go of meanwhile
};
