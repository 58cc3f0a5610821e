// lanes.cpp (CPU) - every lane is the thread that calls: work is done when its call returns, so an edge is
// always passed already and a graph is its body. Spans and step times are host clock readings.
#include "../lanes.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "../device.h"
#include "blas.h"
#include "lane.h"

namespace llmc {

using Clock = std::chrono::steady_clock;

struct Lanes::State {
    Lane lane;
    int stress = 0;
    std::mutex mutex;  // a loader thread submits batches beside the thread that steps
    uint64_t random = 0;
    std::vector<Clock::time_point> step_start, step_end;  // by result record; the epoch: not marked
    bool recording = false;
    Clock::time_point origin;
    std::vector<llmc_span> spans;
    std::set<std::string> noted;
    std::string notes;

    double microseconds() const { return std::chrono::duration<double, std::micro>(Clock::now() - origin).count(); }

    // The stress switch: some time passes at every edge, so that another thread gets ahead.
    void delay() {
        if (stress <= 0) return;
        uint64_t bits;
        {
            std::lock_guard<std::mutex> lock(mutex);
            bits = random = random * 6364136223846793005u + 1442695040888963407u;
        }
        std::this_thread::sleep_for(std::chrono::microseconds((bits >> 33) % uint64_t(stress + 1)));
    }
};

Lanes::Lanes(const llmc_options &options) : state_(new State) {
    state_->lane.threads = options.threads > 0 ? options.threads : device_info(0).multiprocessors;
    state_->stress = options.stress;
    state_->random = options.seed;
    state_->step_start.resize(size_t(std::max(0, options.results)));
    state_->step_end.resize(state_->step_start.size());
    scipy_openblas_set_num_threads(1);  // of this copy of OpenBLAS; NumPy's own is another
}

Lanes::~Lanes() = default;

Lane &Lanes::operator[](LaneId) { return state_->lane; }
void Lanes::signal(Edge, int) { state_->delay(); }
void Lanes::await(Edge, int) { state_->delay(); }
bool Lanes::host_await(Edge, int, int) { return true; }
std::unique_lock<std::mutex> Lanes::hold() { return {}; }  // nothing is captured here
void Lanes::run(const GraphKey &key, int, const std::function<void(int)> &body) { body(key.slot); }
void Lanes::prepare(const GraphKey &, const std::function<void(int)> &) {}
void Lanes::synchronize() {}

void Lanes::mark_step_start(int record) {
    const Clock::time_point now = Clock::now();
    state_->step_start.at(size_t(record)) = now;
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (!state_->recording) return;
    const double earlier = std::chrono::duration<double, std::micro>(now - state_->origin).count();
    for (llmc_span &s : state_->spans) s.start_us -= earlier, s.end_us -= earlier;  // an upload precedes its step
    state_->origin = now;
}

void Lanes::mark_step_end(int record) { state_->step_end.at(size_t(record)) = Clock::now(); }

float Lanes::step_ms(int record) {
    const Clock::time_point start = state_->step_start.at(size_t(record)), end = state_->step_end.at(size_t(record)), never{};
    if (start == never || end == never || end < start) return NAN;
    return std::chrono::duration<float, std::milli>(end - start).count();
}

Lanes::Span Lanes::span(LaneId lane, const char *name, int layer) {
    static const char *const LANE_NAMES[NUM_LANES] = {"inputs", "targets", "compute", "loss", "save"};
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (!state_->recording) return Span(nullptr, lane, -1);
    llmc_span s{};
    std::strncpy(s.name, name, sizeof s.name - 1);
    std::strncpy(s.lane, LANE_NAMES[lane], sizeof s.lane - 1);
    s.layer = layer;
    s.start_us = s.end_us = state_->microseconds();
    state_->spans.push_back(s);
    return Span(this, lane, int(state_->spans.size()) - 1);
}

Lanes::Span::~Span() {
    if (!lanes_) return;
    State &state = *lanes_->state_;
    std::lock_guard<std::mutex> lock(state.mutex);
    if (size_t(index_) < state.spans.size()) state.spans[size_t(index_)].end_us = state.microseconds();
}

void Lanes::record_timeline(bool on) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (on) {
        state_->spans.clear();
        state_->origin = Clock::now();
    }
    state_->recording = on;
}

std::vector<llmc_span> Lanes::read_timeline() {
    std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->spans;
}

std::string Lanes::take_notes() {
    std::lock_guard<std::mutex> lock(state_->mutex);
    std::string taken;
    taken.swap(state_->notes);
    return taken;
}

void Lanes::note(const std::string &text) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    if (!state_->noted.insert(text).second) return;
    if (!state_->notes.empty()) state_->notes += '\n';
    state_->notes += text;
}

}  // namespace llmc
