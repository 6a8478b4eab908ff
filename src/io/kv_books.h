/* Codebook files of coded KV caches: safetensors with the tensors
 * model.layers.L.self_attn.k_codebook and v_codebook. The quantiser writes them
 * (src/quant/kv.c), opening a model reads them (src/model/kv.c). docs/kv-cache.md. */
#ifndef QN_IO_KV_BOOKS_H
#define QN_IO_KV_BOOKS_H

#include "base/file_map.h"
#include "format/kv.h"
#include "io/checkpoint.h"
#include "io/safetensors.h"

typedef struct qn_kv_books {
    qn_file_map map;
    qn_safetensors file;
    qn_view *views; /* [layers][keys, values] */
} qn_kv_books;

/* "kv-cq2.safetensors" */
void qn_kv_books_name(const qn_kv_scheme *scheme, char name[40]);

/* Where a checkpoint's codebooks of that scheme lie: FOLDER/kv-cq2.safetensors, FILE.kv-cq2.safetensors. Released with
 * qn_free; NULL: out of memory. */
char *qn_kv_books_path(const qn_ctx *ctx, const qn_checkpoint *checkpoint, const qn_kv_scheme *scheme);

/* Open and check all of a codebook file: shapes, checksums, finite values. QN_E_IO: there is none; QN_E_FILE. */
qn_status qn_kv_books_open(const qn_ctx *ctx, const char *path, const qn_kv_scheme *scheme, const qn_hparams *hparams,
                           qn_kv_books *out, qn_error *error);
void qn_kv_books_close(const qn_ctx *ctx, qn_kv_books *books); /* fine for a zeroed one */

/* Write one: books of all layers one after the other, keys then values of each. QN_E_IO, QN_E_MEMORY. */
qn_status qn_kv_books_write(qn_ctx *ctx, const char *path, const qn_kv_scheme *scheme, const qn_hparams *hparams,
                            const uint16_t *books, qn_error *error);

#endif
