/* Loops that reach what a level can do at best, for qn_ceiling_measure. */
#ifndef QN_KERNELS_COMMON_CEILING_H
#define QN_KERNELS_COMMON_CEILING_H

#include <stddef.h>
#include <stdint.h>

/* Runs steps rounds of independent operations on registers; the result only keeps them alive. */
typedef float (*qn_ceiling_fn)(int64_t steps);

typedef struct qn_ceiling_loop {
    qn_ceiling_fn run;
    double operations; /* a step, 2 per multiply-add */
} qn_ceiling_loop;

extern const qn_ceiling_loop qn_ceiling_fp32__scalar, qn_ceiling_fp32__avx2, qn_ceiling_fp32__avx512;
extern const qn_ceiling_loop qn_ceiling_int8__scalar, qn_ceiling_int8__avx2, qn_ceiling_int8__avx512,
    qn_ceiling_int8__avx512vnni, qn_ceiling_int8__amx;
extern const qn_ceiling_loop qn_ceiling_bf16__avx512bf16, qn_ceiling_bf16__amx;

#endif
