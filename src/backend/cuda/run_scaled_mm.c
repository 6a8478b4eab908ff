/* Host side of scaled_mm on Hopper: FP8 and INT8, every scale, bias and zero point. A plan has tiles, strips for up to
 * 64 rows and for up to 256 (wide.h), and the portable kernel for operands that the bulk copies cannot take; the run
 * picks by M and alignment, between tiles and strips by their estimates.
 * What the kernels expect is the host contract at the top of scaled_mm.cu, scaled_mm_few.cu and scaled_mm_wide.cu. */
#include <string.h>

#include "backend/cuda/mm.h"
#include "backend/cuda/tiles.h"
#include "backend/cuda/wide.h"
#include "base/checked.h"
#include "ref/slots.h"

/* Weights and epilogues: fits of ten N and K with 300, 1024 and 4096 rows on an H200, corrected by what cards slow down
 * to while tiles are timed in turn; those of tiles that lanes store by analogy. */
static const qn_tile int8_tiles[] = {{128, 256, 4, 1, 1, 1, 1, 1.00, 3.3, 0, 0, 0},
                                     {128, 192, 4, 1, 1, 1, 1, 0.97, 3.3, 0, 0, 0},
                                     {128, 128, 6, 1, 1, 1, 1, 0.93, 3.2, 0, 0, 0},
                                     {128, 128, 6, 1, 1, 0, 1, 0.88, 3.5, 0, 0, 0},
                                     {128, 64, 8, 1, 1, 0, 1, 0.70, 3.0, 0, 0, 0}};
static const qn_tile fp8_tiles[] = {{256, 128, 4, 2, 1, 1, 1, 1.00, 3.5, 0, 0, 0},
                                    {128, 192, 4, 1, 1, 1, 1, 1.03, 3.0, 0, 0, 0},
                                    {128, 128, 6, 1, 1, 1, 1, 0.96, 3.2, 0, 0, 0},
                                    {128, 128, 6, 1, 1, 0, 1, 0.90, 3.5, 0, 0, 0},
                                    {128, 64, 8, 1, 1, 0, 1, 0.72, 3.0, 0, 0, 0}};

/* Programs of a plan: the portable one, tiles, a strip for each of several numbers of rows, strips for many. */
enum { PORTABLE = 0, FIRST_TILE = 1, TILES = sizeof int8_tiles / sizeof *int8_tiles, FEW = FIRST_TILE + TILES };
static const int32_t heights[] = {8, 16, 32, 64};
enum { HEIGHTS = sizeof heights / sizeof *heights, WIDE = FEW + HEIGHTS, PROGRAMS = WIDE + QN_WIDE_BYTE_PROGRAMS };
enum { MOST_STAGES = 16 };

static int is_int8(const qn_op_desc *desc)
{
    return desc->in[QN_SMM_A].format == QN_I8;
}

static qn_wide_form wide_form(const qn_op_desc *desc, const qn_cuda_device *device)
{
    return (qn_wide_form){.kind = is_int8(desc) ? QN_WIDE_I8 : QN_WIDE_E4M3,
                          .sms = device->sms,
                          .n = desc->in[QN_SMM_B].dims[0],
                          .k = desc->in[QN_SMM_B].dims[1]};
}

static int32_t bias_of(const qn_op_desc *desc)
{
    switch (desc->in[QN_SMM_BIAS].format) {
    case QN_F32: return 1;
    case QN_F16: return 2;
    case QN_BF16: return 3;
    default: return 0;
    }
}

static int32_t azp_of(const qn_op_desc *desc)
{
    const int azp = desc->in[QN_SMM_AZP].format != QN_FORMAT_NONE;
    return azp ? 2 : desc->in[QN_SMM_AZP_ADJ].format != QN_FORMAT_NONE;
}

/* Columns that leave together: large tiles go in halves. */
static int32_t room_of(const qn_tile *t)
{
    return t->store && t->bm * t->bn > 128 * 192 ? t->bn / 2 : t->bn;
}

static int32_t shared_of(const qn_tile *t, const qn_op_desc *desc)
{
    const int32_t vectors = 1 + (bias_of(desc) != 0) + (azp_of(desc) != 0);
    return t->store * t->bm * room_of(t) * 2 + t->stages * (128 * (t->bm + t->bn) + 16) + 4 * t->bn * vectors + 16;
}

enum { MOST_BY_LANES = 192 }; /* columns of a tile that lanes store: they have no registers for more */

/* With as many stages as fit. */
static qn_tile tile_of(int32_t i, const qn_op_desc *desc)
{
    qn_tile t = is_int8(desc) ? int8_tiles[i] : fp8_tiles[i];
    if (!qn_tile_may_store(desc->attr[QN_ATTR_OUT].i, desc->in[QN_SMM_B].dims[0])) {
        t.store = 0;
        t.stages++; /* in the room of a tile on its way out */
        t.bn = t.bn < MOST_BY_LANES ? t.bn : MOST_BY_LANES;
    }
    while (shared_of(&t, desc) > QN_TILE_SHARED) {
        t.stages--;
    }
    return t;
}

/* ---- few rows ---- */

/* A strip of scaled_mm_few.cu. */
typedef struct strip {
    int32_t rows, groups, split, unroll, stages, occupancy;
} strip;

static int32_t strip_shared(const strip *s)
{
    return s->stages * (s->unroll * 128 * (64 * s->groups + s->rows) + 16) + 8 + 8 * s->rows + 12 * 64 * s->groups;
}

/* As many stages as fit; 1: they are enough. */
static int strip_fit(strip *s)
{
    s->stages = MOST_STAGES;
    while (s->stages > 1 && strip_shared(s) > QN_TILE_SHARED / s->occupancy - 512) {
        s->stages--;
    }
    return s->stages > 1 &&
           4 * s->rows * (64 * s->groups + 4) <= s->stages * s->unroll * 128 * (64 * s->groups + s->rows);
}

static strip strip_of(int32_t rows, const qn_op_desc *desc, const qn_cuda_device *device)
{
    const qn_shape *b = &desc->in[QN_SMM_B];
    strip s = {.rows = rows, .groups = 2, .split = 1, .unroll = rows > 32 ? 1 : 2};
    qn_strip_deal(b->dims[0], b->dims[1], device->sms, rows > 32, &s.groups, &s.split);
    s.occupancy = s.groups > 2 ? 1 : 2;
    if (!strip_fit(&s)) {
        s.occupancy = 1;
        strip_fit(&s);
    }
    return s;
}

static const char *accepts_either(const qn_op_desc *desc, qn_format format, const char *refusal)
{
    const qn_shape *b = &desc->in[QN_SMM_B];
    if (desc->in[QN_SMM_A].format != format) {
        return refusal;
    }
    return b->dims[0] > INT32_MAX || b->dims[1] > INT32_MAX ? "N or K is 2^31 or more" : NULL;
}

static const char *accepts_int8(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    return accepts_either(desc, QN_I8, "operands are not i8");
}

static const char *accepts_fp8(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    return accepts_either(desc, QN_F8_E4M3, "operands are not e4m3");
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    (void)kernel;
    qn_cuda_mm_any_program(desc, &out[PORTABLE]);
    for (int32_t i = FIRST_TILE; i < PROGRAMS; i++) {
        qn_cuda_program *p = &out[i];
        qn_cuda_define(p, "INT8", is_int8(desc));
        qn_cuda_define(p, "OUT", desc->attr[QN_ATTR_OUT].i);
        qn_cuda_define(p, "BIAS", bias_of(desc));
        qn_cuda_define(p, "AZP", azp_of(desc));
        p->source = i < FEW ? "scaled_mm.cu" : i < WIDE ? "scaled_mm_few.cu" : "scaled_mm_wide.cu";
        p->entry = i < FEW ? "qn_scaled_mm" : i < WIDE ? "qn_scaled_mm_few" : "qn_scaled_mm_wide";
        if (i >= WIDE) {
            const qn_wide_form f = wide_form(desc, device);
            qn_wide_program(&f, i - WIDE, p);
            continue;
        }
        if (i >= FEW) {
            const strip s = strip_of(heights[i - FEW], desc, device);
            p->shared_bytes = strip_shared(&s);
            qn_cuda_define(p, "ROWS", s.rows);
            qn_cuda_define(p, "GROUPS", s.groups);
            qn_cuda_define(p, "SPLIT", s.split);
            qn_cuda_define(p, "UNROLL", s.unroll);
            qn_cuda_define(p, "STAGES", s.stages);
            qn_cuda_define(p, "OCCUPANCY", s.occupancy);
            continue;
        }
        const qn_tile t = tile_of(i - FIRST_TILE, desc);
        p->shared_bytes = shared_of(&t, desc);
        qn_cuda_define(p, "BM", t.bm);
        qn_cuda_define(p, "BN", t.bn);
        qn_cuda_define(p, "STAGES", t.stages);
        qn_cuda_define(p, "CLUSTER", t.cluster);
        qn_cuda_define(p, "GROUPS", QN_TILE_GROUPS);
        qn_cuda_define(p, "STORE", t.store);
        qn_cuda_define(p, "ROOM", room_of(&t));
    }
    return PROGRAMS;
}

/* ---- the run ---- */

/* Device memory; steps in elements, a's and b's in bytes. */
typedef struct operands {
    const void *a, *b, *scale_a, *scale_b, *bias, *adjust, *azp;
    void *d;
    long long a_row, b_row, scale_a_step, scale_b_step, azp_step, d_row;
    int32_t m, n, k, constant;
} operands;

/* From one element of a vector to the next: 0 where one serves all. */
static int64_t step_of(const qn_view *vector)
{
    if (vector->shape.ndim == 2) {
        return vector->strides[0] / 4;
    }
    return vector->shape.ndim == 1 && vector->shape.dims[0] > 1;
}

static operands operands_of(const qn_run_call *call)
{
    const qn_view *in = call->args->in;
    const qn_mut_view *d = &call->args->out[QN_MM_OUT_D];
    return (operands){.a = in[QN_SMM_A].data,
                      .b = in[QN_SMM_B].data,
                      .scale_a = in[QN_SMM_SCALE_A].data,
                      .scale_b = in[QN_SMM_SCALE_B].data,
                      .bias = in[QN_SMM_BIAS].data,
                      .adjust = in[QN_SMM_AZP_ADJ].data,
                      .azp = in[QN_SMM_AZP].data,
                      .d = d->data,
                      .a_row = in[QN_SMM_A].strides[0],
                      .b_row = in[QN_SMM_B].strides[0],
                      .scale_a_step = step_of(&in[QN_SMM_SCALE_A]),
                      .scale_b_step = step_of(&in[QN_SMM_SCALE_B]),
                      .azp_step = step_of(&in[QN_SMM_AZP]),
                      .d_row = d->strides[0] / qn_format_get_info(d->shape.format)->block_bytes,
                      .m = (int32_t)call->sizes.m,
                      .n = (int32_t)call->sizes.n,
                      .k = (int32_t)call->sizes.k};
}

enum { COMMON = 14 };
static void common_arguments(operands *o, void **to)
{
    void *const common[COMMON] = {&o->scale_a, &o->scale_a_step, &o->scale_b, &o->scale_b_step, &o->bias, &o->adjust,
                                  &o->azp,     &o->azp_step,     &o->d,       &o->d_row,        &o->m,    &o->n,
                                  &o->k,       &o->constant};
    memcpy(to, common, sizeof common);
}

/* Estimated time of a tile's program. */
static double cost_of(const qn_tile *t, const qn_op_desc *desc, int64_t m, int32_t sms)
{
    const qn_shape *b = &desc->in[QN_SMM_B];
    const int64_t all = qn_ceil_div(m, t->bm) * qn_ceil_div(b->dims[0], t->bn);
    return qn_tile_cost(t, (double)all, qn_ceil_div(b->dims[1], 128), sms);
}

/* Its microseconds, of up to 256 rows: a fit to 14 shapes on an H200, 12 % apart. */
static double us_of(const qn_tile *t, const qn_op_desc *desc, int64_t m, int32_t sms)
{
    const qn_shape *b = &desc->in[QN_SMM_B];
    const double us = 1.1 + 1.97e-5 * cost_of(t, desc, m, sms);
    const double read = (double)b->dims[0] * (double)b->dims[1] / 4.4e6 + 4.0;
    return us > read ? us : read;
}

/* The tile of the least estimated time. */
static int32_t choose_tile(const qn_op_desc *desc, int64_t m, int32_t sms, int may_store)
{
    int32_t best = -1;
    double least = 0.0;
    for (int32_t i = 0; i < TILES; i++) {
        const qn_tile t = tile_of(i, desc);
        const double cost = cost_of(&t, desc, m, sms);
        if ((!t.store || may_store) && (best < 0 || cost < least)) {
            least = cost;
            best = i;
        }
    }
    return best;
}

static qn_status launch_strips(const qn_cuda_run *run, operands *o, int32_t height, qn_error *error)
{
    const strip s = strip_of(heights[height], run->call->desc, run->device);
    qn_tensor_map a_map, b_map;
    QN_TRY(qn_tile_byte_map(run, o->a, o->k, o->m, 1, o->a_row, o->a_row * o->m, s.rows, &a_map, error));
    QN_TRY(qn_tile_byte_map(run, o->b, o->k, o->n, 1, o->b_row, o->b_row * o->n, 64 * s.groups, &b_map, error));
    void *arguments[2 + COMMON] = {&a_map, &b_map};
    common_arguments(o, arguments + 2);
    const qn_cuda_geometry g = {.grid = {(uint32_t)(qn_ceil_div(o->n, 64 * s.groups) * s.split), 1, 1},
                                .block = {(uint32_t)(128 * s.groups + 64), 1, 1},
                                .shared_bytes = (uint32_t)strip_shared(&s),
                                .cluster = (uint32_t)s.split,
                                .dependent = 1};
    return qn_cuda_launch(run, FEW + height, &g, arguments, error);
}

static qn_status launch_wide(const qn_cuda_run *run, operands *o, const qn_wide_form *f, qn_wide_cut *c,
                             qn_error *error)
{
    qn_wide_boxes boxes;
    QN_TRY(qn_wide_maps(run, f, c, o->b, o->b_row, o->a, o->a_row, o->m, &boxes, error));
    void *arguments[5 + COMMON] = {&boxes.b.all, &boxes.x.all, &boxes.b.last, &boxes.x.last};
    common_arguments(o, arguments + 4);
    arguments[4 + COMMON] = &c->split;
    const qn_cuda_geometry g = qn_wide_geometry(f, c, o->m);
    return qn_cuda_launch(run, WIDE + c->program, &g, arguments, error);
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    QN_FAIL_IF(run->call->sizes.m > INT32_MAX, error, QN_E_UNSUPPORTED, "scaled_mm: M is 2^31 or more");
    operands o = operands_of(run->call);
    o.constant = qn_cuda_constant_weights(run);
    if (o.n == 0) {
        return QN_OK;
    }
    if (o.k == 0 || !qn_tile_aligned(o.a, o.a_row, 0) || !qn_tile_aligned(o.b, o.b_row, 0)) {
        return qn_cuda_mm_launch_any(run, PORTABLE, error);
    }
    for (int32_t i = 0; i < HEIGHTS; i++) {
        if (o.m <= heights[i]) {
            return launch_strips(run, &o, i, error);
        }
    }
    const int32_t chosen = choose_tile(run->call->desc, o.m, run->device->sms, qn_tile_aligned(o.d, 2 * o.d_row, 0));
    const qn_tile t = tile_of(chosen, run->call->desc);
    if (o.m <= QN_WIDE_BYTE_ROWS) {
        const qn_wide_form f = wide_form(run->call->desc, run->device);
        qn_wide_cut c = qn_wide_choose(&f, run->functions + WIDE, o.m);
        if (c.us <= us_of(&t, run->call->desc, o.m, run->device->sms)) {
            return launch_wide(run, &o, &f, &c, error);
        }
    }
    qn_tile_boxes a, b;
    qn_tensor_map d_map;
    QN_TRY(qn_tile_byte_boxes(run, o.a, o.k, o.m, 1, o.a_row, o.a_row * o.m, t.bm / t.cluster, &a, error));
    QN_TRY(qn_tile_byte_boxes(run, o.b, o.k, o.n, 1, o.b_row, o.b_row * o.n, t.bn, &b, error));
    d_map = b.all; /* not read without STORE */
    if (t.store) {
        QN_TRY(qn_tile_out_map(run, o.d, o.n, o.m, 1, 2 * o.d_row, 2 * o.d_row * o.m, &d_map, error));
    }
    void *arguments[5 + COMMON] = {&a.all, &b.all, &d_map, &a.last, &b.last};
    common_arguments(&o, arguments + 5);
    const int64_t blocks = qn_ceil_div(o.m, t.bm) * qn_ceil_div(o.n, (int64_t)t.bn * t.cluster) * t.cluster;
    const qn_cuda_geometry g = qn_tile_geometry(run->device, t.cluster, blocks, shared_of(&t, run->call->desc));
    return qn_cuda_launch(run, FIRST_TILE + chosen, &g, arguments, error);
}

/* ---- for people ---- */

static void describe_tile(const char *what, const qn_tile *t, double cost, qn_text *text)
{
    qn_text_add(text, "%s of %d x %d%s%s: estimate %.3g\n", what, t->bm, t->bn, t->store ? ", stored by boxes" : "",
                t->cluster > 1 ? ", clusters of 2" : "", cost);
}

static void describe(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, const qn_sizes *sizes,
                     qn_text *text)
{
    (void)kernel;
    const qn_cuda *cuda = qn_cuda_get(ctx);
    if (!cuda || sizes->m < 1 || sizes->n < 1 || sizes->k < 1) {
        return;
    }
    for (int32_t i = 0; i < HEIGHTS; i++) {
        if (sizes->m <= heights[i]) {
            const strip s = strip_of(heights[i], desc, &cuda->device);
            qn_text_add(text, "cut: strips of %d columns, %d part%s of K\n", 64 * s.groups, s.split,
                        s.split > 1 ? "s" : "");
            return;
        }
    }
    const int32_t chosen = choose_tile(desc, sizes->m, cuda->device.sms, 1);
    for (int32_t i = 0; i < TILES; i++) {
        const qn_tile t = tile_of(i, desc);
        describe_tile("tiles", &t, cost_of(&t, desc, sizes->m, cuda->device.sms), text);
    }
    const qn_tile t = tile_of(chosen, desc);
    if (sizes->m <= QN_WIDE_BYTE_ROWS) {
        const qn_wide_form f = wide_form(desc, &cuda->device);
        const qn_wide_cut c = qn_wide_describe(&f, sizes->m, text);
        if (c.us <= us_of(&t, desc, sizes->m, cuda->device.sms)) {
            qn_wide_describe_cut("cut: strips", &c, text);
            return;
        }
    }
    describe_tile("cut: tiles", &t, cost_of(&t, desc, sizes->m, cuda->device.sms), text);
}

static const qn_cuda_impl impl = {.targets = QN_SM_BIT(QN_SM_90A), .programs = programs, .launch = launch};

static const qn_kernel kernels[] = {
    {QN_CUDA_HOOKS, .name = "qn_scaled_mm_e4m3_e4m3_fp__sm90a_256x128", .op = QN_OP_SCALED_MM, .level = "sm_90a",
     .sums = QN_SUMS_FP8_MMA, .status = "tested", .accepts = accepts_fp8, .describe = describe, .impl = &impl},
    {QN_CUDA_HOOKS, .name = "qn_scaled_mm_i8_i8_fp__sm90a_128x256", .op = QN_OP_SCALED_MM, .level = "sm_90a",
     .status = "tested", .accepts = accepts_int8, .describe = describe, .impl = &impl},
};

const qn_cuda_family qn_cuda_scaled_mm_family = {kernels, sizeof kernels};
