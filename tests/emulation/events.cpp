// events.cpp - events. Waiting for one that was never recorded is nothing in CUDA; here it is an error, for an edge always
// stands for something that was done.
#include "runtime.h"

using namespace emulation;

namespace {
// What is wrong with a host's use of the event, "" if nothing.
std::string misuse(cudaEvent_t event, const std::string &call) {
    if (!event) return call + " without an event";
    const std::lock_guard<std::mutex> lock(event->mutex);
    if (event->destroyed) return call + " of a destroyed event";
    return event->recorded ? "" : call + " of an event that was never recorded";
}
}  // namespace

uint64_t CUevent_st::next_record() {
    const std::lock_guard<std::mutex> lock(mutex);
    return ++recorded;
}
void CUevent_st::finish(uint64_t count) {
    {
        const std::lock_guard<std::mutex> lock(mutex);
        if (count > done) done = count;
        at = Clock::now();
    }
    changed.notify_all();
}
bool CUevent_st::passed(uint64_t count) {
    const std::lock_guard<std::mutex> lock(mutex);
    return done >= count;
}
void CUevent_st::wait(uint64_t count) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return done >= count; });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    *event = new CUevent_st(!(flags & cudaEventDisableTiming));
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    const std::lock_guard<std::mutex> lock(event->mutex);
    if (event->destroyed) return broken(cudaErrorInvalidResourceHandle, "an event was destroyed twice");
    event->destroyed = true;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault); }

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    if (!allowed("cudaEventRecord")) return failed(cudaErrorUnknown, "cudaEventRecord was asked to fail");
    Work work;
    work.kind = Work::RECORD;
    work.name = "an event";
    work.event = event;
    bool captured;
    {
        const std::lock_guard<std::mutex> lock(event->mutex);
        if (event->destroyed) return broken(cudaErrorInvalidResourceHandle, "cudaEventRecord of a destroyed event");
    }
    {
        const std::lock_guard<std::mutex> lock(stream->mutex);
        captured = stream->graph;
    }
    // A captured record that isn't external would be a fact of the graph alone: nobody outside could wait for it.
    if (captured && flags != cudaEventRecordExternal) return broken(cudaErrorStreamCaptureIsolation, "an edge was recorded in the capture of " + stream->name);
    if (!captured && flags == cudaEventRecordExternal) return broken(cudaErrorInvalidValue, "an event was recorded as external outside a capture");
    if (!captured) work.count = event->next_record();
    return submit(stream, std::move(work));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (!allowed("cudaStreamWaitEvent")) return failed(cudaErrorUnknown, "cudaStreamWaitEvent was asked to fail");
    if (const auto what = misuse(event, "cudaStreamWaitEvent"); !what.empty()) return broken(cudaErrorInvalidResourceHandle, what);
    {
        const std::lock_guard<std::mutex> lock(stream->mutex);
        if (stream->graph) return broken(cudaErrorStreamCaptureIsolation, "an edge was awaited in the capture of " + stream->name);
    }
    Work work;
    work.kind = Work::WAIT;
    work.name = "a wait";
    work.event = event;
    {
        const std::lock_guard<std::mutex> lock(event->mutex);
        work.count = event->recorded;
    }
    return submit(stream, std::move(work));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    constexpr int TURNS = 16;  // that a host gives the device by looking
    if (const auto what = misuse(event, "cudaEventQuery"); !what.empty()) return broken(cudaErrorInvalidResourceHandle, what);
    if (captures()) return broken(cudaErrorStreamCaptureUnsupported, "cudaEventQuery in a thread that captures");
    const auto passed = [&] {
        const std::lock_guard<std::mutex> lock(event->mutex);
        return event->done >= event->recorded;
    };
    for (int i = 0; in_turns() && i < TURNS && !passed(); i++) {
        if (!take_turn() && !passed()) return broken(cudaErrorUnknown, "an event never comes");
    }
    return passed() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    if (!allowed("cudaEventSynchronize")) return failed(cudaErrorUnknown, "cudaEventSynchronize was asked to fail");
    if (const auto what = misuse(event, "cudaEventSynchronize"); !what.empty()) return broken(cudaErrorInvalidResourceHandle, what);
    if (captures()) return broken(cudaErrorStreamCaptureUnsupported, "cudaEventSynchronize in a thread that captures");
    uint64_t until;
    {
        const std::lock_guard<std::mutex> lock(event->mutex);
        until = event->recorded;
    }
    if (!in_turns()) event->wait(until);
    else if (!turns_until([&] { return event->passed(until); })) return broken(cudaErrorUnknown, "an event never comes");
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    CUevent_st::Clock::time_point at[2];
    cudaEvent_t const events[] = {start, end};
    for (int i = 0; i < 2; i++) {
        if (const auto what = misuse(events[i], "cudaEventElapsedTime"); !what.empty()) return broken(cudaErrorInvalidResourceHandle, what);
        const std::lock_guard<std::mutex> lock(events[i]->mutex);
        if (!events[i]->timed) return broken(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime of an event without a time");
        if (events[i]->done < events[i]->recorded) return failed(cudaErrorNotReady, "cudaEventElapsedTime of an event that is still to come");
        at[i] = events[i]->at;
    }
    *ms = std::chrono::duration<float, std::milli>(at[1] - at[0]).count();
    return cudaSuccess;
}
