/* e2m1 codes expanded in registers to the activations' 16-bit type, exactly, and multiplied: what the kernels of
 * FP4 weights for few rows (fp4_mm_few.cu) and for many (fp4_mm.cu) share. These define, before: ROWS, SPLIT and
 * STAGES, parameters; STRIP, rows of b a block; CONSUMERS, threads that multiply; COPIERS, threads that look at scales,
 * or copy them; SPANS of scales in the ring; PARTS of a block's sums; SHARE, bytes of a block's sums of those that one
 * of the cluster finishes; SLICES of a stage, rows of 128 bytes of x; EARLY stages whose weights may come before their
 * x; READERS, warps that read a stage; TURNERS, warps that bring a stage's x into another order before.
 */
#ifndef QN_CUDA_FP4_MM_H
#define QN_CUDA_FP4_MM_H

#include "fp4_out.h"
#include "ring.h"

#define DEPTH 256 /* of K a stage */
#define SPAN 4    /* stages whose scales come together */
#define B_BYTES (STRIP * 128)
#define X_BYTES (ROWS * DEPTH * 2)
#define STEP (16 * UNIT) /* of K that parts are multiples of: 16 bytes of scales, as bulk copies want */
#define SCALE_ROW (SPAN * DEPTH / UNIT)
#define SCALE_BYTES (STRIP * SCALE_ROW)
#define PITCH (STRIP + 4) /* floats of a row of partial sums */

typedef struct problem {
    int row, rows;                         /* of x */
    int column;                            /* first row of b */
    int begin, end;                        /* this part of K; begin is a multiple of STEP */
    u32 codes, x, full, empty;             /* of the ring */
    u32 scales, scales_full, scales_empty; /* of SPANS spans */
    u32 landed;                            /* barriers: scales have come, and want to be looked at */
    u32 x_landed;                          /* barriers where stages of x are turned: one has come */
    u32 large;                             /* four words a span: some scale is 2 or more */
    u32 table;                             /* of NVFP4's scales */
    u32 given, given_full; /* sums of each block of the cluster for the results that this one finishes */
} problem;

/* Where a block's shared memory, from `memory` on, has what; its strip of b, rows of x and part of K. */
DEV void lay_out(const qn_cuda_mm &a, problem *p, u32 memory, u32 part)
{
    const int steps = (a.k + STEP - 1) / STEP;
    p->codes = (memory + 1023) / 1024 * 1024;
    p->x = p->codes + STAGES * B_BYTES;
    p->scales = p->x + STAGES * X_BYTES;
    p->table = p->scales + SPANS * SCALE_BYTES;
    p->full = p->table + 1024;
    p->empty = p->full + STAGES * 8;
    p->scales_full = p->empty + STAGES * 8;
    p->scales_empty = p->scales_full + SPANS * 8;
    p->landed = p->scales_empty + SPANS * 8;
    p->x_landed = p->landed + SPANS * 8;
    p->large = (p->x_landed + (TURNERS ? STAGES * 8 : 0) + 15) / 16 * 16;
    const u32 ring = p->large + SPANS * 16, sums = p->codes + PARTS * ROWS * PITCH * 4;
    p->given_full = ring > sums ? ring : sums;
    p->given = p->given_full + 16;
    p->row = (int)blockIdx.y * ROWS;
    p->rows = a.m - p->row < ROWS ? a.m - p->row : ROWS;
    p->column = (int)(blockIdx.x / SPLIT) * STRIP;
    p->begin = (int)((u32)steps * part / SPLIT) * STEP;
    p->end = part + 1 < SPLIT ? (int)((u32)steps * (part + 1) / SPLIT) * STEP : a.k;
}

DEV void multiply_add(float *sums, const u32 *b, u32 x0, u32 x1)
{
#if IS_F16
    MMA_F16(sums, b, x0, x1);
#else
    MMA_BF16(sums, b, x0, x1);
#endif
}

/* ---- loading ---- */

DEV void load_codes(const problem *p, const tensor_map *map, u32 stage, int k0)
{
    barrier_arrive_expect(p->full + 8 * stage, TURNERS ? B_BYTES : B_BYTES + X_BYTES);
    tensor_load_3d(p->codes + stage * B_BYTES, map, p->full + 8 * stage, k0 / 2, p->column, 0, L2_EVICT_FIRST);
}

/* whole: one box has a stage's slices. */
DEV void load_x(const problem *p, const tensor_map *map, u32 stage, int k0, int whole)
{
    const u32 to = p->x + stage * X_BYTES, bar = (TURNERS ? p->x_landed : p->full) + 8 * stage;
    if (TURNERS) {
        barrier_arrive_expect(bar, X_BYTES);
    }
    if (whole) {
        tensor_load_3d(to, map, bar, 0, p->row, k0 / 64, L2_EVICT_LAST);
        return;
    }
#pragma unroll
    for (int i = 0; i < SLICES; i++) {
        tensor_load_3d(to + i * (ROWS * 128), map, bar, k0 * 2 + i * 128, p->row, 0, L2_EVICT_LAST);
    }
}

/* One thread. The first `early` stages have their weights under way. Few instructions: they delay the warps that
 * multiply beside this one, for which all others wait. */
DEV void load(const problem *p, const tensor_map *codes, const tensor_map *x, int whole, int early)
{
    place at = {0, 1};
    int stage = 0;
#pragma unroll 1
    for (int k0 = p->begin; k0 < p->end; k0 += DEPTH) {
        if (stage++ >= early) {
            barrier_wait(p->empty + 8 * at.stage, at.parity);
            load_codes(p, codes, at.stage, k0);
        }
        load_x(p, x, at.stage, k0, whole);
        place_on(&at, 1);
    }
}

/* Where the word of four scales at `byte` of row r of a span lies: as the map's swizzle has it, so that the words of
 * eight rows meet in no bank. */
DEV u32 scale_at(u32 r, u32 byte)
{
    const u32 at = r * SCALE_ROW + byte;
    return at ^ (at >> 7 & (SCALE_ROW / 16 - 1)) << 4;
}

/* Scales of a span without a map: by words where rows and K allow it, else byte by byte, which is no copy. */
DEV void load_scale_span(const qn_cuda_mm &a, const problem *p, u32 to, int k0, int words, int thread)
{
    const qn_cuda_mm_part &w = a.part[0];
    const int left = a.k / UNIT - k0 / UNIT;
#pragma unroll 1
    for (int i = thread; i < SCALE_BYTES / 4; i += COPIERS) {
        const int r = i / (SCALE_ROW / 4), n = p->column + r, j = i % (SCALE_ROW / 4) * 4;
        const u32 valid = n < a.n && j < left, at = to + scale_at((u32)r, (u32)j);
        const char *const from = valid ? w.b_scale + n * w.b_scale_row + k0 / UNIT + j : w.b_scale;
        if (words) {
            copy_async_4(at, from, valid);
        } else {
            u32 word = 0;
#pragma unroll 1
            for (int b = 0; b < 4 && valid && j + b < left; b++) {
                word |= (u32)((const u8 *)from)[b] << 8 * b;
            }
            store_shared_i32(at, (int)word);
        }
    }
    if (!words) {
        copy_async_wait();
    }
}

/* Where a span of scales is in the ring, and its barriers' parity. */
typedef struct turn {
    u32 span, parity;
} turn;

DEV turn turn_of(int span)
{
    const turn t = {(u32)span % SPANS, (u32)span / SPANS & 1};
    return t;
}

/* One thread. */
DEV void load_scales(const problem *p, const tensor_map *map, int span)
{
    const turn to = turn_of(span);
    const int k0 = p->begin + span * (SPAN * DEPTH);
    if (k0 < p->end) {
        barrier_wait(p->scales_empty + 8 * to.span, to.parity ^ 1);
        barrier_arrive_expect(p->landed + 8 * to.span, SCALE_BYTES);
        tensor_load_3d(p->scales + to.span * SCALE_BYTES, map, p->landed + 8 * to.span, k0 / UNIT, p->column, 0,
                       L2_EVICT_FIRST);
    }
}

/* One thread: the barriers, and `early` stages of weights, which need not wait for the kernel ahead. */
DEV void begin_ring(const problem *p, const tensor_map *codes, const tensor_map *scales, const tensor_map *x, int mapped,
                    int early)
{
    tensor_map_prefetch(codes);
    tensor_map_prefetch(scales);
    tensor_map_prefetch(x);
    for (u32 i = 0; i < STAGES; i++) {
        barrier_init(p->full + 8 * i, 1 + TURNERS);
        barrier_init(p->empty + 8 * i, READERS);
        if (TURNERS) {
            barrier_init(p->x_landed + 8 * i, 1);
        }
    }
    for (u32 i = 0; i < SPANS; i++) {
        barrier_init(p->landed + 8 * i, 1);
        barrier_init(p->scales_full + 8 * i, COPIERS);
        barrier_init(p->scales_empty + 8 * i, mapped ? CONSUMERS / 32 : CONSUMERS); /* ordinary stores: all lanes */
    }
#if SPLIT > 1
    barrier_init(p->given_full, 1);
#endif
    barrier_init_fence();
    if (mapped && early > 0) {
        load_scales(p, scales, 0);
    }
#pragma unroll 1
    for (int i = 0; i < early; i++) {
        load_codes(p, codes, (u32)i, p->begin + i * DEPTH);
    }
}

/* Load spans of scales and hand them on, each warp with a word on whether one of MXFP4's that it saw is 2 or more. */
DEV void look_at_scales(const qn_cuda_mm &a, const problem *p, const tensor_map *map, int mapped, int early, int thread)
{
    const u64 rows = (u64)a.part[0].b_scale | (u64)a.part[0].b_scale_row;
    const int words = rows % 4 == 0 && a.k % (4 * UNIT) == 0 && p->begin % (4 * UNIT) == 0;
    const int loads = mapped && thread == 0;
#pragma unroll 1
    for (int ahead = early > 0; loads && ahead < SPANS - 1; ahead++) {
        load_scales(p, map, ahead);
    }
    int span = 0;
#pragma unroll 1
    for (int k0 = p->begin; k0 < p->end; k0 += SPAN * DEPTH) {
        const turn now = turn_of(span++);
        const u32 at = p->scales + now.span * SCALE_BYTES;
        if (mapped) {
            barrier_wait(p->landed + 8 * now.span, now.parity);
        } else {
            barrier_wait(p->scales_empty + 8 * now.span, now.parity ^ 1);
            load_scale_span(a, p, at, k0, words, thread);
            copy_async_wait();
            threads_sync(2, COPIERS);
        }
#if IS_MX
        u32 above = 0;
        for (int i = thread; i < SCALE_BYTES / 16; i += COPIERS) {
            const uint4 codes = load_shared_u32x4(at + 16 * (u32)i);
            above |= codes.x | codes.y | codes.z | codes.w;
        }
        above = __any_sync(0xffffffffu, (above & 0x80808080u) != 0);
        if (thread % 32 == 0) {
            store_shared_i32(p->large + 16 * now.span + thread / 32 * 4, (int)above);
        }
        __syncwarp();
#endif
        barrier_arrive(p->scales_full + 8 * now.span);
        if (loads) {
            load_scales(p, map, span + SPANS - 2); /* where the span before this one is */
        }
    }
}

/* The sum of a block's own parts of four results, in their order. */
DEV float4 add_parts(u32 from)
{
    float4 v = load_shared_f32x4(from);
#pragma unroll
    for (u32 k = 1; k < PARTS; k++) {
        const float4 four = load_shared_f32x4(from + k * (ROWS * PITCH * 4));
        v.x += four.x;
        v.y += four.y;
        v.z += four.z;
        v.w += four.w;
    }
    return v;
}

/* A block's own parts added, where no other block has any. */
DEV void finish_strip(const qn_cuda_mm &a, const problem *p, u32 sums_at, u32 thread)
{
    for (int i = (int)thread; i < p->rows * (STRIP / 4); i += CONSUMERS) {
        const int row = i / (STRIP / 4), column = i % (STRIP / 4) * 4;
        const tails t = load_tails(a, p->row + row, p->column + column);
        const float4 four = add_parts(sums_at + (u32)(row * PITCH + column) * 4);
        float v[4] = {four.x, four.y, four.z, four.w};
        store_four(a, p->row + row, p->column + column, t, v);
    }
}

#if SPLIT > 1
/* The block's own parts are added and sent to the block that finishes their sum, which waits for nobody else and reads
 * nothing of another. */
DEV void finish_shares(const qn_cuda_mm &a, const problem *p, u32 sums_at, u32 part, u32 thread)
{
    const u32 units = (u32)p->rows * (STRIP / 16), own = (units + SPLIT - 1 - part) / SPLIT * 4;
    __syncwarp();
    cluster_wait(); /* all blocks are there */
    threads_sync(1, CONSUMERS);
    if (thread == 0) {
        barrier_arrive_expect(p->given_full, (SPLIT - 1) * own * 16);
    }
    for (u32 i = thread; i < units * 4; i += CONSUMERS) {
        const float4 v = add_parts(sums_at + (i / (STRIP / 4) * PITCH + i % (STRIP / 4) * 4) * 4);
        const u32 owner = i / 4 % SPLIT, to = p->given + part * SHARE + (i / 4 / SPLIT * 4 + i % 4) * 16;
        if (owner == part) {
            store_shared_f32x4(to, v);
        } else {
            send_cluster_f32x4(cluster_address(to, owner), cluster_address(p->given_full, owner), v.x, v.y, v.z, v.w);
        }
    }
    threads_sync(1, CONSUMERS);
    for (u32 j = thread; j < own; j += CONSUMERS) {
        const u32 i = (j / 4 * SPLIT + part) * 4 + j % 4;
        const int row = (int)(i / (STRIP / 4)), column = (int)(i % (STRIP / 4)) * 4;
        const tails t = load_tails(a, p->row + row, p->column + column);
        barrier_wait(p->given_full, 0);
        float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (u32 s = 0; s < SPLIT; s++) {
            const float4 four = load_shared_f32x4(p->given + s * SHARE + j * 16);
            v[0] += four.x;
            v[1] += four.y;
            v[2] += four.z;
            v[3] += four.w;
        }
        store_four(a, p->row + row, p->column + column, t, v);
    }
}
#endif

#endif
