// parallel.h - how work is shared out over threads: contiguous slices, decided by the sizes alone, so
// that a result never depends on which thread came first.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "lane.h"

namespace llmc {

struct Slice {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
};

// Part `part` of `parts` of 0..n, cut at multiples of `grain` (16 floats: threads share no cache line).
inline Slice slice(int64_t n, int64_t part, int64_t parts, int64_t grain = 1) {
    const int64_t grains = (n + grain - 1) / grain;
    return {std::min(n, grains * part / parts * grain), std::min(n, grains * (part + 1) / parts * grain)};
}

// Waking the team costs some microseconds; work of fewer elements than this is done by the caller.
constexpr int64_t WORTH_A_TEAM = 1 << 13;

// Calls body(begin, end) on slices of 0..n, one per thread.
template <class Body>
void parallel_slices(const Lane &lane, int64_t n, int64_t grain, int64_t work, const Body &body) {
#pragma omp parallel num_threads(lane.threads) if (work >= WORTH_A_TEAM)
    {
        const Slice s = slice(n, omp_get_thread_num(), omp_get_num_threads(), grain);
        if (s.size() > 0) body(s.begin, s.end);
    }
}

}  // namespace llmc
