/* A second definition of the small float formats, in double and from the fields
 * of the code, for the tests: value of a code, nearest code of a value. */
#ifndef TEST_FORMAT_SMALL_REFERENCE_H
#define TEST_FORMAT_SMALL_REFERENCE_H

#include <math.h>
#include <stdint.h>

typedef enum small_specials {
    SPECIAL_IEEE, /* the highest exponent holds infinity and NaN */
    SPECIAL_FN,   /* only the all-ones magnitude is NaN */
    SPECIAL_FNUZ, /* only the code of minus zero is NaN */
    SPECIAL_NONE
} small_specials;

typedef struct small_format {
    const char *name;
    qn_format format;
    int exponent, mantissa, bias;
    small_specials specials;
    int saturates;     /* 0: overflows to infinity */
    uint32_t nan_code; /* what NaN encodes to (f16 and bf16 keep more of it) */
} small_format;

static const small_format small_formats[] = {
    {"f16", QN_F16, 5, 10, 15, SPECIAL_IEEE, 0, 0x7E00},
    {"bf16", QN_BF16, 8, 7, 127, SPECIAL_IEEE, 0, 0x7FC0},
    {"f8_e4m3", QN_F8_E4M3, 4, 3, 7, SPECIAL_FN, 1, 0x7F},
    {"f8_e4m3fnuz", QN_F8_E4M3FNUZ, 4, 3, 8, SPECIAL_FNUZ, 1, 0x80},
    {"f8_e5m2", QN_F8_E5M2, 5, 2, 15, SPECIAL_IEEE, 1, 0x7F},
    {"f4_e2m1", QN_F4_E2M1, 2, 1, 1, SPECIAL_NONE, 1, 0},
};
enum { SMALL_FORMATS = sizeof small_formats / sizeof *small_formats };

static inline int small_bits(const small_format *f)
{
    return 1 + f->exponent + f->mantissa;
}

static inline uint32_t small_sign(const small_format *f)
{
    return 1u << (f->exponent + f->mantissa);
}

static inline double small_value(const small_format *f, uint32_t code)
{
    const uint32_t magnitude = code & (small_sign(f) - 1);
    const int exponent = (int)(magnitude >> f->mantissa);
    const uint32_t fraction = magnitude & ((1u << f->mantissa) - 1);
    const int highest = (1 << f->exponent) - 1;
    double value;
    if ((f->specials == SPECIAL_FNUZ && code == small_sign(f)) ||
        (f->specials == SPECIAL_FN && magnitude == small_sign(f) - 1)) {
        return NAN;
    }
    if (f->specials == SPECIAL_IEEE && exponent == highest) {
        value = fraction ? NAN : INFINITY;
    } else if (exponent == 0) {
        value = ldexp((double)fraction, 1 - f->bias - f->mantissa);
    } else {
        value = ldexp(1.0 + ldexp((double)fraction, -f->mantissa), exponent - f->bias);
    }
    return code & small_sign(f) ? -value : value;
}

/* The largest finite magnitude code. */
static inline uint32_t small_largest(const small_format *f)
{
    const uint32_t all = small_sign(f) - 1;
    switch (f->specials) {
    case SPECIAL_IEEE: return all - (1u << f->mantissa);
    case SPECIAL_FN: return all - 1;
    default: return all;
    }
}

/* Values of the magnitude codes, made once a format. */
static inline const double *small_magnitudes(const small_format *f)
{
    static double values[SMALL_FORMATS][32768];
    double *v = values[f - small_formats];
    if (v[1] == 0) {
        for (uint32_t code = 0; code < small_sign(f); code++) {
            v[code] = small_value(f, code);
        }
    }
    return v;
}

/* Nearest code by looking at every magnitude (or, when quick, by bisection: magnitudes ascend). */
static inline uint32_t small_nearest(const small_format *f, double value, int quick)
{
    if (isnan(value)) {
        return f->nan_code;
    }
    const double a = fabs(value), *v = small_magnitudes(f);
    const uint32_t largest = small_largest(f);
    uint32_t best = 0;
    if (a > v[largest]) {
        best = largest;
        if (!f->saturates) { /* the next value, had the exponent one more, stands for infinity */
            const double above = 2 * v[largest] - v[largest - 1];
            best = a >= (v[largest] + above) / 2 ? largest + 1 : largest; /* the tie: infinity's code is even */
        }
    } else if (quick) {
        uint32_t low = 0, high = largest; /* v[low] <= a <= v[high] */
        while (high - low > 1) {
            const uint32_t middle = (low + high) / 2;
            if (v[middle] <= a) {
                low = middle;
            } else {
                high = middle;
            }
        }
        const double below = a - v[low], above = v[high] - a;
        best = below < above ? low : above < below ? high : low % 2 == 0 ? low : high;
    } else {
        for (uint32_t code = 1; code <= largest; code++) {
            const double old = fabs(a - v[best]), new = fabs(a - v[code]);
            if (new < old || (new == old && code % 2 == 0)) {
                best = code;
            }
        }
    }
    if (signbit(value) && !(f->specials == SPECIAL_FNUZ && best == 0)) {
        best |= small_sign(f);
    }
    return best;
}

#endif
