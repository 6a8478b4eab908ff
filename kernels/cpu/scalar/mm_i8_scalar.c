/* Exact int8 tiles in plain C (kernels/cpu/mm_i8.h). */
#include <stdint.h>
#include <string.h>

#define QN_ISA scalar
#define QN_MR 2
#define QN_NR 2
#define VI_LANES 4
#define VI_STEP 8
#define VI_A_BYTES 2

typedef struct va {
    int16_t v[8];
} va;

typedef struct vb {
    int8_t v[8];
} vb;

typedef struct vi {
    int32_t v[4];
} vi;

static inline va va_load(const void *p)
{
    va r;
    memcpy(&r, p, sizeof r);
    return r;
}

static inline vb vb_load(const int8_t *p)
{
    vb r;
    memcpy(&r, p, sizeof r);
    return r;
}

static inline vi vi_load(const int32_t *p)
{
    vi r;
    memcpy(&r, p, sizeof r);
    return r;
}

static inline void vi_store(int32_t *p, vi a)
{
    memcpy(p, &a, sizeof a);
}

static inline vi vi_dot(vi acc, va a, vb b)
{
    for (int i = 0; i < 4; i++) {
        const int32_t dot = a.v[2 * i] * b.v[2 * i] + a.v[2 * i + 1] * b.v[2 * i + 1];
        acc.v[i] = (int32_t)((uint32_t)acc.v[i] + (uint32_t)dot);
    }
    return acc;
}

static inline int32_t vi_sum(vi a)
{
    return (int32_t)((uint32_t)a.v[0] + (uint32_t)a.v[1] + (uint32_t)a.v[2] + (uint32_t)a.v[3]);
}

#include "kernels/cpu/mm_i8.h"
