/* Products of 16-bit floats for many rows, on Hopper (sm_90a): dense_mm of bf16 and f16 weights, and of weights that
 * were written out as such.
 *
 *   D[m,n] = (sum over k of A[m,k] B[n,k]) (row_scale[m] column_scale[n]) + bias[n]
 *
 * A persistent grid like block_scaled_mm.cu's: one warp keeps a ring of STAGES k-blocks of 64 filled, GROUPS
 * warpgroups multiply 64 rows each and keep their sums in the tensor core's f32; a k-block's products are under way
 * while the next one's operands are waited for.
 *
 * The blocks of a cluster take tiles above each other and share b, up to unit `whole` of the work. Where what is left
 * would not fill the card (or all of it would not: whole 0), they take one tile together, each a part of K, and add up
 * through each other's shared memory: block r ends with the sums of share r of the columns, to which the others' are
 * added in the order r + 1, r + 2, ... around the cluster.
 * Operands may be planes that add up to them (mm_planes.cu): a k-block has all of these, pairs of which are multiplied,
 * and sums leave the tensor core every CHAIN k-blocks, as it cuts off what f32 would round.
 *
 * One output element is the same chain of operations for any neighbours; tiles taken together have another one.
 *
 * Host contract
 *   Parameters
 *     F16     1: operands f16, else bf16
 *     BM, BN  64 GROUPS rows by at most 256 columns (192 where STORE is 0: registers), a multiple of 16
 *     CLUSTER blocks, at most 8; BN a multiple of 8 CLUSTER
 *     STAGES, GROUPS, STORE, ROOM, OUT   as tiles.h says; STORE 1: BN and ROOM multiples of 64 (OUT 2: of 32)
 *     BAND    clusters' tiles of M walked together
 *     SCALED  1: column_scale is given, readable to a multiple of BN, and row_scale, which may be NULL (ones); 2: row_scale
 *             alone; 3: both, powers of two each 2^-14 of what the largest number of a row has
 *     A_PLANES, B_PLANES  of operands, 1 where not given: up to 3 by 1, 1 by 2 or 2 by 2
 *     CHAIN   k-blocks whose products are added in the tensor core; 0: all. Else BN at most 128
 *     BIAS    0 none, 1 f32, 2 f16, 3 bf16
 *   Tensor maps, 3-D, swizzle 128B, no interleave, fill with zeros
 *     a, b    UINT8, sizes {2 K, M, A_PLANES} and {2 K, N, B_PLANES}; boxes {128, BM, 1} and {128, BN / CLUSTER, 1}
 *     a_last, b_last  the same with a box of the rows that are left at the end, M mod BM and N mod BN / CLUSTER; where
 *             none are, any map: not read. Where these are all rows, a and b may be the same ones
 *     d       (STORE 1, else any bytes) UINT16 or FLOAT32, sizes {N, M, 1}; box {64, 64, 1} or {32, 64, 1}; N times
 *             its size a multiple of 16 bytes
 *     row strides in bytes: multiples of 16, bases 16-aligned
 *   Arguments: maps, then as declared; odd: NULL, or set to 1 where CHAIN is not 0 and a result is not finite; d_row
 *     in elements, k in bytes; whole: units taken whole, of ceil(M / (BM CLUSTER)) ceil(N / BN), or
 *     0: then a unit is a tile, ceil(M / BM) ceil(N / BN) of them, and K has at least CLUSTER k-blocks; constant 1: kernels
 *     ahead in the stream do not write b, which is then read before they end
 *   Launch: block 128 + 128 GROUPS, grid a multiple of CLUSTER, cluster {CLUSTER, 1, 1}; dynamic shared memory = 1024
 *     + (STORE ? BM * ROOM * (OUT == 2 ? 4 : 2) : CLUSTER > 1 ? 4 * BM * BN / CLUSTER : 0)
 *     + STAGES * (128 * (A_PLANES * BM + B_PLANES * BN) + 16) + 8 * GROUPS * CLUSTER
 *   Limits: K >= 1, N >= 1, M, N and 2 K below 2^31. */
#ifndef BAND
#define BAND 8
#endif
#ifndef A_PLANES
#define A_PLANES 1
#define B_PLANES 1
#define CHAIN 0
#endif
#define LAYOUT 0
#define WAVES 1
#define THREADS (128 + 128 * GROUPS)
#include "names.h"
#include "tiles.h"
#include "tiles_out.h"

#define SUMS (BN / 2)
#define A_STAGE (A_PLANES * A_BYTES)
#define B_STAGE (B_PLANES * B_BYTES)
#define SHARE (BN / CLUSTER) /* columns that a block ends with where the cluster takes a tile together */
#if STORE
#define D_BYTES (BM * ROOM * OUT_BYTES)
#define CHUNK (ROOM * OUT_BYTES / 4 < SHARE ? ROOM * OUT_BYTES / 4 : SHARE) /* columns sent at a time */
#else
#define D_BYTES (CLUSTER > 1 ? BM * SHARE * 4 : 0)
#define CHUNK SHARE
#endif
#define CHUNKS (SHARE / CHUNK)
#if BM != 64 * GROUPS || BN > 256 || BN % 16 != 0 || BN % ROOM != 0 || SHARE % 8 != 0 || SHARE % CHUNK != 0 ||         \
    (STORE && ROOM % BOX != 0) || (CHAIN && BN > 128)
#error "dense_mm: no such tile"
#endif

typedef struct problem {
    extent size;
    const float *row_scale, *column_scale;
    const void *bias;
    char *d;
    i64 d_row;
    int whole, *odd;
} problem;

typedef struct rings {
    ring tiles;
    u32 d;               /* of tiles on their way out, and of sums on their way in */
    u32 arrived, allowed; /* of a group's sums, + 8 group; + 8 (group (CLUSTER - 1) + distance - 1): to be sent */
} rings;

/* ---- the walk ---- */

DEV u32 rank_of(void)
{
#if CLUSTER > 1
    return cluster_rank();
#else
    return 0;
#endif
}

/* Where a block stands in the list of units, and the one in hand: a tile and the k-blocks of it that are the block's. */
typedef struct unit {
    int next, together, first, last;
    walk w;
} unit;

DEV void unit_start(unit *u, const problem *p)
{
    u->next = (int)blockIdx.x / CLUSTER;
    u->w.group = u->w.first = 0;
    u->w.rows = p->size.m;
}

/* To the next unit of this block; 0 at the end. The order is the same for every role. */
DEV int unit_on(unit *u, const problem *p)
{
    const int step = p->whole ? BM * CLUSTER : BM, blocks = (p->size.k + 127) / 128, rank = (int)rank_of();
    const u32 columns = (u32)(p->size.n + BN - 1) / BN; /* unsigned: their division is the shorter one */
    const u32 row_units = (u32)(p->size.m + step - 1) / (p->whole ? BM * CLUSTER : BM), units = columns * row_units;
    int index = u->next, above = p->whole ? rank * BM : 0;
    u->next += (int)gridDim.x / CLUSTER;
    u->together = CLUSTER > 1 && index >= p->whole;
    u->first = 0;
    u->last = blocks;
    if (u->together) {
        if (p->whole) {
            above = (int)((u32)(index - p->whole) % CLUSTER * BM);
            index = p->whole + (int)((u32)(index - p->whole) / CLUSTER);
        }
        u->first = (int)((u32)(blocks * rank) / CLUSTER);
        u->last = (int)((u32)(blocks * (rank + 1)) / CLUSTER);
    }
    if ((u32)index >= units) {
        return 0;
    }
    const u32 band = (u32)index / (BAND * columns), in_band = (u32)index - band * (BAND * columns);
    const u32 left = row_units - band * BAND, high = left < BAND ? left : BAND, column = in_band / high;
    u->w.row = (int)(band * BAND + in_band - column * high) * step + above;
    u->w.column = (int)column * BN;
    return 1;
}

/* ---- operands ---- */

/* Bytes of a k-block of a tile. */
DEV u32 block_bytes(const extent *p, const walk *w)
{
    return (u32)(rows_in(p->m, w->row, BM) * A_PLANES + rows_in(p->n, w->column, BN) * B_PLANES) * 128;
}

/* The share of b from `column` on, as far as it has any, to this block or to all of the cluster. */
DEV void load_share(u32 to, const boxes *b, u32 full, int kb, int plane, int column, int n, int all)
{
    const int rows = rows_in(n, column, SHARE);
    const tensor_map *const map = rows == SHARE ? b->all : b->last;
    if (rows == 0) {
        return;
    }
#if CLUSTER > 1
    if (all) {
        tensor_load_3d_multicast(to, map, full, kb * 128, column, plane, (1 << CLUSTER) - 1, L2_EVICT_NORMAL);
        return;
    }
#endif
    tensor_load_3d(to, map, full, kb * 128, column, plane, L2_EVICT_NORMAL);
}

DEV void load_b(u32 to, const boxes *b, u32 full, int kb, const unit *u, int n)
{
#pragma unroll
    for (int plane = 0; plane < B_PLANES; plane++, to += B_BYTES) {
#if CLUSTER > 1
        const int rank = (int)cluster_rank();
        if (!u->together) {
            load_share(to + (u32)rank * (SHARE * 128), b, full, kb, plane, u->w.column + rank * SHARE, n, 1);
            continue;
        }
        /* the block's own share first: so every block has the same columns in the same registers */
#pragma unroll 1
        for (int i = 0; i < CLUSTER; i++) {
            load_share(to + (u32)i * (SHARE * 128), b, full, kb, plane, u->w.column + (rank + i) % CLUSTER * SHARE, n,
                       0);
        }
#else
        load_share(to, b, full, kb, plane, u->w.column, n, 0);
#endif
    }
}

/* One thread, before the kernels ahead have ended: b of the first unit's first k-blocks, up to `most`. How many. */
DEV int load_early_b(const problem *p, const ring *r, const boxes *b, int most)
{
    int i = 0;
    unit u;
    unit_start(&u, p);
    if (unit_on(&u, p)) {
        const u32 bytes = block_bytes(&p->size, &u.w);
#pragma unroll 1
        for (; i < most && u.first + i < u.last; i++) {
            barrier_arrive_expect(r->full + 8 * (u32)i, bytes);
            load_b(r->b + (u32)i * B_STAGE, b, r->full + 8 * (u32)i, u.first + i, &u, p->size.n);
        }
    }
    return i;
}

/* One thread: every k-block of every unit of the walk, but b of the `early` first. */
DEV void load_units(const problem *p, const ring *r, const boxes *a, const boxes *b, int early)
{
    place at = {0, 1};
    unit u;
    unit_start(&u, p);
    while (unit_on(&u, p)) {
        const u32 bytes = block_bytes(&p->size, &u.w);
        const int a_rows = rows_in(p->size.m, u.w.row, BM); /* none: a tile below the last, of the same cluster */
        const tensor_map *const a_map = a_rows == BM ? a->all : a->last;
#pragma unroll 1
        for (int kb = u.first; kb < u.last; kb++, early--) {
            const u32 full = r->full + 8 * at.stage;
            barrier_wait(r->empty + 8 * at.stage, at.parity);
            if (early <= 0) {
                barrier_arrive_expect(full, bytes);
                load_b(r->b + at.stage * B_STAGE, b, full, kb, &u, p->size.n);
            }
#pragma unroll
            for (int plane = 0; plane < A_PLANES && a_rows > 0; plane++) {
                tensor_load_3d(r->a + at.stage * A_STAGE + plane * A_BYTES, a_map, full, kb * 128, u.w.row, plane,
                               L2_EVICT_NORMAL);
            }
            place_on(&at);
        }
    }
}

/* This warp has read the stage: said to all blocks that fill it, or as often to the own one, which fills it alone. */
DEV void release_unit(u32 empty, int together, u32 lane)
{
    if (together && lane < CLUSTER) {
        barrier_arrive(empty);
    } else if (!together) {
        release(empty, lane);
    }
}

/* ---- products ---- */

DEV u64 uniform_operand(u32 at)
{
    return wgmma_operand(__shfl_sync(~0u, at, 0));
}

/* Registers of names.h: s are a unit's sums, p of chains one chain's, which are added to s. Sums become results in
 * their place: the assembler keeps what a product may be added to, and for a copy beside it registers are too few. */
DEV void declare_sums(void)
{
    asm volatile(EACH(BN, "s", DECLARED) EACH(BN, "p", DECLARED));
}

#if CHAIN
#define PRODUCT "p"
#else
#define PRODUCT "s"
#endif
#if F16
#define TYPES "k16.f32.f16.f16"
#else
#define TYPES "k16.f32.bf16.bf16"
#endif

/* A k-block's product, left under way. */
DEV void multiply_block(u64 a, u64 b, int accumulate)
{
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %2, 0;\n"
                 BLOCK_NAMED(BN, TYPES, ", 1, 1, 0, 0", PRODUCT, "more") "}" ::"l"(a), "l"(b), "r"(accumulate)
                 : "memory");
}

#define ADD_ONE(v, x, i) "add.rn.f32 s" #x #i ", s" #x #i ", p" #x #i ";\n"
#define ADD(v, x, at) OF_EIGHT(ADD_ONE, v, x)

/* Sums of the k-blocks from `first` on. */
DEV void multiply_chain(const ring *r, place *now, int first, int last, int together, u32 group, u32 lane)
{
    place at = *now;
    u32 before = 0;
#pragma unroll 1
    for (int kb = first; kb < last; kb++) {
        const u64 a = uniform_operand(r->a + at.stage * A_STAGE + PRODUCT_ROW(group, 0) * 128);
        const u64 b = uniform_operand(r->b + at.stage * B_STAGE);
        barrier_wait(r->full + 8 * at.stage, at.parity);
        wgmma_fence();
        multiply_block(a, b, kb - first);
#pragma unroll
        for (int plane = 1; plane < A_PLANES; plane++) {
            multiply_block(a + plane * (A_BYTES / 16), b, 1);
        }
#if B_PLANES == 2 /* the product of both second planes is too small to count */
        multiply_block(a, b + B_BYTES / 16, 1);
#endif
        wgmma_commit();
        if (kb > first) {
            WGMMA_WAIT(1);
            release_unit(r->empty + 8 * before, together, lane);
        }
        before = at.stage;
        place_on(&at);
    }
    WGMMA_WAIT(0);
    release_unit(r->empty + 8 * before, together, lane);
    *now = at;
}

DEV void multiply_unit(const ring *r, place *now, const unit *u, u32 group, u32 lane)
{
#if CHAIN
    asm volatile(EACH(BN, "s", ZERO)::: "memory");
#pragma unroll 1
    for (int kb = u->first; kb < u->last; kb += CHAIN) {
        multiply_chain(r, now, kb, min(kb + CHAIN, u->last), u->together, group, lane);
        asm volatile(EACH(BN, "s", ADD)::: "memory");
    }
#else
    multiply_chain(r, now, u->first, u->last, u->together, group, lane);
#endif
}

DEV void take_sums(float *to)
{
    EACH(BN, "s", TAKE)
}

#if CLUSTER > 1
/* The block's own share back to the sums. */
#define GIVE_SHARE(v, x, at)                                                                                           \
    if (2 * at < SHARE) {                                                                                              \
        GIVE(v, x, at)                                                                                                 \
    }

DEV void give_share(const float *from)
{
    EACH(BN, "s", GIVE_SHARE)
}

/* A group's sums of the block's own share, to which those of the other blocks are added; the others' go to them.
 * `met`: units before this one that were taken together. */
DEV void exchange(const rings *r, float *sums, u32 met, u32 group, u32 thread)
{
    const u32 rank = cluster_rank(), own = r->d + group * (D_BYTES / GROUPS) + thread * 16, bar = r->arrived + 8 * group;
#if STORE
    if (thread == 0) {
        tensor_store_wait_read();
    }
    threads_sync(1 + group, 128);
#endif
#pragma unroll
    for (u32 i = 1; i < CLUSTER; i++) {
        const u32 to = (rank + i) % CLUSTER, from = (rank + CLUSTER - i) % CLUSTER;
        const u32 allowed = r->allowed + 8 * (group * (CLUSTER - 1) + i - 1);
#pragma unroll
        for (u32 c = 0; c < CHUNKS; c++) {
            if (thread == 0) {
                barrier_arrive_expect(bar, 64 * CHUNK * 4);
                barrier_arrive_cluster_release(cluster_address(allowed, from));
            }
            barrier_wait(allowed, (met * CHUNKS + c) & 1);
            const u32 there = cluster_address(own, to), bar_there = cluster_address(bar, to);
#pragma unroll
            for (u32 j = 0; j < CHUNK / 8; j++) {
                const float *v = sums + (i * SHARE + c * CHUNK) / 2 + 4 * j;
                send_cluster_f32x4(there + j * 2048, bar_there, v[0], v[1], v[2], v[3]);
            }
            barrier_wait(bar, (met * (CLUSTER - 1) * CHUNKS + (i - 1) * CHUNKS + c) & 1);
#pragma unroll
            for (u32 j = 0; j < CHUNK / 8; j++) {
                const uint4 v = load_shared_u32x4(own + j * 2048);
                float *to_sums = sums + c * CHUNK / 2 + 4 * j;
                to_sums[0] += __uint_as_float(v.x);
                to_sums[1] += __uint_as_float(v.y);
                to_sums[2] += __uint_as_float(v.z);
                to_sums[3] += __uint_as_float(v.w);
            }
            threads_sync(1 + group, 128); /* read by all, before the next sender may write there */
        }
    }
}
#endif

/* ---- results ---- */

DEV float row_scale_at(const problem *p, int row)
{
    return p->row_scale && row < p->size.m ? __ldg(p->row_scale + row) : 1.0f;
}

#if CHAIN
/* Whether a result, of the first SHARE columns or of all, is not finite. */
DEV void tell_odd(const problem *p, const float *results, int shared)
{
    int odd = 0;
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        odd |= !(fabsf(results[i]) < __int_as_float(0x7f800000)) && (2 * i < SHARE || !shared);
    }
    if (odd && p->odd) {
        *p->odd = 1;
    }
}
#endif

/* FOURS(v, x, at, F): F for the lane's four sums of eight columns each, of letter x of v: their numbers and the first
 * of the columns. */
#define FOURS(v, x, at, F) F(v, x, 0, 1, 2, 3, 2 * at) F(v, x, 4, 5, 6, 7, 2 * at + 8)

/* In a statement: scales q of two columns, and a sum by those of a column and a row. 3: sums as parts of what the
 * largest product of a row and a column has, in range as far as results are. */
#define ROW_GROWN (SCALED == 3 ? 16384.0f : 1.0f)
#if SCALED == 3
#define GROW_TEXT(q) "mul.rn.f32 " q ", " q ", 0f46800000;\n"   /* 2^14 */
#define SHRINK_TEXT(s) "mul.rn.f32 " s ", " s ", 0f31800000;\n" /* 2^-28 */
#else
#define GROW_TEXT(q)
#define SHRINK_TEXT(s)
#endif
#if SCALED == 2
#define SCALES_TEXT(at)
#define SCALE_TEXT(s, q, row) "mul.rn.f32 " s ", " s ", " row ";\n"
#else
#define SCALES_TEXT(at)                                                                                                \
    "ld.global.nc.f32 q0, [%0 + " at " * 4];\nld.global.nc.f32 q1, [%0 + " at " * 4 + 4];\n" GROW_TEXT("q0")           \
        GROW_TEXT("q1")
#define SCALE_TEXT(s, q, row)                                                                                          \
    SHRINK_TEXT(s) "mul.rn.f32 t, " row ", " q ";\nmul.rn.f32 " s ", " s ", t;\n"
#endif
#define SCALE_FOUR(v, x, i0, i1, i2, i3, column)                                                                       \
    if (SCALED != 2 && column == SHARE && shared) {                                                                    \
        break;                                                                                                         \
    }                                                                                                                  \
    asm volatile("{\n.reg .f32 q<2>, t;\n" SCALES_TEXT("(" #column ")") SCALE_TEXT(v #x #i0, "q0", "%1")               \
                 SCALE_TEXT(v #x #i1, "q1", "%1") SCALE_TEXT(v #x #i2, "q0", "%2")                                     \
                 SCALE_TEXT(v #x #i3, "q1", "%2") "}" ::"l"(scales), "f"(upper), "f"(lower)                            \
                 : "memory");                                                                                          \
    if ((column) % 64 == 56) {                                                                                         \
        __syncwarp();                                                                                                  \
    }
#define SCALE(v, x, at) FOURS(v, x, at, SCALE_FOUR)

/* In a statement: the bias q of a column, zero where that is none of the %1 that are left; without a branch, so that
 * the loads of all columns are under way together. */
#if BIAS == 1
#define BIAS_TEXT(q, at)                                                                                               \
    "mov.b32 " q ", 0;\nsetp.lt.s32 p, " at ", %1;\n@p ld.global.nc.f32 " q ", [%0 + " at " * 4];\n"
#else
#define BIAS_TEXT(q, at)                                                                                               \
    "mov.b16 h, 0;\nsetp.lt.s32 p, " at ", %1;\n@p ld.global.nc.b16 h, [%0 + " at " * 2];\n" WIDEN_TEXT(q)
#if BIAS == 2
#define WIDEN_TEXT(q) "cvt.f32.f16 " q ", h;\n"
#else
#define WIDEN_TEXT(q) "mov.b32 " q ", {zero, h};\n"
#endif
#endif
#define ADD_TEXT(s, q) "add.rn.f32 " s ", " s ", " q ";\n"
#define COLUMN_BIAS(v, x, i0, i1, i2, i3, column)                                                                      \
    if (column == SHARE && shared) {                                                                                   \
        break;                                                                                                         \
    }                                                                                                                  \
    asm volatile("{\n.reg .pred p;\n.reg .b16 h, zero;\n.reg .b32 q<2>;\nmov.b16 zero, 0;\n"                           \
                 BIAS_TEXT("q0", "(" #column ")") BIAS_TEXT("q1", "(" #column " + 1)") ADD_TEXT(v #x #i0, "q0")        \
                 ADD_TEXT(v #x #i1, "q1") ADD_TEXT(v #x #i2, "q0") ADD_TEXT(v #x #i3, "q1") "}" ::"l"(bias), "r"(left) \
                 : "memory");                                                                                          \
    if ((column) % 64 == 56) {                                                                                         \
        __syncwarp();                                                                                                  \
    }
#define ADD_BIAS(v, x, at) FOURS(v, x, at, COLUMN_BIAS)

/* A product's sums, of its first SHARE columns or of all, to its results; `row` is the lane's first. Scales and bias
 * one after the other and a few columns at a time: registers are few here. */
DEV void finish(const problem *p, const walk *w, int row, int shared, u32 lane)
{
    const int column = w->column + 2 * (int)(lane % 4);
#if SCALED
    const float upper = row_scale_at(p, row) * ROW_GROWN, lower = row_scale_at(p, row + 8) * ROW_GROWN;
    const float *scales = p->column_scale + column;
    asm("" : "+l"(scales)); /* once: the compiler would do it for every load */
    do {
        EACH(BN, "s", SCALE)
    } while (0);
#endif
#if BIAS
    const char *bias = (const char *)p->bias + (i64)column * (BIAS == 1 ? 4 : 2);
    const int left = p->size.n - column;
    asm("" : "+l"(bias));
    do {
        EACH(BN, "s", ADD_BIAS)
    } while (0);
#endif
}

DEV void multiply(const problem *p, const rings *r, const tensor_map *d_map, u32 group, u32 warp, u32 lane)
{
    place at = {0, 0};
    u32 met = 0;
    unit u;
    unit_start(&u, p);
    while (unit_on(&u, p)) {
        multiply_unit(&r->tiles, &at, &u, group, lane);
        const int row = u.w.row + (int)(PRODUCT_ROW(group, 0));
#if CLUSTER > 1
        if (u.together) {
            float sums[SUMS];
            take_sums(sums);
            exchange(r, sums, met++, group, warp * 32 + lane);
            give_share(sums);
            u.w.column += (int)cluster_rank() * SHARE;
        }
#endif
        finish(p, &u.w, row + (int)(warp * 16 + lane / 4), u.together, lane);
        float sums[1][SUMS];
        take_sums(sums[0]);
#if CHAIN
        tell_odd(p, sums[0], u.together);
#endif
#if CLUSTER > 1
        if (u.together) {
            const int vector = (u64)p->d % 16 == 0 && p->d_row * OUT_BYTES % 16 == 0;
            store_rows(&p->size, &u.w, p->d, p->d_row, vector, row, SHARE, sums[0], warp, lane);
            continue;
        }
#endif
        store_tile(&r->tiles, 0, &p->size, &u.w, d_map, r->d, p->d, p->d_row, sums, group, warp, lane);
    }
#if STORE
    tensor_store_wait();
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_dense_mm(const __grid_constant__ tensor_map a_map, const __grid_constant__ tensor_map b_map,
                const __grid_constant__ tensor_map d_map, const __grid_constant__ tensor_map a_last,
                const __grid_constant__ tensor_map b_last, const float *row_scale, const float *column_scale,
                const void *bias, char *d, i64 d_row, int m, int n, int k, int whole, int constant, int *odd)
{
    declare_sums();
    extern __shared__ char shared[];
    const problem p = {{0, m, n, k, 1, 0}, row_scale, column_scale, bias, d, d_row, whole, odd};
    rings r;
    r.d = (shared_address(shared) + 1023) / 1024 * 1024;
    r.tiles.a = r.d + D_BYTES;
    r.tiles.b = r.tiles.a + STAGES * A_STAGE;
    r.tiles.full = r.tiles.b + STAGES * B_STAGE;
    r.tiles.empty = r.tiles.full + STAGES * 8;
    r.arrived = r.tiles.empty + STAGES * 8;
    r.allowed = r.arrived + GROUPS * 8;
    const u32 warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
    const int few = BM <= 128 && m <= BM; /* one row of tiles */
    const boxes a_boxes = {&a_map, &a_last}, b_boxes = {&b_map, &b_last};
    int early = 0;
    grid_release();

    if (threadIdx.x == 0) {
        tensor_map_prefetch(&a_map);
        tensor_map_prefetch(&b_map);
#pragma unroll 1
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(r.tiles.full + 8 * i, 1);
            barrier_init(r.tiles.empty + 8 * i, 4 * GROUPS * CLUSTER);
        }
#pragma unroll 1
        for (u32 i = 0; i < GROUPS * CLUSTER; i++) { /* arrived and allowed */
            barrier_init(r.arrived + 8 * i, 1);
        }
        barrier_init_fence();
        if (few) {
            ask_for_rows(&a_map, (k + 127) / 128);
        }
    }
    __syncthreads();
#if CLUSTER > 1
    cluster_arrive_relaxed();
    cluster_wait();
#endif
    if (threadIdx.x == 0 && constant) {
        early = load_early_b(&p, &r.tiles, &b_boxes, few && BM > 64 ? EARLY_STAGES : STAGES);
    }
    grid_wait();

    if (warp < 4) {
#if GROUPS == 2
        REGISTERS_GIVE(40);
#endif
        if (warp == 0 && lane == 0) {
            load_units(&p, &r.tiles, &a_boxes, &b_boxes, early);
        }
    } else {
#if GROUPS == 2
        REGISTERS_TAKE(232);
#endif
        multiply(&p, &r, &d_map, (warp - 4) / 4, warp % 4, lane);
    }
#if CLUSTER > 1
    /* Nobody leaves while another may still fill its ring, send it sums or arrive at its barriers. */
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();
#endif
}
