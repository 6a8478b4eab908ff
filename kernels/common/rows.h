/* The contract between the runner of row-wise operators (src/backend/cpu/run_rows.c)
 * and the per-level parts: functions on a row, or a group of a row, of floats. */
#ifndef QN_KERNELS_COMMON_ROWS_H
#define QN_KERNELS_COMMON_ROWS_H

#include <stdint.h>

#include "kernels/common/mm.h"

typedef struct qn_rows_set {
    /* v[i] = gate[i] / (1 + exp(-gate[i])) * up[i] in f32; reads and writes up to a multiple of 16. */
    void (*silu_mul)(const float *gate, const float *up, int64_t n, float *v);
    /* low = min(0, v), high = max(0, v), NaN ignored. */
    void (*range)(const float *v, int64_t n, float *low, float *high);
    /* sum of squares in double */
    double (*squares)(const float *v, int64_t n);
    /* y[i] = x[i] * factor * w[i] in double, rounded to f32 */
    void (*scale)(const float *x, double factor, const float *w, int64_t n, float *y);
    /* y0 = a c - b s, y1 = b c + a s in double, rounded to f32; pairs step floats apart */
    void (*rotate)(const float *a, const float *b, const double *c, const double *s, int64_t n, int64_t step,
                   float *y0, float *y1);
    /* t[i] = v[i] * factor, or v[i] / factor; held to +-limit when limit > 0 (NaN stays) */
    void (*divide)(const float *v, float factor, int multiply, float limit, int64_t n, float *t);
    /* codes of v: saturated, nearest even */
    void (*to_e4m3)(const float *v, int64_t n, uint8_t *codes);
    void (*to_i8)(const float *v, int64_t n, int32_t azp, int8_t *codes); /* sat8(rint(v) + azp), |azp| <= 65536 */
    void (*store)(qn_mm_real format, const float *v, int64_t n, void *out);
} qn_rows_set;

extern const qn_rows_set qn_rows__scalar, qn_rows__avx2, qn_rows__avx512;

#endif
