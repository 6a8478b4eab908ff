/* Hadamard transforms of length n = base * 2^k as quip_e8p has them: x seen as
 * [base, n / base], the natural-order Walsh-Hadamard transform along the fast
 * axis, the base's fixed matrix along the slow one, all over sqrt(n).
 *
 * The matrices are Paley's, from the quadratic character chi of a prime q: of
 * the first kind (base q + 1; 12, 20) and of the second (base 2 (q + 1); 28, 36). */
#include "format/lattice.h"

#include <math.h>

/* In the order in which a length's base is looked for. */
static const struct {
    int32_t base, prime, kind;
} bases[] = {{36, 17, 2}, {28, 13, 2}, {20, 19, 1}, {12, 11, 1}};

#define BASES ((int)(sizeof bases / sizeof *bases))

static int is_power_of_two(int64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

int64_t qn_hadamard_base(int64_t n)
{
    for (int i = 0; i < BASES; i++) {
        if (n % bases[i].base == 0 && is_power_of_two(n / bases[i].base)) {
            return bases[i].base;
        }
    }
    return is_power_of_two(n) ? 1 : 0;
}

/* 1 for squares, -1 for others, 0 for 0. */
static int chi(int64_t a, int64_t prime)
{
    a = (a % prime + prime) % prime;
    for (int64_t i = 1; i < prime; i++) {
        if (i * i % prime == a) {
            return a ? 1 : 0;
        }
    }
    return a ? -1 : 0;
}

/* Bordered circulant of chi, zeros on the diagonal. */
static int conference(int64_t row, int64_t column, int64_t prime)
{
    if (row == column) {
        return 0;
    }
    return row == 0 || column == 0 ? 1 : chi(column - row, prime);
}

int qn_hadamard_sign(int64_t base, int64_t row, int64_t column)
{
    for (int i = 0; i < BASES; i++) {
        if (bases[i].base != base) {
            continue;
        }
        const int64_t prime = bases[i].prime, half = base / 2;
        if (bases[i].kind == 1) {
            if (row == 0 || column == 0) {
                return column == 0 ? 1 : -1;
            }
            return row == column ? 1 : -chi(column - row, prime);
        }
        const int64_t r = row % half, c = column % half;
        const int diagonal = r == c;
        if (row < half && column < half) {
            return conference(r, c, prime) + diagonal;
        }
        if (row >= half && column >= half) {
            return -conference(r, c, prime) - diagonal;
        }
        return conference(r, c, prime) - diagonal;
    }
    return 1;
}

static void walsh(double *x, int64_t n)
{
    for (int64_t half = 1; half < n; half *= 2) {
        for (int64_t i = 0; i < n; i += 2 * half) {
            for (int64_t j = i; j < i + half; j++) {
                const double a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
        }
    }
}

void qn_hadamard(double *x, int64_t n, int transposed, double *scratch)
{
    const int64_t base = qn_hadamard_base(n), fast = base ? n / base : 0;
    const double scale = 1.0 / sqrt((double)n);
    for (int64_t i = 0; i < base; i++) {
        walsh(x + i * fast, fast);
    }
    for (int64_t i = 0; i < n; i++) {
        scratch[i] = base > 1 ? 0.0 : x[i];
    }
    for (int64_t i = 0; base > 1 && i < base; i++) {
        for (int64_t j = 0; j < base; j++) {
            const double sign = transposed ? qn_hadamard_sign(base, j, i) : qn_hadamard_sign(base, i, j);
            for (int64_t f = 0; f < fast; f++) {
                scratch[i * fast + f] += sign * x[j * fast + f];
            }
        }
    }
    for (int64_t i = 0; i < n; i++) {
        x[i] = scratch[i] * scale;
    }
}
