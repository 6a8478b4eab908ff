/* Rounding to bf16, for every kernel that stores it. Included after vec.h. */
#ifndef QN_KERNELS_CPU_BF16_H
#define QN_KERNELS_CPU_BF16_H

#include "kernels/cpu/name.h"

/* The 16 bits in the low half: nearest even; NaN stays NaN, made quiet. */
QN_INLINE vi bf16_bits(vf v)
{
    const vi bits = vi_bits(v), top = vi_shr(bits, 16);
    const vi rounded = vi_add(vi_add(bits, vi_set(0x7fff)), vi_and(top, vi_set(1)));
    return vi_where_nan(v, vi_select(vi_set(0x40), vi_set(0x40), top), vi_shr(rounded, 16));
}

/* 2 VL of them in order. */
QN_INLINE vi bf16_step(vf a, vf b)
{
    return vi_in_order(vi_pairs(bf16_bits(a), bf16_bits(b)));
}

#endif
