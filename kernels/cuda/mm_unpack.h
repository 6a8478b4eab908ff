/* Weights of every format to floats, a unit of a row at a time: what a lane loads
 * with few wide loads and decodes eight elements at a time.
 *
 * Parameters: B_FORMAT (kernels/common/cuda_mm.h); ALIGNED 1: rows start where a unit's words may be loaded at once
 * and are whole units; 0: any alignment and K, a unit is read byte by byte with zeros past K.
 *
 *   UNIT          elements of a unit: they share a scale
 *   struct raw    a unit as loaded (of vectors: decoded, by load_codes and look_up, see mm_vectors.h)
 *   load_raw(row, scales, unit, k)   scales: of this row, NULL where the format has none beside the data
 *   decode8(raw, j, v)               elements 8 j to 8 j + 7 of the unit as floats, scales included
 *                                    (UNIT 4: the four of them)
 * where a unit has one scale, SCALED_UNIT,
 *   codes8(raw, j, v)                the same without it
 *   scale_sum(raw, sum)              a sum over the unit of products with these, scaled
 * and of GGUF blocks
 *   four_codes(raw, i)               elements 4 i to 4 i + 3 as int8: a weight is code_scale(raw) times that, less
 *                                    code_minimum(raw), which is 0 but where CODE_MINIMUM
 *   CODE_GROUP                       elements that share those: 16 or 32 */
#ifndef QN_CUDA_MM_UNPACK_H
#define QN_CUDA_MM_UNPACK_H

#include "formats.h"

DEV void e5m2_floats(u32 codes, float *v)
{
    v[0] = half_float((codes & 0xff) << 8);
    v[1] = half_float(codes & 0xff00);
}

DEV float e4m3_float(u32 code)
{
    float v[2];
    e4m3_floats(code & 0xff, v);
    return v[0];
}

DEV float e8m0_float(u32 code)
{
    return __uint_as_float(code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : code << 23);
}

/* Eight e2m1 codes, the first in the lowest nibble, as 2^-14 of themselves, which they are as f16. */
DEV void e2m1_halves(u32 codes, float *v)
{
#pragma unroll
    for (int i = 0; i < 4; i++) { /* elements i and i + 4 */
        const u32 two = codes >> 4 * i;
        float pair[2];
        half_floats((two << 9 & 0x0e000e00) | (two << 12 & 0x80008000), pair);
        v[i] = pair[0];
        v[i + 4] = pair[1];
    }
}

/* The same times scale. */
DEV void e2m1_floats(u32 codes, float scale, float *v)
{
    e2m1_halves(codes, v);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] = v[i] * 16384.0f * scale;
    }
}

/* Blocks of whole words. */
#define WORDS                                                                                                          \
    (B_FORMAT == QN_MM_Q4_1 || B_FORMAT == QN_MM_Q5_1 || B_FORMAT == QN_MM_Q2_K || B_FORMAT == QN_MM_Q4_K ||           \
     B_FORMAT == QN_MM_Q5_K || B_FORMAT == QN_MM_IQ4_XS || B_FORMAT == QN_MM_I8_K)

/* Four bytes at an address that is a multiple of 2 or 4 (ALIGNED), or any. */
DEV u32 word_at(const u8 *p)
{
#if ALIGNED && WORDS
    return *(const u32 *)p;
#elif ALIGNED
    return (u32) * (const u16 *)p | (u32) * (const u16 *)(p + 2) << 16;
#else
    return (u32)p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24;
#endif
}

DEV u32 half_at(const u8 *p)
{
#if ALIGNED
    return *(const u16 *)p;
#else
    return (u32)p[0] | (u32)p[1] << 8;
#endif
}

/* Weights are read once. */
DEV uint4 load_words(const u8 *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* Each of four bytes of up to 127 less a number of up to 128. */
DEV u32 bytes_less(u32 bytes, u32 number)
{
    return ((bytes | 0x80808080u) - number * 0x01010101u) ^ 0x80808080u;
}

#define IS_GGUF (B_FORMAT >= QN_MM_Q4_0 && B_FORMAT <= QN_MM_I8_K)
#define VECTORS (B_FORMAT >= QN_MM_AQLM && B_FORMAT <= QN_MM_VPTQ)

/* ---- vectors ---- */
#if VECTORS
#include "mm_vectors.h"

/* ---- f32, f16, bf16, e4m3, e5m2, int8 ---- */
#elif B_FORMAT <= QN_MM_BF16 || (B_FORMAT >= QN_MM_E4M3 && B_FORMAT <= QN_MM_E5M2_BLOCK)

#if B_FORMAT == QN_MM_F32
#define UNIT 4
#define ELEMENT 4
#elif B_FORMAT <= QN_MM_BF16
#define UNIT 8
#define ELEMENT 2
#else
#define UNIT 16
#define ELEMENT 1
#endif
#define BLOCKED (B_FORMAT == QN_MM_E4M3_BLOCK || B_FORMAT == QN_MM_E5M2_BLOCK)

struct raw {
    u32 word[4];
#if BLOCKED
    float scale;
#endif
};

DEV raw load_raw(const u8 *row, const u8 *scales, int unit, int k)
{
    raw r;
#if ALIGNED
    const uint4 v = load_words(row + (i64)unit * 16);
    r.word[0] = v.x;
    r.word[1] = v.y;
    r.word[2] = v.z;
    r.word[3] = v.w;
#else
    const int first = unit * UNIT;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        r.word[i] = 0;
#pragma unroll
        for (int j = 0; j < 4 / ELEMENT; j++) {
            const int e = i * (4 / ELEMENT) + j;
            if (first + e < k) {
                const u8 *const p = row + (i64)(first + e) * ELEMENT;
                r.word[i] |= (ELEMENT == 4 ? *(const u32 *)p : ELEMENT == 2 ? *(const u16 *)p : *p) << 8 * ELEMENT * j;
            }
        }
    }
#endif
#if BLOCKED
    r.scale = ((const float *)scales)[unit / 8];
#endif
    return r;
}

DEV void codes8(const raw &r, int j, float *v)
{
#if B_FORMAT == QN_MM_F32
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = __uint_as_float(r.word[i]);
    }
#elif B_FORMAT == QN_MM_F16
#pragma unroll
    for (int i = 0; i < 4; i++) {
        half_floats(r.word[i], v + 2 * i);
    }
#elif B_FORMAT == QN_MM_BF16
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = __uint_as_float(r.word[i] << 16);
        v[2 * i + 1] = __uint_as_float(r.word[i] & 0xffff0000u);
    }
#else
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 word = r.word[2 * j + i];
#if B_FORMAT == QN_MM_I8
#pragma unroll
        for (int e = 0; e < 4; e++) {
            v[4 * i + e] = (float)(signed char)(word >> 8 * e);
        }
#elif B_FORMAT == QN_MM_E5M2_BLOCK
        e5m2_floats(word, v + 4 * i);
        e5m2_floats(word >> 16, v + 4 * i + 2);
#else
        e4m3_floats(word, v + 4 * i);
        e4m3_floats(word >> 16, v + 4 * i + 2);
#endif
    }
#endif
}

#if BLOCKED
#define SCALED_UNIT 1

DEV float scale_sum(const raw &r, float sum)
{
    return sum * r.scale;
}
#endif

DEV void decode8(const raw &r, int j, float *v)
{
    codes8(r, j, v);
#if BLOCKED
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] *= r.scale;
    }
#endif
}

/* ---- NVFP4, MXFP4 ---- */
#elif B_FORMAT == QN_MM_NVFP4 || B_FORMAT == QN_MM_MXFP4

#if B_FORMAT == QN_MM_NVFP4
#define UNIT 16
#else
#define UNIT 32
#endif

struct raw {
    u32 word[UNIT / 8], scale;
};

DEV raw load_raw(const u8 *row, const u8 *scales, int unit, int k)
{
    raw r;
    const u8 *const p = row + (i64)unit * (UNIT / 2);
#if ALIGNED && B_FORMAT == QN_MM_NVFP4
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(r.word[0]), "=r"(r.word[1]) : "l"(p));
#elif ALIGNED
    const uint4 v = load_words(p);
    r.word[0] = v.x;
    r.word[1] = v.y;
    r.word[2] = v.z;
    r.word[3] = v.w;
#else
#pragma unroll
    for (int i = 0; i < UNIT / 8; i++) {
        r.word[i] = word_at(p + 4 * i);
    }
#endif
    r.scale = scales[unit];
    return r;
}

#define SCALED_UNIT 1

DEV float unit_scale(const raw &r)
{
    return B_FORMAT == QN_MM_NVFP4 ? e4m3_float(r.scale) : e8m0_float(r.scale);
}

DEV void codes8(const raw &r, int j, float *v)
{
    e2m1_halves(r.word[j], v);
}

DEV float scale_sum(const raw &r, float sum)
{
    return sum * 16384.0f * unit_scale(r);
}

DEV void decode8(const raw &r, int j, float *v)
{
    e2m1_floats(r.word[j], unit_scale(r), v);
}

/* ---- GGUF blocks of 32 ---- */
#elif B_FORMAT <= QN_MM_Q8_0

#define UNIT 32
#if B_FORMAT == QN_MM_Q4_0
#define BLOCK_BYTES 18
#define CODES 2
#elif B_FORMAT == QN_MM_Q4_1
#define BLOCK_BYTES 20
#define CODES 4
#elif B_FORMAT == QN_MM_Q5_0
#define BLOCK_BYTES 22
#define CODES 6
#elif B_FORMAT == QN_MM_Q5_1
#define BLOCK_BYTES 24
#define CODES 8
#else
#define BLOCK_BYTES 34
#define CODES 2
#endif
#define AFFINE (B_FORMAT == QN_MM_Q4_1 || B_FORMAT == QN_MM_Q5_1)
#define FIFTH (B_FORMAT == QN_MM_Q5_0 || B_FORMAT == QN_MM_Q5_1)
#define CODE_WORDS (B_FORMAT == QN_MM_Q8_0 ? 8 : 4)

struct raw {
    u32 word[CODE_WORDS], scale; /* scale, and minimum in the high half */
#if FIFTH
    u32 high;
#endif
};

DEV raw load_raw(const u8 *row, const u8 *scales, int unit, int k)
{
    raw r;
    const u8 *const p = row + (i64)unit * BLOCK_BYTES;
    r.scale = AFFINE ? word_at(p) : half_at(p);
#if FIFTH
    r.high = word_at(p + CODES - 4);
#endif
#pragma unroll
    for (int i = 0; i < CODE_WORDS; i++) {
        r.word[i] = word_at(p + CODES + 4 * i);
    }
    return r;
}

DEV void decode8(const raw &r, int j, float *v)
{
    const float d = half_float(r.scale & 0xffffu);
#pragma unroll
    for (int i = 0; i < 8; i++) {
#if B_FORMAT == QN_MM_Q8_0
        v[i] = (float)(signed char)(r.word[2 * j + i / 4] >> i % 4 * 8) * d;
#else
        int code = (int)(r.word[j % 2 * 2 + i / 4] >> i % 4 * 8 + j / 2 * 4 & 15);
#if FIFTH
        code |= (int)(r.high >> 8 * j + i & 1) << 4;
#endif
        if (AFFINE) {
            v[i] = d * (float)code + half_float(r.scale >> 16);
        } else {
            v[i] = d * (float)(code - (FIFTH ? 16 : 8));
        }
#endif
    }
}

#define CODE_GROUP 32
#define CODE_MINIMUM AFFINE

DEV u32 four_codes(const raw &r, int i)
{
#if B_FORMAT == QN_MM_Q8_0
    return r.word[i];
#else
    u32 codes = r.word[i % 4] >> i / 4 * 4 & 0x0f0f0f0fu;
#if FIFTH
    codes |= ((r.high >> 4 * i & 15) * 0x00204081u & 0x01010101u) << 4; /* a bit a byte */
#endif
    return AFFINE ? codes : bytes_less(codes, FIFTH ? 16 : 8);
#endif
}

DEV float code_scale(const raw &r)
{
    return half_float(r.scale & 0xffffu);
}

DEV float code_minimum(const raw &r)
{
    return AFFINE ? -half_float(r.scale >> 16) : 0.0f;
}

/* ---- IQ4_NL, IQ4_XS: codes that stand for the values of a table ---- */
#elif B_FORMAT == QN_MM_IQ4_NL || B_FORMAT == QN_MM_IQ4_XS

#define UNIT 32

struct raw {
    u32 word[4];
    float scale;
};

DEV raw load_raw(const u8 *row, const u8 *scales, int unit, int k)
{
    raw r;
#if B_FORMAT == QN_MM_IQ4_NL
    const u8 *const p = row + (i64)unit * 18, *const codes = p + 2;
    r.scale = half_float(half_at(p));
#else
    const u8 *const p = row + (i64)(unit / 8) * 136, *const codes = p + 8 + unit % 8 * 16;
    const u32 low = p[4 + unit % 8 / 2] >> unit % 2 * 4 & 15, high = half_at(p + 2) >> unit % 8 * 2 & 3;
    r.scale = half_float(half_at(p)) * (float)((int)(low | high << 4) - 32);
#endif
#pragma unroll
    for (int i = 0; i < 4; i++) {
        r.word[i] = word_at(codes + 4 * i);
    }
    return r;
}

/* The values, as signed bytes, of the codes in the low nibbles of four bytes: of each half of the table the one that
 * the lower three bits choose, then by the fourth. */
DEV u32 table_bytes(u32 codes)
{
    u32 choice = codes & 0x07070707u;
    choice = (choice | choice >> 4) & 0x00ff00ffu;
    choice |= choice >> 8;
    const u32 lower = __byte_perm(0xbfad9881u, 0xf6eaddcfu, choice & 0xffffu);
    const u32 upper = __byte_perm(0x26190d01u, 0x71594535u, choice & 0xffffu);
    const u32 second = (codes >> 3 & 0x01010101u) * 0xffu;
    return (lower & ~second) | (upper & second);
}

DEV void decode8(const raw &r, int j, float *v)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 four = table_bytes(r.word[j % 2 * 2 + i] >> j / 2 * 4);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            v[4 * i + e] = r.scale * (float)(signed char)(four >> 8 * e);
        }
    }
}

#define CODE_GROUP 32
#define CODE_MINIMUM 0

DEV u32 four_codes(const raw &r, int i)
{
    return table_bytes(r.word[i % 4] >> i / 4 * 4);
}

DEV float code_scale(const raw &r)
{
    return r.scale;
}

DEV float code_minimum(const raw &r)
{
    return 0.0f;
}

/* ---- i8_k: f32 d, sixteen int8 scales, int8 values ---- */
#elif B_FORMAT == QN_MM_I8_K

#define UNIT 16

struct raw {
    u32 word[4];
    float scale;
};

DEV raw load_raw(const u8 *row, const u8 *scales, int unit, int k)
{
    raw r;
    const u8 *const p = row + (i64)(unit / 16) * 276;
    r.scale = __uint_as_float(word_at(p)) * (float)(signed char)p[4 + unit % 16];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        r.word[i] = word_at(p + 20 + unit % 16 * 16 + 4 * i);
    }
    return r;
}

DEV void decode8(const raw &r, int j, float *v)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] = r.scale * (float)(signed char)(r.word[2 * j + i / 4] >> i % 4 * 8);
    }
}

#define CODE_GROUP 16
#define CODE_MINIMUM 0

DEV u32 four_codes(const raw &r, int i)
{
    return r.word[i];
}

DEV float code_scale(const raw &r)
{
    return r.scale;
}

DEV float code_minimum(const raw &r)
{
    return 0.0f;
}

/* ---- GGUF super blocks of 256: a unit is a group of 16 ---- */
#else

#define UNIT 16
#if B_FORMAT == QN_MM_Q2_K
#define BLOCK_BYTES 84
#elif B_FORMAT == QN_MM_Q3_K
#define BLOCK_BYTES 110
#elif B_FORMAT == QN_MM_Q4_K
#define BLOCK_BYTES 144
#elif B_FORMAT == QN_MM_Q5_K
#define BLOCK_BYTES 176
#else
#define BLOCK_BYTES 210
#endif
#define HIGH_BITS (B_FORMAT != QN_MM_Q2_K && B_FORMAT != QN_MM_Q4_K)

struct raw {
    u32 word[4];
#if HIGH_BITS
    u32 high[4];
#endif
    float scale, minimum;
    int group;
};

/* Scale and minimum (six bits each) of sub-block j out of Q4_K's and Q5_K's 12 bytes. */
DEV void sub_scales(const u8 *s, int j, int *scale, int *minimum)
{
    *scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
    *minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
}

DEV raw load_raw(const u8 *row, const u8 *scales, int unit, int k)
{
    raw r;
    const u8 *const p = row + (i64)(unit / 16) * BLOCK_BYTES;
    const int group = unit % 16;
    const u8 *codes;
#if HIGH_BITS
    const u8 *high;
#endif
    r.group = group;
    r.minimum = 0.0f;
#if B_FORMAT == QN_MM_Q2_K
    r.scale = half_float(half_at(p + 80)) * (float)(p[group] & 15);
    r.minimum = half_float(half_at(p + 82)) * (float)(p[group] >> 4);
    codes = p + 16 + group / 8 * 32 + group % 2 * 16;
#elif B_FORMAT == QN_MM_Q3_K
    const u8 *const s = p + 96;
    const int low = group < 8 ? s[group] & 15 : s[group - 8] >> 4, top = s[8 + group % 4] >> group / 4 * 2 & 3;
    r.scale = half_float(half_at(p + 108)) * (float)((low | top << 4) - 32);
    codes = p + 32 + group / 8 * 32 + group % 2 * 16;
    high = p + group % 2 * 16;
#elif B_FORMAT == QN_MM_Q6_K
    r.scale = half_float(half_at(p + 208)) * (float)(signed char)p[192 + group];
    codes = p + group / 8 * 64 + group % 4 * 16;
    high = p + 128 + group / 8 * 32 + group % 2 * 16;
#else
    int scale, minimum;
    sub_scales(p + 4, group / 2, &scale, &minimum);
    r.scale = half_float(half_at(p)) * (float)scale;
    r.minimum = half_float(half_at(p + 2)) * (float)minimum;
    codes = p + (B_FORMAT == QN_MM_Q5_K ? 48 : 16) + group / 4 * 32 + group % 2 * 16;
#if B_FORMAT == QN_MM_Q5_K
    high = p + 16 + group % 2 * 16;
#endif
#endif
#pragma unroll
    for (int i = 0; i < 4; i++) {
        r.word[i] = word_at(codes + 4 * i);
#if HIGH_BITS
        r.high[i] = word_at(high + 4 * i);
#endif
    }
    return r;
}

DEV void decode8(const raw &r, int j, float *v)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const u32 byte = r.word[2 * j + i / 4] >> i % 4 * 8 & 0xff;
#if HIGH_BITS
        const u32 top = r.high[2 * j + i / 4] >> i % 4 * 8 & 0xff;
#endif
#if B_FORMAT == QN_MM_Q2_K
        v[i] = r.scale * (float)(byte >> r.group % 8 / 2 * 2 & 3) - r.minimum;
#elif B_FORMAT == QN_MM_Q3_K
        v[i] = r.scale * (float)((int)(byte >> r.group % 8 / 2 * 2 & 3) - ((top >> r.group / 2 & 1) ? 0 : 4));
#elif B_FORMAT == QN_MM_Q4_K
        v[i] = r.scale * (float)(byte >> r.group / 2 % 2 * 4 & 15) - r.minimum;
#elif B_FORMAT == QN_MM_Q5_K
        v[i] = r.scale * (float)((byte >> r.group / 2 % 2 * 4 & 15) | (top >> r.group / 2 & 1) << 4) - r.minimum;
#else
        const u32 code = (byte >> r.group % 8 / 4 * 4 & 15) | (top >> r.group % 8 / 2 * 2 & 3) << 4;
        v[i] = r.scale * (float)((int)code - 32);
#endif
    }
}

#define CODE_GROUP (B_FORMAT == QN_MM_Q4_K || B_FORMAT == QN_MM_Q5_K ? 32 : 16)
#define CODE_MINIMUM (B_FORMAT == QN_MM_Q2_K || B_FORMAT == QN_MM_Q4_K || B_FORMAT == QN_MM_Q5_K)

DEV u32 four_codes(const raw &r, int i)
{
#if B_FORMAT == QN_MM_Q2_K
    return r.word[i] >> r.group % 8 / 2 * 2 & 0x03030303u;
#elif B_FORMAT == QN_MM_Q3_K
    return bytes_less(
        (r.word[i] >> r.group % 8 / 2 * 2 & 0x03030303u) | (r.high[i] >> r.group / 2 & 0x01010101u) << 2, 4);
#elif B_FORMAT == QN_MM_Q4_K
    return r.word[i] >> r.group / 2 % 2 * 4 & 0x0f0f0f0fu;
#elif B_FORMAT == QN_MM_Q5_K
    return (r.word[i] >> r.group / 2 % 2 * 4 & 0x0f0f0f0fu) | (r.high[i] >> r.group / 2 & 0x01010101u) << 4;
#else
    return bytes_less((r.word[i] >> r.group % 8 / 4 * 4 & 0x0f0f0f0fu) |
                          (r.high[i] >> r.group % 8 / 2 * 2 & 0x03030303u) << 4,
                      32);
#endif
}

DEV float code_scale(const raw &r)
{
    return r.scale;
}

DEV float code_minimum(const raw &r)
{
    return r.minimum;
}
#endif

#endif
