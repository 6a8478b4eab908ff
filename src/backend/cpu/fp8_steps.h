/* How kernels make e4m3 (and fnuz) codes of bf16 by integers: tables by scale (kernels/common/rows.h, qn_rows_steps).
 */
#ifndef QN_BACKEND_CPU_FP8_STEPS_H
#define QN_BACKEND_CPU_FP8_STEPS_H

#include "kernels/common/rows.h"

#define QN_FP8_STEPS_POWER QN_ROWS_STEPS_POWER

typedef qn_rows_steps_entry qn_fp8_steps;

/* Of quotients by amax / largest code, by the seven mantissa bits of a bf16 amax; then of quotients by powers of two.
 */
extern const qn_fp8_steps qn_fp8_steps_of[QN_FP8_STEPS_POWER + 1];

/* For elements of a biased exponent that makes the codes 112 to 126 (of 2^e up to 2^(e+1), e its exponent). */
static inline qn_rows_steps qn_fp8_steps_at(const qn_fp8_steps *steps, int32_t exponent)
{
    return (qn_rows_steps){steps->add, (uint32_t)(exponent * 128 - steps->base + 256 * steps->add[0]) * 0x10001u};
}

/* The same for one scale of any kind: codes are those that the level itself gives all mantissas of an exponent. */
qn_rows_steps qn_fp8_steps_make(const qn_rows_set *set, qn_rows_code code, const qn_rows_rule *rule,
                                qn_fp8_steps *steps);

#endif
