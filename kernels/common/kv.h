/* The contract between the runners of vq_encode and vq_attention (src/backend/cpu/
 * run_vq_encode.c, run_vq_attention.c) and the per-level part: entries of f16
 * codebooks laid side by side as floats. */
#ifndef QN_KERNELS_COMMON_KV_H
#define QN_KERNELS_COMMON_KV_H

#include <stdint.h>

/* out[g * channels + j] = books[g][codes[g]][j] for groups codebooks of entries f16 vectors, one after the other. */
typedef void (*qn_kv_decode_fn)(const uint8_t *codes, const uint16_t *books, int64_t groups, int64_t entries,
                                int64_t channels, float *out);

typedef struct qn_kv_set {
    qn_kv_decode_fn decode;
} qn_kv_set;

extern const qn_kv_set qn_kv__scalar, qn_kv__avx2, qn_kv__avx512;

#endif
