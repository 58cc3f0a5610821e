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
// A thread block stays on its multiprocessor: two threads have rows and tiles copied ahead, across the borders of heads, and
// two warpgroups multiply, one while the other takes exponentials. For 64x64 values the tensor cores need 384 [512] cycles;
// a group spends 530 on their exponentials and as long again on handing over products, whose left operands are read from
// registers, so two groups fill two thirds of the tensor cores' time. Registers don't allow a third group.
// Measured, B=64, NH=12, T=1024: 0.80 ms, cuDNN 1.05; under a power limit the seven products cost back half of that.
#include "attention_wgmma.h"

#include <algorithm>

#include "approx.cuh"
#include "attention_wgmma_rows.cuh"
#include "attention_wgmma_tiles.cuh"
#include "column_sum.h"
#include "hopper_launch.h"
#include "lane.cuh"
#include "tensor_map.h"

namespace llmc {
namespace {

using namespace wgmma_attention;

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
        __syncwarp();  // every lane has read the tile's statistics
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
    allow_shared<differentiate_attention<KEYS>>(lane, SHARED_BYTES<KEYS>, "attention_backward: shared memory");
    differentiate_attention<KEYS><<<std::min(lane.sms, task.items()), THREADS, SHARED_BYTES<KEYS>, lane.stream>>>(maps, task);
    launch_check("differentiate_attention");
}

}  // namespace

bool wgmma_attention_available(const Lane &lane, int T, int C, int NH) {
    if (lane.capability != 90 || C != NH * HS || T % BLOCK != 0) return false;
    return has_code<differentiate_attention<true>>() && encode_tiled();
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
