/* The Hadamard transform of a product's row by tensor cores, by all threads of a block: the levels along the fast axis
 * in registers, the base's matrix, whose elements are exact as bf16, by m16n8k16. A row is a sum of three bf16, so that
 * results are those of f32 but for the order of sums. vq_turn.h has transforms of all lengths.
 *
 *   THREADS    of a block, 512 or more
 *   TURN_BASE  the base, above 1 and at most QN_MM_TURN_BASE
 *   TURN_FAST  the fast axis, 8 to 128; a row has at most 2048 elements, so that a warp has one tile of the result at
 *              most */
#ifndef QN_CUDA_MM_TURN_H
#define QN_CUDA_MM_TURN_H

#include "cuda_mm_points.h"
#include "vq_turn.h"

/* d += a b */
DEV void multiply(float *d, const u32 *a, u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four elements as three times two words of two bf16 each, `step` apart. */
DEV void store_quad(u16 *to, int step, float4 v)
{
#pragma unroll
    for (int plane = 0; plane < 3; plane++) {
        const u32 low = pack_bf16(v.x, v.y), high = pack_bf16(v.z, v.w);
        *(uint2 *)(to + plane * step) = make_uint2(low, high);
        v.x -= __uint_as_float(low << 16);
        v.y -= __uint_as_float(low & 0xffff0000u);
        v.z -= __uint_as_float(high << 16);
        v.w -= __uint_as_float(high & 0xffff0000u);
    }
}

#if TURN_BASE > 1

#define TURN_ROWS QN_MM_TURN_ROWS(TURN_BASE)
#define TURN_STEPS (TURN_ROWS / 16)
#define TURN_ACROSS (TURN_FAST / 8)
#define TURN_TILES (TURN_STEPS * TURN_ACROSS)
/* of the row's planes and of the matrix: eight rows on banks of their own */
#define TURN_PITCH (TURN_FAST + 8)
#define MATRIX_PITCH (TURN_ROWS + 8)
#define TURN_PLANE (TURN_ROWS * TURN_PITCH)

/* The base's matrix, and behind it the row's three planes, zeros beyond the base. */
DEV void turn_fill(u16 *matrix, const qn_cuda_mm_turn &t)
{
    const int eighths = TURN_ROWS / 8;
    for (int i = (int)threadIdx.x; i < TURN_ROWS * eighths; i += THREADS) {
        const int row = i / eighths, column = i % eighths * 8, left = row < TURN_BASE ? TURN_BASE - column : 0;
        const u32 signs = row < TURN_BASE ? (u32)(t.rows[row] >> column) : 0;
        u32 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[j] = (2 * j < left ? 0x3f80u | (signs >> 2 * j & 1) << 15 : 0) |
                   (2 * j + 1 < left ? 0x3f800000u | (signs >> 2 * j & 2) << 30 : 0);
        }
        *(uint4 *)(matrix + row * MATRIX_PITCH + column) = make_uint4(v[0], v[1], v[2], v[3]);
    }
    uint4 *const planes = (uint4 *)(matrix + TURN_ROWS * MATRIX_PITCH);
    for (int i = (int)threadIdx.x; i < 3 * TURN_PLANE / 8; i += THREADS) {
        planes[i] = make_uint4(0, 0, 0, 0);
    }
}

/* Put elements i to i + 3, of all lanes of a warp, those below `length`. */
DEV void turn_put(u16 *matrix, int i, int length, float4 v)
{
    v = turn_fast(v, TURN_FAST);
    if (i < length) {
        store_quad(matrix + TURN_ROWS * MATRIX_PITCH + i / TURN_FAST * TURN_PITCH + i % TURN_FAST, TURN_PLANE, v);
    }
}

/* Tile i of the result: d[0] and d[1] are of row 16 (i / TURN_ACROSS) + lane / 4, columns 8 (i % TURN_ACROSS) +
 * 2 (lane % 4) and the next; d[2] and d[3] eight rows further on. */
DEV void turn_tile(u32 matrix, int i, int lane, float *d)
{
    const u32 a = matrix + (u32)((i / TURN_ACROSS * 16 + lane % 16) * MATRIX_PITCH + lane / 16 * 8) * 2;
    const u32 b = matrix + (u32)(TURN_ROWS * MATRIX_PITCH + lane % 16 * TURN_PITCH + i % TURN_ACROSS * 8) * 2;
    float sums[3][4] = {};
#pragma unroll
    for (int k = 0; k < TURN_STEPS; k++) {
        u32 m[4], x[3][2];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                     : "r"(a + (u32)k * 32)
                     : "memory");
#pragma unroll
        for (int plane = 0; plane < 3; plane++) {
            asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                         : "=r"(x[plane][0]), "=r"(x[plane][1])
                         : "r"(b + (u32)(plane * TURN_PLANE + k * 16 * TURN_PITCH) * 2)
                         : "memory");
        }
#pragma unroll
        for (int plane = 0; plane < 3; plane++) {
            multiply(sums[plane], m, x[plane][0], x[plane][1]);
        }
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        d[e] = sums[0][e] + (sums[1][e] + sums[2][e]);
    }
}

#endif
#endif
