/* scaled_mm for few rows, on Hopper (sm_90a): bound by reading the weights. FP8 and INT8 with the four epilogues, as
 * scaled_mm.cu has them.
 *
 * The operands change places, as in block_scaled_mm_skinny.cu: rows of b are the left operand of the tensor core and
 * ROWS rows of a its columns. A block takes one strip of 64 GROUPS rows of b and one part of K; a cluster of SPLIT
 * blocks adds the parts through distributed shared memory, always in the order of K. INT8 sums stay in the tensor core;
 * FP8 sums of a k-block are made there and then added in f32: it keeps fewer bits than f32 (docs/operators.md).
 *
 * Host contract
 *   Parameters
 *     ROWS      rows of a, at least M: a multiple of 8 up to 128
 *     GROUPS    warpgroups of a block, 64 rows of b each: 1 to 4
 *     SPLIT     parts of K, at most 8, the cluster size
 *     UNROLL    k-blocks of a ring stage, 1 or 2, multiplied together; STAGES stages, at least 2
 *     OCCUPANCY blocks a multiprocessor should hold
 *     INT8, OUT, BIAS, AZP   as in scaled_mm.cu
 *   Tensor maps a and b as there, with box {128, ROWS, 1} for a and {128, 64 * GROUPS, 1} for b
 *   Arguments as there, after the two maps
 *   Launch: block 128 * GROUPS + 64; cluster {SPLIT, 1, 1}; grid {ceil(N / (64 * GROUPS)) * SPLIT, 1, 1};
 *     dynamic shared memory = STAGES * (UNROLL * 128 * (64 * GROUPS + ROWS) + 16) + 8 + 8 * ROWS + 12 * 64 * GROUPS,
 *     where the stages hold 4 * ROWS * (64 * GROUPS + 4) bytes
 *   Limits: K >= 1, N >= 1, M <= ROWS. */
#include "ask.h"

#define STRIP (64 * GROUPS)
#define SUMS (ROWS / 2)
#define CONSUMERS (128 * GROUPS)
#define THREADS (CONSUMERS + 64)
#define B_BYTES (STRIP * 128)
#define A_BYTES (ROWS * 128)
#define STAGE_BYTES (UNROLL * (A_BYTES + B_BYTES))
#define PITCH (STRIP + 4) /* sums of a row of a, left where the ring was */
/* Of more than 32 rows the L2 cache is asked for a, weights before it are bounded, and the next kernel begins when a
 * ring of k-blocks is left to copy: as measured for block_scaled_mm_skinny.cu. */
#define ASKS (ROWS > 32)
#define EARLY_STAGES ((SPLIT == 1 ? 2 : 1) * EARLY_BYTES / (OCCUPANCY * UNROLL * B_BYTES))
#define EARLY (ASKS && EARLY_STAGES < STAGES ? EARLY_STAGES : STAGES)
/* What the epilogue needs: scale_a[ROWS], azp[ROWS], scale_b[STRIP], bias[STRIP], azp_adj[STRIP]. */
#define AZP_AT (4 * ROWS)
#define SCALE_B (8 * ROWS)
#define BIAS_AT (SCALE_B + 4 * STRIP)
#define ADJ_AT (SCALE_B + 8 * STRIP)
#if ROWS % 8 != 0 || ROWS > 128 || SPLIT > 8 || UNROLL > 2 || 4 * ROWS * PITCH > STAGES * STAGE_BYTES
#error "scaled_mm_few: no such strip"
#endif

#if INT8
typedef int sum;
#define MULTIPLY(d, a, b, accumulate) WGMMA_S8S8(ROWS, d, a, b, accumulate)
#define BITS(v) __int_as_float(v)
#else
typedef float sum;
#define MULTIPLY(d, a, b, accumulate) WGMMA_E4M3(ROWS, d, a, b, accumulate)
#define BITS(v) (v)
#endif

typedef struct problem {
    const float *scale_a, *scale_b;
    i64 scale_a_step, scale_b_step;
    const void *bias;
    const int *adjust, *azp;
    i64 azp_step;
    char *d;
    i64 d_row;
    int m, n;
    int begin, count, turn, column; /* k-blocks of this part, the one to start with, the first row of b */
} problem;

typedef struct rings {
    u32 tiles, full, empty, vectors, filled; /* + stage * size, but the vectors and that they are there */
} rings;

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

/* The i-th k-block of this block's walk: strips start at different ones. */
DEV int block_at(const problem *p, int i)
{
    const int kb = i + p->turn;
    return p->begin + (kb < p->count ? kb : kb - p->count);
}

DEV void load_weights(const problem *p, const rings *r, const tensor_map *b_map, u32 stage, int i)
{
    const int left = p->count - i, count = left < UNROLL ? left : UNROLL;
    const u32 full = r->full + 8 * stage;
    barrier_arrive_expect(full, (u32)count * (A_BYTES + B_BYTES));
    for (int u = 0; u < count; u++) {
        tensor_load_3d(r->tiles + stage * STAGE_BYTES + u * B_BYTES, b_map, full, block_at(p, i + u) * 128, p->column,
                       0, L2_EVICT_FIRST);
    }
}

/* One thread. `early` stages have their weights under way. */
DEV void load_tiles(const problem *p, const rings *r, const tensor_map *a_map, const tensor_map *b_map, int early)
{
    const int left = p->count > STAGES * UNROLL ? p->count - STAGES * UNROLL : 0;
    place at = {0, 1};
    for (int i = 0; i < p->count; i += UNROLL, early--) {
        if (early <= 0) {
            barrier_wait(r->empty + 8 * at.stage, at.parity);
            load_weights(p, r, b_map, at.stage, i);
        }
        for (int u = 0; u < UNROLL && i + u < p->count; u++) {
            tensor_load_3d(r->tiles + at.stage * STAGE_BYTES + UNROLL * B_BYTES + u * A_BYTES, a_map,
                           r->full + 8 * at.stage, block_at(p, i + u) * 128, 0, 0, L2_EVICT_LAST);
        }
        place_on(&at);
        if (ASKS && i <= left && left < i + UNROLL) {
            grid_release();
        }
    }
}

DEV float load_bias(const problem *p, int n)
{
#if BIAS == 1
    return __ldg((const float *)p->bias + n);
#elif BIAS > 1
    const u16 bits = __ldg((const u16 *)p->bias + n);
    return BIAS == 2 ? widen_f16(bits) : __uint_as_float((u32)bits << 16);
#else
    return 0.0f;
#endif
}

/* One warp. */
DEV void load_vectors(const problem *p, const rings *r, u32 lane)
{
#pragma unroll 4
    for (u32 i = lane; i < STRIP; i += 32) {
        const int n = p->column + (int)i, valid = n < p->n;
        store_shared_f32(r->vectors + SCALE_B + 4 * i, valid ? __ldg(p->scale_b + n * p->scale_b_step) : 0.0f);
#if BIAS
        store_shared_f32(r->vectors + BIAS_AT + 4 * i, valid ? load_bias(p, n) : 0.0f);
#endif
#if AZP
        store_shared_i32(r->vectors + ADJ_AT + 4 * i, valid ? __ldg(p->adjust + n) : 0);
#endif
    }
    for (u32 i = lane; i < ROWS; i += 32) {
        const int valid = (int)i < p->m;
        store_shared_f32(r->vectors + 4 * i, valid ? __ldg(p->scale_a + i * p->scale_a_step) : 0.0f);
#if AZP == 2
        store_shared_i32(r->vectors + AZP_AT + 4 * i, valid ? __ldg(p->azp + i * p->azp_step) : 0);
#endif
    }
    barrier_arrive(r->filled);
}

#define OPERAND_B(u) wgmma_operand(tiles + (u)*B_BYTES + group * 8192)
#define OPERAND_A(u) wgmma_operand(tiles + UNROLL * B_BYTES + (u)*A_BYTES)

DEV void release(const rings *r, u32 stage, u32 lane)
{
    if (lane == 0) {
        barrier_arrive(r->empty + 8 * stage);
    }
}

#if !INT8
/* A k-block's product is under way, from nothing. */
DEV void begin_product(sum *to, u32 tiles, u32 group, int u)
{
    MULTIPLY(to, OPERAND_B(u), OPERAND_A(u), 0);
    wgmma_commit();
}
#endif

/* This block's part of K: sums of 64 rows of b by all rows of a. */
DEV void multiply(const problem *p, const rings *r, sum *sums, u32 group, u32 lane)
{
    place at = {0, 0};
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        sums[i] = 0;
    }
#if INT8
    /* A stage's products are under way while the next one's operands are waited for. */
    u32 before = STAGES;
#pragma unroll 1
    for (int i = 0; i < p->count; i += UNROLL) {
        const u32 tiles = r->tiles + at.stage * STAGE_BYTES;
        barrier_wait(r->full + 8 * at.stage, at.parity);
        wgmma_fence();
        MULTIPLY(sums, OPERAND_B(0), OPERAND_A(0), 1);
#if UNROLL == 2
        if (i + 1 < p->count) {
            MULTIPLY(sums, OPERAND_B(1), OPERAND_A(1), 1);
        }
#endif
        wgmma_commit();
        WGMMA_WAIT(1);
        if (before < STAGES) {
            release(r, before, lane);
        }
        before = at.stage;
        place_on(&at);
    }
    WGMMA_WAIT(0);
#else
    int i = 0;
#if UNROLL == 2
#pragma unroll 1
    for (; i + 1 < p->count; i += 2) {
        sum even[SUMS], odd[SUMS];
        const u32 tiles = r->tiles + at.stage * STAGE_BYTES;
        barrier_wait(r->full + 8 * at.stage, at.parity);
        wgmma_fence();
        begin_product(even, tiles, group, 0);
        begin_product(odd, tiles, group, 1);
        WGMMA_WAIT(1);
#pragma unroll
        for (int j = 0; j < SUMS; j++) {
            sums[j] += even[j];
        }
        WGMMA_WAIT(0);
        release(r, at.stage, lane);
#pragma unroll
        for (int j = 0; j < SUMS; j++) {
            sums[j] += odd[j];
        }
        place_on(&at);
    }
#endif
#pragma unroll 1
    for (; i < p->count; i++) {
        sum part[SUMS];
        const u32 tiles = r->tiles + at.stage * STAGE_BYTES;
        barrier_wait(r->full + 8 * at.stage, at.parity);
        wgmma_fence();
        begin_product(part, tiles, group, 0);
        WGMMA_WAIT(0);
        release(r, at.stage, lane);
#pragma unroll
        for (int j = 0; j < SUMS; j++) {
            sums[j] += part[j];
        }
        place_on(&at);
    }
#endif
}

/* As [ROWS][PITCH]: rows of a by rows of b. */
DEV void store_sums(u32 to, const sum *sums)
{
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++) {
        store_shared_f32(to + (8 * j * PITCH) * 4, BITS(sums[4 * j]));
        store_shared_f32(to + ((8 * j + 1) * PITCH) * 4, BITS(sums[4 * j + 1]));
        store_shared_f32(to + (8 * j * PITCH + 8) * 4, BITS(sums[4 * j + 2]));
        store_shared_f32(to + ((8 * j + 1) * PITCH + 8) * 4, BITS(sums[4 * j + 3]));
    }
}

DEV float add(float a, float b)
{
#if INT8
    return __int_as_float(__float_as_int(a) + __float_as_int(b));
#else
    return a + b;
#endif
}

/* A sum's bits to its result; `column` of the strip. */
DEV float finished(const rings *r, float bits, int row, int column)
{
    const float sa = load_shared_f32(r->vectors + 4 * row), sb = load_shared_f32(r->vectors + SCALE_B + 4 * column);
#if INT8
    u32 v = __float_as_uint(bits);
#if AZP
    const u32 zero = (u32)load_shared_i32(r->vectors + ADJ_AT + 4 * column);
    v -= AZP == 2 ? (u32)load_shared_i32(r->vectors + AZP_AT + 4 * row) * zero : zero;
#endif
    const float t = (float)(int)v * sb;
#else
    const float t = bits * sb;
#endif
#if BIAS
    return __fmaf_rn(sa, t, load_shared_f32(r->vectors + BIAS_AT + 4 * column));
#else
    return t * sa;
#endif
}

#if OUT == 2
#define OUT_BYTES 4
DEV void store_four(char *to, const float *v)
{
    *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
}
DEV void store_one(char *to, float v)
{
    *(float *)to = v;
}
#else
#define OUT_BYTES 2
DEV u32 pack(float low, float high)
{
    return OUT == 0 ? pack_bf16(low, high) : pack_f16(low, high);
}
DEV void store_four(char *to, const float *v)
{
    *(uint2 *)to = make_uint2(pack(v[0], v[1]), pack(v[2], v[3]));
}
DEV void store_one(char *to, float v)
{
    *(u16 *)to = (u16)pack(v, 0.0f);
}
#endif

/* The blocks of the cluster share the outputs of the strip; each is the sum of the parts in the order of K. */
DEV void finish(const problem *p, const rings *r, u32 rank, u32 thread)
{
    const int vector = (u64)p->d % (4 * OUT_BYTES) == 0 && p->d_row % 4 == 0;
    for (int i = (int)(rank * CONSUMERS + thread); i < p->m * (STRIP / 4); i += SPLIT * CONSUMERS) {
        const int row = i / (STRIP / 4), column = i % (STRIP / 4) * 4, n = p->column + column;
        const u32 from = r->tiles + (row * PITCH + column) * 4;
        float4 part[SPLIT];
#pragma unroll
        for (u32 s = 0; s < SPLIT; s++) {
            part[s] = SPLIT == 1 ? load_shared_f32x4(from) : load_cluster_f32x4(cluster_address(from, s));
        }
        float v[4] = {part[0].x, part[0].y, part[0].z, part[0].w};
#pragma unroll
        for (u32 s = 1; s < SPLIT; s++) {
            v[0] = add(v[0], part[s].x);
            v[1] = add(v[1], part[s].y);
            v[2] = add(v[2], part[s].z);
            v[3] = add(v[3], part[s].w);
        }
#pragma unroll
        for (int c = 0; c < 4; c++) {
            v[c] = finished(r, v[c], row, column + c);
        }
        char *to = p->d + (row * p->d_row + n) * OUT_BYTES;
        if (vector && n + 3 < p->n) {
            store_four(to, v);
        } else {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                if (n + c < p->n) {
                    store_one(to + c * OUT_BYTES, v[c]);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, OCCUPANCY)
    qn_scaled_mm_few(const __grid_constant__ tensor_map a_map, const __grid_constant__ tensor_map b_map,
                     const float *scale_a, i64 scale_a_step, const float *scale_b, i64 scale_b_step, const void *bias,
                     const int *adjust, const int *azp, i64 azp_step, char *d, i64 d_row, int m, int n, int k,
                     int constant)
{
    extern __shared__ __align__(1024) char shared[];
    rings r;
    r.tiles = shared_address(shared);
    r.full = r.tiles + STAGES * STAGE_BYTES;
    r.empty = r.full + STAGES * 8;
    r.filled = r.empty + STAGES * 8;
    r.vectors = r.filled + 8;
    const u32 warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
    const u32 rank = SPLIT > 1 ? cluster_rank() : 0;
    const int blocks = (k + 127) / 128, strip = (int)(blockIdx.x / SPLIT);
    problem p = {scale_a, scale_b, scale_a_step, scale_b_step, bias, adjust, azp, azp_step, d, d_row, m, n, 0, 0, 0, 0};
    p.column = strip * STRIP;
    p.begin = (int)((u32)blocks * rank / SPLIT);
    p.count = (int)((u32)blocks * (rank + 1) / SPLIT) - p.begin;
    p.turn = p.count > 0 ? strip % p.count : 0;

    int early = 0;
    if (!ASKS) {
        grid_release();
    }
    if (threadIdx.x == CONSUMERS) {
        tensor_map_prefetch(&b_map);
        tensor_map_prefetch(&a_map);
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(r.full + 8 * i, 1);
            barrier_init(r.empty + 8 * i, 4 * GROUPS);
        }
        barrier_init(r.filled, 32);
        barrier_init_fence();
        if (ASKS) {
            ask_for_rows(&a_map, blocks);
        }
        for (; constant && early < EARLY && early * UNROLL < p.count; early++) {
            load_weights(&p, &r, &b_map, (u32)early, early * UNROLL);
        }
    }
    grid_wait();
    __syncthreads(); /* the barriers are there */

    if (warp >= CONSUMERS / 32) {
        if (warp > CONSUMERS / 32) {
            load_vectors(&p, &r, lane);
        } else if (lane == 0) {
            load_tiles(&p, &r, &a_map, &b_map, early);
        }
#if SPLIT > 1
        __syncwarp();
        cluster_arrive_relaxed();
        cluster_wait();
#endif
    } else {
        const u32 group = warp / 4;
        sum sums[SUMS];
        multiply(&p, &r, sums, group, lane);
        threads_sync(1, CONSUMERS); /* all have multiplied: the ring is free */
        store_sums(r.tiles + (2 * (lane % 4) * PITCH + group * 64 + warp % 4 * 16 + lane / 4) * 4, sums);
        barrier_wait(r.filled, 0);
#if SPLIT > 1
        cluster_arrive();
        cluster_wait();
#else
        threads_sync(1, CONSUMERS);
#endif
        finish(&p, &r, rank, threadIdx.x);
    }
#if SPLIT > 1
    /* Nobody leaves while another may still read its sums. */
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();
#endif
}
