/* Checked size arithmetic: the only place where sizes that a file or a caller
 * gave are added, multiplied or rounded. Each returns 0 on success and 1 when
 * the result does not fit; *out is untouched then. */
#ifndef QN_BASE_CHECKED_H
#define QN_BASE_CHECKED_H

#include <stddef.h>
#include <stdint.h>

static inline int qn_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r)) {
        return 1;
    }
    *out = r;
    return 0;
}

static inline int qn_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r)) {
        return 1;
    }
    *out = r;
    return 0;
}

static inline int qn_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    if (__builtin_mul_overflow(a, b, &r)) {
        return 1;
    }
    *out = r;
    return 0;
}

static inline int qn_add_size(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) {
        return 1;
    }
    *out = r;
    return 0;
}

static inline int qn_mul_size(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) {
        return 1;
    }
    *out = r;
    return 0;
}

/* Round up to a multiple of unit (a power of two). */
static inline int qn_pad_u64(uint64_t value, uint64_t unit, uint64_t *out)
{
    uint64_t r;
    if (__builtin_add_overflow(value, unit - 1, &r)) {
        return 1;
    }
    *out = r & ~(unit - 1);
    return 0;
}

/* ceil(a / b) for a >= 0, b > 0. */
static inline int64_t qn_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static inline int64_t qn_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t qn_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Size of an own structure rounded up for the next one in a buffer (no overflow check: our own small sizes). */
static inline size_t qn_align_up(size_t value, size_t unit)
{
    return (value + unit - 1) & ~(unit - 1);
}

#endif
