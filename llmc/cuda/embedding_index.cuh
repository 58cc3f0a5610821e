// embedding_index.cuh - where the arrays of a token index lie in its one piece of device memory.
#pragma once
#include <cstddef>
#include <cstdint>

namespace llmc {

// A run is a stretch of equal tokens in sorted order. One warp can measure and sum a short one.
constexpr int SHORT_RUN = 32;

struct TokenRuns {
    int *tokens;         // (N) ascending
    int *positions;      // (N) where each was; ascending within equal tokens
    int *unsorted;       // (N) 0, 1, 2, ...
    int *long_count;     // (1)
    int *long_start;     // (long_count) slots of runs longer than SHORT_RUN, in any order
    int *long_length;    // (long_count)
    void *sort_scratch;  // to the end of the index
};

inline int64_t max_long_runs(int64_t N) { return N / (SHORT_RUN + 1); }

inline size_t ints_bytes(int64_t count) { return size_t(count * int64_t(sizeof(int)) + 255) / 256 * 256; }

// Of everything but sort_scratch.
inline size_t token_runs_bytes(int64_t N) { return 3 * ints_bytes(N) + ints_bytes(1) + 2 * ints_bytes(max_long_runs(N)); }

inline TokenRuns token_runs(void *index, int64_t N) {
    char *at = static_cast<char *>(index);
    const auto take = [&](int64_t count) {
        int *array = reinterpret_cast<int *>(at);
        at += ints_bytes(count);
        return array;
    };
    TokenRuns runs;
    runs.tokens = take(N);
    runs.positions = take(N);
    runs.unsorted = take(N);
    runs.long_count = take(1);
    runs.long_start = take(max_long_runs(N));
    runs.long_length = take(max_long_runs(N));
    runs.sort_scratch = at;
    return runs;
}

}  // namespace llmc
