/* KV schemes: how the keys and values of earlier tokens are kept. One row of the
 * table in kv.c a scheme; the model builds its steps and caches from the row, the
 * quantiser its codebooks. */
#ifndef QN_FORMAT_KV_H
#define QN_FORMAT_KV_H

#include <quern/model.h>

typedef struct qn_kv_scheme {
    qn_kv_info info;
    int32_t channels, bits; /* coded: vectors of so many channels as codes of so many bits; else 0 */
    int32_t scaled;         /* 1: 8-bit floats with a scale for every token and head */
    qn_format format;       /* of what is kept */
} qn_kv_scheme;

/* Tokens before a block of queries whose keys and values are read as F16, also of schemes that keep less. */
#define QN_KV_WINDOW 128

/* 1: codes, beside which recent keys and values are kept as F16. */
static inline int qn_kv_lossy(const qn_kv_scheme *scheme)
{
    return scheme->channels || scheme->scaled;
}

/* 1: what is computed is kept, bit for bit. */
static inline int qn_kv_exact(const qn_kv_scheme *scheme)
{
    return scheme->format == QN_F32;
}

/* NULL name: QN_KV_DEFAULT. NULL: there is none of that name. */
const qn_kv_scheme *qn_kv_find(const char *name);

/* Bytes of one token's keys (or values) in one layer: heads * size elements, then the scales of 4 bytes where there are
 * any, at qn_kv_scales_at. */
size_t qn_kv_row_bytes(const qn_kv_scheme *scheme, int32_t heads, int32_t size);
size_t qn_kv_scales_at(int32_t heads, int32_t size);

/* The codebook of a layer's keys or values: F16[heads, size / channels, 2^bits, channels]. */
qn_shape qn_kv_book_shape(const qn_kv_scheme *scheme, int32_t heads, int32_t size);

#endif
