/* Integers, bool, f32 and f64: all codes of up to 16 bits, rounding against a
 * second rule in double, saturation at both ends of every type, unaligned bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>

#include "base/rng.h"
#include "format/format.h"

#define SEED 0x1234ABCDu

/* Half to even, by comparing the fraction. */
static double round_even(double value)
{
    const double low = floor(value), part = value - low;
    if (part != 0.5) {
        return part < 0.5 ? low : low + 1;
    }
    return fmod(low, 2) == 0 ? low : low + 1;
}

static const struct narrow {
    qn_format format;
    int size;
    double low, high;
} narrow[] = {
    {QN_I8, 1, -128, 127}, {QN_U8, 1, 0, 255}, {QN_I16, 2, -32768, 32767}, {QN_U16, 2, 0, 65535}, {QN_BOOL, 1, 0, 1},
};

static int32_t narrow_value(const struct narrow *t, const uint8_t *bytes)
{
    const int32_t raw = t->size == 1 ? bytes[0] : bytes[0] | bytes[1] << 8;
    return t->low < 0 && raw > t->high ? raw - (1 << (8 * t->size)) : raw;
}

static void test_codes(void **state)
{
    (void)state;
    for (size_t k = 0; k < 4; k++) {
        const struct narrow *t = &narrow[k];
        for (int32_t code = 0; code < 1 << (8 * t->size); code++) {
            const uint8_t bytes[3] = {0xEE, (uint8_t)code, (uint8_t)(code >> 8)}; /* at an odd address */
            uint8_t back[2] = {0, 0};
            float value;
            assert_int_equal(qn_decode(t->format, bytes + 1, 1, &value, NULL), QN_OK);
            assert_true(value == (float)narrow_value(t, bytes + 1));
            assert_int_equal(qn_encode(t->format, &value, 1, back, NULL), QN_OK);
            assert_memory_equal(back, bytes + 1, (size_t)t->size);
        }
    }
    const uint8_t flags[4] = {0, 1, 2, 255};
    float out[4];
    assert_int_equal(qn_decode(QN_BOOL, flags, 4, out, NULL), QN_OK);
    assert_true(out[0] == 0 && out[1] == 1 && out[2] == 1 && out[3] == 1);
}

static void check_narrow(float value)
{
    for (size_t k = 0; k < sizeof narrow / sizeof *narrow; k++) {
        const struct narrow *t = &narrow[k];
        double want = isnan(value) ? 0 : isinf(value) ? (double)value : round_even((double)value);
        want = want < t->low ? t->low : want > t->high ? t->high : want;
        uint8_t bytes[2] = {0, 0};
        assert_int_equal(qn_encode(t->format, &value, 1, bytes, NULL), QN_OK);
        if (narrow_value(t, bytes) != (int32_t)want) {
            fail_msg("format %d: %a gives %d, expected %d", t->format, (double)value, narrow_value(t, bytes),
                     (int32_t)want);
        }
        if (t->format == QN_I8) {
            assert_int_equal(qn_f32_to_i8(value), (int32_t)want);
        }
    }
}

static void test_rounding(void **state)
{
    (void)state;
    for (int half = -140000; half <= 140000; half++) { /* every integer and tie around all ranges */
        const float value = (float)half / 2;
        check_narrow(value);
        if (half % 64 == 1 || half % 256 == -1) {
            check_narrow(nextafterf(value, INFINITY));
            check_narrow(nextafterf(value, -INFINITY));
        }
    }
    const float specials[] = {0.0f, -0.0f, NAN, -NAN, INFINITY, -INFINITY,
                              FLT_MAX, -FLT_MAX, 0x1p-149f, 0x1p23f, -0x1p23f,
                              0x1.FFFFFEp22f, 0x1.000002p23f, 0.49999997f, -0.49999997f, 0x1p31f, 2.5f, -2.5f};
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) {
        check_narrow(specials[i]);
    }
    qn_rng rng = {SEED};
    print_message("seed 0x%x\n", SEED);
    for (int i = 0; i < 50000; i++) {
        const uint32_t bits = (uint32_t)qn_rng_next(&rng);
        float value;
        memcpy(&value, &bits, 4);
        check_narrow(value);
        check_narrow((float)(qn_rng_uniform(&rng) * 600 - 300));
    }
}

static void test_wide(void **state)
{
    (void)state;
    const float in[] = {0.5f,   1.5f,    -2.5f,          NAN,      INFINITY,         -INFINITY,
                        0x1p31f, -0x1p31f, 0x1.FFFFFEp30f, 16777216, -0x1.FFFFFEp62f, 0x1.FFFFFEp63f};
    enum { COUNT = sizeof in / sizeof *in };
    static const int32_t i32[COUNT] = {0, 2, -2, 0, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, 2147483520, 16777216,
                                       INT32_MIN, INT32_MAX};
    static const uint32_t u32[COUNT] = {0, 2, 0, 0, UINT32_MAX, 0, 2147483648u, 0, 2147483520, 16777216, 0, UINT32_MAX};
    static const int64_t i64[COUNT] = {0,           2,           -2,         0,        INT64_MAX,  INT64_MIN,
                                       2147483648,  -2147483648, 2147483520, 16777216, -0x7FFFFF8000000000, INT64_MAX};
    static const uint64_t u64[COUNT] = {0,           2, 0,          0,        UINT64_MAX, 0,
                                        2147483648u, 0, 2147483520, 16777216, 0,          0xFFFFFF0000000000u};
    uint8_t out[8 * COUNT];
    assert_int_equal(qn_encode(QN_I32, in, COUNT, out, NULL), QN_OK);
    assert_memory_equal(out, i32, sizeof i32);
    assert_int_equal(qn_encode(QN_U32, in, COUNT, out, NULL), QN_OK);
    assert_memory_equal(out, u32, sizeof u32);
    assert_int_equal(qn_encode(QN_I64, in, COUNT, out, NULL), QN_OK);
    assert_memory_equal(out, i64, sizeof i64);
    assert_int_equal(qn_encode(QN_U64, in, COUNT, out, NULL), QN_OK);
    assert_memory_equal(out, u64, sizeof u64);

    float back[COUNT];
    assert_int_equal(qn_decode(QN_I32, i32, COUNT, back, NULL), QN_OK);
    assert_true(back[2] == -2 && back[4] == 0x1p31f && back[5] == -0x1p31f && back[8] == 0x1.FFFFFEp30f);
    assert_int_equal(qn_decode(QN_U32, u32, COUNT, back, NULL), QN_OK);
    assert_true(back[4] == 0x1p32f && back[6] == 0x1p31f);
    assert_int_equal(qn_decode(QN_I64, i64, COUNT, back, NULL), QN_OK);
    assert_true(back[4] == 0x1p63f && back[5] == -0x1p63f && back[10] == -0x1.FFFFFEp62f);
    assert_int_equal(qn_decode(QN_U64, u64, COUNT, back, NULL), QN_OK);
    assert_true(back[4] == 0x1p64f && back[11] == 0x1.FFFFFEp63f);
}

static void test_f32_f64(void **state)
{
    (void)state;
    const double in[] = {0.1, -0.0, 1e-60, 1e300, -1e300, 16777217.0, INFINITY, NAN, 0x1.8p-149};
    const float want[] = {0.1f, -0.0f, 0.0f, INFINITY, -INFINITY, 16777216.0f, INFINITY, NAN, 0x1p-148f};
    uint8_t bytes[1 + sizeof in];
    float out[9];
    memcpy(bytes + 1, in, sizeof in);
    assert_int_equal(qn_decode(QN_F64, bytes + 1, 9, out, NULL), QN_OK);
    for (size_t i = 0; i < 9; i++) {
        assert_true(isnan(want[i]) ? isnan(out[i]) : out[i] == want[i] && !signbit(out[i]) == !signbit(want[i]));
    }
    double back[9];
    assert_int_equal(qn_encode(QN_F64, out, 9, back, NULL), QN_OK);
    assert_true(back[0] == (double)0.1f && back[3] == (double)INFINITY && isnan(back[7]));

    const uint32_t bits[4] = {0x7F800001, 0x80000001, 0x3F800000, 0xFFFFFFFF}; /* f32 is copied, NaN and all */
    uint32_t copy[4], again[4];
    float values[4];
    assert_int_equal(qn_decode(QN_F32, bits, 4, values, NULL), QN_OK);
    memcpy(copy, values, sizeof copy);
    assert_memory_equal(copy, bits, sizeof bits);
    assert_int_equal(qn_encode(QN_F32, values, 4, again, NULL), QN_OK);
    assert_memory_equal(again, bits, sizeof bits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_wide),
        cmocka_unit_test(test_f32_f64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
