/* block_scaled_mm and grouped_block_scaled_mm for many rows, on Hopper (sm_90a).
 *
 *   D[m,n] = sum over kb of scale_a[m,kb] scale_b[n/128,kb] (sum over k in kb of A[m,k] B[n,k]),  kb = k / 128
 *
 * A persistent grid, one block a multiprocessor, walks output tiles of BM x BN. Warp 0 keeps a ring of
 * STAGES k-blocks filled by bulk tensor copies, warp 1 another with scales, GROUPS warpgroups multiply: each owns
 * BM / GROUPS rows, sums one k-block in the tensor core and then adds it, scaled, to sums in registers; while one
 * promotes, others multiply, as they come: turns that they give each other were 5 to 10 % slower. Blocks of a cluster
 * take neighbouring tiles of a row and share A, or one tile, each a part of K. Those who multiply groups hear from
 * the loading thread which tile comes.
 * The work list and the ring are in tiles.h, the way out in tiles_out.h. Tiles of 256 x 96 or 128 x 128 with two
 * products of a warpgroup under way were tried against those below: 5 to 17 % slower.
 * One output element is the same chain of operations whatever the tile, M or its neighbours, but for the parts of K.
 *
 * Host contract
 *   Parameters (all required, but BAND)
 *     BM      rows of a tile: 64 GROUPS, or 128 GROUPS with PARTS 1 and GROUPS 2
 *     BN      columns of a tile: a multiple of 16, at most 192; at most 128 where BM = 128 GROUPS, PARTS = 2 or
 *             GROUPS = 3
 *     STAGES  k-blocks in flight
 *     CLUSTER 1 or 2 blocks sharing A
 *     SPLIT   1, or blocks of a cluster that take a tile together, each a part of K, and exchange sums through shared
 *             memory so that each ends with BN / SPLIT columns, a multiple of 8: one matrix, CLUSTER 1, STORE 0, and
 *             SPLIT k-blocks at least
 *     GROUPS  2 or 3, or 1 with BM = 64
 *     PARTS   products in flight in a warpgroup: 1, or 2 with BM = 64 GROUPS, GROUPS 1 or 2 and one matrix
 *     STORE   1: tiles leave through the copy engine: OUT 0 or 1, BN a multiple of 64, d as its map below asks;
 *             2: so, and without a place of their own, out of the ring: BN 128, PARTS 1, STAGES at least 4, K above 128;
 *             0: lanes store, d of any alignment
 *     BAND    tiles of M walked together before the next ones of N (2048 / BM suits the L2 of an H200)
 *     OUT     0 bf16, 1 f16, 2 f32
 *     LAYOUT  0 one matrix; 1 offsets: rows groups[e] to groups[e+1] of A and D belong to b[e];
 *             2 masked: groups[e] rows of a[e] and d[e] count
 *     KEEP    1: masked, and tail is 2; else 0
 *     TICKETS 1: masked, BM = 128 GROUPS, K above (STAGES + 1) * 128; blocks take tiles as they are ready for them, and
 *             the launch is cooperative; else 0
 *   Tensor maps, 3-D, swizzle 128B, no interleave, fill with zeros
 *     a  UINT8, sizes {K, rows, groups}: {K, M, 1}, {K, Mtot, 1} or {K, Mmax, E}; box {128, BM / CLUSTER, 1},
 *        masked {128, 64, 1}
 *     b  UINT8, sizes {K, N, E} (E = 1 for one matrix); box {128, BN, 1}
 *     a_last, b_last  the same with a box of the rows that are left at the end, M mod BM / CLUSTER or N mod BN;
 *        where none are, and a_last of groups, any map: not read. Where these are all rows a and b may be the same maps
 *     d  (STORE 1 or 2, else any bytes) UINT16, sizes {N, rows, groups}; box {64, 64, 1}
 *     row and group strides in bytes: multiples of 16, base 16-aligned; else mm_mma.cu.
 *     L2 promotion 128B for a and b (256B measured up to 4 % slower for few rows), none for d
 *   Arguments: a_map, b_map, d_map, a_last, b_last, then as declared; strides in elements
 *     scale_a[row * scale_a_row + kb * scale_a_block + e * scale_a_group] (e only if masked): both scale layouts
 *     scale_b[nb * scale_b_row + kb + e * scale_b_group]; groups: NULL for one matrix; m: rows of one matrix, Mtot or
 *     Mmax; low: groups of no more rows than that are left out, and their strips must be launched next: they do not
 *     wait for this kernel, only for those ahead of it; tail 1: rows of d that belong to no group become zeros, 2: they
 *     stay as they are (for one matrix low and tail are 0); constant 1: kernels ahead in the stream do not write b,
 *     which is then read before they end (one matrix only)
 *   Launch
 *     block 128 + 128 GROUPS, grid = min(multiprocessors, tiles * CLUSTER) rounded down to CLUSTER, or tiles * SPLIT,
 *     cluster {CLUSTER * SPLIT, 1, 1}; may be launched with programmatic stream serialization
 *     dynamic shared memory = 1040 + (STORE == 1) * BM * BN * 2 + STAGES * (128 * (BM + BN) + 48) + 32 * (BM + 5)
 *     + (SPLIT - 1) * BM * BN / SPLIT * 4 + (SPLIT > 1 ? 8 * GROUPS : 0) + 16 * TICKETS <= 232448
 *   Limits: K >= 1, N >= 1, M and N below 2^31.
 *   Choice of tile: src/backend/cuda/tiles.c and run_block_scaled_mm.c; measured exceptions: data/tuned-cuts.txt. Four
 *     stages reach further than three with room for stores by boxes where K is long. */
#ifndef BAND
#define BAND (2048 / BM)
#endif
#define THREADS (128 + 128 * GROUPS)
#define WAVES (BM / 64 / GROUPS) /* 64-row products of a warpgroup */
#define TOLD (LAYOUT != 0) /* of one matrix the walk is short: long K lost 3 to 4 % by being told and by STORE 2 */
#include "groups.h"
#include "names.h"
#include "tiles.h"
#include "tiles_out.h"

#define SUMS (BN / 2)      /* registers of one product */
#if BN % 128 == 0
#define COLUMN_STEP 128
#elif BN % 64 == 0
#define COLUMN_STEP 64
#elif BN % 32 == 0
#define COLUMN_STEP 32
#else
#define COLUMN_STEP 16
#endif
#define STEPS (BN / COLUMN_STEP)               /* parts of a tile with one scale of b each */
#define SCALES_B ((128 - COLUMN_STEP + BN - 1) / 128 + 1)
#define SHARE (BN / SPLIT)                               /* columns that a block ends with */
#define PARTS_BYTES ((SPLIT - 1) * BM * SHARE * 4)       /* of the other parts of K */
#define D_BYTES (STORE == 1 ? BM * BN * 2 : PARTS_BYTES) /* of a tile on its way out */
/* Scales come SCALE_BLOCKS k-blocks at a time, 16 bytes a row of a and of b where these lie so: one by one they would
 * be a sector of L2 each. They have a ring of their own. */
#define SCALE_BLOCKS 4
#define SCALE_STAGES 2
#define SCALE_BYTES ((BM + 4) * SCALE_BLOCKS * 4) /* of a stage: rows of a, then those of b */
#if SCALES_B > 4 || BM != 64 * WAVES * GROUPS || BN % 16 != 0 || (STORE && (OUT == 2 || BN % 64 != 0)) ||              \
    (SPLIT > 1 && (LAYOUT != 0 || CLUSTER > 1 || STORE || WAVES != 1 || SHARE % 8 != 0)) ||                            \
    (STORE == 2 && (BN != 128 || LAYOUT == 0 || STAGES < 4)) || (PARTS == 2 && (WAVES != 1 || LAYOUT != 0)) ||          \
    (GROUPS == 3 && (WAVES != 1 || PARTS != 1 || BN > 128))
#error "block_scaled_mm: no such tile"
#endif

typedef struct problem {
    extent size;
    const float *scale_a, *scale_b;
    i64 scale_a_row, scale_a_block, scale_a_group;
    i64 scale_b_row, scale_b_group;
    char *d;
    i64 d_row, d_group;
} problem;

typedef struct rings {
    ring tiles;
    u32 d, scales, scales_full, scales_empty; /* + stage * size, except d */
    u32 arrived;                              /* of a tile's parts: one a warpgroup */
} rings;

DEV void scale_place_on(place *at)
{
    at->stage ^= 1;
    at->parity ^= at->stage == 0;
}

/* `count` k-blocks' scales of a row; none: zeros, and nothing is read. wide: 16 bytes at once. */
DEV void copy_scales(u32 to, const float *from, i64 block, int count, int wide)
{
    if (wide) {
        copy_async_16(to, from, 4 * (u32)count);
        return;
    }
#pragma unroll 1
    for (u32 end = to + 4 * SCALE_BLOCKS; to < end; to += 4, from += block, count--) {
        copy_async_4(to, from, count > 0);
    }
}

DEV int scales_wide(const float *scales, i64 row, i64 block, i64 group)
{
    return block == 1 && ((u64)scales | (u64)(row | group) * 4) % 16 == 0;
}

/* One warp. */
DEV void load_scales(const problem *p, const rings *r, u32 lane)
{
    const int wide_a = scales_wide(p->scale_a, p->scale_a_row, p->scale_a_block, p->scale_a_group);
    const int wide_b = scales_wide(p->scale_b, p->scale_b_row, 1, p->scale_b_group);
    const span own = span_of(&p->size);
    const int first = own.first - own.first % SCALE_BLOCKS, end = (p->size.k + 127) / 128;
    place at = {0, 1};
    walk w;
    walk_start(&w, &p->size);
    while (walk_on(&w, &p->size)) {
        const span k = tile_span(&own, w.rows - w.row);
        const int b_row = w.column / 128 + (int)lane;
        const float *a = p->scale_a + (i64)(w.first + w.row + (int)lane) * p->scale_a_row;
        const float *b = p->scale_b + (i64)b_row * p->scale_b_row + (i64)w.group * p->scale_b_group;
        if (LAYOUT == MASKED) {
            a += (i64)w.group * p->scale_a_group;
        }
        a += first * p->scale_a_block;
        b += first;
#pragma unroll 1
        for (int kb = first; kb < k.end; kb += SCALE_BLOCKS) {
            const int count = end - kb < SCALE_BLOCKS ? end - kb : SCALE_BLOCKS;
            const u32 to = r->scales + at.stage * SCALE_BYTES + lane * (SCALE_BLOCKS * 4);
            barrier_wait(r->scales_empty + 8 * at.stage, at.parity);
            const float *from = a;
            int rows = w.rows - w.row - (int)lane; /* from this one on */
#pragma unroll 1
            for (u32 j = 0; j < BM * SCALE_BLOCKS * 4; j += 32 * SCALE_BLOCKS * 4, rows -= 32) {
                copy_scales(to + j, rows > 0 ? from : p->scale_a, p->scale_a_block, rows > 0 ? count : 0, wide_a);
                from += 32 * p->scale_a_row;
            }
            if (lane < SCALES_B) {
                const int valid = b_row * 128 < p->size.n;
                copy_scales(to + BM * (SCALE_BLOCKS * 4), valid ? b : p->scale_b, 1, valid ? count : 0, wide_b);
            }
            barrier_arrive_copies(r->scales_full + 8 * at.stage);
            scale_place_on(&at);
            a += SCALE_BLOCKS * p->scale_a_block;
            b += SCALE_BLOCKS;
        }
    }
}

/* Scales of a k-block: the lane's rows of a, two of each product, and those of b. */
typedef struct scales {
    float a[WAVES][2], b[STEPS];
} scales;

/* Those of k-block kb, waited for where its batch begins and given back where it ends: every lane has its own before
 * the warp's products of the k-block are waited for. */
DEV void read_scales(scales *s, const rings *r, const place *batch, const span *k, int kb, u32 local, u32 phase)
{
    const u32 at = r->scales + batch->stage * SCALE_BYTES + (u32)(kb % SCALE_BLOCKS) * 4;
    if (kb % SCALE_BLOCKS == 0 || (SPLIT > 1 && kb == k->first)) {
        barrier_wait(r->scales_full + 8 * batch->stage, batch->parity);
    }
#pragma unroll
    for (int v = 0; v < WAVES; v++) {
        s->a[v][0] = load_shared_f32(at + (local + PRODUCT_ROW(0, v)) * (SCALE_BLOCKS * 4));
        s->a[v][1] = load_shared_f32(at + (local + PRODUCT_ROW(0, v) + 8) * (SCALE_BLOCKS * 4));
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        s->b[i] = load_shared_f32(at + (BM + (phase + i * COLUMN_STEP) / 128) * (SCALE_BLOCKS * 4));
    }
}

/* After k-block kb's have been read. */
DEV void release_scales(const rings *r, place *batch, const span *k, int kb)
{
    if (kb % SCALE_BLOCKS == SCALE_BLOCKS - 1 || kb + 1 == k->end) {
        barrier_arrive(r->scales_empty + 8 * batch->stage);
        scale_place_on(batch);
    }
}

/* Registers of names.h: s and, of a warpgroup's second product, t are a tile's sums, p and q are k-blocks' products. */
DEV void declare_sums(void)
{
    asm volatile(EACH(BN, "s", DECLARED) EACH(BN, "t", DECLARED) EACH(BN, "p", DECLARED) EACH(BN, "q", DECLARED));
}

DEV void begin_sums(void)
{
    asm volatile(EACH(BN, "s", ZERO) EACH(BN, "t", ZERO)::: "memory");
}

DEV void take_sums(int v, float *to)
{
    if (v == 0) {
        EACH(BN, "s", TAKE)
    } else {
        EACH(BN, "t", TAKE)
    }
}

/* The product of one k-block, left under way. */
#define MULTIPLY_BLOCK(v, a, b)                                                                                        \
    wgmma_fence();                                                                                                     \
    asm volatile(BLOCK_NAMED(BN, "k32.f32.e4m3.e4m3", ", 1, 1", v, "0")::"l"(a), "l"(b) : "memory");                   \
    wgmma_commit()

/* EACH(BN, v, PROMOTE_S): the sums s += product v by the scales sa of two rows and sb of columns, rounded once. */
#define PROMOTE_ONE(s, v, x, i, scale) "fma.rn.f32 " s #x #i ", " scale ", " v #x #i ", " s #x #i ";\n"
#define PROMOTE_FOUR(s, v, x, i0, i1, i2, i3)                                                                          \
    PROMOTE_ONE(s, v, x, i0, "%0") PROMOTE_ONE(s, v, x, i1, "%0")                                                      \
    PROMOTE_ONE(s, v, x, i2, "%1") PROMOTE_ONE(s, v, x, i3, "%1")
#define PROMOTE(s, v, x, at)                                                                                           \
    asm volatile(PROMOTE_FOUR(s, v, x, 0, 1, 2, 3) PROMOTE_FOUR(s, v, x, 4, 5, 6, 7)::"f"(                             \
                     sa[0] * sb[2 * at / COLUMN_STEP]),                                                                \
                 "f"(sa[1] * sb[2 * at / COLUMN_STEP])                                                                 \
                 : "memory");
#define PROMOTE_S(v, x, at) PROMOTE("s", v, x, at)
#define PROMOTE_T(v, x, at) PROMOTE("t", v, x, at)

/* Operands of a k-block, of the first product's a: those of the first stage and on. */
#define FIRST_OPERANDS                                                                                                \
    const u64 a_first = wgmma_operand(r->tiles.a + PRODUCT_ROW(group, 0) * 128), b_first = wgmma_operand(r->tiles.b)
#define OPERAND_A(stage) wgmma_operand_on(a_first, (stage) * (A_BYTES / 16))
#define OPERAND_B(stage) wgmma_operand_on(b_first, (stage) * (B_BYTES / 16))
#define PRODUCT_STEP ((PRODUCT_ROW(0, 1) - PRODUCT_ROW(0, 0)) * 128 / 16) /* of descriptors of a */

/* Where the consumers stand: in the ring of tiles and in that of scales. */
typedef struct stand {
    place at, batch;
    u32 held; /* HOLD: the stage, + 1, that is given back, with the one before it, when the results in them are read */
} stand;
#define HOLD (STORE == 2)

#if PARTS == 2
#define BEGIN(which, kb)                                                                                              \
    a = OPERAND_A(at.stage);                                                                                          \
    b = OPERAND_B(at.stage);                                                                                          \
    barrier_wait(r->tiles.full + 8 * at.stage, at.parity);                                                            \
    read_scales(&which##_scales, r, &batch, k, kb, local, phase);                                                     \
    MULTIPLY_BLOCK(#which, a, b);                                                                                     \
    release_scales(r, &batch, k, kb);                                                                                 \
    which##_stage = at.stage;                                                                                         \
    place_on(&at)
#define END(which)                                                                                                    \
    release(r->tiles.empty + 8 * which##_stage, lane);                                                                \
    {                                                                                                                 \
        const float *const sa = which##_scales.a[0], *const sb = which##_scales.b;                                    \
        EACH(BN, #which, PROMOTE_S)                                                                                   \
    }

/* One product a k-block; the next one is under way while one is promoted. */
DEV void multiply_tile(const rings *r, stand *now, const span *k, u32 phase, u32 group, u32 local, u32 warp,
                       u32 lane)
{
    place at = now->at, batch = now->batch;
    scales p_scales, q_scales;
    FIRST_OPERANDS;
    u32 p_stage = 0, q_stage = 0;
    u64 a, b;
    int kb = k->first + 1;
    BEGIN(p, k->first);
    for (; kb + 1 < k->end; kb += 2) {
        BEGIN(q, kb);
        WGMMA_WAIT(1);
        END(p);
        BEGIN(p, kb + 1);
        WGMMA_WAIT(1);
        END(q);
    }
    if (kb < k->end) {
        BEGIN(q, kb);
        WGMMA_WAIT(1);
        END(p);
        WGMMA_WAIT(0);
        END(q);
    } else {
        WGMMA_WAIT(0);
        END(p);
    }
    now->at = at;
    now->batch = batch;
}
#else
/* Where scales are read: before a k-block's products, or while the first runs, as most tiles want it. */
#define SCALES_FIRST (LAYOUT == ONE && BN > 128)
/* 1: what the next k-block's products need is made ready while the last of this one runs, where registers allow it;
 * masked groups gain nothing by it. */
#define AHEAD (LAYOUT != MASKED && BN <= 128 && !(GROUPS == 3 && (STORE || OUT == 2)))

/* The stages that held the last tile's results, while the first product of the next one runs. */
DEV void give_back(const rings *r, stand *now, u32 warp, u32 lane)
{
#if HOLD
    if (warp == 0) {
        release_held(&r->tiles, now->held - 1, lane);
    }
    now->held = 0;
#endif
}

/* `products` of a k-block, one after the other; the other warpgroups' are under way meanwhile. */
DEV void multiply_products(const rings *r, stand *now, const span *k, int products, u32 phase, u32 group, u32 local,
                           u32 warp, u32 lane)
{
    place at = now->at, batch = now->batch;
    FIRST_OPERANDS;
    u64 a = OPERAND_A(at.stage), b = OPERAND_B(at.stage);
    u32 there = 0;
#pragma unroll 1
    for (int kb = k->first; kb < k->end; kb++) {
        const u32 empty = r->tiles.empty + 8 * at.stage;
        scales s;
        if (!AHEAD) {
            a = OPERAND_A(at.stage);
            b = OPERAND_B(at.stage);
        }
        if (!there) {
            barrier_wait(r->tiles.full + 8 * at.stage, at.parity);
        }
        if (SCALES_FIRST) {
            read_scales(&s, r, &batch, k, kb, local, phase);
        }
#pragma unroll
        for (int v = 0; v < WAVES; v++) {
            if (v >= products) {
                break;
            }
            MULTIPLY_BLOCK("p", a + (u64)v * PRODUCT_STEP, b);
            if (v == 0) {
                if (!SCALES_FIRST) {
                    read_scales(&s, r, &batch, k, kb, local, phase);
                }
                release_scales(r, &batch, k, kb);
                if (HOLD && now->held) {
                    give_back(r, now, warp, lane);
                }
            }
            if (v == products - 1) {
                place_on(&at);
                if (AHEAD) {
                    a = OPERAND_A(at.stage);
                    b = OPERAND_B(at.stage);
                    there = kb + 1 < k->end && barrier_test(r->tiles.full + 8 * at.stage, at.parity);
                }
            }
            WGMMA_WAIT(0);
            if (v == products - 1 && (!HOLD || kb + 2 < k->end)) {
                release(empty, lane);
            }
            const float *const sa = s.a[v], *const sb = s.b;
            if (v == 0) {
                EACH(BN, "p", PROMOTE_S)
            } else {
                EACH(BN, "p", PROMOTE_T)
            }
        }
    }
    now->at = at;
    now->batch = batch;
    now->held = HOLD ? (at.stage + STAGES - 1) % STAGES + 1 : 0;
}

#if LAYOUT != MASKED
#define multiply_tile(r, at, k, phase, group, local, warp, lane)                                                       \
    multiply_products(r, at, k, WAVES, phase, group, local, warp, lane)
#else
#define multiply_tile(r, at, k, phase, group, local, warp, lane)                                                       \
    multiply_some(r, at, k, w.rows - w.row, phase, group, local, warp, lane)

/* Products whose rows are all beyond the group's are left out. Their number is a constant in either loop: one loop for
 * both took 1.5 % longer. */
DEV void multiply_some(const rings *r, stand *now, const span *k, int rows, u32 phase, u32 group, u32 local, u32 warp,
                       u32 lane)
{
    if (rows > (int)PRODUCT_ROW(group, 0)) {
        if (WAVES > 1 && rows <= (int)PRODUCT_ROW(group, WAVES - 1)) {
            multiply_products(r, now, k, 1, phase, group, local, warp, lane);
        } else {
            multiply_products(r, now, k, WAVES, phase, group, local, warp, lane);
        }
    } else {
        const span s = tile_span(k, rows);
        if (HOLD && now->held) {
            give_back(r, now, warp, lane);
        }
#pragma unroll 1
        for (int kb = s.first; kb < s.end; kb++) {
            barrier_wait(r->tiles.full + 8 * now->at.stage, now->at.parity);
            release(r->tiles.empty + 8 * now->at.stage, lane);
            place_on(&now->at);
            if (kb % SCALE_BLOCKS == 0) {
                barrier_wait(r->scales_full + 8 * now->batch.stage, now->batch.parity);
            }
            release_scales(r, &now->batch, &s, kb);
        }
    }
}
#endif
#endif

#if SPLIT > 1
/* A warpgroup's sums of the block's own share of the columns, to which those of the other parts are added, in the order
 * r + 1, r + 2, ... around the cluster for block r; the others' shares go to them. */
DEV void exchange(const rings *r, float *sums, u32 group, u32 warp, u32 lane)
{
    const u32 rank = cluster_rank(), thread = warp * 32 + lane, bar = r->arrived + 8 * group;
    const u32 own = r->d + group * (64 * SHARE * 4) + thread * 16;
    float mine[SHARE / 2];
#pragma unroll
    for (u32 part = 0; part < SPLIT; part++) { /* of the columns: constants, as registers have no index */
        const u32 slot = (rank + SPLIT - part - 1) % SPLIT * (BM * SHARE * 4);
        const u32 there = cluster_address(own + slot, part), bar_there = cluster_address(bar, part);
#pragma unroll
        for (u32 j = 0; j < SHARE / 8; j++) {
            float *v = sums + part * (SHARE / 2) + 4 * j;
            if (part == rank) {
                mine[4 * j] = v[0];
                mine[4 * j + 1] = v[1];
                mine[4 * j + 2] = v[2];
                mine[4 * j + 3] = v[3];
            } else {
                send_cluster_f32x4(there + j * 2048, bar_there, v[0], v[1], v[2], v[3]);
            }
        }
    }
    barrier_wait(bar, 0);
#pragma unroll
    for (u32 i = 0; i < SPLIT - 1; i++) {
#pragma unroll
        for (u32 j = 0; j < SHARE / 8; j++) {
            const float4 v = load_shared_f32x4(own + i * (BM * SHARE * 4) + j * 2048);
            mine[4 * j] += v.x;
            mine[4 * j + 1] += v.y;
            mine[4 * j + 2] += v.z;
            mine[4 * j + 3] += v.w;
        }
    }
#pragma unroll
    for (u32 i = 0; i < SHARE / 2; i++) {
        sums[i] = mine[i];
    }
}
#endif

DEV void multiply(const problem *p, const rings *r, const tensor_map *d_map, u32 group, u32 warp, u32 lane)
{
    const span k = span_of(&p->size);
    const u32 local = PRODUCT_ROW(group, 0) + warp * 16 + lane / 4; /* the lane's first row of the tile */
    stand at = {{0, 0}, {0, 0}, 0};
    walk w;
#if TOLD
    while (hear(&r->tiles, &at.at, &w, lane)) {
#else
    walk_start(&w, &p->size);
    while (walk_on(&w, &p->size)) {
#endif
        begin_sums();
        multiply_tile(r, &at, &k, (u32)w.column % 128, group, local, warp, lane);
        float sums[WAVES][SUMS];
#pragma unroll
        for (int v = 0; v < WAVES; v++) {
            take_sums(v, sums[v]);
        }
        char *d = p->d + (i64)w.first * p->d_row * OUT_BYTES;
        if (LAYOUT == MASKED) {
            d += (i64)w.group * p->d_group * OUT_BYTES;
        }
#if SPLIT > 1
        exchange(r, sums[0], group, warp, lane);
        w.column += (int)cluster_rank() * SHARE;
        store_rows(&p->size, &w, d, p->d_row, (u64)d % 16 == 0 && p->d_row * OUT_BYTES % 16 == 0,
                   w.row + (int)PRODUCT_ROW(group, 0), SHARE, sums[0], warp, lane);
#else
        store_tile(&r->tiles, (at.at.stage + STAGES - 1) % STAGES, &p->size, &w, d_map, r->d, d, p->d_row, sums, group,
                   warp, lane);
#endif
        __syncwarp(); /* the compiler knows again that warps are whole: see uniform */
    }
#if STORE
    tensor_store_wait();
#endif
}

/* Read anew by every role, as the rings' addresses are: kept from the start, they would take registers where there are
 * none. */
DEV u32 thread_index(void)
{
    u32 i;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(i));
    return i;
}

DEV rings rings_at(u32 shared)
{
    rings r;
    asm volatile("mov.u32 %0, %1;" : "=r"(r.d) : "r"((shared + 1023) / 1024 * 1024));
    r.tiles.a = r.d + D_BYTES;
    r.tiles.b = r.tiles.a + STAGES * A_BYTES;
    r.scales = r.tiles.b + STAGES * B_BYTES;
    r.tiles.full = r.scales + SCALE_STAGES * SCALE_BYTES;
    r.tiles.empty = r.tiles.full + STAGES * 8;
    r.scales_full = r.tiles.empty + STAGES * 8;
    r.scales_empty = r.scales_full + SCALE_STAGES * 8;
    r.arrived = r.scales_empty + SCALE_STAGES * 8;
#if TOLD
    r.tiles.told = (r.arrived + 15) / 16 * 16;
#endif
    return r;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_block_scaled_mm(const __grid_constant__ tensor_map a_map, const __grid_constant__ tensor_map b_map,
                       const __grid_constant__ tensor_map d_map, const __grid_constant__ tensor_map a_last,
                       const __grid_constant__ tensor_map b_last, const float *scale_a, i64 scale_a_row,
                       i64 scale_a_block, i64 scale_a_group, const float *scale_b, i64 scale_b_row, i64 scale_b_group,
                       char *d, i64 d_row, i64 d_group, const int *groups, int m, int n, int k, int experts, int low,
                       int tail, int constant)
{
    declare_sums();
    extern __shared__ char shared[];
    problem p = {{groups, m, n, k, experts, low}, scale_a, scale_b, scale_a_row,  scale_a_block,
                 scale_a_group,                   scale_b_row, scale_b_group, d, d_row, d_group};
    const rings r = rings_at(shared_address(shared));
#if TICKETS
    p.size.mail = r.tiles.told + STAGES * TOLD_BYTES;
#endif
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int few = LAYOUT == ONE && BM <= 128 && m <= BM; /* one row of tiles */
    const boxes a_boxes = {&a_map, &a_last}, b_boxes = {&b_map, &b_last};
    int early = 0;
    if (LAYOUT == ONE || low == 0) {
        grid_release();
    }

    if (threadIdx.x == 0) {
        tensor_map_prefetch(&a_map);
        tensor_map_prefetch(&b_map);
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(r.tiles.full + 8 * i, 1);
            barrier_init(r.tiles.empty + 8 * i, 4 * GROUPS * CLUSTER);
        }
        for (u32 i = 0; i < SCALE_STAGES; i++) {
            barrier_init(r.scales_full + 8 * i, 32);
            barrier_init(r.scales_empty + 8 * i, 128 * GROUPS);
        }
#if TICKETS
        barrier_init(p.size.mail, 1);
#endif
#if SPLIT > 1
        for (u32 i = 0; i < GROUPS; i++) {
            barrier_init(r.arrived + 8 * i, 1);
            barrier_arrive_expect(r.arrived + 8 * i, PARTS_BYTES / GROUPS);
        }
#endif
        barrier_init_fence();
#if LAYOUT == ONE
        if (few) {
            ask_for_rows(&a_map, (k + 127) / 128);
        }
        early = constant ? load_early(&p.size, &r.tiles, &b_boxes, few ? EARLY_STAGES : STAGES) : 0;
#endif
    }
#if LAYOUT == ONE
    if (warp == 1 && few) {
        walk w;
        walk_start(&w, &p.size);
        if (walk_on(&w, &p.size)) {
            const int b_row = w.column / 128, own = (n + 127) / 128 - b_row;
            ask_for_scales(scale_a, scale_a_row, scale_a_block, m, scale_b + b_row * scale_b_row, scale_b_row,
                           own < SCALES_B ? own : SCALES_B, (k + 127) / 128, lane);
        }
    }
#endif
    __syncthreads();
#if CLUSTER * SPLIT > 1
    cluster_arrive_relaxed();
    cluster_wait();
#endif
    grid_wait();
    if (LAYOUT != ONE && low > 0) { /* for strips, which wait for nothing more */
        grid_release();
    }

    if (warp < 4) {
#if GROUPS == 2
        REGISTERS_GIVE(40);
#elif GROUPS == 3
        REGISTERS_GIVE(56);
#endif
#if HALVES
        if (warp < 2) {
            cut_last(&p.size, lane);
        }
#endif
        if (warp == 0 && lane == 0) {
            load_tiles(&p.size, &r.tiles, &a_boxes, &b_boxes, early);
        } else if (warp == 1) {
            load_scales(&p, &r, thread_index() % 32);
        }
#if LAYOUT != ONE
        else if (warp > 1 && tail == TAIL_ZEROS) {
            zero_rest(d, d_row, d_group, OUT_BYTES, LAYOUT == MASKED, groups, experts, m, n,
                      (int)(blockIdx.x * 2 + warp - 2), (int)gridDim.x * 2, lane);
        }
#endif
    } else {
#if GROUPS == 2
        REGISTERS_TAKE(232);
#elif GROUPS == 3
        REGISTERS_TAKE(152);
#endif
        const u32 thread = thread_index() - 128;
        const rings own = rings_at(shared_address(shared));
        const u32 warp_there = thread / 32 % 4;
        multiply(&p, &own, &d_map, uniform(thread / 128), HOLD ? uniform(warp_there) : warp_there, thread % 32);
    }
#if CLUSTER > 1
    /* Nobody leaves while another may still fill its ring or arrive at its barriers. */
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();
#endif
}
