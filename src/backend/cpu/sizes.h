/* Workspace arithmetic that saturates at SIZE_MAX, which no workspace has: plans
 * of absurd sizes can be explained and are refused when run. */
#ifndef QN_BACKEND_CPU_SIZES_H
#define QN_BACKEND_CPU_SIZES_H

#include <stddef.h>
#include <stdint.h>

static inline size_t qn_size_add(size_t a, size_t b)
{
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

static inline size_t qn_size_mul(size_t a, size_t b)
{
    size_t r;
    return __builtin_mul_overflow(a, b, &r) ? SIZE_MAX : r;
}

/* To a multiple of 64. */
static inline size_t qn_size_pad(size_t a)
{
    return a > SIZE_MAX - 63 ? SIZE_MAX : (a + 63) / 64 * 64;
}

/* Where count elements of size bytes are that begin at *at, which moves on to the multiple of 64 behind them. */
static inline size_t qn_size_place(size_t *at, size_t count, size_t size)
{
    const size_t here = *at;
    *at = qn_size_pad(qn_size_add(here, qn_size_mul(count, size)));
    return here;
}

#endif
