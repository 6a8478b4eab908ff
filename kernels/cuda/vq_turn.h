/* Hadamard transforms of a row in shared memory, by all threads of a block: what the kernels that transform share
 * (vq_turn.cu, vq_points.cu). A file that includes it has THREADS, and TURN_ROWS where a thread is to have more than
 * one row of the base's matrix at a time, which takes fewer accesses: 4.
 *
 * A row is [base][columns], columns a power of two from 4 on. Order: the base's matrix along the slow axis, then the
 * levels of Sylvester's from neighbours up, so that a row's bits do not depend on how many blocks share its columns. */
#ifndef QN_CUDA_VQ_TURN_H
#define QN_CUDA_VQ_TURN_H

#include "vq_parts.h"

#define TURN_WORDS(base) (((base) + 31) / 32) /* of a row of signs */
#ifndef TURN_ROWS
#define TURN_ROWS 1
#endif

/* 1: element (i, j) of Paley's base matrix is -1; src/format/hadamard.c has the rules. */
DEV u32 turn_paley(const qn_cuda_turn &t, int i, int j)
{
    const int row = t.transposed ? j : i, column = t.transposed ? i : j;
    const int half = t.rule == QN_TURN_PALEY_2 ? t.base / 2 : t.base, down = row >= half, right = column >= half;
    const int r = row - (down ? half : 0), c = column - (right ? half : 0);
    const int at = c - r + (c < r ? half - 1 : 0);
    const u32 edge = r == 0 || c == 0, chi = edge ? 0 : (u32)(t.bits[at / 64] >> at % 64) & 1;
    if (t.rule == QN_TURN_PALEY_1) {
        return edge ? column != 0 : r == c ? 0 : chi ^ 1;
    }
    return r == c ? down | right : chi ^ (u32)(down & right);
}

/* Row i of Williamson's: a row of each of four symmetric circulants, with the signs of a quaternion's matrix. */
DEV void turn_williamson(const qn_cuda_turn &t, int i, u32 *to)
{
    const int m = t.base / 4, a = i / m, turned = i % m;
    const u64 all = (1ull << m) - 1;
    u64 ahead = 0;
    int count = 0;
#pragma unroll 1
    for (int b = 0; b < 4; b++) {
        const u64 first = t.bits[a ^ b];
        const int negated = 0x3950 >> (t.transposed ? 4 * b + a : 4 * a + b) & 1;
        const u64 row = ((first << turned | first >> (m - turned)) ^ (negated ? all : 0)) & all;
#pragma unroll 1
        for (int done = 0; done < m; done += 32) { /* the next 32 bits of it, or what is left */
            ahead |= (row >> done & 0xffffffffu) << count;
            count += m - done < 32 ? m - done : 32;
            if (count >= 32) {
                *to++ = (u32)ahead;
                ahead >>= 32;
                count -= 32;
            }
        }
    }
    if (count > 0) {
        *to = (u32)ahead;
    }
}

/* Ask L2 for a block's share, `part` of `parts`, of a vector that no kernel writes. */
DEV void turn_prefetch(const char *p, int count, int format, int part, int parts)
{
    const i64 bytes = (i64)count * (format == QN_MM_F32 ? 4 : 2);
#pragma unroll 1
    for (i64 at = ((i64)part * THREADS + threadIdx.x) * 128; at < bytes; at += (i64)parts * THREADS * 128) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(p + at));
    }
}

/* The base matrix as rows of bits, the first of a word the highest: 1 where an element is -1. Not inlined: long, and
 * twice in a kernel. */
static __device__ __noinline__ void turn_signs(const qn_cuda_turn &t, u32 *signs)
{
    const int words = TURN_WORDS(t.base), lane = (int)threadIdx.x % 32;
    if (t.rule == QN_TURN_WILLIAMSON) {
        if ((int)threadIdx.x < t.base) {
            u32 *const row = signs + (int)threadIdx.x * words;
            turn_williamson(t, (int)threadIdx.x, row);
            for (int i = 0; i < words; i++) {
                row[i] = __brev(row[i]);
            }
        }
        return;
    }
    for (int i = (int)threadIdx.x / 32; i < t.base * words; i += THREADS / 32) {
        const int column = i % words * 32 + lane;
        const u32 bits = __ballot_sync(~0u, column < t.base && turn_paley(t, i / words, column));
        if (lane == 0) {
            signs[i] = __brev(bits);
        }
    }
}

/* Four columns of TURN_ROWS rows of the base matrix, from `row` on, times the slow axis; from points at their first
 * row. */
DEV void turn_slow(const qn_cuda_turn &t, const float *from, int columns, const u32 *signs, int row, float4 *sum)
{
    const int words = TURN_WORDS(t.base);
#pragma unroll
    for (int r = 0; r < TURN_ROWS; r++) {
        sum[r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    for (int w = 0; w < words; w++) {
        u32 bits[TURN_ROWS];
#pragma unroll
        for (int r = 0; r < TURN_ROWS; r++) {
            bits[r] = signs[(row + r) * words + w];
        }
        const int left = t.base - 32 * w;
#pragma unroll 4
        for (int j = 0; j < (left < 32 ? left : 32); j++) {
            const float4 v = *(const float4 *)(from + (32 * w + j) * columns);
#pragma unroll
            for (int r = 0; r < TURN_ROWS; r++) {
                const float sign = __uint_as_float(0x3f800000u ^ (bits[r] & 0x80000000u));
                sum[r].x = __fmaf_rn(v.x, sign, sum[r].x);
                sum[r].y = __fmaf_rn(v.y, sign, sum[r].y);
                sum[r].z = __fmaf_rn(v.z, sign, sum[r].z);
                sum[r].w = __fmaf_rn(v.w, sign, sum[r].w);
                bits[r] <<= 1;
            }
        }
    }
}

DEV float either_way(int upper, float own, float other)
{
    return upper ? other - own : own + other;
}

/* The levels below 128 of the four columns of this lane; its neighbours have theirs. */
DEV float4 turn_fast(float4 v, int columns)
{
    const float a = v.x + v.y, b = v.x - v.y, c = v.z + v.w, d = v.z - v.w;
    v = make_float4(a + c, b + d, a - c, b - d);
    for (int step = 1; 4 * step < (columns < 128 ? columns : 128); step *= 2) {
        const int upper = (int)threadIdx.x & step;
        v.x = either_way(upper, v.x, __shfl_xor_sync(~0u, v.x, step));
        v.y = either_way(upper, v.y, __shfl_xor_sync(~0u, v.y, step));
        v.z = either_way(upper, v.z, __shfl_xor_sync(~0u, v.z, step));
        v.w = either_way(upper, v.w, __shfl_xor_sync(~0u, v.w, step));
    }
    return v;
}

/* LEVELS levels from `half` on of `count` elements, in place. */
template <int LEVELS> DEV void turn_levels(float *row, int count, int half)
{
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < count >> LEVELS; i += THREADS) {
        float *const at = row + ((i & ~(half - 1)) << LEVELS | (i & (half - 1)));
        float v[1 << LEVELS];
#pragma unroll
        for (int j = 0; j < 1 << LEVELS; j++) {
            v[j] = at[j * half];
        }
#pragma unroll
        for (int level = 1; level < 1 << LEVELS; level *= 2) {
#pragma unroll
            for (int j = 0; j < 1 << LEVELS; j++) {
                if (!(j & level)) {
                    const float low = v[j], high = v[j + level];
                    v[j] = low + high;
                    v[j + level] = low - high;
                }
            }
        }
#pragma unroll
        for (int j = 0; j < 1 << LEVELS; j++) {
            at[j * half] = v[j];
        }
    }
}

/* to = the transform of `from` but for its scale, both [base][columns] at multiples of 16 bytes and not the same; signs
 * and `from` are to be there for all threads before. Ends before all threads have written `to`. */
DEV void turn_row(const qn_cuda_turn &t, const float *from, float *to, int columns, const u32 *signs)
{
    const int rows = t.base > 1 ? TURN_ROWS : 1, items = t.base / rows * columns / 4; /* a base is a multiple of 4 */
    const int lane = (int)threadIdx.x % 32, shift = 31 - __clz(columns);
    for (int first = (int)threadIdx.x - lane; first < items; first += THREADS) {
        const int item = first + lane < items ? first + lane : items - 1;
        const int row = (item * 4 >> shift) * rows, column = item * 4 & (columns - 1);
        float4 v[TURN_ROWS];
        if (t.base > 1) {
            turn_slow(t, from + column, columns, signs, row, v);
        } else {
            v[0] = *(const float4 *)(from + column);
        }
#pragma unroll
        for (int r = 0; r < TURN_ROWS; r++) {
            if (r < rows) {
                v[r] = turn_fast(v[r], columns);
                if (first + lane < items) {
                    *(float4 *)(to + (row + r) * columns + column) = v[r];
                }
            }
        }
    }
    for (int half = 128; half < columns;) {
        __syncthreads();
        if (4 * half < columns) {
            turn_levels<3>(to, t.base * columns, half);
            half *= 8;
        } else if (2 * half < columns) {
            turn_levels<2>(to, t.base * columns, half);
            half *= 4;
        } else {
            turn_levels<1>(to, t.base * columns, half);
            half *= 2;
        }
    }
}

#endif
