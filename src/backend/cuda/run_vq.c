/* Host side of vq_mm: weights of every vector format as checkpoints store them.
 *
 * A plan has the kernel that is always right (vq_direct.cu) and, where the generator's choice has one (vq_cuts.c),
 * kernels on tensor cores for up to 8, 16, 32 and 64 rows of x at a time (vq_tensor.cu), on warpgroups for more than 32
 * (vq_wide.cu), on 16-bit weights that are written out before (dense_mm.cu), by exact integers for one and two rows
 * with gptvq (vq_books.cu, vq_bytes.cu), E8P12 and E8P12RVQ4B (vq_points.cu; of E8P12 vq_points_cut.cu between long
 * transforms), by partial sums for one and two with aqlm (vq_sums.cu), and for up to eight with vptq (vq_along.cu) and,
 * by floats, with what else has no operands of tensor cores (mm_few.cu). What operands must be like for those is looked
 * at in every run; others take the first. */
#include <math.h>
#include <string.h>

#include "backend/cuda/tiles.h"
#include "backend/cuda/vq.h"
#include "format/lattice.h"

enum {
    THREADS = 256,
    WIDE_THREADS = 512, /* of vq_sums.cu, vq_turn.cu, vq_points.cu, vq_points_cut.cu and vq_along.cu */
    DIRECT_COLUMNS = 8,
    MOST_BLOCKS = 384,              /* that spans are dealt to */
    MOST_CLUSTERS = 192,            /* the same of vq_wide.cu's clusters */
    PIECES = QN_VQ_BLOCK_ROWS / 64, /* of a cluster's rows of w, one a warpgroup of vq_wide.cu */
    MOST_GRID_Y = 65535,
    BYTES_ROWS = 2,    /* rows of x that vq_bytes.cu takes */
    FITTING_BITS = 12, /* books of 16-byte entries that any device's shared memory holds */
    WIDE_FROM = 33     /* rows of x from which vq_wide.cu is taken */
};

/* A row's own: whether it has the generator's kernels beside the direct one. */
typedef struct vq_impl {
    int32_t full;
} vq_impl;

static const char *accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    const qn_vq vq = qn_cuda_vq_describe(desc);
    return vq.n > INT32_MAX / 2 || vq.k > INT32_MAX / 2 ? "N or K is 2^30 or more" : NULL;
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    const vq_impl *own = ((const qn_cuda_impl *)kernel->impl)->own;
    return qn_cuda_vq_programs(desc, device, own->full, out);
}

/* ---- memory between kernels ---- */

typedef struct work {
    size_t turned, halves, row_scale, sums, dense, column_scale, parts, total;
} work;

static size_t place(size_t *at, int64_t count, int64_t size)
{
    const size_t here = *at;
    *at = qn_size_pad(qn_size_add(here, qn_size_mul((size_t)count, (size_t)size)));
    return here;
}

static int64_t spans_of(const qn_vq *vq)
{
    return qn_ceil_div(vq->k, QN_VQ_SPAN);
}

static int64_t row_blocks(const qn_vq *vq)
{
    return qn_ceil_div(vq->n, QN_VQ_BLOCK_ROWS);
}

/* Most parts that a sum is in when all spans are dealt to so many blocks. */
static int64_t most_parts(const qn_vq *vq, int64_t blocks)
{
    const int64_t spans = spans_of(vq), total = row_blocks(vq) * spans;
    if (total == 0) {
        return 1;
    }
    const int64_t each = qn_max_i64(1, total / blocks);
    return qn_min_i64(spans, qn_ceil_div(spans, each) + 1);
}

/* Bytes of a row of weights that are written out. */
static int64_t dense_row(const qn_vq *vq)
{
    return qn_ceil_div(vq->k, 8) * 16;
}

/* Rows of x of a tile of vq_wide.cu where there are at most m. */
static int64_t wide_tokens(int64_t m)
{
    return m > 128 ? 256 : m > QN_VQ_MOST_TOKENS ? 128 : QN_VQ_MOST_TOKENS;
}

_Static_assert(QN_VQ_PAD == QN_DENSE_PAD, "as many scales as the product reads");

static work work_of(const qn_op_desc *desc, const qn_vq *vq, int64_t m)
{
    work w = {0};
    size_t at = 0;
    const int64_t unit = m > QN_VQ_MOST_TOKENS ? qn_cuda_vq_wide_tokens(0) : QN_VQ_MOST_TOKENS;
    const int64_t tokens = qn_ceil_div(m, unit) * unit;
    const int tensors = qn_cuda_vq_tensor_possible(desc, vq), sums = qn_cuda_vq_sums_possible(desc, vq);
    const qn_cuda_device widest = qn_cuda_plain_device(QN_SM_90A);
    const int wide = qn_cuda_vq_wide_possible(desc, vq, &widest) && m >= WIDE_FROM;
    w.turned = place(&at, qn_cuda_vq_turns_in(desc, vq) ? m : 0, qn_max_i64(vq->k, 1) * 4);
    const int dense = qn_cuda_vq_dense_room(desc, vq, m);
    w.halves = place(&at, tensors || wide || dense ? tokens : 0, spans_of(vq) * QN_VQ_SPAN * 2);
    w.row_scale = place(&at, m, 4);
    w.sums = place(&at, qn_cuda_vq_turns_out(desc, vq) ? m : 0, qn_max_i64(vq->n, 1) * 4);
    w.dense = place(&at, dense ? vq->n : 0, dense_row(vq));
    w.column_scale = place(&at, dense ? vq->n + QN_VQ_PAD : 0, 4);
    int64_t rows = 0; /* of sums, of all parts: the most that up to m rows of x have, of which m may have fewer */
    if (tensors) {
        rows = qn_max_i64(m, qn_min_i64(m, QN_VQ_MOST_TOKENS) * most_parts(vq, MOST_BLOCKS));
        if (vq->format == QN_VQ_AQLM && vq->codebooks == 1 && vq->bits > FITTING_BITS) {
            const int64_t sliced = qn_min_i64(m, QN_VQ_SLICED_ROWS);
            rows = qn_max_i64(rows, qn_min_i64(m, 1) * QN_CUDA_VQ_EXCHANGE_MOST);
            rows = qn_max_i64(rows, sliced * most_parts(vq, MOST_BLOCKS / 2) * QN_VQ_MOST_SLICES);
        }
    }
    const int64_t clusters = wide ? qn_min_i64(qn_ceil_div(m, qn_cuda_vq_wide_tokens(0)), MOST_CLUSTERS) : 0;
    for (int64_t i = 1; i <= clusters; i++) {
        const int64_t of_these = i < clusters ? i * qn_cuda_vq_wide_tokens(0) : m;
        rows = qn_max_i64(rows, of_these * most_parts(vq, MOST_CLUSTERS / i));
    }
    rows = qn_max_i64(rows, qn_min_i64(m, QN_CUDA_VQ_POINTS_ROWS) * qn_cuda_vq_points_cut_parts(desc, vq));
    size_t bytes = qn_size_mul((size_t)rows, qn_size_mul((size_t)vq->n, 4));
    if (wide) { /* pieces of rows of w, each with the word that says it is there */
        const int64_t most = qn_min_i64(MOST_CLUSTERS, row_blocks(vq) * spans_of(vq) * clusters) * PIECES;
        const size_t pieces = qn_size_mul((size_t)most, (size_t)(64 * wide_tokens(m) + 1) * 4);
        bytes = bytes > pieces ? bytes : pieces;
    }
    if (sums) {
        const size_t slabs = qn_size_mul((size_t)qn_cuda_vq_slabs(vq), qn_size_mul((size_t)vq->n, 4));
        bytes = bytes > slabs ? bytes : slabs;
    }
    w.parts = at;
    w.total = qn_size_add(at, bytes);
    return w;
}

static size_t workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    (void)kernel;
    (void)threads;
    const qn_vq vq = qn_cuda_vq_describe(desc);
    return work_of(desc, &vq, m).total;
}

/* ---- the run ---- */

static int aligned(const qn_view *v, int64_t row, int64_t unit)
{
    return ((uint64_t)(uintptr_t)v->data | (uint64_t)row) % (uint64_t)unit == 0;
}

/* Inner dimensions of codebooks without gaps. */
static int books_dense(const qn_view *books, int64_t entry_bytes)
{
    return books->strides[2] == entry_bytes && books->strides[1] == entry_bytes * books->shape.dims[2] &&
           (books->shape.dims[0] <= 1 || books->strides[0] == books->strides[1] * books->shape.dims[1]);
}

static int tensor_takes(const qn_op_desc *desc, const qn_vq *vq, const qn_args *args)
{
    const qn_view *t = args->in + QN_VQMM_FIRST;
    if (vq->format == QN_VQ_QUIP_E8P) {
        return 1;
    }
    const qn_view *codes = &t[QN_VQ_CODES], *books = &t[QN_VQ_CODEBOOKS];
    if (vq->format == QN_VQ_GPTVQ) {
        return aligned(codes, codes->strides[0], 16) && books->strides[2] == 4 && aligned(books, books->strides[1], 4);
    }
    const int32_t bytes = qn_cuda_vq_lane_bytes(desc, vq), unit = bytes & -bytes;
    return aligned(codes, codes->strides[0], unit > 16 ? 16 : unit) &&
           (vq->packed || codes->strides[1] == vq->codebooks * qn_cuda_vq_stored_bits(desc, vq) / 8) &&
           books_dense(books, vq->in_group * 2) && aligned(books, 0, 16);
}

static int exchange_takes(const qn_op_desc *desc, const qn_vq *vq, const qn_args *args)
{
    const qn_view *codes = &args->in[QN_VQMM_FIRST + QN_VQ_CODES];
    return tensor_takes(desc, vq, args) && aligned(codes, codes->strides[0], 16) && codes->strides[0] > 0 &&
           codes->strides[0] < INT64_C(1) << 40;
}

static int points_take(const qn_vq *vq, const qn_args *args)
{
    const qn_view *codes = &args->in[QN_VQMM_FIRST + QN_VQ_QIDXS];
    return aligned(codes, codes->strides[0], 8) &&
           (qn_cuda_vq_points_planes(vq) == 2 || codes->strides[0] == vq->k / 32 * 8);
}

static int points_cut_takes(const qn_vq *vq, const qn_args *args)
{
    const qn_view *x = &args->in[QN_VQMM_X], *su = &args->in[QN_VQMM_FIRST + QN_VQ_SU];
    return points_take(vq, args) && aligned(x, x->strides[0], x->shape.format == QN_F32 ? 8 : 4) &&
           aligned(su, 0, su->shape.format == QN_F32 ? 8 : 4);
}

static int along_takes(const qn_args *args)
{
    const qn_view *codes = &args->in[QN_VQMM_FIRST + QN_VQ_INDICES];
    return aligned(codes, codes->strides[1], 16) && aligned(&args->in[QN_VQMM_FIRST + QN_VQ_CENTROIDS], 0, 16) &&
           aligned(&args->in[QN_VQMM_FIRST + QN_VQ_RES_CENTROIDS], 0, 16);
}

static int sums_take(const qn_vq *vq, const qn_args *args)
{
    const qn_view *codes = &args->in[QN_VQMM_FIRST + QN_VQ_CODES];
    const qn_view *books = &args->in[QN_VQMM_FIRST + QN_VQ_CODEBOOKS];
    const int64_t size = books->shape.format == QN_F32 ? 4 : 2;
    return aligned(codes, codes->strides[0], 4) && codes->strides[0] >= 0 && codes->strides[0] <= INT32_MAX &&
           (vq->packed || codes->strides[1] == vq->codebooks) && books_dense(books, vq->in_group * size) &&
           aligned(books, 0, 16);
}

static void bind_tensors(const qn_vq *vq, const qn_args *args, qn_cuda_vq *a)
{
    const qn_view *t = args->in + QN_VQMM_FIRST;
    const qn_view *codes = &t[QN_VQ_CODES], *books = &t[QN_VQ_CODEBOOKS];
    switch (vq->format) {
    case QN_VQ_QUIP_E8P:
        a->codes = t[QN_VQ_QIDXS].data;
        a->codes_row = t[QN_VQ_QIDXS].strides[0];
        a->resid_inverse = (float)(1.0 / vq->resid_scale);
        a->su = t[QN_VQ_SU].data;
        a->sv = t[QN_VQ_SV].data;
        a->wscale = t[QN_VQ_WSCALE].data;
        a->scale_wh = t[QN_VQ_SCALE_WH].data;
        return;
    case QN_VQ_VPTQ:
        a->codes = t[QN_VQ_INDICES].data;
        a->codes_row = t[QN_VQ_INDICES].strides[1];
        a->codes_group = t[QN_VQ_INDICES].strides[0];
        a->code_bytes = t[QN_VQ_INDICES].shape.dims[2] * 4;
        a->books = t[QN_VQ_CENTROIDS].data;
        a->book_step = t[QN_VQ_CENTROIDS].strides[0];
        a->res_books = t[QN_VQ_RES_CENTROIDS].data;
        a->res_book_step = t[QN_VQ_RES_CENTROIDS].strides[0];
        a->outlier_codes = t[QN_VQ_OUTLIER_INDICES].data;
        a->outlier_row = t[QN_VQ_OUTLIER_INDICES].strides[1];
        a->outlier_books = t[QN_VQ_OUTLIER_CENTROIDS].data;
        a->perm = t[QN_VQ_PERM].data;
        a->in_scale = t[QN_VQ_WEIGHT_SCALE].data;
        a->in_shift = t[QN_VQ_WEIGHT_BIAS].data;
        a->group_size = (int32_t)qn_max_i64(vq->group_size, 1);
        a->outliers = (int32_t)vq->outlier_size;
        return;
    case QN_VQ_AQLM:
    case QN_VQ_GPTVQ: break;
    }
    a->codes = codes->data;
    a->codes_row = codes->strides[0];
    a->codes_group = codes->strides[1];
    a->code_bytes = codes->shape.dims[1];
    a->books = books->data;
    a->book_step = books->strides[0];
    a->entry_step = books->strides[1];
    a->within_step = books->strides[2];
    const qn_view *scales = &t[vq->format == QN_VQ_AQLM ? QN_VQ_SCALES : QN_VQ_CODEBOOK_SCALES];
    a->scales = scales->data;
    a->scales_row = vq->format == QN_VQ_AQLM && scales->shape.ndim == 1 ? (scales->shape.format == QN_F32 ? 4 : 2)
                                                                        : scales->strides[0];
    a->groups = vq->format == QN_VQ_AQLM ? (int32_t)(vq->k / vq->in_group) : (int32_t)(vq->k / 4);
}

_Static_assert(QN_TURN_PALEY_1 == QN_HADAMARD_PALEY_1 && QN_TURN_PALEY_2 == QN_HADAMARD_PALEY_2 &&
                   QN_TURN_WILLIAMSON == QN_HADAMARD_WILLIAMSON,
               "rules of transforms have the same numbers on the device");

static qn_cuda_turn turn_of(int64_t length, int transposed)
{
    const int64_t base = qn_hadamard_base(length);
    const qn_hadamard_rule rule = qn_hadamard_rule_of(base);
    qn_cuda_turn turn;
    memset(&turn, 0, sizeof turn);
    turn.base = (int32_t)base;
    turn.fast = (int32_t)(length / base);
    turn.rule = (int32_t)rule.kind;
    turn.transposed = transposed;
    turn.scale = (float)(1.0 / sqrt((double)length));
    for (int32_t i = 0; i < 4; i++) {
        turn.bits[i] = rule.bits[i];
    }
    return turn;
}

/* parts 0: blocks that each read all of a row. */
static qn_status launch_turn_parts(const qn_cuda_run *run, int32_t program, const qn_cuda_vq *a, int64_t length,
                                   int transposed, int32_t parts, qn_error *error)
{
    qn_cuda_turn turn = turn_of(length, transposed);
    qn_cuda_vq copy = *a;
    void *const arguments[] = {&copy, &turn};
    const int64_t blocks = parts ? parts : length / qn_min_i64(turn.fast, QN_CUDA_VQ_TURN_FAST);
    const qn_cuda_geometry g = {.grid = {(uint32_t)blocks, (uint32_t)a->m, 1},
                                .block = {WIDE_THREADS, 1, 1},
                                .shared_bytes = (uint32_t)qn_cuda_vq_turn_bytes(length, parts),
                                .cluster = (uint32_t)parts,
                                .dependent = 1};
    return qn_cuda_launch(run, program, &g, arguments, error);
}

/* Of rows of x, `in`, or of y. */
static qn_status launch_turn(const qn_cuda_run *run, const qn_cuda_vq_places *p, const qn_cuda_vq *a, int in,
                             qn_error *error)
{
    const int32_t shared = in ? p->turn_in : p->turn_out, whole = in ? p->whole_in : p->whole_out;
    const int64_t length = in ? a->k : a->n;
    const qn_cuda_vq_whole w = qn_cuda_vq_whole_of(length, run->device);
    if (whole < 0 || a->m < w.from) {
        return launch_turn_parts(run, shared, a, length, in, qn_cuda_vq_turn_parts(length, run->device), error);
    }
    qn_cuda_turn turn = turn_of(length, in);
    qn_cuda_vq copy = *a;
    void *const arguments[] = {&copy, &turn};
    const qn_cuda_geometry g = {.grid = {(uint32_t)qn_min_i64(a->m, w.blocks), 1, 1},
                                .block = {(uint32_t)w.threads, 1, 1},
                                .shared_bytes = (uint32_t)qn_cuda_vq_turn_bytes(length, 1),
                                .dependent = 1};
    return qn_cuda_launch(run, whole, &g, arguments, error);
}

/* Parts of sums to y. */
static qn_status launch_finish(const qn_cuda_run *run, const qn_cuda_vq_places *p, qn_cuda_vq *a, qn_error *error)
{
    void *const arguments[] = {a};
    const qn_cuda_geometry g = {
        .grid = {(uint32_t)qn_ceil_div(a->n, THREADS), (uint32_t)a->m, 1}, .block = {THREADS, 1, 1}, .dependent = 1};
    QN_TRY(qn_cuda_launch(run, p->finish, &g, arguments, error));
    return p->turn_out >= 0 ? launch_turn(run, p, a, 0, error) : QN_OK;
}

/* Rows of x in turn. */
static qn_status launch_sums(const qn_cuda_run *run, const qn_cuda_vq_places *p, const qn_vq *vq, qn_cuda_vq *a,
                             qn_error *error)
{
    const int32_t rows = a->m;
    qn_cuda_vq_sums_cut c = qn_cuda_vq_sums_cut_of(vq, run->device);
    const int32_t at_a_time = run->functions[p->sums].clusters;
    if (c.cluster > 1 && at_a_time > c.parts / 2 && at_a_time < c.parts) {
        c.parts = at_a_time;
    }
    a->slabs = (int32_t)qn_cuda_vq_slabs(vq);
    a->row_scale = NULL;
    qn_tensor_map codes; /* batches of rows, the columns of a slab */
    memset(&codes, 0, sizeof codes);
    const uint64_t row = (uint64_t)a->codes_row;
    a->mapped = run->device->major >= 9 && ((uint64_t)(uintptr_t)a->codes | row) % 16 == 0 && row > 0;
    if (a->mapped) {
        const qn_cuda_tensor tensor = {.data = a->codes,
                                       .type = CU_TENSOR_U8,
                                       .rank = 3,
                                       .swizzle = CU_SWIZZLE_NONE,
                                       .promotion = CU_L2_PROMOTION_NONE,
                                       .dims = {(uint64_t)(a->groups * vq->codebooks), (uint64_t)a->n, 1},
                                       .strides = {row, row},
                                       .box = {128, QN_CUDA_VQ_SUMS_ROWS, 1}};
        QN_TRY(qn_cuda_tensor_map(run->cuda, &tensor, &codes, error));
    }
    void *const arguments[] = {a, &codes};
    const qn_cuda_geometry g = {.grid = {(uint32_t)(c.parts * c.cluster), c.cluster > 1 ? 1 : (uint32_t)a->slabs, 1},
                                .block = {WIDE_THREADS, 1, 1},
                                .shared_bytes = (uint32_t)c.shared_bytes,
                                .cluster = (uint32_t)c.cluster,
                                .dependent = 1};
    a->m = 1;
    for (int32_t m = 0; m < rows; m++) {
        QN_TRY(qn_cuda_launch(run, p->sums, &g, arguments, error));
        if (c.cluster == 1) {
            QN_TRY(launch_finish(run, p, a, error));
        }
        a->x += a->x_row;
        a->y += a->y_row;
    }
    return QN_OK;
}

/* A cluster takes every so many-th pass over eight vectors of x. */
static qn_status launch_exchange(const qn_cuda_run *run, const qn_cuda_vq_places *p, const qn_vq *vq, qn_cuda_vq *a,
                                 qn_error *error)
{
    const qn_cuda_vq_exchange_cut c = qn_cuda_vq_exchange_cut_of(vq, run->device);
    const int32_t at_a_time = run->functions[p->exchange].clusters;
    const int64_t room = at_a_time > 0 ? at_a_time : run->device->sms / QN_CUDA_VQ_EXCHANGE_CLUSTER;
    const int64_t clusters =
        qn_min_i64(qn_min_i64(qn_max_i64(room / c.ranges, 1), QN_CUDA_VQ_EXCHANGE_MOST), a->groups / 8);
    a->slabs = (int32_t)clusters;
    a->row_scale = NULL;
    qn_tensor_map codes; /* 16 bytes of rows, as many as half of a block's readers */
    const qn_cuda_tensor tensor = {.data = a->codes,
                                   .type = CU_TENSOR_U8,
                                   .rank = 3,
                                   .swizzle = CU_SWIZZLE_NONE,
                                   .promotion = CU_L2_PROMOTION_NONE,
                                   .dims = {(uint64_t)a->groups * 2, (uint64_t)a->n, 1},
                                   .strides = {(uint64_t)a->codes_row, (uint64_t)a->codes_row},
                                   .box = {16, (uint32_t)c.tasks * 32, 1}};
    QN_TRY(qn_cuda_tensor_map(run->cuda, &tensor, &codes, error));
    void *const arguments[] = {a, &codes};
    const qn_cuda_geometry g = {.grid = {(uint32_t)(clusters * QN_CUDA_VQ_EXCHANGE_CLUSTER), (uint32_t)c.ranges, 1},
                                .block = {WIDE_THREADS, 1, 1},
                                .shared_bytes = (uint32_t)c.shared_bytes,
                                .cluster = QN_CUDA_VQ_EXCHANGE_CLUSTER,
                                .dependent = 1};
    QN_TRY(qn_cuda_launch(run, p->exchange, &g, arguments, error));
    return launch_finish(run, p, a, error);
}

static qn_status launch_tensor(const qn_cuda_run *run, const qn_cuda_vq_places *p, const qn_vq *vq, qn_cuda_vq *a,
                               int scaled, qn_error *error)
{
    const int sliced = p->sliced >= 0 && a->m <= QN_VQ_SLICED_ROWS;
    int32_t i = 0;
    while (i + 1 < p->tensors && qn_cuda_vq_tokens(i) < a->m) {
        i++;
    }
    const qn_cuda_vq_cut t =
        qn_cuda_vq_cut_for(run->call->desc, vq, run->device, sliced ? QN_VQ_SLICED_ROWS : qn_cuda_vq_tokens(i));
    const int64_t spans = spans_of(vq), rows = row_blocks(vq), tiles = qn_ceil_div(a->m, t.tokens);
    a->spans = (int32_t)spans;
    a->tokens = t.tokens;
    if (t.split && a->m <= QN_VQ_MOST_TOKENS) {
        const int64_t room = (int64_t)run->device->sms * t.resident / t.slices;
        a->blocks =
            (int32_t)qn_min_i64(qn_min_i64(qn_max_i64(room, 1), MOST_BLOCKS / qn_min_i64(t.slices, 2)), rows * spans);
        a->slices = t.slices;
    }
    if (!scaled) {
        a->row_scale = NULL;
    }
    void *const arguments[] = {a};
    qn_cuda_geometry g = {.grid = {(uint32_t)(tiles * t.tokens), 1, 1}, .block = {THREADS, 1, 1}, .dependent = 1};
    QN_TRY(qn_cuda_launch(run, p->rows, &g, arguments, error));
    g.grid[0] = (uint32_t)(a->blocks > 0 ? a->blocks * t.slices : rows);
    g.grid[1] = (uint32_t)tiles;
    g.block[0] = (uint32_t)(32 * QN_VQ_BLOCK_ROWS / (16 * t.tiles));
    g.shared_bytes = (uint32_t)t.shared_bytes;
    QN_TRY(qn_cuda_launch(run, sliced ? p->sliced : p->tensor + i, &g, arguments, error));
    return launch_finish(run, p, a, error);
}

static qn_status launch_bytes(const qn_cuda_run *run, const qn_cuda_vq_places *p, const qn_vq *vq, qn_cuda_vq *a,
                              qn_error *error)
{
    const int64_t spans = spans_of(vq), all = row_blocks(vq) * spans;
    a->spans = (int32_t)spans;
    a->blocks = (int32_t)qn_min_i64(qn_min_i64((int64_t)run->device->sms * 2, MOST_BLOCKS), all);
    a->row_scale = NULL;
    void *const arguments[] = {a};
    const qn_cuda_geometry g = {.grid = {(uint32_t)a->blocks, 1, 1},
                                .block = {THREADS, 1, 1},
                                .shared_bytes = QN_VQ_BYTES_SHARED,
                                .dependent = 1};
    QN_TRY(qn_cuda_launch(run, p->bytes, &g, arguments, error));
    return launch_finish(run, p, a, error);
}

/* The same in one launch, by clusters that share K, or in two. */
static qn_status launch_books(const qn_cuda_run *run, const qn_cuda_vq_places *p, const qn_vq *vq, qn_cuda_vq *a,
                              qn_error *error)
{
    const qn_cuda_vq_books_cut c = qn_cuda_vq_books_cut_of(vq, run->device);
    const int64_t tiles = qn_ceil_div(vq->n, 16);
    const int32_t at_a_time = run->functions[p->books].clusters;
    const int64_t most = at_a_time > 0 ? at_a_time : qn_max_i64(run->device->sms / c.cluster, 1);
    a->spans = (int32_t)spans_of(vq);
    a->units = c.units;
    a->tiles = c.any ? (int32_t)qn_min_i64(c.tiles, qn_ceil_div(tiles, most)) : c.tiles;
    const int64_t units = row_blocks(vq) * qn_ceil_div(a->spans, 4);
    const int64_t clusters = c.units ? qn_ceil_div(units, c.units) : qn_ceil_div(tiles, a->tiles);
    qn_tensor_map codes;
    const uint64_t row = (uint64_t)a->codes_row;
    const qn_cuda_tensor tensor = {.data = a->codes,
                                   .type = CU_TENSOR_U8,
                                   .rank = 3,
                                   .swizzle = CU_SWIZZLE_128B,
                                   .promotion = CU_L2_PROMOTION_NONE,
                                   .dims = {(uint64_t)a->groups, (uint64_t)a->n, 1},
                                   .strides = {row, row},
                                   .box = {128, 16, 1}};
    QN_TRY(qn_cuda_tensor_map(run->cuda, &tensor, &codes, error));
    void *const arguments[] = {a, &codes};
    const qn_cuda_geometry g = {.grid = {(uint32_t)(clusters * c.cluster), 1, 1},
                                .block = {QN_VQ_BOOKS_THREADS, 1, 1},
                                .shared_bytes = (uint32_t)c.shared_bytes,
                                .cluster = (uint32_t)c.cluster,
                                .dependent = 1};
    QN_TRY(qn_cuda_launch(run, p->books, &g, arguments, error));
    if (!c.units) {
        return QN_OK;
    }
    const qn_cuda_geometry join = {.grid = {(uint32_t)qn_ceil_div(a->n, QN_VQ_BOOKS_JOIN), 1, 1},
                                   .block = {QN_VQ_BOOKS_JOIN, 1, 1},
                                   .dependent = 1};
    return qn_cuda_launch(run, p->books_join, &join, arguments, error);
}

/* One or two rows of E8P12 by exact integers, and their transforms. */
static qn_status launch_points(const qn_cuda_run *run, const qn_cuda_vq_places *p, const qn_vq *vq, qn_cuda_vq *a,
                               qn_error *error)
{
    const int64_t tiles = qn_cuda_vq_points_tiles(vq, run->device, p->fused);
    const int64_t blocks = p->fused ? QN_CUDA_VQ_POINTS_CLUSTER : qn_ceil_div(vq->n / 16, tiles);
    qn_cuda_turn in, out;
    void *const arguments[] = {a, &in, &out};
    memset(&in, 0, sizeof in);
    memset(&out, 0, sizeof out);
    a->spans = (int32_t)(spans_of(vq) * qn_cuda_vq_points_planes(vq));
    a->tiles = (int32_t)tiles;
    if (p->turned) {
        in = turn_of(vq->k, 1);
    }
    if (p->fused) {
        out = turn_of(vq->n, 0);
    }
    if (p->spread_in >= 0) {
        QN_TRY(launch_turn_parts(run, p->spread_in, a, a->k, 1, 0, error));
    } else if (p->turn_in >= 0 && !p->turned) {
        QN_TRY(launch_turn(run, p, a, 1, error));
    }
    if (p->turn_in >= 0 && !p->turned) {
        a->x = (const char *)a->turned;
        a->x_row = (int64_t)a->k * 4;
    }
    const qn_cuda_geometry g = {.grid = {(uint32_t)blocks, 1, 1},
                                .block = {WIDE_THREADS, 1, 1},
                                .shared_bytes = (uint32_t)qn_cuda_vq_points_bytes(vq, a->m, tiles, p->turned, p->fused),
                                .cluster = p->fused ? QN_CUDA_VQ_POINTS_CLUSTER : 1,
                                .dependent = 1};
    QN_TRY(qn_cuda_launch(run, p->points, &g, arguments, error));
    if (p->spread_out >= 0) {
        return launch_turn_parts(run, p->spread_out, a, a->n, 0, 0, error);
    }
    return p->turn_out >= 0 && !p->fused ? launch_turn(run, p, a, 0, error) : QN_OK;
}

/* Rows of Paley's base matrix, a bit set where an element is -1: src/format/hadamard.c has the rules. But for its edges
 * a row of the matrix, or of a quarter of it, is the one before turned by a bit. */
static void paley_rows(int64_t base, int transposed, uint32_t *rows)
{
    const qn_hadamard_rule rule = qn_hadamard_rule_of(base);
    const int quarters = rule.kind == QN_HADAMARD_PALEY_2;
    const int64_t half = quarters ? base / 2 : base, turn = half - 1;
    const uint32_t all = (uint32_t)((UINT64_C(1) << turn) - 1);
    uint32_t row = (uint32_t)(quarters ? rule.bits[0] : ~rule.bits[0]) & all & ~UINT32_C(1);
    if (transposed) {
        uint32_t turned = 0;
        for (int64_t i = 1; i < turn; i++) {
            turned |= (row >> (turn - i) & 1) << i;
        }
        row = turned;
    }
    for (int64_t i = 0; i < half; i++) {
        const uint32_t inner = i == 0 ? 0 : row << 1, own = UINT32_C(1) << i;
        if (i > 0) {
            row = (row << 1 | row >> (turn - 1)) & all;
        }
        if (quarters) {
            rows[i] = inner | (inner | own) << half;
            rows[i + half] = inner | own | ((inner ^ (all << 1 | 1)) | own) << half;
        } else {
            rows[i] = transposed ? inner | (i > 0) : i == 0 ? all << 1 : inner;
        }
    }
}

/* The slow axis of a row seen as elements of that length. */
static qn_cuda_slow slow_of(int64_t length, int64_t element, int transposed)
{
    const int64_t base = qn_hadamard_base(length);
    qn_cuda_slow s;
    memset(&s, 0, sizeof s);
    s.base = (int32_t)base;
    s.levels = (int32_t)(length / base / element);
    s.scale = (float)(1.0 / sqrt((double)length));
    if (base > 1) {
        paley_rows(base, transposed, s.rows);
    }
    return s;
}

/* The same with transforms that the product's blocks and the launch that adds their parts make. */
static qn_status launch_points_cut(const qn_cuda_run *run, const qn_cuda_vq_places *p, const qn_vq *vq, qn_cuda_vq *a,
                                   qn_error *error)
{
    const qn_cuda_vq_points_cut c = qn_cuda_vq_points_cut_of(run->call->desc, vq, run->device);
    qn_cuda_slow in = slow_of(vq->k, QN_VQ_SPAN, 1), out = slow_of(vq->n, QN_VQ_CUT_ROWS, 0);
    void *const product[] = {a, &in}, *const join[] = {a, &out};
    a->spans = (int32_t)spans_of(vq);
    a->tiles = c.units;
    a->blocks = c.period;
    qn_cuda_geometry g = {.grid = {(uint32_t)qn_ceil_div(vq->n / QN_VQ_CUT_ROWS * a->spans, c.units), 1, 1},
                          .block = {WIDE_THREADS, 1, 1},
                          .shared_bytes = (uint32_t)c.shared_bytes,
                          .cluster = (uint32_t)c.pair,
                          .dependent = 1};
    QN_TRY(qn_cuda_launch(run, p->points_cut, &g, product, error));
    g.cluster = 1;
    g.grid[0] = (uint32_t)(QN_VQ_CUT_ROWS / qn_cuda_vq_join_columns(vq));
    g.block[0] = THREADS;
    g.shared_bytes = (uint32_t)c.join_bytes;
    return qn_cuda_launch(run, p->points_join, &g, join, error);
}

/* How the spans of a tile of x are dealt to clusters: to `blocks` of them, 0: clusters take whole tiles of w. Joined:
 * the cluster that begins a tile adds what the others have of it; else another launch adds. */
typedef struct wide_deal {
    int64_t blocks;
    int joined;
} wide_deal;

/* The least of three, as measured on an H200: a cluster's span of 256 rows of x takes 3.25 us, of few rows what their
 * lookups do. Joined, a cluster ends two tiles, not one, and reads parts one after the other; those that another launch
 * adds are written and read by rows. */
static wide_deal wide_deal_of(const qn_cuda_run *run, const qn_vq *vq, int32_t pair, int32_t tokens, int64_t m)
{
    const int64_t clusters = qn_min_i64(qn_max_i64(run->device->sms / pair, 1), MOST_CLUSTERS);
    const int64_t tiles = qn_ceil_div(m, tokens), all = row_blocks(vq) * tiles, spans = spans_of(vq);
    if (tiles * 2 > clusters) {
        return (wide_deal){0, 0};
    }
    const int64_t blocks = qn_min_i64(clusters / tiles, row_blocks(vq) * spans);
    const double span_us = tokens > QN_VQ_MOST_TOKENS ? 3.25 * tokens / 256.0 : 2.35;
    const double each = (double)(row_blocks(vq) * spans) / (double)blocks, others = ceil((double)spans / each);
    const double whole = (double)(qn_ceil_div(all, clusters) * spans) * span_us;
    const double joined = each * span_us + (1.5 + (double)tokens / 64.0) * (1.0 + others);
    const double parted = 1.05 * each * span_us + 4.0 + 8.0 * (1.0 + others) * (double)m * (double)vq->n / 3.5e6;
    if (whole <= joined && whole <= parted) {
        return (wide_deal){0, 0};
    }
    return (wide_deal){blocks, joined <= parted};
}

static qn_status launch_wide(const qn_cuda_run *run, const qn_cuda_vq_places *p, const qn_vq *vq, qn_cuda_vq *a,
                             int scaled, qn_error *error)
{
    int32_t i = p->wides - 1;
    while (i > 0 && qn_cuda_vq_wide_tokens(i) < a->m) {
        i--;
    }
    const int32_t tokens = qn_cuda_vq_wide_tokens(i);
    const qn_cuda_vq_wide_cut cut = qn_cuda_vq_wide_cut_of(vq, run->device, tokens);
    const int64_t tiles = qn_ceil_div(a->m, tokens), clusters = qn_max_i64(run->device->sms / cut.pair, 1);
    const wide_deal deal = wide_deal_of(run, vq, cut.pair, tokens, a->m);
    const int turned = p->turn_out >= 0;
    void *const arguments[] = {a};
    qn_cuda_geometry g = {.block = {THREADS, 1, 1}, .dependent = 1};
    a->spans = (int32_t)spans_of(vq);
    a->tokens = tokens;
    a->blocks = (int32_t)deal.blocks;
    if (deal.joined) {
        a->pieces = (int32_t)(deal.blocks * tiles * PIECES);
        a->ready = (unsigned *)(void *)(a->parts + (int64_t)a->pieces * 64 * tokens);
    }
    if (!scaled) {
        a->row_scale = NULL;
    }
    g.grid[0] = (uint32_t)(tiles * tokens);
    g.grid[1] = g.grid[2] = 1;
    QN_TRY(qn_cuda_launch(run, p->wide_rows, &g, arguments, error));
    if (turned && (a->blocks == 0 || deal.joined)) {
        a->y = (char *)a->total;
        a->y_row = (int64_t)a->n * 4;
    }
    const int64_t all = row_blocks(vq) * tiles;
    g.grid[0] = (uint32_t)((a->blocks > 0 ? a->blocks : qn_min_i64(clusters, all)) * cut.pair);
    g.grid[1] = (uint32_t)(a->blocks > 0 ? tiles : 1);
    g.block[0] = (uint32_t)(128 * cut.groups + 128);
    g.cluster = (uint32_t)cut.pair;
    g.shared_bytes = (uint32_t)cut.shared_bytes;
    QN_TRY(qn_cuda_launch(run, p->wide + i, &g, arguments, error));
    if (a->blocks > 0 && !deal.joined) {
        return launch_finish(run, p, a, error);
    }
    a->y = run->call->args->out[QN_MM_OUT_D].data;
    a->y_row = run->call->args->out[QN_MM_OUT_D].strides[0];
    return turned ? launch_turn(run, p, a, 0, error) : QN_OK;
}

/* Weights written out as f16, rows of x too where they are not or lie as bulk copies do not take them, and the product
 * of both. */
static qn_status launch_dense(const qn_cuda_run *run, const qn_cuda_vq_places *p, const qn_vq *vq, qn_cuda_vq *a,
                              int scaled, char *dense, qn_error *error)
{
    const qn_dense_form form = qn_cuda_vq_dense_form(run->call->desc, vq);
    const int turned = p->turn_out >= 0, plain = !scaled && !a->perm && qn_tile_aligned(a->x, a->x_row, 0);
    qn_cuda_vq b = *a;
    void *const rows[] = {a}, *const unpack[] = {&b};
    qn_cuda_geometry g = {.grid = {(uint32_t)a->m, 1, 1}, .block = {THREADS, 1, 1}, .dependent = 1};
    qn_dense_operands o = {.a = a->x,
                           .a_row = a->x_row,
                           .b = dense,
                           .b_row = dense_row(vq),
                           .bias = a->bias,
                           .row_scale = scaled ? a->row_scale : NULL,
                           .column_scale = a->column_scale,
                           .d = turned ? (char *)a->total : a->y,
                           .d_row = turned ? (int64_t)a->n * 4 : a->y_row,
                           .m = a->m};
    a->spans = (int32_t)spans_of(vq);
    if (!plain) {
        QN_TRY(qn_cuda_launch(run, p->dense_rows, &g, rows, error));
        o.a = a->halves;
        o.a_row = spans_of(vq) * QN_VQ_SPAN * 2;
    }
    b.y = dense;
    b.y_row = o.b_row;
    g.grid[0] = (uint32_t)qn_ceil_div(a->n, vq->format == QN_VQ_VPTQ ? vq->vector_len : DIRECT_COLUMNS);
    if (vq->format == QN_VQ_VPTQ) {
        const qn_cuda_vq_unpack_cut c = qn_cuda_vq_unpack_cut_of(vq, run->device);
        g.block[0] = (uint32_t)c.threads;
        g.shared_bytes = (uint32_t)c.shared_bytes;
    }
    QN_TRY(qn_cuda_launch(run, p->unpack, &g, unpack, error));
    QN_TRY(qn_dense_launch(run, p->dense, &form, &o, error));
    return turned ? launch_turn(run, p, a, 0, error) : QN_OK;
}

static qn_status launch_along(const qn_cuda_run *run, const qn_cuda_vq_places *p, const qn_vq *vq, qn_cuda_vq *a,
                              qn_error *error)
{
    const int several = a->m > 1;
    const qn_cuda_vq_along_cut c =
        qn_cuda_vq_along_cut_of(run->call->desc, vq, run->device, several ? QN_CUDA_VQ_ALONG_ROWS : 1);
    a->tiles = c.pairs;
    void *const arguments[] = {a};
    const qn_cuda_geometry g = {.grid = {(uint32_t)c.blocks, (uint32_t)qn_ceil_div(a->m, c.rows), 1},
                                .block = {WIDE_THREADS, 1, 1},
                                .shared_bytes = (uint32_t)c.shared_bytes,
                                .dependent = 1};
    return qn_cuda_launch(run, p->along + several, &g, arguments, error);
}

static qn_status launch_few(const qn_cuda_run *run, const qn_cuda_vq_places *p, const qn_vq *vq, const qn_cuda_vq *of,
                            qn_error *error)
{
    const qn_op_desc *desc = run->call->desc;
    const int32_t rows = of->m > 1 ? 2 : 1;
    qn_cuda_mm a;
    void *const arguments[] = {&a};
    memset(&a, 0, sizeof a);
    a.part[0] = qn_cuda_mm_part_of(desc, run->call->args);
    a.x = of->x;
    a.x_row = of->x_row;
    a.m = of->m;
    a.n = of->n;
    a.k = of->k;
    qn_cuda_geometry g = qn_cuda_vq_few_geometry(desc, vq, run->device, rows);
    g.grid[1] = (uint32_t)qn_ceil_div(a.m, rows);
    return qn_cuda_launch(run, p->few + rows - 1, &g, arguments, error);
}

static qn_status launch_direct(const qn_cuda_run *run, const qn_cuda_vq_places *p, qn_cuda_vq *a, qn_error *error)
{
    a->row_scale = NULL;
    void *const arguments[] = {a};
    const qn_cuda_geometry g = {
        .grid = {(uint32_t)qn_ceil_div(a->n, DIRECT_COLUMNS), (uint32_t)qn_ceil_div(a->m, QN_CUDA_VQ_DIRECT_ROWS), 1},
        .block = {THREADS, 1, 1},
        .dependent = 1};
    QN_TRY(qn_cuda_launch(run, p->direct, &g, arguments, error));
    return p->turn_out >= 0 ? launch_turn(run, p, a, 0, error) : QN_OK;
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    const qn_run_call *call = run->call;
    const qn_op_desc *desc = call->desc;
    const qn_vq vq = qn_cuda_vq_describe(desc);
    const vq_impl *own = ((const qn_cuda_impl *)run->kernel->impl)->own;
    const qn_cuda_vq_places p = qn_cuda_vq_places_of(desc, &vq, run->device, own->full);
    const qn_view *x = &call->args->in[QN_VQMM_X];
    const qn_mut_view *y = &call->args->out[QN_MM_OUT_D];
    QN_FAIL_IF(call->sizes.m > MOST_GRID_Y, error, QN_E_UNSUPPORTED, "%s: %lld rows are more than one launch takes",
               run->kernel->name, (long long)call->sizes.m);
    if (vq.n == 0) {
        return QN_OK;
    }
    const work w = work_of(desc, &vq, call->sizes.m);
    char *const memory = call->workspace; /* may be NULL: nothing is kept there then */
    qn_cuda_vq a;
    memset(&a, 0, sizeof a);
    a.x = x->data;
    a.x_row = x->strides[0];
    a.bias = call->args->in[QN_VQMM_BIAS].data;
    a.y = y->data;
    a.y_row = y->strides[0];
    a.m = (int32_t)call->sizes.m;
    a.n = (int32_t)vq.n;
    a.k = (int32_t)vq.k;
    a.early = qn_cuda_constant_weights(run);
    a.turned = (float *)(void *)(memory + w.turned);
    a.halves = (unsigned *)(void *)(memory + w.halves);
    a.row_scale = (float *)(void *)(memory + w.row_scale);
    a.column_scale = (float *)(void *)(memory + w.column_scale);
    a.parts = (float *)(void *)(memory + w.parts);
    a.total = (float *)(void *)(memory + w.sums);
    bind_tensors(&vq, call->args, &a);
    const int in_turn = p.sums >= 0 && a.m == QN_CUDA_VQ_SUMS_TURNS;
    if (p.sums >= 0 && (a.m == 1 || (in_turn && qn_cuda_vq_sums_chosen(desc, &vq, run->device, a.m))) &&
        sums_take(&vq, call->args)) {
        return launch_sums(run, &p, &vq, &a, error);
    }
    if (p.exchange >= 0 && a.m == 1 && exchange_takes(desc, &vq, call->args)) {
        return launch_exchange(run, &p, &vq, &a, error);
    }
    if (p.points >= 0 && a.m <= QN_CUDA_VQ_POINTS_ROWS && points_take(&vq, call->args)) {
        return launch_points(run, &p, &vq, &a, error);
    }
    if (p.points_cut >= 0 && a.m <= QN_CUDA_VQ_POINTS_ROWS && points_cut_takes(&vq, call->args)) {
        return launch_points_cut(run, &p, &vq, &a, error);
    }
    if (p.turn_in >= 0 && a.k > 0) {
        QN_TRY(launch_turn(run, &p, &a, 1, error));
        a.x = (const char *)a.turned;
        a.x_row = (int64_t)a.k * 4;
    }
    if (p.books >= 0 && a.m <= QN_CUDA_VQ_BOOKS_ROWS && a.codes_row > 0 && tensor_takes(desc, &vq, call->args)) {
        return launch_books(run, &p, &vq, &a, error);
    }
    if (p.bytes >= 0 && a.m <= BYTES_ROWS && tensor_takes(desc, &vq, call->args)) {
        return launch_bytes(run, &p, &vq, &a, error);
    }
    const int scaled = p.turn_in >= 0 || desc->in[QN_VQMM_X].format != QN_F16;
    if (p.dense >= 0 && qn_cuda_vq_dense_chosen(desc, &vq, a.m)) {
        return launch_dense(run, &p, &vq, &a, scaled, memory + w.dense, error);
    }
    if (p.wide >= 0 && a.m >= WIDE_FROM && tensor_takes(desc, &vq, call->args)) {
        return launch_wide(run, &p, &vq, &a, scaled, error);
    }
    if (p.tensor >= 0 && tensor_takes(desc, &vq, call->args)) {
        return launch_tensor(run, &p, &vq, &a, scaled, error);
    }
    if (p.along >= 0 && a.m <= QN_CUDA_VQ_FEW_ROWS && along_takes(call->args)) {
        return launch_along(run, &p, &vq, &a, error);
    }
    if (p.few >= 0 && a.m <= QN_CUDA_VQ_FEW_ROWS && qn_cuda_vq_few_takes(desc, call->args, a.n)) {
        return launch_few(run, &p, &vq, &a, error);
    }
    return launch_direct(run, &p, &a, error);
}

static const qn_cuda_impl generated_impl = {
    .targets = QN_SM_ALL, .programs = programs, .launch = launch, .own = &(const vq_impl){1}};
static const qn_cuda_impl direct_impl = {
    .targets = QN_SM_ALL, .programs = programs, .launch = launch, .own = &(const vq_impl){0}};

static const qn_kernel kernels[] = {
    {QN_CUDA_HOOKS, .name = "qn_vq_mm_fp_vq_fp__sm80_256x64_generated", .op = QN_OP_VQ_MM, .level = "sm_80 and later",
     .sums = QN_SUMS_HALF, .status = QN_CUDA_TESTED, .accepts = accepts, .workspace_bytes = workspace_bytes,
     .impl = &generated_impl},
    {QN_CUDA_HOOKS, .name = "qn_vq_mm_fp_vq_fp__sm80_4x8_direct", .op = QN_OP_VQ_MM, .level = "sm_80 and later",
     .status = QN_CUDA_TESTED, .accepts = accepts, .workspace_bytes = workspace_bytes, .impl = &direct_impl},
};

const qn_cuda_family qn_cuda_vq_family = {kernels, sizeof kernels};
