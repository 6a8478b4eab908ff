/* How the calling thread rounds floats. An application may have set its threads to another rounding, or to take
 * subnormals for zeros; results are those of IEEE 754's defaults (docs/operators.md), whatever thread they come from.
 */
#ifndef QN_BASE_FLOATS_H
#define QN_BASE_FLOATS_H

#include <stdint.h>

#ifdef __SSE__
#include <xmmintrin.h>

#define QN_FLOATS_DEFAULT 0x1F80u /* nearest even, subnormals, no traps */
#define QN_FLOATS_FLAGS 0x3Fu     /* what has happened so far */

/* Sets the defaults; what there was before, for qn_floats_restore(). */
static inline uint32_t qn_floats_set(void)
{
    const uint32_t before = _mm_getcsr();
    if ((before & ~QN_FLOATS_FLAGS) != QN_FLOATS_DEFAULT) {
        _mm_setcsr(QN_FLOATS_DEFAULT);
    }
    return before;
}

static inline void qn_floats_restore(uint32_t before)
{
    if ((before & ~QN_FLOATS_FLAGS) != QN_FLOATS_DEFAULT) {
        _mm_setcsr(before);
    }
}
#else
static inline uint32_t qn_floats_set(void)
{
    return 0;
}

static inline void qn_floats_restore(uint32_t before)
{
    (void)before;
}
#endif

#endif
