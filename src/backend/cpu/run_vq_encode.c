/* vq_encode on the CPU: the nearest centroid of every vector, by
 * |c|^2 - 2 x c with the entries of a codebook in the lanes.
 *
 * Packed codebooks have their entries side by side, with the squares of their norms. A
 * task is some groups of a head and a block of tokens: it widens each group's
 * codebook once and goes through the tokens with it. A run without packed
 * codebooks packs them into its workspace first. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/run_kv.h"
#include "backend/cpu/sizes.h"
#include "ref/slots.h"
#include "ref/vq.h"

#define GROUPS 8 /* of a task */
#define TOKENS 64

/* Sizes of a codebook, and where its parts lie. */
typedef struct book_layout {
    int64_t heads, groups, entries, padded, channels; /* padded: entries in whole lanes */
    qn_mm_real real;
    size_t lines_bytes, bytes; /* [channels][padded] elements as stored; with f32 norms[padded] behind them */
} book_layout;

typedef struct encode_job {
    const qn_kv_impl *impl;
    const qn_view *x;
    const qn_mut_view *codes;
    book_layout books;
    const char *packed;
    int64_t tokens, blocks, pieces, d; /* pieces: of a head's groups */
    char *scratch;
    size_t scratch_bytes;
} encode_job;

const char *qn_kv_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    (void)desc;
    return NULL;
}

static book_layout layout_of(const qn_op_desc *desc)
{
    const qn_shape *book = &desc->in[QN_VQE_CODEBOOK];
    book_layout b = {.heads = book->dims[0],
                     .groups = book->dims[1],
                     .entries = book->dims[2],
                     .channels = book->dims[3],
                     .real = qn_rows_real(book->format)};
    b.padded = (int64_t)qn_size_pad((size_t)b.entries);
    b.lines_bytes = qn_size_mul(qn_size_mul((size_t)b.channels, (size_t)b.padded), (size_t)qn_rows_real_bytes(b.real));
    b.bytes = qn_size_pad(qn_size_add(b.lines_bytes, qn_size_mul((size_t)b.padded, 4)));
    return b;
}

size_t qn_vq_encode_pack_bytes(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    const book_layout b = layout_of(desc);
    return qn_size_mul(qn_size_mul((size_t)b.heads, (size_t)b.groups), b.bytes);
}

void qn_vq_encode_pack(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body)
{
    (void)kernel;
    const qn_view *view = &args->in[QN_VQE_CODEBOOK];
    const book_layout b = layout_of(desc);
    const int64_t size = qn_rows_real_bytes(b.real);
    char *out = body;
    float vector[QN_VQ_MAX_VECTOR];
    memset(body, 0, (size_t)(b.heads * b.groups) * b.bytes);
    for (int64_t g = 0; g < b.heads * b.groups; g++, out += b.bytes) {
        for (int64_t e = 0; e < b.padded; e++) {
            double squares = INFINITY; /* of no entry: never nearest */
            if (e < b.entries) {
                const char *entry = (const char *)view->data + g / b.groups * view->strides[0] +
                                    g % b.groups * view->strides[1] + e * view->strides[2];
                squares = 0.0;
                qn_vq_values(view, (g * b.entries + e) * b.channels, b.channels, vector);
                for (int64_t j = 0; j < b.channels; j++) {
                    squares += (double)vector[j] * (double)vector[j];
                    memcpy(out + (j * b.padded + e) * size, entry + j * size, (size_t)size);
                }
            }
            const float norm = (float)squares;
            memcpy(out + b.lines_bytes + e * 4, &norm, sizeof norm);
        }
    }
}

/* A thread's memory. */
typedef struct encode_scratch {
    float *lines, *row, *targets, *scores;
    int32_t *entries;
} encode_scratch;

static size_t scratch_parts(char *base, const book_layout *b, int64_t d, encode_scratch *s)
{
    const size_t c = (size_t)b->channels;
    const size_t floats[] = {b->real == QN_MM_F32 ? 0 : qn_size_mul(c, (size_t)b->padded), (size_t)d,
                             qn_size_mul(TOKENS, c), TOKENS * QN_FIT_LANES, TOKENS * QN_FIT_LANES};
    char *parts[5];
    size_t at = 0;
    for (int i = 0; i < 5; i++) {
        parts[i] = base ? base + at : NULL;
        at = qn_size_pad(qn_size_add(at, qn_size_mul(floats[i], 4)));
    }
    *s = (encode_scratch){(float *)(void *)parts[0], (float *)(void *)parts[1], (float *)(void *)parts[2],
                          (float *)(void *)parts[3], (int32_t *)(void *)parts[4]};
    return at;
}

/* Offset of a token and head in a [N,M,E,..] tensor. */
static int64_t offset_of(const int64_t *dims, const int64_t *strides, int64_t token, int64_t head)
{
    return token / dims[1] * strides[0] + token % dims[1] * strides[1] + head * strides[2];
}

/* The code of one vector from the least score of every lane; a vector that is not finite has code 0. */
static int64_t least(const float *target, int64_t channels, const float *scores, const int32_t *entries)
{
    int best = 0;
    for (int64_t j = 0; j < channels; j++) {
        if (!(fabsf(target[j]) <= FLT_MAX)) {
            return 0;
        }
    }
    for (int l = 1; l < QN_FIT_LANES; l++) {
        if (scores[l] < scores[best] || (scores[l] == scores[best] && entries[l] < entries[best])) {
            best = l;
        }
    }
    return scores[best] < INFINITY ? entries[best] : 0;
}

static void encode_task(void *user, int64_t index, int32_t thread)
{
    const encode_job *job = user;
    const book_layout *b = &job->books;
    const qn_mm_real real = qn_rows_real(job->x->shape.format);
    const int64_t head = index / job->pieces % b->heads, block = index / job->pieces / b->heads;
    const int64_t g0 = index % job->pieces * GROUPS, groups = qn_min_i64(GROUPS, b->groups - g0), c = b->channels;
    const int64_t first = block * TOKENS, tokens = qn_min_i64(TOKENS, job->tokens - first);
    const int wide = job->codes->shape.format == QN_U16;
    encode_scratch s;
    scratch_parts(job->scratch + (size_t)thread * job->scratch_bytes, b, job->d, &s);
    for (int64_t g = g0; g < g0 + groups; g++) {
        const char *const packed = job->packed + (size_t)(head * b->groups + g) * b->bytes;
        const float *lines = s.lines;
        if (b->real == QN_MM_F32) {
            lines = (const float *)(const void *)packed;
        } else {
            job->impl->rows->load[b->real](packed, c * b->padded, s.lines);
        }
        for (int64_t t = 0; t < tokens; t++) {
            const char *const x =
                (const char *)job->x->data + offset_of(job->x->shape.dims, job->x->strides, first + t, head);
            float *const target = s.targets + t * c;
            job->impl->rows->load[real](x + g * c * qn_rows_real_bytes(real), c, target);
            for (int64_t j = 0; j < c; j++) {
                target[j] *= -2.0f;
            }
        }
        const qn_fit_book book = {(const float *)(const void *)(packed + b->lines_bytes), lines, b->padded, (int32_t)c};
        job->impl->fit->nearest(&book, s.targets, tokens, s.scores, s.entries);
        for (int64_t t = 0; t < tokens; t++) {
            char *const out =
                (char *)job->codes->data + offset_of(job->codes->shape.dims, job->codes->strides, first + t, head);
            const int64_t code = least(s.targets + t * c, c, s.scores + t * QN_FIT_LANES, s.entries + t * QN_FIT_LANES);
            if (wide) {
                const uint16_t both = (uint16_t)code;
                memcpy(out + 2 * g, &both, sizeof both);
            } else {
                out[g] = (char)(uint8_t)code;
            }
        }
    }
}

size_t qn_vq_encode_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)m;
    const book_layout b = layout_of(desc);
    encode_scratch none;
    return qn_size_add(qn_vq_encode_pack_bytes(kernel, desc),
                       qn_size_mul((size_t)threads, scratch_parts(NULL, &b, desc->in[QN_VQE_X].dims[3], &none)));
}

void qn_vq_encode_run(const qn_kernel *kernel, const qn_run_call *call)
{
    const qn_sizes *z = &call->sizes;
    encode_job job = {.impl = kernel->impl,
                      .x = &call->args->in[QN_VQE_X],
                      .codes = &call->args->out[QN_VQE_OUT_CODES],
                      .books = layout_of(call->desc),
                      .packed = call->packed,
                      .tokens = z->n * z->m,
                      .d = z->k};
    encode_scratch none;
    job.blocks = qn_ceil_div(job.tokens, TOKENS);
    job.pieces = qn_ceil_div(job.books.groups, GROUPS);
    job.scratch = (char *)call->workspace + qn_vq_encode_pack_bytes(kernel, call->desc);
    job.scratch_bytes = scratch_parts(NULL, &job.books, job.d, &none);
    if (!job.packed) {
        qn_vq_encode_pack(kernel, call->desc, call->args, call->workspace);
        job.packed = call->workspace;
    }
    qn_parallel_for(call->exec, job.blocks * job.books.heads * job.pieces, encode_task, &job);
}
