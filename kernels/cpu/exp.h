/* exp of a vector for x <= 0, within 2 ulp: 2^n times a polynomial of degree 6
 * for |r| <= ln2 / 2, relative error 2^-29 before rounding; exp(0) is 1. NaN
 * stays NaN; below -87.3 the result is 0 (a true result there is subnormal). */
#ifndef QN_KERNELS_EXP_H
#define QN_KERNELS_EXP_H

#include "kernels/cpu/name.h"

QN_INLINE vf vf_exp(vf x)
{
    const vf round = vf_set(12582912.0f); /* 1.5 * 2^23: the sum's last bits are the rounded integer */
    const vf z = vf_add(vf_mul(x, vf_set(1.44269504f)), round);
    const vf n = vf_sub(z, round);
    vf r = vf_fma(n, vf_set(-0.693359375f), x);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf p = vf_set(0.00138368231f);
    p = vf_fma(p, r, vf_set(0.008374834f));
    p = vf_fma(p, r, vf_set(0.0416682269f));
    p = vf_fma(p, r, vf_set(0.1666642f));
    p = vf_fma(p, r, vf_set(0.49999992f));
    p = vf_fma(p, r, vf_set(1.0f));
    p = vf_fma(p, r, vf_set(1.0f));
    const vf power = vf_bits(vi_add(vi_shl(vi_bits(z), 23), vi_set(127u << 23)));
    return vf_zero_below(vf_mul(p, power), x, -87.3f);
}

#endif
