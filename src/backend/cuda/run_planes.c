/* Host side of dense_mm where operands are not both bf16 or both f16: those that need it become planes of 16-bit floats
 * (kernels/cuda/mm_planes.cu), pairs of which are multiplied: on Hopper by dense_mm.cu, else by mm_mma.cu. A plan has
 * the kernels of run_mm.c too, which take few rows and operands that those cannot take.
 *
 *   x     b      planes of x   of b
 *   f32   bf16   3 bf16        as it is
 *   f16   bf16   2 bf16        as it is
 *   f32   f16    2 f16         as it is
 *   bf16  f16    1 f16         as it is
 *   f32   f32    2 f16         2 f16
 *   f16   f32    as it is      2 f16
 *   bf16  f32    1 f16         2 f16
 *   GGUF blocks as f32, on Hopper
 *
 * Planes of f16 are those of rows times powers of two, which results take back. */
#include <string.h>

#include "backend/cuda/dense.h"
#include "backend/cuda/mm.h"
#include "backend/cuda/tiles.h"
#include "base/checked.h"
#include "ref/slots.h"

enum {
    PLAIN_ROWS = 8,
    /* of f32 and f16 by bf16, and of f32 by f16, on Hopper: planes of x alone; and of so many weights or more: measured
     * on an H200 */
    PLAIN_ROWS_OF_X = 4,
    PLAIN_ROWS_OF_LARGE = 1,
    LARGE = 1 << 24,
    DIGITS_ROWS = 160,      /* of GGUF blocks: up to here digits are faster, measured on an H200; */
    SHORT_DIGITS_ROWS = 96, /* of groups of 16 */
    PLANE_THREADS = 512,
    PLANE_HELD = 32, /* elements of a thread */
    THREADS = 256,
    AGAIN_BLOCKS = 1 /* a multiprocessor: mostly there is nothing to do */
};

/* Bytes of planes of an operand that are made at a time, in rows of whole tiles, so that a workspace has an end. */
enum { AT_ONCE = 512 << 20, GRAIN = 256, ALIGN = 128 };

/* Programs behind the portable ones. */
enum { X_PLANES = 0, B_PLANES, AGAIN, PRODUCT };

/* A row's own: whether it is for every architecture. */
static const int hopper = 0, portable = 1;

static int is_portable(const qn_kernel *kernel)
{
    return *(const int *)((const qn_cuda_impl *)kernel->impl)->own;
}

/* Planes that an operand becomes; 0: it is multiplied as it is. */
typedef struct split {
    int32_t x, b, f16;
} split;

static split split_of(const qn_op_desc *desc)
{
    const qn_format x = desc->in[QN_DMM_X].format, b = desc->in[QN_DMM_B].format;
    if (b == QN_BF16) {
        return (split){.x = x == QN_F32 ? 3 : 2};
    }
    const int32_t of_x = x == QN_F32 ? 2 : x == QN_BF16 ? 1 : 0;
    return (split){.x = of_x, .b = b == QN_F16 ? 0 : 2, .f16 = 1};
}

static int is_gguf(const qn_op_desc *desc)
{
    const qn_format b = desc->in[QN_DMM_B].format;
    return b != QN_F32 && b != QN_F16 && b != QN_BF16;
}

static const char *accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    const qn_shape *x = &desc->in[QN_DMM_X], *b = &desc->in[QN_DMM_B];
    if (qn_cuda_weight_format(desc) < 0) {
        return "weights of that format have no device code";
    }
    if (is_portable(kernel) && is_gguf(desc)) {
        return "GGUF blocks are multiplied as digits";
    }
    if (x->format == b->format && x->format != QN_F32) {
        return "operands are both bf16 or both f16";
    }
    if (b->dims[0] == 0 || b->dims[1] == 0) {
        return "there are no weights";
    }
    return b->dims[0] > INT32_MAX / 2 || b->dims[1] > INT32_MAX / 4 ? "N is 2^30 or K is 2^29 or more" : NULL;
}

static qn_dense_form form_of(const qn_op_desc *desc)
{
    const qn_shape *b = &desc->in[QN_DMM_B];
    const qn_format bias = desc->in[QN_DMM_BIAS].format;
    const split s = split_of(desc);
    return (qn_dense_form){.n = b->dims[0],
                           .k = b->dims[1],
                           .f16 = s.f16,
                           .out = desc->attr[QN_ATTR_OUT].i,
                           .scaled = !s.f16       ? QN_DENSE_UNSCALED
                                     : s.x && s.b ? QN_DENSE_BOTH
                                     : s.x        ? QN_DENSE_ROWS
                                                  : QN_DENSE_SCALED,
                           .bias = bias ? qn_cuda_float_format(bias) + 1 : 0,
                           .a_planes = s.x ? s.x : 1,
                           .b_planes = s.b ? s.b : 1};
}

void qn_cuda_planes_program(int32_t format, int32_t planes, int32_t f16, qn_cuda_program *p)
{
    p->source = "mm_planes.cu";
    p->entry = "qn_mm_planes";
    qn_cuda_define(p, "B_FORMAT", format);
    qn_cuda_define(p, "PLANES", planes ? planes : 1); /* of an operand that becomes none it is not run */
    qn_cuda_define(p, "HALF", f16);
    p->shared_bytes = format > QN_MM_BF16 ? PLANE_THREADS * 2 * PLANE_HELD * planes : 0; /* blocks are turned in it */
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    const qn_dense_form form = form_of(desc);
    const split s = split_of(desc);
    qn_cuda_program *const own = out + qn_cuda_mm_own_programs(desc, device, out);
    qn_cuda_planes_program(qn_cuda_float_format(desc->in[QN_DMM_X].format), s.x, s.f16, &own[X_PLANES]);
    qn_cuda_planes_program(qn_cuda_weight_format(desc), s.b, s.f16, &own[B_PLANES]);
    qn_cuda_mm_any_program(desc, &own[AGAIN]);
    own[AGAIN].source = "mm_again.cu";
    own[AGAIN].entry = "qn_mm_again";
    const int32_t count = (int32_t)(own - out) + PRODUCT;
    if (is_portable(kernel)) {
        qn_cuda_mm_planes_programs(desc, form.f16, form.a_planes, form.b_planes, &own[PRODUCT]);
        return count + QN_CUDA_MM_PLANES_PROGRAMS;
    }
    qn_dense_programs(&form, device, &own[PRODUCT]);
    return count + QN_DENSE_PROGRAMS;
}

/* Rows up to which the kernels of run_mm.c are faster. */
static int64_t plain_rows(const qn_kernel *kernel, const qn_op_desc *desc)
{
    const qn_shape *b = &desc->in[QN_DMM_B];
    if (is_gguf(desc)) {
        return qn_cuda_code_group(qn_cuda_weight_format(desc)) == 16 ? SHORT_DIGITS_ROWS : DIGITS_ROWS;
    }
    if (is_portable(kernel) || split_of(desc).b) {
        return PLAIN_ROWS;
    }
    return b->dims[0] >= qn_ceil_div(LARGE, b->dims[1]) ? PLAIN_ROWS_OF_LARGE : PLAIN_ROWS_OF_X;
}

/* ---- the run ---- */

/* Rows of x and of b that become planes at a time, and where a workspace has these, their scales, parts of K and,
 * first, the word that tells of results that are not finite. */
typedef struct work {
    int64_t rows, columns, row_bytes, x_plane, b_plane;
    size_t x, b, row_scales, column_scales, parts, total;
} work;

static size_t place(size_t *at, int64_t bytes)
{
    const size_t here = *at;
    *at += (size_t)(qn_ceil_div(bytes, ALIGN) * ALIGN);
    return here;
}

int64_t qn_cuda_planes_at_once(int64_t count, int64_t bytes)
{
    return qn_min_i64(count, qn_max_i64(1, AT_ONCE / (bytes * GRAIN)) * GRAIN);
}

static work work_of(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m)
{
    const qn_shape *b = &desc->in[QN_DMM_B];
    const split s = split_of(desc);
    work w = {.row_bytes = qn_ceil_div(b->dims[1], 8) * 16};
    w.rows = s.x ? qn_cuda_planes_at_once(m, s.x * w.row_bytes) : m;
    w.columns = s.b ? qn_cuda_planes_at_once(b->dims[0], s.b * w.row_bytes) : b->dims[0];
    w.x_plane = w.rows * w.row_bytes;
    w.b_plane = w.columns * w.row_bytes;
    (void)place(&w.total, (int64_t)sizeof(int32_t));
    w.x = place(&w.total, s.x * w.x_plane);
    w.b = place(&w.total, s.b * w.b_plane);
    w.row_scales = place(&w.total, s.x && s.f16 ? w.rows * 4 : 0);
    w.column_scales = place(&w.total, s.b ? (w.columns + QN_DENSE_PAD) * 4 : 0);
    w.parts = w.total;
    if (is_portable(kernel)) {
        w.total += qn_cuda_mm_planes_workspace(w.rows, w.columns, b->dims[1]);
    }
    return w;
}

static size_t workspace(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)threads;
    const size_t plain = qn_cuda_mm_own_workspace(desc, m); /* of operands at any address too */
    const size_t planes = m > plain_rows(kernel, desc) ? work_of(kernel, desc, m).total : 0;
    return plain > planes ? plain : planes;
}

static void *at(const qn_cuda_run *run, size_t offset)
{
    return (char *)run->call->workspace + offset;
}

qn_status qn_cuda_planes_make(const qn_cuda_run *run, int32_t program, qn_cuda_planes *p, int64_t rows, int32_t planes,
                              int is_blocks, qn_error *error)
{
    void *const arguments[] = {p};
    const int64_t threads = qn_min_i64(PLANE_THREADS, qn_ceil_div(p->k, PLANE_HELD * 32) * 32);
    const qn_cuda_geometry g = {.grid = {(uint32_t)rows, 1, 1},
                                .block = {(uint32_t)threads, 1, 1},
                                .shared_bytes = is_blocks ? (uint32_t)(threads * 2 * PLANE_HELD * planes) : 0,
                                .dependent = 1};
    return qn_cuda_launch(run, program, &g, arguments, error);
}

/* Product of operands as they are multiplied. */
static qn_status multiply(const qn_cuda_run *run, int32_t first, const work *w, const qn_dense_form *form,
                          const qn_dense_operands *o, qn_error *error)
{
    if (!is_portable(run->kernel)) {
        return qn_dense_launch(run, first, form, o, error);
    }
    qn_cuda_mm a = qn_cuda_mm_arguments(run->call);
    qn_cuda_mm_planes planes = {.x_plane = o->a_plane,
                                .b_plane = o->b_plane,
                                .row_scales = o->row_scale,
                                .column_scales = o->column_scale,
                                .odd = o->odd};
    a.x = o->a;
    a.x_row = o->a_row;
    a.m = o->m;
    a.n = a.part[0].n = (int)o->n;
    a.part[0].b = o->b;
    a.part[0].b_row = o->b_row;
    a.part[0].d = o->d;
    a.part[0].bias = o->bias;
    return qn_cuda_mm_planes_launch(run, first, &a, &planes, at(run, w->parts), error);
}

/* As many rows as a workspace has room for, by all columns; is_first: they are the first ones. */
static qn_status launch_rows(const qn_cuda_run *run, int32_t first, const work *w, const qn_dense_form *form,
                             const qn_dense_operands *rows, int is_first, qn_error *error)
{
    const qn_op_desc *desc = run->call->desc;
    const split s = split_of(desc);
    const int64_t item = form->out == QN_OUT_F32 ? 4 : 2, bias_item = form->bias == 1 ? 4 : 2;
    qn_dense_operands o = *rows;
    o.odd = at(run, 0);
    if (s.x) {
        qn_cuda_planes p = {.from = o.a,
                            .to = at(run, w->x),
                            .scales = at(run, w->row_scales),
                            .odd = is_first ? o.odd : NULL,
                            .from_row = o.a_row,
                            .to_row = w->row_bytes,
                            .to_plane = w->x_plane,
                            .k = (int)form->k};
        QN_TRY(qn_cuda_planes_make(run, first + X_PLANES, &p, o.m, s.x, 0, error));
        o.a = p.to;
        o.a_row = p.to_row;
        o.a_plane = p.to_plane;
        o.row_scale = s.f16 ? p.scales : NULL;
    }
    for (int64_t n = 0; n < form->n; n += w->columns) {
        qn_dense_operands part = o;
        part.n = qn_min_i64(w->columns, form->n - n);
        if (s.b) {
            qn_cuda_planes p = {.from = (const char *)o.b + n * o.b_row,
                                .to = at(run, w->b),
                                .scales = at(run, w->column_scales),
                                .pad = QN_DENSE_PAD,
                                .odd = is_first && !s.x && n == 0 ? o.odd : NULL,
                                .from_row = o.b_row,
                                .to_row = w->row_bytes,
                                .to_plane = w->b_plane,
                                .k = (int)form->k};
            QN_TRY(qn_cuda_planes_make(run, first + B_PLANES, &p, part.n, s.b, is_gguf(desc), error));
            part.b = p.to;
            part.b_row = p.to_row;
            part.b_plane = p.to_plane;
            part.column_scale = p.scales;
            part.constant = 0;
        }
        part.d = (char *)o.d + n * item;
        part.bias = o.bias ? (const char *)o.bias + n * bias_item : NULL;
        QN_TRY(multiply(run, first + PRODUCT, w, form, &part, error));
    }
    return QN_OK;
}

/* Whether operands are where bulk copies, or whole units, want them. */
static int takes(const qn_kernel *kernel, const qn_op_desc *desc, const qn_dense_operands *o)
{
    const split s = split_of(desc);
    const uint64_t words = is_gguf(desc) ? (uint64_t)qn_cuda_weight_align(qn_cuda_weight_format(desc)) : 1;
    const int whole = !is_portable(kernel) || desc->in[QN_DMM_B].dims[1] % 8 == 0; /* units of rows as they are */
    return (s.x || qn_tile_aligned(o->a, o->a_row, 0)) && (s.b || (whole && qn_tile_aligned(o->b, o->b_row, 0))) &&
           ((uint64_t)(uintptr_t)o->b | (uint64_t)o->b_row) % words == 0;
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    const qn_run_call *call = run->call;
    const qn_op_desc *desc = call->desc;
    const qn_dense_form form = form_of(desc);
    const qn_view *x = &call->args->in[QN_DMM_X], *b = &call->args->in[QN_DMM_B];
    const qn_mut_view *d = &call->args->out[QN_MM_OUT_D];
    const int32_t first = qn_cuda_mm_own_count(desc);
    QN_FAIL_IF(call->sizes.m > INT32_MAX, error, QN_E_UNSUPPORTED, "dense_mm: M is 2^31 or more");
    qn_dense_operands o = {.a = x->data,
                           .b = b->data,
                           .bias = call->args->in[QN_DMM_BIAS].data,
                           .d = d->data,
                           .a_row = x->strides[0],
                           .b_row = b->strides[0],
                           .d_row = d->strides[0],
                           .m = (int32_t)call->sizes.m,
                           .constant = qn_cuda_constant_weights(run)};
    if (o.m <= plain_rows(run->kernel, desc) || !takes(run->kernel, desc, &o)) {
        return qn_cuda_mm_own_launch(run, error);
    }
    const work w = work_of(run->kernel, desc, o.m);
    for (int64_t m = 0; m < call->sizes.m; m += w.rows) {
        o.a = (const char *)x->data + m * o.a_row;
        o.d = (char *)d->data + m * o.d_row;
        o.m = (int32_t)qn_min_i64(w.rows, call->sizes.m - m);
        QN_TRY(launch_rows(run, first, &w, &form, &o, m == 0, error));
    }
    qn_cuda_mm a = qn_cuda_mm_arguments(call);
    const int32_t *odd = at(run, 0);
    void *const arguments[] = {&a, &odd};
    const qn_cuda_geometry g = {
        .grid = {(uint32_t)(run->device->sms * AGAIN_BLOCKS), 1, 1}, .block = {THREADS, 1, 1}, .dependent = 1};
    return qn_cuda_launch(run, first + AGAIN, &g, arguments, error);
}

static void describe(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, const qn_sizes *sizes,
                     qn_text *text)
{
    const qn_cuda *cuda = qn_cuda_get(ctx);
    if (sizes->m <= plain_rows(kernel, desc)) {
        qn_cuda_mm_own_describe(ctx, desc, sizes, text);
    } else if (cuda) {
        const qn_dense_form form = form_of(desc);
        qn_text_add(text, "planes of %s: %d of x by %d of b\n", form.f16 ? "f16" : "bf16", form.a_planes,
                    form.b_planes);
        if (is_portable(kernel)) {
            qn_cuda_mm_planes_describe(&cuda->device, sizes, text);
        } else {
            qn_dense_describe(&form, &cuda->device, sizes->m, text);
        }
    }
}

static const qn_cuda_impl hopper_impl = {
    .targets = QN_SM_BIT(QN_SM_90A), .programs = programs, .launch = launch, .own = &hopper};
static const qn_cuda_impl portable_impl = {
    .targets = QN_SM_ALL, .programs = programs, .launch = launch, .own = &portable};

#define ROW(name_, level_, status_, impl_)                                                                             \
    {                                                                                                                  \
        QN_CUDA_HOOKS, .name = "qn_dense_mm_fp_" name_, .op = QN_OP_DENSE_MM, .level = (level_), .status = (status_),  \
                       .accepts = accepts, .describe = describe, .workspace_bytes = workspace, .impl = (impl_)         \
    }

static const qn_kernel kernels[] = {
    ROW("any_fp__sm90a_planes", "sm_90a", "tested", &hopper_impl),
    ROW("fp_fp__sm80_planes", "sm_80 and later", QN_CUDA_TESTED, &portable_impl),
};

const qn_cuda_family qn_cuda_planes_family = {kernels, sizeof kernels};
