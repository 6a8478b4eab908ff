/* Number formats and block formats.
 *
 * A format says how bits become numbers. Element formats have one element a
 * unit; block formats (the GGUF ones) pack block_elements consecutive elements
 * of a row into block_bytes bytes with their scales inside. Composite schemes
 * whose scales live in tensors of their own (fp8-block, NVFP4, MXFP4 ...) are
 * described by the operators (quern/op.h) and the schemes (quern/quantize.h).
 * The normative text of each format is docs/formats/. */
#ifndef QUERN_FORMAT_H
#define QUERN_FORMAT_H

#include <quern/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Pinned values. */
typedef enum qn_format {
    QN_FORMAT_NONE = 0,
    QN_F32 = 1,
    QN_F16 = 2,
    QN_BF16 = 3,
    QN_F64 = 4,
    QN_I8 = 10,
    QN_U8 = 11,
    QN_I16 = 12,
    QN_U16 = 13,
    QN_I32 = 14,
    QN_U32 = 15,
    QN_I64 = 16,
    QN_U64 = 17,
    QN_BOOL = 18,
    QN_F8_E4M3 = 20,     /* OCP e4m3fn: max 448, NaN 0x7F/0xFF, no Inf */
    QN_F8_E4M3FNUZ = 21, /* max 240, NaN 0x80, no Inf, no -0 */
    QN_F8_E5M2 = 22,     /* OCP e5m2: max 57344, Inf, NaN */
    QN_E8M0 = 23,        /* scale: 2^(byte-127), 0xFF is NaN */
    QN_F4_E2M1 = 24,     /* two a byte, first element in the low nibble */
    QN_Q4_0 = 40,        /* GGUF block formats, 32 elements a block */
    QN_Q4_1 = 41,
    QN_Q5_0 = 42,
    QN_Q5_1 = 43,
    QN_Q8_0 = 44,
    QN_IQ4_NL = 45,
    QN_MXFP4 = 46,       /* e2m1 codes and their e8m0 scale */
    QN_NVFP4 = 47,       /* 64 elements a block: e2m1 codes and their four e4m3 scales */
    QN_TQ1_0 = 48,       /* 256 elements a block, ternary: operators take these and the IQ formats as QN_I8_K */
    QN_TQ2_0 = 49,
    QN_Q2_K = 50,        /* GGUF super-block formats, 256 elements a block */
    QN_Q3_K = 51,
    QN_Q4_K = 52,
    QN_Q5_K = 53,
    QN_Q6_K = 54,
    QN_IQ4_XS = 55,
    QN_I8_K = 56,        /* f32 scale, an int8 scale of each 16 elements, int8 values; of no file */
    QN_IQ2_XXS = 57,     /* vectors of a grid */
    QN_IQ2_XS = 58,
    QN_IQ2_S = 59,
    QN_IQ3_XXS = 60,
    QN_IQ3_S = 61,
    QN_IQ1_S = 62,
    QN_IQ1_M = 63,
    QN_FORMAT_LIMIT = 64 /* every valid value is below */
} qn_format;

typedef struct qn_format_info {
    qn_format format;
    const char *name;        /* lower case, e.g. "f8_e4m3", "q4_1" */
    int32_t block_elements;  /* elements a block; 1 for element formats, 2 for f4_e2m1 */
    int32_t block_bytes;
    float max;               /* largest finite value of one element; 0 for block formats and integers */
} qn_format_info;

/* Facts of a format; NULL when it is none. Static storage. Thread-safe. */
QN_API const qn_format_info *qn_format_get_info(qn_format format);

/* The format with that name (case-insensitive); QN_FORMAT_NONE when there is none. */
QN_API qn_format qn_format_find(const char *name);

/* Bytes of a row of count elements. QN_E_SHAPE: count is negative or does not
 * fill whole blocks; QN_E_ARGUMENT: not a format, or the size overflows. */
QN_API qn_status qn_format_row_bytes(qn_format format, int64_t count, size_t *bytes, qn_error *error);

/* Decode count elements to float. Exact for every float, integer up to 24 bits
 * and block format (block formats multiply in f32, in the order of docs/formats).
 * source and destination must not overlap; no alignment asked of source.
 * QN_E_SHAPE: as qn_format_row_bytes. QN_E_FORMAT: a format without decoder. */
QN_API qn_status qn_decode(qn_format format, const void *source, int64_t count, float *destination, qn_error *error);

/* Encode count floats: round to nearest even; float8, float4: saturate finite
 * values and infinities to the largest finite one (e5m2 too), NaN stays NaN (fp4:
 * no NaN, becomes +0); integers: round to nearest even, saturate, NaN becomes 0;
 * e8m0: the nearest power of two above or equal. Block formats: round to nearest
 * with the scale rule of docs/formats. QN_E_FORMAT: a format without encoder. */
QN_API qn_status qn_encode(qn_format format, const float *source, int64_t count, void *destination, qn_error *error);

#ifdef __cplusplus
}
#endif
#endif
