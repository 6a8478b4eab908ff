/* A sum of products as floats, by one thread: of what digits are not made for (mm_digits.cu, mm_join.cu). */
#ifndef QN_CUDA_MM_PLAIN_H
#define QN_CUDA_MM_PLAIN_H

#include "mm_common.h"

DEV int is_finite(float v)
{
    return (__float_as_uint(v) & 0x7f800000u) != 0x7f800000u;
}

/* The result of row m and column n. */
DEV void store_plain(const qn_cuda_mm &a, int m, int n)
{
    const qn_cuda_mm_part &p = a.part[0];
    float sum = 0.0f;
#pragma unroll 1
    for (int unit = 0; unit * UNIT < a.k; unit++) {
        const raw r = load_raw((const u8 *)p.b + n * p.b_row, scales_of(p, n), unit, a.k);
#pragma unroll
        for (int j = 0; j < (UNIT + 7) / 8; j++) {
            float v[8];
            decode8(r, j, v);
#pragma unroll
            for (int i = 0; i < (UNIT < 8 ? UNIT : 8); i++) {
                const int k = unit * UNIT + 8 * j + i;
                if (ALIGNED || k < a.k) {
                    sum = __fmaf_rn(v[i], load_x(a, m, k), sum);
                }
            }
        }
    }
    store_float(p.d + m * p.d_row, n, finish(load_tail(p, n), sum, 1.0f, 0, 1.0f), OUT);
}

#endif
