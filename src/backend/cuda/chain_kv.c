/* Steps of a decoding pass whose caches are not of floats, each a chain of its own: they write and read where the
 * device's position says, so that one graph serves every position.
 *
 *   rope of the query, of the key, keep of both, codes of both
 *                       into a cache                            kv_step.cu
 *   keep                rows into the recent ones of a window       kv_keep.cu
 *   copy                rows, into a cache of floats too            kv_keep.cu
 *   quantize_fp8, vq_encode into a cache                            kv_keep.cu, vq_encode.cu
 *   all of these for codes with scales, and scaled_attention over the cache    decode_scaled.cu, decode_group.cu
 *   all of these for vectors, and vq_attention over the cache                  decode_coded.cu
 *   scaled_attention over a cache                                   vq_attention_plain.cu, vq_attention_join.cu
 *
 * vq_attention needs none of this: it takes its lengths from the device. */
#include <math.h>
#include <string.h>

#include "backend/cuda/chain.h"
#include "backend/cuda/kv.h"
#include "base/checked.h"
#include "ref/slots.h"

enum { KEEP_COLUMNS = 256, KEEP_THREADS = 128, MOST_GRID_Y = 65535 };

/* kv_step.cu for codes of a book of that shape. */
static void coded_step_program(const qn_shape *book, qn_cuda_program *program)
{
    qn_op_desc desc = {.op = QN_OP_VQ_ENCODE};
    desc.in[QN_VQE_X].format = QN_F32;
    desc.in[QN_VQE_CODEBOOK] = *book;
    memset(program, 0, sizeof *program);
    qn_cuda_encode_program(&desc, program);
    program->source = "kv_step.cu";
    program->entry = "qn_kv_step";
    qn_cuda_define(program, "SCALED", 0);
}

void qn_cuda_keep_program(qn_cuda_keep what, qn_cuda_program *program)
{
    static const char *const entries[] = {"qn_keep_recent", "qn_keep_scaled", "qn_keep_rows", "qn_keep_rounded",
                                          "qn_kv_step"};
    static const char *const zero[] = {"X_FORMAT", "TYPE", "ASYMMETRIC", "BOUNDED"};
    if (what >= QN_CUDA_STEP_CODED) { /* cq4, cq2, cq1: 8 bits for 2, 4, 8 channels */
        const qn_shape book = qn_shape_make(QN_F16, 4, 1, 1, 256, 2 << (what - QN_CUDA_STEP_CODED));
        coded_step_program(&book, program);
        return;
    }
    memset(program, 0, sizeof *program);
    program->source = what == QN_CUDA_STEP_SCALED ? "kv_step.cu" : "kv_keep.cu";
    program->entry = entries[what];
    if (what == QN_CUDA_STEP_SCALED) {
        qn_cuda_define(program, "SCALED", 1);
    }
    for (size_t i = 0; i < sizeof zero / sizeof *zero; i++) {
        qn_cuda_define(program, zero[i], 0);
    }
}

/* ---- rows into a window or a cache of floats ---- */

static void keep_arguments(const qn_args *args, const int32_t *positions, qn_cuda_chain_launch *l)
{
    const qn_view *x = &args->in[0];
    const qn_mut_view *y = &args->out[0];
    qn_cuda_kv_keep *a = &l->arguments.keep;
    *a = (qn_cuda_kv_keep){.x = x->data,
                           .y = y->data,
                           .position = positions,
                           .x_row = x->strides[0],
                           .y_row = y->strides[0],
                           .rows = (int32_t)x->shape.dims[0],
                           .width = (int32_t)x->shape.dims[1],
                           .ring = (int32_t)y->shape.dims[0]};
    l->geometry.grid[0] = (uint32_t)qn_ceil_div(a->width, KEEP_COLUMNS);
    l->geometry.grid[1] = (uint32_t)qn_min_i64(a->rows, MOST_GRID_Y);
}

static qn_status make_keep(const qn_chain_step *s, const int32_t *position, qn_chain *chain, qn_error *error)
{
    qn_cuda_program program;
    qn_cuda_chain_launch *l = &chain->launches[0];
    qn_cuda_keep_program(s->kind != QN_CHAIN_COPY                 ? QN_CUDA_KEEP_RECENT
                         : s->args.out[0].shape.format == QN_BF16 ? QN_CUDA_KEEP_ROUNDED
                                                                  : QN_CUDA_KEEP_ROWS,
                         &program);
    l->geometry = (qn_cuda_geometry){.grid = {1, 1, 1}, .block = {KEEP_THREADS, 1, 1}, .dependent = 1};
    keep_arguments(&s->args, position, l);
    chain->count = 1;
    return qn_cuda_function_get(chain->cuda, &program, &l->function, error);
}

qn_status qn_cuda_chain_keep(const qn_chain *chain, const qn_args *args, const int32_t *positions, void *stream,
                             qn_error *error)
{
    qn_cuda_chain_launch l = chain->launches[0];
    void *const pointers[] = {&l.arguments};
    keep_arguments(args, positions, &l);
    const qn_cuda_run r = {
        .cuda = chain->cuda, .device = &chain->cuda->device, .functions = &l.function, .stream = stream};
    QN_TRY(qn_cuda_push(chain->cuda, error));
    const qn_status status = qn_cuda_launch(&r, 0, &l.geometry, pointers, error);
    qn_cuda_pop(chain->cuda);
    return status;
}

/* ---- codes into a cache ---- */

static int is_plain_fp8(const qn_chain_step *s)
{
    const qn_op_desc *d = s->desc;
    const qn_view *x = &s->args.in[QN_QUANT_X];
    const int32_t group = d->attr[QN_ATTR_GROUP].i;
    return d->attr[QN_ATTR_GRANULARITY].i == QN_PER_GROUP && group > 0 && group <= QN_CUDA_KV_SIZE &&
           x->shape.format == QN_F32 && x->shape.dims[1] % group == 0 && d->attr[QN_ATTR_TYPE].i == QN_TYPE_E4M3FN &&
           d->attr[QN_ATTR_MODE].i != QN_STATIC && !(d->attr[QN_ATTR_SCALE_UB].f > 0.0f) &&
           d->attr[QN_ATTR_SCALE_FORMAT].i != QN_SCALE_UE8M0;
}

static qn_cuda_kv_keep scaled_rows(const qn_chain_step *s)
{
    const qn_mut_view *q = &s->args.out[QN_QUANT_OUT_Q], *scale = &s->args.out[QN_QUANT_OUT_SCALE];
    return (qn_cuda_kv_keep){.x = s->args.in[QN_QUANT_X].data,
                             .y = q->data,
                             .scale = scale->data,
                             .x_row = s->args.in[QN_QUANT_X].strides[0],
                             .y_row = q->strides[0],
                             .scale_row = scale->strides[0],
                             .rows = 1,
                             .size = s->desc->attr[QN_ATTR_GROUP].i};
}

static qn_status make_scaled(const qn_chain_step *s, const int32_t *position, qn_chain *chain, qn_error *error)
{
    qn_cuda_program program;
    qn_cuda_chain_launch *l = &chain->launches[0];
    qn_cuda_keep_program(QN_CUDA_KEEP_SCALED, &program);
    l->arguments.keep = scaled_rows(s);
    l->arguments.keep.position = position;
    const int64_t heads = s->args.in[QN_QUANT_X].shape.dims[1] / s->desc->attr[QN_ATTR_GROUP].i;
    l->geometry = (qn_cuda_geometry){.grid = {(uint32_t)heads, 1, 1}, .block = {32, 1, 1}, .dependent = 1};
    chain->count = 1;
    return qn_cuda_function_get(chain->cuda, &program, &l->function, error);
}

static qn_status make_encode(const qn_chain_step *s, const int32_t *position, qn_chain *chain, qn_error *error)
{
    qn_cuda_program program;
    qn_cuda_chain_launch *l = &chain->launches[0];
    memset(&program, 0, sizeof program);
    qn_cuda_encode_program(s->desc, &program);
    l->arguments.encode = qn_cuda_encode_arguments(&s->args);
    l->arguments.encode.position = position;
    l->geometry = qn_cuda_encode_geometry(&l->arguments.encode, &chain->cuda->device);
    chain->count = 1;
    return qn_cuda_function_get(chain->cuda, &program, &l->function, error);
}

/* ---- all that comes before an attention ---- */

enum { STEP_STEPS = 6, STEP_WARPS = 4 }; /* rope, rope, keep, keep, codes, codes */

static int is_operator(const qn_chain_step *s, qn_op op)
{
    return s->kind == QN_CHAIN_OPERATOR && s->desc->op == op;
}

/* A turning of f32 heads that lie side by side. */
static int is_step_rope(const qn_chain_step *s)
{
    const int64_t size = is_operator(s, QN_OP_ROPE) ? s->desc->in[0].dims[2] : 0;
    return size > 0 && size <= QN_CUDA_KV_SIZE && size % 2 == 0 && !s->cached_out && s->desc->in[0].format == QN_F32 &&
           s->desc->attr[QN_ATTR_STYLE].i == QN_ROPE_HALF && s->args.in[0].strides[1] == size * 4 &&
           s->args.out[0].strides[1] == size * 4;
}

static const float *factors_of(const qn_chain_step *rope)
{
    return qn_cuda_factors(&rope->args.in[QN_ACT_FACTORS]);
}

/* Whether the six steps are what kv_step.cu does: the key and the value, which `keep` reads, coded by `codes`. */
static int is_step(const qn_chain_step *s, int32_t count)
{
    if (count < STEP_STEPS || !is_step_rope(&s[0]) || !is_step_rope(&s[1]) || s[2].kind != QN_CHAIN_KEEP ||
        s[3].kind != QN_CHAIN_KEEP || !s[4].cached_out || !s[5].cached_out) {
        return 0;
    }
    const int64_t *d = s[1].desc->in[0].dims, width = d[1] * d[2];
    const void *const key = s[1].args.in[0].data, *const turned = s[1].args.out[0].data;
    const void *const value = s[3].args.in[0].data;
    const int same = s[0].desc->in[0].dims[2] == d[2] && s[0].args.in[1].data == s[1].args.in[1].data &&
                     memcmp(s[0].desc->attr, s[1].desc->attr, sizeof s->desc->attr) == 0 &&
                     factors_of(&s[0]) == factors_of(&s[1]) && s[2].args.in[0].data == turned &&
                     s[2].args.in[0].shape.dims[1] == width && s[3].args.in[0].shape.dims[1] == width &&
                     s[5].args.in[0].data == value;
    if (is_operator(&s[4], QN_OP_QUANTIZE_FP8) && is_operator(&s[5], QN_OP_QUANTIZE_FP8)) {
        return same && is_plain_fp8(&s[4]) && is_plain_fp8(&s[5]) && s[4].args.in[0].data == turned &&
               s[4].desc->attr[QN_ATTR_GROUP].i == d[2] && s[5].desc->attr[QN_ATTR_GROUP].i == d[2];
    }
    const qn_op_desc *codes = s[4].desc;
    return same && is_operator(&s[4], QN_OP_VQ_ENCODE) && is_operator(&s[5], QN_OP_VQ_ENCODE) &&
           s[4].args.in[QN_VQE_X].data == key && codes->in[QN_VQE_X].format == QN_F32 &&
           memcmp(codes->in, s[5].desc->in, sizeof codes->in) == 0 && codes->in[QN_VQE_CODEBOOK].dims[0] == d[1];
}

static qn_status make_step(const qn_chain_step *s, const int32_t *position, qn_chain *chain, qn_error *error)
{
    const int scaled = s[4].desc->op == QN_OP_QUANTIZE_FP8;
    qn_cuda_program program;
    qn_cuda_chain_launch *l = &chain->launches[0], keep = {.arguments = {.keep = {0}}};
    qn_cuda_kv_step *a = &l->arguments.kv_step;
    const qn_shape *q = &s[0].desc->in[0], *k = &s[1].desc->in[0];
    *a = (qn_cuda_kv_step){.q = s[0].args.in[0].data,
                           .k = s[1].args.in[0].data,
                           .v = s[3].args.in[0].data,
                           .turned_q = s[0].args.out[0].data,
                           .turned_k = s[1].args.out[0].data,
                           .position = position,
                           .heads = (int32_t)q->dims[1],
                           .kv_heads = (int32_t)k->dims[1],
                           .size = (int32_t)q->dims[2],
                           .log2_theta = log2((double)s[0].desc->attr[QN_ATTR_THETA].f),
                           .factors = factors_of(&s[0])};
    int64_t tasks = a->heads + 2 * a->kv_heads;
    for (int values = 0; values < 2; values++) {
        keep_arguments(&s[2 + values].args, position, &keep);
        a->recent[values] = keep.arguments.keep;
        if (scaled) {
            a->scaled[values] = scaled_rows(&s[4 + values]);
            continue;
        }
        a->coded[values] = qn_cuda_encode_arguments(&s[4 + values].args);
        a->coded[values].position = position;
        tasks += (int64_t)a->kv_heads * a->coded[values].groups;
    }
    if (scaled) {
        qn_cuda_keep_program(QN_CUDA_STEP_SCALED, &program);
    } else {
        coded_step_program(&s[4].desc->in[QN_VQE_CODEBOOK], &program);
    }
    qn_cuda_define_factors(a->factors != NULL, &program);
    l->geometry = (qn_cuda_geometry){
        .grid = {(uint32_t)qn_ceil_div(tasks, STEP_WARPS), 1, 1}, .block = {STEP_WARPS * 32, 1, 1}, .dependent = 1};
    chain->count = 1;
    return qn_cuda_function_get(chain->cuda, &program, &l->function, error);
}

/* ---- attention ---- */

enum { DECODE_THREADS = 128, MOST_HEAD = 128, GROUP_THREADS = 512, GROUP_SHARED_BYTES = 512 * 128 };

static int same_rows(const qn_view *read, const qn_mut_view *written)
{
    return read->data == written->data && read->strides[0] == written->strides[0];
}

/* Rows of heads side by side that begin at a multiple of `word` bytes. */
static int in_words(const qn_view *rows, int64_t head, uint64_t word)
{
    return ((uint64_t)(uintptr_t)rows->data | (uint64_t)rows->strides[0]) % word == 0 && rows->strides[1] == head;
}

/* Whether an attention is that of the query that was turned, over what the steps have kept as codes with scales. */
static int is_scaled_attention(const qn_chain_step *s)
{
    const qn_chain_step *attention = &s[STEP_STEPS];
    const qn_op_desc *d = attention->desc;
    const qn_view *in = attention->args.in;
    const int64_t *q = d->in[QN_ATT_Q].dims, size = q[2];
    const int reads = q[0] == 1 && in[QN_ATT_Q].data == s[0].args.out[0].data && d->in[QN_ATT_Q].format == QN_F32 &&
                      same_rows(&in[QN_ATT_K], &s[4].args.out[QN_QUANT_OUT_Q]) &&
                      same_rows(&in[QN_ATT_V], &s[5].args.out[QN_QUANT_OUT_Q]) &&
                      same_rows(&in[QN_ATT_K_SCALE], &s[4].args.out[QN_QUANT_OUT_SCALE]) &&
                      same_rows(&in[QN_ATT_V_SCALE], &s[5].args.out[QN_QUANT_OUT_SCALE]) &&
                      same_rows(&in[QN_ATT_K_RECENT], &s[2].args.out[0]) &&
                      same_rows(&in[QN_ATT_V_RECENT], &s[3].args.out[0]);
    const int kept = d->attr[QN_ATTR_WINDOW].i > 0 && d->attr[QN_ATTR_CAUSAL].i &&
                     d->in[QN_ATT_K].format == QN_F8_E4M3 && d->in[QN_ATT_V].format == QN_F8_E4M3 &&
                     d->in[QN_ATT_K_RECENT].format == QN_F16 && d->in[QN_ATT_V_RECENT].format == QN_F16;
    return reads && kept && size % 8 == 0 && size <= MOST_HEAD && in_words(&in[QN_ATT_K], size, 4) &&
           in_words(&in[QN_ATT_V], size, 4) && in_words(&in[QN_ATT_K_RECENT], 2 * size, 16) &&
           in_words(&in[QN_ATT_V_RECENT], 2 * size, 16);
}

/* One sequence's rows of a cache of four dimensions as one of three. */
static qn_view rows_of_sequence(const qn_view *all)
{
    qn_view rows = *all;
    for (int i = 0; i < 3; i++) {
        rows.shape.dims[i] = all->shape.dims[i + 1];
        rows.strides[i] = all->strides[i + 1];
    }
    return rows;
}

/* The same over codes of vectors, for keys and for values. */
static int reads_coded(const qn_chain_step *s, int values)
{
    const qn_chain_step *attention = &s[STEP_STEPS], *codes = &s[4 + values];
    const qn_view *in = attention->args.in, *book = &in[QN_VQA_K_CODEBOOK + values];
    const qn_view *of_codes = &codes->args.in[QN_VQE_CODEBOOK];
    const qn_mut_view *written = &codes->args.out[QN_VQE_OUT_CODES];
    const qn_view rows = rows_of_sequence(&in[QN_VQA_K_CODES + values]);
    const qn_view recent = rows_of_sequence(&in[QN_VQA_K_RECENT + values]);
    const int64_t size = attention->desc->in[QN_VQA_Q].dims[2], *dims = book->shape.dims;
    const int same = rows.data == written->data && rows.strides[0] == written->strides[1] &&
                     rows.strides[1] == written->strides[2] && book->data == of_codes->data &&
                     memcmp(book->strides, of_codes->strides, sizeof book->strides) == 0 &&
                     same_rows(&recent, &s[2 + values].args.out[0]);
    const int vectors = book->shape.format == QN_F16 && rows.shape.format == QN_U8 && dims[2] == 256 &&
                        (dims[3] == 2 || dims[3] == 4 || dims[3] == 8) && dims[1] % 4 == 0 &&
                        qn_cuda_encode_arguments(&codes->args).book.wide;
    return same && vectors && recent.shape.format == QN_F16 && in_words(&rows, dims[1], 4) &&
           in_words(&recent, 2 * size, 16);
}

static int is_coded_attention(const qn_chain_step *s)
{
    const qn_chain_step *attention = &s[STEP_STEPS];
    const qn_op_desc *d = attention->desc;
    const int64_t *q = d->in[QN_VQA_Q].dims, size = q[2];
    return q[0] == 1 && size % 8 == 0 && size <= MOST_HEAD && d->in[QN_VQA_Q].format == QN_F32 &&
           attention->args.in[QN_VQA_Q].data == s[0].args.out[0].data && attention->cached_in != 0 &&
           d->attr[QN_ATTR_WINDOW].i > 0 && d->attr[QN_ATTR_STYLE].i == QN_ROPE_HALF &&
           d->attr[QN_ATTR_ROPE_THETA].f == s[0].desc->attr[QN_ATTR_THETA].f &&
           qn_cuda_factors(&attention->args.in[QN_VQA_ROPE_FACTORS]) == factors_of(&s[0]) && reads_coded(s, 0) &&
           reads_coded(s, 1);
}

int32_t qn_cuda_chain_kept(const qn_chain_step *s, int32_t count, int normed)
{
    if (count <= STEP_STEPS || !is_step(s, count)) {
        return 0;
    }
    const int scaled = is_operator(&s[4], QN_OP_QUANTIZE_FP8);
    const int kept = scaled ? is_operator(&s[STEP_STEPS], QN_OP_SCALED_ATTENTION) && is_scaled_attention(s)
                            : !normed && is_operator(&s[STEP_STEPS], QN_OP_VQ_ATTENTION) && is_coded_attention(s);
    return kept ? STEP_STEPS + 1 : 0;
}

static qn_cuda_kv_keep recent_rows(const qn_chain_step *s, const int32_t *position, int values)
{
    qn_cuda_chain_launch keep = {.arguments = {.keep = {0}}};
    keep_arguments(&s[2 + values].args, position, &keep);
    return keep.arguments.keep;
}

/* Arguments and program; returns how many blocks encode, for each head. */
static int64_t decode_coded(const qn_chain_step *s, const qn_cuda_decode *common, int64_t parts,
                            qn_cuda_decode_coded *a, qn_cuda_program *program)
{
    *a = (qn_cuda_decode_coded){.q = common->q,
                                .k = common->k,
                                .v = common->v,
                                .position = common->position,
                                .recent = {common->recent[0], common->recent[1]},
                                .partials = common->partials,
                                .heads = common->heads,
                                .group = common->group,
                                .window = common->window,
                                .parts = (int32_t)parts,
                                .scale = common->scale,
                                .log2_theta = common->log2_theta,
                                .factors = common->factors};
    for (int values = 0; values < 2; values++) {
        a->coded[values] = qn_cuda_encode_arguments(&s[4 + values].args);
        a->coded[values].position = common->position;
    }
    qn_cuda_encode_program(s[4].desc, program);
    program->source = "decode_coded.cu";
    program->entry = "qn_decode_coded";
    const int64_t tasks = 2 * (int64_t)(a->heads / a->group) * a->coded[0].groups;
    return qn_ceil_div(tasks, STEP_WARPS * (int64_t)a->heads);
}

void qn_cuda_decode_together(const qn_cuda_parted *parted, qn_cuda_program *program, qn_cuda_geometry *geometry)
{
    program->source = "decode_group.cu";
    program->entry = "qn_decode_group";
    program->shared_bytes = GROUP_SHARED_BYTES;
    qn_cuda_define(program, "GROUP", parted->together);
    geometry->grid[1] /= (uint32_t)parted->together;
    geometry->block[0] = GROUP_THREADS;
    geometry->shared_bytes = GROUP_SHARED_BYTES;
}

qn_status qn_cuda_chain_decode_kept(const qn_chain_step *s, const qn_chain_step *norms, const int32_t *position,
                                    const qn_cuda_parted *parted, qn_chain *chain, qn_error *error)
{
    static const char *const zero[] = {"X_FORMAT", "TYPE", "ASYMMETRIC", "BOUNDED"}; /* of rows.h */
    const qn_op_desc *d = s[STEP_STEPS].desc;
    const int64_t *q = d->in[0].dims, heads = q[1], size = q[2];
    const float scale = d->attr[QN_ATTR_SCALE].f;
    qn_cuda_chain_launch *l = &chain->launches[0];
    qn_cuda_program program;
    memset(&program, 0, sizeof program);
    qn_cuda_decode a = {.q = (norms ? &norms[0] : &s[0])->args.in[0].data,
                        .k = (norms ? &norms[1] : &s[1])->args.in[0].data,
                        .norms = qn_cuda_head_norms_of(norms),
                        .v = s[3].args.in[0].data,
                        .position = position,
                        .recent = {recent_rows(s, position, 0), recent_rows(s, position, 1)},
                        .partials = (char *)(uintptr_t)chain->partials,
                        .out = parted->out,
                        .arrived = parted->arrived,
                        .heads = (int32_t)heads,
                        .group = (int32_t)(heads / s[1].desc->in[0].dims[1]),
                        .window = d->attr[QN_ATTR_WINDOW].i,
                        .scale = scale == 0.0f ? (float)(1.0 / sqrt((double)size)) : scale,
                        .log2_theta = log2((double)s[0].desc->attr[QN_ATTR_THETA].f),
                        .factors = factors_of(&s[0])};
    int64_t parts = parted->parts;
    if (d->op == QN_OP_VQ_ATTENTION) {
        parts += decode_coded(s, &a, parts, &l->arguments.decode_coded, &program);
    } else {
        a.scaled[0] = scaled_rows(&s[4]);
        a.scaled[1] = scaled_rows(&s[5]);
        const qn_view *in = s[STEP_STEPS].args.in;
        l->arguments.decode = a;
        program.source = "decode_scaled.cu";
        program.entry = "qn_decode_scaled";
        if (parted->together > 1) {
            qn_cuda_define(&program, "KV", QN_CUDA_KV_FP8);
        } else {
            qn_cuda_define(&program, "ALIGNED",
                           size % 16 == 0 && in_words(&in[QN_ATT_K], size, 16) && in_words(&in[QN_ATT_V], size, 16));
        }
        qn_cuda_define(&program, "NORM", norms != NULL);
        for (size_t i = 0; i < sizeof zero / sizeof *zero; i++) {
            qn_cuda_define(&program, zero[i], 0);
        }
    }
    qn_cuda_define(&program, "SIZE", size);
    qn_cuda_define_factors(a.factors != NULL, &program);
    l->geometry = (qn_cuda_geometry){
        .grid = {(uint32_t)parts, (uint32_t)heads, 1}, .block = {DECODE_THREADS, 1, 1}, .dependent = 1};
    if (parted->together > 1) {
        qn_cuda_decode_together(parted, &program, &l->geometry);
    }
    return qn_cuda_function_get(chain->cuda, &program, &l->function, error);
}

static qn_status make_attention(const qn_chain_step *s, const int32_t *position, qn_chain *chain, int32_t *taken,
                                qn_error *error)
{
    const qn_cuda *cuda = chain->cuda;
    qn_cuda_program programs[QN_CUDA_CHAIN_LAUNCHES];
    qn_cuda_geometry geometries[QN_CUDA_CHAIN_LAUNCHES];
    qn_cuda_vq_attention a;
    const int32_t count = qn_cuda_scaled_attention_chain(s->desc, &s->args, &cuda->device, programs, geometries, &a);
    if (count == 0) {
        *taken = 0;
        return QN_OK;
    }
    QN_TRY(qn_cuda_push(cuda, error));
    const cu_result result = cuda->cu.MemAlloc(&chain->partials, (size_t)a.all_parts * (size_t)a.heads *
                                                                     (size_t)(a.size + 2) * sizeof(float));
    qn_cuda_pop(cuda);
    QN_TRY(qn_cuda_check(cuda, result, "cuMemAlloc", error));
    a.partials = (char *)(uintptr_t)chain->partials;
    a.position = position;
    chain->count = count;
    for (int32_t i = 0; i < count; i++) {
        qn_cuda_chain_launch *l = &chain->launches[i];
        l->arguments.kv = a;
        l->geometry = geometries[i];
        QN_TRY(qn_cuda_function_get(chain->cuda, &programs[i], &l->function, error));
    }
    return QN_OK;
}

qn_status qn_cuda_chain_kv(const qn_chain_step *s, int32_t count, const int32_t *position, qn_chain *chain,
                           int32_t *taken, qn_error *error)
{
    if (is_step(s, count)) {
        *taken = STEP_STEPS;
        return make_step(s, position, chain, error);
    }
    *taken = 1;
    if (s->kind == QN_CHAIN_KEEP || s->kind == QN_CHAIN_COPY) {
        return make_keep(s, s->kind == QN_CHAIN_COPY && !s->cached_out ? NULL : position, chain, error);
    }
    if (s->kind == QN_CHAIN_OPERATOR && s->desc->op == QN_OP_QUANTIZE_FP8 && s->cached_out && is_plain_fp8(s)) {
        return make_scaled(s, position, chain, error);
    }
    if (s->kind == QN_CHAIN_OPERATOR && s->desc->op == QN_OP_VQ_ENCODE && s->cached_out) {
        return make_encode(s, position, chain, error);
    }
    if (s->kind == QN_CHAIN_OPERATOR && s->desc->op == QN_OP_SCALED_ATTENTION && s->cached_in) {
        return make_attention(s, position, chain, taken, error);
    }
    *taken = 0;
    return QN_OK;
}
