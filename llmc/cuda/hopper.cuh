// hopper.cuh - what only compute capability 9.0 has (target sm_90a), one instruction a function: barriers
// in shared memory that count bytes, tile copies that run by themselves, products of a whole warpgroup.
//
// Rules that the callers keep:
// - A barrier's phase ends when its arrivals and its expected bytes are all in. wait(parity) returns once
//   the phase of that parity has ended; on a fresh barrier parity 1 counts as ended.
// - Tile copies and products touch shared memory through the async proxy. Between the two a barrier is
//   enough; an ordinary store that one of them shall see would need fence.proxy.async before it.
// - A product reads shared memory and adds to registers until wgmma_wait: before that nobody may touch them.
#pragma once
#include <cuda.h>

#include <cstdint>

namespace llmc {

#ifdef LLMC_WATCH_WAITS
// Testing: how long each kind of wait took, and a way out of one that never ends: after LLMC_WATCH_WAITS
// cycles it is reported, and from then on no wait waits. Results are then wrong, but the kernel returns.
struct WaitWatch {
    unsigned long long waited[8];           // cycles by the caller's kind, one lane a warp
    unsigned long long cycles, nanoseconds; // of all blocks
    unsigned int stuck, kind, index, parity, block, thread;
};
__device__ WaitWatch wait_watch;
__device__ __forceinline__ unsigned int *block_waited() {  // of this block so far; shared memory, so that watching costs little
    __shared__ unsigned int waited[8];
    return waited;
}
#endif

__device__ __forceinline__ uint32_t shared_address(const void *pointer) { return uint32_t(__cvta_generic_to_shared(pointer)); }

// -- barriers: 8 bytes of shared memory each

__device__ __forceinline__ void barrier_init(uint64_t *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// After the inits, before the block meets: the copies see them.
__device__ __forceinline__ void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and makes the phase wait for this many bytes of copies too.
__device__ __forceinline__ void barrier_arrive_expecting(uint64_t *barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
// False when the phase has not ended after a while: 1 ms, or less where the hardware wants.
__device__ __forceinline__ bool barrier_try(uint64_t *barrier, uint32_t parity) {
    uint32_t ended;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2, 1000000;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(ended)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return ended;
}
// kind and index tell waits apart when they are watched.
__device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t parity, [[maybe_unused]] int kind, [[maybe_unused]] int index) {
#ifdef LLMC_WATCH_WAITS
    const long long from = clock64();
    if (barrier_try(barrier, parity) && clock64() - from < 100) return;
    while (!barrier_try(barrier, parity)) {
        if (*reinterpret_cast<volatile unsigned int *>(&wait_watch.stuck)) return;
        if (clock64() - from < LLMC_WATCH_WAITS) continue;
        if (atomicExch(&wait_watch.stuck, 1u) == 0) {
            wait_watch.kind = kind, wait_watch.index = index, wait_watch.parity = parity;
            wait_watch.block = blockIdx.x, wait_watch.thread = threadIdx.x;
        }
        return;
    }
    if (threadIdx.x % 32 == 0) atomicAdd(&block_waited()[kind], static_cast<unsigned int>(clock64() - from));
#else
    while (!barrier_try(barrier, parity)) {}
#endif
}

// How long thread 0 of each block ran, when waits are watched.
struct BlockWatch {
#ifdef LLMC_WATCH_WAITS
    static __device__ unsigned long long nanoseconds() {
        unsigned long long now;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        return now;
    }
    __device__ BlockWatch() {
        if (threadIdx.x) return;
        for (int i = 0; i < 8; i++) block_waited()[i] = 0;
        atomicAdd(&wait_watch.cycles, static_cast<unsigned long long>(-clock64()));
        atomicAdd(&wait_watch.nanoseconds, -nanoseconds());
    }
    __device__ ~BlockWatch() {
        __syncthreads();
        if (threadIdx.x) return;
        for (int i = 0; i < 8; i++) atomicAdd(&wait_watch.waited[i], static_cast<unsigned long long>(block_waited()[i]));
        atomicAdd(&wait_watch.cycles, static_cast<unsigned long long>(clock64()));
        atomicAdd(&wait_watch.nanoseconds, nanoseconds());
    }
#endif
};

// True for one lane of a converged warp. Unlike lane == 0 it tells the compiler that there is one, so that what
// tile copies want in uniform registers goes there without a loop over lanes.
__device__ __forceinline__ bool elected() {
    uint32_t yes;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "elect.sync _|p, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(yes));
    return yes;
}

// `threads` threads, whole warps, meet at hardware barrier `id`; 0 is that of __syncthreads.
__device__ __forceinline__ void some_meet(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
// Counts for those who meet there, without waiting.
__device__ __forceinline__ void some_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// -- tile copies: a box of a matrix, from column x and row y, zero where the matrix has ended. The whole
// box counts as bytes of the barrier.

__device__ __forceinline__ void copy_tile(void *to, const CUtensorMap &map, int x, int y, uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
                 "l"(&map), "r"(x), "r"(y), "r"(shared_address(barrier))
                 : "memory");
}
// The same of a matrix in bands of columns, as many bands as the box has.
__device__ __forceinline__ void copy_bands(void *to, const CUtensorMap &map, int x, int y, int band, uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
                     shared_address(to)),
                 "l"(&map), "r"(x), "r"(y), "r"(band), "r"(shared_address(barrier))
                 : "memory");
}
// The same of a matrix in four dimensions.
__device__ __forceinline__ void copy_tile(void *to, const CUtensorMap &map, int x, int y, int z, int w, uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(
                     shared_address(to)),
                 "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
                 : "memory");
}
// Plain bytes, a multiple of 16, both ends aligned to 16.
__device__ __forceinline__ void copy_bytes(void *to, const void *from, uint32_t bytes, uint64_t *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}
// Ordinary stores to shared memory before it are seen by copies and products after it, and not overtaken by them.
__device__ __forceinline__ void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Into L2 only, a hint: a box; the 128 bytes around an address.
__device__ __forceinline__ void prefetch_tile(const CUtensorMap &map, int x, int y) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void prefetch_line(const void *at) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(at)) : "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap &map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

// -- products of a warpgroup

// An operand in shared memory in rows of 128 bytes, whose 16-byte pieces a copy with 128-byte swizzle has
// put at piece ^ row % 8; base aligned to 1024 bytes. Two ways to lie:
//   inner dimension along the rows (64 values): an atom is 8 rows of the outer dimension, and `stride` is
//     from atom to atom. `leading` is not read. 16 inner values further is 32 bytes on.
//   outer dimension along the rows (the instruction's transpose): an atom is 64 outer values by 8 inner
//     rows; `stride` is from one 8 inner rows to the next, `leading` from one 64 outer values to the next.
//     16 inner values further is two atoms, 2048 bytes, on. (The ISA says it in 16-byte units: leading is
//     from the first swizzle-size/16 of them to the next, stride from the first 8 columns to the next.)
struct Operand {
    uint32_t low, high;  // of the descriptor, which counts in 16 bytes
    __device__ __forceinline__ Operand(uint32_t address, uint32_t leading, uint32_t stride)
        : low((address & 0x3ffff) >> 4 | leading >> 4 << 16), high(stride >> 4 | SWIZZLE_128 << 30) {}
    __device__ __forceinline__ uint64_t at(uint32_t bytes) const { return uint64_t(high) << 32 | (low + (bytes >> 4)); }
    static constexpr uint32_t SWIZZLE_128 = 1;
};

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most PENDING committed groups are not done.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#define LLMC_8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define LLMC_32(d, i) LLMC_8(d, i), LLMC_8(d, i + 8), LLMC_8(d, i + 16), LLMC_8(d, i + 24)

// sum (64,256) = or += left (64,16) right (16,256), bf16 in, fp32 sums. Thread 32 w + 4 g + t has in
// sum[4 j + e] row 16 w + g + 8 (e/2), column 8 j + 2 t + e%2. OUTER_ROWS: right's columns along its rows.
template <bool OUTER_ROWS>
__device__ __forceinline__ void multiply_64x256x16(float (&sum)[128], uint64_t left, uint64_t right, bool add) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, p, 1, 1, 0, %131;\n"
        "}"
        : LLMC_32(sum, 0), LLMC_32(sum, 32), LLMC_32(sum, 64), LLMC_32(sum, 96)
        : "l"(left), "l"(right), "r"(int(add)), "n"(int(OUTER_ROWS)));
}
// After wgmma_wait: keeps the compiler from reading sums before it.
__device__ __forceinline__ void sums_are_ready(float (&sum)[128]) {
    asm volatile("" : LLMC_32(sum, 0), LLMC_32(sum, 32), LLMC_32(sum, 64), LLMC_32(sum, 96)::"memory");
}

// sum (64,64) = or += left (64,16) right (16,64). left is in registers: of thread 32 w + 4 g + t rows 16 w + g (words 0, 2)
// and 8 below (1, 3), columns 2 t, 2 t + 1 (words 0, 1) and 8 further (2, 3). So eight sums of two blocks of eight columns,
// rounded in pairs, are a left for the next product as they lie. sum[4 j + e] as above.
template <bool OUTER_ROWS>
__device__ __forceinline__ void multiply_64x64x16(float (&sum)[32], const uint32_t (&left)[4], uint64_t right, bool add) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n"
        "}"
        : LLMC_32(sum, 0)
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(int(add)), "n"(int(OUTER_ROWS)));
}
__device__ __forceinline__ void sums_are_ready(float (&sum)[32]) { asm volatile("" : LLMC_32(sum, 0)::"memory"); }
// After wgmma_wait: left's registers are in use until then.
__device__ __forceinline__ void left_is_free(uint32_t (&left)[4]) { asm volatile("" : "+r"(left[0]), "+r"(left[1]), "+r"(left[2]), "+r"(left[3])::"memory"); }
#undef LLMC_32
#undef LLMC_8

// Four 8x8 blocks of bf16 from shared memory: addresses and places as store_blocks has them, and so, with blocks in
// the order upper left, lower left, upper right, lower right, the left of a product.
__device__ __forceinline__ void load_blocks(uint32_t (&blocks)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(blocks[0]), "=r"(blocks[1]), "=r"(blocks[2]), "=r"(blocks[3])
                 : "r"(address)
                 : "memory");
}

// Four 8x8 blocks of bf16 to shared memory: lane 8 m + r gives the address of row r of block m; thread
// 4 g + t holds of each block row g, columns 2 t and 2 t + 1.
__device__ __forceinline__ void store_blocks(uint32_t address, uint32_t block0, uint32_t block1, uint32_t block2, uint32_t block3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(block0), "r"(block1), "r"(block2), "r"(block3)
                 : "memory");
}

// All warps of a warpgroup together: hand registers back to the block's pool, or wait for some from it.
template <int REGISTERS>
__device__ __forceinline__ void keep_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

}  // namespace llmc
