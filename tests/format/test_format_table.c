/* The format table, row sizes, argument checks, shapes and views, and the 128x4
 * tiled order of scales. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <quern/view.h>

#include "format/format.h"

static const struct row {
    qn_format format;
    const char *name;
    int32_t elements, bytes;
    const char *safetensors;
    int32_t gguf;
    int encodes;
} rows[] = {
    {QN_F32, "f32", 1, 4, "F32", 0, 1},         {QN_F16, "f16", 1, 2, "F16", 1, 1},
    {QN_BF16, "bf16", 1, 2, "BF16", 30, 1},     {QN_F64, "f64", 1, 8, "F64", 28, 1},
    {QN_I8, "i8", 1, 1, "I8", 24, 1},           {QN_U8, "u8", 1, 1, "U8", -1, 1},
    {QN_I16, "i16", 1, 2, "I16", 25, 1},        {QN_U16, "u16", 1, 2, "U16", -1, 1},
    {QN_I32, "i32", 1, 4, "I32", 26, 1},        {QN_U32, "u32", 1, 4, "U32", -1, 1},
    {QN_I64, "i64", 1, 8, "I64", 27, 1},        {QN_U64, "u64", 1, 8, "U64", -1, 1},
    {QN_BOOL, "bool", 1, 1, "BOOL", -1, 1},     {QN_F8_E4M3, "f8_e4m3", 1, 1, "F8_E4M3", -1, 1},
    {QN_F8_E5M2, "f8_e5m2", 1, 1, "F8_E5M2", -1, 1}, {QN_F8_E4M3FNUZ, "f8_e4m3fnuz", 1, 1, NULL, -1, 1},
    {QN_E8M0, "e8m0", 1, 1, "F8_E8M0", -1, 1},  {QN_F4_E2M1, "f4_e2m1", 2, 1, NULL, -1, 1},
    {QN_Q4_0, "q4_0", 32, 18, NULL, 2, 1},      {QN_Q4_1, "q4_1", 32, 20, NULL, 3, 1},
    {QN_Q5_0, "q5_0", 32, 22, NULL, 6, 1},      {QN_Q5_1, "q5_1", 32, 24, NULL, 7, 1},
    {QN_Q8_0, "q8_0", 32, 34, NULL, 8, 1},      {QN_Q2_K, "q2_k", 256, 84, NULL, 10, 0},
    {QN_Q3_K, "q3_k", 256, 110, NULL, 11, 0},   {QN_Q4_K, "q4_k", 256, 144, NULL, 12, 0},
    {QN_Q5_K, "q5_k", 256, 176, NULL, 13, 0},   {QN_Q6_K, "q6_k", 256, 210, NULL, 14, 0},
    {QN_TQ1_0, "tq1_0", 256, 54, NULL, 34, 0},  {QN_TQ2_0, "tq2_0", 256, 66, NULL, 35, 0},
    {QN_I8_K, "i8_k", 256, 276, NULL, -1, 0},   {QN_IQ2_XXS, "iq2_xxs", 256, 66, NULL, 16, 0},
    {QN_IQ2_XS, "iq2_xs", 256, 74, NULL, 17, 0}, {QN_IQ2_S, "iq2_s", 256, 82, NULL, 22, 0},
    {QN_IQ3_XXS, "iq3_xxs", 256, 98, NULL, 18, 0}, {QN_IQ3_S, "iq3_s", 256, 110, NULL, 21, 0},
    {QN_IQ1_S, "iq1_s", 256, 50, NULL, 19, 0},  {QN_IQ1_M, "iq1_m", 256, 56, NULL, 29, 0},
    {QN_MXFP4, "mxfp4", 32, 17, NULL, 39, 0},   {QN_NVFP4, "nvfp4", 64, 36, NULL, 40, 0},
    {QN_IQ4_NL, "iq4_nl", 32, 18, NULL, 20, 0}, {QN_IQ4_XS, "iq4_xs", 256, 136, NULL, 23, 0},
};
enum { ROWS = sizeof rows / sizeof *rows };

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        const struct row *want = &rows[i];
        const qn_format_row *row = qn_format_get_row(want->format);
        assert_non_null(row);
        assert_ptr_equal(qn_format_get_info(want->format), &row->info);
        assert_int_equal(row->info.format, want->format);
        assert_string_equal(row->info.name, want->name);
        assert_int_equal(row->info.block_elements, want->elements);
        assert_int_equal(row->info.block_bytes, want->bytes);
        assert_int_equal(row->gguf, want->gguf);
        assert_int_equal(row->encode != NULL, want->encodes);
        assert_non_null(row->decode);
        assert_int_equal(qn_format_find(want->name), want->format);
        if (want->safetensors) {
            assert_string_equal(row->safetensors, want->safetensors);
            assert_int_equal(qn_format_from_safetensors(want->safetensors), want->format);
        } else {
            assert_null(row->safetensors);
        }
        if (want->gguf >= 0) {
            assert_int_equal(qn_format_from_gguf((uint32_t)want->gguf), want->format);
        }
    }
    int found = 0;
    for (int f = -3; f < QN_FORMAT_LIMIT + 3; f++) {
        found += qn_format_get_row((qn_format)f) != NULL;
    }
    if (found != ROWS) {
        fail_msg("the table has %d formats, this test knows %d: add the new row here", found, ROWS);
    }
    int from_gguf = 0;
    for (uint32_t type = 0; type < 100; type++) {
        from_gguf += qn_format_from_gguf(type) != QN_FORMAT_NONE;
    }
    assert_int_equal(from_gguf, 31);
    assert_int_equal(qn_format_from_gguf(UINT32_MAX), QN_FORMAT_NONE);
    assert_int_equal(qn_format_from_gguf(4), QN_FORMAT_NONE);
    assert_int_equal(qn_format_from_safetensors("f32"), QN_FORMAT_NONE);
    assert_int_equal(qn_format_from_safetensors(NULL), QN_FORMAT_NONE);
    assert_int_equal(qn_format_find("Q4_K"), QN_Q4_K);
    assert_int_equal(qn_format_find("Bf16"), QN_BF16);
    assert_int_equal(qn_format_find("q4_kk"), QN_FORMAT_NONE);
    assert_int_equal(qn_format_find("q4_"), QN_FORMAT_NONE);
    assert_int_equal(qn_format_find(""), QN_FORMAT_NONE);
    assert_int_equal(qn_format_find(NULL), QN_FORMAT_NONE);
}

static void test_row_bytes(void **state)
{
    (void)state;
    qn_error error;
    size_t bytes = 77;
    assert_int_equal(qn_format_row_bytes(QN_Q4_1, 576, &bytes, &error), QN_OK);
    assert_int_equal(bytes, 360);
    assert_int_equal(qn_format_row_bytes(QN_F4_E2M1, 576, &bytes, &error), QN_OK);
    assert_int_equal(bytes, 288);
    assert_int_equal(qn_format_row_bytes(QN_F64, 0, &bytes, &error), QN_OK);
    assert_int_equal(bytes, 0);
    bytes = 77;
    assert_int_equal(qn_format_row_bytes(QN_F32, -1, &bytes, &error), QN_E_SHAPE);
    assert_int_equal(qn_format_row_bytes(QN_Q4_0, 33, &bytes, &error), QN_E_SHAPE);
    assert_non_null(strstr(error.text, "q4_0"));
    assert_int_equal(qn_format_row_bytes(QN_Q6_K, 128, &bytes, &error), QN_E_SHAPE);
    assert_int_equal(qn_format_row_bytes(QN_F4_E2M1, 7, &bytes, &error), QN_E_SHAPE);
    assert_int_equal(qn_format_row_bytes(QN_F32, INT64_MAX / 4 + 1, &bytes, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_format_row_bytes(QN_F64, INT64_MAX, &bytes, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_format_row_bytes(QN_Q8_0, INT64_MAX / 32 * 32, &bytes, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_format_row_bytes(QN_FORMAT_NONE, 4, &bytes, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_format_row_bytes((qn_format)30, 4, &bytes, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_format_row_bytes((qn_format)-5, 4, &bytes, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_format_row_bytes(QN_F32, 4, NULL, &error), QN_E_ARGUMENT);
    assert_int_equal(bytes, 77); /* untouched by failures */
    assert_int_equal(qn_format_row_bytes(QN_I8, INT64_MAX, &bytes, NULL), QN_OK);
    assert_int_equal(bytes, INT64_MAX);
}

static void test_codec_arguments(void **state)
{
    (void)state;
    qn_error error;
    float x[256] = {0};
    uint8_t bytes[256] = {0};
    assert_int_equal(qn_decode(QN_Q4_K, bytes, 255, x, &error), QN_E_SHAPE);
    assert_int_equal(qn_decode(QN_F32, bytes, -1, x, &error), QN_E_SHAPE);
    assert_int_equal(qn_decode(QN_FORMAT_NONE, bytes, 1, x, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_decode(QN_I8, NULL, 1, x, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_decode(QN_I8, bytes, 1, NULL, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_decode(QN_I8, bytes, INT64_MAX, x, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_encode(QN_Q4_K, x, 256, bytes, &error), QN_E_FORMAT);
    assert_non_null(strstr(error.text, "q4_k"));
    assert_int_equal(qn_encode(QN_F4_E2M1, x, 3, bytes, &error), QN_E_SHAPE);
    assert_int_equal(qn_encode(QN_F16, NULL, 3, bytes, NULL), QN_E_ARGUMENT);
    assert_int_equal(qn_encode(QN_F16, x, INT64_MAX, bytes, NULL), QN_E_ARGUMENT);
    for (size_t i = 0; i < ROWS; i++) { /* nothing to do asks for no memory */
        assert_int_equal(qn_decode(rows[i].format, NULL, 0, NULL, &error), QN_OK);
        assert_int_equal(qn_encode(rows[i].format, NULL, 0, NULL, &error), rows[i].encodes ? QN_OK : QN_E_FORMAT);
    }
}

/* A codec touches exactly its bytes: sources and destinations of exact size, found out by the sanitizer. */
static void test_codec_extent(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        for (int64_t blocks = 1; blocks <= 37; blocks += 6) {
            const int64_t count = blocks * rows[i].elements;
            size_t bytes = 0;
            assert_int_equal(qn_format_row_bytes(rows[i].format, count, &bytes, NULL), QN_OK);
            uint8_t *codes = calloc(1, bytes);
            float *x = calloc((size_t)count, sizeof *x);
            assert_true(codes && x);
            assert_int_equal(qn_decode(rows[i].format, codes, count, x, NULL), QN_OK);
            if (rows[i].encodes) {
                assert_int_equal(qn_encode(rows[i].format, x, count, codes, NULL), QN_OK);
            }
            free(codes);
            free(x);
        }
    }
}

static void test_shapes(void **state)
{
    (void)state;
    qn_error error;
    size_t bytes = 77;
    qn_shape s = qn_shape_make(QN_Q4_1, 2, 3, 64, 9, 9);
    assert_int_equal(s.dims[2], 1);
    assert_int_equal(s.dims[3], 1);
    assert_int_equal(qn_shape_elements(&s), 192);
    assert_int_equal(qn_shape_bytes(&s, &bytes, &error), QN_OK);
    assert_int_equal(bytes, 120);
    const qn_view v = qn_view_make(&s, &s);
    assert_ptr_equal(v.data, &s);
    assert_int_equal(v.strides[0], 40);

    s = qn_shape_make(QN_BF16, 4, 2, 3, 5, 7);
    qn_mut_view m = qn_mut_view_make(NULL, &s);
    assert_int_equal(m.strides[0], 3 * 5 * 14);
    assert_int_equal(m.strides[1], 5 * 14);
    assert_int_equal(m.strides[2], 14);
    assert_int_equal(m.strides[3], 2);
    m.strides[0] = 4096;
    const qn_view r = qn_view_of(&m);
    assert_int_equal(r.strides[0], 4096);
    assert_int_equal(r.shape.dims[3], 7);

    s = qn_shape_make(QN_F32, 0, 5, 5, 5, 5);
    assert_int_equal(qn_shape_elements(&s), 1);
    assert_int_equal(qn_shape_bytes(&s, &bytes, &error), QN_OK);
    assert_int_equal(bytes, 4);
    s = qn_shape_make(QN_Q8_0, 0, 0, 0, 0, 0);
    assert_int_equal(qn_shape_bytes(&s, &bytes, &error), QN_E_SHAPE);
    s = qn_shape_make(QN_F32, 3, INT64_MAX, INT64_MAX, 2, 0);
    assert_int_equal(qn_shape_elements(&s), INT64_MAX);
    assert_int_equal(qn_shape_bytes(&s, &bytes, &error), QN_E_ARGUMENT);
    (void)qn_view_make(NULL, &s); /* strides that overflow: no trap */
    s = qn_shape_make(QN_F32, 4, (int64_t)1 << 32, (int64_t)1 << 31, 1, 1);
    assert_int_equal(qn_shape_bytes(&s, &bytes, &error), QN_E_ARGUMENT);
    s = qn_shape_make(QN_F32, 4, INT64_MAX, INT64_MAX, 0, 8);
    assert_int_equal(qn_shape_elements(&s), 0);
    assert_int_equal(qn_shape_bytes(&s, &bytes, &error), QN_OK);
    assert_int_equal(bytes, 0);
    s = qn_shape_make(QN_F32, 2, 0, 8, 0, 0);
    assert_int_equal(qn_shape_bytes(&s, &bytes, &error), QN_OK);
    assert_int_equal(bytes, 0);
    s = qn_shape_make(QN_Q8_0, 2, 0, 8, 0, 0); /* the row must be whole even when there is none */
    assert_int_equal(qn_shape_bytes(&s, &bytes, &error), QN_E_SHAPE);
    s = qn_shape_make(QN_F32, 2, -2, -3, 1, 1);
    assert_int_equal(qn_shape_elements(&s), 0);
    assert_int_equal(qn_shape_bytes(&s, &bytes, &error), QN_E_SHAPE);
    s = qn_shape_make(QN_FORMAT_NONE, 1, 4, 1, 1, 1);
    assert_int_equal(qn_shape_bytes(&s, &bytes, &error), QN_E_ARGUMENT);
    s = qn_shape_make(QN_F32, 5, 1, 1, 1, 1);
    assert_int_equal(qn_shape_bytes(&s, &bytes, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_shape_elements(&s), 0);
    (void)qn_view_make(NULL, &s);
    s = qn_shape_make(QN_F32, -1, 1, 1, 1, 1);
    assert_int_equal(qn_shape_bytes(&s, &bytes, &error), QN_E_ARGUMENT);
    assert_int_equal(qn_shape_bytes(NULL, &bytes, &error), QN_E_ARGUMENT);
}

static void test_swizzle(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{1, 1}, {128, 4}, {129, 5}, {90, 4}, {576, 36}, {300, 96}, {1, 13}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        const int64_t m = sizes[k][0], n = sizes[k][1];
        const int64_t padded_m = (m + 127) / 128 * 128, padded_n = (n + 3) / 4 * 4;
        const int64_t bytes = qn_scale_swizzle_bytes(m, n);
        assert_int_equal(bytes, padded_m * padded_n);
        uint8_t *seen = calloc(1, (size_t)bytes);
        assert_non_null(seen);
        for (int64_t r = 0; r < padded_m; r++) {
            for (int64_t c = 0; c < padded_n; c++) { /* padding has places of its own: a bijection */
                const int64_t at = qn_scale_swizzle(r, c, n);
                const int64_t tile = (r / 128) * ((n + 3) / 4) + c / 4;
                const int64_t want = tile * 512 + (r % 32) * 16 + ((r % 128) / 32) * 4 + c % 4;
                assert_int_equal(at, want);
                assert_true(at >= 0 && at < bytes && !seen[at]);
                seen[at] = 1;
            }
        }
        free(seen);
    }
    assert_int_equal(qn_scale_swizzle(0, 0, 8), 0); /* by hand */
    assert_int_equal(qn_scale_swizzle(1, 0, 8), 16);
    assert_int_equal(qn_scale_swizzle(32, 3, 8), 7);
    assert_int_equal(qn_scale_swizzle(0, 4, 8), 512);
    assert_int_equal(qn_scale_swizzle(128, 0, 8), 1024);
    assert_int_equal(qn_scale_swizzle(127, 7, 8), 512 + 31 * 16 + 15);
    assert_int_equal(qn_scale_swizzle_bytes(0, 9), 0);
    assert_int_equal(qn_scale_swizzle_bytes(9, 0), 0);
    assert_int_equal(qn_scale_swizzle_bytes(INT64_MAX, INT64_MAX), INT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),        cmocka_unit_test(test_row_bytes),
        cmocka_unit_test(test_codec_arguments), cmocka_unit_test(test_codec_extent),
        cmocka_unit_test(test_shapes),       cmocka_unit_test(test_swizzle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
