/* d = x b^T with weights of any format that 16-bit floats hold exactly, or int8, many rows, by mma.sync: tiles of TILE
 * x TILE, both operands in shared memory as they are multiplied, 64 bytes of a row at a time. bf16 (TENSOR 1): weights
 * of bf16, e4m3, e5m2, NVFP4 and MXFP4 by rows of bf16 or codes; f16 (2): of f16 and NVFP4 by f16; int8 (3), whose sums
 * are exact. Block-scaled sums are those of 128 of K, which meet their scales as f32. Of operands that are planes
 * (mm_planes.cu) every pair that counts is multiplied, all of K of one after the other, and sums leave the tensor core
 * every 256 of K, as it cuts off what f32 would round.
 *
 * Host contract
 *   Parameters: those of mm_common.h, TILE 64 or 128, and BLOCKS that a multiprocessor is to have; LAYOUT 0: one matrix;
 *   groups of rows have matrices of their own (kernels/common/cuda_mm.h), 1: by offsets, 2: masked; A_PLANES, B_PLANES
 *   where operands are planes, as in dense_mm.cu
 *   Launch: block 256, no dynamic shared memory, grid {ceil(N / TILE), y, z}: y = ceil(M / TILE), z parts of K for one
 *   matrix, above 1: mm_join.cu follows;
 *   y = ceil(M / TILE) + experts, z = 1 for offsets; y = ceil(M / TILE), z = experts for masked */
#define THREADS 256
#define STAGES 2 /* of the tiles: one is written while others still read the one before */
#define ROW_BYTES 64
#define PITCH 80 /* bytes: eight rows' chunks of 16 meet no bank twice */
#if TENSOR == 3
#define STEP 64 /* of K */
#else
#define STEP 32
#endif
#include "mm_staged.h"

#if LAYOUT
#include "groups.h"
#endif

#define X_PARTS (THREADS / TILE) /* threads that load a row of x */
#define X_WORDS (ROW_BYTES / 4 / X_PARTS)
#define CUT (!LAYOUT && TILE == 64) /* small tiles of one matrix may be parts of K */
#define PARTS (TILE / 32) /* of a warp's half of the rows: 16 each; of its quarter of the columns: 8 */
#define BLOCK_SUMS (B_FORMAT == QN_MM_E4M3_BLOCK || B_FORMAT == QN_MM_E5M2_BLOCK)
#ifdef A_PLANES
#define PAIRS (A_PLANES == 2 && B_PLANES == 2 ? 3 : A_PLANES * B_PLANES)
#define CHAIN (256 / STEP) /* steps */
#define PLANES_ARGUMENT , const __grid_constant__ qn_cuda_mm_planes planes
#else
#define PLANES_ARGUMENT
#endif
#define PLAIN_X (TENSOR == 3 || A_FORMAT == QN_MM_PLAIN) /* rows are as they are multiplied */

struct staged {
    raw b[MINE];
    u32 x[X_WORDS];
};

DEV u32 pack(float low, float high)
{
    return TENSOR == 2 ? pack_f16(low, high) : pack_bf16(low, high);
}

/* fetch_row: this thread's words of row m of x from element k on, which are zeros before. */
#if PLAIN_X
DEV void fetch_row(const qn_cuda_mm &a, int m, int k, u32 x[X_WORDS])
{
    const int bytes = TENSOR == 3 ? 1 : 2, count = X_WORDS * 4 / bytes;
    const u8 *const from = (const u8 *)a.x + m * a.x_row + (i64)k * bytes;
    if (k + count <= a.k && (u64)from % 16 == 0) {
#pragma unroll
        for (int i = 0; i < X_WORDS; i += 4) {
            const uint4 v = *(const uint4 *)(from + 4 * i);
            x[i] = v.x;
            x[i + 1] = v.y;
            x[i + 2] = v.z;
            x[i + 3] = v.w;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < count; i++) {
        if (k + i < a.k) {
            x[i * bytes / 4] |= (bytes == 1 ? from[i] : (u32) * (const u16 *)(from + 2 * i)) << i * bytes % 4 * 8;
        }
    }
}
#elif A_FORMAT == QN_MM_A_NVFP4
/* K is a multiple of 16. */
DEV void fetch_row(const qn_cuda_mm &a, int m, int k, u32 x[X_WORDS])
{
    const u8 *const from = (const u8 *)a.x + m * a.x_row, *const scales = (const u8 *)a.x_scale + m * a.x_scale_row;
#pragma unroll
    for (int i = 0; i < X_WORDS; i += 4) {
        const int first = k + 2 * i;
        if (first < a.k) {
            const u8 *const c = from + first / 2;
            const u32 eight = (u32)c[0] | (u32)c[1] << 8 | (u32)c[2] << 16 | (u32)c[3] << 24;
            float v[8];
            e2m1_floats(eight, e4m3_float(scales[first / 16]), v);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                x[i + j] = pack(v[2 * j], v[2 * j + 1]);
            }
        }
    }
}
#else
/* Two codes of 8 bits, without scales. */
DEV u32 pack_codes(u32 two)
{
    float v[2];
#if A_FORMAT == QN_MM_A_I8
    v[0] = (float)(signed char)two;
    v[1] = (float)(signed char)(two >> 8);
#else
    e4m3_floats(two, v);
#endif
    return pack(v[0], v[1]);
}

DEV void fetch_row(const qn_cuda_mm &a, int m, int k, u32 x[X_WORDS])
{
    const u8 *const from = (const u8 *)a.x + m * a.x_row + k;
    if (k + 2 * X_WORDS <= a.k && (u64)from % 8 == 0) {
#pragma unroll
        for (int i = 0; i < X_WORDS; i += 4) {
            const uint2 codes = *(const uint2 *)(from + 2 * i);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                x[i + j] = pack_codes((j < 2 ? codes.x : codes.y) >> j % 2 * 16);
            }
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < X_WORDS; i++) {
        const int first = k + 2 * i;
        const u32 low = first < a.k ? from[2 * i] : 0, high = first + 1 < a.k ? from[2 * i + 1] : 0;
        x[i] = pack_codes(low | high << 8);
    }
}
#endif

DEV void fetch(const qn_cuda_mm &a, int row0, int column0, int k0, staged *s)
{
    fetch_units(a, column0, k0, s->b);
#if BLOCK_SUMS
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        s->b[i].scale = 1.0f; /* sums meet it */
    }
#endif
#pragma unroll
    for (int i = 0; i < X_WORDS; i++) {
        s->x[i] = 0;
    }
    const int m = row0 + (int)threadIdx.x / X_PARTS;
    if (m < a.m) {
        fetch_row(a, m, k0 + (int)threadIdx.x % X_PARTS * (STEP / X_PARTS), s->x);
    }
}

DEV void put(const staged &s, u8 *x, u8 *b)
{
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int index = unit_index(i);
        if (index < TILE_UNITS) {
            u8 *const to = b + index / ROW_UNITS * PITCH + index % ROW_UNITS * (ROW_BYTES / ROW_UNITS);
#if TENSOR == 3 || B_FORMAT == QN_MM_BF16 || B_FORMAT == QN_MM_F16
            *(uint4 *)to = make_uint4(s.b[i].word[0], s.b[i].word[1], s.b[i].word[2], s.b[i].word[3]);
#else
#pragma unroll
            for (int j = 0; j < UNIT / 8; j++) {
                float v[8];
                decode8(s.b[i], j, v);
                *(uint4 *)(to + 16 * j) =
                    make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
            }
#endif
        }
    }
    u32 *const to = (u32 *)(x + threadIdx.x / X_PARTS * PITCH) + threadIdx.x % X_PARTS * X_WORDS;
#pragma unroll
    for (int i = 0; i < X_WORDS; i += 4) {
        *(uint4 *)(to + i) = make_uint4(s.x[i], s.x[i + 1], s.x[i + 2], s.x[i + 3]);
    }
}

/* Four matrices of eight rows of 16 bytes: lane l names row l % 8 of matrix l / 8. */
DEV void load_matrices(u32 at, u32 *v)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(at));
}

DEV void multiply_add(sum_t *d, const u32 *a, const u32 *b)
{
#if TENSOR == 1
    MMA_BF16(d, a, b[0], b[1]);
#elif TENSOR == 2
    MMA_F16(d, a, b[0], b[1]);
#else
    MMA_S8(d, a, b[0], b[1]);
#endif
}

/* x, b: this lane's addresses of its warp's rows. */
DEV void multiply(u32 x, u32 b, sum_t sums[PARTS][PARTS][4])
{
#pragma unroll
    for (int half = 0; half < ROW_BYTES; half += 32) {
        u32 u[PARTS][4], v[PARTS / 2][4];
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            load_matrices(x + i * 16 * PITCH + half, u[i]);
        }
#pragma unroll
        for (int j = 0; j < PARTS / 2; j++) {
            load_matrices(b + j * 16 * PITCH + half, v[j]);
        }
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
#pragma unroll
            for (int j = 0; j < PARTS; j++) {
                multiply_add(sums[i][j], u[i], v[j / 2] + j % 2 * 2);
            }
        }
    }
}

#if BLOCK_SUMS
/* Sums of a block of K meet its scales, and are zeros again. */
DEV void promote(const qn_cuda_mm &a, int row, float b_scale, int block, float part[PARTS][PARTS][4],
                 float sums[PARTS][PARTS][4])
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int m = row + 16 * i + e / 2 * 8;
            const char *const at = a.x_scale + m * a.x_scale_row + block * a.x_scale_block;
            const float scale = m < a.m ? *(const float *)at * b_scale : 0.0f;
#pragma unroll
            for (int j = 0; j < PARTS; j++) {
                sums[i][j][e] = __fmaf_rn(part[i][j][e], scale, sums[i][j][e]);
                part[i][j][e] = 0.0f;
            }
        }
    }
}
#endif

#ifdef A_PLANES
/* The two planes of a pair take the place of the operands. */
DEV qn_cuda_mm pair_of(const qn_cuda_mm &a, const qn_cuda_mm_planes &planes, int pair)
{
    qn_cuda_mm p = a;
    p.x += (A_PLANES == 1 ? 0 : B_PLANES == 1 ? pair : pair == 2) * planes.x_plane;
    p.part[0].b += (B_PLANES == 1 ? 0 : A_PLANES == 1 ? pair : pair == 1) * planes.b_plane;
    return p;
}

DEV void end_chain(float part[PARTS][PARTS][4], float sums[PARTS][PARTS][4])
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                sums[i][j][e] += part[i][j][e];
                part[i][j][e] = 0.0f;
            }
        }
    }
}

/* Sums of planes to what they are of the operands; as in dense_mm.cu. */
DEV void scale_sums(const qn_cuda_mm &a, const qn_cuda_mm_planes &planes, int row, int column,
                    float sums[PARTS][PARTS][4])
{
    const float grown = planes.row_scales && planes.column_scales ? 16384.0f : 1.0f, shrunk = 1.0f / (grown * grown);
    int odd = 0;
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int m = row + 16 * i + e / 2 * 8;
            const float of_row = planes.row_scales && m < a.m ? planes.row_scales[m] * grown : 1.0f;
#pragma unroll
            for (int j = 0; j < PARTS; j++) {
                const int n = column + 8 * j + e % 2;
                const float of_column = planes.column_scales && n < a.part[0].n ? planes.column_scales[n] * grown : 1.0f;
                sums[i][j][e] = sums[i][j][e] * shrunk * (of_row * of_column);
                odd |= m < a.m && n < a.part[0].n && !(fabsf(sums[i][j][e]) < __int_as_float(0x7f800000));
            }
        }
    }
    if (odd) {
        *planes.odd = 1;
    }
}
#endif

#if LAYOUT
/* This block's group takes the place of the product: a becomes its rows and its matrix. The first row of the tile in
 * it; -1: there is none. */
DEV int take_group(const qn_cuda_mm_groups &g, qn_cuda_mm &a)
{
    const int *const sizes = (const int *)g.sizes;
    int group = 0, first = 0, tile = (int)blockIdx.y;
    if (g.tail == TAIL_ZEROS) {
        const int block = (int)((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x);
        const int bytes = OUT == QN_MM_F32 ? 4 : 2, warps = THREADS / 32;
        zero_rest(a.part[0].d, a.part[0].d_row / bytes, g.d / bytes, bytes, LAYOUT == 2, sizes, g.experts, a.m,
                  a.part[0].n, block * warps + (int)threadIdx.x / 32,
                  (int)(gridDim.x * gridDim.y * gridDim.z) * warps, threadIdx.x % 32);
    }
#if LAYOUT == 1
    for (;; group++) {
        if (group == g.experts) {
            return -1;
        }
        first = sizes[group];
        a.m = sizes[group + 1] - first;
        const int tiles = (a.m + TILE - 1) / TILE;
        if (tile < tiles) {
            break;
        }
        tile -= tiles;
    }
#else
    group = (int)blockIdx.z;
    a.m = sizes[group];
    a.x += group * g.x;
    a.x_scale += group * g.x_scale;
    a.part[0].d += group * g.d;
#endif
    a.x += first * a.x_row;
    a.x_scale += first * a.x_scale_row;
    a.part[0].d += first * a.part[0].d_row;
    a.part[0].b += group * g.b;
    a.part[0].b_scale += group * g.b_scale;
    return tile * TILE < a.m ? tile * TILE : -1;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
#if LAYOUT
    qn_mm_mma(const __grid_constant__ qn_cuda_mm all, const __grid_constant__ qn_cuda_mm_groups groups)
#else
    qn_mm_mma(const __grid_constant__ qn_cuda_mm a, const __grid_constant__ qn_cuda_mm_cut cut PLANES_ARGUMENT)
#endif
{
    __shared__ __align__(16) u8 x_tile[STAGES * TILE * PITCH], b_tile[STAGES * TILE * PITCH];
    release_next();
    wait_before();
#if LAYOUT
    qn_cuda_mm a = all;
    const int row0 = take_group(groups, a);
    if (row0 < 0) {
        return;
    }
#else
    const int row0 = (int)blockIdx.y * TILE;
#endif
#if CUT
    const int first = (int)blockIdx.z * cut.depth, end = cut.depth < a.k - first ? first + cut.depth : a.k;
#else
    const int first = 0, end = a.k;
#endif
    const int column0 = (int)blockIdx.x * TILE;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int warp_row = warp / 4 * (TILE / 2), warp_column = warp % 4 * (TILE / 4);
    const u32 x = shared_address(x_tile) + (warp_row + lane % 16) * PITCH + lane / 16 * 16;
    const u32 b = shared_address(b_tile) + (warp_column + lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 16;
    const int row = row0 + warp_row + lane / 4, column = column0 + warp_column + lane % 4 * 2;
    const qn_cuda_mm_part &p = a.part[0];
    sum_t sums[PARTS][PARTS][4] = {};
#if BLOCK_SUMS || defined(A_PLANES)
    float part[PARTS][PARTS][4] = {};
#endif
    staged next;
#ifdef A_PLANES
    const int steps = (end - first + STEP - 1) / STEP; /* of a pair */
    fetch(pair_of(a, planes, 0), row0, column0, first, &next);
    for (int step = 0; step < PAIRS * steps; step++) {
        const u32 at = step % STAGES * (TILE * PITCH);
        put(next, x_tile + at, b_tile + at);
        __syncthreads();
        if (step + 1 < PAIRS * steps) {
            const int pair = (step + 1) / steps;
            fetch(pair_of(a, planes, pair), row0, column0, first + (step + 1 - pair * steps) * STEP, &next);
        }
        multiply(x + at, b + at, part);
        if (step % CHAIN == CHAIN - 1 || step == PAIRS * steps - 1) {
            end_chain(part, sums);
        }
    }
    scale_sums(a, planes, row, column, sums);
#else
    fetch(a, row0, column0, first, &next);
    for (int k0 = first; k0 < end; k0 += STEP) {
        const u32 at = k0 / STEP % STAGES * (TILE * PITCH);
        put(next, x_tile + at, b_tile + at);
        __syncthreads();
        if (k0 + STEP < end) {
            fetch(a, row0, column0, k0 + STEP, &next);
        }
#if BLOCK_SUMS
        multiply(x + at, b + at, part);
        if ((k0 + STEP) % 128 == 0 || k0 + STEP >= end) {
            const char *const at = p.b_scale + (i64)(column0 / 128) * p.b_scale_row + k0 / 128 * 4;
            promote(a, row, *(const float *)at, k0 / 128, part, sums);
        }
#else
        multiply(x + at, b + at, sums);
#endif
    }
#endif
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int m = row + 16 * i + 8 * h;
            if (m >= a.m) {
                continue;
            }
            const float scale = A_FORMAT == QN_MM_A_BLOCK ? 1.0f : row_scale(a, m);
            const int azp = row_azp(a, m);
#pragma unroll
            for (int j = 0; j < PARTS; j++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int n = column + 8 * j + e;
                    if (n >= p.n) {
                        continue;
                    }
#if CUT
                    if (gridDim.z > 1) {
                        ((sum_t *)cut.parts)[((i64)blockIdx.z * a.m + m) * p.n + n] = sums[i][j][2 * h + e];
                        continue;
                    }
#endif
                    const float v = finish(load_tail(p, n), sums[i][j][2 * h + e], scale, azp, row_global(a));
                    store_float(p.d + m * p.d_row, n, v, OUT);
                }
            }
        }
    }
}
