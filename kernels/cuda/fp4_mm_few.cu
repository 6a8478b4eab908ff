/* d = x b^T with NVFP4 or MXFP4 weights and up to 16 rows of activations of 16 bits, on Hopper (sm_90a): weights are
 * expanded in registers as fp4_mm.cu does, which has more rows, but multiplied by mma.sync.
 *
 * With so few rows the time is that of instructions: measured, the pipe of shifts and masks is busy to 60 % and memory
 * idle to 35 % where warps share the rows of b. So here warps share K instead. A warp takes a quarter of a stage's 256
 * of K for many rows of b, and loads and pairs the x of it once for all of them; x comes by the copy engine, which
 * costs no warp anything; a NVFP4 scale as a pair of 16-bit floats comes out of a table of all 256.
 *
 *   - The order of k within a product is free as long as both operands have the same: a lane takes 16 consecutive k of
 *     its row, half or all of what has one scale, and pairs nibbles that are 16 bits apart.
 *   - The order of rows is free too: lane row g takes row 2 (g % 4) + g / 4 of eight, so that 16 lanes that load
 *     together read rows whose swizzles differ by more than the chunks that they read.
 *   - A MXFP4 scale above 2 and the power of two left out (fp4_mm.h) are together no bf16. The warps that look at all
 *     scales as they come say where one is 2 or more, and those four stages take one instruction more a pair.
 *
 * The parts of K are added through distributed shared memory, always in their order: no workspace, no atomics, two runs
 * are equal bit for bit.
 *
 * Host contract
 *   Parameters: those of mm_common.h (B_FORMAT NVFP4 or MXFP4; A_FORMAT PLAIN, or what x was before fp4_expand.cu wrote
 *   its codes out: NVFP4, sums are divided by x_global too, or I8 or E4M3, they are multiplied by their row's x_scale;
 *   X_FORMAT bf16, with NVFP4 weights and PLAIN also f16; ALIGNED 1), SUMS_ONLY (fp4_mm.h) and
 *     ROWS     of x in a block: 8 or 16
 *     TILES    of 16 rows of b a warp: 1 to 8
 *     WN, WK   warps along N, turns at stages: 4 WN WK at most 16 warps
 *     SPLIT    parts of K, the cluster size: 1 to 8
 *     STAGES   of the ring, at least WK + 1
 *   Tensor maps, 3-D, UINT8, fill with zeros
 *     codes, scales   as for fp4_mm.cu, but boxes of 16 TILES WN rows
 *     x               swizzle 128B, sizes {2 K, M, 1}, box {128, ROWS, 1}; whole 1, K a multiple of 64: sizes
 *                     {128, M, K / 64}, box {128, ROWS, 4}
 *   x: base and row stride multiples of 16; K a multiple of 8 and of the format's block
 *   Launch
 *     block 128 WN WK + 128, cluster {SPLIT, 1, 1}, grid {ceil(N / (16 TILES WN)) * SPLIT, ceil(M / ROWS), 1}
 *     dynamic shared memory = 1024 + max(STAGES * (16 TILES WN * 128 + 512 ROWS + 16) + 48 TILES WN * 1024 / UNIT +
 *                                        1168, 16 WK ROWS (16 TILES WN + 4)), with SPLIT > 1 also
 *                             16 + 64 SPLIT * ceil(ROWS TILES WN / SPLIT)
 *   May be launched with programmatic stream serialization; constant 1: kernels ahead in the stream do not write the
 *   weights, the first of which are then read before they end. */
#define SLICES 4                  /* of a stage */
#define EARLY (ROWS == 8 ? 3 : 2) /* stages whose weights come before their x: more would keep x waiting */
#define SPANS 3 /* of scales in the ring: with two, a span's first stages would wait for the last of the one before */
#define STRIP (16 * TILES * WN)
#define CONSUMERS (32 * SLICES * WN * WK)
#define COPIERS 96 /* threads that look at scales, or copy them */
#define READERS (SLICES * WN)
#define TURNERS 0
#define THREADS (CONSUMERS + 32 + COPIERS)
#define PARTS (SLICES * WK)
#define TILES_X (ROWS / 8)
#define UNITS (ROWS * STRIP / 16)                /* of 16 results of a row, which one block of the cluster finishes */
#define SHARE ((UNITS + SPLIT - 1) / SPLIT * 64) /* bytes of a block's sums of the results of one */
#define SCARCE (CONSUMERS == 512 && ROWS == 16)  /* registers: 96 a thread are too few to multiply */
#include "fp4_mm.h"

#if STAGES <= WK || (IS_MX && IS_F16) || (X_FORMAT != QN_MM_F16 && X_FORMAT != QN_MM_BF16)
#error "fp4_mm_few: no such cut"
#endif

/* ---- multiplying ---- */

/* A slice of a stage by the warp's rows of b. codes, scales: of the lane's first row, for the others are whole turns of
 * the swizzles further; x: the first of the lane's two chunks in its row of it; large 1: any MXFP4 scale. */
DEV void multiply_slice(u32 codes, u32 scales, u32 table, u32 x, int large, float sums[TILES][TILES_X][4])
{
    u32 v[TILES_X][8];
#pragma unroll
    for (int j = 0; j < TILES_X; j++) {
#pragma unroll
        for (u32 c = 0; c < 2; c++) {
            const uint4 w = load_shared_u32x4((x ^ c * 16) + (u32)j * 1024);
            v[j][4 * c] = __byte_perm(w.x, w.z, 0x5410);
            v[j][4 * c + 1] = __byte_perm(w.x, w.z, 0x7632);
            v[j][4 * c + 2] = __byte_perm(w.y, w.w, 0x5410);
            v[j][4 * c + 3] = __byte_perm(w.y, w.w, 0x7632);
        }
    }
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        u32 word[2][2], scale[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u32 eight = (u32)(2 * i + r) * 8;
            const int2 two = load_shared_i32x2(codes + eight * 128);
            word[r][0] = (u32)two.x;
            word[r][1] = (u32)two.y;
            const u32 code = load_shared_u8(scales + eight * SCALE_ROW);
#if IS_MX
            scale[r] = scale_twice(code, large);
#else
            scale[r] = load_shared_u32(table + code * 4);
#endif
        }
#pragma unroll
        for (int q = 0; q < 2; q++) {
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                u32 b[4];
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    b[n] = expand_pair(word[n % 2][q], e + n / 2, scale[n % 2], large);
                }
#pragma unroll
                for (int j = 0; j < TILES_X; j++) {
                    multiply_add(sums[i][j], b, v[j][4 * q + e], v[j][4 * q + e + 1]);
                }
            }
        }
    }
}

/* This warp's turns of the part of K, left in shared memory as [PARTS][ROWS][PITCH] floats. */
DEV void multiply(const problem *p, u32 sums_at, u32 warp, u32 lane, int mapped)
{
    const u32 slice = warp % SLICES, wn = warp / SLICES % WN, wk = warp / (SLICES * WN), g = lane / 4, t = lane % 4;
    const u32 low = g % 4 * 2 + g / 4, row = wn * (16 * TILES) + low;
    const int stages = (p->end - p->begin + DEPTH - 1) / DEPTH;
    u32 codes = p->codes + row * 128 + ((slice * 2 + t / 2) ^ low) * 16 + t % 2 * 8;
    u32 x = p->x + slice * (ROWS * 128) + g * 128 + (2 * t ^ g) * 16;
    u32 scales = scale_at(row, (slice * 64 + t * 16) / UNIT);
    asm("" : "+r"(codes), "+r"(x), "+r"(scales)); /* kept: the compiler would work them out in every stage */
    float sums[TILES][TILES_X][4];
#pragma unroll
    for (int i = 0; i < TILES; i++) {
#pragma unroll
        for (int j = 0; j < TILES_X; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                sums[i][j][e] = 0.0f;
            }
        }
    }
    place at = {wk, 0};
    int stage = (int)wk;
#pragma unroll 1
    for (int span = 0; span * SPAN < stages; span++) {
        const int first = span * SPAN, last = first + SPAN < stages ? first + SPAN : stages;
        const turn now = turn_of(span);
        barrier_wait(p->scales_full + 8 * now.span, now.parity);
#if IS_MX
        const uint4 saw = load_shared_u32x4(p->large + 16 * now.span);
        const int large = (saw.x | saw.y | saw.z) != 0;
#else
        const int large = 0;
#endif
#pragma unroll 1
        for (; stage < last; stage += WK) {
            const u32 byte = (u32)(stage - first) * (DEPTH / UNIT); /* bits that are the swizzle's alone in `scales` */
            const u32 scales_at = p->scales + now.span * SCALE_BYTES + (scales ^ byte);
            barrier_wait(p->full + 8 * at.stage, at.parity);
            const u32 codes_at = codes + at.stage * B_BYTES, x_at = x + at.stage * X_BYTES;
            if (IS_MX && large) {
                multiply_slice(codes_at, scales_at, p->table, x_at, 1, sums);
            } else {
                multiply_slice(codes_at, scales_at, p->table, x_at, 0, sums);
            }
            __syncwarp();
            if (lane == 0) {
                barrier_arrive(p->empty + 8 * at.stage);
            }
            place_on(&at, WK);
        }
        if (lane == 0 || !mapped) {
            barrier_arrive(p->scales_empty + 8 * now.span);
        }
    }
    threads_sync(1, CONSUMERS); /* all stages are read: the sums lie where they were */
    const u32 to = sums_at + (((wk * SLICES + slice) * ROWS + 2 * t) * PITCH + row) * 4;
#pragma unroll
    for (int i = 0; i < TILES; i++) {
#pragma unroll
        for (int j = 0; j < TILES_X; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                store_shared_f32(to + ((8 * j + e % 2) * PITCH + 16 * i + e / 2 * 8) * 4, sums[i][j][e]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_fp4_mm_few(const __grid_constant__ tensor_map code_map, const __grid_constant__ tensor_map scale_map,
                  const __grid_constant__ tensor_map x_map, const __grid_constant__ qn_cuda_mm a, int whole, int mapped,
                  int constant)
{
    extern __shared__ __align__(16) char shared[];
    const u32 warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32, part = SPLIT > 1 ? cluster_rank() : 0;
    problem own, *const p = &own;
    lay_out(a, p, shared_address(shared), part);
    const int early = !constant                           ? 0
                      : p->end - p->begin > EARLY * DEPTH ? EARLY
                                                          : (p->end - p->begin + DEPTH - 1) / DEPTH;
    release_next();
    if (warp == CONSUMERS / 32 && lane == 0) {
        begin_ring(p, &code_map, &scale_map, &x_map, mapped, early);
    }
#if !IS_MX
    for (u32 i = threadIdx.x; i < 256; i += THREADS) {
        store_shared_i32(p->table + 4 * i, (int)table_entry(i));
    }
#endif
    __syncthreads();
    wait_before();
#if SPLIT > 1
    cluster_arrive_relaxed();
#endif
    if (warp >= CONSUMERS / 32) {
#if SCARCE
        REGISTERS_GIVE(32);
#endif
        if (warp > CONSUMERS / 32) {
            look_at_scales(a, p, &scale_map, mapped, early, (int)threadIdx.x - CONSUMERS - 32);
        } else if (warp_elect()) {
            load(p, &code_map, &x_map, whole, early);
        }
#if SPLIT > 1
        __syncwarp();
        cluster_wait();
#endif
    } else {
#if SCARCE
        REGISTERS_TAKE(112);
#endif
        multiply(p, p->codes, warp, lane, mapped);
#if SPLIT > 1
        finish_shares(a, p, p->codes, part, threadIdx.x);
#else
        threads_sync(1, CONSUMERS);
        finish_strip(a, p, p->codes, threadIdx.x);
#endif
    }
}
