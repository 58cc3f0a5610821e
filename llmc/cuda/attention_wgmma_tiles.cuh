// attention_wgmma_tiles.cuh - for attention_wgmma.cu: which block of rows a thread block takes next, and the threads
// that have rows and tiles copied.
#pragma once
#include "../dtype.h"
#include "hopper.cuh"

namespace llmc::wgmma_attention {

constexpr int HS = 64, TILE = 64, TILE_BYTES = TILE * HS * 2;
constexpr int GROUPS = 2, BLOCK = GROUPS * TILE;  // multiplying warpgroups; rows of a thread block
constexpr int WARPS = 4 * GROUPS, THREADS = 32 * (WARPS + 4);
constexpr int MULTIPLY_REGISTERS = 240, OTHER_REGISTERS = 24;  // launched with 168
constexpr int SLOTS = 6, SLOT_BYTES = 2 * TILE_BYTES, STATS_BYTES = TILE * int(sizeof(float2));
constexpr float SCALE = 0.125f;  // 1/sqrt(HS)

// left1, left2 and for D also O of both groups; two of them, one in use and one ahead
template <bool KEYS>
constexpr int OPERAND_BYTES = (KEYS ? 2 : 3) * GROUPS * TILE_BYTES;
constexpr int LSE_BYTES = BLOCK * int(sizeof(float));
// Statistics: of each tile's queries, or of both blocks of rows.
template <bool KEYS>
constexpr int ALL_STATS_BYTES = KEYS ? SLOTS * STATS_BYTES : 2 * LSE_BYTES;
template <bool KEYS>
constexpr int PARTS = KEYS ? 2 : 1;  // of dqkv: K and V, or Q
template <bool KEYS>
constexpr int SUMS_BYTES = 2 * PARTS<KEYS> * WARPS * HS * int(sizeof(float));
template <bool KEYS>
constexpr int SHARED_BYTES = 1024 + SLOTS * SLOT_BYTES + 2 * OPERAND_BYTES<KEYS> + ALL_STATS_BYTES<KEYS> + SUMS_BYTES<KEYS>;

enum Wait { TILE_FILLED, TILE_EMPTIED, ROWS_FILLED, ROWS_EMPTIED };  // to tell them apart when watched

struct Task {
    bf16 *dqkv;        // (B,T,3,NH,HS)
    const float *lse;  // (B,NH,T)
    float2 *stats;     // (B,NH,T): lse * log2(e) and D, from the launch for queries to the one for keys
    float *partials;   // (B*T/TILE,3C): sums of dqkv as stored over TILE rows each
    int T, NH, heads;  // heads: B * NH
    bool paired;
    __host__ __device__ int blocks() const { return T / BLOCK; }
    __host__ __device__ int pairs() const { return (blocks() + 1) / 2; }
    __host__ __device__ int items() const { return heads * (paired ? pairs() : blocks()); }
};

// The blocks of rows that a thread block works on, one after the other. The first rows of queries see few keys and the
// last ones many, so one from either end makes a pair, and all pairs are equally long. Where there are too few of
// them for that to come out even, blocks go by length, the longest first.
template <bool KEYS>
struct Walk {
    int item, head, rank;
    bool second = false;
    __device__ explicit Walk(const Task &task) { go_to(task, blockIdx.x); }
    __device__ bool more(const Task &task) const { return item < task.items(); }
    __device__ void advance(const Task &task) {
        second = task.paired && !second && 2 * rank != task.blocks() - 1;
        if (!second) go_to(task, item + gridDim.x);
    }
    __device__ int block(const Task &task) const { return second || (!task.paired && !KEYS) ? task.blocks() - 1 - rank : rank; }
    // The tiles it looks at, from the last of its own on: queries at earlier keys, keys at later queries.
    __device__ int tiles(const Task &task) const { return GROUPS * (KEYS ? task.blocks() - block(task) : block(task) + 1); }
    __device__ int tile(const Task &task, int i) const { return GROUPS * block(task) + (KEYS ? i : GROUPS - 1 - i); }

  private:
    __device__ void go_to(const Task &task, int to) {
        item = to;
        head = task.paired ? to / task.pairs() : to % task.heads;
        rank = task.paired ? to % task.pairs() : to / task.heads;
    }
};

template <int SIZE>
struct Turn {
    int slot = 0;
    uint32_t parity = 0;
    __device__ void advance() {
        if (++slot == SIZE) slot = 0, parity ^= 1;
    }
};

struct Control {  // static shared memory
    uint64_t tile_filled[SLOTS], tile_emptied[SLOTS];
    uint64_t rows_filled[2], rows_emptied[2];
};

struct Memory {  // dynamic shared memory
    unsigned char *ring, *rows, *stats;
    float *sums;
    template <bool KEYS>
    __device__ static Memory of(unsigned char *start) {
        unsigned char *const ring = start + (1024 - shared_address(start) % 1024) % 1024, *const rows = ring + SLOTS * SLOT_BYTES;
        unsigned char *const stats = rows + 2 * OPERAND_BYTES<KEYS>;
        return {ring, rows, stats, reinterpret_cast<float *>(stats + ALL_STATS_BYTES<KEYS>)};
    }
};

struct Maps {
    CUtensorMap qkv, out, dout;  // boxes of one head's 64 columns by 64 rows
};

// One thread for the rows and one for the tiles: rows are asked for a whole block ahead.
template <bool KEYS>
__device__ __forceinline__ void load_rows(const Maps &maps, const Task &task, Control &shared, const Memory &memory) {
    Turn<2> turn;
    for (Walk<KEYS> walk(task); walk.more(task); walk.advance(task), turn.advance()) {
        const int b = walk.head / task.NH, h = walk.head % task.NH, NH = task.NH, block = walk.block(task);
        uint64_t *const filled = &shared.rows_filled[turn.slot];
        barrier_wait(&shared.rows_emptied[turn.slot], turn.parity ^ 1, ROWS_EMPTIED, turn.slot);
        barrier_arrive_expecting(filled, OPERAND_BYTES<KEYS> + (KEYS ? 0 : LSE_BYTES));
        for (int group = 0; group < GROUPS; group++) {
            const int row = block * BLOCK + group * TILE;
            unsigned char *const to = memory.rows + turn.slot * OPERAND_BYTES<KEYS> + group * TILE_BYTES;
            copy_tile(to, maps.qkv, 0, KEYS ? NH + h : h, row, b, filled);
            if constexpr (KEYS) {
                copy_tile(to + GROUPS * TILE_BYTES, maps.qkv, 0, 2 * NH + h, row, b, filled);
            } else {
                copy_tile(to + GROUPS * TILE_BYTES, maps.dout, 0, h, row, b, filled);
                copy_tile(to + 2 * GROUPS * TILE_BYTES, maps.out, 0, h, row, b, filled);
            }
        }
        if constexpr (!KEYS) copy_bytes(memory.stats + turn.slot * LSE_BYTES, task.lse + int64_t(walk.head) * task.T + block * BLOCK, LSE_BYTES, filled);
    }
}

template <bool KEYS>
__device__ __forceinline__ void load_tiles(const Maps &maps, const Task &task, Control &shared, const Memory &memory) {
    Turn<SLOTS> turn;
    for (Walk<KEYS> walk(task); walk.more(task); walk.advance(task)) {
        const int b = walk.head / task.NH, h = walk.head % task.NH, NH = task.NH, tiles = walk.tiles(task);
        for (int i = 0; i < tiles; i++, turn.advance()) {
            const int row = walk.tile(task, i) * TILE;
            uint64_t *const filled = &shared.tile_filled[turn.slot];
            unsigned char *const first = memory.ring + turn.slot * SLOT_BYTES, *const second = first + TILE_BYTES;
            barrier_wait(&shared.tile_emptied[turn.slot], turn.parity ^ 1, TILE_EMPTIED, turn.slot);
            barrier_arrive_expecting(filled, SLOT_BYTES + (KEYS ? STATS_BYTES : 0));
            if constexpr (KEYS) {
                copy_tile(first, maps.qkv, 0, h, row, b, filled);
                copy_tile(second, maps.dout, 0, h, row, b, filled);
                copy_bytes(memory.stats + turn.slot * STATS_BYTES, task.stats + int64_t(walk.head) * task.T + row, STATS_BYTES, filled);
            } else {
                copy_tile(first, maps.qkv, 0, NH + h, row, b, filled);
                copy_tile(second, maps.qkv, 0, 2 * NH + h, row, b, filled);
            }
        }
    }
}

}  // namespace llmc::wgmma_attention
