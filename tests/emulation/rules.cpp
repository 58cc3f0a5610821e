// rules.cpp - breaks each rule of the runtime once, so that a test sees it refused.
#include <map>

#include "runtime.h"

namespace {

struct Bench {
    cudaStream_t stream = nullptr, other = nullptr;
    cudaEvent_t event = nullptr, timed = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;

    Bench() {
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0);
        cudaStreamCreateWithPriority(&other, cudaStreamNonBlocking, 0);
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
        cudaEventCreateWithFlags(&timed, cudaEventDefault);
    }
    ~Bench() {
        if (stream->graph) cudaStreamEndCapture(stream, &graph);
        if (!stream->destroyed) cudaStreamDestroy(stream);
        cudaStreamDestroy(other);
    }
    void begin() { cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal); }
    cudaError_t end() { return cudaStreamEndCapture(stream, &graph); }
    void capture() { begin(), end(), cudaGraphInstantiate(&executable, graph, 0); }
    cudaError_t op() { return emulation::submit(stream, {emulation::Work::RUN, "an op", [] {}}); }
    template <class Body>
    cudaError_t elsewhere(Body body) {
        cudaError_t status = cudaSuccess;
        std::thread([&] { status = body(); }).join();
        return status;
    }
};

const std::map<std::string, cudaError_t (*)(Bench &)> RULES = {
    {"wait for an event never recorded", [](Bench &b) { return cudaStreamWaitEvent(b.stream, b.event); }},
    {"query of an event never recorded", [](Bench &b) { return cudaEventQuery(b.event); }},
    {"time of an event never recorded", [](Bench &b) { float ms; return cudaEventElapsedTime(&ms, b.timed, b.timed); }},
    {"time of an event without one", [](Bench &b) { float ms; cudaEventRecord(b.event, b.stream); return cudaEventElapsedTime(&ms, b.event, b.event); }},
    {"synchronising a captured stream", [](Bench &b) { b.begin(); return cudaStreamSynchronize(b.stream); }},
    {"a capture that was synchronised", [](Bench &b) { b.begin(), cudaStreamSynchronize(b.stream); return b.end(); }},
    {"synchronising another stream while capturing", [](Bench &b) { b.begin(); return cudaStreamSynchronize(b.other); }},
    {"querying an event while capturing", [](Bench &b) { cudaEventRecord(b.event, b.other), b.begin(); return cudaEventQuery(b.event); }},
    {"another thread's work in a capture", [](Bench &b) { b.begin(); return b.elsewhere([&] { return b.op(); }); }},
    {"a capture with another thread's work", [](Bench &b) { b.begin(), b.elsewhere([&] { return b.op(); }); return b.end(); }},
    {"an allocation in a capture", [](Bench &b) { void *memory; b.begin(); return cudaMalloc(&memory, 1); }},
    {"memory freed twice", [](Bench &) { void *memory; cudaMalloc(&memory, 1), cudaFree(memory); return cudaFree(memory); }},
    {"an edge recorded in a capture", [](Bench &b) { b.begin(); return cudaEventRecord(b.event, b.stream); }},
    {"an edge awaited in a capture", [](Bench &b) { cudaEventRecord(b.event, b.stream), b.begin(); return cudaStreamWaitEvent(b.stream, b.event); }},
    {"an external record outside a capture", [](Bench &b) { return cudaEventRecordWithFlags(b.timed, b.stream, cudaEventRecordExternal); }},
    {"a capture within a capture", [](Bench &b) { b.begin(); return cudaStreamBeginCapture(b.stream, cudaStreamCaptureModeThreadLocal); }},
    {"an end without a beginning", [](Bench &b) { return b.end(); }},
    {"an end in another thread", [](Bench &b) { b.begin(); return b.elsewhere([&] { return b.end(); }); }},
    {"destroying a captured stream", [](Bench &b) { b.begin(); return cudaStreamDestroy(b.stream); }},
    {"a graph instantiated twice", [](Bench &b) { b.capture(); return cudaGraphInstantiate(&b.executable, b.graph, 0); }},
    {"a graph launched into a capture", [](Bench &b) { b.capture(), b.begin(); return cudaGraphLaunch(b.executable, b.stream); }},
    {"a destroyed graph launched", [](Bench &b) { b.capture(), cudaGraphExecDestroy(b.executable); return cudaGraphLaunch(b.executable, b.stream); }},
    {"a destroyed event recorded", [](Bench &b) { cudaEventDestroy(b.event); return cudaEventRecord(b.event, b.stream); }},
    {"a destroyed stream used", [](Bench &b) { cudaStreamDestroy(b.stream); return b.op(); }},
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const char *emulated_rules() {
    static std::string names;
    if (names.empty()) {
        for (const auto &rule : RULES) names += rule.first + "\n";
    }
    return names.c_str();
}
// Breaks the rule; the error's text, "" if it went through.
extern "C" __attribute__((visibility("default"))) const char *emulated_break(const char *rule) {
    static std::string text;
    Bench bench;
    const cudaError_t status = RULES.at(rule)(bench);
    text = status == cudaSuccess ? "" : emulation::text_of_last_failure();
    return text.c_str();
}
