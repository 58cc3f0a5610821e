// embedding_index.cu - groups equal tokens on the device: a stable radix sort of (token, position), then a
// list of the long runs. The list's order depends on timing, the sums made from it do not.
// tokens (N) int32; cost: about 16N bytes read and written per 8 bits of vocabulary, off the compute lane.
#ifndef NDEBUG
#define NDEBUG  // cub's assertions end the process; a library leaves that to its caller
#endif
#define CCCL_DISABLE_NVTX  // cub's ranges would load a library at run time
#define NVTX_DISABLE
#include <cub/device/device_radix_sort.cuh>

#include "embedding_index.cuh"
#include "lane.cuh"
#include "../ops.h"

namespace llmc {

namespace {

__global__ void count_up(int *numbers, int N) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < N) numbers[i] = int(i);
}

__global__ void list_long_runs(TokenRuns runs, int64_t N) {
    const int64_t slot = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (slot + SHORT_RUN >= N) return;
    const int token = runs.tokens[slot];
    if (slot > 0 && runs.tokens[slot - 1] == token) return;
    if (runs.tokens[slot + SHORT_RUN] != token) return;
    int64_t inside = slot + SHORT_RUN, outside = N;  // bisect for the first slot past the run
    while (outside - inside > 1) {
        const int64_t middle = (inside + outside) / 2;
        (runs.tokens[middle] == token ? inside : outside) = middle;
    }
    const int place = atomicAdd(runs.long_count, 1);
    runs.long_start[place] = int(slot);
    runs.long_length[place] = int(outside - slot);
}

// Tokens are not negative, so only the bits of V-1 have to be sorted.
int token_bits(int V) {
    int bits = 1;
    while (bits < 31 && (int64_t(1) << bits) < V) bits++;
    return bits;
}

cudaError_t sort_pairs(void *scratch, size_t &bytes, const int *tokens, const TokenRuns &runs, int N, int V, cudaStream_t stream) {
    return cub::DeviceRadixSort::SortPairs(scratch, bytes, tokens, runs.tokens, runs.unsorted, runs.positions, N, 0, token_bits(V), stream);
}

}  // namespace

// The sort's share is asked of cub, which asks the current device; without one (a plan made on another
// machine) twice the pairs and a megabyte stand in for it.
size_t embedding_index_bytes(int N, int V) {
    if (N <= 0) return 0;
    size_t scratch = 0;
    if (sort_pairs(nullptr, scratch, nullptr, TokenRuns{}, N, V, nullptr) != cudaSuccess) {
        cudaGetLastError();
        scratch = size_t(N) * 16 + (size_t(1) << 20);
    }
    return token_runs_bytes(N) + scratch;
}

void embedding_index(Lane &lane, void *index, const int *tokens, int N, int V) {
    if (N < 0 || V < 1) fail(LLMC_INVALID, "embedding_index: N %d, V %d", N, V);
    if (N == 0) return;
    const TokenRuns runs = token_runs(index, N);
    count_up<<<unsigned(ceil_div(N, 256)), 256, 0, lane.stream>>>(runs.unsorted, N);
    launch_check("count_up");
    size_t scratch = 0;
    cuda_check(sort_pairs(nullptr, scratch, nullptr, TokenRuns{}, N, V, lane.stream), "embedding_index: size of the sort");
    cuda_check(sort_pairs(runs.sort_scratch, scratch, tokens, runs, N, V, lane.stream), "embedding_index: sort");
    if (max_long_runs(N) == 0) return;
    cuda_check(cudaMemsetAsync(runs.long_count, 0, sizeof(int), lane.stream), "embedding_index");
    list_long_runs<<<unsigned(ceil_div(N, 256)), 256, 0, lane.stream>>>(runs, N);
    launch_check("list_long_runs");
}

}  // namespace llmc
