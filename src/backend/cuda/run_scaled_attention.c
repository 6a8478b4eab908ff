/* Host side of scaled_attention, and of what all attention over kept keys and values ends with: the part of a window's
 * recent tokens and the joining of parts (kv.h). Rows are read by kernels/cuda/vq_attention_plain.cu. */
#include "backend/cuda/attention_tiles.h"
#include "backend/cuda/kv.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "ref/slots.h"

enum { MOST_GRID_Y = 65535, MOST_PARTS = 1024, JOIN_THREADS = 128 };
enum { RECENT = 1, SCALED = 2 }; /* ROWS of the kernel */

/* ---- parts ---- */

int64_t qn_cuda_kv_most_parts(int64_t units, int64_t room, int32_t least)
{
    const int64_t most = qn_min_i64(qn_max_i64(room / least, 1), MOST_PARTS);
    return qn_max_i64(qn_min_i64(2 * QN_CUDA_KV_UNITS / qn_max_i64(units, 1), most), 1);
}

/* Parts of the room for `units` independent pieces of work. */
static int32_t parts_of(int64_t units, int64_t room, int32_t blocks, int32_t least)
{
    const int64_t limit = qn_cuda_kv_most_parts(units, room, least);
    int64_t best = 1;
    double cost = 0.0;
    for (int64_t parts = 1; parts <= limit; parts++) {
        /* rounds of blocks, each with its tables, which cost as much as some 600 tokens; a second pass as 500 */
        const double rounds = (double)qn_ceil_div(units * parts, blocks);
        const double c = rounds * ((double)qn_ceil_div(room, parts) + 600.0) + (parts > 1 ? 500.0 : 0.0);
        if (parts == 1 || c < cost) {
            cost = c;
            best = parts;
        }
    }
    return (int32_t)best;
}

void qn_cuda_kv_cut(qn_cuda_vq_attention *a, int64_t units, int32_t blocks, int32_t least)
{
    a->parts = parts_of(units, a->room, blocks, least);
    a->part_tokens = (int32_t)(qn_ceil_div(qn_ceil_div(a->room, a->parts), QN_CUDA_KV_STRIP) * QN_CUDA_KV_STRIP);
    a->parts = (int32_t)qn_max_i64(qn_ceil_div(a->room, qn_max_i64(a->part_tokens, 1)), 1);
    a->all_parts = a->parts + (a->window > 0);
}

size_t qn_cuda_kv_workspace(int64_t m, int64_t heads, int64_t group, int64_t size, int32_t window)
{
    const int64_t rows = m * heads;
    const int64_t parts = rows * (1 + (window > 0)) + 2 * QN_CUDA_KV_UNITS * qn_max_i64(group, 2);
    return rows > 0 ? (size_t)parts * (size_t)(size + 2) * 4 : 0;
}

/* ---- rows ---- */

static int32_t rows_shared(int64_t size)
{
    return (int32_t)(qn_ceil_div(size * 4, 8) * 8 + QN_CUDA_KV_WARPS * 128 + QN_CUDA_KV_WARPS * (size + 2) * 4 + 16);
}

static int32_t out_of(const qn_op_desc *desc)
{
    return desc->op == QN_OP_VQ_ATTENTION ? QN_MM_F32 : qn_cuda_float_format(qn_op_out_format(desc));
}

void qn_cuda_kv_rows_program(const qn_op_desc *desc, int32_t kind, int32_t format, int32_t vector, int32_t aligned,
                             qn_cuda_program *out)
{
    const int64_t size = desc->in[0].dims[2]; /* of q */
    out->source = "vq_attention_plain.cu";
    out->entry = "qn_vq_attention_plain";
    out->shared_bytes = rows_shared(size);
    qn_cuda_define(out, "Q_FORMAT", qn_cuda_float_format(desc->in[0].format));
    qn_cuda_define(out, "B_FORMAT", format);
    qn_cuda_define(out, "WIDE", 0);
    qn_cuda_define(out, "SIZE", size);
    qn_cuda_define(out, "VEC", vector);
    qn_cuda_define(out, "CACHED", 0);
    qn_cuda_define(out, "SWEEP", 0);
    qn_cuda_define(out, "TURN", 0);
    qn_cuda_define(out, "ALIGNED", aligned);
    qn_cuda_define(out, "ROWS", kind);
    qn_cuda_define(out, "OUT", out_of(desc));
    qn_cuda_define(out, "LENS", desc->op == QN_OP_VQ_ATTENTION);
}

qn_cuda_geometry qn_cuda_kv_rows_geometry(const qn_cuda_vq_attention *a, int32_t parts)
{
    return (qn_cuda_geometry){.grid = {(uint32_t)a->heads, (uint32_t)parts, (uint32_t)a->batch},
                              .block = {QN_CUDA_KV_WARPS * 32, 1, 1},
                              .shared_bytes = (uint32_t)rows_shared(a->size),
                              .dependent = 1};
}

/* ---- the window, and joining ---- */

const char *qn_cuda_kv_window_refusal(const qn_op_desc *desc, int32_t recent)
{
    if (desc->attr[QN_ATTR_WINDOW].i > 0 && desc->in[recent].format != desc->in[recent + 1].format) {
        return "recent keys and values have different formats";
    }
    return NULL;
}

static int may_align(const qn_op_desc *desc, int32_t recent)
{
    return desc->in[recent].format == QN_F16 && desc->in[0].dims[2] % 8 == 0;
}

int32_t qn_cuda_kv_program_count(const qn_op_desc *desc, int32_t recent)
{
    return desc->attr[QN_ATTR_WINDOW].i == 0 ? QN_CUDA_KV_RECENT
           : may_align(desc, recent)         ? QN_CUDA_KV_PROGRAMS
                                             : QN_CUDA_KV_RECENT_ALIGNED;
}

int32_t qn_cuda_kv_programs(const qn_op_desc *desc, int32_t recent, qn_cuda_program *out)
{
    out[QN_CUDA_KV_JOIN].source = "vq_attention_join.cu";
    out[QN_CUDA_KV_JOIN].entry = "qn_vq_attention_join";
    qn_cuda_define(&out[QN_CUDA_KV_JOIN], "OUT", out_of(desc));
    qn_cuda_define(&out[QN_CUDA_KV_JOIN], "LENS", desc->op == QN_OP_VQ_ATTENTION);
    const int32_t count = qn_cuda_kv_program_count(desc, recent);
    if (count == QN_CUDA_KV_RECENT) {
        return count;
    }
    const int32_t format = qn_cuda_float_format(desc->in[recent].format);
    qn_cuda_kv_rows_program(desc, RECENT, format, 1, 0, &out[QN_CUDA_KV_RECENT]);
    if (count > QN_CUDA_KV_RECENT_ALIGNED) {
        qn_cuda_kv_rows_program(desc, RECENT, format, 8, 1, &out[QN_CUDA_KV_RECENT_ALIGNED]);
    }
    return count;
}

static qn_cuda_vq_codes recent_rows(const qn_view *view)
{
    const int batched = view->shape.ndim == 4;
    return (qn_cuda_vq_codes){.data = view->data,
                              .batch = batched ? view->strides[0] : 0,
                              .token = view->strides[batched],
                              .head = view->strides[batched + 1]};
}

void qn_cuda_kv_window(qn_cuda_vq_attention *a, const qn_op_desc *desc, const qn_args *args, int32_t recent)
{
    a->window = desc->attr[QN_ATTR_WINDOW].i;
    if (a->window > 0) {
        const qn_shape *rows = &args->in[recent].shape;
        a->k_recent = recent_rows(&args->in[recent]);
        a->v_recent = recent_rows(&args->in[recent + 1]);
        a->recent_rows = (int32_t)rows->dims[rows->ndim == 4];
    }
}

static int aligned_rows(const qn_cuda_vq_codes *c, int64_t unit)
{
    return ((int64_t)(uintptr_t)c->data | c->batch | c->token | c->head) % unit == 0;
}

int32_t qn_cuda_kv_recent_choice(const qn_cuda_vq_attention *a, const qn_op_desc *desc, int32_t recent)
{
    return may_align(desc, recent) && aligned_rows(&a->k_recent, 16) && aligned_rows(&a->v_recent, 16)
               ? QN_CUDA_KV_RECENT_ALIGNED
               : QN_CUDA_KV_RECENT;
}

qn_cuda_geometry qn_cuda_kv_join_geometry(const qn_cuda_vq_attention *a)
{
    return (qn_cuda_geometry){
        .grid = {(uint32_t)a->heads, (uint32_t)a->batch, 1}, .block = {JOIN_THREADS, 1, 1}, .dependent = 1};
}

qn_status qn_cuda_kv_finish(const qn_cuda_run *run, int32_t first, int32_t recent, qn_cuda_vq_attention *a,
                            qn_error *error)
{
    void *const arguments[] = {a};
    if (a->window > 0) {
        const qn_cuda_geometry rows = qn_cuda_kv_rows_geometry(a, 1);
        const int32_t choice = qn_cuda_kv_recent_choice(a, run->call->desc, recent);
        QN_TRY(qn_cuda_launch(run, first + choice, &rows, arguments, error));
    }
    const qn_cuda_geometry g = qn_cuda_kv_join_geometry(a);
    return a->all_parts > 1 ? qn_cuda_launch(run, first + QN_CUDA_KV_JOIN, &g, arguments, error) : QN_OK;
}

/* ---- scaled_attention ---- */

/* Rows at any address, rows of whole words of four codes, then what follows, then tiles. */
enum { ANY = 0, WORDS, FINISH, SCALED_PROGRAMS = FINISH + QN_CUDA_KV_PROGRAMS + QN_CUDA_TILES_PROGRAMS };

static const char *accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    const qn_shape *q = &desc->in[QN_ATT_Q], *k = &desc->in[QN_ATT_K];
    if (k->format != QN_F8_E4M3 || desc->in[QN_ATT_V].format != QN_F8_E4M3) {
        return "keys or values are not F8_E4M3";
    }
    if (q->dims[2] > QN_CUDA_KV_SIZE || q->dims[2] == 0) {
        return "the head size is 0 or above 256";
    }
    if (q->dims[0] > MOST_GRID_Y || q->dims[1] > INT32_MAX || k->dims[0] > INT32_MAX / 4) {
        return "there are too many heads, queries or keys";
    }
    return qn_cuda_kv_window_refusal(desc, QN_ATT_K_RECENT);
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    (void)kernel;
    qn_cuda_kv_rows_program(desc, SCALED, 0, 1, 0, &out[ANY]);
    qn_cuda_kv_rows_program(desc, SCALED, 0, desc->in[QN_ATT_Q].dims[2] % 4 == 0 ? 4 : 1, 0, &out[WORDS]);
    const int32_t count = FINISH + qn_cuda_kv_programs(desc, QN_ATT_K_RECENT, out + FINISH);
    if (qn_cuda_tiles_refusal(desc)) {
        return count;
    }
    qn_cuda_tiles_programs(desc, device, out + count);
    return count + QN_CUDA_TILES_PROGRAMS;
}

static qn_cuda_vq_codes scaled_rows(const qn_view *rows, const qn_view *scales)
{
    return (qn_cuda_vq_codes){.data = rows->data,
                              .scale = scales->data,
                              .token = rows->strides[0],
                              .head = rows->strides[1],
                              .scale_token = scales->strides[0],
                              .scale_head = 4};
}

/* Cut for queries of `batch` sequences. */
static qn_cuda_vq_attention arguments_of(const qn_op_desc *desc, const qn_args *args, const qn_cuda_device *device)
{
    const qn_view *q = &args->in[QN_ATT_Q], *k = &args->in[QN_ATT_K], *v = &args->in[QN_ATT_V];
    const qn_mut_view *o = &args->out[QN_ATT_OUT_O];
    const int64_t *d = q->shape.dims, kv_heads = k->shape.dims[1];
    const float scale = desc->attr[QN_ATTR_SCALE].f;
    const double given = scale == 0.0f ? 1.0 / sqrt((double)d[2]) : (double)scale;
    qn_cuda_vq_attention a = {.q = q->data,
                              .k = scaled_rows(k, &args->in[QN_ATT_K_SCALE]),
                              .v = scaled_rows(v, &args->in[QN_ATT_V_SCALE]),
                              .o = o->data,
                              .q_row = q->strides[0],
                              .q_head = q->strides[1],
                              .o_row = o->strides[0],
                              .o_head = o->strides[1],
                              .batch = (int32_t)d[0],
                              .heads = (int32_t)d[1],
                              .kv_heads = (int32_t)kv_heads,
                              .group = kv_heads > 0 ? (int32_t)(d[1] / kv_heads) : 1,
                              .size = (int32_t)d[2],
                              .room = (int32_t)k->shape.dims[0],
                              .causal = desc->attr[QN_ATTR_CAUSAL].i,
                              .scale = (float)(given * 1.4426950408889634)};
    qn_cuda_kv_window(&a, desc, args, QN_ATT_K_RECENT);
    qn_cuda_kv_cut(&a, d[0] * d[1], 4 * device->sms, QN_CUDA_KV_STRIP * QN_CUDA_KV_WARPS);
    return a;
}

static int32_t choice_of(const qn_cuda_vq_attention *a)
{
    return a->size % 4 == 0 && aligned_rows(&a->k, 4) && aligned_rows(&a->v, 4) ? WORDS : ANY;
}

static size_t workspace(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    (void)threads;
    const int64_t *q = desc->in[QN_ATT_Q].dims;
    const size_t rows = qn_cuda_kv_workspace(m, q[1], 1, q[2], desc->attr[QN_ATTR_WINDOW].i);
    const size_t tiles = qn_cuda_tiles_refusal(desc) ? 0 : qn_cuda_tiles_workspace(desc, m);
    return rows > tiles ? rows : tiles;
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    const qn_op_desc *desc = run->call->desc;
    if (!qn_cuda_tiles_refusal(desc) && qn_cuda_tiles_take(desc, run->call->args, run->call->sizes.m)) {
        return qn_cuda_tiles_launch(run, FINISH + qn_cuda_kv_program_count(desc, QN_ATT_K_RECENT), error);
    }
    qn_cuda_vq_attention a = arguments_of(desc, run->call->args, run->device);
    void *const arguments[] = {&a};
    a.partials = run->call->workspace;
    if (a.batch == 0 || a.heads == 0) {
        return QN_OK;
    }
    const qn_cuda_geometry g = qn_cuda_kv_rows_geometry(&a, a.parts);
    QN_TRY(qn_cuda_launch(run, choice_of(&a), &g, arguments, error));
    return qn_cuda_kv_finish(run, FINISH, QN_ATT_K_RECENT, &a, error);
}

static void describe(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, const qn_sizes *sizes,
                     qn_text *text)
{
    (void)kernel;
    const qn_cuda *cuda = qn_cuda_get(ctx);
    if (cuda) {
        qn_cuda_tiles_describe(desc, &cuda->device, sizes, text);
    }
}

int32_t qn_cuda_scaled_attention_chain(const qn_op_desc *desc, const qn_args *args, const qn_cuda_device *device,
                                       qn_cuda_program out[3], qn_cuda_geometry geometries[3], qn_cuda_vq_attention *a)
{
    qn_cuda_program all[SCALED_PROGRAMS];
    if (accepts(NULL, desc) || args->in[QN_ATT_Q].shape.dims[0] != 1 || desc->attr[QN_ATTR_WINDOW].i == 0) {
        return 0;
    }
    memset(all, 0, sizeof all);
    programs(NULL, desc, device, all);
    *a = arguments_of(desc, args, device);
    out[0] = all[choice_of(a)];
    out[1] = all[FINISH + qn_cuda_kv_recent_choice(a, desc, QN_ATT_K_RECENT)];
    out[2] = all[FINISH + QN_CUDA_KV_JOIN];
    geometries[0] = qn_cuda_kv_rows_geometry(a, a->parts);
    geometries[1] = qn_cuda_kv_rows_geometry(a, 1);
    geometries[2] = qn_cuda_kv_join_geometry(a);
    return 3;
}

static const qn_cuda_impl impl = {.targets = QN_SM_ALL, .programs = programs, .launch = launch};

static const qn_kernel kernels[] = {
    {QN_CUDA_HOOKS, .name = "qn_scaled_attention_fp_q8_fp__sm80_rows", .op = QN_OP_SCALED_ATTENTION,
     .level = "sm_80 and later", .status = QN_CUDA_TESTED, .accepts = accepts, .workspace_bytes = workspace,
     .describe = describe, .impl = &impl},
};

const qn_cuda_family qn_cuda_scaled_attention_family = {kernels, sizeof kernels};
