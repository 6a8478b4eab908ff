/* Host side of vq_encode and vq_attention: caches of keys and values as codes.
 *
 * vq_attention has two rows. Tables: level auto and o4, for the sizes whose tables fit into shared memory; keys that
 * are not turned and codes that the copy engine can take by vq_attention_pairs.cu, others by vq_attention.cu. Plain
 * (vq_attention_plain.cu): everything, and the rungs gc to o3. Both cut tokens into as many parts as it takes to give
 * every multiprocessor work; a window's tokens are one part more (kv.h). */
#include "backend/cuda/kv.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "ref/slots.h"
#include "ref/vq.h"

enum { MOST_GRID_Y = 65535, MOST_VECTOR = 16, MOST_SIZE = QN_CUDA_KV_SIZE, STRIP = QN_CUDA_KV_STRIP };

typedef struct scheme {
    int32_t size, vector, entries, bits, heads, kv_heads, group;
    int long_query; /* in f32: two f16 hold a channel */
} scheme;

static scheme scheme_of(const qn_op_desc *desc)
{
    const qn_shape *q = &desc->in[QN_VQA_Q], *book = &desc->in[QN_VQA_K_CODEBOOK];
    scheme s = {.size = (int32_t)q->dims[2], .heads = (int32_t)q->dims[1], .kv_heads = (int32_t)book->dims[0]};
    s.long_query = q->format == QN_F32;
    s.vector = (int32_t)book->dims[3];
    s.entries = (int32_t)book->dims[2];
    while (1 << s.bits < s.entries) {
        s.bits++;
    }
    s.group = s.kv_heads > 0 ? s.heads / s.kv_heads : 1;
    return s;
}

/* ---- arguments ---- */

static qn_cuda_vq_codes codes_of(const qn_view *view)
{
    return (qn_cuda_vq_codes){
        .data = view->data, .batch = view->strides[0], .token = view->strides[1], .head = view->strides[2]};
}

static qn_cuda_vq_book book_of(const qn_view *view)
{
    const int64_t *s = view->strides;
    const int64_t row = view->shape.dims[3] * (view->shape.format == QN_F32 ? 4 : 2);
    return (qn_cuda_vq_book){.data = view->data,
                             .head = s[0],
                             .group = s[1],
                             .entry = s[2],
                             .wide = s[2] == row &&
                                     ((uint64_t)(uintptr_t)view->data | (uint64_t)s[0] | (uint64_t)s[1]) % 16 == 0};
}

static qn_cuda_vq_attention attention_of(const qn_cuda_run *run)
{
    const qn_op_desc *desc = run->call->desc;
    const qn_view *in = run->call->args->in;
    const qn_mut_view *o = &run->call->args->out[QN_VQA_OUT_O], *lse = &run->call->args->out[QN_VQA_OUT_LSE];
    const scheme s = scheme_of(desc);
    const float scale = desc->attr[QN_ATTR_SCALE].f, theta = desc->attr[QN_ATTR_ROPE_THETA].f;
    const double given = scale == 0.0f ? 1.0 / sqrt((double)s.size) : (double)scale;
    qn_cuda_vq_attention a = {.q = in[QN_VQA_Q].data,
                              .k = codes_of(&in[QN_VQA_K_CODES]),
                              .v = codes_of(&in[QN_VQA_V_CODES]),
                              .k_book = book_of(&in[QN_VQA_K_CODEBOOK]),
                              .v_book = book_of(&in[QN_VQA_V_CODEBOOK]),
                              .lens = in[QN_VQA_SEQ_LENS].data,
                              .o = o->data,
                              .lse = lse->data,
                              .partials = run->call->workspace,
                              .q_row = in[QN_VQA_Q].strides[0],
                              .q_head = in[QN_VQA_Q].strides[1],
                              .o_row = o->strides[0],
                              .o_head = o->strides[1],
                              .lse_row = lse->strides[0],
                              .batch = (int32_t)run->call->sizes.m,
                              .heads = s.heads,
                              .kv_heads = s.kv_heads,
                              .group = s.group,
                              .size = s.size,
                              .vector = s.vector,
                              .entries = s.entries,
                              .room = (int32_t)run->call->sizes.n,
                              .early = qn_cuda_constant_weights(run),
                              .scale = (float)(given * 1.4426950408889634),
                              .log2_theta = theta > 0.0f ? log2((double)theta) : 0.0,
                              .factors = qn_cuda_factors(&in[QN_VQA_ROPE_FACTORS])};
    if (desc->attr[QN_ATTR_PAGE].i > 0) {
        a.pages = in[QN_VQA_PAGES].data;
        a.pages_row = in[QN_VQA_PAGES].strides[0];
        a.page_count = (int32_t)in[QN_VQA_K_CODES].shape.dims[0];
    }
    qn_cuda_kv_window(&a, desc, run->call->args, QN_VQA_K_RECENT);
    return a;
}

/* ---- plain ---- */

enum { PLAIN = 0, PLAIN_ALIGNED, PLAIN_FINISH };
enum { PLAIN_WARPS = QN_CUDA_KV_WARPS, PLAIN_BLOCKS = 8 }; /* blocks of a multiprocessor that registers allow */

static int64_t plain_fixed(const qn_op_desc *desc, const scheme *s)
{
    const int turned = desc->attr[QN_ATTR_ROPE_THETA].f > 0.0f;
    return qn_ceil_div(s->size * 4, 8) * 8 + (turned ? (s->size + 1) / 2 * 8 : 0) + PLAIN_WARPS * 128 +
           PLAIN_WARPS * (s->size + 2) * 4 + 16;
}

/* Entries of each group that a rung holds in shared memory: none, all, or as many as leave occupancy as it is. No entry
 * of a key or value book is frequent enough for registers, so o2 is o1 here. */
static int32_t cached_of(const qn_op_desc *desc, const scheme *s, const qn_cuda_device *device)
{
    const int64_t rank = 2 * (int64_t)s->size * (desc->in[QN_VQA_K_CODEBOOK].format == QN_F32 ? 4 : 2);
    const int64_t fixed = plain_fixed(desc, s), room = device->shared_bytes;
    const int32_t level = desc->attr[QN_ATTR_LEVEL].i;
    if (level == QN_VQ_LEVEL_AUTO || level == QN_VQ_LEVEL_GC) {
        return 0;
    }
    const int32_t slack = level == QN_VQ_LEVEL_O1 || level == QN_VQ_LEVEL_O2;
    const int64_t held = (slack ? room / PLAIN_BLOCKS - 1024 - fixed : room - fixed) / qn_max_i64(rank, 1);
    return (int32_t)qn_max_i64(qn_min_i64(held, s->entries), 0);
}

static int32_t plain_shared(const qn_op_desc *desc, const scheme *s, int32_t cached)
{
    const int64_t element = desc->in[QN_VQA_K_CODEBOOK].format == QN_F32 ? 4 : 2;
    return (int32_t)(plain_fixed(desc, s) + 2 * (int64_t)cached * s->size * element);
}

/* A block does all sequences of its head. */
static int sweeps(const qn_op_desc *desc)
{
    return desc->attr[QN_ATTR_LEVEL].i >= QN_VQ_LEVEL_O3;
}

/* Of both rows: tables leave codes that lie anyhow to the plain kernel. */
static size_t workspace(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    (void)threads;
    const scheme s = scheme_of(desc);
    const int32_t window = desc->attr[QN_ATTR_WINDOW].i;
    const size_t cut = qn_cuda_kv_workspace(m, s.heads, s.group, s.size, window);
    const int64_t parts = qn_cuda_kv_most_parts(s.heads, qn_vq_room(desc), STRIP * PLAIN_WARPS) + (window > 0);
    const size_t swept = sweeps(desc) ? (size_t)(m * s.heads * parts) * (size_t)(s.size + 2) * 4 : 0;
    return cut > swept ? cut : swept;
}

static const char *accepts_plain(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    const scheme s = scheme_of(desc);
    if (qn_cuda_kv_window_refusal(desc, QN_VQA_K_RECENT)) {
        return qn_cuda_kv_window_refusal(desc, QN_VQA_K_RECENT);
    }
    if (s.size < 1 || s.size > MOST_SIZE || s.vector > MOST_VECTOR) {
        return "the head size is 0 or above 256, or vectors have more than 16 channels";
    }
    if (desc->in[QN_VQA_K_CODEBOOK].format != desc->in[QN_VQA_V_CODEBOOK].format) {
        return "the codebooks have different formats";
    }
    return qn_vq_room(desc) > INT32_MAX / 4 || desc->in[QN_VQA_K_CODES].dims[0] > INT32_MAX ||
                   desc->in[QN_VQA_Q].dims[0] > MOST_GRID_Y
               ? "there are too many tokens or sequences"
               : NULL;
}

/* 0: keys are not turned; 1: pairs of halves, 2: of neighbours. */
static int32_t turn_of(const qn_op_desc *desc)
{
    const int neighbours = desc->attr[QN_ATTR_STYLE].i == QN_ROPE_INTERLEAVED;
    return desc->attr[QN_ATTR_ROPE_THETA].f > 0.0f ? 1 + neighbours : 0;
}

/* The plain program of a rung; aligned: entries begin at multiples of their size. */
static void plain_program(const qn_op_desc *desc, const qn_cuda_device *device, int aligned, qn_cuda_program *out)
{
    const scheme s = scheme_of(desc);
    const int32_t cached = cached_of(desc, &s, device);
    out->source = "vq_attention_plain.cu";
    out->entry = "qn_vq_attention_plain";
    out->shared_bytes = plain_shared(desc, &s, cached);
    qn_cuda_define(out, "Q_FORMAT", qn_cuda_float_format(desc->in[QN_VQA_Q].format));
    qn_cuda_define(out, "B_FORMAT", qn_cuda_float_format(desc->in[QN_VQA_K_CODEBOOK].format));
    qn_cuda_define(out, "WIDE", desc->in[QN_VQA_K_CODES].format == QN_U16);
    qn_cuda_define(out, "SIZE", s.size);
    qn_cuda_define(out, "VEC", s.vector);
    qn_cuda_define(out, "CACHED", cached);
    qn_cuda_define(out, "SWEEP", sweeps(desc));
    qn_cuda_define(out, "TURN", turn_of(desc));
    qn_cuda_define(out, "ALIGNED", aligned);
    if (desc->attr[QN_ATTR_PAGE].i > 0) {
        qn_cuda_define(out, "PAGE", desc->attr[QN_ATTR_PAGE].i);
    }
    qn_cuda_define_factors(qn_op_has(desc, QN_VQA_ROPE_FACTORS), out);
}

static int may_align(const qn_op_desc *desc)
{
    const int64_t vector = desc->in[QN_VQA_K_CODEBOOK].dims[3];
    return desc->in[QN_VQA_K_CODEBOOK].format == QN_F16 && vector % 2 == 0 && (vector & (vector - 1)) == 0;
}

static int32_t plain_programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                              qn_cuda_program *out)
{
    (void)kernel;
    plain_program(desc, device, 0, &out[PLAIN]);
    plain_program(desc, device, may_align(desc), &out[PLAIN_ALIGNED]);
    return PLAIN_FINISH + qn_cuda_kv_programs(desc, QN_VQA_K_RECENT, out + PLAIN_FINISH);
}

static int aligned_book(const qn_cuda_vq_book *book, int64_t unit)
{
    return ((int64_t)(uintptr_t)book->data | book->head | book->group | book->entry) % unit == 0;
}

static qn_status run_plain(const qn_cuda_run *run, qn_cuda_vq_attention *a, int32_t program, int32_t finish,
                           qn_error *error)
{
    const qn_op_desc *desc = run->call->desc;
    const scheme s = scheme_of(desc);
    const int sweep = sweeps(desc);
    qn_cuda_kv_cut(a, (int64_t)a->heads * (sweep ? 1 : a->batch), 2 * run->device->sms, STRIP * PLAIN_WARPS);
    void *const arguments[] = {a};
    const qn_cuda_geometry g = {.grid = {(uint32_t)a->heads, (uint32_t)a->parts, sweep ? 1 : (uint32_t)a->batch},
                                .block = {PLAIN_WARPS * 32, 1, 1},
                                .shared_bytes = (uint32_t)plain_shared(desc, &s, cached_of(desc, &s, run->device)),
                                .dependent = 1};
    QN_TRY(qn_cuda_launch(run, program, &g, arguments, error));
    return qn_cuda_kv_finish(run, finish, QN_VQA_K_RECENT, a, error);
}

static qn_status launch_plain(const qn_cuda_run *run, qn_error *error)
{
    qn_cuda_vq_attention a = attention_of(run);
    if (a.batch == 0 || a.heads == 0) {
        return QN_OK;
    }
    const int64_t unit = qn_min_i64(2 * a.vector, 16);
    const int aligned = may_align(run->call->desc) && aligned_book(&a.k_book, unit) && aligned_book(&a.v_book, unit);
    return run_plain(run, &a, aligned ? PLAIN_ALIGNED : PLAIN, PLAIN_FINISH, error);
}

/* ---- tables ---- */

/* ANY: codes or books of any alignment, the plain kernel. PAIRS: what the pairs' kernel takes; TABLES again where it
 * takes nothing. */
enum { TABLES = 0, TABLES_ANY, TABLES_PAIRS, TABLES_FINISH };
enum { MOST_HALVES = 6 }; /* half tables of a block: as in kernels/cuda/vq_attention.cu */

typedef struct shape {
    int32_t kv_heads, queries, warps, halves, code_bytes, shared_bytes;
} shape;

/* How a block shares tables; halves 0: it cannot. Keys that are turned have a table of pairs for all queries, others
 * one of products for each. */
static shape shape_of(const scheme *s, int turned)
{
    shape best = {0};
    const int32_t groups = s->size / s->vector, words = groups > 32 ? 2 : 1;
    const int32_t sharers = groups > 0 && groups < 32 ? 32 / groups : 1;
    const int32_t values = words * (s->vector / 2 / sharers), pairs = 2 * (s->size > 128 ? s->size / 128 : 1);
    if (groups > 64 || groups < (turned ? 8 : 4)) {
        return best;
    }
    for (int32_t queries = 1; queries <= (turned ? 2 : 4); queries *= 2) {
        const int32_t keys = turned ? pairs : words * queries;
        if (s->group % queries == 0 && keys + values <= MOST_HALVES) {
            best.queries = queries;
            best.kv_heads = queries == 1 && s->kv_heads % 2 == 0 && 2 * (keys + values) <= MOST_HALVES ? 2 : 1;
            best.halves = best.kv_heads * (keys + values);
        }
    }
    best.warps = turned || best.queries == 4 || words == 2 ? 8 : 12;
    best.code_bytes = 4 * words;
    best.shared_bytes = (best.halves + 1) / 2 * 256 * s->entries + best.warps * best.queries * 128 +
                        best.kv_heads * best.queries * s->size * 4 + best.warps * (s->size + 2) * 4;
    best.shared_bytes = (best.shared_bytes + 15) / 16 * 16 + (turned ? s->size * 8 : 0);
    return best;
}

/* How a block of the pairs' kernel is cut; queries 0: it cannot. products: keys have a table of products of each team's
 * query, where that is fewer lookups. */
typedef struct pairs {
    int32_t queries, products, teams, warps, slots, shared_bytes;
} pairs;

enum { PAIRS_SLOTS = 8, PAIRS_LEAST_SLOTS = 2, PAIRS_QUERIES = 4, LINE = 128 };

/* least: query heads that a block of the other kernel does, which reads codes no oftener. */
static pairs pairs_of(const scheme *s, int turned, int32_t least, const qn_cuda_device *device)
{
    pairs p = {0};
    const int32_t groups = s->size / s->vector, values = s->size / 64;
    if (turned || groups % 16 != 0 || groups > 64) {
        return p;
    }
    for (int32_t queries = 1; queries <= PAIRS_QUERIES && queries * values <= PAIRS_QUERIES; queries++) {
        p.queries = s->group % queries == 0 ? queries : p.queries;
    }
    p.teams = p.queries == 1 ? 2 : 1;
    p.products = p.queries == 1 && s->vector > 2 && groups <= 32;
    p.warps = p.queries > 1 || values > 2 ? 8 : values == 2 && !p.products && s->long_query ? 12 : 16; /* registers */
    const int32_t keys = p.products ? p.teams : values, tables = (keys + values + 1) / 2 * 256 * s->entries;
    const int32_t fixed =
        tables + p.warps * p.queries * 128 + p.teams * p.queries * s->size * 4 + p.warps * (s->size + 2) * 4;
    const int32_t slot = p.warps * (32 * groups + 8);
    /* keys and values take turns; more slots of short rows keep shared memory from those that look up */
    p.slots = (int32_t)qn_min_i64((device->shared_bytes - fixed) / slot, p.products ? 2 : PAIRS_SLOTS) / 2 * 2;
    p.shared_bytes = fixed + p.slots * slot;
    return p.slots < PAIRS_LEAST_SLOTS || p.queries < least ? (pairs){0} : p;
}

static int turns(const qn_op_desc *desc)
{
    return desc->attr[QN_ATTR_ROPE_THETA].f > 0.0f;
}

static const char *accepts_tables(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    const scheme s = scheme_of(desc);
    const int32_t level = desc->attr[QN_ATTR_LEVEL].i;
    if (qn_cuda_kv_window_refusal(desc, QN_VQA_K_RECENT)) {
        return qn_cuda_kv_window_refusal(desc, QN_VQA_K_RECENT);
    }
    if (desc->attr[QN_ATTR_PAGE].i > 0) {
        return "codes are in pages";
    }
    if (level != QN_VQ_LEVEL_AUTO && level != QN_VQ_LEVEL_O4) {
        return "another rung of the ladder is asked for";
    }
    if (s.size != 64 && s.size != 128 && s.size != 256) {
        return "the head size is none of 64, 128, 256";
    }
    if (s.vector != 2 && s.vector != 4 && s.vector != 8 && s.vector != 16) {
        return "vectors have none of 2, 4, 8, 16 channels";
    }
    if (s.bits < 4 || s.bits > 8) {
        return "codes have fewer than 4 or more than 8 bits";
    }
    if (desc->in[QN_VQA_K_CODEBOOK].format != QN_F16 || desc->in[QN_VQA_V_CODEBOOK].format != QN_F16) {
        return "a codebook is not f16";
    }
    if (desc->in[QN_VQA_K_CODES].dims[1] > INT32_MAX / 4 || desc->in[QN_VQA_Q].dims[0] > MOST_GRID_Y) {
        return "there are too many tokens or sequences";
    }
    return s.heads > 0 && shape_of(&s, turns(desc)).halves > 0 ? NULL
                                                               : "the tables of a head do not fit into shared memory";
}

static int32_t tables_programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                               qn_cuda_program *out)
{
    (void)kernel;
    const scheme s = scheme_of(desc);
    const shape t = shape_of(&s, turns(desc));
    out[TABLES].source = "vq_attention.cu";
    out[TABLES].entry = "qn_vq_attention";
    out[TABLES].shared_bytes = t.shared_bytes;
    qn_cuda_define(&out[TABLES], "Q_FORMAT", qn_cuda_float_format(desc->in[QN_VQA_Q].format));
    qn_cuda_define(&out[TABLES], "SIZE", s.size);
    qn_cuda_define(&out[TABLES], "VEC", s.vector);
    qn_cuda_define(&out[TABLES], "BITS", s.bits);
    qn_cuda_define(&out[TABLES], "TURN", turn_of(desc));
    qn_cuda_define(&out[TABLES], "KV_HEADS", t.kv_heads);
    qn_cuda_define(&out[TABLES], "QUERIES", t.queries);
    qn_cuda_define(&out[TABLES], "WARPS", t.warps);
    qn_cuda_define_factors(qn_op_has(desc, QN_VQA_ROPE_FACTORS), &out[TABLES]);
    plain_program(desc, device, 0, &out[TABLES_ANY]);
    out[TABLES_PAIRS] = out[TABLES];
    const pairs p = pairs_of(&s, turns(desc), t.queries, device);
    if (p.queries > 0) {
        qn_cuda_program *program = &out[TABLES_PAIRS];
        memset(program, 0, sizeof *program);
        program->source = "vq_attention_pairs.cu";
        program->entry = "qn_vq_attention_pairs";
        program->shared_bytes = p.shared_bytes;
        qn_cuda_define(program, "Q_FORMAT", qn_cuda_float_format(desc->in[QN_VQA_Q].format));
        qn_cuda_define(program, "SIZE", s.size);
        qn_cuda_define(program, "VEC", s.vector);
        qn_cuda_define(program, "BITS", s.bits);
        qn_cuda_define(program, "KV_HEADS", 1);
        qn_cuda_define(program, "QUERIES", p.queries);
        qn_cuda_define(program, "PRODUCTS", p.products);
        qn_cuda_define(program, "TEAMS", p.teams);
        qn_cuda_define(program, "WARPS", p.warps);
        qn_cuda_define(program, "SLOTS", p.slots);
    }
    return TABLES_FINISH + qn_cuda_kv_programs(desc, QN_VQA_K_RECENT, out + TABLES_FINISH);
}

static qn_cuda_vq_divisor divisor_of(int64_t by)
{
    qn_cuda_vq_divisor d = {.by = (unsigned)by, .shift = 31};
    while (INT64_C(1) << (d.shift - 31) < by) {
        d.shift++;
    }
    d.multiplier = (unsigned)((UINT64_C(1) << d.shift) / (uint64_t)by + 1);
    return d;
}

/* `units` of work, as many tokens of each as keep `blocks` of a device busy; queries: heads that a unit has. */
static void deal_items(qn_cuda_vq_attention *a, int64_t units, int32_t queries, int32_t blocks, int32_t least,
                       const qn_cuda_device *device)
{
    qn_cuda_kv_cut(a, units, blocks, least);
    a->items = (int32_t)(units * a->parts);
    a->block_items = (int32_t)qn_ceil_div(a->items, device->sms);
    a->of_sequence = divisor_of(a->parts);
    a->of_queries = divisor_of((int64_t)a->parts * a->batch);
    a->of_head = divisor_of((int64_t)a->parts * a->batch * (a->group / queries));
}

/* Rows begin at multiples of `unit`, and not too far apart. */
static int aligned_codes(const qn_cuda_vq_codes *c, int64_t unit)
{
    return c->token <= INT32_MAX && c->token >= 0 &&
           ((int64_t)(uintptr_t)c->data | c->batch | c->token | c->head) % unit == 0;
}

/* Codes that the copy engine can take: rows of heads at multiples of 16 bytes. */
static int boxed_codes(const qn_cuda_vq_codes *c, const qn_cuda_vq_attention *a)
{
    return ((int64_t)(uintptr_t)c->data | c->token | (a->kv_heads > 1 ? c->head : 0) | c->batch) % 16 == 0 &&
           c->token > 0 && c->head > 0 && c->batch >= 0 && c->token < INT64_C(1) << 40 && c->batch < INT64_C(1) << 40;
}

/* Two neighbouring heads of a token are a line of the L2 cache. */
static int paired_heads(const qn_cuda_vq_codes *c, const qn_cuda_vq_attention *a)
{
    return c->head == LINE / 2 && a->size / a->vector == LINE / 2 && a->kv_heads % 2 == 0 &&
           ((int64_t)(uintptr_t)c->data | c->token | c->batch) % LINE == 0;
}

/* Rows that are neighbours in memory are mapped as one, since the copy engine goes row by row. */
static qn_status map_codes(const qn_cuda_run *run, qn_cuda_vq_codes *c, const qn_cuda_vq_attention *a,
                           qn_tensor_map *map, qn_error *error)
{
    const uint64_t groups = (uint64_t)(a->size / a->vector), token = (uint64_t)c->token, room = (uint64_t)a->room;
    const int one = token == groups;
    c->box_x = one ? (int32_t)groups / 8 : 0;
    c->box_row = !one;
    const qn_cuda_tensor tensor = {
        .data = c->data,
        .type = one ? CU_TENSOR_U64 : CU_TENSOR_U8,
        .rank = 4,
        .swizzle = CU_SWIZZLE_NONE,
        /* of longer pieces than blocks read at about the same time parts are read from memory twice */
        .promotion = a->head_blocks ? CU_L2_PROMOTION_128B : CU_L2_PROMOTION_NONE,
        .dims = {one ? room * groups / 8 : groups, (uint64_t)a->kv_heads, one ? 1 : room,
                 c->batch > 0 ? (uint64_t)a->batch : 1},
        .strides = {a->kv_heads > 1 ? (uint64_t)c->head : groups, token, c->batch > 0 ? (uint64_t)c->batch : token},
        .box = {one ? (uint32_t)groups / 8 * STRIP : (uint32_t)groups, 1, one ? 1 : STRIP, 1}};
    return qn_cuda_tensor_map(run->cuda, &tensor, map, error);
}

static qn_status launch_pairs(const qn_cuda_run *run, qn_cuda_vq_attention *a, const pairs *p, qn_error *error)
{
    qn_tensor_map keys, values;
    const int64_t units = (int64_t)a->batch * a->kv_heads * (a->group / p->queries);
    deal_items(a, units, p->queries, run->device->sms * p->teams, STRIP * (p->warps / p->teams), run->device);
    const int32_t of_head = a->items / a->kv_heads;
    const int pairs_of_heads = paired_heads(&a->k, a) && paired_heads(&a->v, a) && of_head % a->block_items == 0;
    a->head_blocks = pairs_of_heads ? of_head / a->block_items : 0;
    QN_TRY(map_codes(run, &a->k, a, &keys, error));
    QN_TRY(map_codes(run, &a->v, a, &values, error));
    void *const arguments[] = {a, &keys, &values};
    qn_cuda_geometry g = {.grid = {(uint32_t)qn_ceil_div(a->items, a->block_items), 1, 1},
                          .block = {(uint32_t)p->warps * 32, 1, 1},
                          .shared_bytes = (uint32_t)p->shared_bytes,
                          .dependent = 1};
    if (pairs_of_heads) {
        g.cluster = g.grid[0] = 2;
        g.grid[1] = (uint32_t)a->head_blocks;
        g.grid[2] = (uint32_t)a->kv_heads / 2;
    }
    QN_TRY(qn_cuda_launch(run, TABLES_PAIRS, &g, arguments, error));
    return qn_cuda_kv_finish(run, TABLES_FINISH, QN_VQA_K_RECENT, a, error);
}

static qn_status launch_tables(const qn_cuda_run *run, qn_error *error)
{
    qn_cuda_vq_attention a = attention_of(run);
    const scheme s = scheme_of(run->call->desc);
    const shape t = shape_of(&s, turns(run->call->desc));
    if (a.batch == 0) {
        return QN_OK;
    }
    const pairs p = pairs_of(&s, turns(run->call->desc), t.queries, run->device);
    if (p.queries > 0 && a.room > 0 && a.k_book.wide && a.v_book.wide && boxed_codes(&a.k, &a) &&
        boxed_codes(&a.v, &a)) {
        return launch_pairs(run, &a, &p, error);
    }
    if (!aligned_codes(&a.k, t.code_bytes) || !aligned_codes(&a.v, t.code_bytes)) {
        return run_plain(run, &a, TABLES_ANY, TABLES_FINISH, error);
    }
    const int64_t units = (int64_t)a.batch * (s.kv_heads / t.kv_heads) * (s.group / t.queries);
    deal_items(&a, units, t.queries, run->device->sms, STRIP * (t.warps / t.kv_heads), run->device);
    void *const arguments[] = {&a};
    const qn_cuda_geometry g = {.grid = {(uint32_t)qn_ceil_div(a.items, a.block_items), 1, 1},
                                .block = {(uint32_t)t.warps * 32, 1, 1},
                                .shared_bytes = (uint32_t)t.shared_bytes,
                                .dependent = 1};
    QN_TRY(qn_cuda_launch(run, TABLES, &g, arguments, error));
    return qn_cuda_kv_finish(run, TABLES_FINISH, QN_VQA_K_RECENT, &a, error);
}

/* ---- vq_encode ---- */

enum { ENCODE_WARPS = 4, HELD_FLOATS = 64 };

static const char *accepts_encode(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    const int64_t *x = desc->in[QN_VQE_X].dims, *book = desc->in[QN_VQE_CODEBOOK].dims;
    if (book[3] > MOST_VECTOR) {
        return "vectors have more than 16 channels";
    }
    return x[0] > INT32_MAX || x[1] > INT32_MAX || x[2] * book[1] > INT32_MAX / 8 ? "there are too many rows or groups"
                                                                                  : NULL;
}

void qn_cuda_encode_program(const qn_op_desc *desc, qn_cuda_program *out)
{
    const qn_shape *book = &desc->in[QN_VQE_CODEBOOK];
    const int64_t held = book->dims[2] / 32;
    out->source = "vq_encode.cu";
    out->entry = "qn_vq_encode";
    qn_cuda_define(out, "X_FORMAT", qn_cuda_float_format(desc->in[QN_VQE_X].format));
    qn_cuda_define(out, "B_FORMAT", qn_cuda_float_format(book->format));
    qn_cuda_define(out, "VEC", book->dims[3]);
    qn_cuda_define(out, "HELD", held * book->dims[3] <= HELD_FLOATS ? held : 0);
    qn_cuda_define(out, "WIDE", book->dims[2] > 256);
}

qn_cuda_vq_encode qn_cuda_encode_arguments(const qn_args *args)
{
    const qn_view *x = &args->in[QN_VQE_X], *book = &args->in[QN_VQE_CODEBOOK];
    const qn_mut_view *codes = &args->out[QN_VQE_OUT_CODES];
    return (qn_cuda_vq_encode){.x = x->data,
                               .book = book_of(book),
                               .codes = codes->data,
                               .x_batch = x->strides[0],
                               .x_token = x->strides[1],
                               .x_head = x->strides[2],
                               .codes_batch = codes->strides[0],
                               .codes_token = codes->strides[1],
                               .codes_head = codes->strides[2],
                               .batch = (int32_t)x->shape.dims[0],
                               .tokens = (int32_t)x->shape.dims[1],
                               .heads = (int32_t)x->shape.dims[2],
                               .groups = (int32_t)book->shape.dims[1],
                               .entries = (int32_t)book->shape.dims[2],
                               .vector = (int32_t)book->shape.dims[3]};
}

qn_cuda_geometry qn_cuda_encode_geometry(const qn_cuda_vq_encode *a, const qn_cuda_device *device)
{
    /* enough strips of rows to fill the device some times over; a strip reads its books once */
    const int64_t rows = (int64_t)a->batch * a->tokens, tasks = (int64_t)a->heads * a->groups;
    const int64_t blocks = qn_ceil_div(tasks, ENCODE_WARPS);
    const int64_t strips =
        qn_min_i64(rows, qn_max_i64(qn_ceil_div((int64_t)device->sms * 16, qn_max_i64(blocks, 1)), 1));
    return (qn_cuda_geometry){.grid = {(uint32_t)blocks, (uint32_t)qn_min_i64(strips, MOST_GRID_Y), 1},
                              .block = {ENCODE_WARPS * 32, 1, 1},
                              .dependent = 1};
}

static int32_t encode_programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                               qn_cuda_program *out)
{
    (void)kernel;
    (void)device;
    qn_cuda_encode_program(desc, out);
    return 1;
}

static qn_status launch_encode(const qn_cuda_run *run, qn_error *error)
{
    qn_cuda_vq_encode a = qn_cuda_encode_arguments(run->call->args);
    void *const arguments[] = {&a};
    const qn_cuda_geometry g = qn_cuda_encode_geometry(&a, run->device);
    return g.grid[0] > 0 && g.grid[1] > 0 ? qn_cuda_launch(run, 0, &g, arguments, error) : QN_OK;
}

static const qn_cuda_impl tables = {
    .targets = QN_SM_BIT(QN_SM_90A), .programs = tables_programs, .launch = launch_tables};
static const qn_cuda_impl plain = {.targets = QN_SM_ALL, .programs = plain_programs, .launch = launch_plain};
static const qn_cuda_impl encode = {.targets = QN_SM_ALL, .programs = encode_programs, .launch = launch_encode};

static const qn_kernel kernels[] = {
    {QN_CUDA_HOOKS, .name = "qn_vq_attention_fp_cq_f32__sm90a_tables", .op = QN_OP_VQ_ATTENTION, .level = "sm_90a",
     .status = "tested", .accepts = accepts_tables, .workspace_bytes = workspace, .impl = &tables},
    {QN_CUDA_HOOKS, .name = "qn_vq_attention_fp_cq_f32__sm80_plain", .op = QN_OP_VQ_ATTENTION,
     .level = "sm_80 and later", .status = QN_CUDA_TESTED, .accepts = accepts_plain, .workspace_bytes = workspace,
     .impl = &plain},
    {QN_CUDA_HOOKS, .name = "qn_vq_encode_fp_fp_codes__sm80_rows", .op = QN_OP_VQ_ENCODE, .level = "sm_80 and later",
     .status = QN_CUDA_TESTED, .accepts = accepts_encode, .impl = &encode},
};

const qn_cuda_family qn_cuda_vq_kv_family = {kernels, sizeof kernels};
