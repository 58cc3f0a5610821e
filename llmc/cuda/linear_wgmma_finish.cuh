// linear_wgmma_finish.cuh - for linear_wgmma.cu: the warps that apply GELU or its slope to tiles and write them.
//
// There is one such warp on a scheduler, so nothing hides its latencies but the work on GROUP rows at a time
// (8 values of each a lane); loops over groups are not unrolled, else the compiler mixes groups, runs out of
// registers and puts one value after the other.
#pragma once
#include "gelu.cuh"
#include "linear_wgmma_tiles.cuh"

namespace llmc::wgmma {

constexpr int GROUP = 4;

using Piece = uint4;  // 8 bf16 as they lie in memory, two a word
__device__ __forceinline__ Piece unit_piece(const unsigned char *unit, int row, int piece) {
    return *reinterpret_cast<const Piece *>(unit + (row * (COLUMNS / 8) + (piece ^ row % 8)) * 16);
}
__device__ __forceinline__ void write(bf16 *to, Piece piece) { __stcs(reinterpret_cast<Piece *>(to), piece); }

// The units that a finishing warp takes: every FINISHERS-th of all tiles' units.
struct Duty {
    const Order &order;
    int tile, unit;
    uint32_t turn = 0;  // of the tile
    int2 place;
    __device__ Duty(const Order &order, int warp) : order(order), tile(order.first()), unit(warp), place(order.place(tile)) {}
    __device__ bool done() const { return tile >= order.count(); }
    __device__ int row() const { return place.x + unit * UNIT; }
    __device__ void advance() {
        unit += FINISHERS;
        if (unit < MULTIPLIERS) return;
        unit -= MULTIPLIERS, turn ^= 1;
        tile += order.stride();
        if (!done()) place = order.place(tile);
    }
};

// Lane l has columns 8 l ..+ 8.
__device__ __forceinline__ void finish_forward(const Task &task, Control &shared, const unsigned char *units, int warp) {
    const int lane = threadIdx.x % 32;
    const Order order(task);
    for (Duty duty(order, warp); !duty.done(); duty.advance()) {
        const int column = duty.place.y + lane * 8, rows = column < task.width ? task.rows - duty.row() : 0;
        const unsigned char *const unit = units + duty.unit * UNIT_BYTES;
        const int64_t at = int64_t(duty.row()) * task.width + column;
        bf16 *pre_to = task.pre + at, *out_to = task.out + at;
        barrier_wait(&shared.handed[duty.unit], duty.turn, HANDED, duty.unit);
#pragma unroll 1
        for (int row = 0; row < UNIT; row += GROUP) {
            Piece pre[GROUP];
#pragma unroll
            for (int r = 0; r < GROUP; r++) pre[r] = unit_piece(unit, row + r, lane);
#pragma unroll
            for (int r = 0; r < GROUP; r++, pre_to += task.width, out_to += task.width) {
                const auto two = [](uint32_t word) {
                    const float2 x = two_floats(word);
                    return two_bf16(gelu_value<bf16>(x.x), gelu_value<bf16>(x.y));
                };
                const Piece out = {two(pre[r].x), two(pre[r].y), two(pre[r].z), two(pre[r].w)};
                if (row + r < rows) write(pre_to, pre[r]), write(out_to, out);
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&shared.taken[duty.unit]);
    }
}

__device__ __forceinline__ void finish_backward(const Task &task, Control &shared, const unsigned char *units, int warp) {
    const int lane = threadIdx.x % 32;
    const Order order(task);
    Duty duty(order, warp);

    // The next group of rows of pre, on the way. Past the matrix the nearest inside, for a product of 0.
    Piece ahead[GROUP];
    const auto fetch = [&](int row, int column) {
        const bf16 *const from = task.pre + min(column + lane * 8, task.width - 8);
#pragma unroll
        for (int r = 0; r < GROUP; r++) ahead[r] = __ldcs(reinterpret_cast<const Piece *>(from + int64_t(min(row + r, task.rows - 1)) * task.width));
    };
    // A tile's sums of columns are added up across warps one tile later, when all have long written theirs.
    const auto add_columns = [&](int2 place, uint32_t turn) {
        barrier_wait(&shared.summed, turn, SUMMED, 0);
        for (int c = warp * 32 + lane; c < COLUMNS; c += 32 * FINISHERS) {
            float total = 0;
#pragma unroll
            for (int w = 0; w < FINISHERS; w++) total += shared.columns[turn][w][c];
            if (place.x < task.rows && place.y + c < task.width) task.partials[int64_t(place.x / ROWS) * task.width + place.y + c] = total;
        }
    };

    fetch(duty.row(), duty.place.y);
    float sums[8] = {};
    int2 before = {-1, 0};  // the tile before
    while (!duty.done()) {
        Duty next = duty;
        next.advance();
        const int column = duty.place.y + lane * 8, rows = task.rows - duty.row();
        const bool inside = column < task.width;
        const unsigned char *const unit = units + duty.unit * UNIT_BYTES;
        bf16 *to = task.out + int64_t(duty.row()) * task.width + column;
        barrier_wait(&shared.handed[duty.unit], duty.turn, HANDED, duty.unit);
#pragma unroll 1
        for (int row = 0; row < UNIT; row += GROUP) {
            float2 x[GROUP][4];
#pragma unroll
            for (int r = 0; r < GROUP; r++)
                x[r][0] = two_floats(ahead[r].x), x[r][1] = two_floats(ahead[r].y), x[r][2] = two_floats(ahead[r].z), x[r][3] = two_floats(ahead[r].w);
            const bool more = row + GROUP < UNIT;
            fetch(more ? duty.row() + row + GROUP : next.row(), more ? duty.place.y : next.place.y);
            if (row < rows) {  // a branch, so that the loads above start before the work below
                Piece product[GROUP];
#pragma unroll
                for (int r = 0; r < GROUP; r++) product[r] = unit_piece(unit, row + r, lane);
#pragma unroll
                for (int r = 0; r < GROUP; r++) {
                    const auto two = [&](uint32_t product, float2 x, float &sum0, float &sum1) {
                        const float2 p = two_floats(product);
                        const uint32_t stored = two_bf16(p.x * gelu_slope<bf16>(x.x), p.y * gelu_slope<bf16>(x.y));
                        const float2 s = two_floats(stored);
                        sum0 += s.x, sum1 += s.y;
                        return stored;
                    };
                    const Piece dpre = {two(product[r].x, x[r][0], sums[0], sums[1]), two(product[r].y, x[r][1], sums[2], sums[3]),
                                        two(product[r].z, x[r][2], sums[4], sums[5]), two(product[r].w, x[r][3], sums[6], sums[7])};
                    if (inside && row + r < rows) write(to + int64_t(r) * task.width, dpre);
                }
            }
            to += int64_t(GROUP) * task.width;
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&shared.taken[duty.unit]);
        if (task.partials && next.turn != duty.turn) {  // the last unit of a tile
            if (before.x >= 0) add_columns(before, duty.turn ^ 1);  // now all have read those of the tile before that too
            float4 *const mine = reinterpret_cast<float4 *>(&shared.columns[duty.turn][warp][lane * 8]);
            mine[0] = {sums[0], sums[1], sums[2], sums[3]}, mine[1] = {sums[4], sums[5], sums[6], sums[7]};
            __syncwarp();
            if (lane == 0) barrier_arrive(&shared.summed);
#pragma unroll
            for (float &sum : sums) sum = 0;
            before = duty.place;
            if (next.done()) add_columns(before, duty.turn);
        }
        duty.tile = next.tile, duty.unit = next.unit, duty.turn = next.turn, duty.place = next.place;
    }
}

}  // namespace llmc::wgmma
