/* Rounding that has no sign of its own. Where vq_mm rounds to fewer bits than a float's (vq_digits.h, vq_sums.h), the
 * sum of what is lost must stay small for every row of x and of w: equal elements, repeated codes, a row of w that lies
 * along x. To nearest, such numbers are all off by the same. So a number within half a unit, different for every place
 * along K and always the same there, is added before: the error then is 0 on average, whatever is rounded, between
 * -unit and unit, and independent from place to place. A sum of such errors with weights w deviates by at most
 * unit |w| / 2, on average over what is rounded by unit |w| / sqrt(6). What needs no rounding is left as it is. */
#ifndef QN_KERNELS_CPU_VQ_DITHER_H
#define QN_KERNELS_CPU_VQ_DITHER_H

#include <math.h>
#include <stdint.h>

#define DITHER_A 0x9E3779B1u
#define DITHER_B 0x85EBCA6Bu
#define DITHER_SHIFT 15
#define DITHER_UNIT (0x1p-32f - 0x1p-39f) /* of a signed 32-bit number: less than half */

/* Of place `at`; vectors of it are made where they are used. */
static inline float dither_of(int64_t at)
{
    uint32_t z = (uint32_t)at * DITHER_A;
    z ^= z >> DITHER_SHIFT;
    return (float)(int32_t)(z * DITHER_B) * DITHER_UNIT;
}

/* The units that may be rounded to, of a row whose squares sum up to `squares`, k long: six deviations are to stay
 * within the error model of f32 sums (docs/operators.md), (2 sqrt(k) + 16) 2^-24 |x| |w|. For |w| = 1. */
static inline double dither_unit(double squares, int64_t k)
{
    return (2.0 * sqrt((double)k) + 16.0) * 0x1p-24 * sqrt(squares) * (sqrt(6.0) / 6.0);
}

#endif
