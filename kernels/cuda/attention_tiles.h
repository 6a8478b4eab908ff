/* What the kernels of attention by tiles (attention_tiles.cu) have in common: a row as planes, and what a row of
 * queries sees.
 *
 * Parameters: SIZE, WINDOW; K_FORMAT and V_FORMAT of whoever uses K_FACTORS and V_FACTORS. */
#ifndef QN_CUDA_ATTENTION_TILES_H
#define QN_CUDA_ATTENTION_TILES_H

#include "formats.h"
#include "cuda_activation.h"

#define NONE __int_as_float(0xff800000u)
#define K_FACTORS (K_FORMAT != 1)
#define V_FACTORS (V_FORMAT != 1)
#define PARTIAL QN_CUDA_PARTIAL(SIZE)
#define PAIRS ((SIZE + 63) / 64) /* a lane has elements 2 lane + 64 j and the next */

template <int format> DEV float load_element(const char *row, int d)
{
    if (format == QN_MM_E4M3) {
        float v[2];
        e4m3_floats(((const u8 *)row)[d], v);
        return v[0];
    }
    return load_float(row, d, format);
}

/* By a warp: a row, or zeros where it is not there. */
template <int format> DEV void load_row(float v[PAIRS][2], const char *row, int lane, bool there)
{
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        const int d = 2 * lane + 64 * j;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            v[j][e] = d < SIZE && there ? load_element<format>(row, d + e) : 0.0f;
        }
    }
}

/* Two numbers as the nearest f16 and the nearest to what they leave. */
DEV void split_pair(float x, float y, u32 *high, u32 *low)
{
    asm("{\n.reg .b16 l, h;\n.reg .f32 x, y;\ncvt.rn.f16x2.f32 %0, %3, %2;\nmov.b32 {l, h}, %0;\n"
        "cvt.f32.f16 x, l;\ncvt.f32.f16 y, h;\nsub.rn.f32 x, %2, x;\nsub.rn.f32 y, %3, y;\n"
        "cvt.rn.f16x2.f32 %1, y, x;\n}"
        : "=r"(*high), "=r"(*low)
        : "f"(x), "f"(y));
}

/* By so many lanes: a row times the power of two that takes its largest element to between 2^14 and 2^15; returns the
 * inverse. Rows below 2^-97 stay below that. A row with an infinity or a NaN has some of them afterwards. */
template <int pairs, int lanes> DEV float normalise(float v[pairs][2])
{
    float most = 0.0f;
#pragma unroll
    for (int j = 0; j < pairs; j++) {
        most = fmaxf(most, fmaxf(fabsf(v[j][0]), fabsf(v[j][1])));
    }
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    }
    const int exponent = (int)(__float_as_uint(most) >> 23), at = exponent > 30 ? exponent : 30;
    const float by = __uint_as_float((u32)(268 - at) << 23);
#pragma unroll
    for (int j = 0; j < pairs; j++) {
        v[j][0] *= by;
        v[j][1] *= by;
    }
    return __uint_as_float((u32)(at - 14) << 23);
}

/* Weights below 2^-126 are 0. */
DEV float weight_of(float score)
{
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(score));
    return e;
}

/* Of sums of weights, which are far from the ends of f32: within a unit in the last place, without the branches of a
 * division. */
DEV float reciprocal(float v)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return __fmaf_rn(r, __fmaf_rn(-v, r, 1.0f), r);
}

/* Row r of the block's key head: its query, and its head in the group. */
struct row_place {
    int query, head;
};

DEV int query_of(const qn_cuda_attention_tiles &a, int r)
{
    return (int)(__umulhi(2 * (u32)r, a.by_group) >> a.group_shift);
}

DEV row_place place_of(const qn_cuda_attention_tiles &a, int r)
{
    const int query = query_of(a, r);
    return {query, r - query * a.group};
}

/* Rows of the planes that a row of the block sees: those below `below`, and those from `from` to before `to`. */
struct view {
    int below, from, to;
};

DEV view seen_by(const qn_cuda_attention_tiles &a, int r)
{
    const int query = query_of(a, r);
    const int keys = a.causal ? a.keys - a.queries + 1 + (query < a.queries ? query : a.queries - 1) : a.keys;
#if WINDOW
    const int first = keys > 0 ? (keys - 1) / 32 * 32 - a.window : 0, below = first > 0 ? first : 0;
    const int at = a.coded + below - a.recent_first;
    return {below, at, keys > 0 ? at + keys - below : at};
#else
    return {keys > 0 ? keys : 0, 0, 0};
#endif
}

/* Of all that it sees. */
DEV int end_of(view v)
{
    return v.to > v.from ? v.to : v.below;
}

#endif
