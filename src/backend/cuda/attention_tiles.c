#include "backend/cuda/attention_tiles.h"

#include <math.h>
#include <string.h>

#include "backend/cuda/mm.h"
#include "base/checked.h"
#include "kernels/common/cuda_activation.h"
#include "ref/slots.h"

enum { MOST_SIZE = 128, LEAST_QUERIES = 2, PLANE_ROWS = 8, JOIN_ROWS = 4 };
/* Parts of a row, rows of parts there is room for; rows that planes hold at a time: more keys are more launches. */
enum { MOST_PARTS = 32, PART_ROWS = 264 * 64, HELD_ROWS = 1 << 14 };

/* How kernels/cuda/attention_tiles.cu is cut. */
typedef struct form {
    int32_t q, k, v, recent, size; /* formats; of a window's rows, -1: there is none */
    int32_t wgmma, warps, keys;
    int32_t blocks; /* of a multiprocessor, at least */
} form;

static int32_t planes_of(int32_t format)
{
    return format == QN_MM_F32 ? 2 : 1;
}

static int32_t kv_format(qn_format format)
{
    return format == QN_F8_E4M3 ? QN_MM_E4M3 : qn_cuda_float_format(format);
}

static int32_t rows_of_block(const form *f)
{
    return 16 * f->warps;
}

/* Bytes that a row of a plane takes. */
static int32_t pitch_of(const form *f)
{
    return f->wgmma ? (f->size + 63) / 64 * 128 : 2 * f->size + 16;
}

static int32_t shared_of(const form *f)
{
    const int32_t rows = rows_of_block(f);
    const int32_t operands = rows * planes_of(f->q) + 2 * f->keys * (planes_of(f->k) + planes_of(f->v));
    return operands * pitch_of(f) + 16 * f->keys + 20 * rows;
}

static int32_t window_of(const qn_op_desc *desc)
{
    return desc->op == QN_OP_SCALED_ATTENTION ? desc->attr[QN_ATTR_WINDOW].i : 0;
}

/* The first cut whose shared memory there is. Four warps, in more blocks, which do not wait for each other, take heads
 * of up to 64; with wgmma keys and values of one plane, in smaller heads if they have no factors. */
static form form_of(const qn_op_desc *desc, const qn_cuda_device *device)
{
    static const int32_t cuts[][2] = {{8, 64}, {8, 32}, {4, 32}, {4, 16}}; /* warps, keys */
    form f = {.q = qn_cuda_float_format(desc->in[QN_ATT_Q].format),
              .k = kv_format(desc->in[QN_ATT_K].format),
              .v = kv_format(desc->in[QN_ATT_V].format),
              .recent = window_of(desc) > 0 ? qn_cuda_float_format(desc->in[QN_ATT_K_RECENT].format) : -1,
              .size = (int32_t)desc->in[QN_ATT_Q].dims[2],
              .wgmma = device->target == QN_SM_90A};
    const int plain = f.k == QN_MM_F16 && f.v == QN_MM_F16, planes = planes_of(f.k) + planes_of(f.v);
    const int four = f.wgmma ? planes == 2 && (plain || f.size > 64) : f.size <= 64;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        f.warps = four ? 4 : cuts[i][0];
        f.keys = cuts[i][1];
        if (shared_of(&f) <= device->shared_bytes) {
            break;
        }
    }
    f.blocks = f.wgmma && four ? 2 : 1;
    return f;
}

/* Whether keys and values are read where they are. */
static int in_place(const qn_op_desc *desc)
{
    return desc->in[QN_ATT_K].format == QN_F16 && desc->in[QN_ATT_V].format == QN_F16;
}

const char *qn_cuda_tiles_refusal(const qn_op_desc *desc)
{
    const qn_shape *q = &desc->in[QN_ATT_Q];
    if (q->dims[2] % 16 != 0 || q->dims[2] > MOST_SIZE || q->dims[2] == 0) {
        return "the head size is no multiple of 16 up to 128";
    }
    if (window_of(desc) > 0 && desc->in[QN_ATT_K_RECENT].format == QN_F32) {
        return "recent keys are F32";
    }
    return q->dims[0] * qn_max_i64(q->dims[1], 1) > INT32_MAX / 2 ? "there are too many queries" : NULL;
}

/* NULL, or why a run of so many is not worth tiles: floats would become planes for little (docs/experiments). */
static const char *too_few(const qn_op_desc *desc, int64_t queries, int64_t keys)
{
    const qn_shape *k = &desc->in[QN_ATT_K];
    if (queries < LEAST_QUERIES) {
        return "there is one query";
    }
    return k->format == QN_F32 && k->dims[2] <= 64 && queries <= 16 && keys <= 256 ? "there are few queries and keys"
                                                                                   : NULL;
}

int qn_cuda_tiles_take(const qn_op_desc *desc, const qn_args *args, int64_t queries)
{
    const qn_view *k = &args->in[QN_ATT_K], *v = &args->in[QN_ATT_V];
    const int64_t place = (int64_t)(uintptr_t)k->data | k->strides[0] | k->strides[1] | (int64_t)(uintptr_t)v->data |
                          v->strides[0] | v->strides[1];
    return !too_few(desc, queries, k->shape.dims[0]) && (!in_place(desc) || place % 16 == 0);
}

void qn_cuda_tiles_programs(const qn_op_desc *desc, const qn_cuda_device *device, qn_cuda_program *out)
{
    const form f = form_of(desc, device);
    qn_cuda_program *const planes = &out[QN_CUDA_TILES_PLANES], *const tiles = &out[QN_CUDA_TILES_MAIN],
                           *const join = &out[QN_CUDA_TILES_JOIN];
    planes->source = "attention_planes.cu";
    planes->entry = "qn_attention_planes";
    tiles->source = "attention_tiles.cu";
    tiles->entry = "qn_attention_tiles";
    tiles->shared_bytes = shared_of(&f);
    tiles->most_shared = 1;
    join->source = "attention_join.cu";
    join->entry = "qn_attention_join";
    for (int32_t i = 0; i < QN_CUDA_TILES_PROGRAMS; i++) {
        qn_cuda_define(&out[i], "SIZE", f.size);
        qn_cuda_define(&out[i], "WINDOW", f.recent >= 0);
    }
    for (int32_t i = QN_CUDA_TILES_PLANES; i <= QN_CUDA_TILES_MAIN; i++) {
        qn_cuda_define(&out[i], "K_FORMAT", f.k);
        qn_cuda_define(&out[i], "V_FORMAT", f.v);
    }
    for (int32_t i = QN_CUDA_TILES_MAIN; i <= QN_CUDA_TILES_JOIN; i++) {
        qn_cuda_define(&out[i], "OUT", qn_cuda_float_format(qn_op_out_format(desc)));
    }
    qn_cuda_define(planes, "RECENT_FORMAT", f.recent >= 0 ? f.recent : QN_MM_F16);
    qn_cuda_define(tiles, "Q_FORMAT", f.q);
    qn_cuda_define(tiles, "WGMMA", f.wgmma);
    qn_cuda_define(tiles, "WARPS", f.warps);
    qn_cuda_define(tiles, "KEYS", f.keys);
    qn_cuda_define(tiles, "BLOCKS", f.blocks);
    qn_cuda_define(tiles, "Q_PLANE_STEP", rows_of_block(&f) * pitch_of(&f) / 16);
    qn_cuda_define(tiles, "TILE_PLANE_STEP", f.keys * pitch_of(&f) / 16);
}

/* ---- room ---- */

/* Where a run's rows of the planes come from: keys, or with a window those that are read as codes and behind them the
 * recent ones from `recent` on. */
typedef struct sources {
    int64_t rows, coded, recent;
} sources;

static sources sources_of(const qn_op_desc *desc, int64_t queries, int64_t keys)
{
    const int64_t window = window_of(desc), least = desc->attr[QN_ATTR_CAUSAL].i ? keys - queries + 1 : keys;
    if (window == 0) {
        return (sources){keys, keys, keys};
    }
    const sources s = {.coded = qn_window_first(keys, window), .recent = qn_window_first(least, window)};
    return (sources){s.coded + keys - s.recent, s.coded, s.recent};
}

/* Rows of the planes of at most m queries. */
static int64_t most_rows(const qn_op_desc *desc, int64_t m)
{
    return desc->in[QN_ATT_K].dims[0] + (window_of(desc) > 0 ? m + QN_WINDOW_BLOCK : 0);
}

static int64_t passes_of(int64_t rows)
{
    return qn_max_i64(qn_ceil_div(rows, HELD_ROWS), 1);
}

/* Bytes of one operand's planes, of its factors. */
static size_t planes_bytes(const qn_shape *x, int64_t rows)
{
    return (size_t)(rows * x->dims[1] * x->dims[2]) * 2 * (size_t)planes_of(kv_format(x->format));
}

static size_t factors_bytes(const qn_shape *x, int64_t rows)
{
    return (size_t)qn_ceil_div(rows * x->dims[1], 16) * 64;
}

static size_t spread_bytes(const qn_op_desc *desc, int64_t rows)
{
    const qn_shape *k = &desc->in[QN_ATT_K], *v = &desc->in[QN_ATT_V];
    return in_place(desc) ? 0 : planes_bytes(k, rows) + planes_bytes(v, rows) + 2 * factors_bytes(k, rows);
}

size_t qn_cuda_tiles_workspace(const qn_op_desc *desc, int64_t m)
{
    const qn_shape *q = &desc->in[QN_ATT_Q];
    if (m < LEAST_QUERIES) {
        return 0;
    }
    const int64_t rows = m * q->dims[1], all = most_rows(desc, m), passes = in_place(desc) ? 1 : passes_of(all);
    const int64_t parts = qn_max_i64(qn_min_i64(rows * MOST_PARTS, PART_ROWS), passes > 1 ? rows * passes : 0);
    return spread_bytes(desc, qn_min_i64(all, HELD_ROWS)) + (size_t)parts * (size_t)QN_CUDA_PARTIAL(q->dims[2]) * 4;
}

/* ---- parts ---- */

typedef struct cut {
    int32_t blocks, parts, part_keys; /* blocks of all rows of a key head */
    int32_t at_once;                  /* parts of a launch */
} cut;

static cut cut_of(const form *f, const qn_cuda_device *device, int64_t rows, int64_t kv_heads, int64_t keys, int place)
{
    const int64_t passes = place ? 1 : passes_of(keys), held = passes > 1 ? HELD_ROWS : keys;
    const int64_t tiles = qn_max_i64(qn_ceil_div(held, f->keys), 1), blocks = qn_ceil_div(rows, rows_of_block(f));
    const int64_t room = qn_min_i64(PART_ROWS / qn_max_i64(rows * kv_heads, 1), MOST_PARTS) / passes;
    const int fit = f->wgmma ? f->blocks == 2 : shared_of(f) * 2 + 2048 <= device->shared_bytes;
    const int64_t slots = (int64_t)device->sms * (fit ? 2 : 1);
    int64_t best = 0, per = tiles;
    for (int64_t parts = 1; parts <= qn_max_i64(qn_min_i64(room, tiles / 2), 1); parts++) {
        /* a block costs as much as some two tiles beside its own; another launch as some four */
        const int64_t each = qn_ceil_div(tiles, parts);
        const int64_t cost =
            qn_ceil_div(blocks * kv_heads * qn_ceil_div(tiles, each), slots) * (each + 2) + (parts > 1 ? 4 : 0);
        if (parts == 1 || cost < best) {
            best = cost;
            per = each;
        }
    }
    const int64_t part_keys = per * f->keys, parts = qn_max_i64(qn_ceil_div(keys, part_keys), 1);
    return (cut){.blocks = (int32_t)blocks,
                 .parts = (int32_t)parts,
                 .part_keys = (int32_t)part_keys,
                 .at_once = (int32_t)(passes > 1 ? qn_max_i64(HELD_ROWS / part_keys, 1) : parts)};
}

/* ---- launches ---- */

/* Keys from `from` to before `to`. */
static qn_cuda_attention_rows rows_of(const qn_view *x, const qn_view *scale, const sources *s, int64_t from,
                                      int64_t to, char *planes, float *factors)
{
    const int64_t plane = (to - from) * x->shape.dims[2] * 2;
    return (qn_cuda_attention_rows){.x = x->data,
                                    .scale = scale->data,
                                    .row = x->strides[0],
                                    .head = x->strides[1],
                                    .scale_row = scale->strides[0],
                                    .planes = planes,
                                    .planes_head = plane * planes_of(kv_format(x->shape.format)),
                                    .plane = plane,
                                    .factors = factors,
                                    .factors_head = to - from,
                                    .first = (int32_t)from,
                                    .count = (int32_t)qn_max_i64(qn_min_i64(to, s->coded) - from, 0)};
}

/* Recent rows behind the coded ones. */
static qn_cuda_attention_rows recent_of(const qn_view *x, const sources *s, int64_t from, int64_t to,
                                        const qn_cuda_attention_rows *coded)
{
    const int64_t ring = x->shape.dims[0], behind = qn_max_i64(from - s->coded, 0);
    qn_cuda_attention_rows r = *coded;
    r.x = x->data;
    r.row = x->strides[0];
    r.head = x->strides[1];
    r.planes += coded->count * x->shape.dims[2] * 2;
    r.factors += coded->count;
    r.count = (int32_t)(to - from - coded->count);
    r.ring = (int32_t)ring;
    r.first = (int32_t)((s->recent + behind) % ring);
    return r;
}

/* Rows of the planes in the workspace. */
static qn_status spread(const qn_cuda_run *run, int32_t program, const sources *s, int64_t from, int64_t to,
                        qn_cuda_attention_tiles *a, qn_error *error)
{
    const qn_view *in = run->call->args->in, *k = &in[QN_ATT_K], *v = &in[QN_ATT_V];
    char *const k_planes = run->call->workspace, *const v_planes = k_planes + planes_bytes(&k->shape, to - from);
    char *const k_factors = v_planes + planes_bytes(&v->shape, to - from);
    char *const v_factors = k_factors + factors_bytes(&k->shape, to - from);
    qn_cuda_attention_planes p = {.k = rows_of(k, &in[QN_ATT_K_SCALE], s, from, to, k_planes, (float *)k_factors),
                                  .v = rows_of(v, &in[QN_ATT_V_SCALE], s, from, to, v_planes, (float *)v_factors)};
    const int window = a->window > 0;
    if (window) {
        p.k_recent = recent_of(&in[QN_ATT_K_RECENT], s, from, to, &p.k);
        p.v_recent = recent_of(&in[QN_ATT_V_RECENT], s, from, to, &p.v);
    }
    void *const arguments[] = {&p};
    a->k = p.k.planes;
    a->v = p.v.planes;
    a->k_row = a->v_row = k->shape.dims[2] * 2;
    a->k_head = p.k.planes_head;
    a->v_head = p.v.planes_head;
    a->k_plane = p.k.plane;
    a->v_plane = p.v.plane;
    a->k_factors = p.k.factors;
    a->v_factors = p.v.factors;
    a->factors_head = p.k.factors_head;
    a->plane_first = (int32_t)from;
    a->plane_rows = (int32_t)(to - from);
    const int64_t most = qn_max_i64(p.k.count, p.k_recent.count);
    const qn_cuda_geometry g = {
        .grid = {(uint32_t)qn_ceil_div(most, PLANE_ROWS), (uint32_t)k->shape.dims[1], window ? 4 : 2},
        .block = {PLANE_ROWS * 32, 1, 1},
        .dependent = 1};
    return most > 0 ? qn_cuda_launch(run, program, &g, arguments, error) : QN_OK;
}

/* by_group is 2^(31 + shift) / group rounded up, 2^shift the first power of two not below the group: what rounding adds
 * to r / group, of r below 2^31, is less than 1 / group. */
static void divide_by_group(qn_cuda_attention_tiles *a)
{
    a->group_shift = 0;
    while ((int64_t)1 << a->group_shift < a->group) {
        a->group_shift++;
    }
    a->by_group = (unsigned)qn_ceil_div((int64_t)1 << (31 + a->group_shift), a->group);
}

qn_status qn_cuda_tiles_launch(const qn_cuda_run *run, int32_t first, qn_error *error)
{
    const qn_op_desc *desc = run->call->desc;
    const qn_view *q = &run->call->args->in[QN_ATT_Q], *k = &run->call->args->in[QN_ATT_K];
    const qn_view *v = &run->call->args->in[QN_ATT_V];
    const qn_mut_view *o = &run->call->args->out[QN_ATT_OUT_O];
    const int64_t queries = q->shape.dims[0], heads = q->shape.dims[1], kv_heads = k->shape.dims[1];
    const float scale = desc->attr[QN_ATTR_SCALE].f;
    if (heads == 0 || queries == 0) {
        return QN_OK;
    }
    const form f = form_of(desc, run->device);
    const sources s = sources_of(desc, queries, k->shape.dims[0]);
    const cut c = cut_of(&f, run->device, queries * (heads / kv_heads), kv_heads, s.rows, in_place(desc));
    qn_cuda_attention_tiles a = {
        .q = q->data,
        .o = o->data,
        .q_row = q->strides[0],
        .q_head = q->strides[1],
        .o_row = o->strides[0],
        .o_head = o->strides[1],
        .k = k->data,
        .v = v->data,
        .k_row = k->strides[0],
        .k_head = k->strides[1],
        .v_row = v->strides[0],
        .v_head = v->strides[1],
        .partials = (float *)((char *)run->call->workspace + spread_bytes(desc, qn_min_i64(s.rows, HELD_ROWS))),
        .queries = (int32_t)queries,
        .keys = (int32_t)k->shape.dims[0],
        .group = (int32_t)(heads / kv_heads),
        .causal = desc->attr[QN_ATTR_CAUSAL].i,
        .parts = c.parts,
        .part_keys = c.part_keys,
        .plane_rows = (int32_t)s.rows,
        .window = window_of(desc),
        .coded = (int32_t)s.coded,
        .recent_first = (int32_t)s.recent,
        .scale = scale == 0.0f ? (float)(1.0 / sqrt((double)f.size)) : scale};
    divide_by_group(&a);
    void *const arguments[] = {&a};
    for (int32_t part = 0; part < c.parts; part += c.at_once) {
        const int32_t parts = c.at_once < c.parts - part ? c.at_once : c.parts - part;
        const int64_t from = (int64_t)part * c.part_keys, to = qn_min_i64(from + (int64_t)parts * c.part_keys, s.rows);
        if (!in_place(desc)) {
            QN_TRY(spread(run, first + QN_CUDA_TILES_PLANES, &s, from, to, &a, error));
        }
        a.first_part = part;
        const qn_cuda_geometry g = {.grid = {(uint32_t)c.blocks, (uint32_t)kv_heads, (uint32_t)parts},
                                    .block = {(uint32_t)(32 * f.warps), 1, 1},
                                    .shared_bytes = (uint32_t)shared_of(&f),
                                    .dependent = 1};
        QN_TRY(qn_cuda_launch(run, first + QN_CUDA_TILES_MAIN, &g, arguments, error));
    }
    const qn_cuda_geometry join = {.grid = {(uint32_t)qn_ceil_div(queries * a.group, JOIN_ROWS), (uint32_t)kv_heads, 1},
                                   .block = {JOIN_ROWS * 32, 1, 1},
                                   .dependent = 1};
    return c.parts > 1 ? qn_cuda_launch(run, first + QN_CUDA_TILES_JOIN, &join, arguments, error) : QN_OK;
}

void qn_cuda_tiles_describe(const qn_op_desc *desc, const qn_cuda_device *device, const qn_sizes *sizes, qn_text *text)
{
    const char *const refusal = qn_cuda_tiles_refusal(desc);
    const char *const why = refusal ? refusal : too_few(desc, sizes->m, sizes->n);
    if (why) {
        qn_text_add(text, "f32 arithmetic: %s\n", why);
        return;
    }
    const form f = form_of(desc, device);
    const int64_t group = sizes->g > 0 ? sizes->e / sizes->g : 1;
    const cut c =
        cut_of(&f, device, sizes->m * group, sizes->g, sources_of(desc, sizes->m, sizes->n).rows, in_place(desc));
    const int32_t scores = 1 + (planes_of(f.q) > 1) + (planes_of(f.k) > 1), values = 2 + (planes_of(f.v) > 1);
    qn_text_add(
        text,
        "tensor cores: blocks of %d rows and tiles of %d keys, %d products of f16 a score and %d a value, keys %s, "
        "in %d part%s\n",
        rows_of_block(&f), f.keys, scores, values,
        in_place(desc) ? "read in place" : "as planes of f16 in the workspace", c.parts, c.parts > 1 ? "s" : "");
}
