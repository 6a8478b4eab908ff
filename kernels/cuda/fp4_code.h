/* Floats to e2m1, ties to even; NaN is +0.
 *
 * The steps of e2m1 are 0.5 below 2, 1 below 4, 2 below 6. A float of 2^22 steps has a step as its last bit, so that
 * adding it rounds. */
#ifndef QN_CUDA_FP4_CODE_H
#define QN_CUDA_FP4_CODE_H

static __device__ inline float e2m1_size(float v)
{
    return fminf(fabsf(v), 6.0f);
}

/* The power of two below a size, at least 1, of sizes below 9. The larger of it and 1 by additions, exact here: they go
 * beside the logic and comparisons that bound the kernels. */
static __device__ inline float e2m1_binade(float size)
{
    float above; /* (size - 1) / 8, at least 0 */
    asm("fma.rn.sat.f32 %0, %1, 0f3E000000, 0fBE000000;" : "=f"(above) : "f"(size));
    return __uint_as_float(__float_as_uint(__fmaf_rn(above, 8.0f, 1.0f)) & 0x7f800000u);
}

/* Code of a size, in the lowest three bits; others are any; NaN: 0. Each range of one step counts its own steps, held
 * to [0, 1] before, and a code's last bit is also the sum's. Additions only: logic and shifts have half their rate. */
static __device__ inline unsigned int e2m1_low_bits(float size)
{
    float low, middle, high; /* of 2, of the 2 above, of the 2 above that */
    asm("fma.rn.sat.f32 %0, %1, 0f3F000000, 0f00000000;" : "=f"(low) : "f"(size));
    asm("fma.rn.sat.f32 %0, %1, 0f3F000000, 0fBF800000;" : "=f"(middle) : "f"(size));
    asm("fma.rn.sat.f32 %0, %1, 0f3F000000, 0fC0000000;" : "=f"(high) : "f"(size));
    return __float_as_uint(__fmaf_rn(middle, 2.0f, __fmaf_rn(low, 4.0f, 8388608.0f)) + high);
}

static __device__ inline unsigned int e2m1_code(float v)
{
    return v == v ? (e2m1_low_bits(fabsf(v)) & 7) | (__float_as_uint(v) >> 28 & 8) : 0;
}

/* The number that the code of v stands for. */
static __device__ inline float e2m1_round(float v)
{
    const float size = e2m1_size(v), shift = e2m1_binade(size) * 4194304.0f;
    return v == v ? copysignf((size + shift) - shift, v) : 0.0f;
}

/* Signs of elements 0, 2, 4, 6 and of 1, 3, 5, 7, each the top bit of a byte: of floats, and of pairs of 16 bits. */
typedef struct e2m1_signs {
    unsigned int even, odd;
} e2m1_signs;

static __device__ inline e2m1_signs e2m1_signs_of_pairs(unsigned int x, unsigned int y, unsigned int z, unsigned int w)
{
    const unsigned int low = __byte_perm(x, y, 0x7351), high = __byte_perm(z, w, 0x7351);
    e2m1_signs s;
    s.even = __byte_perm(low, high, 0x5410);
    s.odd = __byte_perm(low, high, 0x7632);
    return s;
}

static __device__ inline e2m1_signs e2m1_signs_of(const float *v)
{
    unsigned int pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        pairs[i] = __byte_perm(__float_as_uint(v[2 * i]), __float_as_uint(v[2 * i + 1]), 0x7632);
    }
    return e2m1_signs_of_pairs(pairs[0], pairs[1], pairs[2], pairs[3]);
}

/* Codes of eight sizes with these signs, the first in the lowest nibble. */
static __device__ inline unsigned int e2m1_codes(const float *sizes, e2m1_signs signs)
{
    unsigned int half[2];
#pragma unroll
    for (int i = 0; i < 2; i++) { /* of even and of odd places, a byte each */
        unsigned int low[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            low[j] = e2m1_low_bits(sizes[2 * j + i]);
        }
        half[i] = __byte_perm(__byte_perm(low[0], low[1], 0x0040), __byte_perm(low[2], low[3], 0x0040), 0x5410);
    }
    return (half[0] & 0x07070707u) | (half[1] << 4 & 0x70707070u) | (signs.even >> 4 & 0x08080808u) |
           (signs.odd & 0x80808080u);
}

#endif
