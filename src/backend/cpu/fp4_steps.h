/* How kernels make e2m1 codes of bf16 in blocks of 16 by integers: a table a block scale (kernels/common/rows.h,
 * qn_rows_e2m1_steps). */
#ifndef QN_BACKEND_CPU_FP4_STEPS_H
#define QN_BACKEND_CPU_FP4_STEPS_H

#include "kernels/common/rows.h"

/* For a global scale of 2^-60 to 2^60. */
void qn_fp4_steps_make(float global, qn_rows_e2m1_steps *steps);

#endif
