/* What fitting codebooks spends its time in: nearest entries, and matrix products
 * in place. src/quant chooses a level's set through src/backend/cpu/fit.h; the
 * loops are kernels/cpu/fit.h. */
#ifndef QN_KERNELS_FIT_H
#define QN_KERNELS_FIT_H

#include <stdint.h>

#define QN_FIT_LANES 16 /* entries and columns come in multiples of this */

/* A book with its entries side by side: element j of entry e at book[j * entries + e]. */
typedef struct qn_fit_book {
    const float *norms, *book;
    int64_t entries;
    int32_t vector;
} qn_fit_book;

/* The 256 vectors of magnitudes that E8P points are made of (docs/formats/vq.md): coordinate j of vector a at
 * magnitudes[j * 256 + a]; their squared norms; odd[a]: 1 where their sum is, 0 where not. */
typedef struct qn_fit_lattice {
    const float *magnitudes, *norms, *odd;
} qn_fit_lattice;

typedef struct qn_fit_set {
    /* norms[e] = sum_j weights[j] book[j * entries + e]^2, summed in that order; weights NULL: ones. */
    void (*weigh)(const float *book, int64_t entries, int32_t vector, const float *weights, float *norms);
    /* score of entry e for a target t: norms[e] + sum_j t[j] book[j][e], summed in that order. For each of rows targets
     * [rows][vector] the least score of every lane, entries e with e % QN_FIT_LANES = lane, and its entry; the
     * first of equals: scores[rows][QN_FIT_LANES], entries likewise. */
    void (*nearest)(const qn_fit_book *book, const float *targets, int64_t rows, float *scores, int32_t *entries);
    /* For each of x[rows][8] the nearest E8P point of every lane, vectors a with a % QN_FIT_LANES = lane: its squared
     * distance, and a + 256 when it is shifted by -1/4, a when by 1/4. */
    void (*nearest_e8p)(const qn_fit_lattice *lattice, const float *x, int64_t rows, float *scores, int32_t *entries);
    /* out[rows][columns] += a[rows][depth] b[depth][columns], each element a chain over depth. Strides in floats. */
    void (*add_product)(float *out, int64_t out_stride, const float *a, int64_t a_stride, int64_t rows, const float *b,
                        int64_t b_stride, int64_t depth, int64_t columns);
} qn_fit_set;

extern const qn_fit_set qn_fit__scalar, qn_fit__avx2, qn_fit__avx512;

#endif
