/* Strips of weights by many rows of x on Hopper: what fp4_mm_wide.cu and scaled_mm_wide.cu share. Rows of b are the
 * left operand of wgmma and up to 256 rows of x its columns, so that any number of rows fits a block closely.
 *
 * A block takes a strip of b, ROWS rows of x and one part of K; a cluster holds the parts. Each of GROUPS times WK
 * warpgroups has 64 rows of the strip, and WK that have the same ones take turns at stages. A thread keeps a ring of
 * stages filled by bulk copies. The parts are added where the rings were, always in their order: no workspace, no
 * atomics, two runs are equal bit for bit.
 *
 * The includer says, before: ROWS, GROUPS, WK and STAGES, parameters; DEPTH of K a stage; STEP of K that parts are
 * multiples of; B_ROW, bytes of a row of b in a stage, of x 128; EXTRA, bytes of shared memory of its own behind the
 * ring, where nobody is busy when all have multiplied. How sums leave is in wide_out.h.
 *
 * Host contract of all
 *   Parameters
 *     ROWS     of x in a block: a multiple of 16, at most 256, of three warpgroups 192, of four 128
 *     GROUPS   of 64 rows of b in a block: 1 to 4
 *     WK       warpgroups that take turns: GROUPS WK is at most 4
 *     STAGES   of the ring: more than WK
 *   Tensor maps, 3-D, UINT8, swizzle 128B
 *     b, x            boxes of B_ROW bytes by 64 GROUPS rows, and of 128 bytes by ROWS rows
 *     b_last, x_last  the same with a box of the rows that are left at the end, N mod 64 GROUPS and M mod ROWS;
 *                     where none are, any map, not read; where these are all rows, b and x may be the same ones
 *   split    parts of K, the cluster size: 1 to 8, at most as many as K has STEPs
 *   Launch
 *     block 128 GROUPS WK + 128, cluster {split, 1, 1}, grid {ceil(M / ROWS) * ceil(N / (64 GROUPS)) * split, 1, 1}
 *     dynamic shared memory 2048 + max(STAGES * (64 GROUPS B_ROW + 128 ROWS) + EXTRA, SUMS), where SUMS is
 *       4 WK ROWS (64 GROUPS + 4), or with split > 1 32 ceil(ROWS / (8 split)) (64 GROUPS (split WK + 1) + 4)
 *     programmatic stream serialization is allowed; constant 1: kernels ahead in the stream do not write b, the
 *       first of which is then read before they end
 */
#ifndef QN_CUDA_WIDE_H
#define QN_CUDA_WIDE_H

#include "names.h"
#include "ring.h"

#define STRIP (64 * GROUPS)
#define TEAMS (GROUPS * WK)
#define CONSUMERS (128 * TEAMS)
#define THREADS (CONSUMERS + 128)
#define B_BYTES (STRIP * B_ROW)
#define X_BYTES (ROWS * 128)
#define PITCH (STRIP + 4) /* words of a row of sums */
#define EIGHTS (ROWS / 8)
#define EIGHT_BYTES (GROUPS * 2048) /* of a warpgroup's turns of sums of eight rows of x */
#define BARRIERS 1024               /* bytes of them, those of the includer behind the ring's */

#if ROWS % 16 != 0 || ROWS > 256 || TEAMS > 4 || (TEAMS > 2 && ROWS > 192) || (TEAMS > 3 && ROWS > 128) ||             \
    STAGES <= WK || 16 * STAGES + 64 > BARRIERS
#error "wide: no such cut"
#endif

/* Registers of warps that load, and of those that multiply. */
#if TEAMS == 2
#define LOADERS_GIVE() REGISTERS_GIVE(40)
#define TEAMS_TAKE() REGISTERS_TAKE(232)
#elif TEAMS == 3
#define LOADERS_GIVE() REGISTERS_GIVE(56)
#define TEAMS_TAKE() REGISTERS_TAKE(152)
#elif TEAMS == 4
#define LOADERS_GIVE() REGISTERS_GIVE(32)
#define TEAMS_TAKE() REGISTERS_TAKE(112)
#else
#define LOADERS_GIVE()
#define TEAMS_TAKE()
#endif

typedef struct problem {
    int row, rows;       /* of x */
    int column, columns; /* of d, rows of b */
    int begin, end;      /* this part of K; begin is a multiple of STEP */
    u32 part, split;     /* of so many */
    u32 full, empty;     /* barriers of the ring */
    u32 given;           /* barrier: all parts' sums of what this block finishes have come */
    u32 b, x;            /* of the ring */
    u32 extra;
} problem;

/* Where a block's shared memory, from `memory` on, has what; its strip of b, rows of x and part of K. Blocks beside
 * each other have the same strip. */
DEV void lay_out(problem *p, u32 memory, int m, int n, int k, u32 split)
{
    const u32 passes = (u32)(m + ROWS - 1) / ROWS, index = blockIdx.x / split;
    const int steps = (k + STEP - 1) / STEP;
    p->split = split;
    p->part = blockIdx.x - index * split;
    p->given = (memory + 1023) / 1024 * 1024;
    p->full = p->given + 8;
    p->empty = p->full + STAGES * 8;
    p->x = p->given + BARRIERS;
    p->b = p->x + STAGES * X_BYTES;
    p->extra = p->b + STAGES * B_BYTES;
    p->row = (int)(index % passes) * ROWS;
    p->rows = m - p->row < ROWS ? m - p->row : ROWS;
    p->column = (int)(index / passes) * STRIP;
    p->columns = n - p->column < STRIP ? n - p->column : STRIP;
    p->begin = (int)((u32)steps * p->part / split) * STEP;
    p->end = p->part + 1 < split ? (int)((u32)steps * (p->part + 1) / split) * STEP : k;
}

DEV int stages_of(const problem *p)
{
    return (p->end - p->begin + DEPTH - 1) / DEPTH;
}

/* ---- loading ---- */

/* A block's rows of b and of x: those at the end come in boxes of their own. */
typedef struct boxes {
    const tensor_map *b, *x;
} boxes;

DEV void load_b(const problem *p, const boxes *from, u32 stage, int i)
{
    barrier_arrive_expect(p->full + 8 * stage, (u32)(p->columns * B_ROW + p->rows * 128));
    tensor_load_3d(p->b + stage * B_BYTES, from->b, p->full + 8 * stage, (p->begin / DEPTH + i) * B_ROW, p->column, 0,
                   L2_EVICT_FIRST);
}

/* One thread. The first `early` stages have their weights under way. */
DEV void load(const problem *p, const boxes *from, int early)
{
    const int stages = stages_of(p);
    place at = {0, 1};
#pragma unroll 1
    for (int i = 0; i < stages; i++) {
        if (i >= early) {
            barrier_wait(p->empty + 8 * at.stage, at.parity);
            load_b(p, from, at.stage, i);
        }
        tensor_load_3d(p->x + at.stage * X_BYTES, from->x, p->full + 8 * at.stage, (p->begin / DEPTH + i) * 128, p->row,
                       0, L2_EVICT_LAST);
        place_on(&at, 1);
    }
}

/* One thread: the barriers, and `early` stages of weights, which need not wait for the kernel ahead. */
DEV void begin_ring(const problem *p, const boxes *from, int early)
{
    tensor_map_prefetch(from->b);
    tensor_map_prefetch(from->x);
    for (u32 i = 0; i < STAGES; i++) {
        barrier_init(p->full + 8 * i, 1);
        barrier_init(p->empty + 8 * i, 4 * GROUPS);
    }
    barrier_init(p->given, 1);
    barrier_init_fence();
#pragma unroll 1
    for (int i = 0; i < early; i++) {
        load_b(p, from, (u32)i, i);
    }
}

/* This warp has read the stage. */
DEV void release(const problem *p, u32 stage, u32 lane)
{
    __syncwarp();
    if (lane == 0) {
        barrier_arrive(p->empty + 8 * stage);
    }
}

/* Sums are registers called u of names.h: f32, or s32 where EXACT. */
DEV void declare_sums(void)
{
    asm volatile(EACH(ROWS, "u", DECLARED));
}

DEV void begin_sums(void)
{
    asm volatile(EACH(ROWS, "u", ZERO)::: "memory");
}

/* The part of this thread, of a warpgroup: the first of its rows of b, and the turn. */
DEV u32 own_row(u32 warp, u32 lane)
{
    return warp / (4 * WK) * 64 + warp % 4 * 16 + lane / 4;
}

DEV u32 own_turn(u32 warp)
{
    return warp / 4 % WK;
}

#endif
