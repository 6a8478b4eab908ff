/* scaled_mm for many rows, on Hopper (sm_90a): FP8 and INT8 with the four epilogues.
 *
 *   acc = sum over k of A[m,k] B[n,k];   INT8: acc -= (azp[m] or 1) azp_adj[n], wrapping
 *   t = f32(acc) scale_b[n];   D[m,n] = t scale_a[m], with bias fma(scale_a[m], t, bias[n])
 *
 * A persistent grid like block_scaled_mm.cu's: warp 0 keeps a ring of STAGES k-blocks filled, warp 1 lays out what the
 * epilogue of a tile needs (scales, bias, zero points) in shared memory a tile ahead, GROUPS warpgroups multiply BM /
 * GROUPS rows each. INT8 sums stay in the tensor core's int32. FP8 sums of a k-block are made there and then added in
 * f32: it keeps fewer bits than f32 (docs/operators.md).
 *
 * Host contract
 *   Parameters
 *     INT8    1: operands int8, else e4m3
 *     BM, BN, STAGES, CLUSTER, GROUPS, STORE, OUT, BAND   as in block_scaled_mm.cu
 *     BIAS    0 none, 1 f32, 2 f16, 3 bf16;  AZP  0 none, 1 azp_adj alone, 2 azp too
 *   Tensor maps a, b, d, a_last, b_last as there
 *   Arguments: maps, then as declared; scale_a[row * scale_a_step], scale_b[n * scale_b_step] (0: one for all), azp
 *     [row * azp_step]; d_row in elements; constant 1: kernels ahead in the stream do not write b, which is then read
 *     before they end
 *   Launch: block 128 + 128 GROUPS, grid and cluster as there;
 *     dynamic shared memory = 1024 + STORE * BM * BN * 2 + STAGES * (128 * (BM + BN) + 16)
 *                             + 2 * (8 * BM + 12 * BN + 16)
 *   Limits: K >= 1, N >= 1, M, N and K below 2^31. */
#ifndef BAND
#define BAND (2048 / BM)
#endif
#define LAYOUT 0
#define THREADS (128 + 128 * GROUPS)
#define WAVES (BM / 64 / GROUPS)
#include "tiles.h"

#define SUMS (BN / 2)
#define D_BYTES (STORE ? BM * BN * 2 : 0)
/* A slot of what an epilogue needs, two in turn: scale_a[BM], azp[BM], scale_b[BN], bias[BN], azp_adj[BN]. */
#define SCALE_A 0
#define AZP_AT (4 * BM)
#define SCALE_B (8 * BM)
#define BIAS_AT (8 * BM + 4 * BN)
#define ADJ_AT (8 * BM + 8 * BN)
#define SLOT (8 * BM + 12 * BN)
#if BM != 64 * WAVES * GROUPS || WAVES > 2 || BN % 16 != 0 || (STORE && (OUT == 2 || BN % 64 != 0))
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
    u32 d, slots, filled, used; /* + slot * size, except d */
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

/* One warp. */
DEV void load_vectors(const problem *p, const rings *r, u32 lane)
{
    u32 slot = 0, parity = 1;
    walk w;
    walk_start(&w, &p->size);
    while (walk_on(&w, &p->size)) {
        const u32 to = r->slots + slot * SLOT;
        barrier_wait(r->used + 8 * slot, parity);
#pragma unroll 4
        for (u32 i = lane; i < BM; i += 32) {
            const i64 row = w.row + (int)i;
            const int valid = row < p->size.m;
            store_shared_f32(to + SCALE_A + 4 * i, valid ? __ldg(p->scale_a + row * p->scale_a_step) : 0.0f);
#if AZP == 2
            store_shared_i32(to + AZP_AT + 4 * i, valid ? __ldg(p->azp + row * p->azp_step) : 0);
#endif
        }
#pragma unroll 4
        for (u32 i = lane; i < BN; i += 32) {
            const i64 n = w.column + (int)i;
            const int valid = n < p->size.n;
            store_shared_f32(to + SCALE_B + 4 * i, valid ? __ldg(p->scale_b + n * p->scale_b_step) : 0.0f);
#if BIAS
            store_shared_f32(to + BIAS_AT + 4 * i, valid ? load_bias(p, (int)n) : 0.0f);
#endif
#if AZP
            store_shared_i32(to + ADJ_AT + 4 * i, valid ? __ldg(p->adjust + n) : 0);
#endif
        }
        barrier_arrive(r->filled + 8 * slot);
        slot ^= 1;
        parity ^= slot == 0;
    }
}

#if INT8
#define RESULT(v) __float_as_int(v)
#define AS_FLOAT(v) __int_as_float(v)
#else
#define RESULT(v) (v)
#define AS_FLOAT(v) (v)
#endif

/* A product's sums to the bits of its results; `local` is the lane's first row of the tile. */
DEV void finish(sum *acc, u32 slot, u32 local, u32 lane)
{
    const float sa[2] = {load_shared_f32(slot + SCALE_A + 4 * local), load_shared_f32(slot + SCALE_A + 4 * local + 32)};
#if AZP == 2
    const int azp[2] = {load_shared_i32(slot + AZP_AT + 4 * local), load_shared_i32(slot + AZP_AT + 4 * local + 32)};
#endif
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
        const u32 column = 4 * (8 * j + 2 * (lane % 4));
        const float2 sb = load_shared_f32x2(slot + SCALE_B + column);
#if BIAS
        const float2 bias = load_shared_f32x2(slot + BIAS_AT + column);
#endif
#if AZP
        const int2 adjust = load_shared_i32x2(slot + ADJ_AT + column);
#endif
#pragma unroll
        for (int i = 0; i < 4; i++) {
#if INT8
            u32 v = (u32)acc[4 * j + i];
#if AZP
            const u32 zero = (u32)(i % 2 ? adjust.y : adjust.x);
#if AZP == 2
            v -= (u32)azp[i / 2] * zero;
#else
            v -= zero;
#endif
#endif
            const float t = (float)(int)v * (i % 2 ? sb.y : sb.x);
#else
            const float t = acc[4 * j + i] * (i % 2 ? sb.y : sb.x);
#endif
#if BIAS
            acc[4 * j + i] = RESULT(__fmaf_rn(sa[i / 2], t, i % 2 ? bias.y : bias.x));
#else
            acc[4 * j + i] = RESULT(t * sa[i / 2]);
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

DEV void multiply(const problem *p, const rings *r, const tensor_map *d_map, u32 group, u32 warp, u32 lane)
{
    const int blocks = (p->size.k + 127) / 128;
    const u32 local = PRODUCT_ROW(group, 0) + warp * 16 + lane / 4;
    u32 slot = 0, parity = 0;
    place at = {0, 0};
    walk w;
    walk_start(&w, &p->size);
    while (walk_on(&w, &p->size)) {
        sum sums[WAVES][SUMS];
#if INT8
        /* A k-block's products are under way while the next one's operands are waited for. The first stands before the
         * loop, which else would be written out seven times. */
        barrier_wait(r->tiles.full + 8 * at.stage, at.parity);
        multiply_waves(sums, r, at.stage, group, 0);
        u32 before = at.stage;
        place_on(&at);
#pragma unroll 1
        for (int kb = 1; kb < blocks; kb++) {
            barrier_wait(r->tiles.full + 8 * at.stage, at.parity);
            multiply_waves(sums, r, at.stage, group, 1);
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
        const u32 vectors = r->slots + slot * SLOT;
        barrier_wait(r->filled + 8 * slot, parity);
        finish(sums[0], vectors, local, lane);
#if BM == 128 * GROUPS
        __syncwarp(); /* one after the other: registers are few here */
        finish(sums[1], vectors, local + PRODUCT_ROW(0, 1), lane);
#endif
        barrier_arrive(r->used + 8 * slot);
        slot ^= 1;
        parity ^= slot == 0;
        __syncwarp();
        float results[WAVES][SUMS];
#pragma unroll
        for (int v = 0; v < WAVES; v++) {
#pragma unroll
            for (int i = 0; i < SUMS; i++) {
                results[v][i] = AS_FLOAT(sums[v][i]);
            }
        }
        store_tile(&r->tiles, 0, &p->size, &w, d_map, r->d, p->d, p->d_row, results, group, warp, lane);
    }
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
    extern __shared__ char shared[];
    const problem p = {{0, m, n, k, 1, 0}, scale_a, scale_b,      bias,        adjust, azp, d,
                       d_row,              scale_a_step, scale_b_step, azp_step};
    rings r;
    r.d = (shared_address(shared) + 1023) / 1024 * 1024;
    r.tiles.a = r.d + D_BYTES;
    r.tiles.b = r.tiles.a + STAGES * A_BYTES;
    r.slots = r.tiles.b + STAGES * B_BYTES;
    r.tiles.full = r.slots + 2 * SLOT;
    r.tiles.empty = r.tiles.full + STAGES * 8;
    r.filled = r.tiles.empty + STAGES * 8;
    r.used = r.filled + 16;
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
        for (u32 i = 0; i < 2; i++) {
            barrier_init(r.filled + 8 * i, 32);
            barrier_init(r.used + 8 * i, 128 * GROUPS);
        }
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
            load_vectors(&p, &r, lane);
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
