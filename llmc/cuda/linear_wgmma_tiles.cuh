// linear_wgmma_tiles.cuh - for linear_wgmma.cu: which block does which tile, and the warps that load and multiply.
#pragma once
#include "../dtype.h"
#include "hopper.cuh"
#include "two_bf16.cuh"

namespace llmc::wgmma {

constexpr int ROWS = 128, COLUMNS = 256, INNER = 64;  // of a tile; INNER: values a ring slot holds of each row
constexpr int SLOTS = 3, LEFT_BYTES = ROWS * INNER * 2, SLOT_BYTES = LEFT_BYTES + COLUMNS * INNER * 2;
constexpr int BOX_BYTES = 64 * INNER * 2;  // backward: right comes in boxes of 64 columns
constexpr int MULTIPLIERS = 8, FINISHERS = 3, THREADS = 32 * (MULTIPLIERS + FINISHERS + 1);  // warps; one loads
// Registers a thread: launched with 168; 2 * 176 + 152 = 3 * 168.
constexpr int MULTIPLY_REGISTERS = 176, OTHER_REGISTERS = 152;
constexpr int UNIT = 16, UNIT_BYTES = UNIT * COLUMNS * 2;  // rows of one multiplying warp, on their way to a finishing one
constexpr int SHARED_BYTES = 1024 + SLOTS * SLOT_BYTES + MULTIPLIERS * UNIT_BYTES;
constexpr int BIAS_STRIDE = 68;  // floats for one t of the sums' layout: 64 and 4, so that four t meet no bank twice

enum Wait { RING_FILLED, RING_EMPTIED, HANDED, TAKEN, SUMMED };  // to tell them apart when watched

struct Task {
    bf16 *out;         // (rows,width) gelu(pre) or dpre
    bf16 *pre;         // (rows,width) written forward, read backward
    const bf16 *bias;  // (width) or null, forward
    float *partials;   // (ceil(rows/ROWS),width) or null, backward
    int rows, width, inner;
};

// Tiles in the order in which blocks take turns at them: a band of rows, column by column, so that what a
// wave of blocks reads stays in L2 whichever of left and right is the large one.
struct Order {
    static constexpr int BAND = 16;  // tiles, one above the other
    int down, across;
    __host__ __device__ Order(const Task &task) : down((task.rows + ROWS - 1) / ROWS), across((task.width + COLUMNS - 1) / COLUMNS) {}
    __host__ __device__ int count() const { return down * across; }
    __device__ int first() const { return blockIdx.x; }
    __device__ int stride() const { return gridDim.x; }
    // First row and column of a tile.
    __device__ int2 place(int index) const {
        const int top = index / (BAND * across) * BAND, height = min(BAND, down - top), inside = index - top * across;
        return {(top + inside % height) * ROWS, inside / height * COLUMNS};
    }
};

struct alignas(16) Control {  // static shared memory
    uint64_t filled[SLOTS], emptied[SLOTS];           // ring: bytes arrived; multiplying warps are through
    uint64_t handed[MULTIPLIERS], taken[MULTIPLIERS]; // unit: written; read
    uint64_t summed;                                  // a tile's columns: written by every finishing warp
    union alignas(16) {
        float bias[2][2][4 * BIAS_STRIDE];  // by warpgroup and by turn, in the order in which sums lie
        float columns[2][FINISHERS][COLUMNS];  // by turn
    };
};

struct Ring {
    int slot = 0;
    uint32_t parity = 0;
    __device__ void advance() {
        if (++slot == SLOTS) slot = 0, parity ^= 1;
    }
};

// The warp that loads: one lane has it copied, SLOTS blocks of inner values ahead of the products; all bring into L2
// what would come late from memory: pre of the same tile, which is wanted when the product is through, and left
// of the next one (few blocks that need the same rows do that for all).
template <bool FORWARD>
__device__ __forceinline__ void load_tiles(const CUtensorMap &left, const CUtensorMap &right, const Task &task, Control &shared, unsigned char *ring) {
    const int lane = threadIdx.x % 32;
    const Order order(task);
    Ring at;
    int2 place = order.place(order.first());
    for (int tile = order.first(); tile < order.count(); tile += order.stride()) {
        const bool last = tile + order.stride() >= order.count();
        const int2 next = last ? place : order.place(tile + order.stride());
        const bool left_ahead = !last && next.x != place.x && next.y / COLUMNS % 4 == 0;
        for (int k = 0, lines = 0; k < task.inner; k += INNER, lines += 32, at.advance()) {
            if (elected()) {
                uint64_t *const filled = &shared.filled[at.slot];
                unsigned char *const slot = ring + at.slot * SLOT_BYTES, *const right_slot = slot + LEFT_BYTES;
                barrier_wait(&shared.emptied[at.slot], at.parity ^ 1, RING_EMPTIED, at.slot);
                barrier_arrive_expecting(filled, SLOT_BYTES);
                copy_tile(slot, left, k, place.x, filled);
                if constexpr (FORWARD) copy_tile(right_slot, right, k, place.y, filled);
                else copy_bands(right_slot, right, 0, k, place.y / 64, filled);
                if (left_ahead) prefetch_tile(left, k, next.x);
            }
            __syncwarp();
            if constexpr (!FORWARD) {
#pragma unroll
                for (int i = 0; i < 4; i++) {  // a line of 8 rows apart: 4 lanes a row
                    const int row = place.x + lines + i * 8 + lane / 4, column = place.y + lane % 4 * 64;
                    if (lines < ROWS && row < task.rows && column < task.width) prefetch_line(task.pre + int64_t(row) * task.width + column);
                }
            }
        }
        place = next;
    }
}

// warp 0 .. MULTIPLIERS-1 is the same for the whole warp.
template <bool FORWARD>
__device__ __forceinline__ void multiply_tiles(const Task &task, Control &shared, unsigned char *ring, unsigned char *units, int warp) {
    const int lane = threadIdx.x % 32, group = warp / 4, t = lane % 4;
    const Order order(task);
    const Operand left(shared_address(ring) + group * 64 * INNER * 2, 16, 1024);
    const Operand right(shared_address(ring) + LEFT_BYTES, FORWARD ? 16 : BOX_BYTES, 1024);
    constexpr int LEFT_STEP = 32, RIGHT_STEP = FORWARD ? 32 : 2048;  // bytes from 16 inner values to the next

    // A lane of store_blocks: blocks 0 and 1 are the upper and lower 8 rows of a piece (8 columns) of this
    // warp's unit, 2 and 3 those of the next piece. In a unit piece p of row r lies at p ^ r % 8.
    const uint32_t row = shared_address(units) + warp * UNIT_BYTES + lane % 16 * COLUMNS * 2, piece = (lane / 16) ^ (lane % 8);

    const auto emptied = [&](int slot) {
        if (lane == 0) barrier_arrive(&shared.emptied[slot]);
    };
    float sum[128] = {};
    Ring at;
    uint32_t turn = 0;
    for (int tile = order.first(); tile < order.count(); tile += order.stride(), turn ^= 1) {
        __nv_bfloat162 bias = __floats2bfloat162_rn(0.0f, 0.0f);
        if constexpr (FORWARD) {  // thread i of the warpgroup brings columns 2 i, 2 i + 1
            const int column = order.place(tile).y + threadIdx.x % 128 * 2;
            if (task.bias && column < task.width) bias = *reinterpret_cast<const __nv_bfloat162 *>(task.bias + column);
        }
        int before = 0;
        for (int k = 0; k < task.inner; k += INNER) {
            barrier_wait(&shared.filled[at.slot], at.parity, RING_FILLED, at.slot);
            wgmma_fence();
            const uint32_t slot = at.slot * SLOT_BYTES;
#pragma unroll
            for (int step = 0; step < INNER / 16; step++)
                multiply_64x256x16<!FORWARD>(sum, left.at(slot + step * LEFT_STEP), right.at(slot + step * RIGHT_STEP), k > 0 || step > 0);
            wgmma_commit();
            wgmma_wait<1>();  // of this warp's products all but those of this slot are through
            if (k > 0) emptied(before);
            before = at.slot;
            at.advance();
        }
        wgmma_wait<0>();
        sums_are_ready(sum);
        emptied(before);

        const float *bias_row = nullptr;
        if constexpr (FORWARD) {
            float *const slot = shared.bias[group][turn];
            const int i = threadIdx.x % 128;
            *reinterpret_cast<float2 *>(slot + i % 4 * BIAS_STRIDE + i / 4 * 2) = __bfloat1622float2(bias);
            some_meet(1 + group, 128);  // before the turn after next writes here again there is another
            bias_row = slot + t * BIAS_STRIDE;
        }
        barrier_wait(&shared.taken[warp], turn ^ 1, TAKEN, warp);
#pragma unroll
        for (int pair = 0; pair < COLUMNS / 16; pair++) {  // two pieces
            float s[8];
#pragma unroll
            for (int e = 0; e < 8; e++) s[e] = sum[8 * pair + e];
            if constexpr (FORWARD) {
                const float4 b = *reinterpret_cast<const float4 *>(bias_row + 4 * pair);
                s[0] += b.x, s[1] += b.y, s[2] += b.x, s[3] += b.y, s[4] += b.z, s[5] += b.w, s[6] += b.z, s[7] += b.w;
            }
            store_blocks(row + ((piece ^ (2 * pair % 8)) + 2 * pair / 8 * 8) * 16, two_bf16(s[0], s[1]), two_bf16(s[2], s[3]), two_bf16(s[4], s[5]),
                         two_bf16(s[6], s[7]));
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&shared.handed[warp]);
    }
}

}  // namespace llmc::wgmma
