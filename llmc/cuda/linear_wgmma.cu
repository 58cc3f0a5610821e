// linear_wgmma.cu - a linear layer's product with GELU or its slope behind it, for compute capability 9.0.
//
//   forward    pre (N,OC) = inp (N,C) w(OC,C)^T + b,  out = gelu(pre)      left = inp   right = w^T
//   backward   dpre (N,C) = (dout (N,OC) w (OC,C)) * gelu'(pre)            left = dout  right = w
// 2*N*C*OC FLOP and, each once from or to memory, left + right + 4*N*width bytes. N=65536, C=768: 309 GFLOP
// and 0.9 GB, so the product is the floor; but a GELU in front of the next tile's product would keep the
// tensor cores waiting for half as long as the product takes (256 values a lane and tile, 20 instructions each).
//
// So warps have trades, and one block stays on an SM for all its 128x256 tiles:
//   multiplying  two warpgroups, 64 rows each, 128 fp32 sums a thread; a finished tile is rounded to bf16
//                (plus bias) and handed over through shared memory, each warp's 16 rows by themselves.
//   loading      one warp has blocks of 64 inner values (16 KiB of left, 32 KiB of right) copied into a ring
//   finishing    three warps apply GELU or slope and write, 512 bytes of a row a warp, while the next tile is
//                multiplied; they take the parts of tiles, 16 rows each, in turn
// A tile of that size reads each value from shared memory and L2 the fewest times that registers allow. (With
// one warp more a thread has 152 registers at launch; the assembler wants 154 for a product with 128 sums.)
// Measured and left out: pairs of blocks that share right (level), tiles of 192 columns with a fourth slot and seven
// finishing warps (up to 8% slower, 6% quicker only forward at N=4096).
#include "linear_wgmma.h"

#include <algorithm>

#include "hopper_launch.h"
#include "lane.cuh"
#include "linear_wgmma_finish.cuh"
#include "linear_wgmma_tiles.cuh"
#include "tensor_map.h"

namespace llmc {
namespace {

using namespace wgmma;

template <bool FORWARD>
__global__ void __launch_bounds__(THREADS, 1)
    gelu_product(const __grid_constant__ CUtensorMap left, const __grid_constant__ CUtensorMap right, const Task task) {
    if constexpr (FOR_SM_90A) {
        extern __shared__ unsigned char memory[];
        __shared__ Control shared;
        unsigned char *const ring = memory + (1024 - shared_address(memory) % 1024) % 1024, *const units = ring + SLOTS * SLOT_BYTES;
        const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
        [[maybe_unused]] const BlockWatch watch;
        if (threadIdx.x == 0) {
            prefetch_map(left);
            prefetch_map(right);
            for (int i = 0; i < SLOTS; i++) barrier_init(&shared.filled[i], 1), barrier_init(&shared.emptied[i], MULTIPLIERS);
            for (int i = 0; i < MULTIPLIERS; i++) barrier_init(&shared.handed[i], 1), barrier_init(&shared.taken[i], 1);
            barrier_init(&shared.summed, FINISHERS);
            barrier_init_fence();
        }
        __syncthreads();

        if (warp < MULTIPLIERS) {
            take_registers<MULTIPLY_REGISTERS>();
            multiply_tiles<FORWARD>(task, shared, ring, units, warp);
        } else {
            keep_registers<OTHER_REGISTERS>();
            if (warp == MULTIPLIERS + FINISHERS) load_tiles<FORWARD>(left, right, task, shared, ring);
            else if constexpr (FORWARD) finish_forward(task, shared, units, warp - MULTIPLIERS);
            else finish_backward(task, shared, units, warp - MULTIPLIERS);
        }
    }
}

// Boxes of 64 columns (128 bytes) by box_rows of matrix (rows,columns), as Operand wants them.
CUtensorMap boxes(const bf16 *matrix, int rows, int columns, int box_rows) {
    return tensor_map<2>("linear", matrix, {columns, rows}, {columns}, {64, box_rows});
}

// Boxes of `bands` bands of 64 columns each, one band after the other, by box_rows. columns % 64 == 0.
CUtensorMap band_boxes(const bf16 *matrix, int rows, int columns, int bands, int box_rows) {
    return tensor_map<3>("linear", matrix, {64, rows, columns / 64}, {columns, 64}, {64, box_rows, bands});
}

template <bool FORWARD>
void launch(Lane &lane, const Task &task, const bf16 *left, const bf16 *right) {
    allow_shared<gelu_product<FORWARD>>(lane, SHARED_BYTES, "linear: shared memory");
    const CUtensorMap left_boxes = boxes(left, task.rows, task.inner, ROWS);
    const CUtensorMap right_boxes = FORWARD ? boxes(right, task.width, task.inner, COLUMNS) : band_boxes(right, task.inner, task.width, COLUMNS / 64, INNER);
    const int blocks = std::min(lane.sms, Order(task).count());
    gelu_product<FORWARD><<<blocks, THREADS, SHARED_BYTES, lane.stream>>>(left_boxes, right_boxes, task);
    launch_check("gelu_product");
}

void check(const char *op, int N, int C, int OC, std::initializer_list<const void *> pointers) {
    if (N < 1 || C < 64 || OC < 8 || C % 64 || OC % 8) fail(LLMC_INVALID, "%s: N %d, C %d, OC %d, expected N >= 1 and multiples of 64 and 8", op, N, C, OC);
    for (const void *pointer : pointers)
        if (reinterpret_cast<uintptr_t>(pointer) % 16) fail(LLMC_INVALID, "%s: a pointer is not aligned to 16 bytes", op);
}

}  // namespace

bool wgmma_gelu_available(const Lane &lane, int N, int C, int OC) {
    if (lane.capability != 90 || N < 1 || C < 64 || OC < 8 || C % 64 || OC % 8) return false;
    return has_code<gelu_product<true>>() && encode_tiled();
}

void wgmma_gelu_backward(Lane &lane, bf16 *dpre, float *column_partials, const bf16 *dout, const bf16 *w, const bf16 *pre, int N, int C, int OC) {
    check("wgmma_gelu_backward", N, C, OC, {dpre, dout, w, pre});
    launch<false>(lane, {dpre, const_cast<bf16 *>(pre), nullptr, column_partials, N, C, OC}, dout, w);
}

void wgmma_gelu_forward(Lane &lane, bf16 *out, bf16 *pre, const bf16 *inp, const bf16 *w, const bf16 *b, int N, int C, int OC) {
    check("wgmma_gelu_forward", N, C, OC, {out, pre, inp, w, b});
    launch<true>(lane, {out, pre, b, nullptr, N, OC, C}, inp, w);
}

}  // namespace llmc
