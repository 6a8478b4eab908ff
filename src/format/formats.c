/* The table of formats and the public lookups, qn_decode and qn_encode.
 *
 * A format is a value of qn_format, one row here and one codec (declared in
 * codecs.h). Every other part of the library that needs a fact of a format reads
 * it from the row. */
#include "format/format.h"

#include <float.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "format/codecs.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the codecs read and write little-endian bytes as they are");
_Static_assert(sizeof(float) == 4 && FLT_MANT_DIG == 24, "float is IEEE 754 binary32");

#define NO_GGUF (-1)

/* Blocks that operators take as i8_k. */
#define VECTORS(value, name, bytes, type)                                                                              \
    [value] = {.info = {value, #name, 256, bytes, 0},                                                                  \
               .gguf = (type),                                                                                         \
               .decode = qn_decode_##name,                                                                             \
               .taken_as = QN_I8_K,                                                                                    \
               .rewrite = qn_rewrite_##name}

static const qn_format_row qn_formats[QN_FORMAT_LIMIT] = {
    [QN_F32] = {.info = {QN_F32, "f32", 1, 4, FLT_MAX},
                .safetensors = "F32",
                .gguf = 0,
                .decode = qn_decode_f32,
                .encode = qn_encode_f32},
    [QN_F16] = {.info = {QN_F16, "f16", 1, 2, 65504.0f},
                .safetensors = "F16",
                .gguf = 1,
                .decode = qn_decode_f16,
                .encode = qn_encode_f16},
    [QN_BF16] = {.info = {QN_BF16, "bf16", 1, 2, 0x1.FEp127f},
                 .safetensors = "BF16",
                 .gguf = 30,
                 .decode = qn_decode_bf16,
                 .encode = qn_encode_bf16},
    [QN_F64] = {.info = {QN_F64, "f64", 1, 8, FLT_MAX}, /* the largest a float can say */
                .safetensors = "F64",
                .gguf = 28,
                .decode = qn_decode_f64,
                .encode = qn_encode_f64},
    [QN_I8] = {.info = {QN_I8, "i8", 1, 1, 0},
               .safetensors = "I8",
               .gguf = 24,
               .decode = qn_decode_i8,
               .encode = qn_encode_i8},
    [QN_U8] = {.info = {QN_U8, "u8", 1, 1, 0},
               .safetensors = "U8",
               .gguf = NO_GGUF,
               .decode = qn_decode_u8,
               .encode = qn_encode_u8},
    [QN_I16] = {.info = {QN_I16, "i16", 1, 2, 0},
                .safetensors = "I16",
                .gguf = 25,
                .decode = qn_decode_i16,
                .encode = qn_encode_i16},
    [QN_U16] = {.info = {QN_U16, "u16", 1, 2, 0},
                .safetensors = "U16",
                .gguf = NO_GGUF,
                .decode = qn_decode_u16,
                .encode = qn_encode_u16},
    [QN_I32] = {.info = {QN_I32, "i32", 1, 4, 0},
                .safetensors = "I32",
                .gguf = 26,
                .decode = qn_decode_i32,
                .encode = qn_encode_i32},
    [QN_U32] = {.info = {QN_U32, "u32", 1, 4, 0},
                .safetensors = "U32",
                .gguf = NO_GGUF,
                .decode = qn_decode_u32,
                .encode = qn_encode_u32},
    [QN_I64] = {.info = {QN_I64, "i64", 1, 8, 0},
                .safetensors = "I64",
                .gguf = 27,
                .decode = qn_decode_i64,
                .encode = qn_encode_i64},
    [QN_U64] = {.info = {QN_U64, "u64", 1, 8, 0},
                .safetensors = "U64",
                .gguf = NO_GGUF,
                .decode = qn_decode_u64,
                .encode = qn_encode_u64},
    [QN_BOOL] = {.info = {QN_BOOL, "bool", 1, 1, 0},
                 .safetensors = "BOOL",
                 .gguf = NO_GGUF,
                 .decode = qn_decode_bool,
                 .encode = qn_encode_bool},
    [QN_F8_E4M3] = {.info = {QN_F8_E4M3, "f8_e4m3", 1, 1, 448.0f},
                    .safetensors = "F8_E4M3",
                    .gguf = NO_GGUF,
                    .decode = qn_decode_f8_e4m3,
                    .encode = qn_encode_f8_e4m3},
    [QN_F8_E4M3FNUZ] = {.info = {QN_F8_E4M3FNUZ, "f8_e4m3fnuz", 1, 1, 240.0f},
                        .safetensors = NULL,
                        .gguf = NO_GGUF,
                        .decode = qn_decode_f8_e4m3fnuz,
                        .encode = qn_encode_f8_e4m3fnuz},
    [QN_F8_E5M2] = {.info = {QN_F8_E5M2, "f8_e5m2", 1, 1, 57344.0f},
                    .safetensors = "F8_E5M2",
                    .gguf = NO_GGUF,
                    .decode = qn_decode_f8_e5m2,
                    .encode = qn_encode_f8_e5m2},
    [QN_E8M0] = {.info = {QN_E8M0, "e8m0", 1, 1, 0x1p127f},
                 .safetensors = "F8_E8M0",
                 .gguf = NO_GGUF,
                 .decode = qn_decode_e8m0,
                 .encode = qn_encode_e8m0},
    [QN_F4_E2M1] = {.info = {QN_F4_E2M1, "f4_e2m1", 2, 1, 6.0f},
                    .safetensors = NULL,
                    .gguf = NO_GGUF,
                    .decode = qn_decode_f4_e2m1,
                    .encode = qn_encode_f4_e2m1},
    [QN_Q4_0] = {.info = {QN_Q4_0, "q4_0", 32, 18, 0}, .gguf = 2, .decode = qn_decode_q4_0, .encode = qn_encode_q4_0},
    [QN_Q4_1] = {.info = {QN_Q4_1, "q4_1", 32, 20, 0}, .gguf = 3, .decode = qn_decode_q4_1, .encode = qn_encode_q4_1},
    [QN_Q5_0] = {.info = {QN_Q5_0, "q5_0", 32, 22, 0}, .gguf = 6, .decode = qn_decode_q5_0, .encode = qn_encode_q5_0},
    [QN_Q5_1] = {.info = {QN_Q5_1, "q5_1", 32, 24, 0}, .gguf = 7, .decode = qn_decode_q5_1, .encode = qn_encode_q5_1},
    [QN_Q8_0] = {.info = {QN_Q8_0, "q8_0", 32, 34, 0}, .gguf = 8, .decode = qn_decode_q8_0, .encode = qn_encode_q8_0},
    [QN_Q2_K] = {.info = {QN_Q2_K, "q2_k", 256, 84, 0}, .gguf = 10, .decode = qn_decode_q2_k},
    [QN_Q3_K] = {.info = {QN_Q3_K, "q3_k", 256, 110, 0}, .gguf = 11, .decode = qn_decode_q3_k},
    [QN_Q4_K] = {.info = {QN_Q4_K, "q4_k", 256, 144, 0}, .gguf = 12, .decode = qn_decode_q4_k},
    [QN_Q5_K] = {.info = {QN_Q5_K, "q5_k", 256, 176, 0}, .gguf = 13, .decode = qn_decode_q5_k},
    [QN_Q6_K] = {.info = {QN_Q6_K, "q6_k", 256, 210, 0}, .gguf = 14, .decode = qn_decode_q6_k},
    [QN_IQ4_NL] = {.info = {QN_IQ4_NL, "iq4_nl", 32, 18, 0}, .gguf = 20, .decode = qn_decode_iq4_nl},
    [QN_MXFP4] = {.info = {QN_MXFP4, "mxfp4", 32, 17, 0}, .gguf = 39, .decode = qn_decode_mxfp4},
    [QN_NVFP4] = {.info = {QN_NVFP4, "nvfp4", 64, 36, 0}, .gguf = 40, .decode = qn_decode_nvfp4},
    [QN_I8_K] = {.info = {QN_I8_K, "i8_k", 256, 276, 0}, .gguf = NO_GGUF, .decode = qn_decode_i8_k},
    VECTORS(QN_TQ1_0, tq1_0, 54, 34),
    VECTORS(QN_TQ2_0, tq2_0, 66, 35),
    VECTORS(QN_IQ2_XXS, iq2_xxs, 66, 16),
    VECTORS(QN_IQ2_XS, iq2_xs, 74, 17),
    VECTORS(QN_IQ2_S, iq2_s, 82, 22),
    VECTORS(QN_IQ3_XXS, iq3_xxs, 98, 18),
    VECTORS(QN_IQ3_S, iq3_s, 110, 21),
    VECTORS(QN_IQ1_S, iq1_s, 50, 19),
    VECTORS(QN_IQ1_M, iq1_m, 56, 29),
    [QN_IQ4_XS] = {.info = {QN_IQ4_XS, "iq4_xs", 256, 136, 0}, .gguf = 23, .decode = qn_decode_iq4_xs},
};

const qn_format_row *qn_format_get_row(qn_format format)
{
    const size_t i = (size_t)format;
    return i < QN_FORMAT_LIMIT && qn_formats[i].info.name ? &qn_formats[i] : NULL;
}

const qn_format_info *qn_format_get_info(qn_format format)
{
    const qn_format_row *row = qn_format_get_row(format);
    return row ? &row->info : NULL;
}

/* Equal but for the case of ASCII letters, in any locale. */
static int same_word(const char *a, const char *b)
{
    for (;; a++, b++) {
        const char x = (char)(*a >= 'A' && *a <= 'Z' ? *a - 'A' + 'a' : *a);
        const char y = (char)(*b >= 'A' && *b <= 'Z' ? *b - 'A' + 'a' : *b);
        if (x != y) {
            return 0;
        }
        if (!x) {
            return 1;
        }
    }
}

qn_format qn_format_find(const char *name)
{
    for (size_t i = 0; name && i < QN_FORMAT_LIMIT; i++) {
        if (qn_formats[i].info.name && same_word(qn_formats[i].info.name, name)) {
            return qn_formats[i].info.format;
        }
    }
    return QN_FORMAT_NONE;
}

qn_format qn_format_from_safetensors(const char *dtype)
{
    for (size_t i = 0; dtype && i < QN_FORMAT_LIMIT; i++) {
        if (qn_formats[i].safetensors && strcmp(qn_formats[i].safetensors, dtype) == 0) {
            return qn_formats[i].info.format;
        }
    }
    return QN_FORMAT_NONE;
}

qn_format qn_format_from_gguf(uint32_t type)
{
    for (size_t i = 0; i < QN_FORMAT_LIMIT; i++) {
        if (qn_formats[i].info.name && qn_formats[i].gguf >= 0 && (uint32_t)qn_formats[i].gguf == type) {
            return qn_formats[i].info.format;
        }
    }
    return QN_FORMAT_NONE;
}

qn_status qn_format_row_bytes(qn_format format, int64_t count, size_t *bytes, qn_error *error)
{
    const qn_format_info *info = qn_format_get_info(format);
    QN_FAIL_IF(!info, error, QN_E_ARGUMENT, "%d is not a format", (int)format);
    QN_FAIL_IF(!bytes, error, QN_E_ARGUMENT, "qn_format_row_bytes: bytes is NULL");
    QN_FAIL_IF(count < 0, error, QN_E_SHAPE, "a row of %lld elements: the count is negative", (long long)count);
    QN_FAIL_IF(count % info->block_elements != 0, error, QN_E_SHAPE,
               "a row of %lld elements does not fill whole blocks of %s (%d elements each)", (long long)count,
               info->name, info->block_elements);
    int64_t product = 0;
    QN_FAIL_IF(qn_mul_i64(count / info->block_elements, info->block_bytes, &product) || product > PTRDIFF_MAX, error,
               QN_E_ARGUMENT, "a row of %lld elements of %s has more bytes than memory can hold", (long long)count,
               info->name);
    *bytes = (size_t)product;
    return QN_OK;
}

qn_status qn_decode(qn_format format, const void *source, int64_t count, float *destination, qn_error *error)
{
    size_t bytes = 0, floats = 0;
    QN_TRY(qn_format_row_bytes(format, count, &bytes, error));
    QN_TRY(qn_format_row_bytes(QN_F32, count, &floats, error));
    const qn_format_row *row = qn_format_get_row(format);
    QN_FAIL_IF(!row->decode, error, QN_E_FORMAT, "format %s cannot be decoded to float", row->info.name);
    QN_FAIL_IF(count && (!source || !destination), error, QN_E_ARGUMENT, "qn_decode: %s is NULL",
               source ? "destination" : "source");
    if (count) {
        row->decode(source, count, destination);
    }
    return QN_OK;
}

qn_status qn_encode(qn_format format, const float *source, int64_t count, void *destination, qn_error *error)
{
    size_t bytes = 0, floats = 0;
    QN_TRY(qn_format_row_bytes(format, count, &bytes, error));
    QN_TRY(qn_format_row_bytes(QN_F32, count, &floats, error));
    const qn_format_row *row = qn_format_get_row(format);
    QN_FAIL_IF(!row->encode, error, QN_E_FORMAT, "format %s cannot be encoded: it can only be read", row->info.name);
    QN_FAIL_IF(count && (!source || !destination), error, QN_E_ARGUMENT, "qn_encode: %s is NULL",
               source ? "destination" : "source");
    if (count) {
        row->encode(source, count, destination);
    }
    return QN_OK;
}
