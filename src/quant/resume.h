/* What an interrupted run has finished, for the next one to go on from.
 *
 * Each tensor whose codes take long to choose (codebooks, error feedback) is also put into a file of its own, in the
 * folder OUTPUT.unfinished. The file's name is a hash of all that the codes depend on: this version, the scheme, the
 * level of the fitting loops, the weight's values and what calibration saw of its inputs. So whoever finds a file may
 * take it, whatever was changed between the runs; the folder goes when the output is whole. Used by quantize.c.
 *
 *     file: 8 bytes of magic, the name, bytes and XXH3-128 of what follows; then the tensors' data in their order */
#ifndef QN_QUANT_RESUME_H
#define QN_QUANT_RESUME_H

#include "base/file_map.h"
#include "quant/outputs.h"

typedef struct qn_resume {
    qn_ctx *ctx;
    char *folder; /* NULL: nothing is kept */
    int failed;   /* 1: a file could not be written, so no more are */
} qn_resume;

typedef struct qn_resume_key {
    uint64_t high, low;
} qn_resume_key;

/* Use OUTPUT.unfinished, made where it is not there. QN_E_IO, QN_E_MEMORY. */
qn_status qn_resume_begin(qn_ctx *ctx, const char *output, qn_resume *resume, qn_error *error);

/* done 1: the output is whole, the folder goes. Else it stays unless it is empty. Fine for a zeroed one. */
void qn_resume_end(qn_resume *resume, int done);

/* Whether the codes of an output take long to choose. */
int qn_resume_worth(const qn_output *output);

/* The key of an output that is worth it; search, scales, factors are set. QN_E_MEMORY. */
qn_status qn_resume_key_of(const qn_resume *resume, const qn_output *output, qn_resume_key *key, qn_error *error);

/* 1: an earlier run has finished that output; *data: its tensors one after the other in the map. A damaged file is none
 * and costs a line in the log. */
int qn_resume_find(const qn_resume *resume, const qn_resume_key *key, const qn_output *output, qn_file_map *map,
                   const uint8_t **data, double *rms);

/* A file being written. What cannot be written is not kept and costs one line in the log. */
typedef struct qn_resume_file qn_resume_file;
qn_resume_file *qn_resume_start(qn_resume *resume, const qn_resume_key *key); /* NULL: nothing is kept */
void qn_resume_add(qn_resume_file *file, const void *data, size_t bytes);     /* NULL is fine */
void qn_resume_finish(qn_resume_file *file, int whole, double rms);           /* frees it; NULL is fine */

#endif
