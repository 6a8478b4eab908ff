/* A tokenizer from the texts of a folder. */
#include "text/bpe.h"

qn_status qn_tokenizer_from_json(qn_tokenizer *t, const qn_tokenizer_source *source, qn_error *error)
{
    (void)t;
    (void)source;
    QN_FAIL(error, QN_E_UNSUPPORTED, "tokenizer.json is not served yet");
}
