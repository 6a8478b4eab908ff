/* Fixed codebooks and transforms that vector-quantised formats name: the E8P and
 * E8 lattice points of quip_e8p, and Hadamard transforms. docs/formats/vq.md. */
#ifndef QN_FORMAT_LATTICE_H
#define QN_FORMAT_LATTICE_H

#include <stdint.h>

/* The eight values of a 16-bit E8P code, multiples of 1/4; of a residual code of E8P12RVQ3B, multiples of 1/2. */
void qn_e8p_decode(uint32_t code, float value[8]);
void qn_e8_decode(uint32_t code, float value[8]);

/* The magnitudes of the points, by the code's high byte: 1/2, 3/2 or 5/2. */
void qn_e8p_magnitudes(uint32_t index, float value[8]);

/* The code of the point nearest to x of those with the magnitudes of that index, shifted by 1/4 (shift 0) or
 * -1/4 (1). */
uint32_t qn_e8p_encode(uint32_t index, int shift, const float x[8]);

/* The base that quip_e8p takes for a length: 1, 12, 20, 28, 36, 52, 60, 108, 116, 124, 140, 156, 172; 0: no transform
 * of that length is known. */
int64_t qn_hadamard_base(int64_t n);

/* x[n] becomes H x / sqrt(n), or H^T x / sqrt(n). scratch: n numbers. */
void qn_hadamard(double *x, int64_t n, int transposed, double *scratch);

/* Element of the base's matrix: +1 or -1. */
int qn_hadamard_sign(int64_t base, int64_t row, int64_t column);

/* What the base's matrix is made from, for those that make it elsewhere (hadamard.c says how). bits: of Paley's, bit a
 * of the 256 tells that a is no square modulo the prime; of Williamson's, the first rows of A, B, C, D. */
typedef enum qn_hadamard_kind {
    QN_HADAMARD_NONE = 0, /* base 1 */
    QN_HADAMARD_PALEY_1,
    QN_HADAMARD_PALEY_2,
    QN_HADAMARD_WILLIAMSON
} qn_hadamard_kind;

typedef struct qn_hadamard_rule {
    qn_hadamard_kind kind;
    uint64_t bits[4];
} qn_hadamard_rule;

qn_hadamard_rule qn_hadamard_rule_of(int64_t base);

#endif
