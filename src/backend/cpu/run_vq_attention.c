/* vq_attention on the CPU: the attention engine (attention.h) over keys and values
 * that are codes. A panel of keys is decoded, turned by its positions where keys were
 * coded before RoPE, and then is a panel like any other.
 *
 * Rows of q whose codes are the same memory (a batch stride of 0) and whose lengths count
 * up are queries of one sequence: they share the decoded keys. Packed codebooks, with the factors
 * of frequencies, are dense copies, which nobody checks again; a run without them packs into its
 * workspace first. */
#include <math.h>
#include <string.h>

#include "backend/cpu/attention.h"
#include "backend/cpu/run_kv.h"
#include "backend/cpu/sizes.h"
#include "ref/slots.h"

#define STEPS 6 /* turns by 1, 2, 4 .. QN_ATT_PANEL / 2 positions */

typedef struct coded {
    const qn_kv_impl *impl;
    const char *codes[2], *books[2]; /* keys, values; of the first token */
    const qn_view *views[2];
    qn_format formats[2]; /* of the books */
    int64_t groups, entries, channels, half;
    int wide, rotate, pairs; /* pairs: rope_style=interleaved */
    const char *pages;       /* of the sequence; NULL: its codes are one piece */
    int64_t page;            /* tokens of one */
    const double *turns;     /* [half] angle of position 1 */
    const float *steps;      /* [STEPS][cosines, sines][half] */
} coded;

static size_t book_bytes(const qn_op_desc *desc, int values)
{
    const qn_shape *book = &desc->in[values ? QN_VQA_V_CODEBOOK : QN_VQA_K_CODEBOOK];
    size_t bytes = (size_t)qn_rows_real_bytes(qn_rows_real(book->format));
    for (int i = 0; i < 4; i++) {
        bytes = qn_size_mul(bytes, (size_t)book->dims[i]);
    }
    return qn_size_pad(bytes);
}

/* Of the factors of frequencies, which lie behind the books. */
static size_t factor_bytes(const qn_op_desc *desc)
{
    return qn_op_has(desc, QN_VQA_ROPE_FACTORS) ? qn_size_pad((size_t)desc->in[QN_VQA_ROPE_FACTORS].dims[0] * 4) : 0;
}

size_t qn_vq_attention_pack_bytes(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    return qn_size_add(qn_size_add(book_bytes(desc, 0), book_bytes(desc, 1)), factor_bytes(desc));
}

void qn_vq_attention_pack(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body)
{
    (void)kernel;
    for (int values = 0; values < 2; values++) {
        const qn_view *view = &args->in[values ? QN_VQA_V_CODEBOOK : QN_VQA_K_CODEBOOK];
        const int64_t *dims = view->shape.dims, *strides = view->strides;
        const int64_t bytes = dims[3] * qn_rows_real_bytes(qn_rows_real(view->shape.format));
        char *out = (char *)body + (values ? book_bytes(desc, 0) : 0);
        for (int64_t g = 0; g < dims[0] * dims[1]; g++) {
            for (int64_t e = 0; e < dims[2]; e++, out += bytes) {
                memcpy(out,
                       (const char *)view->data + g / dims[1] * strides[0] + g % dims[1] * strides[1] + e * strides[2],
                       (size_t)bytes);
            }
        }
    }
    if (factor_bytes(desc)) {
        const qn_view *factors = &args->in[QN_VQA_ROPE_FACTORS];
        memcpy((char *)body + book_bytes(desc, 0) + book_bytes(desc, 1), factors->data,
               (size_t)factors->shape.dims[0] * 4);
    }
}

/* ---- decoding ---- */

/* Codes of a token and head. */
static const uint8_t *codes_at(const coded *c, int values, int64_t token, int64_t head)
{
    const int64_t *strides = c->views[values]->strides;
    const char *of_token = c->codes[values] + token * strides[1];
    if (c->pages) {
        int32_t page;
        memcpy(&page, c->pages + token / c->page * 4, sizeof page);
        of_token = c->codes[values] + page * strides[0] + token % c->page * strides[1];
    }
    return (const uint8_t *)of_token + head * strides[2];
}

/* Bytes of an entry, and the codebooks of a head. */
static const char *books_of(const coded *c, int values, int64_t head, int64_t *entry)
{
    *entry = c->channels * qn_rows_real_bytes(qn_rows_real(c->formats[values]));
    return c->books[values] + head * c->groups * c->entries * *entry;
}

/* The d floats of a token and head, of any format of books and codes. */
static void decode(const qn_att_job *job, int values, int64_t token, int64_t head, float *out)
{
    const coded *c = job->source;
    const uint8_t *const codes = codes_at(c, values, token, head);
    int64_t entry;
    const char *book = books_of(c, values, head, &entry);
    for (int64_t g = 0; g < c->groups; g++, book += c->entries * entry) {
        const int64_t code = c->wide ? codes[2 * g] | codes[2 * g + 1] << 8 : codes[g];
        job->rows->load[qn_rows_real(c->formats[values])](book + code * entry, c->channels, out + g * c->channels);
    }
}

/* Cosines, then sines, of positions [first, first + count), half floats each: the first position's by its angles, the
 * others by turning those that are there by 1, 2, 4, ... positions. */
static const float *angles(const qn_att_job *job, int64_t first, int64_t count, qn_att_scratch *s)
{
    const coded *c = job->source;
    const int panel = (int)(first / QN_ATT_PANEL % 2);
    const int64_t half = c->half;
    float *const table = s->own + panel * 2 * QN_ATT_PANEL * half;
    if (s->key[panel] == first) {
        return table;
    }
    job->rows->angles((int32_t)first, c->turns, half, table, table + half);
    for (int64_t done = 1, step = 0; done < count; done *= 2, step++) {
        const float *const by = c->steps + step * 2 * half;
        for (int64_t i = 0; i < done && done + i < count; i++) {
            const float *const from = table + i * 2 * half;
            float *const to = table + (done + i) * 2 * half;
            job->rows->rotate(from, from + half, by, by + half, half, 1, 0, to, to + half);
        }
    }
    s->key[panel] = first;
    return table;
}

/* Rows of f16 books that follow one another in memory. */
static void decode_rows(const qn_att_job *job, int values, int64_t head, int64_t first, int64_t count,
                        const float *turns, float *out)
{
    const coded *c = job->source;
    int64_t entry;
    const qn_kv_rows rows = {.codes = codes_at(c, values, first, head),
                             .stride = c->views[values]->strides[1],
                             .wide = c->wide,
                             .books = (const uint16_t *)(const void *)books_of(c, values, head, &entry),
                             .groups = c->groups,
                             .entries = c->entries,
                             .channels = c->channels,
                             .turns = turns};
    c->impl->kv->decode(&rows, count, out, job->d_pad);
}

static const float *load(const qn_att_job *job, int values, int64_t head, int64_t first, int64_t count, int64_t rows,
                         qn_att_scratch *s, float *copy, int64_t *stride)
{
    const coded *c = job->source;
    const int64_t d = job->d, half = c->half;
    const int rotate = c->rotate && !values, usual = c->formats[values] == QN_F16 && !(rotate && c->pairs);
    const float *const table = rotate ? angles(job, first, count, s) : NULL;
    float *const flat = s->own + 2 * QN_ATT_CHUNK * half; /* a key as it was coded */
    for (int64_t i = 0, some; i < count && usual; i += some) {
        some = c->pages ? qn_min_i64(count - i, c->page - (first + i) % c->page) : count - i;
        decode_rows(job, values, head, first + i, some, rotate ? table + i * 2 * half : NULL, copy + i * job->d_pad);
    }
    for (int64_t i = 0; i < count && !usual; i++) {
        float *const row = copy + i * job->d_pad;
        decode(job, values, first + i, head, rotate ? flat : row);
        if (rotate) {
            const float *const turn = table + i * 2 * half;
            const int64_t step = c->pairs ? 2 : 1, other = c->pairs ? 1 : half;
            job->rows->rotate(flat, flat + other, turn, turn + half, half, step, 0, row, row + other);
        }
    }
    for (int64_t i = 0; i < count && d < job->d_pad; i++) {
        memset(copy + i * job->d_pad + d, 0, (size_t)(job->d_pad - d) * 4);
    }
    memset(copy + count * job->d_pad, 0, (size_t)((rows - count) * job->d_pad) * 4);
    *stride = job->d_pad;
    return copy;
}

/* ---- running ---- */

static size_t own_floats(int64_t d)
{
    return qn_size_add(qn_size_mul(2 * QN_ATT_CHUNK, (size_t)d / 2), (size_t)d);
}

/* Bytes of turns and steps. */
static size_t turns_bytes(int64_t d)
{
    const size_t half = (size_t)d / 2;
    return qn_size_add(qn_size_pad(qn_size_mul(half, sizeof(double))),
                       qn_size_pad(qn_size_mul(half, 2 * STEPS * sizeof(float))));
}

/* factors NULL: there are none. */
static void make_turns(coded *c, double theta, const float *factors, int64_t d, char *memory)
{
    double *const turns = (double *)(void *)memory;
    float *const steps = (float *)(void *)(memory + qn_size_pad((size_t)c->half * sizeof(double)));
    for (int64_t i = 0; i < c->half; i++) {
        const double turn = pow(theta, -2.0 * (double)i / (double)d);
        turns[i] = factors ? turn / (double)factors[i] : turn;
    }
    for (int64_t k = 0; k < STEPS; k++) {
        c->impl->rows->angles(1 << k, turns, c->half, steps + 2 * k * c->half, steps + (2 * k + 1) * c->half);
    }
    c->turns = turns;
    c->steps = steps;
}

static int32_t length_of(const qn_view *lens, int64_t b)
{
    int32_t length;
    memcpy(&length, (const char *)lens->data + b * 4, sizeof length);
    return length;
}

/* Rows of q from b on that are one sequence's queries. */
static int64_t sequence(const qn_args *args, int64_t b, int64_t rows)
{
    const qn_view *lens = &args->in[QN_VQA_SEQ_LENS];
    static const int32_t slots[] = {QN_VQA_K_CODES, QN_VQA_V_CODES, QN_VQA_K_RECENT, QN_VQA_V_RECENT};
    int64_t end = b + 1;
    if (args->in[QN_VQA_PAGES].shape.format) {
        return 1;
    }
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        if (args->in[slots[i]].shape.format && args->in[slots[i]].strides[0] != 0) {
            return 1;
        }
    }
    while (end < rows && length_of(lens, end) == length_of(lens, end - 1) + 1) {
        end++;
    }
    return end - b;
}

size_t qn_vq_attention_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    const int64_t *q = desc->in[QN_VQA_Q].dims;
    const size_t before = qn_size_add(qn_vq_attention_pack_bytes(kernel, desc), turns_bytes(q[2]));
    return qn_size_add(
        before, qn_att_workspace_bytes(m, q[1], desc->in[QN_VQA_K_CODES].dims[2], q[2], own_floats(q[2]), threads));
}

void qn_vq_attention_run(const qn_kernel *kernel, const qn_run_call *call)
{
    const qn_sizes *z = &call->sizes;
    const qn_args *args = call->args;
    const qn_shape *book = &call->desc->in[QN_VQA_K_CODEBOOK];
    if (z->m == 0 || z->e == 0 || z->g == 0 || z->k == 0) {
        return;
    }
    char *workspace = call->workspace;
    const char *books = call->packed;
    if (!books) {
        qn_vq_attention_pack(kernel, call->desc, args, workspace);
        books = workspace;
    }
    workspace += qn_vq_attention_pack_bytes(kernel, call->desc);
    coded c = {.impl = kernel->impl,
               .books = {books, books + book_bytes(call->desc, 0)},
               .views = {&args->in[QN_VQA_K_CODES], &args->in[QN_VQA_V_CODES]},
               .formats = {book->format, call->desc->in[QN_VQA_V_CODEBOOK].format},
               .groups = book->dims[1],
               .entries = book->dims[2],
               .channels = book->dims[3],
               .half = z->k / 2,
               .wide = args->in[QN_VQA_K_CODES].shape.format == QN_U16,
               .rotate = call->desc->attr[QN_ATTR_ROPE_THETA].f > 0.0f,
               .pairs = call->desc->attr[QN_ATTR_STYLE].i == QN_ROPE_INTERLEAVED,
               .page = call->desc->attr[QN_ATTR_PAGE].i};
    if (c.rotate) {
        const void *const factors = books + book_bytes(call->desc, 0) + book_bytes(call->desc, 1);
        make_turns(&c, (double)call->desc->attr[QN_ATTR_ROPE_THETA].f, factor_bytes(call->desc) ? factors : NULL, z->k,
                   workspace);
    }
    workspace += turns_bytes(z->k);
    for (int64_t b = 0; b < z->m;) {
        qn_att_job job = {.set = c.impl->att,
                          .rows = c.impl->rows,
                          .args = args,
                          .at = b,
                          .queries = sequence(args, b, z->m),
                          .keys = z->n,
                          .heads = z->e,
                          .key_heads = z->g,
                          .d = z->k,
                          .scale = call->desc->attr[QN_ATTR_SCALE].f,
                          .lens = (const char *)args->in[QN_VQA_SEQ_LENS].data + b * 4,
                          .load = load,
                          .source = &c,
                          .own_floats = own_floats(z->k),
                          .window = call->desc->attr[QN_ATTR_WINDOW].i,
                          .recents = {&args->in[QN_VQA_K_RECENT], &args->in[QN_VQA_V_RECENT]}};
        for (int i = 0; i < 2; i++) {
            job.recent_at[i] = z->m > 1 ? b * job.recents[i]->strides[0] : 0;
            c.codes[i] = (const char *)c.views[i]->data + (z->m > 1 && !c.page ? b * c.views[i]->strides[0] : 0);
        }
        c.pages = c.page ? (const char *)args->in[QN_VQA_PAGES].data + b * args->in[QN_VQA_PAGES].strides[0] : NULL;
        qn_att_run(&job, workspace, call->exec);
        b += job.queries;
    }
}
