// lanes.cu - lanes as CUDA streams, edges as events, bodies as graphs, spans as pairs of timed events.
//
// A span's events may stand in a graph: recorded there as *external* nodes, they mean the same as eager ones.
#include "../lanes.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "../device.h"
#include "../ops.h"
#include "graph_memsets.h"
#include "lane.cuh"

// Names and ranges for profilers. Header-only; without a profiler a range costs a few nanoseconds.
#if __has_include(<nvtx3/nvToolsExtCudaRt.h>)
#include <nvtx3/nvToolsExtCudaRt.h>
#define LLMC_NVTX 1
#else
#define LLMC_NVTX 0
#endif

namespace llmc {

namespace {

constexpr const char *LANE_NAMES[NUM_LANES] = {"inputs", "targets", "compute", "loss", "save"};
constexpr size_t BLAS_WORKSPACE = 64u << 20;
constexpr int SPAN_EVENTS = 8192;  // made before recording starts: a capture should create nothing

struct EventDestroy {
    void operator()(cudaEvent_t e) const { cudaEventDestroy(e); }
};
using EventPtr = std::unique_ptr<CUevent_st, EventDestroy>;

EventPtr make_event(unsigned flags) {
    cudaEvent_t e = nullptr;
    cuda_check(cudaEventCreateWithFlags(&e, flags), "creating an event");
    return EventPtr(e);
}

void name_stream(cudaStream_t stream, const char *name) {
#if LLMC_NVTX
    nvtxNameCudaStreamA(stream, name);
#else
    (void)stream, (void)name;
#endif
}

// The host's time to enqueue something, as profilers show it beside the device's.
struct HostRange {
    explicit HostRange(const char *name) {
#if LLMC_NVTX
        nvtxRangePushA(name);
#else
        (void)name;
#endif
    }
    ~HostRange() {
#if LLMC_NVTX
        nvtxRangePop();
#endif
    }
};

const char *name_of(GraphKey::Kind kind) {
    switch (kind) {
        case GraphKey::FORWARD: return "forward";
        case GraphKey::HEAD: return "head";
        case GraphKey::BACKWARD: return "backward";
        case GraphKey::UPDATE: return "update";
        case GraphKey::EVAL_HEAD: return "head without gradients";
        case GraphKey::DECODE: return "decoding";
    }
    return "";
}

struct GraphDestroy {
    void operator()(cudaGraphExec_t g) const { cudaGraphExecDestroy(g); }
};
using GraphPtr = std::unique_ptr<CUgraphExec_st, GraphDestroy>;

}  // namespace

struct Lanes::State {
    llmc_options options{};
    Lane lanes[NUM_LANES];
    std::vector<EventPtr> events[NUM_EDGES];
    std::vector<EventPtr> step_start, step_end;
    std::vector<char> step_passed;  // bit 0: start, bit 1: end

    std::mutex enqueue;             // see Lanes::hold
    bool capturing = false;
    bool graphs = false;
    std::map<GraphKey, GraphPtr> captured;
    std::map<GraphKey, GraphPtr> prepared;  // graphs with span events in them, until they are launched
    std::vector<GraphPtr> recorded; // and from then on until the next recording

    struct Recorded {
        std::string name;
        LaneId lane;
        int layer;
        int start, end;             // indices into span_events
    };
    std::mutex span_mutex;
    std::atomic<bool> recording{false};
    std::vector<EventPtr> span_events;
    size_t span_events_used = 0;
    std::vector<Recorded> spans;
    EventPtr origin;

    std::mutex notes_mutex;
    std::string notes;
    std::set<std::string> noted;

    std::mutex stress_mutex;
    uint64_t stress_state = 0;

    // Mostly short, now and then as long as is allowed: one late upload has to outlast the many small
    // delays of the lane that should wait for it.
    int next_delay() {
        const std::lock_guard<std::mutex> lock(stress_mutex);
        stress_state = stress_state * 6364136223846793005ull + 1442695040888963407ull;
        const double u = double(stress_state >> 33) * 0x1p-31;
        return int(options.stress * u * u * u * u);
    }
    bool own_stream(int lane) const { return options.streams > 1 || lane == COMPUTE || lane == SAVE; }
    // Only COMPUTE is ever captured; another lane may be at work eagerly meanwhile.
    unsigned how_to_record(LaneId lane) const {
        const bool captured = capturing && lanes[lane].stream == lanes[COMPUTE].stream;
        return captured ? cudaEventRecordExternal : cudaEventRecordDefault;
    }
    // The graph of body(slot), ready to be launched. Null when there is none to be had: graphs are then off for good.
    GraphPtr capture(Lanes &owner, int slot, const std::function<void(int)> &body) {
        const cudaStream_t stream = lanes[COMPUTE].stream;
        GraphPtr executable;
        std::string reason;
        const auto held = owner.hold();
        cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "starting a capture");
        capturing = true;
        const size_t spans_before = spans.size();  // who else makes spans holds the lock meanwhile
        try {
            body(slot);
        } catch (const std::exception &e) {  // whatever it is, the capture has to be ended
            reason = e.what();
        }
        capturing = false;
        cudaGraph_t graph = nullptr;
        cudaError_t status = cudaStreamEndCapture(stream, &graph);
        if (status == cudaSuccess && reason.empty()) {
            memsets_to_kernels(graph);
            cudaGraphExec_t exec = nullptr;
            status = cudaGraphInstantiate(&exec, graph, 0);
            executable.reset(status == cudaSuccess ? exec : nullptr);
            if (executable) status = cudaGraphUpload(exec, stream);
        }
        if (graph) cudaGraphDestroy(graph);
        if (status != cudaSuccess) cudaGetLastError();
        if (reason.empty() && status != cudaSuccess) reason = cudaGetErrorString(status);
        if (reason.empty()) return executable;
        graphs = false;
        const std::lock_guard<std::mutex> lock(span_mutex);
        spans.erase(spans.begin() + std::ptrdiff_t(spans_before), spans.end());  // of work that is never done
        owner.note("graphs are off, steps run eagerly: capture failed (" + reason + ")");
        return nullptr;
    }
    ~State() {
        captured.clear();
        prepared.clear();
        recorded.clear();
        for (Lane &lane : lanes) {
            lane.blas.reset();
            lane.attention.reset();
            device_free(lane.blas_workspace);
        }
        for (int i = 0; i < NUM_LANES; i++) {
            if (own_stream(i) && lanes[i].stream) cudaStreamDestroy(lanes[i].stream);
        }
    }
};

Lanes::Lanes(const llmc_options &options) : state_(new State) {
    State &s = *state_;
    s.options = options;
    s.graphs = options.graph != 0;
    s.stress_state = options.seed;
    int least = 0, greatest = 0;  // numerically, greatest <= least
    cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "reading the priority range");
    const auto attribute = [&](cudaDeviceAttr which) {
        int value = 0;
        cuda_check(cudaDeviceGetAttribute(&value, which, options.device), "reading a device attribute");
        return value;
    };
    Lane facts;
    facts.device = options.device;
    facts.sms = attribute(cudaDevAttrMultiProcessorCount);
    facts.capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) + attribute(cudaDevAttrComputeCapabilityMinor);
    facts.max_shared = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    facts.l2_bytes = size_t(attribute(cudaDevAttrL2CacheSize));
    facts.tf32 = options.tf32 != 0;
    facts.deterministic = options.deterministic != 0;
    for (int i = 0; i < NUM_LANES; i++) s.lanes[i] = facts;
    for (int i = 0; i < NUM_LANES; i++) {
        if (!s.own_stream(i)) continue;
        // The short lanes go first: they are all somebody waits for, compute is what they hide behind.
        const int priority = i == COMPUTE || i == SAVE ? least : greatest;
        cuda_check(cudaStreamCreateWithPriority(&s.lanes[i].stream, cudaStreamNonBlocking, priority), "creating a stream");
        name_stream(s.lanes[i].stream, LANE_NAMES[i]);
    }
    for (int i = 0; i < NUM_LANES; i++) {
        if (!s.own_stream(i)) s.lanes[i].stream = s.lanes[COMPUTE].stream;
    }
    s.lanes[COMPUTE].blas_workspace = device_alloc(BLAS_WORKSPACE);
    s.lanes[COMPUTE].blas_workspace_bytes = BLAS_WORKSPACE;

    for (int e = 0; e < NUM_EDGES; e++) {
        const int count = EDGES[e].per == Per::SLOT ? options.slots : EDGES[e].per == Per::RESULT ? options.results : 1;
        for (int i = 0; i < count; i++) {
            s.events[e].push_back(make_event(cudaEventDisableTiming));
            // Recorded once, so that a first wait, captured or not, finds a fact and not a void.
            cuda_check(cudaEventRecord(s.events[e].back().get(), s.lanes[EDGES[e].producer].stream), "recording an event");
        }
    }
    for (int i = 0; i < options.results; i++) {
        s.step_start.push_back(make_event(cudaEventDefault));
        s.step_end.push_back(make_event(cudaEventDefault));
    }
    s.step_passed.assign(size_t(options.results), 0);
    synchronize();
}

Lanes::~Lanes() {
    for (int i = 0; i < NUM_LANES; i++) {
        if (cudaStreamSynchronize(state_->lanes[i].stream) != cudaSuccess) cudaGetLastError();
    }
}

Lane &Lanes::operator[](LaneId id) { return state_->lanes[id]; }
std::unique_lock<std::mutex> Lanes::hold() { return std::unique_lock<std::mutex>(state_->enqueue); }

void Lanes::signal(Edge edge, int index) {
    State &s = *state_;
    const EdgeInfo &info = EDGES[edge];
    if (s.options.stress > 0) spin(s.lanes[info.producer], s.next_delay());
    cuda_check(cudaEventRecord(s.events[edge][size_t(index)].get(), s.lanes[info.producer].stream), info.event);
}

void Lanes::await(Edge edge, int index) {
    State &s = *state_;
    const EdgeInfo &info = EDGES[edge];
    const cudaStream_t consumer = s.lanes[info.consumer].stream;
    if (consumer == s.lanes[info.producer].stream) return;
    if (s.options.drop_edge != int(edge)) {
        cuda_check(cudaStreamWaitEvent(consumer, s.events[edge][size_t(index)].get()), info.event);
    }
    // Late consumers too: what they do next (an upload, say) is what the next edge must hold back.
    if (s.options.stress > 0) spin(s.lanes[info.consumer], s.next_delay());
}

bool Lanes::host_await(Edge edge, int index, int wait_ms) {
    using Clock = std::chrono::steady_clock;
    const cudaEvent_t event = state_->events[edge][size_t(index)].get();
    const Clock::time_point start = Clock::now();
    // Who waits for a result enqueues a step next: a core that has slept forgets how (its caches go cold, its clock drops),
    // and takes twice as long. Steps that last longer hide that, and the core is better left to others.
    const std::chrono::microseconds awake(edge == RESULT_ON_HOST ? 20000 : 200);
    for (;;) {
        const cudaError_t status = cudaEventQuery(event);
        if (status == cudaSuccess) return true;
        if (status != cudaErrorNotReady) cuda_check(status, EDGES[edge].event);
        cudaGetLastError();
        const auto waited = Clock::now() - start;
        if (wait_ms >= 0 && waited >= std::chrono::milliseconds(wait_ms)) return false;
        if (waited < awake) std::this_thread::yield();
        else std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
}

void Lanes::run(const GraphKey &key, int slots, const std::function<void(int)> &body) {
    State &s = *state_;
    const cudaStream_t stream = s.lanes[COMPUTE].stream;
    const HostRange range(name_of(key.kind));
    if (s.recording) {
        prepare(key, body);  // if nobody has
        auto ready = s.prepared.extract(key);
        if (!ready) return body(key.slot);  // its spans must not get into graphs that stay
        cuda_check(cudaGraphLaunch(ready.mapped().get(), stream), "launching a captured step");
        s.recorded.push_back(std::move(ready.mapped()));
        return;
    }
    if (!s.graphs) return body(key.slot);
    const auto found = s.captured.find(key);
    if (found != s.captured.end()) {
        cuda_check(cudaGraphLaunch(found->second.get(), stream), "launching a captured step");
        return;
    }
    body(key.slot);  // eagerly this once: libraries load what they need
    for (GraphKey each = key; slots > 0 && s.graphs; slots--) {
        each.slot = slots - 1;
        if (GraphPtr graph = s.capture(*this, each.slot, body)) s.captured[each] = std::move(graph);
    }
}

void Lanes::prepare(const GraphKey &key, const std::function<void(int)> &body) {
    State &s = *state_;
    if (!s.recording || !s.graphs || !s.captured.count(key) || s.prepared.count(key)) return;
    if (GraphPtr graph = s.capture(*this, key.slot, body)) s.prepared[key] = std::move(graph);
}

void Lanes::mark_step_start(int record) {
    cuda_check(cudaEventRecord(state_->step_start[size_t(record)].get(), state_->lanes[COMPUTE].stream), "marking a step's start");
    state_->step_passed[size_t(record)] = 1;
}
void Lanes::mark_step_end(int record) {
    cuda_check(cudaEventRecord(state_->step_end[size_t(record)].get(), state_->lanes[COMPUTE].stream), "marking a step's end");
    state_->step_passed[size_t(record)] |= 2;
}
float Lanes::step_ms(int record) {
    State &s = *state_;
    if (s.step_passed[size_t(record)] != 3) return NAN;
    // The record comes from the gate, the step's end a little later, after AdamW.
    cuda_check(cudaEventSynchronize(s.step_end[size_t(record)].get()), "waiting for a step's end");
    float ms = NAN;
    cuda_check(cudaEventElapsedTime(&ms, s.step_start[size_t(record)].get(), s.step_end[size_t(record)].get()), "reading a step's time");
    return ms;
}

Lanes::Span Lanes::span(LaneId lane, const char *name, int layer) {
    State &s = *state_;
    if (!s.recording) return Span(nullptr, lane, 0);
    const std::lock_guard<std::mutex> lock(s.span_mutex);
    if (s.span_events_used + 2 > s.span_events.size()) return Span(nullptr, lane, 0);
    const int start = int(s.span_events_used);
    s.span_events_used += 2;
    s.spans.push_back({name, lane, layer, start, -1});
    cuda_check(cudaEventRecordWithFlags(s.span_events[size_t(start)].get(), s.lanes[lane].stream, s.how_to_record(lane)), "marking a span");
    return Span(this, lane, int(s.spans.size()) - 1);
}

Lanes::Span::~Span() {
    if (!lanes_) return;
    State &s = *lanes_->state_;
    const std::lock_guard<std::mutex> lock(s.span_mutex);
    if (size_t(index_) >= s.spans.size() || !s.recording) return;
    State::Recorded &r = s.spans[size_t(index_)];
    const cudaError_t status = cudaEventRecordWithFlags(s.span_events[size_t(r.start) + 1].get(), s.lanes[lane_].stream, s.how_to_record(lane_));
    if (status == cudaSuccess) r.end = r.start + 1;
    else cudaGetLastError();  // a destructor can't report; the span is left out of the timeline
}

void Lanes::record_timeline(bool on) {
    State &s = *state_;
    const std::lock_guard<std::mutex> lock(s.span_mutex);
    if (on) {
        if (!s.origin) {
            s.origin = make_event(cudaEventDefault);
            s.span_events.reserve(SPAN_EVENTS);
            while (s.span_events.size() < SPAN_EVENTS) s.span_events.push_back(make_event(cudaEventDefault));
        }
        s.spans.clear();
        s.span_events_used = 0;
        s.prepared.clear();
        s.recorded.clear();
        cuda_check(cudaEventRecord(s.origin.get(), s.lanes[COMPUTE].stream), "marking the timeline's origin");
    }
    s.recording = on;
}

std::vector<llmc_span> Lanes::read_timeline() {
    State &s = *state_;
    const std::lock_guard<std::mutex> lock(s.span_mutex);
    std::vector<llmc_span> out;
    for (const State::Recorded &r : s.spans) {
        float start = 0, end = 0;
        if (r.end < 0 || cudaEventElapsedTime(&start, s.origin.get(), s.span_events[size_t(r.start)].get()) != cudaSuccess ||
            cudaEventElapsedTime(&end, s.origin.get(), s.span_events[size_t(r.end)].get()) != cudaSuccess) {
            cudaGetLastError();
            continue;
        }
        llmc_span span{};
        std::snprintf(span.name, sizeof span.name, "%s", r.name.c_str());
        std::snprintf(span.lane, sizeof span.lane, "%s", LANE_NAMES[r.lane]);
        span.layer = r.layer;
        span.start_us = 1e3 * start;
        span.end_us = 1e3 * end;
        out.push_back(span);
    }
    return out;
}

void Lanes::synchronize() {
    for (Lane &lane : state_->lanes) cuda_check(cudaStreamSynchronize(lane.stream), "waiting for a lane");
}

void Lanes::note(const std::string &text) {
    const std::lock_guard<std::mutex> lock(state_->notes_mutex);
    if (!state_->noted.insert(text).second) return;
    if (!state_->notes.empty()) state_->notes += '\n';
    state_->notes += text;
}
std::string Lanes::take_notes() {
    const std::lock_guard<std::mutex> lock(state_->notes_mutex);
    return std::exchange(state_->notes, {});
}

}  // namespace llmc
