/* The contract between the runners of vq_encode and vq_attention (src/backend/cpu/
 * run_vq_encode.c, run_vq_attention.c) and the per-level part: entries of f16
 * codebooks laid side by side as floats. */
#ifndef QN_KERNELS_COMMON_KV_H
#define QN_KERNELS_COMMON_KV_H

#include <stdint.h>

/* Keys or values of a head. turns: NULL, or of each row cosines, then sines, d / 2 each (d = groups * channels), by
 * which the row's first half turns with its second. */
typedef struct qn_kv_rows {
    const uint8_t *codes; /* of row i from codes + i * stride on */
    int64_t stride;
    int32_t wide;          /* 1: codes of two bytes */
    const uint16_t *books; /* [groups][entries][channels] f16 */
    int64_t groups, entries, channels;
    const float *turns;
} qn_kv_rows;

/* out[i * out_stride + g * channels + j] = books[g][code g of row i][j], turned; i < count. */
typedef void (*qn_kv_decode_fn)(const qn_kv_rows *rows, int64_t count, float *out, int64_t out_stride);

typedef struct qn_kv_set {
    qn_kv_decode_fn decode;
} qn_kv_set;

extern const qn_kv_set qn_kv__scalar, qn_kv__avx2, qn_kv__avx512;

#endif
