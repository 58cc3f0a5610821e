// control.cpp - what a test sets and reads: how streams are served, a call that shall fail, the log of calls, and the
// rules that were broken. Errors by thread, as in CUDA.
#include <atomic>
#include <sstream>
#include <utility>

#include "runtime.h"

namespace emulation {

namespace {
std::mutex control;
std::atomic<bool> watched{false};  // a log is kept or a call shall fail
bool logging = false;
std::vector<std::string> log, violations;
std::string last_failure;  // of whichever thread
std::atomic<int> pause_us{0};
std::string failing;
int calls_until_failure = 0;

thread_local cudaError_t last = cudaSuccess, explained = cudaSuccess;
thread_local std::string explanation;

const char *lines(const std::vector<std::string> &all) {
    static thread_local std::string text;
    std::ostringstream out;
    const std::lock_guard<std::mutex> lock(control);
    for (const std::string &line : all) out << line << '\n';
    text = out.str();
    return text.c_str();
}
}  // namespace

bool allowed(const std::string &call) {
    if (!watched) return true;
    const std::lock_guard<std::mutex> lock(control);
    if (logging) log.push_back(call);
    return failing != call || --calls_until_failure != 0;
}

cudaError_t failed(cudaError_t code, const std::string &text) {
    last = explained = code;
    explanation = text;
    const std::lock_guard<std::mutex> lock(control);
    last_failure = text;
    return code;
}

cudaError_t broken(cudaError_t code, const std::string &rule) {
    {
        const std::lock_guard<std::mutex> lock(control);
        violations.push_back(rule);
    }
    return failed(code, rule);
}

std::string text_of_last_failure() {
    const std::lock_guard<std::mutex> lock(control);
    return last_failure;
}

void pause_in_capture() {
    if (pause_us) std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
}

}  // namespace emulation

using namespace emulation;

cudaError_t cudaGetLastError() { return std::exchange(last, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last; }
const char *cudaGetErrorString(cudaError_t code) {
    if (code == cudaSuccess) return "no error";
    return code == explained ? explanation.c_str() : "an error of the emulated runtime";
}

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void emulated_reset() {
    const std::lock_guard<std::mutex> lock(control);
    log.clear();
    violations.clear();
    failing.clear();
    watched = logging = false;
    pause_us = 0;
}
EXPORT void emulated_log() {
    const std::lock_guard<std::mutex> lock(control);
    log.clear();
    watched = logging = true;
}
// The nth call of this name from now on fails: a function of the runtime, an op, or "captured " and an op.
EXPORT void emulated_fail(const char *call, int nth) {
    const std::lock_guard<std::mutex> lock(control);
    failing = call;
    calls_until_failure = nth;
    watched = true;
}
// Every op takes this long to be captured: other threads' work then has the time to come in between.
EXPORT void emulated_slow_captures(int microseconds) { pause_us = microseconds; }
EXPORT const char *emulated_calls() { return lines(log); }
EXPORT const char *emulated_violations() { return lines(violations); }
