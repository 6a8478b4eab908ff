/* Reproducible random numbers (splitmix64; Steele, Lea, Flood 2014), for
 * sampling and test cases. Not for secrets. */
#ifndef QN_BASE_RNG_H
#define QN_BASE_RNG_H

#include <stdint.h>

typedef struct qn_rng {
    uint64_t state;
} qn_rng;

static inline uint64_t qn_rng_next(qn_rng *rng)
{
    uint64_t z = (rng->state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Uniform in [0, 1) with 53 bits. */
static inline double qn_rng_uniform(qn_rng *rng)
{
    return (double)(qn_rng_next(rng) >> 11) * 0x1p-53;
}

#endif
