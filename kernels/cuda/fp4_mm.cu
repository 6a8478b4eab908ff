/* d = x b^T with NVFP4 or MXFP4 weights and activations of 16 bits, on Hopper (sm_90a): weights are expanded in
 * registers to the activations' type, exactly, and multiplied by mma.sync with sums in f32.
 *
 * Rows of b are the left operand of the tensor core and ROWS rows of x its columns, so that few rows of x cost no work
 * that is not there. A block takes one strip of 32 WN rows of b, ROWS rows of x and one part of K; a cluster holds the
 * SPLIT parts and adds them through distributed shared memory, always in the order of K. One warp keeps a ring of
 * stages of 256 of K filled with codes by bulk copies, others copy x; WK warps share the rows of b and take turns at
 * the stages. Scales come for four stages at a time: 64 bytes of a row, as less would cost memory as much.
 * No workspace, no atomics, two runs are equal bit for bit.
 *
 * What is few instructions a weight (about 2.7 at 8 rows, where reading at full speed leaves 4):
 *   - The order of k within a product is free as long as both operands have the same: a lane takes 64 consecutive k of
 *     its row, so it needs few scales, and pairs nibbles that are 16 bits apart.
 *   - A code at bits 3:0 of each half of a word, times 2^12 + 2^6, has its sign at bit 15 and its size at 8:6: masked,
 *     a bf16 pair of 2^-126 of the code. The scale that it is multiplied by (one instruction for two, exact: a product
 *     has at most 6 significant bits) brings the power of two back, but for 2^-8 that the sum gets at the end.
 *
 * Host contract
 *   Parameters: those of mm_common.h (B_FORMAT NVFP4 or MXFP4; A_FORMAT PLAIN, or NVFP4: x was codes that
 *   fp4_expand.cu wrote out, and sums are divided by x_global too; X_FORMAT bf16, with NVFP4 also f16; ALIGNED 1) and
 *     ROWS     of x in a block: 8, 16, 32, 64 or 128
 *     WN, WK   warps along N and K: WN WK at most 16, for 64 and 128 rows 8; WN at most 8
 *     SPLIT    parts of K, the cluster size: 1 to 8
 *     STAGES   of the ring, at least WK + 1
 *   Tensor maps, 3-D, UINT8, fill with zeros
 *     codes   swizzle 128B, sizes {K / 2, N, 1}, box {128, 32 WN, 1}
 *     scales  sizes {K / UNIT, N, 1}, box {1024 / UNIT, 32 WN, 1}, swizzle of as many bytes; where their rows do not
 *             start at multiples of 16: any map, and mapped 0
 *   x: base and row stride multiples of 16; K a multiple of 8 and of the format's block
 *   Launch
 *     block 32 WN WK + 128, cluster {SPLIT, 1, 1}, grid {ceil(N / (32 WN)) * SPLIT, ceil(M / ROWS), 1}
 *     dynamic shared memory = 1024 + max(STAGES * (32 WN * 128 + 512 ROWS + 16) + 64 WN * 1024 / UNIT + 32,
 *                                        4 WK ROWS (32 WN + 4))
 *   May be launched with programmatic stream serialization; constant 1: kernels ahead in the stream do not write the
 *   weights, which are then read before they end. */

#define STRIP (32 * WN)
#define CONSUMERS (32 * WN * WK)
#define COPIERS 96 /* threads that copy scales and x */
#define THREADS (CONSUMERS + 32 + COPIERS)
#define TILES_X (ROWS / 8)
#define PARTS WK
#include "fp4_mm.h"

#if STAGES <= WK || (IS_MX && IS_F16) || (X_FORMAT != QN_MM_F16 && X_FORMAT != QN_MM_BF16)
#error "fp4_mm: no such cut"
#endif

/* ---- loading ---- */

DEV void load_codes(const problem *p, const tensor_map *map, u32 stage, int k0)
{
    barrier_arrive_expect(p->full + 8 * stage, B_BYTES);
    tensor_load_3d(p->codes + stage * B_BYTES, map, p->full + 8 * stage, k0 / 2, p->column, 0, L2_EVICT_FIRST);
}

DEV void load_scales(const problem *p, const tensor_map *map, u32 span, int k0, int mapped)
{
    const u32 full = p->scales_full + 8 * span;
    barrier_arrive_expect(full, mapped ? SCALE_BYTES : 0);
    if (mapped) {
        tensor_load_3d(p->scales + span * SCALE_BYTES, map, full, k0 / UNIT, p->column, 0, L2_EVICT_FIRST);
    }
}

/* One thread. The first `early` of K have their weights under way, at most STAGES and two spans. */
DEV void load_weights(const problem *p, const tensor_map *codes, const tensor_map *scales, int mapped, int early)
{
    place at = {0, 1};
    u32 span = 0, parity = 1;
    int stage = 0;
#pragma unroll 1
    for (int k0 = p->begin; k0 < p->end; k0 += DEPTH, stage++) {
        if (stage % SPAN == 0) {
            if (k0 - p->begin >= early) {
                barrier_wait(p->scales_empty + 8 * span, parity);
                load_scales(p, scales, span, k0, mapped);
            }
            span ^= 1;
            parity ^= span ^ 1;
        }
        if (k0 - p->begin >= early) {
            barrier_wait(p->empty + 8 * at.stage, at.parity);
            load_codes(p, codes, at.stage, k0);
        }
        place_on(&at, 1);
    }
}

/* Copies of a stage of x: chunk c of 8 elements of row m lies where no two of the eight lanes of one access meet in a
 * bank, rows m and m + 1 and the four 64s of k. A thread has one chunk of every third row. */
DEV void load_x_stage(const qn_cuda_mm &a, const problem *p, u32 to, int k0, int thread)
{
    const int c = thread % (DEPTH / 8), first = thread / (DEPTH / 8), k = k0 + 8 * c;
    const u32 valid = k < a.k ? 16 : 0, at = (u32)((c & ~7) | ((c & 7) ^ (c / 8))) * 16;
    const char *from = valid ? a.x + (i64)(p->row + first) * a.x_row + (i64)k * 2 : a.x;
    const i64 step = valid ? COPIERS / (DEPTH / 8) * a.x_row : 0;
#pragma unroll 2
    for (int m = first; m < p->rows; m += COPIERS / (DEPTH / 8), from += step) {
        copy_async_16(to + (u32)m * (DEPTH * 2) + (at ^ (u32)(m & 1) << 6), from, valid);
    }
}

DEV void load_rest(const qn_cuda_mm &a, const problem *p, int mapped, int thread)
{
    const u64 rows = (u64)a.part[0].b_scale | (u64)a.part[0].b_scale_row;
    const int words = rows % 4 == 0 && a.k % (4 * UNIT) == 0 && p->begin % (4 * UNIT) == 0;
    place at = {0, 1};
    u32 span = 0, parity = 1;
    int stage = 0;
#pragma unroll 1
    for (int k0 = p->begin; k0 < p->end; k0 += DEPTH, stage++) {
        if (stage % SPAN == 0) {
            barrier_wait(p->scales_empty + 8 * span, parity);
            if (!mapped) {
                load_scale_span(a, p, p->scales + span * SCALE_BYTES, k0, words, thread);
            }
            if (words) {
                barrier_arrive_copies(p->scales_full + 8 * span);
            } else {
                barrier_arrive(p->scales_full + 8 * span);
            }
            span ^= 1;
            parity ^= span ^ 1;
        }
        barrier_wait(p->empty + 8 * at.stage, at.parity);
        load_x_stage(a, p, p->x + at.stage * X_BYTES, k0, thread);
        barrier_arrive_copies(p->full + 8 * at.stage);
        place_on(&at, 1);
    }
}

/* ---- expanding ---- */

/* The scales of half h of a lane's 64 k of one row out of the word with them, each twice in a word: times the power of
 * two that expand_pair() leaves out. */
DEV void read_scales(u32 word, u32 h, u32 lane, u32 s[32 / UNIT])
{
#if IS_MX
    const u32 code = word >> (lane % 2 * 16 + h * 8) & 0xff;
    s[0] = (code == 0 ? 0x40u : code == 255 ? 0x7fc0u : code << 7) * 0x10001u;
#else
    u32 pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((u16)(word >> 16 * h)));
#if IS_F16
    s[0] = __byte_perm(pair, 0, 0x1010);
    s[1] = __byte_perm(pair, 0, 0x3232);
#else
    float v[2];
    half_floats(pair, v);
    const float low = v[0] * 0x1p118f, high = v[1] * 0x1p118f;
    s[0] = pack_bf16(low, low);
    s[1] = pack_bf16(high, high);
#endif
#endif
}

/* Codes i and i + 4 of a word, scaled. */
DEV u32 expand_pair(u32 word, int i, u32 scale)
{
    const u32 v = place_pair(word, i);
    return multiply_pair(IS_MX ? multiply_pair(v, MX_RAISE) : v, scale);
}

/* A stage of K of 32 rows of b. codes, x: of the lane's row and k; scales: words of its rows; key: what its chunks of x
 * are mixed with. */
DEV void multiply_stage(u32 codes, const u32 scales[4], u32 x, u32 key, u32 lane, float sums[2][TILES_X][4])
{
    constexpr int at_once = ROWS < 64 ? 2 : 1;
#pragma unroll at_once
    for (u32 h = 0; h < 2; h++) {
        u32 word[4][4], s[4][32 / UNIT];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            read_scales(scales[r], h, lane, s[r]);
            const uint4 v = load_shared_u32x4(codes + (u32)r * 1024 + ((2 * (lane % 4) + h) ^ lane / 4) * 16);
            word[r][0] = v.x;
            word[r][1] = v.y;
            word[r][2] = v.z;
            word[r][3] = v.w;
        }
#pragma unroll
        for (u32 q = 0; q < 4; q++) {
            u32 b[2][2][4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const u32 scale = s[r][q * 8 / UNIT];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    b[r / 2][i / 2][r % 2 + i % 2 * 2] = expand_pair(word[r][q], i, scale);
                }
            }
#pragma unroll
            for (int j = 0; j < TILES_X; j++) {
                const uint4 v = load_shared_u32x4(x + (u32)j * (8 * DEPTH * 2) + ((4 * h + q) ^ key) * 16);
                const u32 x0 = __byte_perm(v.x, v.z, 0x5410), x1 = __byte_perm(v.x, v.z, 0x7632);
                const u32 x2 = __byte_perm(v.y, v.w, 0x5410), x3 = __byte_perm(v.y, v.w, 0x7632);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    multiply_add(sums[r][j], b[r][0], x0, x1);
                    multiply_add(sums[r][j], b[r][1], x2, x3);
                }
            }
        }
    }
}

/* This warp's turns of the part of K, left in shared memory as [WK][ROWS][PITCH] floats. */
DEV void multiply(const problem *p, u32 sums_at, u32 warp, u32 lane)
{
    const u32 wn = warp % WN, wk = warp / WN, g = lane / 4, t = lane % 4;
    float sums[2][TILES_X][4];
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int j = 0; j < TILES_X; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sums[r][j][i] = 0.0f;
            }
        }
    }
    place at = {wk, 0};
    u32 span = 0, parity = 0;
    int stage = (int)wk;
#pragma unroll 1
    for (int first = 0; p->begin + first * DEPTH < p->end; first += SPAN) {
        barrier_wait(p->scales_full + 8 * span, parity);
#pragma unroll 1
        for (; stage < first + SPAN && p->begin + stage * DEPTH < p->end; stage += WK) {
            u32 scales[4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const u32 byte = (u32)(stage - first) * (DEPTH / UNIT) + t * (64 / UNIT) / 4 * 4;
                scales[r] = load_shared_u32(p->scales + span * SCALE_BYTES + scale_at(wn * 32 + 8 * (u32)r + g, byte));
            }
            barrier_wait(p->full + 8 * at.stage, at.parity);
            multiply_stage(p->codes + at.stage * B_BYTES + (wn * 32 + g) * 128, scales,
                           p->x + at.stage * X_BYTES + g * (DEPTH * 2) + t * 128, t + 4 * (g & 1), lane, sums);
            __syncwarp();
            if (lane == 0) {
                barrier_arrive(p->empty + 8 * at.stage);
            }
            place_on(&at, WK);
        }
        if (lane == 0) {
            barrier_arrive(p->scales_empty + 8 * span);
        }
        span ^= 1;
        parity ^= span ^ 1;
    }
    threads_sync(1, CONSUMERS); /* all stages are read: the sums lie where they were */
    const u32 to = sums_at + ((wk * ROWS + 2 * t) * PITCH + wn * 32 + g) * 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int j = 0; j < TILES_X; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                store_shared_f32(to + ((8 * j + i % 2) * PITCH + 16 * r + i / 2 * 8) * 4, sums[r][j][i]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_fp4_mm(const __grid_constant__ tensor_map code_map, const __grid_constant__ tensor_map scale_map,
              const __grid_constant__ qn_cuda_mm a, int mapped, int constant)
{
    extern __shared__ __align__(16) char shared[];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = SPLIT > 1 ? cluster_rank() : 0;
    const int steps = (a.k + STEP - 1) / STEP;
    problem p;
    p.codes = (shared_address(shared) + 1023) / 1024 * 1024;
    p.scales = p.codes + STAGES * B_BYTES;
    p.x = p.scales + 2 * SCALE_BYTES;
    p.full = p.x + STAGES * X_BYTES;
    p.empty = p.full + STAGES * 8;
    p.scales_full = p.empty + STAGES * 8;
    p.scales_empty = p.scales_full + 16;
    p.row = (int)blockIdx.y * ROWS;
    p.rows = a.m - p.row < ROWS ? a.m - p.row : ROWS;
    p.column = (int)(blockIdx.x / SPLIT) * STRIP;
    p.begin = (int)((u32)steps * part / SPLIT) * STEP;
    p.end = part + 1 < SPLIT ? (int)((u32)steps * (part + 1) / SPLIT) * STEP : a.k;
    int early = 0;
    release_next();
    if (warp == CONSUMERS / 32 && lane == 0) {
        tensor_map_prefetch(&code_map);
        tensor_map_prefetch(&scale_map);
#pragma unroll 1
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(p.full + 8 * i, 1 + COPIERS);
            barrier_init(p.empty + 8 * i, WN);
        }
        for (u32 i = 0; i < 2; i++) {
            barrier_init(p.scales_full + 8 * i, 1 + COPIERS);
            barrier_init(p.scales_empty + 8 * i, WN * WK);
        }
        barrier_init_fence();
#pragma unroll 1
        while (constant && early < STAGES && early < 2 * SPAN && p.begin + early * DEPTH < p.end) {
            const int k0 = p.begin + early * DEPTH;
            if (early % SPAN == 0) {
                load_scales(&p, &scale_map, (u32)early / SPAN, k0, mapped);
            }
            load_codes(&p, &code_map, (u32)early++, k0);
        }
    }
    wait_before();
    __syncthreads();
    if (warp >= CONSUMERS / 32) {
#if ROWS * WN > 512
        REGISTERS_GIVE(40);
#endif
        if (warp > CONSUMERS / 32) {
            load_rest(a, &p, mapped, (int)threadIdx.x - CONSUMERS - 32);
        } else if (lane == 0) {
            load_weights(&p, &code_map, &scale_map, mapped, early * DEPTH);
        }
    } else {
#if ROWS * WN > 512
        REGISTERS_TAKE(232);
#endif
        multiply(&p, p.codes, warp, lane);
        join_parts(&p, p.codes, threadIdx.x);
    }
    /* The parts' sums are there; nobody leaves while another reads them. */
#if SPLIT > 1
    __syncwarp();
    cluster_arrive();
    cluster_wait();
#else
    __syncthreads();
#endif
    if (warp < CONSUMERS / 32) {
        finish_strip(a, &p, p.codes, part, threadIdx.x);
    }
#if SPLIT > 1
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();
#endif
}
