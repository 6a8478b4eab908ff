/* Making and exporting tokenizers inside the library; the public calls are in quern/text.h. */
#ifndef QN_TEXT_TOKENIZER_H
#define QN_TEXT_TOKENIZER_H

#include <quern/text.h>

#include "base/text.h"
#include "text/source.h"

/* Build from a source; vocab_size is the model's (ids at or above it are refused; more ids
 * than tokens are allowed and decode to nothing). QN_E_FILE: malformed or contradictory;
 * QN_E_UNSUPPORTED: a tokenizer type, pre-tokenizer, normalizer or decoder not known here, named. */
qn_status qn_tokenizer_create(qn_ctx *ctx, const qn_tokenizer_source *source, int32_t vocab_size, qn_tokenizer **out,
                              qn_error *error);
void qn_tokenizer_destroy(qn_tokenizer *tokenizer); /* NULL is fine */

/* Write tokenizer.json and tokenizer_config.json texts that Hugging Face's loaders read
 * and that give the same ids and the same chat template. */
qn_status qn_tokenizer_export(const qn_tokenizer *tokenizer, qn_buffer *tokenizer_json,
                              qn_buffer *tokenizer_config_json, qn_error *error);

#endif
