/* One ceiling loop: CEILING(name, register type, first value, setup, STEP, operations, FOLD).
 * Twelve accumulators hide the latency of two units of four or five cycles;
 * every loop over them is unrolled, or they would live in memory. */
#include "kernels/common/ceiling.h"
#include "kernels/cpu/name.h"

#define CEILING(what, type, zero, setup, STEP, ops, FOLD)                                     \
    static float what##_loop(int64_t steps)                                                   \
    {                                                                                         \
        type acc[12];                                                                         \
        setup;                                                                                \
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++)                                 \
        {                                                                                     \
            acc[i] = zero;                                                                    \
        }                                                                                     \
        for (int64_t s = 0; s < steps; s++) {                                                 \
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++)                             \
            {                                                                                 \
                acc[i] = STEP;                                                                \
                __asm__ volatile("" : "+x"(acc[i]));                                          \
            }                                                                                 \
        }                                                                                     \
        float sum = 0.0f;                                                                     \
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++)                                 \
        {                                                                                     \
            sum += FOLD;                                                                      \
        }                                                                                     \
        return sum;                                                                           \
    }                                                                                         \
    const qn_ceiling_loop QN_NAME(ceiling_##what) = {what##_loop, 12.0 * (ops)}
