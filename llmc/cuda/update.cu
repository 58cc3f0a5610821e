// update.cu - the two one-warp kernels around an update: its constants go to the device, and decide_update
// of step.h judges loss and norm there, so that the host is never asked.
#include "lane.cuh"
#include "../ops.h"

namespace llmc {

namespace {

__global__ void keep_params(StepParams *device, const __grid_constant__ StepParams params) { *device = params; }

template <class T>
__device__ void copy_words(T *to, const T *from) {
    static_assert(sizeof(T) % sizeof(int) == 0);
    for (unsigned i = threadIdx.x; i < sizeof(T) / sizeof(int); i += blockDim.x) {
        reinterpret_cast<int *>(to)[i] = reinterpret_cast<const int *>(from)[i];
    }
}

// Where it points is not told: seeing shared memory, compilers unroll the walks along the rings into
// hundreds of registers.
template <class T>
__device__ T *generic(T *p) {
    asm volatile("" : "+l"(p));
    return p;
}

// One thread decides. The guard's rings, which it walks several times, are fetched by the whole warp.
__global__ void judge(llmc_step_result *record, llmc_guard *guard, const StepParams *params, const float *mean_loss, const float *norm_squared) {
    __shared__ llmc_guard rings;
    copy_words(&rings, guard);
    __syncwarp();
    if (threadIdx.x == 0) decide_update(record, generic(&rings), *params, *mean_loss, *norm_squared);
    __syncwarp();
    copy_words(guard, &rings);
}

}  // namespace

void store_step_params(Lane &lane, StepParams *device, const StepParams &params) {
    keep_params<<<1, 1, 0, lane.stream>>>(device, params);
    launch_check("keep_params");
}

void gate(Lane &lane, llmc_step_result *record, llmc_guard *guard, const StepParams *params, const float *mean_loss, const float *norm_squared) {
    judge<<<1, 32, 0, lane.stream>>>(record, guard, params, mean_loss, norm_squared);
    launch_check("judge");
}

}  // namespace llmc
