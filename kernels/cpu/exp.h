/* exp of a vector, within 2 ulp: 2^n times the Taylor polynomial of degree 7 on
 * |r| <= ln2 / 2. NaN stays NaN; below -87.3 the result is 0 (a true result
 * there is subnormal); above 88.7 it is +infinity. */
#ifndef QN_KERNELS_EXP_H
#define QN_KERNELS_EXP_H

#include "kernels/cpu/name.h"

QN_INLINE vf vf_exp(vf x)
{
    const vf n = vf_round(vf_mul(x, vf_set(1.44269504f)));
    vf r = vf_fma(n, vf_set(-0.693359375f), x);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf p = vf_set(1.0f / 5040.0f);
    p = vf_fma(p, r, vf_set(1.0f / 720.0f));
    p = vf_fma(p, r, vf_set(1.0f / 120.0f));
    p = vf_fma(p, r, vf_set(1.0f / 24.0f));
    p = vf_fma(p, r, vf_set(1.0f / 6.0f));
    p = vf_fma(p, r, vf_set(0.5f));
    p = vf_fma(p, r, vf_set(1.0f));
    p = vf_fma(p, r, vf_set(1.0f));
    return vf_zero_below(vf_scale2(p, n, x), x, -87.3f);
}

#endif
