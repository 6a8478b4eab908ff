/* Tables of qn_rows_e2m1_steps.
 *
 * Quarters of the binades of t = v * factor: codes change at some of their ends only, where t is 0.25,
 * 0.75, 1.25, 1.75, 2.5, 3.5 or 5. A tie goes down at the ends of the first two quarters of a binade and up at those of
 * the others, so an end is met by what is above it there, and by what is not below it here. Which quarter an element's
 * t is in depends on its mantissa as fp8_steps.c has it: a number for each sixteenth of a binade, 32 a quarter. */
#include "backend/cpu/fp4_steps.h"

#include <string.h>

#include "format/format.h"

enum { MANTISSAS = 128, BIN = MANTISSAS / QN_ROWS_STEPS, QUARTER = 32 };

static float bf16_value(uint32_t bits)
{
    float x;
    bits <<= 16;
    memcpy(&x, &bits, 4);
    return x;
}

/* Quarters that t has met since 0.25. */
static int quarters_met(float t)
{
    uint32_t bits;
    memcpy(&bits, &t, 4);
    const int ties_go_down = !(bits & 0x00400000);
    return (int)((bits - (uint32_t)ties_go_down) >> 21) - (int)(125u << 2) + 1;
}

static void steps_of(float factor, uint8_t add[QN_ROWS_STEPS], uint32_t *base)
{
    uint32_t bits;
    memcpy(&bits, &factor, 4);
    const uint32_t exponent = 254 - (bits >> 23); /* of elements that t is 1 to 4 of */
    int numbers[QN_ROWS_STEPS], least = INT32_MAX;
    for (uint32_t b = 0; b < QN_ROWS_STEPS; b++) {
        numbers[b] = INT32_MIN;
        for (uint32_t m = b * BIN; m < (b + 1) * BIN; m++) {
            const uint32_t v = exponent << 7 | m;
            const int number = QUARTER * quarters_met(bf16_value(v) * factor) - (int)v;
            numbers[b] = number > numbers[b] ? number : numbers[b];
        }
        least = numbers[b] < least ? numbers[b] : least;
    }
    for (int b = 0; b < QN_ROWS_STEPS; b++) {
        add[b] = (uint8_t)(numbers[b] - least);
    }
    *base = (uint16_t)(256 * add[0] - least) * 0x10001u;
}

void qn_fp4_steps_make(float global, qn_rows_e2m1_steps *steps)
{
    const float inverse = 1.0f / global;
    memset(steps->add[0], 0, sizeof steps->add[0]);
    steps->base[0] = UINT32_MAX; /* codes of zero */
    for (int code = 1; code < QN_ROWS_E2M1_SCALES; code++) {
        const float scale = qn_e4m3_to_f32((uint8_t)code);
        if (code < 16) {
            steps_of(1.0f / (scale * inverse), steps->add[code], &steps->base[code]);
        } else { /* twice the scale of the code eight before */
            memcpy(steps->add[code], steps->add[code - 8], sizeof steps->add[code]);
            steps->base[code] = steps->base[code - 8] + MANTISSAS * 0x10001u;
        }
    }
}
