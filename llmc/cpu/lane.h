// lane.h (CPU) - what an op needs to know: how many threads it may use.
#pragma once

namespace llmc {

struct Lane {
    int threads = 1;
};

}  // namespace llmc
