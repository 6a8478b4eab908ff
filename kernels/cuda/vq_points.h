/* E8P12 weights as operands of exact integer products, which vq_points.cu describes, and digits of x. A file that
 * includes it has THREADS, 512, and TILES. */
#ifndef QN_CUDA_VQ_POINTS_H
#define QN_CUDA_VQ_POINTS_H

#include "vq_digits.h"
#include "vq_lattice.h"

#define ENTRY_BYTES 128 /* 32 copies */
#define TABLE_BYTES (512 * ENTRY_BYTES)
#define DIGIT_PITCH 288 /* bytes of a digit of a span: 256, and 32 that keep digits off each other's banks */

DEV void multiply(int *sum, const u32 *w, uint2 b)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
                 : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(b.x), "r"(b.y));
}

/* ---- weights ---- */

DEV void load_block(const char *at, u32 (*codes)[4], int j)
{
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(codes[0][j]), "=r"(codes[1][j])
                 : "l"(at));
}

/* Entries with 1/4 subtracted and the first coordinate turned, then those with 1/4 added: 32 copies of each; each
 * thread begins at another bank. */
DEV void fill(u32 table)
{
    const u32 entry = e8p_words[threadIdx.x % 256] ^ (threadIdx.x < 256 ? 0x1111111Fu : 0);
#pragma unroll
    for (u32 c = 0; c < 8; c++) {
        const u32 at = table + threadIdx.x * ENTRY_BYTES + (c + threadIdx.x) % 8 * 16;
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(entry) : "memory");
    }
}

/* (v ^ turned) & part, which the compiler would do in three instructions for two parts, not two. */
DEV u32 turned_part(u32 v, u32 turned, u32 part)
{
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, 0x28;" : "=r"(d) : "r"(v), "r"(turned), "r"(part));
    return d;
}

/* Point i of four as its two registers. Bit 4 k + i of `signs` is set where coordinate k is negated, and 1/4 is
 * subtracted where those are odd in number: the sum of all, in the highest bit of a product, which a permutation makes
 * 256 entries less. two: signs >> 2. mine: the lane's copy of the first entry with 1/4 added. pitch: ENTRY_BYTES, which
 * the compiler is not to know: a multiplication by it has a pipe to itself, a shift is one of too many. */
DEV void point(u32 codes, u32 signs, u32 two, u32 mine, u32 pitch, int i, u32 *even, u32 *odd)
{
    const u32 bits = (i < 2 ? signs : two) & (i % 2 ? 0x22222222u : 0x11111111u);
    const u32 odd_many = bits * (i % 2 ? 0x44444444u : 0x88888888u), turned = bits * (i % 2 ? 7u : 14u);
    u32 entry, v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(entry) : "r"(codes), "r"(odd_many), "r"(0xFFF0 | i)); /* bit 31 three times */
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(entry * pitch + mine));
    *even = turned_part(v, turned, 0x0F0F0F0Fu);
    *odd = turned_part(v, turned, 0xF0F0F0F0u);
}

/* ---- rows of x ---- */

/* Digits 0 to 3 of four elements. */
DEV void transpose(u32 a, u32 b, u32 c, u32 e, u32 *digits)
{
    const u32 ab0 = __byte_perm(a, b, 0x5140), ab2 = __byte_perm(a, b, 0x7362);
    const u32 ce0 = __byte_perm(c, e, 0x5140), ce2 = __byte_perm(c, e, 0x7362);
    digits[0] = __byte_perm(ab0, ce0, 0x5410) ^ 0x80808080u;
    digits[1] = __byte_perm(ab0, ce0, 0x7632) ^ 0x80808080u;
    digits[2] = __byte_perm(ab2, ce2, 0x5410) ^ 0x80808080u;
    digits[3] = __byte_perm(ab2, ce2, 0x7632) ^ 0x80808080u;
}

/* The warp's 256 elements as digits, product i, lane t of a quad: elements 64 (i / 2) + 16 t + 8 (i % 2) on, in the
 * order 0 4 1 5 2 6 3 7, the former four times 16. Returns what they are to be multiplied by. most: bits of the largest
 * element of all that have one scale; all: their sum. */
DEV float put_digits(const float *v, u32 most, u32 to, int lane, float *all)
{
    u32 u[8], low[4], high[4];
    int sum = 0;
    const float scale = digits_below(v, most, u);
    const u32 at = to + (u32)(lane / 8 * 2 + lane % 2) * 32 + (u32)(lane % 8 / 2) * 8;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        u[e] -= 0x00808080u;
        sum += (int)u[e];
        u[e] = u[e] * (e % 4 < 2 ? 16 : 1) + 0x80808080u;
    }
    transpose(u[0], u[4], u[1], u[5], low);
    transpose(u[2], u[6], u[3], u[7], high);
#pragma unroll
    for (u32 d = 0; d < 4; d++) {
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at + d * DIGIT_PITCH), "r"(low[d]), "r"(high[d])
                     : "memory");
    }
    *all = (float)__reduce_add_sync(~0u, sum);
    return scale;
}

/* Where the lane's copy of the first entry with 1/4 added is. */
DEV u32 entry_of_lane(const u8 *table, int lane)
{
    return shared_address(table) + TABLE_BYTES / 2 + (u32)lane * 4;
}

/* Sums of TILES tiles and a span; x: where the lane's digits are; mine: see above. ask(): for the next unit's codes,
 * once there is something to do meanwhile. */
template <class ASK> DEV void unit_sums(u32 mine, u32 (*codes)[2][4], u32 x, int (*sums)[4], ASK ask)
{
    const u32 pitch = blockDim.x / 4;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint2 b = load_digits(x + (u32)i * 32);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            u32 w[4];
            const u32 at = codes[tile][0][i / 2], signs = codes[tile][1][i / 2], two = signs >> 2;
            point(at, signs, two, mine, pitch, i % 2 * 2, &w[0], &w[2]);
            point(at, signs, two, mine, pitch, i % 2 * 2 + 1, &w[1], &w[3]);
            multiply(sums[tile], w, b);
        }
        if (i == 0) {
            ask();
        }
    }
}

#endif
