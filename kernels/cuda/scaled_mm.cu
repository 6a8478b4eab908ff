/* scaled_mm for many rows, on Hopper (sm_90a): FP8 and INT8 with the four epilogues.
 *
 *   acc = sum over k of A[m,k] B[n,k];   INT8: acc -= (azp[m] or 1) azp_adj[n], wrapping
 *   t = f32(acc) scale_b[n];   D[m,n] = t scale_a[m], with bias fma(scale_a[m], t, bias[n])
 *
 * A persistent grid like block_scaled_mm.cu's: warp 0 keeps a ring of STAGES k-blocks filled, warp 1 lays out what the
 * epilogue of a tile needs of its columns (scale, bias, zero point) in shared memory, GROUPS warpgroups multiply BM /
 * GROUPS rows each and send ROOM columns of results on their way while they finish the next ones. INT8 sums stay in the
 * tensor core's int32. FP8 sums of a k-block are made there and then added in f32: it keeps fewer bits than f32
 * (docs/operators.md).
 *
 * Host contract
 *   Parameters
 *     INT8    1: operands int8, else e4m3
 *     BM, BN, STAGES, CLUSTER, STORE, OUT   as in block_scaled_mm.cu;  GROUPS  2
 *     ROOM    a part of BN, a multiple of 64 columns; BN where STORE is 0
 *     BIAS    0 none, 1 f32, 2 f16, 3 bf16;  AZP  0 none, 1 azp_adj alone, 2 azp too
 *   Tensor maps a, b, d, a_last, b_last as there
 *   Arguments: maps, then as declared; scale_a[row * scale_a_step], scale_b[n * scale_b_step] (0: one for all), azp
 *     [row * azp_step]; d_row in elements; constant 1: kernels ahead in the stream do not write b, which is then read
 *     before they end
 *   Launch: block 128 + 128 GROUPS, grid and cluster as there;
 *     dynamic shared memory = STORE * BM * ROOM * 2 + STAGES * (128 * (BM + BN) + 16)
 *                             + 4 * BN * (1 + (BIAS != 0) + (AZP != 0)) + 16
 *   Limits: K >= 1, N >= 1, M, N and K below 2^31. */

/* Tiles of a short K take about as long to finish as to multiply. High bands of them read b once. p: the extent. */
#define SHORT_K 2048
#define BAND ((p->k <= SHORT_K ? 4096u : 2048u) / BM)
#define LAYOUT 0
#define RUNS INT8 /* FP8 of 4096 rows gains 2 % and of 1024 may lose */
#define THREADS (128 + 128 * GROUPS)
#define WAVES (BM / 64 / GROUPS)
#include "tiles.h"
#include "tiles_out.h"

#define SUMS (BN / 2)
#define D_BYTES (STORE ? BM * ROOM * 2 : 0)
/* What an epilogue needs of a tile's columns: scale_b[BN], bias[BN], azp_adj[BN], those that there are. */
#define SCALE_B 0
#define BIAS_AT (4 * BN)
#define ADJ_AT (4 * BN * (1 + (BIAS != 0)))
#define COLUMNS_BYTES (4 * BN * (1 + (BIAS != 0) + (AZP != 0)))
#define MOST_KEPT (16 << 20) /* results that may stay in L2 for who reads them; more leave it first */
/* INT8 with a short K: one warpgroup multiplies while the other finishes. Where the ring has all of a tile they take
 * turns; else the second begins a tile when the first has so many k-blocks of it under way. */
#define LEAD 3
#define TURN(group) (1 + GROUPS + (group)) /* the barrier of a warpgroup that waits for the other */
#if GROUPS != 2 || STAGES < LEAD
#error "scaled_mm: no such ring"
#endif
#if BM != 64 * WAVES * GROUPS || WAVES > 2 || BN % 16 != 0 || BN % ROOM != 0 || \
    (STORE ? OUT == 2 || ROOM % 64 != 0 : ROOM != BN)
#error "scaled_mm: no such tile"
#endif

#if INT8
typedef int sum;
#define MULTIPLY(d, a, b, accumulate) WGMMA_S8S8(BN, d, a, b, accumulate)
#else
typedef float sum;
#define MULTIPLY(d, a, b, accumulate) WGMMA_E4M3(BN, d, a, b, accumulate)
#endif

typedef struct problem {
    extent size;
    const float *scale_a, *scale_b;
    const void *bias;
    const int *adjust, *azp;
    char *d;
    i64 d_row;
    i64 scale_a_step, scale_b_step, azp_step;
} problem;

typedef struct rings {
    ring tiles;
    u32 d, columns, filled, used;
} rings;

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

/* One warp: what the epilogue needs of columns, a tile ahead as far as the last one has read its own. */
DEV void load_columns(const problem *p, const rings *r, u32 lane)
{
    u32 parity = 1;
    int column = -1;
    walk w;
    walk_start(&w, &p->size);
    while (walk_on(&w, &p->size)) {
        barrier_wait(r->used, parity);
        const u32 columns = RUNS && w.column == column ? 0 : BN; /* a run's are there already */
        column = w.column;
#pragma unroll 4
        for (u32 i = lane; i < columns; i += 32) {
            const i64 n = w.column + (int)i;
            const int valid = n < p->size.n;
            store_shared_f32(r->columns + SCALE_B + 4 * i, valid ? __ldg(p->scale_b + n * p->scale_b_step) : 0.0f);
#if BIAS
            store_shared_f32(r->columns + BIAS_AT + 4 * i, valid ? load_bias(p, (int)n) : 0.0f);
#endif
#if AZP
            store_shared_i32(r->columns + ADJ_AT + 4 * i, valid ? __ldg(p->adjust + n) : 0);
#endif
        }
        barrier_arrive(r->filled);
        parity ^= 1;
    }
}

/* What an epilogue needs of a lane's rows. */
typedef struct row_values {
    float scale[2 * WAVES];
    int azp[2 * WAVES];
} row_values;

/* `row` is the lane's first. */
DEV row_values load_rows(const problem *p, int row)
{
    row_values v;
#pragma unroll
    for (int i = 0; i < 2 * WAVES; i++) {
        const i64 at = row + 8 * (i % 2) + (int)PRODUCT_ROW(0, i / 2);
        const int valid = at < p->size.m;
        v.scale[i] = valid ? __ldg(p->scale_a + at * p->scale_a_step) : 0.0f;
#if AZP == 2
        v.azp[i] = valid ? __ldg(p->azp + at * p->azp_step) : 0;
#endif
    }
    return v;
}

#if INT8
#define RESULT(v) __float_as_int(v)
#define AS_FLOAT(v) __int_as_float(v)
#else
#define RESULT(v) (v)
#define AS_FLOAT(v) (v)
#endif

/* Columns [first, first + ROOM) of product v's sums to the bits of its results, in their place: the compiler would else
 * read all that columns need at once, for which there are no registers. */
DEV void finish(sum *acc, const row_values *rows, int v, int first, u32 columns, u32 lane)
{
#pragma unroll
    for (int j = first / 8; j < (first + ROOM) / 8; j++) {
        const u32 column = columns + 4 * (8 * j + 2 * (lane % 4));
        const float2 sb = load_shared_f32x2(column + SCALE_B);
#if BIAS
        const float2 bias = load_shared_f32x2(column + BIAS_AT);
#endif
#if AZP
        const int2 adjust = load_shared_i32x2(column + ADJ_AT);
#endif
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum exact = acc[4 * j + i];
#if AZP
            const u32 zero = (u32)(i % 2 ? adjust.y : adjust.x);
            exact = (int)((u32)exact - (AZP == 2 ? (u32)rows->azp[2 * v + i / 2] * zero : zero));
#endif
            const float t = (float)exact * (i % 2 ? sb.y : sb.x), scale = rows->scale[2 * v + i / 2];
#if BIAS
            acc[4 * j + i] = RESULT(__fmaf_rn(scale, t, i % 2 ? bias.y : bias.x));
#else
            acc[4 * j + i] = RESULT(t * scale);
#endif
        }
    }
}

/* acc = or += a b' of one k-block, left under way. */
DEV void multiply_block(sum *acc, u64 a, u64 b, int accumulate)
{
    MULTIPLY(acc, a, b, accumulate);
}

DEV void add(sum *sums, const sum *part)
{
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        sums[i] += part[i];
    }
}

#define OPERAND_A(stage, v) wgmma_operand(r->tiles.a + (stage) * A_BYTES + PRODUCT_ROW(group, v) * 128)
#define OPERAND_B(stage) wgmma_operand(r->tiles.b + (stage) * B_BYTES)

/* All of a warpgroup's products of a k-block, left under way. */
DEV void multiply_waves(sum sums[WAVES][SUMS], const rings *r, u32 stage, u32 group, int accumulate)
{
    wgmma_fence();
    multiply_block(sums[0], OPERAND_A(stage, 0), OPERAND_B(stage), accumulate);
#if BM == 128 * GROUPS
    multiply_block(sums[1], OPERAND_A(stage, 1), OPERAND_B(stage), accumulate);
#endif
    wgmma_commit();
}

/* The second half's results stay in registers, packed, until the next tile's products are under way: the first half's
 * may take long to leave. FP8 has no registers for that. */
#define HOLDS (INT8 && STORE && WAVES == 1 && BN == 2 * ROOM)
#if HOLDS
typedef struct held {
    int any;
    walk of;
    u32 words[ROOM / 4];
} held;

DEV void let_go(const problem *p, const rings *r, const tensor_map *d_map, const held *h, u64 policy, u32 group,
                u32 warp, u32 lane)
{
    if (h->any) {
        staging_wait(group, warp, lane);
        stage_words(r->d + PRODUCT_ROW(group, 0) * (ROOM * OUT_BYTES), h->words, ROOM, warp, lane);
        staged_leave(&p->size, &h->of, d_map, r->d, p->d, p->d_row, ROOM, 1, 1, policy, group, warp, lane);
    }
}
#endif

DEV void multiply(const problem *p, const rings *r, const tensor_map *d_map, u32 group, u32 warp, u32 lane)
{
    const int blocks = (p->size.k + 127) / 128;
#if INT8
    /* Apart with fewer k-blocks than stages, the first warpgroup could be two tiles ahead. */
    const int turns = keeps_b(&p->size), apart = !turns && blocks >= STAGES && p->size.k <= SHORT_K;
    const int waits = turns || (apart && group == 1);
    const int tells = turns ? blocks : apart && group == 0 ? LEAD : 0; /* with so many k-blocks under way */
    if (turns && group == 1) {
        threads_arrive(TURN(0), 128 * GROUPS);
    }
#endif
    const u32 local = PRODUCT_ROW(group, 0) + warp * 16 + lane / 4;
#if STORE
    const u64 policy = (i64)p->size.m * p->size.n > MOST_KEPT ? L2_EVICT_FIRST : L2_EVICT_NORMAL;
#endif
    u32 parity = 0;
    place at = {0, 0};
    walk w;
#if HOLDS
    held rest;
    rest.any = 0;
#endif
    walk_start(&w, &p->size);
    while (walk_on(&w, &p->size)) {
        const row_values rows = load_rows(p, w.row + (int)local);
        sum sums[WAVES][SUMS];
#if INT8
        if (waits) {
            threads_sync(TURN(group), 128 * GROUPS);
        }
        /* A k-block's products are under way while the next one's operands are waited for. The first stands before the
         * loop, which else would be written out seven times. */
        barrier_wait(r->tiles.full + 8 * at.stage, at.parity);
        multiply_waves(sums, r, at.stage, group, 0);
        if (tells == 1) {
            threads_arrive(TURN(1 - group), 128 * GROUPS);
        }
        u32 before = at.stage;
        place_on(&at);
#if HOLDS
        let_go(p, r, d_map, &rest, policy, group, warp, lane);
#endif
#pragma unroll 1
        for (int kb = 1; kb < blocks; kb++) {
            barrier_wait(r->tiles.full + 8 * at.stage, at.parity);
            multiply_waves(sums, r, at.stage, group, 1);
            if (kb + 1 == tells) {
                threads_arrive(TURN(1 - group), 128 * GROUPS);
            }
            WGMMA_WAIT(1);
            release(r->tiles.empty + 8 * before, lane);
            before = at.stage;
            place_on(&at);
        }
        WGMMA_WAIT(0);
        release(r->tiles.empty + 8 * before, lane);
#else
#pragma unroll
        for (int v = 0; v < WAVES; v++) {
#pragma unroll
            for (int i = 0; i < SUMS; i++) {
                sums[v][i] = 0.0f;
            }
        }
        for (int kb = 0; kb < blocks; kb++) {
            barrier_wait(r->tiles.full + 8 * at.stage, at.parity);
#pragma unroll
            for (int v = 0; v < WAVES; v++) {
                float part[SUMS];
                wgmma_fence();
                multiply_block(part, OPERAND_A(at.stage, v), OPERAND_B(at.stage), 0);
                wgmma_commit();
                WGMMA_WAIT(0);
                if (v == WAVES - 1) {
                    release(r->tiles.empty + 8 * at.stage, lane);
                }
                add(sums[v], part);
            }
            place_on(&at);
        }
#endif
        float results[WAVES][SUMS];
        barrier_wait(r->filled, parity);
        parity ^= 1;
#if STORE
        u32 which = 0; /* products that have rows */
#pragma unroll
        for (int v = 0; v < WAVES; v++) {
            which |= (u32)(w.row + (int)PRODUCT_ROW(group, v) < p->size.m) << v;
        }
#endif
        /* Columns leave while the next ones are finished. */
#pragma unroll
        for (int first = 0; first < BN; first += ROOM) {
#pragma unroll
            for (int v = 0; v < WAVES; v++) {
                finish(sums[v], &rows, v, first, r->columns, lane);
                __syncwarp(); /* one after the other: registers are few here */
#pragma unroll
                for (int i = first / 2; i < (first + ROOM) / 2; i++) {
                    results[v][i] = AS_FLOAT(sums[v][i]);
                }
            }
            if (first + ROOM >= BN) {
                barrier_arrive(r->used);
            }
#if STORE
#if HOLDS
            if (first > 0) {
                pack_columns(rest.words, results[0] + first / 2, ROOM);
                rest.of = w;
                rest.any = (int)which;
            } else
#endif
            if (which) {
                store_columns(&p->size, &w, d_map, r->d, p->d, p->d_row, results, first, which, which, policy, group,
                              warp, lane);
            }
#endif
        }
#if !STORE
        store_products(&p->size, &w, p->d, p->d_row, results, group, warp, lane);
#endif
        __syncwarp();
    }
#if INT8
    if (turns && group == 0) {
        threads_sync(TURN(0), 128 * GROUPS);
    }
#endif
#if HOLDS
    let_go(p, r, d_map, &rest, policy, group, warp, lane);
#endif
#if STORE
    tensor_store_wait();
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_scaled_mm(const __grid_constant__ tensor_map a_map, const __grid_constant__ tensor_map b_map,
                 const __grid_constant__ tensor_map d_map, const __grid_constant__ tensor_map a_last,
                 const __grid_constant__ tensor_map b_last, const float *scale_a, i64 scale_a_step,
                 const float *scale_b, i64 scale_b_step, const void *bias, const int *adjust, const int *azp,
                 i64 azp_step, char *d, i64 d_row, int m, int n, int k, int constant)
{
    extern __shared__ __align__(1024) char shared[];
    const problem p = {{0, m, n, k, 1, 0}, scale_a, scale_b,      bias,        adjust, azp, d,
                       d_row,              scale_a_step, scale_b_step, azp_step};
    rings r;
    r.d = shared_address(shared);
    r.tiles.a = r.d + D_BYTES;
    r.tiles.b = r.tiles.a + STAGES * A_BYTES;
    r.columns = r.tiles.b + STAGES * B_BYTES;
    r.tiles.full = r.columns + COLUMNS_BYTES;
    r.tiles.empty = r.tiles.full + STAGES * 8;
    r.filled = r.tiles.empty + STAGES * 8;
    r.used = r.filled + 8;
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
        barrier_init(r.filled, 32);
        barrier_init(r.used, 128 * GROUPS);
        barrier_init_fence();
        if (few) {
            ask_for_rows(&a_map, (k + 127) / 128);
        }
        early = constant ? load_early(&p.size, &r.tiles, &b_boxes, few ? EARLY_STAGES : STAGES) : 0;
    }
    __syncthreads();
#if CLUSTER > 1
    cluster_arrive_relaxed();
    cluster_wait();
#endif
    grid_wait();

    if (warp < 4) {
        REGISTERS_GIVE(40);
        if (warp == 0 && lane == 0) {
            load_tiles(&p.size, &r.tiles, &a_boxes, &b_boxes, early);
        } else if (warp == 1) {
            load_columns(&p, &r, lane);
        }
    } else {
        REGISTERS_TAKE(232);
        multiply(&p, &r, &d_map, (warp - 4) / 4, warp % 4, lane);
    }
#if CLUSTER > 1
    /* Nobody leaves while another may still fill its ring or arrive at its barriers. */
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();
#endif
}
