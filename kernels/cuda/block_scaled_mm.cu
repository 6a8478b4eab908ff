/* block_scaled_mm and grouped_block_scaled_mm for many rows, on Hopper (sm_90a).
 *
 *   D[m,n] = sum over kb of scale_a[m,kb] scale_b[n/128,kb] (sum over k in kb of A[m,k] B[n,k]),  kb = k / 128
 *
 * A persistent grid, one block a multiprocessor, walks output tiles of BM x BN. Warp 0 keeps a ring of
 * STAGES k-blocks filled by bulk tensor copies, warp 1 adds their scales, GROUPS warpgroups multiply: each owns
 * BM / GROUPS rows, sums one k-block in the tensor core and then adds it, scaled, to sums in registers; while one
 * promotes, the other multiplies. Blocks of a cluster take neighbouring tiles of a row and share A.
 * One output element is the same chain of operations whatever the tile, M or its neighbours.
 *
 * Host contract
 *   Parameters (all required, but BAND)
 *     BM      rows of a tile: 64 GROUPS, or 128 GROUPS with PARTS 1
 *     BN      columns of a tile: a multiple of 16, at most 192; 128 where BM = 128 GROUPS or PARTS = 2
 *     STAGES  k-blocks in flight
 *     CLUSTER 1 or 2 blocks sharing A
 *     GROUPS  2 (3 compiles, and spills)
 *     PARTS   products in flight in a warpgroup: 1, or 2 with BM = 64 GROUPS
 *     STORE   1: tiles leave through the copy engine: OUT 0 or 1, BN a multiple of 64, d as its map below asks;
 *             0: lanes store, d of any alignment
 *     BAND    tiles of M walked together before the next ones of N (2048 / BM suits the L2 of an H200)
 *     OUT     0 bf16, 1 f16, 2 f32
 *     LAYOUT  0 one matrix; 1 offsets: rows groups[e] to groups[e+1] of A and D belong to b[e];
 *             2 masked: groups[e] rows of a[e] and d[e] count
 *   Tensor maps, 3-D, swizzle 128B, no interleave, fill with zeros
 *     a  UINT8, sizes {K, rows, groups}: {K, M, 1}, {K, Mtot, 1} or {K, Mmax, E}; box {128, BM / CLUSTER, 1}
 *     b  UINT8, sizes {K, N, E} (E = 1 for one matrix); box {128, BN, 1}
 *     d  (STORE 1, else any bytes) UINT16, sizes {N, rows, groups}; box {64, 64, 1}
 *     row and group strides in bytes: multiples of 16, base 16-aligned; else block_scaled_mm_plain.cu.
 *     L2 promotion 128B for a and b (256B measured up to 4 % slower for few rows), none for d
 *   Arguments: a_map, b_map, d_map, then as declared; strides in elements
 *     scale_a[row * scale_a_row + kb * scale_a_block + e * scale_a_group] (e only if masked): both scale layouts
 *     scale_b[nb * scale_b_row + kb + e * scale_b_group]; groups: NULL for one matrix; m: rows of one matrix
 *   Launch
 *     block 128 + 128 GROUPS, grid = min(multiprocessors, tiles * CLUSTER) rounded down to CLUSTER,
 *     cluster {CLUSTER, 1, 1}; may be launched with programmatic stream serialization
 *     dynamic shared memory = 1024 + STORE * BM * BN * 2 + STAGES * (128 * (BM + BN) + 4 * (BM + 4) + 24) <= 232448
 *   Limits: K >= 1, N >= 1, M and N below 2^31; D beyond the groups' rows is not written (zero it before).
 *   Choice of tile (BM BN STAGES CLUSTER GROUPS PARTS STORE): the least of
 *     ceil(ceil(M/BM) * ceil(N/BN) / multiprocessors) * BM * BN / weight over
 *       256 128 3 c 2 1 1  weight 1.00, c = 2 above 3 rounds of tiles, else 1
 *       128 192 4 1 2 1 1  weight 0.94
 *       128 160 6 1 2 1 0  weight 0.92
 *     Where d allows no STORE, or OUT is 2: the same with STORE 0 and STAGES 4, 5, 6.
 *     65 to 128 rows (one row of tiles): 128 192 5 1 2 1 0 if it fills one round, 128 128 6 1 2 2 0 if two rounds of it
 *     do, 128 64 9 1 2 2 0 for K <= 4096; for longer K block_scaled_mm_skinny.cu with ROWS 128. */
#include "ptx.h"

#ifndef BAND
#define BAND (2048 / BM)
#endif
#define ONE 0
#define OFFSETS 1
#define MASKED 2

#define THREADS (128 + 128 * GROUPS)
#define WAVES (BM / 64 / GROUPS) /* 64-row products of a warpgroup */
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
#define D_BYTES (STORE ? BM * BN * 2 : 0) /* of a tile on its way out */
#define A_BYTES (BM * 128)
#define B_BYTES (BN * 128)
#define SCALES (BM + 4)    /* floats: one per row of a, then those of b */
#if SCALES_B > 4 || BM != 64 * WAVES * GROUPS || BN % 16 != 0 || (STORE && (OUT == 2 || BN % 64 != 0))
#error "block_scaled_mm: no such tile"
#endif

typedef struct problem {
    const float *scale_a, *scale_b;
    i64 scale_a_row, scale_a_block, scale_a_group;
    i64 scale_b_row, scale_b_group;
    void *d;
    i64 d_row, d_group;
    const int *groups;
    int m, n, k, experts;
} problem;

/* Where a block stands in the list of tiles, and the tile in hand. */
typedef struct walk {
    int next, begin, end;
    int group, rows;       /* rows of the group */
    int first;             /* its first row in a and d */
    int row, column;       /* of the tile, within the group */
} walk;

DEV int tiles_of(const problem *p, int rows)
{
    const int columns = (p->n + BN * CLUSTER - 1) / (BN * CLUSTER);
    return (rows + BM - 1) / BM * columns;
}

DEV void walk_start(walk *w, const problem *p)
{
    w->next = (int)blockIdx.x / CLUSTER;
    w->begin = 0;
    w->first = 0;
#if LAYOUT == ONE
    w->group = 0;
    w->rows = p->m;
    w->end = tiles_of(p, p->m);
#else
    w->group = -1;
    w->rows = 0;
    w->end = 0;
#endif
}

/* To the next tile of this block; 0 at the end. The order is the same for every role. */
DEV int walk_on(walk *w, const problem *p)
{
    const int index = w->next;
    w->next += (int)gridDim.x / CLUSTER;
#if LAYOUT != ONE
    while (index >= w->end && ++w->group < p->experts) {
#if LAYOUT == OFFSETS
        w->first = __ldg(p->groups + w->group);
        w->rows = __ldg(p->groups + w->group + 1) - w->first;
#else
        w->rows = __ldg(p->groups + w->group);
#endif
        w->begin = w->end;
        w->end += tiles_of(p, w->rows);
    }
#endif
    if (index >= w->end) {
        return 0;
    }
    const int local = index - w->begin;
    const int columns = (p->n + BN * CLUSTER - 1) / (BN * CLUSTER), row_tiles = (w->rows + BM - 1) / BM;
    const int band = local / (BAND * columns), in_band = local - band * (BAND * columns);
    const int left = row_tiles - band * BAND, high = left < BAND ? left : BAND;
    const int column = in_band / high;
    w->row = (band * BAND + in_band - column * high) * BM;
#if CLUSTER > 1
    w->column = (column * CLUSTER + (int)cluster_rank()) * BN;
#else
    w->column = column * BN;
#endif
    return 1;
}

/* Place in the ring. */
typedef struct place {
    u32 stage, parity;
} place;

DEV void place_on(place *at)
{
    if (++at->stage == STAGES) {
        at->stage = 0;
        at->parity ^= 1;
    }
}

typedef struct rings {
    u32 d, a, b, scales, full, empty, read; /* + stage * size, except d */
} rings;

DEV void load_tiles(const problem *p, const rings *ring, const tensor_map *a_map, const tensor_map *b_map)
{
    const int blocks = (p->k + 127) / 128;
    place at = {0, 1};
    walk w;
    walk_start(&w, p);
    while (walk_on(&w, p)) {
        const int a_z = LAYOUT == MASKED ? w.group : 0;
#pragma unroll 1
        for (int kb = 0; kb < blocks; kb++) {
            const u32 full = ring->full + 8 * at.stage;
            barrier_wait(ring->empty + 8 * at.stage, at.parity);
            barrier_arrive_expect(full, A_BYTES + B_BYTES);
            tensor_load_3d(ring->b + at.stage * B_BYTES, b_map, full, kb * 128, w.column, w.group, L2_EVICT_NORMAL);
#if CLUSTER > 1
            const int part = (int)cluster_rank() * (BM / CLUSTER);
            tensor_load_3d_multicast(ring->a + at.stage * A_BYTES + part * 128, a_map, full, kb * 128,
                                     w.first + w.row + part, a_z, (1 << CLUSTER) - 1, L2_EVICT_NORMAL);
#else
            tensor_load_3d(ring->a + at.stage * A_BYTES, a_map, full, kb * 128, w.first + w.row, a_z, L2_EVICT_NORMAL);
#endif
            place_on(&at);
        }
    }
}

DEV void load_scales(const problem *p, const rings *ring, u32 lane)
{
    const int blocks = (p->k + 127) / 128, last_b = (p->n - 1) / 128;
    place at = {0, 1};
    walk w;
    walk_start(&w, p);
    while (walk_on(&w, p)) {
        const int row = w.row + (int)lane, b_row = w.column / 128 + (int)lane;
        const float *a = p->scale_a + (i64)(w.first + row) * p->scale_a_row;
        const float *b = p->scale_b + (i64)b_row * p->scale_b_row + (i64)w.group * p->scale_b_group;
        if (LAYOUT == MASKED) {
            a += (i64)w.group * p->scale_a_group;
        }
#pragma unroll 1
        for (int kb = 0; kb < blocks; kb++) {
            const u32 to = ring->scales + (at.stage * SCALES + lane) * 4;
            barrier_wait(ring->read + 8 * at.stage, at.parity);
            const float *from = a + kb * p->scale_a_block;
#pragma unroll 2
            for (int j = 0; j < BM / 32; j++, from += 32 * p->scale_a_row) {
                const u32 valid = row + 32 * j < w.rows;
                copy_async_4(to + 128 * j, valid ? from : p->scale_a, valid);
            }
            if (lane < SCALES_B) {
                copy_async_4(to + BM * 4, b_row <= last_b ? b + kb : p->scale_b, b_row <= last_b);
            }
            barrier_arrive_copies(ring->full + 8 * at.stage);
            place_on(&at);
        }
    }
}

#if OUT == 2
#define OUT_BYTES 4
DEV void store_one(void *row, int column, float v)
{
    ((float *)row)[column] = v;
}
#else
#define OUT_BYTES 2
DEV u32 pack(float low, float high)
{
    return OUT == 0 ? pack_bf16(low, high) : pack_f16(low, high);
}

DEV void store_one(void *row, int column, float v)
{
    ((u16 *)row)[column] = (u16)pack(v, 0.0f);
}
#endif

/* Columns [column, column + count) that a lane holds in consecutive registers, one by one. */
DEV void store_some(void *row, int column, int n, float x, float y)
{
    if (column < n) {
        store_one(row, column, x);
    }
    if (column + 1 < n) {
        store_one(row, column + 1, y);
    }
}

/* A row of sums (`half` 0: the lane's first row, 1: the one 8 below) to d. `row` is NULL where the row is no row of d;
 * all lanes come here, since the 16-bit types are exchanged within a quad so that a lane stores 16 bytes. */
DEV void store_row(char *row, const float *sums, int half, int column, int n, u32 lane, int vector)
{
    const int pair = 2 * (int)(lane % 4);
#if OUT == 2
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        const float x = sums[4 * j + 2 * half], y = sums[4 * j + 2 * half + 1];
        const int c = column + 8 * j + pair;
        if (row != 0 && vector && c + 1 < n) {
            *(float2 *)(row + (i64)c * 4) = make_float2(x, y);
        } else if (row != 0) {
            store_some(row, c, n, x, y);
        }
    }
#else
#pragma unroll
    for (int j = 0; j < BN / 8; j += 4) {
        if (j + 4 <= BN / 8) {
            u32 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[i] = pack(sums[4 * (j + i) + 2 * half], sums[4 * (j + i) + 2 * half + 1]);
            }
            if (vector && column + 8 * j + 32 <= n) {
                /* Transpose 4 x 4 words in the quad: lane i gets the 8 columns of part j + i. */
#pragma unroll
                for (int i = 0; i < 4; i += 2) {
                    const u32 got = __shfl_xor_sync(~0u, lane & 1 ? v[i] : v[i + 1], 1);
                    v[i] = lane & 1 ? got : v[i];
                    v[i + 1] = lane & 1 ? v[i + 1] : got;
                }
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const u32 got = __shfl_xor_sync(~0u, lane & 2 ? v[i] : v[i + 2], 2);
                    v[i] = lane & 2 ? got : v[i];
                    v[i + 2] = lane & 2 ? v[i + 2] : got;
                }
                if (row != 0) {
                    *(uint4 *)(row + (i64)(column + 8 * j + 4 * pair) * 2) = make_uint4(v[0], v[1], v[2], v[3]);
                }
                continue;
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (j + i < BN / 8) {
                const float x = sums[4 * (j + i) + 2 * half], y = sums[4 * (j + i) + 2 * half + 1];
                const int c = column + 8 * (j + i) + pair;
                if (row != 0 && vector && c + 1 < n) {
                    *(u32 *)(row + (i64)c * 2) = pack(x, y);
                } else if (row != 0) {
                    store_some(row, c, n, x, y);
                }
            }
        }
    }
#endif
}

/* The sums of one product: rows `local` of the tile and 8 below it. */
DEV void store_rows(const problem *p, const walk *w, char *d, int local, const float *sums, u32 lane, int vector)
{
    const int row = w->row + local;
    char *to = d + row * p->d_row * OUT_BYTES;
    store_row(row < w->rows ? to : 0, sums, 0, w->column, p->n, lane, vector);
    store_row(row + 8 < w->rows ? to + 8 * p->d_row * OUT_BYTES : 0, sums, 1, w->column, p->n, lane, vector);
}

#if STORE
/* The same through shared memory and the copy engine, from where the stores go on while the next tile begins: boxes of
 * 64 rows x 64 columns with the 128-byte swizzle, BN / 64 of them from `at` on. */
DEV void stage_rows(u32 at, const float *sums, u32 warp, u32 lane)
{
    const u32 row = warp * 16 + lane % 16, right = lane / 16;
#pragma unroll
    for (int j = 0; j < BN / 8; j += 2) {
        const u32 chunk = (u32)(j % 8) + right;
        store_matrix(at + (u32)(j / 8) * 8192 + row * 128 + (chunk ^ (lane % 8)) * 16,
                     pack(sums[4 * j], sums[4 * j + 1]), pack(sums[4 * j + 2], sums[4 * j + 3]),
                     pack(sums[4 * j + 4], sums[4 * j + 5]), pack(sums[4 * j + 6], sums[4 * j + 7]));
    }
}
#endif

/* Scales of a k-block: the lane's rows of a, two of each product, and those of b. */
typedef struct scales {
    float a[WAVES][2], b[STEPS];
} scales;

DEV void read_scales(scales *s, u32 at, u32 local, u32 phase)
{
#pragma unroll
    for (int v = 0; v < WAVES; v++) {
        s->a[v][0] = load_shared_f32(at + (local + 64 * v) * 4);
        s->a[v][1] = load_shared_f32(at + (local + 64 * v + 8) * 4);
    }
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        s->b[i] = load_shared_f32(at + (BM + (phase + i * COLUMN_STEP) / 128) * 4);
    }
}

/* part = a b' of one k-block, left under way. */
DEV void multiply_block(float *part, u64 a, u64 b)
{
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        WGMMA_E4M3(BN, part, a + i * WGMMA_K_STEP, b + i * WGMMA_K_STEP, i);
    }
    wgmma_commit();
}

DEV void promote(float *sums, const float *part, const float *sa, const float *sb)
{
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        const float upper = sa[0] * sb[j * 8 / COLUMN_STEP], lower = sa[1] * sb[j * 8 / COLUMN_STEP];
        sums[4 * j] += upper * part[4 * j];
        sums[4 * j + 1] += upper * part[4 * j + 1];
        sums[4 * j + 2] += lower * part[4 * j + 2];
        sums[4 * j + 3] += lower * part[4 * j + 3];
    }
}

/* This warp has read the stage. */
DEV void release(u32 empty, u32 lane)
{
#if CLUSTER > 1
    if (lane < CLUSTER) {
        barrier_arrive_cluster(cluster_address(empty, lane));
    }
#else
    if (lane == 0) {
        barrier_arrive(empty);
    }
#endif
}

#define BEGIN(which)                                                                                                  \
    barrier_wait(ring->full + 8 * at.stage, at.parity);                                                               \
    read_scales(&which##_scales, ring->scales + at.stage * (SCALES * 4), local, phase);                               \
    multiply_block(which, wgmma_operand(ring->a + at.stage * A_BYTES + first * 128),                                  \
                   wgmma_operand(ring->b + at.stage * B_BYTES));                                                      \
    barrier_arrive(ring->read + 8 * at.stage);                                                                        \
    which##_stage = at.stage;                                                                                         \
    place_on(&at)
#define END(which)                                                                                                    \
    release(ring->empty + 8 * which##_stage, lane);                                                                   \
    promote(sums[0], which, which##_scales.a[0], which##_scales.b)

DEV void multiply(const problem *p, const rings *ring, const tensor_map *d_map, u32 group, u32 warp,
                  u32 lane)
{
    const int blocks = (p->k + 127) / 128;
    const u32 first = group * (BM / GROUPS);           /* the warpgroup's first row of the tile */
    const u32 local = first + warp * 16 + lane / 4;    /* the lane's */
    const int vector = (u64)p->d % 16 == 0 && p->d_row * OUT_BYTES % 16 == 0 &&
                       (LAYOUT != MASKED || p->d_group * OUT_BYTES % 16 == 0);
    float sums[WAVES][SUMS];
    place at = {0, 0};
    walk w;
    walk_start(&w, p);
    while (walk_on(&w, p)) {
        const u32 phase = (u32)w.column % 128;
#pragma unroll
        for (int v = 0; v < WAVES; v++) {
#pragma unroll
            for (int i = 0; i < SUMS; i++) {
                sums[v][i] = 0.0f;
            }
        }
#if PARTS == 2
        /* The next product is under way while one is promoted. */
        float even[SUMS], odd[SUMS];
        scales even_scales, odd_scales;
        u32 even_stage = 0, odd_stage = 0;
        int kb = 1;
        BEGIN(even);
        for (; kb + 1 < blocks; kb += 2) {
            BEGIN(odd);
            WGMMA_WAIT(1);
            END(even);
            BEGIN(even);
            WGMMA_WAIT(1);
            END(odd);
        }
        if (kb < blocks) {
            BEGIN(odd);
            WGMMA_WAIT(1);
            END(even);
            WGMMA_WAIT(0);
            END(odd);
        } else {
            WGMMA_WAIT(0);
            END(even);
        }
#else
        for (int kb = 0; kb < blocks; kb++) {
            scales s;
            barrier_wait(ring->full + 8 * at.stage, at.parity);
            read_scales(&s, ring->scales + at.stage * (SCALES * 4), local, phase);
#pragma unroll
            for (int v = 0; v < WAVES; v++) {
                float part[SUMS];
                multiply_block(part, wgmma_operand(ring->a + at.stage * A_BYTES + (first + v * 64) * 128),
                               wgmma_operand(ring->b + at.stage * B_BYTES));
                if (v == 0) {
                    barrier_arrive(ring->read + 8 * at.stage);
                }
                WGMMA_WAIT(0);
                if (v == WAVES - 1) {
                    release(ring->empty + 8 * at.stage, lane);
                }
                promote(sums[v], part, s.a[v], s.b);
            }
            place_on(&at);
        }
#endif
        char *d = (char *)p->d + (i64)w.first * p->d_row * OUT_BYTES;
        if (LAYOUT == MASKED) {
            d += (i64)w.group * p->d_group * OUT_BYTES;
        }
#if STORE
        /* Rows of another group below may not be touched: there the lanes store. */
        const int whole = LAYOUT == ONE || w.row + (int)first + BM / GROUPS <= w.rows;
        if (whole) {
            const u32 out = ring->d + first * (BN * 2);
            const u32 leader = warp == 0 && lane == 0;
            if (leader) {
                tensor_store_wait_read();
            }
            threads_sync(1 + group, 128);
            stage_rows(out, sums[0], warp, lane);
#if WAVES == 2
            stage_rows(out + 64 * BN * 2, sums[1], warp, lane);
#endif
            fence_proxy_async();
            threads_sync(1 + group, 128);
            if (leader) {
                for (int i = 0; i < WAVES * (BN / 64); i++) {
                    tensor_store_3d(d_map, out + i * 8192, w.column + i % (BN / 64) * 64,
                                    w.first + w.row + (int)first + i / (BN / 64) * 64, LAYOUT == MASKED ? w.group : 0);
                }
                tensor_store_commit();
            }
            __syncwarp();
            continue;
        }
#endif
        store_rows(p, &w, d, (int)local, sums[0], lane, vector);
#if WAVES == 2
        store_rows(p, &w, d, (int)local + 64, sums[1], lane, vector);
#endif
    }
#if STORE
    tensor_store_wait();
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_block_scaled_mm(const __grid_constant__ tensor_map a_map, const __grid_constant__ tensor_map b_map,
                       const __grid_constant__ tensor_map d_map, const float *scale_a, i64 scale_a_row,
                       i64 scale_a_block, i64 scale_a_group, const float *scale_b, i64 scale_b_row, i64 scale_b_group,
                       void *d, i64 d_row, i64 d_group, const int *groups, int m, int n, int k, int experts)
{
    extern __shared__ char shared[];
    const problem p = {scale_a, scale_b, scale_a_row, scale_a_block, scale_a_group, scale_b_row, scale_b_group,
                       d,       d_row,   d_group,     groups,        m,             n,           k,
                       experts};
    rings ring;
    ring.d = (shared_address(shared) + 1023) / 1024 * 1024;
    ring.a = ring.d + D_BYTES;
    ring.b = ring.a + STAGES * A_BYTES;
    ring.scales = ring.b + STAGES * B_BYTES;
    ring.full = ring.scales + STAGES * SCALES * 4;
    ring.empty = ring.full + STAGES * 8;
    ring.read = ring.empty + STAGES * 8;
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    if (threadIdx.x == 0) {
        tensor_map_prefetch(&a_map);
        tensor_map_prefetch(&b_map);
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(ring.full + 8 * i, 1 + 32);
            barrier_init(ring.empty + 8 * i, 4 * GROUPS * CLUSTER);
            barrier_init(ring.read + 8 * i, 128 * GROUPS);
        }
        barrier_init_fence();
    }
    __syncthreads();
#if CLUSTER > 1
    cluster_arrive_relaxed();
    cluster_wait();
#endif
    grid_wait();
    grid_release();

    if (warp < 4) {
#if GROUPS == 2
        REGISTERS_GIVE(40);
#else
        REGISTERS_GIVE(24);
#endif
        if (warp == 0 && lane == 0) {
            load_tiles(&p, &ring, &a_map, &b_map);
        } else if (warp == 1) {
            load_scales(&p, &ring, lane);
        }
    } else {
#if GROUPS == 2
        REGISTERS_TAKE(232);
#else
        REGISTERS_TAKE(160);
#endif
        multiply(&p, &ring, &d_map, (warp - 4) / 4, warp % 4, lane);
    }
#if CLUSTER > 1
    /* Nobody leaves while another may still fill its ring or arrive at its barriers. */
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();
#endif
}
