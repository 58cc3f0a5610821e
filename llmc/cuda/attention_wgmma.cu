// attention_wgmma.cu - causal attention's backward for compute capability 9.0: bf16, head size 64, T % 128 == 0.
//
//   P = exp(Q K^T / 8 - lse)     dP = dO V^T     D_q = dO_q . O_q     dS = P (dP - D)
//   dQ = dS K / 8                dV = P^T dO     dK = dS^T Q / 8
//
// That is five products of T T/2 HS multiplications a head; here are seven. Rows of queries need S, dP and dQ, rows of keys S^T,
// dP^T, dV and dK, and each kind has a launch of its own: then one warpgroup sums all that belongs to its 64 rows
// in registers. In return no fp32 dQ goes to memory to be added to by many blocks and rounded by a further kernel,
// and no order of sums depends on timing. P and dS stay in registers too: rounded in pairs they lie as the left
// operand of the next product has to. Both launches are the same kernel, for with the roles of rows and
// columns exchanged (brackets: keys)
//
//   S = left1 first^T, dP = left2 second^T     left1, left2 = Q, dO [K, V]: 64 rows, kept in registers
//   sum1 += dS first  [sum2 += P second]       first, second = K, V [Q, dO]: tiles of 64 rows, through a ring
//
// A block stays on its multiprocessor: one thread has tiles copied ahead, across the borders of heads, and two
// warpgroups multiply, one of them while the other takes exponentials. 64x64 values need 1024 [768 for queries] cycles of the
// tensor cores for both groups and about 500 for the exponentials.
#include "attention_wgmma.h"

#include <algorithm>
#include <atomic>

#include "../dtype.h"
#include "approx.cuh"
#include "column_sum.h"
#include "hopper.cuh"
#include "lane.cuh"
#include "tensor_map.h"

namespace llmc {
namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool FOR_SM_90A = true;
#else
constexpr bool FOR_SM_90A = false;  // nothing but an empty kernel, which wgmma_attention_available recognises
#endif

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

__device__ __forceinline__ uint32_t two_bf16(float first, float second) {  // a word as it lies in memory
    const __nv_bfloat162 two = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const uint32_t *>(&two);
}
__device__ __forceinline__ float2 two_floats(uint32_t word) { return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&word)); }
__device__ __forceinline__ float dot_two(uint32_t a, uint32_t b) {
    const float2 x = two_floats(a), y = two_floats(b);
    return fmaf(x.x, y.x, x.y * y.y);
}

// A word for each pair of sums, as products take them on their left.
__device__ __forceinline__ void round_pairs(uint32_t (&left)[4][4], const float (&sum)[32]) {
#pragma unroll
    for (int i = 0; i < 16; i++) left[i / 4][i % 4] = two_bf16(sum[2 * i], sum[2 * i + 1]);
}

// A warp's 16 rows of sums to rows of memory `stride` values apart, by way of 2 KiB of shared memory. Leaves in column[2 j + e]
// the sum of what this thread has stored of column 8 j + 2 t + e.
__device__ __forceinline__ void write_rows(bf16 *to, int64_t stride, uint32_t by_way_of, const float (&sum)[32], float factor, float (&column)[16]) {
    const int lane = threadIdx.x % 32;
    const uint32_t corner = by_way_of + lane / 8 % 2 * 1024 + lane % 8 * 128;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; i++) word[i] = two_bf16(sum[4 * j + 2 * i] * factor, sum[4 * j + 2 * i + 1] * factor);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float2 upper = two_floats(word[2 * i]), lower = two_floats(word[2 * i + 1]);
            column[2 * (j + i)] = upper.x + lower.x, column[2 * (j + i) + 1] = upper.y + lower.y;
        }
        store_blocks(corner + (((j + lane / 16) ^ lane % 8) << 4), word[0], word[1], word[2], word[3]);
    }
    __syncwarp();
#pragma unroll
    for (int row = lane / 8; row < 16; row += 4) {
        uint4 piece;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                     : "r"(by_way_of + row * 128 + ((lane % 8 ^ row % 8) << 4)));
        *reinterpret_cast<uint4 *>(to + row * stride + lane % 8 * 8) = piece;
    }
    __syncwarp();
}

// The sums over a warp's rows: each exchange with a lane of other rows halves the columns that a lane looks after, until
// those of 8 g + 2 t and the next are left.
template <int LEFT>
__device__ __forceinline__ void exchange(float (&column)[16]) {
    const bool upper = threadIdx.x & 2 * LEFT;
#pragma unroll
    for (int k = 0; k < LEFT; k++) {
        const float mine = upper ? column[LEFT + k] : column[k], others = upper ? column[k] : column[LEFT + k];
        column[k] = mine + __shfl_xor_sync(0xffffffffu, others, 2 * LEFT);
    }
}
__device__ __forceinline__ float2 sum_rows(float (&column)[16]) {
    exchange<8>(column);
    exchange<4>(column);
    exchange<2>(column);
    return {column[0], column[1]};
}

// warp 0 .. WARPS-1 is the same for the whole warp.
template <bool KEYS>
__device__ __forceinline__ void multiply(const Task &task, Control &shared, const Memory &memory, int warp) {
    const int lane = threadIdx.x % 32, group = warp / 4, g = lane / 4, t = lane % 4;
    const int own_row = warp % 4 * 16 + g;  // of the group's 64, and 8 below
    const bool skips = group == (KEYS ? 1 : 0);
    const Operand first(shared_address(memory.ring), 16, 1024), second(shared_address(memory.ring) + TILE_BYTES, 16, 1024);
    Turn<SLOTS> turn;
    Turn<2> rows_turn;

    uint32_t left1[4][4], left2[4][4], left_dS[4][4];
    [[maybe_unused]] uint32_t left_P[KEYS ? 4 : 1][4];
    float S[32], dP[32], sum1[32];
    [[maybe_unused]] float sum2[KEYS ? 32 : 1], lse2[2], D[2];

    const auto wait_tile = [&] { barrier_wait(&shared.tile_filled[turn.slot], turn.parity, TILE_FILLED, turn.slot); };
    const auto free_tile = [&](int slot) {
        if (lane == 0) barrier_arrive(&shared.tile_emptied[slot]);
    };
    // The groups hand products to the tensor cores by turns, so that one's are done while the other takes exponentials.
    const auto my_turn = [&] { some_meet(1 + group, 32 * WARPS); };
    const auto your_turn = [&] { some_arrive(1 + (group ^ 1), 32 * WARPS); };

    const auto start_scores = [&] {
        const int at = turn.slot * SLOT_BYTES;
        wgmma_fence();
#pragma unroll
        for (int c = 0; c < 4; c++) multiply_64x64x16<false>(S, left1[c], first.at(at + 32 * c), c > 0);
#pragma unroll
        for (int c = 0; c < 4; c++) multiply_64x64x16<false>(dP, left2[c], second.at(at + 32 * c), c > 0);
        wgmma_commit();
    };
    const auto start_sums = [&](int slot, bool add) {
        const int at = slot * SLOT_BYTES;
        wgmma_fence();
        if constexpr (KEYS) {
#pragma unroll
            for (int c = 0; c < 4; c++) multiply_64x64x16<true>(sum2, left_P[c], second.at(at + 2048 * c), add || c > 0);
        }
#pragma unroll
        for (int c = 0; c < 4; c++) multiply_64x64x16<true>(sum1, left_dS[c], first.at(at + 2048 * c), add || c > 0);
        wgmma_commit();
    };
    const auto scores_are_ready = [&] {
        sums_are_ready(S);
        sums_are_ready(dP);
    };
    const auto results_are_ready = [&] {
        sums_are_ready(sum1);
        if constexpr (KEYS) sums_are_ready(sum2);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            left_is_free(left_dS[c]);
            if constexpr (KEYS) left_is_free(left_P[c]);
        }
    };
    // S becomes P, dP becomes dS
    const auto take_exponentials = [&] {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            [[maybe_unused]] float4 stats;  // of this thread's two columns
            if constexpr (KEYS) stats = *reinterpret_cast<const float4 *>(memory.stats + turn.slot * STATS_BYTES + (8 * j + 2 * t) * sizeof(float2));
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float lse_here = KEYS ? (e % 2 ? stats.z : stats.x) : lse2[e / 2], D_here = KEYS ? (e % 2 ? stats.w : stats.y) : D[e / 2];
                float &s = S[4 * j + e], &d = dP[4 * j + e];
                s = exp2_approx(fmaf(s, SCALE * LOG2_E, -lse_here));
                d = s * (d - D_here);
            }
        }
    };
    const auto round = [&] {
        round_pairs(left_dS, dP);
        if constexpr (KEYS) round_pairs(left_P, S);
    };
    const auto rows_address = [&](int slot) { return shared_address(memory.rows + slot * OPERAND_BYTES<KEYS>) + group * TILE_BYTES + warp % 4 * 2048; };
    // The left operands of a block, for queries D too, and up to its first tile. That is one group's own; the other
    // group's queries come before all of its keys.
    const auto enter = [&](const Walk<KEYS> &walk) {
        barrier_wait(&shared.rows_filled[rows_turn.slot], rows_turn.parity, ROWS_FILLED, rows_turn.slot);
        const uint32_t corner = rows_address(rows_turn.slot) + lane / 8 % 2 * 1024 + lane % 8 * 128;
        if constexpr (!KEYS) D[0] = D[1] = 0;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const uint32_t at = corner + (((2 * c + lane / 16) ^ lane % 8) << 4);
            load_blocks(left1[c], at);
            load_blocks(left2[c], at + GROUPS * TILE_BYTES);
            if constexpr (!KEYS) {
                uint32_t out[4];
                load_blocks(out, at + 2 * GROUPS * TILE_BYTES);
#pragma unroll
                for (int i = 0; i < 4; i++) D[i % 2] += dot_two(left2[c][i], out[i]);
            }
        }
        if constexpr (!KEYS) {
            const float *const lse = reinterpret_cast<const float *>(memory.stats + rows_turn.slot * LSE_BYTES) + group * TILE + own_row;
            float2 *const stats = task.stats + int64_t(walk.head) * task.T + walk.block(task) * BLOCK + group * TILE + own_row;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                D[half] += __shfl_xor_sync(0xffffffffu, D[half], 1);
                D[half] += __shfl_xor_sync(0xffffffffu, D[half], 2);
                lse2[half] = lse[8 * half] * LOG2_E;
                if (t == 0) stats[8 * half] = {lse2[half], D[half]};
            }
        }
        if (skips) {
            wait_tile();
            free_tile(turn.slot);
            turn.advance();
            my_turn();
            your_turn();
        }
        wait_tile();
    };

    // One block's results, once its last sums are done.
    const auto write = [&](const Walk<KEYS> &walk, int slot, int rows_slot) {
        results_are_ready();
        free_tile(slot);
        const int64_t C = int64_t(task.NH) * HS, b = walk.head / task.NH, h = walk.head % task.NH;
        const int64_t row = b * task.T + walk.block(task) * BLOCK + group * TILE;
        bf16 *const to = task.dqkv + (row + warp % 4 * 16) * 3 * C + h * HS;
        float column[16];
        float *const sums = memory.sums + (rows_slot * GROUPS + group) * PARTS<KEYS> * 4 * HS;  // (parts, 4 warps, HS)
        const auto keep_sums = [&](int part) { *reinterpret_cast<float2 *>(sums + (part * 4 + warp % 4) * HS + 8 * g + 2 * t) = sum_rows(column); };
        write_rows(to + (KEYS ? C : 0), 3 * C, rows_address(rows_slot), sum1, SCALE, column);
        keep_sums(0);
        if constexpr (KEYS) {
            write_rows(to + 2 * C, 3 * C, rows_address(rows_slot) + GROUPS * TILE_BYTES, sum2, 1.0f, column);
            keep_sums(1);
        }
        async_fence();
        __syncwarp();
        if (lane == 0) barrier_arrive(&shared.rows_emptied[rows_slot]);
        // The group's four warps meet; the next block's sums lie elsewhere, and before those of the one after it they meet again.
        some_meet(1 + GROUPS + group, 128);
        const int thread = threadIdx.x % 128, part = thread / HS;
        if (part < PARTS<KEYS>) {
            const float *const four = sums + part * 4 * HS + thread % HS;
            task.partials[row / TILE * 3 * C + (KEYS + part) * C + h * HS + thread % HS] = (four[0] + four[HS]) + (four[2 * HS] + four[3 * HS]);
        }
    };

    if (group == 1) your_turn();
    Walk<KEYS> walk(task);
    enter(walk);
    my_turn();
    start_scores();
    your_turn();
    for (;;) {
        wgmma_wait<0>();
        scores_are_ready();
#pragma unroll
        for (int e = 0; e < 32; e++) {  // its own tile: a query doesn't see later keys
            const int row = own_row + e % 4 / 2 * 8, column = e / 4 * 8 + 2 * t + e % 2;
            if (KEYS ? column < row : column > row) S[e] = -INFINITY;
        }
        take_exponentials();
        round();
        bool add = false;
        for (int left = walk.tiles(task) - skips - 1; left > 0; left--, add = true) {
            const int slot = turn.slot;
            turn.advance();
            wait_tile();
            my_turn();
            start_scores();
            start_sums(slot, add);
            your_turn();
            wgmma_wait<1>();
            scores_are_ready();
            take_exponentials();
            wgmma_wait<0>();
            results_are_ready();
            free_tile(slot);
            round();
        }

        Walk<KEYS> next = walk;
        next.advance(task);
        const int slot = turn.slot, rows_slot = rows_turn.slot;
        turn.advance();
        rows_turn.advance();
        if (!next.more(task)) {
            my_turn();
            start_sums(slot, add);
            your_turn();
            wgmma_wait<0>();
            write(walk, slot, rows_slot);
            return;
        }
        enter(next);
        my_turn();
        start_sums(slot, add);
        start_scores();  // the next block's, multiplied while this one's results are written
        your_turn();
        wgmma_wait<1>();
        write(walk, slot, rows_slot);
        walk = next;
    }
}

template <bool KEYS>
__global__ void __launch_bounds__(THREADS, 1) differentiate_attention(const __grid_constant__ Maps maps, const Task task) {
    if constexpr (FOR_SM_90A) {
        extern __shared__ unsigned char dynamic[];
        __shared__ Control shared;
        const Memory memory = Memory::of<KEYS>(dynamic);
        const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
        [[maybe_unused]] const BlockWatch watch;
        if (threadIdx.x == 0) {
            for (int i = 0; i < SLOTS; i++) barrier_init(&shared.tile_filled[i], 1), barrier_init(&shared.tile_emptied[i], WARPS);
            for (int i = 0; i < 2; i++) barrier_init(&shared.rows_filled[i], 1), barrier_init(&shared.rows_emptied[i], WARPS);
            barrier_init_fence();
        }
        __syncthreads();
        if (warp < WARPS) {
            take_registers<MULTIPLY_REGISTERS>();
            multiply<KEYS>(task, shared, memory, warp);
        } else {
            keep_registers<OTHER_REGISTERS>();
            if (warp == WARPS && elected()) load_rows<KEYS>(maps, task, shared, memory);
            if (warp == WARPS + 1 && elected()) load_tiles<KEYS>(maps, task, shared, memory);
        }
    }
}

template <bool KEYS>
void launch(Lane &lane, const Maps &maps, const Task &task) {
    const auto kernel = differentiate_attention<KEYS>;
    static std::atomic<uint64_t> allowed{0};  // a bit a device
    const uint64_t device = uint64_t(1) << (lane.device % 64);
    if (!(allowed.load() & device)) {
        cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES<KEYS>), "attention_backward: shared memory");
        allowed.fetch_or(device);
    }
    kernel<<<std::min(lane.sms, task.items()), THREADS, SHARED_BYTES<KEYS>, lane.stream>>>(maps, task);
    launch_check("differentiate_attention");
}

}  // namespace

bool wgmma_attention_available(const Lane &lane, int T, int C, int NH) {
    if (lane.capability != 90 || C != NH * HS || T % BLOCK != 0) return false;
    static const bool compiled = [] {  // an empty kernel has no static shared memory
        cudaFuncAttributes facts = {};
        const cudaError_t status = cudaFuncGetAttributes(&facts, differentiate_attention<true>);
        if (status != cudaSuccess) cudaGetLastError();
        return status == cudaSuccess && facts.sharedSizeBytes > 0 && encode_tiled();
    }();
    return compiled;
}

size_t wgmma_attention_scratch_bytes(int B, int T, int NH) {
    const size_t N = size_t(B) * T;
    return N * NH * sizeof(float2) + N / TILE * 3 * NH * HS * sizeof(float);
}

void wgmma_attention_backward(Lane &lane, bf16 *dqkv, bf16 *dsum, void *scratch, const bf16 *dout, const bf16 *qkv, const bf16 *out, const float *lse, int B, int T,
                              int C, int NH, Into into) {
    const auto map = [&](const bf16 *tensor, int parts) {
        const int64_t row = int64_t(parts) * C;
        return tensor_map<4>("attention_backward", tensor, {HS, int64_t(parts) * NH, T, B}, {HS, row, T * row}, {HS, 1, TILE, 1});
    };
    const Maps maps = {map(qkv, 3), map(out, 1), map(dout, 1)};
    float2 *const stats = static_cast<float2 *>(scratch);
    Task task = {dqkv, lse, stats, reinterpret_cast<float *>(stats + int64_t(B) * NH * T), T, NH, B * NH, true};
    task.paired = task.items() >= 4 * lane.sms;
    launch<false>(lane, maps, task);
    launch<true>(lane, maps, task);
    if (dsum) add_partials(lane, dsum, task.partials, int(int64_t(B) * T / TILE), 3 * C, into);
}

}  // namespace llmc
