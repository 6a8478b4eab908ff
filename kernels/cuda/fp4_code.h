/* Floats to e2m1, ties to even; NaN is +0.
 *
 * The steps of e2m1 are 0.5 below 2, 1 below 4, 2 below 6. A float of 2^22 steps has a step as its last bit, so that
 * adding it rounds; six steps more make the low bits of the sum, with its exponent's added, the code itself. */
#ifndef QN_CUDA_FP4_CODE_H
#define QN_CUDA_FP4_CODE_H

static __device__ inline float e2m1_size(float v)
{
    return fminf(fabsf(v), 6.0f);
}

/* The power of two below a size, at least 1. */
static __device__ inline float e2m1_binade(float size)
{
    return __uint_as_float(__float_as_uint(fmaxf(size, 1.0f)) & 0x7f800000u);
}

/* Code of a size below 7, in the lowest three bits; others are any. */
static __device__ inline unsigned int e2m1_low_bits(float size)
{
    const unsigned int sum = __float_as_uint(__fmaf_rn(e2m1_binade(size), 4194307.0f, size));
    return (sum >> 22) + sum;
}

static __device__ inline unsigned int e2m1_code(float v)
{
    return v == v ? (e2m1_low_bits(e2m1_size(v)) & 7) | (__float_as_uint(v) >> 28 & 8) : 0;
}

/* The number that the code of v stands for. */
static __device__ inline float e2m1_round(float v)
{
    const float size = e2m1_size(v), shift = e2m1_binade(size) * 4194304.0f;
    return v == v ? copysignf((size + shift) - shift, v) : 0.0f;
}

/* Codes of eight floats, the first in the lowest nibble: of less than 7, or, with cut 1, of any but NaN. */
static __device__ inline unsigned int e2m1_codes(const float *v, int cut)
{
    unsigned int half[2], sign[2];
#pragma unroll
    for (int i = 0; i < 2; i++) { /* of even and of odd places, a byte each */
        unsigned int low[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            low[j] = e2m1_low_bits(cut ? e2m1_size(v[2 * j + i]) : fabsf(v[2 * j + i]));
        }
        half[i] = __byte_perm(__byte_perm(low[0], low[1], 0x0040), __byte_perm(low[2], low[3], 0x0040), 0x5410);
        sign[i] = __byte_perm(__byte_perm(__float_as_uint(v[i]), __float_as_uint(v[2 + i]), 0x0073),
                              __byte_perm(__float_as_uint(v[4 + i]), __float_as_uint(v[6 + i]), 0x0073), 0x5410);
    }
    return (half[0] & 0x07070707u) | (half[1] << 4 & 0x70707070u) | (sign[0] >> 4 & 0x08080808u) |
           (sign[1] & 0x80808080u);
}

#endif
