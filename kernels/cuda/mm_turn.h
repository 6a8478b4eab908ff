/* Hadamard transforms of one row by tensor cores, by all threads of a block: the levels along the fast axis in
 * registers, the base's matrix, whose elements are exact as bf16, by m16n8k16. A row is a sum of three bf16, so that
 * results are those of f32 but for the order of sums. For bases that are small and fast axes of 8 to 128; vq_turn.h has
 * all. */
#ifndef QN_CUDA_MM_TURN_H
#define QN_CUDA_MM_TURN_H

#include "cuda_mm_points.h"
#include "vq_turn.h"

/* d += a b */
DEV void multiply(float *d, const u32 *a, u32 b0, u32 b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two elements as three words of two bf16 each, `step` apart. */
DEV void store_pair(u16 *to, int step, float a, float b)
{
#pragma unroll
    for (int plane = 0; plane < 3; plane++) {
        const u32 word = pack_bf16(a, b);
        *(u32 *)(to + plane * step) = word;
        a -= __uint_as_float(word << 16);
        b -= __uint_as_float(word & 0xffff0000u);
    }
}

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

/* The base's matrix [rows][rows + 8], and the row's three planes [rows][columns + 8]; zeros beyond the base. */
struct turner {
    u16 *matrix, *planes;
    int rows, columns, shift;
};

DEV turner turner_at(const qn_cuda_mm_turn &t, void *at)
{
    turner u;
    u.rows = QN_MM_TURN_ROWS(t.base);
    u.columns = t.fast;
    u.shift = 31 - __clz(t.fast);
    u.matrix = (u16 *)at;
    u.planes = u.matrix + u.rows * (u.rows + 8);
    return u;
}

DEV void turner_fill(const turner &u, const qn_cuda_mm_turn &t)
{
    const int eighths = u.rows / 8, count = 3 * u.rows * (u.columns + 8) / 8;
    for (int i = (int)threadIdx.x; i < u.rows * eighths; i += THREADS) {
        const int row = i / eighths, column = i % eighths * 8, left = row < t.base ? t.base - column : 0;
        const u32 signs = row < t.base ? (u32)(t.rows[row] >> column) : 0;
        u32 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[j] = (2 * j < left ? 0x3f80u | (signs >> 2 * j & 1) << 15 : 0) |
                   (2 * j + 1 < left ? 0x3f800000u | (signs >> 2 * j & 2) << 30 : 0);
        }
        *(uint4 *)(u.matrix + row * (u.rows + 8) + column) = make_uint4(v[0], v[1], v[2], v[3]);
    }
    for (int i = (int)threadIdx.x; i < count; i += THREADS) {
        ((uint4 *)u.planes)[i] = make_uint4(0, 0, 0, 0);
    }
}

/* Put elements i to i + 3, of all lanes of a warp, those below `length`. */
DEV void turner_put(const turner &u, int i, int length, float4 v)
{
    v = turn_fast(v, u.columns);
    if (i < length) {
        u16 *const to = u.planes + (i >> u.shift) * (u.columns + 8) + (i & (u.columns - 1));
        store_quad(to, u.rows * (u.columns + 8), v);
    }
}

/* Tile i of the result: d[0], d[1] are elements *at and *at + 1, d[2] and d[3] those eight rows further on. Returns how
 * many of these two rows there are. */
DEV int turner_tile(const turner &u, int base, int i, int lane, float *d, int *at)
{
    const int across = u.columns / 8, row = i / across * 16, column = i % across * 8, pitch = (u.columns + 8) * 2;
    const u32 a = shared_address(u.matrix) + (u32)((row + lane % 16) * (u.rows + 8) + lane / 16 * 8) * 2;
    const u32 b = shared_address(u.planes) + (u32)(lane % 16 * pitch + column * 2);
    float sums[3][4] = {};
#pragma unroll 3
    for (int k = 0; k < u.rows / 16; k++) {
        u32 m[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                     : "r"(a + (u32)k * 32)
                     : "memory");
#pragma unroll
        for (int plane = 0; plane < 3; plane++) {
            u32 x[2];
            asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                         : "=r"(x[0]), "=r"(x[1])
                         : "r"(b + (u32)((plane * u.rows + k * 16) * pitch))
                         : "memory");
            multiply(sums[plane], m, x[0], x[1]);
        }
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
        d[e] = sums[0][e] + (sums[1][e] + sums[2][e]);
    }
    const int first = row + lane / 4;
    *at = first * u.columns + column + lane % 4 * 2;
    return first + 8 < base ? 2 : first < base ? 1 : 0;
}

DEV int turner_tiles(const turner &u)
{
    return u.rows / 16 * (u.columns / 8);
}

#endif
