/* QuIP# written once more for the tests, from docs/formats/vq.md alone: E8P points, the
 * packing of their codes, and the Hadamard bases. */
#ifndef QN_TESTS_OP_QUIP_REFERENCE_H
#define QN_TESTS_OP_QUIP_REFERENCE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static inline int by_order(const void *a, const void *b)
{
    return memcmp(a, b, 8);
}

/* Magnitudes in halves, each row in ascending order: docs/formats/vq.md, "E8P". */
static inline void e8p_table(uint8_t table[256][8])
{
    static const char tail[] =
        "123 023 013 012 367 357 347 356 346 345 267 257 247 256 246 245 167 157 147 156 146 045 "
        "067 057 047 056 046 014 237";
    int count = 0;
    for (int i = 0; i < 6561; i++) {
        uint8_t v[8];
        int norm = 0;
        for (int j = 0, rest = i; j < 8; j++, rest /= 3) {
            v[j] = (uint8_t)(1 + 2 * (rest % 3));
            norm += v[j] * v[j];
        }
        if (norm <= 40) {
            memcpy(table[count++], v, 8);
        }
    }
    assert_int_equal(count, 227);
    qsort(table, 227, 8, by_order);
    for (int i = 0; i < 29; i++) {
        memset(table[227 + i], 3, 8);
        for (int j = 0; j < 3; j++) {
            table[227 + i][tail[4 * i + j] - '0'] = 1;
        }
    }
}

static inline void e8p_value(uint8_t table[256][8], uint32_t code, double value[8])
{
    static const int bit[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    uint32_t s = code & 255;
    int parity = 0, total = 0;
    for (int i = 0; i < 8; i++) {
        parity ^= (int)(s >> i & 1);
        total += table[code >> 8][i];
    }
    s ^= (uint32_t)parity;
    for (int i = 0; i < 8; i++) {
        value[i] = table[code >> 8][i] / 2.0;
        if (s >> bit[i] & 1) {
            value[i] = -value[i];
        }
        if (i == 7 && total / 2 % 2) {
            value[i] = -value[i];
        }
        value[i] += parity ? -0.25 : 0.25;
    }
}

/* One word for two rows by two groups, words in tiles of 8 x 4: written as the packer of the format does. */
static inline void e8p_pack(const uint16_t *codes, int64_t n, int64_t groups, uint64_t *words, int64_t row_words,
                            int64_t first)
{
    uint64_t *flat = calloc((size_t)(n / 2 * groups / 2), 8);
    int64_t at = 0;
    for (int64_t a = 0; a < n / 16; a++) {
        for (int64_t b = 0; b < groups / 8; b++) {
            for (int64_t pair = 0; pair < 8; pair++) {
                for (int64_t two = 0; two < 4; two++, at++) {
                    for (int64_t i = 0; i < 4; i++) {
                        const uint64_t code = codes[(a * 16 + pair * 2 + i % 2) * groups + b * 8 + two * 2 + i / 2];
                        flat[at] |= (code >> 8) << (8 * i);
                        for (int64_t j = 0; j < 8; j++) {
                            flat[at] |= (code >> j & 1) << (32 + 4 * j + i);
                        }
                    }
                }
            }
        }
    }
    for (int64_t i = 0; i < at; i++) {
        words[i / (groups / 4) * row_words + first + i % (groups / 4)] = flat[i];
    }
    free(flat);
}

/* First rows of the four circulants of the matrices of Williamson's kind, as they are published. */
static const struct {
    int size;
    const char *rows[4];
} williamson[] = {
    {52, {"+-+--++++--+-", "+---++++++---", "++-+--++--+-+", "+----+--+----"}},
    {116,
     {"++--+--+-+++-++++-+++-+--+--+", "++++-++-+---++++++---+-++-+++", "+-+---++--+-++++++-+--++---+-",
      "+++---++--+-+----+-+--++---++"}},
    {156,
     {"+++--+-+-----+--++----++--+-----+-+--++", "++++---+--++----+-+--+-+----++--+---+++",
      "+++--++-+---+-+--+----+--+-+---+-++--++", "+---++-+-+-----+++-++-+++-----+-+-++---"}},
    {172,
     {"+---++--++++-+-+++-++--++-+++-+-++++--++---", "++-++++++----+-+--++-++-++--+-+----++++++-+",
      "+++-+-++--+-+-++++-+----+-++++-+-+--++-+-++", "++---++++-+--+--++--------++--+--+-++++---+"}},
};

static inline void quaternions(int size, char *base)
{
    size_t w = 0;
    while (williamson[w].size != size) {
        w++;
    }
    /* 1, i, j, k times one another: which circulant, and whether it is negated */
    static const char *const products[4] = {"A+B+C+D+", "B-A+D-C+", "C-D+A+B-", "D-C-B+A+"};
    const int m = size / 4;
    for (int i = 0; i < size; i++) {
        for (int j = 0; j < size; j++) {
            const char *of = products[i / m] + 2 * (j / m);
            const int plus = williamson[w].rows[of[0] - 'A'][((j - i) % m + m) % m] == '+';
            base[i * size + j] = plus == (of[1] == '+') ? '+' : '-';
        }
    }
}

/* The whole base matrix by running unit vectors through vq_mm would be circular: build Paley's from squares. */
static inline void base_matrix(int size, char *base)
{
    const int second = size == 28 || size == 36 || size == 124, prime = second ? size / 2 - 1 : size - 1;
    char square[160] = {0};
    if (size == 1 || size == 52 || size == 116 || size == 156 || size == 172) {
        if (size == 1) {
            base[0] = '+';
        } else {
            quaternions(size, base);
        }
        return;
    }
    for (int i = 1; i < prime; i++) {
        square[i * i % prime] = 1;
    }
    for (int i = 0; i < size; i++) {
        for (int j = 0; j < size; j++) {
            const int r = second ? i % (size / 2) : i, c = second ? j % (size / 2) : j;
            const int chi = r == 0 || c == 0 ? 1 : (square[((c - r) % prime + prime) % prime] ? 1 : -1);
            int sign;
            if (!second) {
                sign = c == 0 ? 1 : (r == 0 ? -1 : (r == c ? 1 : -chi));
            } else if (r == c) {
                sign = i < size / 2 && j < size / 2 ? 1 : -1;
            } else {
                sign = i >= size / 2 && j >= size / 2 ? -chi : chi;
            }
            base[i * size + j] = sign > 0 ? '+' : '-';
        }
    }
}

/* Dense transform from qn_hadamard's definition: base matrix over Walsh signs. */
static inline int dense_sign(const char *base, int64_t size, int64_t fast, int64_t i, int64_t j)
{
    const int walsh = __builtin_popcountll((uint64_t)(i % fast & j % fast)) % 2 ? -1 : 1;
    return (base[i / fast * size + j / fast] == '+' ? 1 : -1) * walsh;
}

#endif
