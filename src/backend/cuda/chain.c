/* Chains: neighbouring steps of a decoding pass, of one row, as few launches.
 *
 *   lookup                                          embed.cu
 *   add; add, rmsnorm                               add.cu; rmsnorm.cu
 *   [rmsnorm | silu_mul | silu_mul_quant] [quantize]
 *     1 to 3 products of the same rows, each with the
 *     sum of its bias where its operator has none
 *     [add, or the last one's copy to the cache]    mm_few.cu, mm_ring.cu
 *   two products by large weights, silu_mul of them
 *     before the next                               mm_ring.cu twice
 *   [rmsnorm, rmsnorm of heads] rope, rope into the
 *     cache, or rope and both copies into one of
 *     bf16, attention; then such a product, or not  decode.cu or decode_group.cu, mm_few.cu
 *   the same over codes                             decode_scaled.cu, decode_group.cu, decode_coded.cu (chain_kv.c),
 *                                                   mm_few.cu
 *   what keeps keys and values otherwise            chain_kv.c
 *
 * A pattern is taken when nothing after it reads what its kernels leave out. Every kernel is launched so that it may
 * start while the one before drains, and loads its weights meanwhile. */
#include <math.h>
#include <string.h>

#include "backend/cuda/chain_match.h"
#include "base/checked.h"
#include "ref/slots.h"

enum { LOOKUP_THREADS = 128, DECODE_THREADS = 128, JOIN_THREADS = 256 };
enum { PART_KEYS = 128, MOST_HEAD = 128, TOGETHER_HEAD = 128, MOST_TOGETHER = 8 };
enum { NORM_THREADS = 1024, NORM_ITEMS = 4, JOINED_APART = 1 << 14 };
enum { LOOKUP_LEAST = 8, MOST_GRID_Y = 65535, LOOKUPS = 2 * (QN_MM_I8_K + 1) };

/* ---- attention ---- */

/* Norms of the heads of the query and of the key, where steps begin with them; 0: they are none that the kernels of an
 * attention do for themselves. */
static int match_head_norms(const qn_cuda_matcher *m)
{
    const qn_chain_step *norms[2] = {qn_cuda_operator_at(m, 0, QN_OP_RMSNORM),
                                     qn_cuda_operator_at(m, 1, QN_OP_RMSNORM)};
    for (int i = 0; i < 2; i++) {
        const qn_chain_step *norm = norms[i], *rope = qn_cuda_operator_at(m, 2 + i, QN_OP_ROPE);
        if (!norm || !rope) {
            return 0;
        }
        const int64_t *dims = rope->desc->in[0].dims, heads = dims[1], size = dims[2];
        const qn_view *x = &norm->args.in[0];
        if (!qn_cuda_dense_f32(x) || !qn_cuda_dense_f32(&norm->args.in[QN_ACT_W]) ||
            norm->args.out[0].shape.format != QN_F32 || norm->args.out[0].data != qn_cuda_step_x(rope) ||
            x->shape.dims[0] != heads || x->shape.dims[1] != size || x->strides[0] != size * 4 ||
            norm->desc->attr[QN_ATTR_EPS].f != norms[0]->desc->attr[QN_ATTR_EPS].f) {
            return 0;
        }
    }
    return 1;
}

qn_cuda_head_norms qn_cuda_head_norms_of(const qn_chain_step *norms)
{
    if (!norms) {
        return (qn_cuda_head_norms){NULL, NULL, 0.0f};
    }
    return (qn_cuda_head_norms){.q = norms[0].args.in[QN_ACT_W].data,
                                .k = norms[1].args.in[QN_ACT_W].data,
                                .eps = norms[0].desc->attr[QN_ATTR_EPS].f};
}

/* Whether steps i and i + 1 bring the turned key and the new value, as bf16, to where an attention reads them. */
static int are_rounded(const qn_cuda_matcher *m, int32_t i, const qn_chain_step *key, const qn_chain_step *attention)
{
    const qn_chain_step *s = &m->steps[i];
    for (int values = 0; values < 2; values++) {
        if (s[values].kind != QN_CHAIN_COPY || !(s[values].cached_out & 1) ||
            s[values].args.out[0].shape.format != QN_BF16 ||
            s[values].args.out[0].data != attention->args.in[values ? QN_ATT_V : QN_ATT_K].data) {
            return 0;
        }
    }
    return qn_cuda_step_x(&s[0]) == key->args.out[0].data && qn_cuda_dense_f32(&s[1].args.in[0]) &&
           !qn_cuda_is_needed(m, i + 3, key->args.out[0].data);
}

/* The steps up to an attention that decode.cu does, over a cache of f32 or bf16: how many, or 0. */
static int32_t match_attention(const qn_cuda_matcher *m)
{
    const qn_chain_step *query = qn_cuda_operator_at(m, 0, QN_OP_ROPE), *key = qn_cuda_operator_at(m, 1, QN_OP_ROPE);
    const int32_t at = key && key->cached_out & 1 ? 2 : 4;
    const qn_chain_step *attention = qn_cuda_operator_at(m, at, QN_OP_ATTENTION);
    if (!query || !key || !attention || query->cached_out) {
        return 0;
    }
    const qn_op_desc *d = attention->desc;
    const qn_args *args = &attention->args;
    const qn_format kept = at == 2 ? QN_F32 : QN_BF16;
    const int64_t size = d->in[QN_ATT_Q].dims[2], step = size * 4, kept_step = size * (kept == QN_F32 ? 4 : 2);
    const int formats = d->in[QN_ATT_Q].format == QN_F32 && d->in[QN_ATT_K].format == kept &&
                        d->in[QN_ATT_V].format == kept && query->desc->in[0].format == QN_F32 &&
                        key->desc->in[0].format == QN_F32;
    const int same_turn =
        memcmp(query->desc->attr, key->desc->attr, sizeof key->desc->attr) == 0 &&
        qn_cuda_factors(&query->args.in[QN_ACT_FACTORS]) == qn_cuda_factors(&key->args.in[QN_ACT_FACTORS]) &&
        query->desc->attr[QN_ATTR_STYLE].i == QN_ROPE_HALF;
    const int dense = query->args.in[0].strides[1] == step && key->args.in[0].strides[1] == step &&
                      args->in[QN_ATT_K].strides[1] == kept_step && args->in[QN_ATT_V].strides[1] == kept_step &&
                      args->in[QN_ATT_K].strides[0] == args->in[QN_ATT_V].strides[0];
    const int written = at == 2 ? args->in[QN_ATT_K].data == key->args.out[0].data : are_rounded(m, 2, key, attention);
    const int taken =
        formats && same_turn && dense && written && size % 8 == 0 && size <= MOST_HEAD && d->attr[QN_ATTR_CAUSAL].i &&
        attention->cached_in == (1u << QN_ATT_K | 1u << QN_ATT_V) &&
        args->in[QN_ATT_Q].data == query->args.out[0].data && !qn_cuda_is_needed(m, at + 1, query->args.out[0].data) &&
        (uint64_t)args->in[QN_ATT_K].strides[0] % 16 == 0 &&
        ((uint64_t)(uintptr_t)args->in[QN_ATT_K].data | (uint64_t)(uintptr_t)args->in[QN_ATT_V].data) % 16 == 0;
    return taken ? at + 1 : 0;
}

/* Query heads of a block: where heads are long all that share a key head, or as many as have room; of short ones each
 * by itself, as few keys take longer in fewer blocks. */
static int64_t queries_together(int64_t group, int64_t size)
{
    int64_t together = size < TOGETHER_HEAD ? 1 : qn_min_i64(group, MOST_TOGETHER);
    while (group % together != 0) {
        together--;
    }
    return together;
}

static void decode_program(int64_t size, int kv, int normed, const char *source, const char *entry,
                           qn_cuda_program *program)
{
    memset(program, 0, sizeof *program);
    program->source = source;
    program->entry = entry;
    qn_cuda_define(program, "SIZE", size);
    qn_cuda_define(program, "KV", kv);
    qn_cuda_define(program, "NORM", normed);
}

static qn_status make_attention(const qn_cuda_matcher *m, int32_t steps, const qn_cuda_parted *parted, qn_chain *chain,
                                qn_error *error)
{
    const qn_chain_step *query = &m->steps[0], *key = &m->steps[1], *attention = &m->steps[steps - 1];
    const qn_op_desc *d = attention->desc;
    const int64_t heads = d->in[QN_ATT_Q].dims[1], size = d->in[QN_ATT_Q].dims[2];
    const float scale = d->attr[QN_ATTR_SCALE].f;
    const int rounded = d->in[QN_ATT_K].format == QN_BF16;
    qn_cuda_chain_launch *l = &chain->launches[0];
    l->arguments.decode = (qn_cuda_decode){.q = qn_cuda_step_x(m->norms ? &m->norms[0] : query),
                                           .k = qn_cuda_step_x(m->norms ? &m->norms[1] : key),
                                           .v = rounded ? qn_cuda_step_x(attention - 1) : NULL,
                                           .norms = qn_cuda_head_norms_of(m->norms),
                                           .keys = (rounded ? attention - 2 : key)->args.out[0].data,
                                           .values = (char *)(uintptr_t)attention->args.in[QN_ATT_V].data,
                                           .partials = (char *)(uintptr_t)chain->partials,
                                           .out = parted->out,
                                           .arrived = parted->arrived,
                                           .position = m->position,
                                           .row = attention->args.in[QN_ATT_K].strides[0],
                                           .heads = (int32_t)heads,
                                           .group = (int32_t)(heads / d->in[QN_ATT_K].dims[1]),
                                           .scale = scale == 0.0f ? (float)(1.0 / sqrt((double)size)) : scale,
                                           .log2_theta = log2((double)query->desc->attr[QN_ATTR_THETA].f),
                                           .factors = qn_cuda_factors(&query->args.in[QN_ACT_FACTORS])};
    const int kv = rounded ? QN_CUDA_KV_BF16 : QN_CUDA_KV_F32;
    qn_cuda_program program;
    decode_program(size, kv, m->norms != NULL, "decode.cu", "qn_decode_attention", &program);
    program.shared_bytes = (int32_t)(PART_KEYS * size * (rounded ? 2 : 4));
    l->geometry = (qn_cuda_geometry){.grid = {(uint32_t)parted->parts, (uint32_t)heads, 1},
                                     .block = {DECODE_THREADS, 1, 1},
                                     .shared_bytes = (uint32_t)program.shared_bytes,
                                     .dependent = 1};
    if (parted->together > 1) {
        qn_cuda_decode_together(parted, &program, &l->geometry);
    }
    qn_cuda_define_factors(l->arguments.decode.factors != NULL, &program);
    return qn_cuda_function_get(m->cuda, &program, &l->function, error);
}

/* The parts as a row of floats, where what follows is no product that joins them itself. */
static qn_status make_join(const qn_cuda_matcher *m, const qn_chain_step *attention, float *out, qn_chain *chain,
                           qn_error *error)
{
    qn_cuda_chain_launch *l = &chain->launches[1];
    const int64_t *q = attention->desc->in[QN_ATT_Q].dims;
    qn_cuda_program program;
    decode_program(q[2], QN_CUDA_KV_F32, 0, "decode.cu", "qn_decode_join", &program);
    l->arguments.decode = (qn_cuda_decode){
        .partials = (char *)(uintptr_t)chain->partials, .out = out, .position = m->position, .heads = (int32_t)q[1]};
    l->geometry = (qn_cuda_geometry){.grid = {(uint32_t)q[1], 1, 1}, .block = {JOIN_THREADS, 1, 1}, .dependent = 1};
    return qn_cuda_function_get(m->cuda, &program, &l->function, error);
}

/* Whether a product puts its row of that length together itself: each of its blocks reads all parts then, which costs
 * more than a launch that does so once where blocks are many and rows are long. */
static int joins_parts(const qn_cuda_matcher *m, const qn_cuda_product *p, int64_t length)
{
    return p->mm[0]->args.out[0].shape.dims[1] * length < (int64_t)m->cuda->device.sms * JOINED_APART;
}

/* Memory of a chain's attention: its parts, a row that they become, and how many blocks of a head have left theirs. */
static qn_status make_partials(qn_chain *chain, size_t parts, size_t row, size_t arrived, qn_error *error)
{
    const qn_cuda *cuda = chain->cuda;
    QN_TRY(qn_cuda_push(cuda, error));
    const char *what = "cuMemAlloc";
    cu_result result = cuda->cu.MemAlloc(&chain->partials, parts + row + arrived);
    if (result == CU_SUCCESS && arrived) {
        what = "cuMemsetD8Async";
        result = cuda->cu.Fill(chain->partials + parts + row, 0, arrived, NULL);
    }
    if (result == CU_SUCCESS && arrived) {
        what = "cuStreamSynchronize";
        result = cuda->cu.StreamSync(NULL);
    }
    qn_cuda_pop(cuda);
    return qn_cuda_check(cuda, result, what, error);
}

/* Steps up to an attention that leaves parts, and what puts these together: a product, the attention's own kernel where
 * queries share keys, or a launch between the two. */
static qn_status make_attended(const qn_cuda_matcher *m, int32_t steps, int kept, qn_chain *chain, int32_t *taken,
                               qn_error *error)
{
    const qn_chain_step *attention = &m->steps[steps - 1];
    const int64_t *q = attention->desc->in[QN_ATT_Q].dims;
    const int64_t *k = attention->args.in[1].shape.dims; /* of one sequence, where it says so */
    const int64_t room = attention->desc->op == QN_OP_VQ_ATTENTION ? k[1] : k[0];
    qn_cuda_parted parted = {.parts = qn_max_i64(1, qn_ceil_div(room, PART_KEYS)), .together = 1};
    if (attention->desc->op != QN_OP_VQ_ATTENTION) {
        parted.together = queries_together(q[1] / attention->desc->in[QN_ATT_K].dims[1], q[2]);
    }
    const size_t bytes = (size_t)(parted.parts * q[1] * (q[2] + 4)) * sizeof(float),
                 row = (size_t)(q[1] * q[2]) * sizeof(float);
    qn_cuda_product p;
    int possible = qn_cuda_match_product(m, steps, attention, &p);
    const int apart = possible && !joins_parts(m, &p, q[1] * q[2]);
    qn_cuda_chain_launch product;
    memset(&product, 0, sizeof product);
    if (possible) {
        p.pre = apart ? QN_CUDA_PRE_NONE : QN_CUDA_PRE_ATTENTION;
        QN_TRY(qn_cuda_make_product(m, &p, &product, &possible, error));
    }
    if (!possible && attention->args.out[0].shape.format != QN_F32) {
        return QN_OK;
    }
    QN_TRY(make_partials(chain, bytes, row, parted.together > 1 ? (size_t)q[1] * sizeof(int32_t) : 0, error));
    char *const partials = (char *)(uintptr_t)chain->partials;
    float *const joined = !possible ? attention->args.out[0].data : apart ? (float *)(void *)(partials + bytes) : NULL;
    parted.out = parted.together > 1 ? joined : NULL;
    parted.arrived = (int32_t *)(void *)(partials + bytes + row);
    chain->count = 1;
    if (kept) {
        QN_TRY(qn_cuda_chain_decode_kept(m->steps, m->norms, m->position, &parted, chain, error));
    } else {
        QN_TRY(make_attention(m, steps, &parted, chain, error));
    }
    if (joined && parted.together == 1) {
        QN_TRY(make_join(m, attention, joined, chain, error));
        chain->count++;
    }
    *taken = steps + (possible ? p.taken : 0);
    if (possible) {
        qn_cuda_mm *a = &product.arguments.mm;
        if (apart) {
            a->x = (const char *)joined;
        } else {
            a->partials = partials;
            a->heads = (int32_t)q[1];
            a->head_size = a->k / a->heads;
        }
        chain->launches[chain->count++] = product;
    }
    return QN_OK;
}

/* ---- lookup, add ---- */

static void lookup_program(int32_t format, int32_t aligned, qn_cuda_program *program)
{
    memset(program, 0, sizeof *program);
    program->source = "embed.cu";
    program->entry = "qn_embed";
    qn_cuda_define(program, "B_FORMAT", format);
    qn_cuda_define(program, "ALIGNED", aligned);
}

static void add_program(qn_cuda_program *program)
{
    memset(program, 0, sizeof *program);
    program->source = "add.cu";
    program->entry = "qn_add";
}

int qn_cuda_chain_program(int32_t i, qn_cuda_program *program)
{
    if (i == 0) {
        add_program(program);
    } else if (i > LOOKUPS) {
        qn_cuda_keep_program((qn_cuda_keep)qn_min_i64(i - LOOKUPS - 1, QN_CUDA_KEEP_COUNT - 1), program);
    } else {
        lookup_program((i - 1) / 2, (i - 1) % 2, program);
    }
    return i <= LOOKUPS + QN_CUDA_KEEP_COUNT;
}

static qn_status make_lookup(const qn_cuda_matcher *m, qn_cuda_chain_launch *l, int *possible, qn_error *error)
{
    const qn_chain_step *s = &m->steps[0];
    const qn_view *table = &s->args.in[0];
    const int32_t format = qn_cuda_stored_format(table->shape.format);
    const int64_t k = table->shape.dims[1];
    *possible = format >= 0 && k <= INT32_MAX;
    if (!*possible) {
        return QN_OK;
    }
    const qn_cuda_mm_part rows = {.b = table->data, .b_row = table->strides[0]};
    qn_cuda_program program;
    lookup_program(format, qn_cuda_mm_aligned(format, &rows, k), &program);
    l->arguments.embed = (qn_cuda_embed){.ids = s->args.in[1].data,
                                         .b = table->data,
                                         .y = s->args.out[0].data,
                                         .b_row = table->strides[0],
                                         .y_row = s->args.out[0].strides[0],
                                         .k = (int32_t)k};
    const int64_t parts = k / (qn_max_i64(qn_cuda_weight_unit(format), LOOKUP_LEAST) * LOOKUP_THREADS);
    l->geometry = (qn_cuda_geometry){.grid = {1, (uint32_t)qn_max_i64(qn_min_i64(parts, MOST_GRID_Y), 1), 1},
                                     .block = {LOOKUP_THREADS, 1, 1}};
    return qn_cuda_function_get(m->cuda, &program, &l->function, error);
}

static qn_status make_add(const qn_cuda_matcher *m, qn_cuda_chain_launch *l, qn_error *error)
{
    const qn_args *args = &m->steps[0].args;
    qn_cuda_program program;
    add_program(&program);
    const int64_t k = args->out[0].shape.dims[1];
    l->arguments.activation = (qn_cuda_activation){.w = args->in[0].data,
                                                   .y = args->out[0].data,
                                                   .w_row = args->in[0].strides[0],
                                                   .y_row = args->out[0].strides[0],
                                                   .m = 1,
                                                   .k = k};
    return qn_cuda_function_get(m->cuda, &program, &l->function, error);
}

/* A sum, and the norm of it that no product of a chain makes for itself; *possible 0: there is none. */
static qn_status make_normed(const qn_cuda_matcher *m, qn_cuda_chain_launch *l, int *possible, qn_error *error)
{
    const qn_chain_step *s = &m->steps[0], *norm = qn_cuda_operator_at(m, 1, QN_OP_RMSNORM);
    const qn_cuda_matcher rest = {
        .steps = m->steps + 1, .count = m->count - 1, .position = m->position, .cuda = m->cuda};
    const qn_mut_view *sum = &s->args.out[0];
    const int64_t k = sum->shape.dims[1], items = qn_ceil_div(k, 4 * NORM_THREADS);
    *possible = norm && qn_cuda_step_x(norm) == sum->data && qn_cuda_dense_f32(&norm->args.in[0]) &&
                qn_cuda_dense_f32(&s->args.in[0]) && qn_cuda_dense_f32(&norm->args.in[QN_ACT_W]) &&
                norm->args.in[0].shape.dims[1] == k && k % 4 == 0 && items <= NORM_ITEMS;
    if (!*possible) {
        return QN_OK;
    }
    qn_cuda_product p;
    int chained = qn_cuda_match_product(&rest, 0, NULL, &p);
    if (chained) {
        QN_TRY(qn_cuda_make_product(&rest, &p, l, &chained, error));
    }
    *possible = !chained;
    if (!*possible) {
        return QN_OK;
    }
    qn_cuda_program program = {.source = "rmsnorm.cu", .entry = "qn_add_rmsnorm"};
    qn_cuda_define(&program, "OUT", qn_cuda_float_format(norm->args.out[0].shape.format));
    qn_cuda_define(&program, "THREADS", NORM_THREADS);
    qn_cuda_define(&program, "ITEMS", items);
    memset(&l->arguments, 0, sizeof l->arguments);
    l->arguments.activation = (qn_cuda_activation){.x = sum->data,
                                                   .added = s->args.in[0].data,
                                                   .sum = sum->data,
                                                   .w = norm->args.in[QN_ACT_W].data,
                                                   .y = norm->args.out[0].data,
                                                   .eps = norm->desc->attr[QN_ATTR_EPS].f,
                                                   .k = k};
    l->geometry = (qn_cuda_geometry){.grid = {1, 1, 1}, .block = {NORM_THREADS, 1, 1}, .dependent = 1};
    return qn_cuda_function_get(m->cuda, &program, &l->function, error);
}

/* ---- the chain ---- */

/* An attention with all that comes before it. */
static qn_status make_turned(const qn_cuda_matcher *m, qn_chain *chain, int32_t *taken, qn_error *error)
{
    const int32_t kept = qn_cuda_chain_kept(m->steps, m->count, m->norms != NULL);
    if (kept && !qn_cuda_is_needed(m, kept, m->steps[0].args.out[0].data) &&
        !qn_cuda_is_needed(m, kept, m->steps[1].args.out[0].data) &&
        !qn_cuda_is_needed(m, kept, m->steps[kept - 1].args.out[1].data)) {
        QN_TRY(make_attended(m, kept, 1, chain, taken, error));
    }
    const int32_t plain = *taken ? 0 : match_attention(m);
    return plain ? make_attended(m, plain, 0, chain, taken, error) : QN_OK;
}

/* Whether products q read nothing of p but silu_mul of its two halves, which nothing else reads. */
static int feeds(const qn_cuda_matcher *m, const qn_cuda_product *p, const qn_cuda_product *q)
{
    if (p->parts != 2 || p->add || p->copy || q->pre != QN_CUDA_PRE_SILU) {
        return 0;
    }
    const qn_mut_view *gate = &p->mm[0]->args.out[0], *up = &p->mm[1]->args.out[0];
    const int64_t k = qn_cuda_product_depth(q->mm[0]->desc);
    return gate->data == qn_cuda_step_x(q->before) && (char *)up->data == (char *)gate->data + k * 4 &&
           gate->shape.format == QN_F32 && up->shape.format == QN_F32 && gate->shape.dims[1] == k &&
           up->shape.dims[1] == k && k % 8 == 0 && !qn_cuda_is_needed(m, p->taken + q->taken, gate->data) &&
           !qn_cuda_is_needed(m, p->taken + q->taken, up->data);
}

/* Gate and up, then down: with silu_mul where the first ones' sums are, not in every block of the last. */
static qn_status make_gated(const qn_cuda_matcher *m, const qn_cuda_product *p, qn_chain *chain, int32_t *taken,
                            qn_error *error)
{
    qn_cuda_matcher rest = {m->steps + p->taken, m->count - p->taken, m->position, m->cuda, NULL};
    qn_cuda_product gated = *p, down;
    int possible = rest.count > 0 && qn_cuda_match_product(&rest, 0, NULL, &down) && feeds(m, p, &down);
    if (possible) {
        gated.silu = 1;
        down.pre = QN_CUDA_PRE_NONE;
        QN_TRY(qn_cuda_make_product(m, &gated, &chain->launches[0], &possible, error));
    }
    if (possible) {
        QN_TRY(qn_cuda_make_product(&rest, &down, &chain->launches[1], &possible, error));
    }
    if (possible) {
        chain->count = 2;
        *taken = p->taken + down.taken;
    }
    return QN_OK;
}

static qn_status make(const qn_cuda_matcher *m, qn_chain *chain, int32_t *taken, qn_error *error)
{
    int possible = 1;
    qn_cuda_product p;
    chain->kind = m->steps[0].kind;
    if (match_head_norms(m)) {
        qn_cuda_matcher rest = {m->steps + 2, m->count - 2, m->position, m->cuda, m->steps};
        QN_TRY(make_turned(&rest, chain, taken, error));
        *taken += *taken ? 2 : 0;
        return QN_OK;
    }
    QN_TRY(make_turned(m, chain, taken, error));
    if (*taken) {
        return QN_OK;
    }
    QN_TRY(qn_cuda_chain_kv(m->steps, m->count, m->position, chain, taken, error));
    if (*taken) {
        return QN_OK;
    }
    if (m->steps[0].kind != QN_CHAIN_OPERATOR) {
        chain->count = *taken = 1;
        if (m->steps[0].kind == QN_CHAIN_ADD) {
            QN_TRY(make_normed(m, &chain->launches[0], &possible, error));
            if (possible) {
                chain->kind = QN_CHAIN_OPERATOR; /* of one row */
                *taken = 2;
                return QN_OK;
            }
            return make_add(m, &chain->launches[0], error);
        }
        QN_TRY(make_lookup(m, &chain->launches[0], &possible, error));
        *taken = possible;
        return QN_OK;
    }
    if (qn_cuda_match_product(m, 0, NULL, &p)) {
        QN_TRY(make_gated(m, &p, chain, taken, error));
        if (*taken) {
            return QN_OK;
        }
        QN_TRY(qn_cuda_make_product(m, &p, &chain->launches[0], &possible, error));
        chain->count = 1;
        *taken = possible ? p.taken : 0;
    }
    return QN_OK;
}

static void destroy(const qn_ctx *ctx, qn_chain *chain)
{
    if (!chain) {
        return;
    }
    if (chain->partials && qn_cuda_push(chain->cuda, NULL) == QN_OK) {
        chain->cuda->cu.MemFree(chain->partials);
        qn_cuda_pop(chain->cuda);
    }
    qn_free(ctx, chain);
}

static qn_status create(const qn_ctx *ctx, const qn_chain_step *steps, int32_t count, const int32_t *position,
                        qn_chain **out, int32_t *taken, qn_error *error)
{
    *out = NULL;
    *taken = 0;
    qn_cuda_matcher m = {.steps = steps, .count = count, .position = position};
    QN_TRY(qn_cuda_require(ctx, &m.cuda, error));
    qn_chain *chain = qn_calloc(ctx, 1, sizeof *chain);
    QN_FAIL_IF(!chain, error, QN_E_MEMORY, "out of memory for a chain of steps");
    chain->cuda = m.cuda;
    const qn_status status = make(&m, chain, taken, error);
    if (status == QN_OK && *taken) {
        *out = chain;
    } else {
        destroy(ctx, chain);
    }
    return status;
}

static qn_status run(const qn_chain *chain, int32_t rows, void *stream, qn_error *error)
{
    QN_TRY(qn_cuda_push(chain->cuda, error));
    qn_status status = QN_OK;
    for (int32_t i = 0; i < chain->count && status == QN_OK; i++) {
        qn_cuda_chain_launch l = chain->launches[i];
        void *const pointers[] = {&l.arguments};
        if (chain->kind == QN_CHAIN_LOOKUP) {
            l.geometry.grid[0] = (uint32_t)rows;
        } else if (chain->kind == QN_CHAIN_ADD) {
            l.arguments.activation.m = rows;
            l.geometry = qn_cuda_runs_geometry(&chain->cuda->device, rows, l.arguments.activation.k);
        }
        const qn_cuda_run r = {
            .cuda = chain->cuda, .device = &chain->cuda->device, .functions = &l.function, .stream = stream};
        status = qn_cuda_launch(&r, 0, &l.geometry, pointers, error);
    }
    qn_cuda_pop(chain->cuda);
    return status;
}

const qn_backend_chains qn_cuda_chains = {.create = create, .run = run, .keep = qn_cuda_chain_keep, .destroy = destroy};
