/* GGUF block formats: against bytes and floats of the public gguf Python package
 * (gguf_golden.bin, made by make_gguf_golden.py), against a second decoder written
 * element by element from docs/formats/gguf-blocks.md, and the rules at the edges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "base/rng.h"
#include "format/format.h"

#define SEED 0xB10C5u
#define GOLDEN "tests/format/gguf_golden.bin"

static void take(FILE *file, void *out, size_t bytes)
{
    assert_int_equal(fread(out, 1, bytes, file), bytes);
}

/* Equal bits, any NaN equal to any other. */
static int same_floats(const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (memcmp(&a[i], &b[i], 4) != 0 && !(isnan(a[i]) && isnan(b[i]))) {
            print_error("element %zu: %a, expected %a\n", i, (double)a[i], (double)b[i]);
            return 0;
        }
    }
    return 1;
}

static void test_golden(void **state)
{
    (void)state;
    FILE *file = fopen(GOLDEN, "rb");
    assert_non_null(file);
    int decoded = 0, encoded = 0;
    for (;;) {
        int32_t head[5]; /* kind, ggml type, blocks, bytes and elements a block */
        take(file, head, sizeof head);
        if (head[0] == 0) {
            break;
        }
        const qn_format format = qn_format_from_gguf((uint32_t)head[1]);
        const qn_format_info *info = qn_format_get_info(format);
        assert_non_null(info);
        assert_int_equal(info->block_bytes, head[3]);
        assert_int_equal(info->block_elements, head[4]);
        const size_t bytes = (size_t)head[2] * (size_t)head[3], count = (size_t)head[2] * (size_t)head[4];
        uint8_t *codes = malloc(bytes), *made = malloc(bytes);
        float *values = malloc(count * 4), *got = malloc(count * 4);
        assert_true(codes && made && values && got);
        take(file, codes, bytes);
        take(file, values, count * 4);
        if (head[0] == 1) {
            assert_int_equal(qn_decode(format, codes, (int64_t)count, got, NULL), QN_OK);
            if (!same_floats(got, values, count)) {
                fail_msg("%s decodes to other floats", info->name);
            }
            decoded++;
        } else {
            assert_int_equal(qn_encode(format, values, (int64_t)count, made, NULL), QN_OK);
            for (size_t i = 0; i < bytes; i++) {
                if (made[i] != codes[i]) {
                    fail_msg("%s: block %zu byte %zu is 0x%02x, expected 0x%02x", info->name, i / (size_t)head[3],
                             i % (size_t)head[3], made[i], codes[i]);
                }
            }
            encoded++;
        }
        free(codes);
        free(made);
        free(values);
        free(got);
    }
    fclose(file);
    assert_int_equal(decoded, 23);
    assert_int_equal(encoded, 5);
}

static float half_at(const uint8_t *p)
{
    return qn_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* Element e of a block: docs/formats/gguf-blocks.md, one line a formula. */
static float element(qn_format format, const uint8_t *b, int e)
{
    const int j = e % 16, k = e % 32, h = e / 128, g = e / 16, s = e / 32, t = e % 128;
    static const float iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    static const float e2m1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};
    int q, c, m;
    switch (format) {
    case QN_Q4_0: return half_at(b) * (float)((b[2 + j] >> (e / 16 * 4) & 15) - 8);
    case QN_Q4_1: return half_at(b) * (float)(b[4 + j] >> (e / 16 * 4) & 15) + half_at(b + 2);
    case QN_Q5_0:
        q = (b[6 + j] >> (e / 16 * 4) & 15) + 16 * (b[2 + e / 8] >> (e % 8) & 1);
        return half_at(b) * (float)(q - 16);
    case QN_Q5_1:
        q = (b[8 + j] >> (e / 16 * 4) & 15) + 16 * (b[4 + e / 8] >> (e % 8) & 1);
        return half_at(b) * (float)q + half_at(b + 2);
    case QN_Q8_0: return half_at(b) * (float)(b[2 + e] < 128 ? b[2 + e] : b[2 + e] - 256);
    case QN_Q2_K:
        q = b[16 + 32 * h + k] >> (2 * (t / 32)) & 3;
        return half_at(b + 80) * (float)(b[g] & 15) * (float)q - half_at(b + 82) * (float)(b[g] >> 4);
    case QN_Q3_K:
        c = (b[96 + g % 8] >> (g / 8 * 4) & 15) + 16 * (b[104 + g % 4] >> (g / 4 * 2) & 3);
        q = (b[32 + 32 * h + k] >> (2 * (t / 32)) & 3) + 4 * (b[k] >> s & 1);
        return half_at(b + 108) * (float)(c - 32) * (float)(q - 4);
    case QN_Q4_K:
    case QN_Q5_K:
        c = s < 4 ? b[4 + s] & 63 : (b[8 + s] & 15) + 16 * (b[s] >> 6);
        m = s < 4 ? b[8 + s] & 63 : (b[8 + s] >> 4) + 16 * (b[4 + s] >> 6);
        q = b[(format == QN_Q4_K ? 16 : 48) + 32 * (s / 2) + k] >> (s % 2 * 4) & 15;
        q += format == QN_Q5_K ? 16 * (b[16 + k] >> s & 1) : 0;
        return half_at(b) * (float)c * (float)q - half_at(b + 2) * (float)m;
    case QN_IQ4_NL: return half_at(b) * iq4[b[2 + j] >> (e / 16 * 4) & 15];
    case QN_IQ4_XS:
        c = (b[4 + s / 2] >> (s % 2 * 4) & 15) + 16 * (b[2 + s / 4] >> (s % 4 * 2) & 3);
        return half_at(b) * (float)(c - 32) * iq4[b[8 + 16 * s + j] >> (k / 16 * 4) & 15];
    case QN_I8_K: {
        float d;
        memcpy(&d, b, sizeof d);
        return d * (float)(int8_t)b[4 + g] * (float)(int8_t)b[20 + e];
    }
    case QN_TQ2_0: return half_at(b + 64) * (float)((b[32 * h + k] >> (2 * (t / 32)) & 3) - 1);
    case QN_MXFP4: return (b[0] == 255 ? NAN : ldexpf(1, b[0] - 127)) * e2m1[b[1 + j] >> (e / 16 * 4) & 15];
    case QN_NVFP4:
        c = b[g] & 127;
        q = b[4 + 8 * g + e % 8] >> (e % 16 / 8 * 4) & 15;
        m = c / 8 ? 8 + c % 8 : c % 8;
        return b[g] == 127 ? 0 * e2m1[q] : c == 127 ? NAN : ldexpf((float)m, (c / 8 ? c / 8 : 1) - 10) * e2m1[q];
    default: /* QN_Q6_K */
        c = b[192 + g] < 128 ? b[192 + g] : b[192 + g] - 256;
        q = (b[64 * h + e % 64] >> (t / 64 * 4) & 15) + 16 * (b[128 + 32 * h + k] >> (2 * (t / 32)) & 3);
        return half_at(b + 208) * (float)c * (float)(q - 32);
    }
}

static void test_second_decoder(void **state)
{
    (void)state;
    static const qn_format formats[] = {QN_Q4_0, QN_Q4_1, QN_Q5_0, QN_Q5_1,   QN_Q8_0,   QN_Q2_K,  QN_Q3_K,
                                        QN_Q4_K, QN_Q5_K, QN_Q6_K, QN_IQ4_NL, QN_IQ4_XS, QN_MXFP4, QN_NVFP4, QN_I8_K, QN_TQ2_0};
    qn_rng rng = {SEED};
    print_message("seed 0x%x\n", SEED);
    for (size_t k = 0; k < sizeof formats / sizeof *formats; k++) {
        const qn_format_info *info = qn_format_get_info(formats[k]);
        for (int round = 0; round < 500; round++) {
            uint8_t block[1 + 276];
            float got[256], want[256];
            for (int i = 0; i < info->block_bytes; i++) {
                block[1 + i] = (uint8_t)(qn_rng_next(&rng) >> 40);
            }
            assert_int_equal(qn_decode(formats[k], block + 1, info->block_elements, got, NULL), QN_OK);
            for (int e = 0; e < info->block_elements; e++) {
                want[e] = element(formats[k], block + 1, e);
            }
            if (!same_floats(got, want, (size_t)info->block_elements)) {
                fail_msg("%s differs from the second decoder", info->name);
            }
        }
    }
}

/* Blocks taken apart mean what they meant: a code is its element's, a scale its group's. */
static void test_fp4_apart(void **state)
{
    (void)state;
    enum { BLOCKS = 5 };
    qn_rng rng = {SEED + 2};
    for (int mx = 0; mx < 2; mx++) {
        const qn_format format = mx ? QN_MXFP4 : QN_NVFP4;
        const qn_format_info *info = qn_format_get_info(format);
        const int count = BLOCKS * info->block_elements, unit = mx ? 32 : 16;
        for (int round = 0; round < 100; round++) {
            uint8_t blocks[BLOCKS * 36], codes[BLOCKS * 32 + 1], scales[BLOCKS * 4 + 1];
            float want[BLOCKS * 64], code[BLOCKS * 64], scale[BLOCKS * 4];
            memset(codes, 0xcc, sizeof codes);
            memset(scales, 0xcc, sizeof scales);
            for (int i = 0; i < BLOCKS * info->block_bytes; i++) {
                blocks[i] = (uint8_t)(qn_rng_next(&rng) >> 40);
            }
            assert_int_equal(qn_decode(format, blocks, count, want, NULL), QN_OK);
            qn_fp4_blocks_codes(format, blocks, count, codes);
            qn_fp4_blocks_scales(format, blocks, count, scales);
            assert_int_equal(codes[count / 2], 0xcc);
            assert_int_equal(scales[count / unit], 0xcc);
            assert_int_equal(qn_decode(QN_F4_E2M1, codes, count, code, NULL), QN_OK);
            assert_int_equal(qn_decode(mx ? QN_E8M0 : QN_F8_E4M3, scales, count / unit, scale, NULL), QN_OK);
            for (int e = 0; e < count; e++) {
                want[e] += 0.0f; /* no -0 */
                code[e] = code[e] * scale[e / unit] + 0.0f;
            }
            assert_true(same_floats(want, code, (size_t)count));
        }
    }
}

static const struct small {
    qn_format format;
    float steps; /* codes a range is cut into */
    int affine;
} small[] = {{QN_Q4_0, 8, 0}, {QN_Q4_1, 15, 1}, {QN_Q5_0, 16, 0}, {QN_Q5_1, 31, 1}, {QN_Q8_0, 127, 0}};

/* Error within a step: half of one for the nearest code, up to one at the end that
 * the symmetric formats lack, and what rounding d and m to f16 adds. */
static void test_error_bound(void **state)
{
    (void)state;
    qn_rng rng = {SEED + 1};
    for (size_t k = 0; k < sizeof small / sizeof *small; k++) {
        for (int round = 0; round < 300; round++) {
            float x[32], y[32], low = INFINITY, high = -INFINITY, most = 0;
            uint8_t block[34];
            for (int j = 0; j < 32; j++) {
                x[j] = (float)(qn_rng_uniform(&rng) * 4 - 1);
                low = fminf(low, x[j]);
                high = fmaxf(high, x[j]);
                most = fmaxf(most, fabsf(x[j]));
            }
            const float step = (small[k].affine ? high - low : most) / small[k].steps;
            assert_int_equal(qn_encode(small[k].format, x, 32, block, NULL), QN_OK);
            assert_int_equal(qn_decode(small[k].format, block, 32, y, NULL), QN_OK);
            for (int j = 0; j < 32; j++) {
                const float limit = small[k].affine || small[k].format == QN_Q8_0 ? 0.5f : 1.0f;
                assert_true(fabsf(x[j] - y[j]) <= step * limit + 0.003f);
            }
        }
    }
}

/* NaN shows in every element, infinity as infinity or NaN; tiny ranges give zeros; nothing is undefined. */
static void test_edges(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof small / sizeof *small; k++) {
        float x[32], y[32];
        uint8_t block[34];
        for (int at = 0; at < 32; at++) {
            for (int j = 0; j < 32; j++) {
                x[j] = (float)j - 9;
            }
            x[at] = NAN;
            assert_int_equal(qn_encode(small[k].format, x, 32, block, NULL), QN_OK);
            assert_int_equal(qn_decode(small[k].format, block, 32, y, NULL), QN_OK);
            for (int j = 0; j < 32; j++) {
                assert_true(isnan(y[j]));
            }
            x[at] = at % 2 ? INFINITY : -INFINITY;
            assert_int_equal(qn_encode(small[k].format, x, 32, block, NULL), QN_OK);
            assert_int_equal(qn_decode(small[k].format, block, 32, y, NULL), QN_OK);
            for (int j = 0; j < 32; j++) {
                assert_true(!isfinite(y[j]));
            }
        }
        const float tiny[] = {0x1p-149f, 0x1p-140f, 0x1p-127f, 0x1p-60f, 0.0f};
        for (size_t i = 0; i < 5; i++) {
            for (int j = 0; j < 32; j++) {
                x[j] = j % 3 ? tiny[i] : -tiny[i];
            }
            assert_int_equal(qn_encode(small[k].format, x, 32, block, NULL), QN_OK);
            assert_int_equal(qn_decode(small[k].format, block, 32, y, NULL), QN_OK);
            for (int j = 0; j < 32; j++) {
                assert_true(y[j] == 0);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_fp4_apart),
        cmocka_unit_test(test_second_decoder),
        cmocka_unit_test(test_error_bound),
        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
