/* What may stand before a product of one row, done by every block for itself: the row's norm, gate and up, or the
 * parts of an attention put together, then its quantisation. The results are those of the operators by themselves.
 *
 *   PRE    0 nothing, 1 rmsnorm, 2 silu_mul, 3 attention
 *   ROUND  format that the row is rounded to before the product or its quantisation (0: stays f32)
 *   QUANT  0 none, 1 fp8 a row, 2 fp8 in groups of 128, 3 int8 a row, 4 int8 with a zero point a row,
 *          5 nvfp4 with the global scale given
 *   FLOORS 1: the scales of silu_mul_quant, else those of the quantize operators
 *   EARLY  1: the row may be made before it is there, of whatever lies in its place (parts.h)
 *   LATER  1: a norm's gains and factor are left to who includes this (without ROUND and QUANT)
 *   APART  1: scales of groups of 128 are not multiplied into the row, quantise_row tells them
 *   ITEMS  four neighbouring elements each that a thread has: ceil(K / (4 * THREADS))
 *
 * Of threads THREADS, X_FORMAT 0, K a multiple of 4. The row stays in registers: a group of 128 is a warp's, a block
 * of 16 that of four lanes. */
#ifndef QN_CUDA_MM_BEFORE_H
#define QN_CUDA_MM_BEFORE_H

#ifndef LATER
#define LATER 0
#endif
#ifndef APART
#define APART 0
#endif
#define TYPE (QUANT >= 3 && QUANT <= 4 ? 3 : 0)
#define ASYMMETRIC (QUANT == 4)
#define BOUNDED 0
#include "rows.h"
#include "silu.h"
#include "parts.h"
#include "sums.h"
#include "fp4_code.h"

/* A thread's elements. */
struct mine {
    float v[ITEMS][4];
};

/* What the sums of a quantised row are finished with. */
struct before {
    float scale;
    int azp;
#if QUANT == 2 && APART
    float group[ITEMS];
#endif
};

DEV int first_of(int item)
{
    return (item * THREADS + (int)threadIdx.x) * 4;
}

DEV void load_mine(const float *from, int k, mine *to)
{
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        float4 f = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (first_of(j) < k) {
            f = *(const float4 *)(from + first_of(j));
        }
        to->v[j][0] = f.x;
        to->v[j][1] = f.y;
        to->v[j][2] = f.z;
        to->v[j][3] = f.w;
    }
}

/* The same of what kernels before write. */
DEV void load_written(const float *from, int k, mine *to)
{
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        float4 f = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (first_of(j) < k) {
            f = load_written_f32x4(from + first_of(j));
        }
        to->v[j][0] = f.x;
        to->v[j][1] = f.y;
        to->v[j][2] = f.z;
        to->v[j][3] = f.w;
    }
}

#define EACH_ELEMENT                                                                                                   \
    _Pragma("unroll") for (int j = 0; j < ITEMS; j++) _Pragma("unroll") for (int e = 0; e < 4; e++)

/* Largest magnitude, or both ends, of the whole block. */
DEV range range_block(range r)
{
    __shared__ range parts[THREADS / 32];
    reduce_lanes(&r, 32);
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = r;
    }
    __syncthreads();
    r = parts[0];
#pragma unroll
    for (int i = 1; i < THREADS / 32; i++) {
#if ASYMMETRIC
        r.low = fminf(r.low, parts[i].low);
#endif
        r.high = fmaxf(r.high, parts[i].high);
    }
    return r;
}

DEV float rounded(float v)
{
#if ROUND == 2
    return __uint_as_float(pack_bf16(v, 0.0f) << 16);
#elif ROUND == 1
    return half_float(pack_f16(v, 0.0f) & 0xffffu);
#else
    return v;
#endif
}

/* Constants that the row needs: read before the kernels before are done. */
struct constants {
#if PRE == 1
    mine gains;
#endif
    int position; /* written before this pass's first kernel */
    float global;
};

DEV constants load_constants(const qn_cuda_mm &a)
{
    constants c;
#if PRE == 1
    load_mine((const float *)a.norm, a.k, &c.gains);
#endif
#if PRE == 3
    c.position = *a.position;
#endif
    c.global = QUANT == 5 ? *(const float *)a.x_global : 1.0f;
    return c;
}

/* What a norm multiplies a row of that sum of squares by, beside its gains. */
DEV float norm_factor(const qn_cuda_mm &a, float squares)
{
    return 1.0f / sqrtf(squares / (float)a.k + a.eps);
}

/* The row as floats. Returns what a norm has for this thread's sum of squares. */
DEV float make_row(const qn_cuda_mm &a, const constants &c, mine *row)
{
    float squares = 0.0f;
#if PRE == 3
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        const int i = first_of(j);
        float4 f = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (i < a.k) {
            f = join_parts(a.partials, a.heads, a.head_size, i / a.head_size, i % a.head_size, c.position + 1);
        }
        row->v[j][0] = f.x;
        row->v[j][1] = f.y;
        row->v[j][2] = f.z;
        row->v[j][3] = f.w;
    }
#else
    const float *const x = (const float *)a.x;
    load_written(x, a.k, row);
#endif
#if PRE == 1
    EACH_ELEMENT
    {
        squares = __fmaf_rn(row->v[j][e], row->v[j][e], squares);
    }
#if !LATER
    const float factor = norm_factor(a, sum_block<THREADS>(squares));
    EACH_ELEMENT
    {
        row->v[j][e] = row->v[j][e] * factor * c.gains.v[j][e];
    }
#endif
#elif PRE == 2
    mine up;
    load_written(x + a.k, a.k, &up);
    EACH_ELEMENT
    {
        row->v[j][e] = silu_mul(row->v[j][e], up.v[j][e]);
    }
#endif
    EACH_ELEMENT
    {
        row->v[j][e] = rounded(row->v[j][e]);
    }
    return squares;
}

/* Quantise the row: to the floats that its codes stand for (of a row's scale: to the codes as floats). */
DEV before quantise_row(const constants &c, mine *row)
{
    before out;
    out.scale = 1.0f;
    out.azp = 0;
#if QUANT == 1 || QUANT == 3 || QUANT == 4
    range r = no_range();
    EACH_ELEMENT
    {
        widen_range(&r, row->v[j][e]);
    }
    r = range_block(r);
#if QUANT == 4
    const zero_point z = find_zero_point(r);
    const float inverse = 1.0f / z.scale;
    out.scale = z.scale;
    out.azp = z.azp;
#elif QUANT == 3 && !FLOORS
    const float factor = r.high == 0.0f ? 0.0f : 127.0f / r.high;
    out.scale = r.high / 127.0f;
#else
    out.scale = fmaxf(ratio(r.high, CODE_MAX), QUANT == 3 ? 1.1920928955078125e-7f : 1.0f / (CODE_MAX * 512.0f));
    const divisor by = divide_by(out.scale);
#endif
    EACH_ELEMENT
    {
#if QUANT == 4
        const float t = with_zero_point(row->v[j][e] * inverse, z.azp);
#elif QUANT == 3 && !FLOORS
        const float t = row->v[j][e] * factor;
#else
        const float t = quotient(row->v[j][e], by);
#endif
        const u32 code = two_codes(t, 0.0f) & 0xff;
        row->v[j][e] = QUANT == 1 ? e4m3_float(code) : (float)(signed char)code;
    }
#elif QUANT == 2
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        range r = no_range();
#pragma unroll
        for (int e = 0; e < 4; e++) {
            widen_range(&r, row->v[j][e]);
        }
        reduce_lanes(&r, 32);
        const float s = FLOORS ? fmaxf(ratio(r.high, CODE_MAX), 1.0f / (CODE_MAX * 512.0f))
                               : ratio(fmaxf(r.high, 1e-10f), CODE_MAX);
        const divisor by = divide_by(s);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            row->v[j][e] = e4m3_float(two_codes(quotient(row->v[j][e], by), 0.0f)) * (APART ? 1.0f : s);
        }
#if APART
        out.group[j] = s;
#endif
    }
#elif QUANT == 5
    const float inverse = 1.0f / c.global;
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
        range r = no_range();
#pragma unroll
        for (int e = 0; e < 4; e++) {
            widen_range(&r, row->v[j][e]);
        }
        reduce_lanes(&r, 4);
        const float s = e4m3_float(two_codes(c.global * (r.high * (1.0f / 6.0f)), 0.0f));
        const float factor = s == 0.0f ? 0.0f : 1.0f / (s * inverse);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            row->v[j][e] = e2m1_round(row->v[j][e] * factor) * s;
        }
    }
#endif
    return out;
}

#endif
