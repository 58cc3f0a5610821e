// lane_work.h - an op as a piece of work on a lane. The engine is compiled with its Lane under another name (Makefile:
// -DLane=StreamLane), so that the CPU's ops, whose Lane is a number of threads, stand beside it under the same names.
#pragma once
#ifndef Lane
#error "compiled without -DLane=StreamLane"
#endif
#include "llmc/cuda/lane.cuh"
#include "runtime.h"

#undef Lane
#include "llmc/cpu/lane.h"

namespace llmc {

// One thread each: streams are what runs at once here.
template <class Body>
void enqueue(StreamLane &lane, const char *op, Body body) {
    emulation::Work work;
    work.name = op;
    work.run = [body] {
        Lane cpu;
        body(cpu);
    };
    cuda_check(emulation::submit(lane.stream, std::move(work)), op);
}

}  // namespace llmc
