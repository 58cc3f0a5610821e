// streams.cpp - streams, their capture, and who runs their work (runtime.h).
#include <algorithm>
#include <atomic>
#include <random>

#include <nvtx3/nvToolsExtCudaRt.h>

#include "runtime.h"

namespace emulation {

namespace {

thread_local int capturing_here = 0;

// The streams that are served in turns. One piece runs at a time; the order of preference stays for some dozens of
// pieces, so that a lane falls behind by more than a whole step now and then.
struct Turns {
    static constexpr int STAYS = 48, AT_ENQUEUE = 8;
    std::mutex mutex;
    std::atomic<bool> on{false};
    std::mt19937_64 random;
    std::vector<cudaStream_t> streams;
    int readiness = 0;  // pieces that run when something is enqueued

    int draw(int n) { return int(random() % uint64_t(n)); }
    bool take() {
        const std::lock_guard<std::mutex> lock(mutex);
        if (draw(STAYS) == 0) {
            for (size_t i = streams.size(); i > 1; i--) std::swap(streams[i - 1], streams[size_t(draw(int(i)))]);
            readiness = draw(2) ? 0 : draw(AT_ENQUEUE);
        }
        for (const cudaStream_t stream : streams) {
            if (stream->step()) return true;
        }
        return false;
    }
    int pieces_at_enqueue() {
        const std::lock_guard<std::mutex> lock(mutex);
        return draw(STAYS) ? readiness : 1;
    }
} turns;

// Null if the stream may be used; capture rules are the caller's to check, who holds the stream's mutex.
const char *unusable(cudaStream_t stream) { return !stream ? "no stream" : stream->destroyed ? "a destroyed stream" : nullptr; }

}  // namespace

bool captures() { return capturing_here > 0; }
bool take_turn() { return turns.take(); }
bool in_turns() { return turns.on; }
bool turns_until(const std::function<bool()> &done) {
    while (!done()) {
        if (!take_turn() && !done()) return false;
    }
    return true;
}

cudaError_t submit(cudaStream_t stream, Work work) {
    if (const char *what = unusable(stream)) return broken(cudaErrorInvalidResourceHandle, work.name + " on " + what);
    std::unique_lock<std::mutex> lock(stream->mutex);
    const bool captured = stream->graph;
    if (work.kind == Work::RUN && !allowed((captured ? "captured " : "") + work.name)) return failed(cudaErrorUnknown, work.name + " was asked to fail");
    if (captured) {
        if (stream->capturer != std::this_thread::get_id()) {
            stream->invalid = work.name + " of another thread came into the capture of " + stream->name;
            return broken(cudaErrorStreamCaptureWrongThread, stream->invalid);
        }
        stream->graph->nodes.push_back(std::move(work));
        lock.unlock();
        pause_in_capture();
        return cudaSuccess;
    }
    lock.unlock();
    append(stream, std::move(work));
    return cudaSuccess;
}

void append(cudaStream_t stream, Work work) {
    {
        const std::lock_guard<std::mutex> lock(stream->mutex);
        stream->queue.push_back(std::move(work));
        stream->pushed++;
    }
    stream->changed.notify_all();
    for (int i = in_turns() ? turns.pieces_at_enqueue() : 0; i > 0; i--) take_turn();
}

}  // namespace emulation

using namespace emulation;

void CUstream_st::perform_first(std::unique_lock<std::mutex> &lock) {
    Work work = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    if (work.kind == Work::RUN) work.run();
    else if (work.kind == Work::RECORD) work.event->finish(work.count ? work.count : work.event->next_record());
    else work.event->wait(work.count);
    lock.lock();
    done++;
}

bool CUstream_st::idle(uint64_t until) {
    const std::lock_guard<std::mutex> lock(mutex);
    return done >= until;
}

bool CUstream_st::step() {
    std::unique_lock<std::mutex> lock(mutex);
    if (queue.empty()) return false;
    if (queue.front().kind == Work::WAIT && !queue.front().event->passed(queue.front().count)) return false;
    perform_first(lock);
    return true;
}

void CUstream_st::serve() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
        changed.wait(lock, [&] { return closing || !queue.empty(); });
        if (queue.empty()) return;
        perform_first(lock);
        changed.notify_all();
    }
}

// From now on: streams with threads (-1), or served in turns that this seed decides.
extern "C" __attribute__((visibility("default"))) void emulated_schedule(int64_t seed) {
    const std::lock_guard<std::mutex> lock(turns.mutex);
    turns.on = seed >= 0;
    turns.random.seed(uint64_t(seed));
    turns.readiness = 0;
}

void nvtxNameCudaStreamA(cudaStream_t stream, const char *name) { stream->name = name; }

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int) {
    *value = 1;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) {
    *stream = new CUstream_st;
    if (in_turns()) {
        const std::lock_guard<std::mutex> lock(turns.mutex);
        turns.streams.push_back(*stream);
    } else {
        (*stream)->worker = std::thread(&CUstream_st::serve, *stream);
    }
    return cudaSuccess;
}

// What is enqueued is still done, as on a device.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (const char *what = unusable(stream)) return broken(cudaErrorInvalidResourceHandle, std::string("cudaStreamDestroy of ") + what);
    if (stream->graph) return broken(cudaErrorStreamCaptureUnsupported, stream->name + " was destroyed while it was captured");
    if (stream->worker.joinable()) {
        {
            const std::lock_guard<std::mutex> lock(stream->mutex);
            stream->closing = true;
        }
        stream->changed.notify_all();
        stream->worker.join();
    } else {
        turns_until([&] { return stream->idle(stream->pushed); });
        const std::lock_guard<std::mutex> lock(turns.mutex);
        turns.streams.erase(std::remove(turns.streams.begin(), turns.streams.end(), stream), turns.streams.end());
    }
    stream->destroyed = true;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (!allowed("cudaStreamSynchronize")) return failed(cudaErrorUnknown, "cudaStreamSynchronize was asked to fail");
    if (const char *what = unusable(stream)) return broken(cudaErrorInvalidResourceHandle, std::string("cudaStreamSynchronize of ") + what);
    std::unique_lock<std::mutex> lock(stream->mutex);
    if (stream->graph) {
        stream->invalid = "cudaStreamSynchronize of " + stream->name + ", which is being captured";
        return broken(cudaErrorStreamCaptureUnsupported, stream->invalid);
    }
    if (captures()) return broken(cudaErrorStreamCaptureUnsupported, "cudaStreamSynchronize in a thread that captures");
    const uint64_t until = stream->pushed;
    if (stream->worker.joinable()) {
        stream->changed.wait(lock, [&] { return stream->done >= until; });
        return cudaSuccess;
    }
    lock.unlock();
    if (turns_until([&] { return stream->idle(until); })) return cudaSuccess;
    return broken(cudaErrorUnknown, stream->name + " waits for an event that never comes");
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    if (!allowed("cudaStreamBeginCapture")) return failed(cudaErrorUnknown, "cudaStreamBeginCapture was asked to fail");
    if (const char *what = unusable(stream)) return broken(cudaErrorInvalidResourceHandle, std::string("cudaStreamBeginCapture of ") + what);
    const std::lock_guard<std::mutex> lock(stream->mutex);
    if (stream->graph) return broken(cudaErrorIllegalState, "a capture of " + stream->name + " began within another");
    stream->graph = new CUgraph_st;
    stream->capturer = std::this_thread::get_id();
    stream->invalid.clear();
    capturing_here++;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    *graph = nullptr;
    if (const char *what = unusable(stream)) return broken(cudaErrorInvalidResourceHandle, std::string("cudaStreamEndCapture of ") + what);
    const std::lock_guard<std::mutex> lock(stream->mutex);
    if (!stream->graph) return broken(cudaErrorIllegalState, "a capture of " + stream->name + " ended that had not begun");
    if (stream->capturer != std::this_thread::get_id()) return broken(cudaErrorStreamCaptureWrongThread, "a capture of " + stream->name + " ended in another thread");
    const cudaGraph_t captured = stream->graph;
    stream->graph = nullptr;
    capturing_here--;
    if (!allowed("cudaStreamEndCapture")) return failed(cudaErrorUnknown, "cudaStreamEndCapture was asked to fail");
    if (!stream->invalid.empty()) return failed(cudaErrorStreamCaptureInvalidated, stream->invalid);
    *graph = captured;
    return cudaSuccess;
}
