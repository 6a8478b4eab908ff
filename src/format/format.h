/* Formats inside the library: the table row and the scalar codec.
 *
 * A format is one row of qn_formats[] (src/format/formats.c) and one codec file.
 * Everything else reaches it through the row. */
#ifndef QN_FORMAT_FORMAT_H
#define QN_FORMAT_FORMAT_H

#include <quern/format.h>

typedef void (*qn_decode_fn)(const void *source, int64_t count, float *destination);
typedef void (*qn_encode_fn)(const float *source, int64_t count, void *destination);
typedef void (*qn_rewrite_fn)(const void *blocks, int64_t count, void *out);

typedef struct qn_format_row {
    qn_format_info info;
    const char *safetensors; /* dtype name in safetensors files; NULL: has none */
    int32_t gguf;            /* ggml type number in GGUF files; -1: has none */
    qn_decode_fn decode;     /* NULL: cannot be decoded to float */
    qn_encode_fn encode;     /* NULL: cannot be encoded */
    qn_format taken_as;      /* the format that operators take instead; NONE: itself */
    qn_rewrite_fn rewrite;   /* `count` elements to that, exactly */
} qn_format_row;

/* Row of a format; NULL when it is none. */
const qn_format_row *qn_format_get_row(qn_format format);

/* Format by safetensors dtype or ggml type number; QN_FORMAT_NONE when unknown. */
qn_format qn_format_from_safetensors(const char *dtype);
qn_format qn_format_from_gguf(uint32_t type);

/* Scalar conversions of single elements: the definitions all kernels are held to.
 * Encoders: round to nearest even, saturate, NaN to the format's NaN (e2m1: +0).
 * bf16 and f16 overflow to infinity as IEEE 754 does. */
float qn_f16_to_f32(uint16_t bits);
uint16_t qn_f32_to_f16(float value);
float qn_bf16_to_f32(uint16_t bits);
uint16_t qn_f32_to_bf16(float value);
float qn_e4m3_to_f32(uint8_t code);
uint8_t qn_f32_to_e4m3(float value);
float qn_e4m3fnuz_to_f32(uint8_t code);
uint8_t qn_f32_to_e4m3fnuz(float value);  /* saturates at 240 */
float qn_e5m2_to_f32(uint8_t code);
uint8_t qn_f32_to_e5m2(float value);      /* saturates at 57344, infinities too */
float qn_e8m0_to_f32(uint8_t code);       /* 2^(code-127), code 0 is 2^-127, 255 is NaN */
uint8_t qn_f32_to_e8m0_ceil(float value); /* smallest power of two >= value; 0, negative: code 0; NaN, Inf: 255 */
float qn_e2m1_to_f32(uint8_t code);       /* low four bits */
uint8_t qn_f32_to_e2m1(float value);
int8_t qn_f32_to_i8(float value);         /* nearest even, saturate, NaN to 0 */

/* Blocks of QN_MXFP4 or QN_NVFP4, `count` elements, taken apart: codes as QN_F4_E2M1 has them, and their scales, one
 * byte a scale (e8m0, e4m3). */
void qn_fp4_blocks_codes(qn_format format, const void *blocks, int64_t count, uint8_t *codes);
void qn_fp4_blocks_scales(qn_format format, const void *blocks, int64_t count, uint8_t *scales);

/* 128x4 tiled order of NVFP4/MX block scales (docs/formats/fp4.md):
 * byte offset of scale (row, column) in a matrix of scale_columns columns, and
 * the bytes of the whole padded matrix. */
int64_t qn_scale_swizzle(int64_t row, int64_t column, int64_t scale_columns);
int64_t qn_scale_swizzle_bytes(int64_t rows, int64_t scale_columns);

#endif
