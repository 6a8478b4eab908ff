/* Rows of x as digits (kernels/common/vq.h), which vq_mm of gptvq and of quip_e8p multiply by: their memory, and making
 * them once a run. */
#ifndef QN_BACKEND_CPU_VQ_DIGITS_H
#define QN_BACKEND_CPU_VQ_DIGITS_H

#include "backend/cpu/vq_side.h"

#define QN_VQ_DIGITS_ROWS 256 /* of x a task: their digits stay in the cache beside each other */

/* Byte offsets in a workspace: the side's memory is first, the packed body of a run without packed weights last. */
typedef struct qn_vq_digits_memory {
    size_t digits, scales, offsets, special, scratch, thread, sums, body, total; /* sums: in a thread's scratch */
    int64_t stride; /* bytes from a row's digits to the next, apart in the caches' sets */
} qn_vq_digits_memory;

/* For m rows of that many tiles of K on that many threads, each with so many bytes of scratch before its sums of so
 * many columns. */
qn_vq_digits_memory qn_vq_digits_memory_of(const qn_vq *vq, int64_t m, int32_t threads, int64_t tiles, size_t scratch,
                                           int64_t columns, size_t body);

typedef struct qn_vq_digits {
    qn_vq_digits_memory at;
    const qn_vq_side *side;
    char *workspace;
    int64_t tiles;
    qn_vq_digits_fn fn;
} qn_vq_digits;

void qn_vq_digits_make(qn_vq_digits *d, const qn_exec *exec);

/* Of row m: whether digits cannot hold it, and what the kernels read from it on. */
static inline int qn_vq_digits_special(const qn_vq_digits *d, int64_t m)
{
    return d->workspace[d->at.special + (size_t)m];
}

static inline int8_t *qn_vq_digits_row(const qn_vq_digits *d, int64_t m)
{
    return (int8_t *)d->workspace + d->at.digits + m * d->at.stride;
}

static inline float *qn_vq_digits_scales(const qn_vq_digits *d, int64_t m)
{
    return (float *)(void *)(d->workspace + d->at.scales) + m * d->tiles;
}

static inline int32_t *qn_vq_digits_offsets(const qn_vq_digits *d, int64_t m)
{
    return (int32_t *)(void *)(d->workspace + d->at.offsets) + m * d->tiles * 4;
}

#endif
