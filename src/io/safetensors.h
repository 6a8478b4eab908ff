/* Safetensors reader: the strict parser behind qn_tensors_open and the
 * checkpoint reader. docs/formats/safetensors.md lists every check. */
#ifndef QN_IO_SAFETENSORS_H
#define QN_IO_SAFETENSORS_H

#include <quern/view.h>

#include "base/context.h"
#include "base/error.h"
#include "base/map.h"

#define QN_SAFETENSORS_MAX_HEADER 100000000
#define QN_SAFETENSORS_MAX_NAME 4096
#define QN_SAFETENSORS_MAX_RANK 32
#define QN_SAFETENSORS_MAX_TENSORS 4000000
#define QN_SAFETENSORS_SUM_PREFIX "quern.xxh3."

typedef struct qn_safetensors_tensor {
    const char *name;
    qn_view view;        /* aligned to its elements; leading dimensions merged when there are more than QN_MAX_DIMS */
    uint64_t begin, end; /* bytes of the data section */
} qn_safetensors_tensor;

typedef struct qn_safetensors {
    const qn_ctx *ctx;
    qn_safetensors_tensor *tensors; /* in file order */
    int32_t count;
    qn_map names;         /* index in tensors */
    char *aligned;        /* copies of the tensors that lie at unaligned places, as the format allows; NULL: there are none */
    void *json;           /* json_t: the header, owner of all names */
    const void *metadata; /* json_t object __metadata__; NULL: none */
} qn_safetensors;

/* Parse a whole file in memory; data must outlive the result, which copies tensors that are not aligned to their
 * elements. `where` names the file in messages. QN_E_FILE, QN_E_UNSUPPORTED: a dtype of the format that has no
 * qn_format. QN_E_MEMORY. */
qn_status qn_safetensors_parse(const qn_ctx *ctx, const void *data, size_t size, const char *where, qn_safetensors *out,
                               qn_error *error);
void qn_safetensors_free(qn_safetensors *file); /* fine for a zeroed one */

/* Index of a name; -1 when there is none. */
int32_t qn_safetensors_find(const qn_safetensors *file, const char *name);

/* Value of a metadata key; NULL when there is none. */
const char *qn_safetensors_metadata(const qn_safetensors *file, const char *key);

/* QN_E_FILE unless the name is 1 to 4096 bytes of UTF-8 without control characters, and not "__metadata__". */
qn_status qn_safetensors_check_name(const char *name, size_t bytes, qn_error *error);

/* 32 hex digits and a zero of an XXH3-128 value. */
void qn_safetensors_sum_text(uint64_t high, uint64_t low, char text[33]);

#endif
