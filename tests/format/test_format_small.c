/* f16, bf16, the float8 formats, e2m1 and e8m0, each against a second definition
 * in double: every code, every bf16 and f16 value through every encoder, every
 * tie and its neighbours, random floats, saturation, infinities, NaN, zeros. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "format/format.h"
#include "format/small_reference.h"

enum { BATCH = 65536 };
#define SEED 0x5EEDF00Du

static float as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint32_t as_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

/* Through the scalar definitions. */
static float decode_one(const small_format *f, uint32_t code)
{
    switch (f->format) {
    case QN_F16: return qn_f16_to_f32((uint16_t)code);
    case QN_BF16: return qn_bf16_to_f32((uint16_t)code);
    case QN_F8_E4M3: return qn_e4m3_to_f32((uint8_t)code);
    case QN_F8_E4M3FNUZ: return qn_e4m3fnuz_to_f32((uint8_t)code);
    case QN_F8_E5M2: return qn_e5m2_to_f32((uint8_t)code);
    default: return qn_e2m1_to_f32((uint8_t)code);
    }
}

static uint32_t encode_one(const small_format *f, float value)
{
    switch (f->format) {
    case QN_F16: return qn_f32_to_f16(value);
    case QN_BF16: return qn_f32_to_bf16(value);
    case QN_F8_E4M3: return qn_f32_to_e4m3(value);
    case QN_F8_E4M3FNUZ: return qn_f32_to_e4m3fnuz(value);
    case QN_F8_E5M2: return qn_f32_to_e5m2(value);
    default: return qn_f32_to_e2m1(value);
    }
}

/* Code i of what qn_encode wrote. */
static uint32_t code_at(const small_format *f, const uint8_t *bytes, size_t i)
{
    if (small_bits(f) == 16) {
        return (uint32_t)bytes[2 * i] | (uint32_t)bytes[2 * i + 1] << 8;
    }
    return small_bits(f) == 8 ? bytes[i] : (uint32_t)bytes[i / 2] >> (i % 2 * 4) & 15;
}

static uint32_t expected_code(const small_format *f, float value, int quick)
{
    if (value != value && !f->saturates) { /* f16, bf16: sign and top of the payload kept, quiet */
        const uint32_t bits = as_bits(value);
        const uint32_t fraction = (bits & 0x7FFFFF) >> (23 - f->mantissa) | 1u << (f->mantissa - 1);
        return (bits >> 31 << 15) | (((1u << f->exponent) - 1) << f->mantissa) | fraction;
    }
    return small_nearest(f, (double)value, quick);
}

/* Every value through scalar and array encoder, against the reference. */
static void check_encode(const small_format *f, const float *values, size_t count, int quick)
{
    static uint8_t bytes[2 * BATCH];
    assert_true(count <= BATCH && count % 2 == 0);
    assert_int_equal(qn_encode(f->format, values, (int64_t)count, bytes, NULL), QN_OK);
    for (size_t i = 0; i < count; i++) {
        const uint32_t want = expected_code(f, values[i], quick);
        const uint32_t one = encode_one(f, values[i]), many = code_at(f, bytes, i);
        if (one != want || many != want) {
            fail_msg("%s: %a (0x%08x) gives 0x%x, in an array 0x%x, expected 0x%x", f->name, (double)values[i],
                     as_bits(values[i]), one, many, want);
        }
    }
}

static void test_every_code_decodes(void **state)
{
    (void)state;
    for (size_t k = 0; k < SMALL_FORMATS; k++) {
        const small_format *f = &small_formats[k];
        const uint32_t codes = 1u << small_bits(f);
        static uint8_t bytes[2 * BATCH];
        static float out[BATCH];
        for (uint32_t code = 0; code < codes; code++) {
            if (small_bits(f) == 16) {
                bytes[2 * code] = (uint8_t)code;
                bytes[2 * code + 1] = (uint8_t)(code >> 8);
            } else if (small_bits(f) == 8) {
                bytes[code] = (uint8_t)code;
            } else if (code % 2 == 0) {
                bytes[code / 2] = (uint8_t)(code | (code + 1) << 4);
            }
        }
        assert_int_equal(qn_decode(f->format, bytes, codes, out, NULL), QN_OK);
        for (uint32_t code = 0; code < codes; code++) {
            const double want = small_value(f, code);
            const float got = decode_one(f, code);
            assert_int_equal(as_bits(got), as_bits(out[code]));
            if (isnan(want)) {
                assert_true(isnan(got));
                assert_true(as_bits(got) & 0x00400000); /* quiet */
            } else {
                assert_true((double)got == want);
                assert_int_equal(!!signbit(got), !!signbit(want));
            }
        }
        /* magnitudes ascend, which the quick search relies on */
        for (uint32_t code = 1; code <= small_largest(f); code++) {
            assert_true(small_value(f, code) > small_value(f, code - 1));
        }
        assert_true((float)small_value(f, small_largest(f)) == qn_format_get_info(f->format)->max);
    }
}

static void test_codes_survive(void **state)
{
    (void)state;
    for (size_t k = 0; k < SMALL_FORMATS; k++) {
        const small_format *f = &small_formats[k];
        for (uint32_t code = 0; code < 1u << small_bits(f); code++) {
            const double value = small_value(f, code);
            uint32_t want = code;
            if (isnan(value)) {
                want = f->saturates ? f->nan_code : code | 1u << (f->mantissa - 1);
            } else if (isinf(value) && f->saturates) {
                want = small_largest(f) | (code & small_sign(f));
            }
            assert_int_equal(encode_one(f, decode_one(f, code)), want);
        }
    }
}

/* All 65,536 bf16 and f16 values; formats of up to eight bits by exhaustive search. */
static void test_every_half_encodes(void **state)
{
    (void)state;
    static float values[BATCH];
    for (size_t source = 0; source < 2; source++) {
        for (uint32_t code = 0; code < BATCH; code++) {
            values[code] = source ? qn_f16_to_f32((uint16_t)code) : as_float(code << 16);
        }
        for (size_t k = 0; k < SMALL_FORMATS; k++) {
            check_encode(&small_formats[k], values, BATCH, small_bits(&small_formats[k]) == 16);
        }
    }
}

/* The middle of every two neighbours, and the floats beside it. */
static void test_every_tie(void **state)
{
    (void)state;
    static float values[BATCH];
    for (size_t k = 0; k < SMALL_FORMATS; k++) {
        const small_format *f = &small_formats[k];
        size_t count = 0;
        for (uint32_t code = 0; code <= small_largest(f); code++) {
            const double low = small_value(f, code);
            const double high = code < small_largest(f) ? small_value(f, code + 1)
                                                        : 2 * low - small_value(f, code - 1);
            const float middle = (float)((low + high) / 2);
            assert_true((double)middle == (low + high) / 2);
            const float around[] = {nextafterf(middle, 0), middle, nextafterf(middle, INFINITY), (float)low};
            for (size_t i = 0; i < 4; i++) {
                values[count++] = around[i];
                values[count++] = -around[i];
            }
            if (count == BATCH || code == small_largest(f)) {
                check_encode(f, values, count, 1);
                count = 0;
            }
        }
    }
}

static void test_random_floats(void **state)
{
    (void)state;
    static float values[BATCH];
    qn_rng rng = {SEED};
    print_message("seed 0x%x\n", SEED);
    for (int round = 0; round < 4; round++) {
        for (size_t i = 0; i < BATCH; i++) { /* any bits, then bits near the formats' ranges */
            const uint64_t r = qn_rng_next(&rng);
            uint32_t bits = (uint32_t)r;
            if (round) {
                const uint32_t span[] = {0, 40, 24, 8};
                const uint32_t exponent = 127 - span[round] + (uint32_t)(r >> 32) % (2 * span[round]);
                bits = (bits & 0x807FFFFF) | exponent << 23;
            }
            values[i] = as_float(bits);
        }
        for (size_t k = 0; k < SMALL_FORMATS; k++) {
            check_encode(&small_formats[k], values, BATCH, 1);
        }
    }
}

static void test_specials(void **state)
{
    (void)state;
    static const uint32_t bits[] = {
        0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000,
        0xFF800000, 0x7F800001, 0xFF800001, 0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FA00000, 0x7F80FFFF,
        0x7F7F7FFF, 0x7F7F8000, 0x477FEFFF, 0x477FF000, 0x3F800000, 0xBF800000};
    enum { COUNT = sizeof bits / sizeof *bits };
    float values[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        values[i] = as_float(bits[i]);
    }
    for (size_t k = 0; k < SMALL_FORMATS; k++) {
        check_encode(&small_formats[k], values, COUNT, 0);
    }
    /* The figures people quote, written out. */
    assert_int_equal(qn_f32_to_e4m3(448.0f), 0x7E);
    assert_int_equal(qn_f32_to_e4m3(464.0f), 0x7E);
    assert_int_equal(qn_f32_to_e4m3(1e30f), 0x7E);
    assert_int_equal(qn_f32_to_e4m3(-INFINITY), 0xFE);
    assert_int_equal(qn_f32_to_e4m3(-NAN), 0x7F);
    assert_int_equal(qn_f32_to_e4m3(0x1p-10f), 0x00);
    assert_int_equal(qn_f32_to_e4m3(0x1.8p-9f), 0x02);
    assert_int_equal(qn_f32_to_e4m3(-0.0f), 0x80);
    assert_int_equal(qn_f32_to_e4m3fnuz(240.0f), 0x7F);
    assert_int_equal(qn_f32_to_e4m3fnuz(1e9f), 0x7F);
    assert_int_equal(qn_f32_to_e4m3fnuz(-0.0f), 0x00);
    assert_int_equal(qn_f32_to_e4m3fnuz(-0x1p-11f), 0x00);
    assert_int_equal(qn_f32_to_e4m3fnuz(NAN), 0x80);
    assert_int_equal(qn_f32_to_e5m2(INFINITY), 0x7B);
    assert_int_equal(qn_f32_to_e5m2(65536.0f), 0x7B);
    assert_int_equal(qn_f32_to_f16(65519.0f), 0x7BFF);
    assert_int_equal(qn_f32_to_f16(65520.0f), 0x7C00);
    assert_int_equal(qn_f32_to_bf16(0x1.FFp127f), 0x7F80);
    const float fp4[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f, 7.0f};
    const uint8_t fp4_codes[] = {0, 2, 2, 4, 4, 6, 6, 7};
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(qn_f32_to_e2m1(fp4[i]), fp4_codes[i]);
        assert_int_equal(qn_f32_to_e2m1(-fp4[i]), fp4_codes[i] | 8);
    }
    assert_int_equal(qn_f32_to_e2m1(-NAN), 0);
    assert_true(as_bits(qn_e2m1_to_f32(0x38)) == 0x80000000); /* only the low four bits count */
}

static void check_e8m0(float value)
{
    uint32_t want = 255;
    if (isfinite(value)) {
        want = 0;
        while (want < 254 && ldexp(1.0, (int)want - 127) < (double)value) {
            want++;
        }
    }
    const uint8_t got = qn_f32_to_e8m0_ceil(value);
    if (got != want) {
        fail_msg("e8m0: %a gives %u, expected %u", (double)value, got, want);
    }
}

static void test_e8m0(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 256; code++) {
        const float value = qn_e8m0_to_f32((uint8_t)code);
        if (code == 255) {
            assert_true(isnan(value));
        } else {
            assert_true((double)value == ldexp(1.0, (int)code - 127));
            check_e8m0(nextafterf(value, 0));
            check_e8m0(nextafterf(value, INFINITY));
        }
        assert_int_equal(qn_f32_to_e8m0_ceil(value), code);
    }
    for (uint32_t code = 0; code < BATCH; code++) {
        check_e8m0(as_float(code << 16));
        check_e8m0(qn_f16_to_f32((uint16_t)code));
    }
    const float edges[] = {0.0f,       -0.0f,            -1.0f,    0x1p-149f, 0x1p-127f,
                           -0x1p-127f, 0x1.FFFFFEp127f, INFINITY, -INFINITY, NAN};
    const uint8_t codes[] = {0, 0, 0, 0, 0, 0, 254, 255, 255, 255};
    uint8_t out[10];
    assert_int_equal(qn_encode(QN_E8M0, edges, 10, out, NULL), QN_OK);
    for (size_t i = 0; i < 10; i++) {
        check_e8m0(edges[i]);
        assert_int_equal(out[i], codes[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_decodes), cmocka_unit_test(test_codes_survive),
        cmocka_unit_test(test_every_half_encodes), cmocka_unit_test(test_every_tie),
        cmocka_unit_test(test_random_floats),      cmocka_unit_test(test_specials),
        cmocka_unit_test(test_e8m0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
