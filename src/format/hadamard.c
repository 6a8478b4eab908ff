/* Hadamard transforms of length n = base * 2^k as quip_e8p has them: x seen as
 * [base, n / base], the natural-order Walsh-Hadamard transform along the fast
 * axis, the base's fixed matrix along the slow one, all over sqrt(n).
 *
 * The matrices are those of the published checkpoints, all by a rule:
 *
 *     Paley I      base q + 1, from the quadratic character chi of a prime q = 3 mod 4
 *     Paley II     base 2 (q + 1), the same with q = 1 mod 4
 *     Williamson   base 4 m: four symmetric circulants A, B, C, D of size m, in the order of the quaternions */
#include "format/lattice.h"

#include <math.h>
#include <stddef.h>

enum { PALEY_1 = QN_HADAMARD_PALEY_1, PALEY_2 = QN_HADAMARD_PALEY_2, WILLIAMSON = QN_HADAMARD_WILLIAMSON };
enum { MAX_BASE = 172 };

typedef struct base_row {
    int32_t base, kind, prime;
    uint64_t circulant[4]; /* first rows of A, B, C, D: bit j says that element j is -1 */
} base_row;

/* In the order in which a length's base is looked for. */
static const base_row bases[] = {
    {172, WILLIAMSON, 0, {0x730a26450ce, 0x207ac935e04, 0x14d42f42b28, 0x385b3fcda1c}},
    {156, WILLIAMSON, 0, {0x1afb3cdf58, 0xecf5af370, 0x1975bdae98, 0x72be247d4e}},
    {140, PALEY_1, 139, {0}},
    {124, PALEY_2, 61, {0}},
    {116, WILLIAMSON, 0, {0xda2116c, 0x25c0e90, 0x17340b3a, 0x735eb38}},
    {108, PALEY_1, 107, {0}},
    {60, PALEY_1, 59, {0}},
    {52, WILLIAMSON, 0, {0x161a, 0x1c0e, 0xb34, 0x1ede}},
    {36, PALEY_2, 17, {0}},
    {28, PALEY_2, 13, {0}},
    {20, PALEY_1, 19, {0}},
    {12, PALEY_1, 11, {0}},
};

static int is_power_of_two(int64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

static const base_row *find_base(int64_t n)
{
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        if (n % bases[i].base == 0 && is_power_of_two(n / bases[i].base)) {
            return &bases[i];
        }
    }
    return NULL;
}

int64_t qn_hadamard_base(int64_t n)
{
    const base_row *b = find_base(n);
    return b ? b->base : is_power_of_two(n);
}

/* chi[a]: 1 for squares mod prime, -1 for others, 0 for 0. */
static void set_characters(int32_t prime, int8_t chi[MAX_BASE])
{
    for (int32_t a = 0; a < prime; a++) {
        chi[a] = a ? -1 : 0;
    }
    for (int32_t a = 1; a < prime; a++) {
        chi[a * a % prime] = 1;
    }
}

/* Bordered circulant of chi, zeros on the diagonal. */
static int conference(const base_row *b, const int8_t *chi, int32_t row, int32_t column)
{
    if (row == column) {
        return 0;
    }
    return row == 0 || column == 0 ? 1 : chi[(column - row + b->prime) % b->prime];
}

static int williamson(const base_row *b, int32_t row, int32_t column)
{
    static const int8_t blocks[4][4] = {{1, 2, 3, 4}, {-2, 1, -4, 3}, {-3, 4, 1, -2}, {-4, -3, 2, 1}};
    const int32_t m = b->base / 4, block = blocks[row / m][column / m], at = (column % m - row % m + m) % m;
    const uint64_t first = b->circulant[(block < 0 ? -block : block) - 1];
    return (block < 0) ^ (int)(first >> at & 1) ? -1 : 1;
}

static int sign_at(const base_row *b, const int8_t *chi, int32_t row, int32_t column)
{
    if (b->kind == WILLIAMSON) {
        return williamson(b, row, column);
    }
    if (b->kind == PALEY_1) {
        if (row == 0 || column == 0) {
            return column == 0 ? 1 : -1;
        }
        return row == column ? 1 : -chi[(column - row + b->prime) % b->prime];
    }
    const int32_t half = b->base / 2, r = row % half, c = column % half;
    const int at = conference(b, chi, r, c), diagonal = r == c;
    if (row < half && column < half) {
        return at + diagonal;
    }
    return row >= half && column >= half ? -at - diagonal : at - diagonal;
}

int qn_hadamard_sign(int64_t base, int64_t row, int64_t column)
{
    const base_row *b = find_base(base);
    int8_t chi[MAX_BASE] = {0};
    if (!b || b->base != base) {
        return 1;
    }
    set_characters(b->prime, chi);
    return sign_at(b, chi, (int32_t)row, (int32_t)column);
}

qn_hadamard_rule qn_hadamard_rule_of(int64_t base)
{
    const base_row *b = find_base(base);
    qn_hadamard_rule rule = {QN_HADAMARD_NONE, {0}};
    if (!b) {
        return rule;
    }
    int8_t chi[MAX_BASE] = {0};
    set_characters(b->prime, chi);
    rule.kind = (qn_hadamard_kind)b->kind;
    for (int32_t i = 0; i < 4; i++) {
        rule.bits[i] = b->circulant[i];
    }
    for (int32_t a = 0; a < b->prime; a++) {
        rule.bits[a / 64] |= (uint64_t)(chi[a] < 0) << a % 64;
    }
    return rule;
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

/* scratch[base][fast] = the base's matrix, or its transpose, times x. */
static void mix(const base_row *b, const double *x, int64_t fast, int transposed, double *scratch)
{
    int8_t chi[MAX_BASE] = {0};
    set_characters(b->prime, chi);
    for (int32_t i = 0; i < b->base; i++) {
        double *const out = scratch + i * fast;
        for (int64_t f = 0; f < fast; f++) {
            out[f] = 0.0;
        }
        for (int32_t j = 0; j < b->base; j++) {
            const double sign = transposed ? sign_at(b, chi, j, i) : sign_at(b, chi, i, j);
            for (int64_t f = 0; f < fast; f++) {
                out[f] += sign * x[j * fast + f];
            }
        }
    }
}

void qn_hadamard(double *x, int64_t n, int transposed, double *scratch)
{
    const base_row *b = find_base(n);
    const int64_t base = qn_hadamard_base(n), fast = base ? n / base : 0;
    const double scale = 1.0 / sqrt((double)n);
    for (int64_t i = 0; i < base; i++) {
        walsh(x + i * fast, fast);
    }
    if (b) {
        mix(b, x, fast, transposed, scratch);
    }
    for (int64_t i = 0; i < n; i++) {
        x[i] = (b ? scratch[i] : x[i]) * scale;
    }
}
