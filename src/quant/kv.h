/* Codebooks of coded KV caches: fitted to the keys and values of a calibration run,
 * written beside a model (qn_make_kv_books) or into a folder that is being quantised. */
#ifndef QN_QUANT_KV_H
#define QN_QUANT_KV_H

#include <quern/quantize.h>

/* QN_E_ARGUMENT when there is no scheme of that name that has codebooks. */
qn_status qn_kv_books_check(const char *scheme, qn_error *error);

/* Write the codebooks of options->kv, made with the model at `input`, into a folder. */
qn_status qn_kv_books_of_folder(qn_ctx *ctx, const char *input, const char *folder, const qn_quantize_options *options,
                                qn_error *error);

#endif
