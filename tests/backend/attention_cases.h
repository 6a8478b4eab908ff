/* Attention over keys and values of patterns that random numbers do not have: equal terms, whose sums show what is cut
 * off them; terms that cancel; keys that differ in their last bits alone; one key before many; large scores; values and
 * keys of very different sizes. */
#ifndef QN_TESTS_ATTENTION_CASES_H
#define QN_TESTS_ATTENTION_CASES_H

#include <math.h>

#include "backend/device_cases.h"
#include "ref/ref_common.h"

typedef enum pattern { EQUAL = 0, CANCEL, STEP, LAST_BITS, TURNS, LARGE, SIZES, PATTERNS } pattern;

/* Between -1 and 1. */
static inline double noise(int64_t i)
{
    const uint64_t v = ((uint64_t)i + 1) * 6364136223846793005u;
    return (double)(v >> 33) / (double)(1u << 30) - 1.0;
}

/* Element i of row r (a query, a key) of slot 0 (q), 1 (k) or 2 (v). */
static inline double element_of(pattern what, int slot, int64_t r, int64_t i, int64_t at)
{
    const double sign = r % 2 ? -1.0 : 1.0;
    switch (what) {
    case EQUAL: return 1.0 / 3;
    case CANCEL: return slot == 2 ? sign * 1000 / 3 + 1.0 / 3 : 1.0 / 3;
    case STEP: return slot == 0 ? 1.1 : slot == 1 ? (r == 0 ? 0.6 : 1.0 / 3) : 5.0 / 7;
    case LAST_BITS:
        return slot == 0 ? 1 + 0x1p-12 - 0x1p-20 : slot == 1 ? 1 + 0x1p-9 + (r % 2 ? 0.0 : 0x1p-18 + 0x1p-21) : sign;
    case TURNS: return slot == 2 ? noise(at) : (slot == 0 ? 77.7 * (i % 2 ? -1.0 : 1.0) : 7.7) * (1 + 1e-3 * noise(at));
    case LARGE: return noise(at) * (slot == 2 ? 1000 : 8);
    default: return noise(at) * (slot == 0 ? 1e4 : slot == 1 ? 1e-4 : exp2(8 * noise(r)));
    }
}

static inline void fill_pattern(problem *p, pattern what)
{
    for (int slot = 0; slot < 3; slot++) {
        const qn_shape *const shape = &p->desc.in[slot];
        const int64_t size = shape->dims[2], row = shape->dims[1] * size;
        for (int64_t at = 0; at < shape->dims[0] * row; at++) {
            ref_store(shape->format, p->in[slot].dense, at, element_of(what, slot, at / row, at % size, at));
        }
    }
}

static inline void run_patterns(const qn_kernel *kernel, const char *text)
{
    qn_op_desc desc;
    qn_error error = {0};
    must(qn_op_desc_parse(text, &desc, &error), &error, text);
    assert_null(kernel->accepts(kernel, &desc));
    qn_plan *const plan = plan_of(kernel, text, &desc);
    for (int what = 0; what < PATTERNS; what++) {
        char name[256];
        problem p;
        problem_make(&p, text, 0);
        fill_pattern(&p, (pattern)what);
        problem_want(&p, text);
        snprintf(name, sizeof name, "%s, pattern %d", text, what);
        run_layout(&p, plan, 0, 0, 0, 0, name);
        problem_free(&p);
    }
    qn_plan_destroy(plan);
}

/* Of every row of the registry that takes it. */
static inline void run_all_patterns(const char *text)
{
    const qn_kernel *kernel;
    for (int32_t i = 0; (kernel = qn_backend_cuda_row.kernel_at(i)); i++) {
        if (kernel->op == QN_OP_ATTENTION && !qn_cuda_kernel_refusal(ctx, kernel)) {
            run_patterns(kernel, text);
        }
    }
}

#endif
