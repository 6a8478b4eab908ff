/* How rows of a cache are kept, for kernels that attend over them with what comes before it: the parameter KV.
 *
 *   QN_CUDA_KV_F32, QN_CUDA_KV_BF16   rows of floats, keys turned
 *   QN_CUDA_KV_FP8                    e4m3 codes, a scale for each head behind them; from a multiple of 32 on, a window
 *                                     before the position, f16 in a ring
 *
 * Rows begin at 16 bytes, those of codes at 4. */
#ifndef QN_CUDA_DECODE_ROWS_H
#define QN_CUDA_DECODE_ROWS_H

#include "formats.h"
#include "cuda_vq_kv.h"

/* An element of a row of floats, and four as they are kept; of codes the first word. */
#if KV == QN_CUDA_KV_F32
typedef float kept;
typedef float4 four;
#else
typedef u16 kept;
typedef uint2 four;
#endif

DEV four keep_four(const float4 &v)
{
#if KV == QN_CUDA_KV_F32
    return v;
#elif KV == QN_CUDA_KV_BF16
    return make_uint2(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
#else
    return make_uint2(pack_f16(v.x, v.y), pack_f16(v.z, v.w));
#endif
}

/* Codes where `coded`, without their scale. */
DEV float4 floats_of(const four &v, int coded)
{
#if KV == QN_CUDA_KV_F32
    return v;
#elif KV == QN_CUDA_KV_BF16
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u), __uint_as_float(v.y << 16),
                       __uint_as_float(v.y & 0xffff0000u));
#else
    float low[2], high[2];
    if (coded) {
        e4m3_floats(v.x, low);
        e4m3_floats(v.x >> 16, high);
    } else {
        half_floats(v.x, low);
        half_floats(v.y, high);
    }
    return make_float4(low[0], low[1], high[0], high[1]);
#endif
}

template <int count> DEV void floats_of_all(const four (&v)[count], float4 (&to)[count], int coded)
{
    if (KV == QN_CUDA_KV_FP8 && coded) {
#pragma unroll
        for (int i = 0; i < count; i++) {
            to[i] = floats_of(v[i], 1);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < count; i++) {
        to[i] = floats_of(v[i], 0);
    }
}

/* Where a head of neighbouring tokens lies, of keys or of values. */
struct run {
    char *rows;
    i64 step;
    int first, ring;
};

DEV run run_of(const qn_cuda_decode &a, int values, int token, int head, int coded)
{
#if KV == QN_CUDA_KV_FP8
    const qn_cuda_kv_keep &recent = a.recent[values], &scaled = a.scaled[values];
    if (!coded) {
        return {recent.y + head * (SIZE * 2), recent.y_row, token % recent.ring, recent.ring};
    }
    return {scaled.y + head * SIZE, scaled.y_row, token, token + PART_KEYS};
#else
    return {(values ? a.values : a.keys) + head * (SIZE * (int)sizeof(kept)), a.row, token, 0};
#endif
}

DEV char *row_of(const run &r, int i)
{
    const int row = r.first + i;
    return r.rows + (KV == QN_CUDA_KV_FP8 && row >= r.ring ? row - r.ring : row) * r.step;
}

/* Elements 4 i to 4 i + 3 of a row. */
DEV four load_four(const char *row, int i, int coded)
{
    if (KV == QN_CUDA_KV_FP8 && coded) {
        four v = {};
        *(u32 *)&v = ((const u32 *)row)[i];
        return v;
    }
    return ((const four *)row)[i];
}

/* The same into shared memory, at four number i of a row there. */
DEV void copy_four(char *to, const char *row, int i, int coded)
{
    const u32 at = shared_address(to) + i * (u32)sizeof(four);
#if KV == QN_CUDA_KV_F32
    copy_async_16(at, row + i * 16, 16);
#else
    if (KV == QN_CUDA_KV_FP8 && coded) {
        copy_async_4(at, row + i * 4, 1);
    } else {
        copy_async_8(at, row + i * 8, 8);
    }
#endif
}

#endif
