/* Pairs of plain C (kernels/cpu/panel.h): sixteen floats or int32 sums, multiplied then added. */
#ifndef QN_KERNELS_SCALAR_PAIRS_H
#define QN_KERNELS_SCALAR_PAIRS_H

#include <stdint.h>
#include <string.h>

#include "kernels/common/panel.h"
#include "kernels/cpu/name.h"

#define QN_ISA scalar
#define PAIRS_F QN_PANEL_F32
#define PAIR_I8 1
#define I8_MR 2
#define I8_NR 1
#define PAIR_PARTS 1
#define PAIR_MR 4
#define PAIR_NR 1
#define PAIR_MR_MANY 2
#define PAIR_NR_MANY 1
#define PAIR_BLOCKS 4
#define PAIR_FEW 1
#define PAIR_KEEP 0
#define FEW_NR(code, rows) 1
#define ARE_FEW(code, rows) ((rows) <= PAIR_FEW)
#define PARTS_BESIDE(code, rows, nr) (nr)
#define FEW_GROUP 1
#define FEW_CHUNK(code) 1

#define EACH(c) for (int c = 0; c < QN_PANEL_COLS; c++)

typedef union vs {
    float f[QN_PANEL_COLS];
    uint32_t i[QN_PANEL_COLS];
} vs;

typedef union vl {
    float f[QN_PANEL_COLS];
    int16_t i[2 * QN_PANEL_COLS];
} vl;

typedef struct vw {
    vl even, odd; /* int8: even alone */
} vw;

QN_INLINE vs vs_zero(void)
{
    vs a;
    memset(&a, 0, sizeof a);
    return a;
}

QN_INLINE vs vs_load(const float *p)
{
    vs a;
    memcpy(&a, p, sizeof a);
    return a;
}

QN_INLINE void vs_store(float *p, vs a)
{
    memcpy(p, &a, sizeof a);
}

QN_INLINE vs vs_set(float x)
{
    vs a;
    EACH(c) a.f[c] = x;
    return a;
}

QN_INLINE vs vs_fma(vs a, vs b, vs c0)
{
    EACH(c) c0.f[c] += a.f[c] * b.f[c];
    return c0;
}

QN_INLINE float float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* e4m3 as value / 256, e5m2 as value / 65536 */
QN_INLINE float from_f8(const int code, uint32_t x)
{
    const uint32_t sign = x & 0x80, magnitude = x & 0x7f;
    if (code != QN_PANEL_E5M2) {
        const float f = magnitude < 8 ? (float)magnitude * 0x1p-17f : float_of_bits((magnitude << 20) + (112u << 23));
        return sign ? -f : f;
    }
    const float f = magnitude < 4 ? (float)magnitude * 0x1p-32f : float_of_bits((magnitude << 21) + (96u << 23));
    return sign ? -f : f;
}

static const float e2m1_values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

/* Step p * 2 + odd of a unit for column c. */
QN_INLINE float one_step(const int code, const unsigned char *unit, const int p, const int odd, int c)
{
    uint16_t word;
    switch (code) {
    case QN_PANEL_BF16:
        memcpy(&word, unit + p * QN_PANEL_LINE + 4 * c + 2 * odd, 2);
        return float_of_bits((uint32_t)word << 16);
    case QN_PANEL_NVFP4:
    case QN_PANEL_MXFP4: return e2m1_values[unit[4 * c + 2 * odd + p / 2] >> (p % 2 * 4) & 15];
    default: return from_f8(code, unit[p / 2 * QN_PANEL_LINE + c / 4 * 16 + p % 2 * 8 + c % 4 * 2 + odd]);
    }
}

QN_INLINE vl vl_load(const char *p)
{
    vl w;
    memcpy(&w, p, sizeof w);
    return w;
}

QN_INLINE vs vl_dot(const int code, vs sums, vl w, const char *a)
{
    if (code < QN_PANEL_I8) {
        float x;
        memcpy(&x, a, sizeof x);
        EACH(c) sums.f[c] += w.f[c] * x;
    } else {
        int16_t x[2];
        memcpy(x, a, sizeof x);
        EACH(c) sums.i[c] += (uint32_t)(w.i[2 * c] * x[0] + w.i[2 * c + 1] * x[1]);
    }
    return sums;
}

QN_INLINE vw vw_unpack(const int code, const char *unit, const int p)
{
    vw w;
    if (code == QN_PANEL_I8) {
        const int8_t *const from = (const int8_t *)unit + p / 2 * QN_PANEL_LINE + p % 2;
        for (int i = 0; i < 2 * QN_PANEL_COLS; i++) {
            w.even.i[i] = from[2 * i];
        }
        w.odd = w.even;
    } else {
        EACH(c)
        {
            w.even.f[c] = one_step(code, (const unsigned char *)unit, p, 0, c);
            w.odd.f[c] = one_step(code, (const unsigned char *)unit, p, 1, c);
        }
    }
    return w;
}

QN_INLINE void vw_store(const int code, char *p, vw w)
{
    memcpy(p, &w.even, sizeof w.even);
    if (code == QN_PANEL_F32) {
        memcpy(p + QN_PANEL_LINE, &w.odd, sizeof w.odd);
    }
}

QN_INLINE vl vw_line(vw w, const int s)
{
    return s ? w.odd : w.even;
}

QN_INLINE void group_scales(const int code, const char *block, const int part, float *out)
{
    (void)part;
    const unsigned char *const scales = (const unsigned char *)block + 512;
    if (code == QN_PANEL_NVFP4) {
        for (int i = 0; i < 4 * QN_PANEL_COLS; i++) {
            out[i % 16 / 4 * QN_PANEL_COLS + i / 16 * 4 + i % 4] = from_f8(QN_PANEL_E4M3, scales[i]);
        }
    } else {
        for (int i = 0; i < 2 * QN_PANEL_COLS; i++) {
            out[i] = float_of_bits((uint32_t)scales[i] << 23);
        }
    }
}

#undef EACH
#endif
