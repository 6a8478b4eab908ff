/* block_scaled_mm and grouped_block_scaled_mm for few rows, on Hopper (sm_90a): bound by reading the weights.
 *
 * The operands change places: rows of b are the left operand of the tensor core and ROWS rows of a its
 * columns, so no work is spent on rows that are not there. Every block takes one strip of 64 GROUPS rows of b and
 * one part of K; a cluster holds the SPLIT parts of PAIR strips. It adds the parts through distributed shared
 * memory, always in the order of K. No workspace, no atomics, two runs are equal bit for bit.
 * What counts is bytes in flight: all blocks should be resident at once (OCCUPANCY a multiprocessor), and each
 * fills its whole ring before anything else; weights that are constant even before the kernel ahead of it has ended.
 *
 * Host contract
 *   Parameters
 *     ROWS      rows of a in one pass: a multiple of 8 up to 128, at least min(M, 128) (more rows take more passes)
 *     GROUPS    warpgroups of a block, 64 rows of b each: 1 to 4 with TEAMS (wide strips read a fewer times)
 *     PAIR      strips of a cluster, that share the reading of a: 1, or 2 with ROWS a multiple of 16; 1 for groups
 *     SPLIT     parts of K; PAIR * SPLIT at most 8, the cluster size; 1 for groups
 *     UNROLL    k-blocks of a ring stage; STAGES stages, at least 2
 *     PARTS     products in flight in a warpgroup: 1, or 2, so that the sums of one are added while the next is formed
 *     TEAMS     of GROUPS warpgroups, which take the stages of the ring in turn; STAGES is a multiple, so that
 *               a stage is always the same team's and its barriers' phases are seen in order. A warpgroup's k-blocks
 *               wait for each other; those of another team are multiplied meanwhile
 *     OCCUPANCY blocks a multiprocessor should hold: 1 or 2 (2 needs ROWS <= 64)
 *     STORE     1: results leave through the copy engine: one matrix, ROWS 64 or 128, PAIR and SPLIT 1, OUT 0 or 1, d
 *               as its map asks; 0: lanes store, d of any alignment
 *     OUT, LAYOUT  as in block_scaled_mm.cu
 *   Tensor maps as there, with box {128, ROWS / PAIR, 1} for a and {128, 64 * GROUPS, 1} for b; d: any without STORE
 *   Arguments as there (constant: for one matrix), and high: groups of more rows are left out too; tail 0 (groups):
 *     the kernel of their tiles is launched before, and lets this one begin when what both read is there
 *   Launch
 *     block 128 * GROUPS * TEAMS + 64, or + 128 for one matrix with more than 32 ROWS, OCCUPANCY 1 and at least
 *     3 TEAMS stages; cluster {PAIR * SPLIT, 1, 1},
 *     grid {ceil(N / (64 * GROUPS * PAIR)) * PAIR * SPLIT, 1, 1}; for groups any, OCCUPANCY * multiprocessors
 *     dynamic shared memory = 8 + STAGES * (UNROLL * (8192 * GROUPS + 128 * ROWS + 4 * (ROWS + 4)) + 24),
 *     at most 232448 / OCCUPANCY - 512; for groups 4 * ROWS * (64 * GROUPS + 4) more,
 *     times TEAMS - 1 where there are more than two; without groups those sums fit the stages
 *   Limits: K >= 1, N >= 1.
 *   Choice: ROWS = 8, 16, 32, 64 or 128, the least not below M. No SPLIT where a quarter of the strips fills the card,
 *   else the SPLIT that does with at least 8 k-blocks a part; UNROLL 2, so that 256 bytes of a row of b come together;
 *   with constant weights two blocks a multiprocessor, so that the next kernel's fill their rings while this one's
 *   multiply. More than 32 rows take tiles, but up to 64 of a short K. Groups: the width whose strips fill the card
 *   best. Measured: src/backend/cuda/tiles.c, run_block_scaled_mm.c and data/tuned-cuts.txt. */
#include "ask.h"
#include "groups.h"

#define ONE 0
#define OFFSETS 1
#define MASKED 2

#define STRIP (64 * GROUPS)
#define SUMS (ROWS / 2)
#define TEAM (128 * GROUPS) /* threads */
#define CONSUMERS (TEAM * TEAMS)
#define CLUSTER (PAIR * SPLIT)
/* Warps that load scales: one by itself would take as long for the many rows of a k-block as its product does. One of
 * three sees every third stage of the ring alone: the ring is so long that a stage which comes twice before it looks
 * again has been read the first time, whichever team reads it. */
#define SCALERS (LAYOUT == ONE && ROWS > 32 && OCCUPANCY == 1 && STAGES >= 3 * TEAMS ? 3 : 1)
#define THREADS (CONSUMERS + 32 + 32 * SCALERS)
#define B_BYTES (STRIP * 128)
#define A_BYTES (ROWS * 128)
/* Of more than 32 rows the L2 cache is asked for a, and only so many stages of weights go before it: as measured, of
 * blocks by themselves twice as many as of clusters. The next kernel's blocks come when a ring of k-blocks is left to
 * be copied: at once they would fill their rings while this one wants all that memory gives, and have nothing under way
 * when it ends. */
#define ASKS (LAYOUT == ONE && ROWS > 32)
#define EARLY_STAGES ((SPLIT == 1 ? 2 : 1) * EARLY_BYTES / (OCCUPANCY * UNROLL * B_BYTES))
#define EARLY (ASKS && EARLY_STAGES < STAGES ? EARLY_STAGES : STAGES)
#define ASKED (EARLY_BYTES / (OCCUPANCY * B_BYTES)) /* k-blocks of a group's first strip */
#define SCALES (ROWS + 4)         /* floats: one per row of a, then those of b */
#define SCALES_B ((STRIP + 64 + 127) / 128)
#define STAGE_BYTES (UNROLL * (A_BYTES + B_BYTES))
#define PITCH (STRIP + 4)      /* floats of a row of partial sums */
#define PARTIAL (ROWS * PITCH * 4)
#define PARTIALS (TEAMS > 2 ? TEAMS - 1 : 1) /* the first team adds its sums to the others' */
/* Sums on their way out lie where the ring was; for groups apart, so that the next strip's tiles come meanwhile. */
#define SUMS_BYTES (LAYOUT == 0 ? 0 : PARTIALS * PARTIAL)
#if (LAYOUT != 0 && CLUSTER > 1) || ROWS % (8 * PAIR) != 0 || ROWS > 128 ||                                          \
    PARTIALS * PARTIAL > STAGES * STAGE_BYTES || STAGES % TEAMS != 0 ||                                              \
    (STORE && (LAYOUT != 0 || CLUSTER > 1 || OUT == 2 || ROWS % 64 != 0 ||                                           \
               (TEAMS > 1 ? PARTIALS * PARTIAL : 0) > (STAGES - ROWS / 64) * STAGE_BYTES))
#error "block_scaled_mm_skinny: no such tile"
#endif

typedef struct problem {
    const float *scale_a, *scale_b;   /* of the group */
    i64 scale_a_row, scale_a_block, scale_b_row;
    char *d;                          /* of the group */
    i64 d_row;
    int first, rows, n;               /* rows of a and d */
    int begin, count, turn;           /* k-blocks of this part, and the one to start with */
    int column, group, a_z;
    u32 part, pair, peers;                 /* of K; which of those that share a's rows, a mask of them */
} problem;

#if LAYOUT != ONE
/* A block's walk over the strips of the groups that have rows, low < rows <= high. */
typedef struct walk {
    int next, begin, end;
    int group, first, rows, strip;
} walk;

DEV walk walk_start(void)
{
    const walk w = {(int)blockIdx.x, 0, 0, -1, 0, 0, 0};
    return w;
}

DEV int walk_on(walk *w, const int *groups, int experts, int n, int low, int high)
{
    while (w->next >= w->end && ++w->group < experts) {
        w->first = LAYOUT == OFFSETS ? __ldg(groups + w->group) : 0;
        w->rows = LAYOUT == OFFSETS ? __ldg(groups + w->group + 1) - w->first : __ldg(groups + w->group);
        w->begin = w->end;
        w->end += w->rows > low && w->rows <= high ? (n + STRIP - 1) / STRIP : 0;
    }
    w->strip = w->next - w->begin;
    w->next += (int)gridDim.x;
    return w->group < experts;
}
#endif

/* The i-th k-block of a block's walk. Strips start at different ones, so that not all ask for the same few
 * lines of a, which lie in few slices of the L2, at the same time. */
DEV int block_at(const problem *p, int i)
{
    const int kb = i + p->turn;
    return p->begin + (kb < p->count ? kb : kb - p->count);
}

typedef struct place {
    u32 stage, parity;
} place;

/* By at most STAGES. */
DEV void place_on(place *at, u32 stages)
{
    at->stage += stages;
    if (at->stage >= STAGES) {
        at->stage -= STAGES;
        at->parity ^= 1;
    }
}

/* By any number. */
DEV void place_past(place *at, u32 stages)
{
    stages += at->stage;
    at->stage = stages % STAGES;
    at->parity ^= stages / STAGES & 1;
}

typedef struct rings {
    u32 tiles, sums, scales, full, empty, read, finished;
} rings;

DEV void load_weights(const problem *p, const rings *ring, const tensor_map *b_map, u32 stage, int i)
{
    const int left = p->count - i, count = left < UNROLL ? left : UNROLL;
    const u32 full = ring->full + 8 * stage;
    barrier_arrive_expect(full, (u32)count * (A_BYTES + B_BYTES));
    for (int u = 0; u < count; u++) {
        tensor_load_3d(ring->tiles + stage * STAGE_BYTES + u * B_BYTES, b_map, full, block_at(p, i + u) * 128,
                       p->column, p->group, L2_EVICT_FIRST);
    }
}

/* One thread. `early` stages have their weights under way. */
DEV void load_tiles(const problem *p, const rings *ring, const tensor_map *a_map, const tensor_map *b_map, place *at,
                    int m, int early)
{
    const int left = p->count > STAGES * UNROLL ? p->count - STAGES * UNROLL : 0;
    for (int i = 0; i < p->count; i += UNROLL, early--) {
        const u32 full = ring->full + 8 * at->stage;
        if (early <= 0) {
            barrier_wait(ring->empty + 8 * at->stage, at->parity);
            load_weights(p, ring, b_map, at->stage, i);
        }
        for (int u = 0; u < UNROLL && i + u < p->count; u++) {
            const int x = block_at(p, i + u) * 128;
            const u32 to = ring->tiles + at->stage * STAGE_BYTES + UNROLL * B_BYTES + u * A_BYTES;
#if PAIR > 1
            const u32 part = p->pair * (ROWS / PAIR);
            tensor_load_3d_multicast(to + part * 128, a_map, full, x, p->first + m + (int)part, p->a_z,
                                     (u16)p->peers, L2_EVICT_LAST);
#else
            tensor_load_3d(to, a_map, full, x, p->first + m, p->a_z, L2_EVICT_LAST);
#endif
        }
        place_on(at, 1);
        if (ASKS && i <= left && left < i + UNROLL) {
            grid_release();
        }
    }
}

/* One warp of SCALERS, which take the stages in turn. */
DEV void load_scales(const problem *p, const rings *ring, place *at, int m, u32 scaler, u32 lane)
{
    place own = *at;
    const int b_row = p->column / 128 + (int)lane;
    const u32 b_valid = lane < SCALES_B && b_row * 128 < p->n;
    const float *a = p->scale_a + (m + (i64)lane) * p->scale_a_row;
    const float *b = b_valid ? p->scale_b + b_row * p->scale_b_row : p->scale_b;
    place_past(&own, scaler);
    for (int i = (int)scaler * UNROLL; i < p->count; i += SCALERS * UNROLL) {
        barrier_wait(ring->read + 8 * own.stage, own.parity);
        for (int u = 0; u < UNROLL && i + u < p->count; u++) {
            const int kb = block_at(p, i + u);
            const u32 to = ring->scales + (own.stage * UNROLL + u) * (SCALES * 4) + lane * 4;
            const float *from = a + kb * p->scale_a_block;
#pragma unroll
            for (int j = 0; j < (ROWS + 31) / 32; j++) {
                if (32 * j + (int)lane < ROWS) {
                    const u32 valid = m + 32 * j + (int)lane < p->rows;
                    copy_async_4(to + 128 * j, valid ? from : p->scale_a, valid);
                    from += 32 * p->scale_a_row;
                }
            }
            if (lane < SCALES_B) {
                copy_async_4(to + ROWS * 4, b + (b_valid ? kb : 0), b_valid);
            }
        }
        barrier_arrive_copies(ring->full + 8 * own.stage);
        place_past(&own, SCALERS);
    }
    place_past(at, (u32)(p->count + UNROLL - 1) / UNROLL);
}

/* Where a warpgroup stands in the ring: a stage, and a k-block of it. */
typedef struct cursor {
    place at;
    int block;
} cursor;

DEV void cursor_on(cursor *c, int last)
{
    if (++c->block == UNROLL || last) {
        c->block = 0;
        place_on(&c->at, TEAMS);
    }
}

/* part = the next k-block's product, left under way. The address is the same in all lanes, which the compiler cannot
 * see: so the descriptors stay in uniform registers, and its steps follow each other at once. (Measured: wider strips
 * and longer stages lose by it.) */
DEV void begin_product(const rings *ring, cursor *c, int last, float *part, u32 group)
{
    const u32 at = ring->tiles + c->at.stage * STAGE_BYTES;
    const u32 tiles = GROUPS * UNROLL == 1 ? __shfl_sync(~0u, at, 0) : at;
    barrier_wait(ring->full + 8 * c->at.stage, c->at.parity);
    const u64 b = wgmma_operand(tiles + (u32)c->block * B_BYTES + group * (64 * 128));
    const u64 a = wgmma_operand(tiles + UNROLL * B_BYTES + (u32)c->block * A_BYTES);
    wgmma_fence();
    WGMMA_E4M3(ROWS, part, b, a, 0);
    wgmma_commit();
    cursor_on(c, last);
}

DEV u32 scales_at(const rings *ring, const cursor *c)
{
    return ring->scales + (c->at.stage * UNROLL + (u32)c->block) * (SCALES * 4);
}

/* This warp has read the tiles of the stage of that barrier. */
DEV void release(const problem *p, u32 empty, u32 lane)
{
#if PAIR > 1
    if (lane < PAIR) {
        barrier_arrive_cluster(cluster_address(empty, p->part * PAIR + lane));
    }
#else
    if (lane == 0) {
        barrier_arrive(empty);
    }
#endif
}

/* Gives the stage back after its last product, and adds the finished one, scaled. */
DEV void end_product(const problem *p, const rings *ring, cursor *c, int last, float *sums, const float *part,
                     float sb, u32 lane)
{
    const u32 scales = scales_at(ring, c);
    const int done = last || c->block == UNROLL - 1;
    if (done) {
        release(p, ring->empty + 8 * c->at.stage, lane);
    }
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++) {
        const float2 sa = load_shared_f32x2(scales + (8 * j + 2 * (lane % 4)) * 4);
        const float left = sa.x * sb, right = sa.y * sb;
        sums[4 * j] = __fmaf_rn(left, part[4 * j], sums[4 * j]);
        sums[4 * j + 1] = __fmaf_rn(right, part[4 * j + 1], sums[4 * j + 1]);
        sums[4 * j + 2] = __fmaf_rn(left, part[4 * j + 2], sums[4 * j + 2]);
        sums[4 * j + 3] = __fmaf_rn(right, part[4 * j + 3], sums[4 * j + 3]);
    }
    if (done) {
        barrier_arrive(ring->read + 8 * c->at.stage);
    }
    cursor_on(c, last);
}

/* Of a block's k-blocks those that a team multiplies: every TEAMS-th stage of the ring. */
DEV int blocks_of_team(int count, int team)
{
    const int stages = (count + UNROLL - 1) / UNROLL, own = (stages - team + TEAMS - 1) / TEAMS;
    return own * UNROLL - (own > 0 && (stages - 1) % TEAMS == team ? stages * UNROLL - count : 0);
}

/* Where a lane's sums are of a warpgroup's part of the strip. */
DEV u32 sums_at(const rings *ring, u32 group, u32 warp, u32 lane)
{
    return ring->sums + (2 * (lane % 4) * PITCH + group * 64 + warp * 16 + lane / 4) * 4;
}

DEV void store_sums(u32 to, const float *sums)
{
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++) {
        store_shared_f32(to + (8 * j * PITCH) * 4, sums[4 * j]);
        store_shared_f32(to + ((8 * j + 1) * PITCH) * 4, sums[4 * j + 1]);
        store_shared_f32(to + (8 * j * PITCH + 8) * 4, sums[4 * j + 2]);
        store_shared_f32(to + ((8 * j + 1) * PITCH + 8) * 4, sums[4 * j + 3]);
    }
}

#if OUT == 2
#define OUT_BYTES 4
DEV void store_four(char *to, float4 v)
{
    *(float4 *)to = v;
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
DEV void store_four(char *to, float4 v)
{
    *(uint2 *)to = make_uint2(pack(v.x, v.y), pack(v.z, v.w));
}
DEV void store_one(char *to, float v)
{
    *(u16 *)to = (u16)pack(v, 0.0f);
}
#endif

#if TEAMS > 1
DEV void add_sums(u32 from, float *sums)
{
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++) {
        sums[4 * j] += load_shared_f32(from + (8 * j * PITCH) * 4);
        sums[4 * j + 1] += load_shared_f32(from + ((8 * j + 1) * PITCH) * 4);
        sums[4 * j + 2] += load_shared_f32(from + (8 * j * PITCH + 8) * 4);
        sums[4 * j + 3] += load_shared_f32(from + ((8 * j + 1) * PITCH + 8) * 4);
    }
}
#endif

#if STORE
/* A warpgroup's results to d, by boxes of 64 rows of a x its own rows of b. Each lies, with the 128-byte swizzle, where
 * a tile of these rows of b was: no other warpgroup reads there, so none is waited for. The last stages hold no team's
 * sums. */
DEV void store_boxes(const problem *p, const rings *ring, const tensor_map *d_map, int m, const float *sums, u32 group,
                     u32 warp, u32 lane)
{
    const u32 staging = ring->tiles + (STAGES - ROWS / 64) * STAGE_BYTES + group * 8192;
    const u32 row = lane / 16 * 8 + lane % 8, chunk = (2 * warp + lane / 8 % 2) ^ (lane % 8);
    threads_sync(2 + group, 128); /* all have multiplied */
#pragma unroll
    for (int j = 0; j < ROWS / 8; j += 2) {
        store_matrix_turned(staging + (u32)(j / 8) * STAGE_BYTES + ((u32)(j % 8) * 8 + row) * 128 + chunk * 16,
                            pack(sums[4 * j], sums[4 * j + 1]), pack(sums[4 * j + 2], sums[4 * j + 3]),
                            pack(sums[4 * j + 4], sums[4 * j + 5]), pack(sums[4 * j + 6], sums[4 * j + 7]));
    }
    fence_proxy_async();
    threads_sync(2 + group, 128);
    if (warp == 0 && lane == 0) {
        for (u32 i = 0; i < ROWS / 64; i++) {
            tensor_store_3d(d_map, staging + i * STAGE_BYTES, p->column + (int)group * 64, m + (int)i * 64, 0, 0);
        }
        tensor_store_commit();
        tensor_store_wait_read();
    }
}
#endif

/* This block's part of K, left in shared memory as [ROWS][PITCH] floats, rows of a by rows of b; or, all of K, stored
 * from row m of the group on. */
DEV void multiply(const problem *p, const rings *ring, place *at, const tensor_map *d_map, int m, u32 team, u32 group,
                  u32 warp, u32 lane)
{
    const u32 scale_b = (ROWS + ((u32)p->column % 128 + group * 64) / 128) * 4;
    const int last = blocks_of_team(p->count, (int)team) - 1;
    float sums[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        sums[i] = 0.0f;
    }
    cursor ahead = {*at, 0}, behind;
    place_on(&ahead.at, team);
    behind = ahead;
#define BEGIN(which, i) begin_product(ring, &ahead, (i) == last, which, group)
#define END(which, i, pending)                                                                                        \
    do {                                                                                                              \
        const float sb = load_shared_f32(scales_at(ring, &behind) + scale_b);                                         \
        WGMMA_WAIT(pending);                                                                                          \
        end_product(p, ring, &behind, (i) == last, sums, which, sb, lane);                                            \
    } while (0)
#if PARTS == 2
    if (last >= 0) {
        float even[SUMS], odd[SUMS];
        int i = 1;
        BEGIN(even, 0);
        for (; i < last; i += 2) {
            BEGIN(odd, i);
            END(even, i - 1, 1);
            BEGIN(even, i + 1);
            END(odd, i, 1);
        }
        if (i == last) {
            BEGIN(odd, i);
            END(even, i - 1, 1);
            END(odd, i, 0);
        } else {
            END(even, i - 1, 0);
        }
    }
#else
#pragma unroll 1 /* unrolled, the compiler lets the products wait for each other */
    for (int i = 0; i <= last; i++) {
        float part[SUMS];
        BEGIN(part, i);
        END(part, i, 0);
    }
#endif
    place_past(at, (u32)(p->count + UNROLL - 1) / UNROLL);
#if STORE && TEAMS == 1
    store_boxes(p, ring, d_map, m, sums, group, warp, lane);
    return;
#endif
    /* All have multiplied: every copy into the ring has been waited for, and the sums before these are stored. */
    threads_sync(1, CONSUMERS);
    const u32 to = sums_at(ring, group, warp, lane);
#if TEAMS > 1
    if (team > 0) {
        store_sums(to + (team - 1) * PARTIAL, sums);
    }
    threads_sync(1, CONSUMERS);
    if (team > 0) {
        return;
    }
#pragma unroll
    for (u32 t = 1; t < TEAMS; t++) {
        add_sums(to + (t - 1) * PARTIAL, sums);
    }
#endif
#if STORE
    store_boxes(p, ring, d_map, m, sums, group, warp, lane);
#else
    store_sums(to, sums);
#endif
}

/* The blocks of the cluster share the outputs of the strip; each output is the sum of the parts in the order of K. */
DEV void finish(const problem *p, const rings *ring, int m, u32 thread)
{
    const int left = p->rows - m, rows = left < ROWS ? left : ROWS;
    const int vector = (u64)p->d % (4 * OUT_BYTES) == 0 && p->d_row % 4 == 0;
    for (int i = (int)(p->part * CONSUMERS + thread); i < rows * (STRIP / 4); i += SPLIT * CONSUMERS) {
        const int row = i / (STRIP / 4), column = i % (STRIP / 4) * 4, n = p->column + column;
        const u32 from = ring->sums + (row * PITCH + column) * 4;
        float4 part[SPLIT];
#pragma unroll
        for (u32 s = 0; s < SPLIT; s++) {
            part[s] = SPLIT == 1 ? load_shared_f32x4(from)
                                 : load_cluster_f32x4(cluster_address(from, s * PAIR + p->pair));
        }
        float4 v = part[0];
#pragma unroll
        for (u32 s = 1; s < SPLIT; s++) {
            v.x += part[s].x;
            v.y += part[s].y;
            v.z += part[s].z;
            v.w += part[s].w;
        }
        char *to = p->d + ((m + row) * p->d_row + n) * OUT_BYTES;
        if (vector && n + 3 < p->n) {
            store_four(to, v);
        } else {
            const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int c = 0; c < 4; c++) {
                if (n + c < p->n) {
                    store_one(to + c * OUT_BYTES, values[c]);
                }
            }
        }
    }
}

/* Of those who multiply: the partial sums are there to be read. */
DEV void meet_written(void)
{
#if CLUSTER > 1
    cluster_arrive();
    cluster_wait();
#else
    threads_sync(1, CONSUMERS);
#endif
}

#if LAYOUT == ONE
/* Of those who multiply: the ring may be filled again, or the block may end. */
DEV void meet_read(const rings *ring)
{
    fence_proxy_async();
    __syncwarp();
#if CLUSTER > 1
    cluster_arrive_relaxed();
    cluster_wait();
#else
    barrier_arrive(ring->finished);
#endif
}

/* Of those who load. */
DEV void meet_loaders(const rings *ring, u32 parity)
{
    __syncwarp();
#if CLUSTER > 1
    cluster_arrive_relaxed();
    cluster_wait();
    cluster_arrive_relaxed();
    cluster_wait();
#else
    barrier_wait(ring->finished, parity);
#endif
}
#endif

/* Passes over rows of a, `row` the first, of every strip of a block. */
#if LAYOUT == ONE
#define EACH_STRIP for (int row = 0; row < p.rows; row += ROWS)
#else
#define EACH_STRIP                                                                                                    \
    for (walk w = walk_start(); walk_on(&w, groups, experts, n, low, high);)                                          \
        for (int row = (set_strip(&p, &w, scale_a, scale_a_group, scale_b, scale_b_group, d, d_group), 0);            \
             row < p.rows; row += ROWS)

DEV void set_strip(problem *p, const walk *w, const float *scale_a, i64 scale_a_group, const float *scale_b,
                   i64 scale_b_group, char *d, i64 d_group)
{
    const i64 outer = LAYOUT == MASKED ? w->group : 0;
    p->group = w->group;
    p->first = w->first;
    p->rows = w->rows;
    p->column = w->strip * STRIP;
    p->turn = w->strip % p->count;
    p->a_z = (int)outer;
    p->scale_a = scale_a + w->first * p->scale_a_row + outer * scale_a_group;
    p->scale_b = scale_b + w->group * scale_b_group;
    p->d = d + (w->first * p->d_row + outer * d_group) * OUT_BYTES;
}
#endif

#if LAYOUT != ONE
/* Whether one of the thread's share of the groups is for strips. */
DEV int has_strips(const int *groups, int experts, int low, int high)
{
    int found = 0;
    for (int e = (int)threadIdx.x; e < experts; e += (int)blockDim.x) {
        const int rows = LAYOUT == MASKED ? __ldg(groups + e) : __ldg(groups + e + 1) - __ldg(groups + e);
        found |= rows > low && rows <= high;
    }
    return found;
}

/* A warp, before the kernels ahead have ended: asks the L2 cache for the groups' rows, and for what the first strip
 * begins with if all groups before its own have rows. */
DEV void ask_for_first(const tensor_map *a_map, const tensor_map *b_map, const int *groups, int experts, int n,
                       int blocks, u32 lane)
{
    const int strips = (n + STRIP - 1) / STRIP, group = (int)blockIdx.x / strips;
    const int strip = (int)blockIdx.x - group * strips, kb = strip % blocks + (int)lane;
    if (32 * (int)lane < experts) {
        ask_for(groups + 32 * lane);
    }
    if (group < experts && (int)lane < blocks && lane < ASKED) {
        const int x = (kb < blocks ? kb : kb - blocks) * 128;
        tensor_ask_3d(b_map, x, strip * STRIP, group);
        if (LAYOUT == MASKED) {
            tensor_ask_3d(a_map, x, 0, group);
        }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, OCCUPANCY)
    qn_block_scaled_mm_skinny(const __grid_constant__ tensor_map a_map, const __grid_constant__ tensor_map b_map,
                              const __grid_constant__ tensor_map d_map, const float *scale_a, i64 scale_a_row,
                              i64 scale_a_block, i64 scale_a_group, const float *scale_b, i64 scale_b_row,
                              i64 scale_b_group, char *d, i64 d_row, i64 d_group, const int *groups, int m, int n,
                              int k, int experts, int low, int tail, int constant, int high)
{
    extern __shared__ __align__(1024) char shared[]; /* as swizzles want: room to align it would cost a stage */
    rings ring;
    ring.tiles = shared_address(shared);
    ring.sums = ring.tiles + (LAYOUT == ONE ? 0 : STAGES * STAGE_BYTES);
    ring.scales = ring.tiles + STAGES * STAGE_BYTES + SUMS_BYTES;
    ring.full = ring.scales + STAGES * UNROLL * SCALES * 4;
    ring.empty = ring.full + STAGES * 8;
    ring.read = ring.empty + STAGES * 8;
    ring.finished = ring.read + STAGES * 8;
    const u32 warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
    const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    const int blocks = (k + 127) / 128;
    problem p;
    p.group = 0;
    p.part = rank / PAIR;
    p.pair = rank % PAIR;
    p.peers = ((1u << PAIR) - 1) << (p.part * PAIR);
    p.column = (int)(blockIdx.x / CLUSTER * PAIR + p.pair) * STRIP;
    p.begin = (int)((u32)blocks * p.part / SPLIT);
    p.count = (int)((u32)blocks * (p.part + 1) / SPLIT) - p.begin;
    p.turn = p.count > 0 ? (int)(blockIdx.x / CLUSTER) % p.count : 0;
    p.n = n;
    p.scale_a_row = scale_a_row;
    p.scale_a_block = scale_a_block;
    p.scale_b_row = scale_b_row;
    p.d_row = d_row;
    p.first = 0;
    p.rows = m;
    p.a_z = 0;
    p.scale_a = scale_a;
    p.scale_b = scale_b;
    p.d = d;

    int early = 0;
    if (!ASKS) {
        grid_release();
    }
    if (warp == CONSUMERS / 32) {
        if (lane == 0) {
            tensor_map_prefetch(&b_map);
            tensor_map_prefetch(&a_map);
            for (u32 i = 0; i < STAGES; i++) {
                barrier_init(ring.full + 8 * i, 1 + 32);
                barrier_init(ring.empty + 8 * i, TEAM / 32 * PAIR);
                barrier_init(ring.read + 8 * i, TEAM);
            }
            barrier_init(ring.finished, CONSUMERS);
            barrier_init_fence();
        }
        __syncwarp();
#if LAYOUT == ONE
        if (ASKS && lane == 0) {
            ask_for_rows(&a_map, blocks);
        }
        for (; constant && early < EARLY && early * UNROLL < p.count; early++) {
            if (lane == 0) {
                load_weights(&p, &ring, &b_map, early, early * UNROLL);
            }
        }
#endif
    }
#if LAYOUT != ONE
    if (warp == CONSUMERS / 32 + 1 && tail != TAIL_BEFORE) {
        ask_for_first(&a_map, &b_map, groups, experts, n, blocks, lane);
    }
#endif
#if ASKS
    if (warp == CONSUMERS / 32 + 1) {
        const int b_row = p.column / 128, own = (n + 127) / 128 - b_row;
        ask_for_scales(scale_a, scale_a_row, scale_a_block, m, scale_b + b_row * scale_b_row, scale_b_row,
                       own < SCALES_B ? own : SCALES_B, blocks, lane);
    }
#endif
#if PAIR > 1
    cluster_arrive_relaxed(); /* no copy goes to a block before its barriers are there */
    cluster_wait();
#endif
#if LAYOUT == ONE
    grid_wait();
    __syncthreads(); /* the barriers are there */
#else
    if (tail != TAIL_BEFORE) { /* else there is nothing to wait for, but that the tiles' kernel ends before this one */
        grid_wait();
    }
    if (!__syncthreads_or(tail != TAIL_BEFORE || has_strips(groups, experts, low, high))) {
        if (blockIdx.x == 0) {
            grid_wait();
        }
        return; /* all groups are for tiles */
    }
#endif

    if (warp >= CONSUMERS / 32) {
        place at = {0, 1};
#if LAYOUT == ONE
        u32 turn = 0;
#endif
        EACH_STRIP {
            if (warp > CONSUMERS / 32) {
                load_scales(&p, &ring, &at, row, warp - CONSUMERS / 32 - 1, lane);
            } else if (lane == 0) {
                load_tiles(&p, &ring, &a_map, &b_map, &at, row, early);
            }
#if LAYOUT == ONE
            early = 0;
            meet_loaders(&ring, turn);
            turn ^= 1;
#endif
        }
    } else {
        place at = {0, 0};
#if LAYOUT != ONE
        if (tail == TAIL_ZEROS) { /* while the first tiles are on their way */
            zero_rest(d, d_row, d_group, OUT_BYTES, LAYOUT == MASKED, groups, experts, m, n,
                      (int)(blockIdx.x * (CONSUMERS / 32) + warp), (int)(gridDim.x * (CONSUMERS / 32)), lane);
        }
#endif
        EACH_STRIP {
            multiply(&p, &ring, &at, &d_map, row, warp / (4 * GROUPS), warp / 4 % GROUPS, warp % 4, lane);
#if !STORE
            meet_written();
            finish(&p, &ring, row, threadIdx.x);
#endif
#if LAYOUT == ONE
            meet_read(&ring);
#endif
        }
    }
#if LAYOUT != ONE
    if (blockIdx.x == 0) {
        grid_wait();
    }
#endif
}
