/* What may stand before a product of one row, done by every block for itself: the row's norm, gate and up, or the
 * parts of an attention put together, then its quantisation. The results are those of the operators by themselves.
 *
 *   PRE    0 nothing, 1 rmsnorm, 2 silu_mul, 3 attention
 *   ROUND  format that the row is rounded to before the product or its quantisation (0: stays f32)
 *   QUANT  0 none, 1 fp8 a row, 2 fp8 in groups of 128, 3 int8 a row, 4 int8 with a zero point a row,
 *          5 nvfp4 with the global scale given
 *   FLOORS 1: the scales of silu_mul_quant, else those of the quantize operators
 *
 * Of threads THREADS, X_FORMAT 0; row holds a.k floats in shared memory. */
#ifndef QN_CUDA_MM_BEFORE_H
#define QN_CUDA_MM_BEFORE_H

#define TYPE (QUANT >= 3 && QUANT <= 4 ? 3 : 0)
#define ASYMMETRIC (QUANT == 4)
#define BOUNDED 0
#include "rows.h"
#include "silu.h"
#include "parts.h"
#include "fp4_code.h"

/* What the sums of a quantised row are finished with. */
struct before {
    float scale;
    int azp;
};

DEV float sum_block(float v)
{
    __shared__ float parts[32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        v += __shfl_xor_sync(0xffffffffu, v, step);
    }
    if (threadIdx.x % 32 == 0) {
        parts[threadIdx.x / 32] = v;
    }
    __syncthreads();
    v = 0.0f;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) {
        v += parts[i];
    }
    return v;
}

/* Largest magnitude (or both ends) over a whole block; shared memory is free for use after the next barrier. */
DEV range range_block(range r)
{
    __shared__ range parts[32];
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

/* The row as floats. */
DEV void make_row(const qn_cuda_mm &a, float *row)
{
    const int tid = (int)threadIdx.x;
#if PRE == 1
    float squares = 0.0f;
    for (int i = tid; i < a.k; i += THREADS) {
        const float v = ((const float *)a.x)[i];
        row[i] = v;
        squares = __fmaf_rn(v, v, squares);
    }
    const float factor = 1.0f / sqrtf(sum_block(squares) / (float)a.k + a.eps);
    for (int i = tid; i < a.k; i += THREADS) {
        row[i] = rounded(row[i] * factor * ((const float *)a.norm)[i]);
    }
#elif PRE == 2
    const float *const x = (const float *)a.x;
    for (int i = tid; i < a.k; i += THREADS) {
        row[i] = rounded(silu_mul(x[i], x[a.k + i]));
    }
#elif PRE == 3
    for (int i = tid; i < a.k; i += THREADS) {
        row[i] = rounded(join_parts(a.partials, a.heads, a.head_size, i / a.head_size, i % a.head_size, *a.position + 1));
    }
#else
    for (int i = tid; i < a.k; i += THREADS) {
        row[i] = rounded(((const float *)a.x)[i]);
    }
#endif
    __syncthreads();
}

/* The row quantised, in place as the floats that codes stand for (int8: codes to bytes). */
DEV before quantise_row(const qn_cuda_mm &a, float *row, signed char *bytes)
{
    before out;
    const int tid = (int)threadIdx.x;
    out.scale = 1.0f;
    out.azp = 0;
#if QUANT == 1 || QUANT == 3 || QUANT == 4
    range r = no_range();
    for (int i = tid; i < a.k; i += THREADS) {
        widen_range(&r, row[i]);
    }
    r = range_block(r);
#if QUANT == 1
    out.scale = fmaxf(ratio(r.high, CODE_MAX), 1.0f / (CODE_MAX * 512.0f));
    const divisor by = divide_by(out.scale);
    for (int i = tid; i < a.k; i += THREADS) {
        row[i] = e4m3_float(two_codes(quotient(row[i], by), 0.0f));
    }
#elif QUANT == 3 && FLOORS
    out.scale = fmaxf(ratio(r.high, CODE_MAX), 1.1920928955078125e-7f);
    const divisor by = divide_by(out.scale);
    for (int i = tid; i < a.k; i += THREADS) {
        bytes[i] = (signed char)two_codes(quotient(row[i], by), 0.0f);
    }
#elif QUANT == 3
    out.scale = r.high / 127.0f;
    const float factor = r.high == 0.0f ? 0.0f : 127.0f / r.high;
    for (int i = tid; i < a.k; i += THREADS) {
        bytes[i] = (signed char)two_codes(row[i] * factor, 0.0f);
    }
#else
    const zero_point z = find_zero_point(r);
    out.scale = z.scale;
    out.azp = z.azp;
    const float inverse = 1.0f / z.scale;
    for (int i = tid; i < a.k; i += THREADS) {
        bytes[i] = (signed char)two_codes(with_zero_point(row[i] * inverse, z.azp), 0.0f);
    }
#endif
#elif QUANT == 2
    const int lane = tid % 32;
    for (int g = tid / 32; g * 128 < a.k; g += THREADS / 32) {
        range r = no_range();
        for (int i = g * 128 + lane; i < a.k && i < g * 128 + 128; i += 32) {
            widen_range(&r, row[i]);
        }
        reduce_lanes(&r, 32);
        const float s = FLOORS ? fmaxf(ratio(r.high, CODE_MAX), 1.0f / (CODE_MAX * 512.0f))
                               : ratio(fmaxf(r.high, 1e-10f), CODE_MAX);
        const divisor by = divide_by(s);
        for (int i = g * 128 + lane; i < a.k && i < g * 128 + 128; i += 32) {
            row[i] = e4m3_float(two_codes(quotient(row[i], by), 0.0f)) * s;
        }
    }
#elif QUANT == 5
    const float global = *(const float *)a.x_global, inverse = 1.0f / global;
    for (int g = tid; g * 16 < a.k; g += THREADS) {
        float most = 0.0f;
        for (int i = 0; i < 16; i++) {
            most = fmaxf(most, fabsf(row[g * 16 + i]));
        }
        const float s = e4m3_float(two_codes(global * (most * (1.0f / 6.0f)), 0.0f));
        const float factor = s == 0.0f ? 0.0f : 1.0f / (s * inverse);
        for (int i = 0; i < 16; i++) {
            float v[8];
            e2m1_floats(e2m1_code(row[g * 16 + i] * factor), s, v);
            row[g * 16 + i] = v[0];
        }
    }
#endif
    __syncthreads();
    return out;
}

#endif
