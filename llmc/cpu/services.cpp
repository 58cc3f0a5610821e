// services.cpp - small things a step asks of its lane. On the CPU a lane is the calling thread.
#include <chrono>
#include <cstring>
#include <thread>

#include "../ops.h"

namespace llmc {

void prefetch_l2(Lane &, const void *, size_t) {}  // a CPU's own prefetchers see the next layer coming

void spin(Lane &, int microseconds) { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); }

// X is float here: both directions are copies.
template <class X>
void widen(Lane &, float *out, const X *inp, int64_t n) { std::memcpy(out, inp, sizeof(float) * size_t(n)); }

template <class X>
void narrow(Lane &, X *out, const float *inp, int64_t n) { std::memcpy(out, inp, sizeof(float) * size_t(n)); }

template void widen<float>(Lane &, float *, const float *, int64_t);
template void narrow<float>(Lane &, float *, const float *, int64_t);

}  // namespace llmc
