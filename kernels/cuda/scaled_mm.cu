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
 *     BM, BN, STAGES, CLUSTER, STORE, OUT   as in block_scaled_mm.cu, BN one of names.h with INT8;  GROUPS  2
 *     ROOM    BN or half of it, a multiple of 64 columns; BN where STORE is 0
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
#include "names.h"
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
#if BM != 64 * WAVES * GROUPS || WAVES > 2 || (INT8 && WAVES > 1) || BN % 32 != 0 ||                                   \
    (BN != ROOM && BN != 2 * ROOM) || (STORE ? OUT == 2 || ROOM % 64 != 0 : ROOM != BN)
#error "scaled_mm: no such tile"
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

DEV float load_bias(const problem *p, u32 n)
{
    if (BIAS == 1) {
        return __ldg((const float *)p->bias + n);
    }
    const u16 bits = __ldg((const u16 *)p->bias + n);
    return BIAS == 2 ? widen_f16(bits) : __uint_as_float((u32)bits << 16);
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
        if (!RUNS || w.column != column) { /* a run's are there already */
            column = w.column;
#pragma unroll 4
            for (u32 i = 0; i < BN; i += 32) {
                const u32 n = min((u32)w.column + i + lane, (u32)p->size.n - 1), to = r->columns + 4 * (i + lane);
                store_shared_f32(to + SCALE_B, __ldg(p->scale_b + n * p->scale_b_step));
#if BIAS
                store_shared_f32(to + BIAS_AT, load_bias(p, n));
#endif
#if AZP
                store_shared_i32(to + ADJ_AT, __ldg(p->adjust + n));
#endif
            }
        }
        barrier_arrive(r->filled);
        parity ^= 1;
    }
}

/* What an epilogue needs of a lane's rows. */
typedef struct row_values {
    float scale[2 * WAVES];
    u32 less[2 * WAVES]; /* zero points, negative */
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
        v.less[i] = AZP == 2 && valid ? 0 - (u32)__ldg(p->azp + at * p->azp_step) : 0;
    }
    return v;
}

#define OPERAND_A(stage, v) wgmma_operand(r->tiles.a + (stage) * A_BYTES + PRODUCT_ROW(group, v) * 128)
#define OPERAND_B(stage) wgmma_operand(r->tiles.b + (stage) * B_BYTES)

#if INT8
/* Sums are registers called s of names.h. */
DEV void declare_sums(void)
{
    asm volatile(EACH(BN, "s", DECLARED));
}

/* All of a warpgroup's products of a k-block, left under way; a and b: operands of the ring's first stage. */
DEV void multiply_block(u64 a, u64 b, u32 stage, int accumulate)
{
    wgmma_fence();
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %2, 0;\n" BLOCK_NAMED(BN, "k32.s32.s8.s8", "", "s", "more")
                 "}" ::"l"(wgmma_operand_beyond(a, stage * (A_BYTES / 16))),
                 "l"(wgmma_operand_beyond(b, stage * (B_BYTES / 16))), "r"(accumulate)
                 : "memory");
    wgmma_commit();
}

/* In statements of eight columns: what these need, and a sum to its result.
 * Operands: %0 to %3 results, %4 where what the first columns need lies, %5 and %6 scales of the lane's rows, %7 and %8
 * zero points of these, negative. */
#define LOAD_TEXT(name, from, j) "ld.shared.v2.b32 {" name "0, " name "1}, [%4 + (" TEXT(from) " + " #j " * 8)];\n"
#if AZP == 2
#define ADJUST_TEXT(s, c, azp) "mad.lo.s32 t, " azp ", adjust" #c ", " s ";\n"
#elif AZP
#define ADJUST_TEXT(s, c, azp) "sub.s32 t, " s ", adjust" #c ";\n"
#else
#define ADJUST_TEXT(s, c, azp) "mov.b32 t, " s ";\n"
#endif
#if AZP
#define LOAD_ADJUST(j) LOAD_TEXT("adjust", ADJ_AT, j)
#else
#define LOAD_ADJUST(j) ""
#endif
#if BIAS
#define LOAD_BIAS(j) LOAD_TEXT("bias", BIAS_AT, j)
#define SCALE_TEXT(i, c, scale) "fma.rn.f32 %" #i ", " scale ", t, bias" #c ";\n"
#else
#define LOAD_BIAS(j) ""
#define SCALE_TEXT(i, c, scale) "mul.rn.f32 %" #i ", " scale ", t;\n"
#endif
#define FINISH_ONE(s, i, c, scale, azp)                                                                                \
    ADJUST_TEXT(s, c, azp)                                                                                             \
    "cvt.rn.f32.s32 t, t;\nmul.rn.f32 t, t, scale" #c ";\n" SCALE_TEXT(i, c, scale)
#define FINISH_FOUR(v, x, at, i0, i1, i2, i3)                                                                          \
    asm volatile("{\n.reg .b32 t, scale<2>, bias<2>, adjust<2>;\n"                                                     \
                 LOAD_TEXT("scale", SCALE_B, at) LOAD_BIAS(at) LOAD_ADJUST(at)                                         \
                 FINISH_ONE(v #x #i0, 0, 0, "%5", "%7") FINISH_ONE(v #x #i1, 1, 1, "%5", "%7")                         \
                 FINISH_ONE(v #x #i2, 2, 0, "%6", "%8") FINISH_ONE(v #x #i3, 3, 1, "%6", "%8") "}"                     \
                 : "=&f"(to[at + i0]), "=&f"(to[at + i1]), "=&f"(to[at + i2]), "=&f"(to[at + i3])                      \
                 : "r"(columns + 8 * i0), "f"(rows->scale[0]), "f"(rows->scale[1]), "r"(rows->less[0]),                \
                   "r"(rows->less[1])                                                                                  \
                 : "memory");
#define FINISH(v, x, at)                                                                                               \
    if (at >= first / 2 && at < (first + ROOM) / 2) {                                                                  \
        FINISH_FOUR(v, x, at, 0, 1, 2, 3) FINISH_FOUR(v, x, at, 4, 5, 6, 7)                                            \
    }

/* Columns [first, first + ROOM) to results, at their place among all. A statement for four sums: the compiler would
 * follow each, and read all that columns need at once, for which there are no registers. */
DEV void finish(float results[WAVES][SUMS], const row_values *rows, int first, u32 columns)
{
    float *const to = results[0];
    EACH(BN, "s", FINISH)
    __syncwarp(); /* the compiler knows again that warps are whole */
}
#else
/* part = a b' of one k-block, left under way. */
DEV void multiply_block(float *part, u64 a, u64 b)
{
    wgmma_fence();
    WGMMA_E4M3(BN, part, a, b, 0);
    wgmma_commit();
}

DEV void add(float *sums, const float *part)
{
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        sums[i] += part[i];
    }
}

/* Columns [first, first + ROOM) of sums to results in their place. */
DEV void finish(float results[WAVES][SUMS], const row_values *rows, int first, u32 columns)
{
#pragma unroll
    for (int v = 0; v < WAVES; v++) {
#pragma unroll
        for (int j = first / 8; j < (first + ROOM) / 8; j++) {
            const float2 sb = load_shared_f32x2(columns + 32 * j + SCALE_B);
#if BIAS
            const float2 bias = load_shared_f32x2(columns + 32 * j + BIAS_AT);
#endif
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float t = results[v][4 * j + i] * (i % 2 ? sb.y : sb.x), scale = rows->scale[2 * v + i / 2];
#if BIAS
                results[v][4 * j + i] = __fmaf_rn(scale, t, i % 2 ? bias.y : bias.x);
#else
                results[v][4 * j + i] = t * scale;
#endif
            }
        }
        __syncwarp(); /* one after the other: registers are few here */
    }
}
#endif

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
    const u64 a = OPERAND_A(0, 0), b = OPERAND_B(0);
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
        float results[WAVES][SUMS];
#if INT8
        if (waits) {
            threads_sync(TURN(group), 128 * GROUPS);
        }
        /* A k-block's products are under way while the next one's operands are waited for. The first stands before the
         * loop, which else would be written out seven times. */
        barrier_wait(r->tiles.full + 8 * at.stage, at.parity);
        multiply_block(a, b, at.stage, 0);
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
            multiply_block(a, b, at.stage, 1);
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
                results[v][i] = 0.0f;
            }
        }
        for (int kb = 0; kb < blocks; kb++) {
            barrier_wait(r->tiles.full + 8 * at.stage, at.parity);
#pragma unroll
            for (int v = 0; v < WAVES; v++) {
                float part[SUMS];
                multiply_block(part, OPERAND_A(at.stage, v), OPERAND_B(at.stage));
                WGMMA_WAIT(0);
                if (v == WAVES - 1) {
                    release(r->tiles.empty + 8 * at.stage, lane);
                }
                add(results[v], part);
            }
            place_on(&at);
        }
#endif
        barrier_wait(r->filled, parity);
        parity ^= 1;
#if STORE
        u32 which = 0; /* products that have rows */
#pragma unroll
        for (int v = 0; v < WAVES; v++) {
            which |= (u32)(w.row + (int)PRODUCT_ROW(group, v) < p->size.m) << v;
        }
#endif
        const u32 columns = r->columns + 8 * (lane % 4);
        finish(results, &rows, 0, columns);
#if BN > ROOM
        if (which) { /* columns leave while the next ones are finished */
            store_columns(&p->size, &w, d_map, r->d, p->d, p->d_row, results, 0, which, which, policy, group, warp,
                          lane);
        }
        finish(results, &rows, ROOM, columns);
#endif
        barrier_arrive(r->used);
#if HOLDS
        pack_columns(rest.words, results[0] + ROOM / 2, ROOM);
        rest.of = w;
        rest.any = (int)which;
#elif STORE
        if (which) {
            store_columns(&p->size, &w, d_map, r->d, p->d, p->d_row, results, BN - ROOM, which, which, policy, group,
                          warp, lane);
        }
#else
        w.column = (int)uniform((u32)w.column); /* see uniform: lanes exchange under a branch on it */
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
#if INT8
    declare_sums();
#endif
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
