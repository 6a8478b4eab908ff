/* vq_mm by kernels/cuda/mm_few.cu with the units of mm_vectors.h, in a chain or without one: aqlm of vectors of eight,
 * gptvq, and vptq of one group of vectors of eight without outliers, if the codes of a vector are whole bytes. A warp
 * has few codes on their way at a time, which does not matter to weights so small that all are there before x is; the
 * larger are launches of their own, where the generator has kernels for them. Both ways are predicted. */
#include "backend/cuda/vq.h"

enum {
    MOST_STAGED = 16 << 10, /* bytes of codebooks that a block keeps in shared memory, */
    MOST_UNIT_BYTES = 4,    /* and of a unit's codes */
    ENTRY = 16,             /* bytes of eight 16-bit floats */
    THREADS = 256,
    WARPS = THREADS / 32,
    RESIDENT = 2 /* blocks of a multiprocessor, without a chain */
};

/* Microseconds, measured on an H200: of a launch that begins while the one before ends; of a warp's pass over as many
 * units as it has at a time, from the addresses of their codes to sums, and of each unit of a lane. The first pass is
 * over when x is there. */
#define LAUNCH_US 2.0
#define PASS_US 1.1
#define STEP_US 0.2
/* Shares of the L2 cache's rate at which entries come that L1 does not hold, or holds in part. */
#define FAR_SHARE 0.55
#define NEAR_SHARE 0.85
#define NEAR_BYTES (128 << 10)

static int is_half(const qn_op_desc *desc, int32_t slot)
{
    const qn_format format = qn_cuda_vq_tensor(desc, slot)->format;
    return format == QN_F16 || format == QN_BF16;
}

/* Bits of a unit's codes. */
static int64_t unit_bits(const qn_op_desc *desc, const qn_vq *vq)
{
    switch (vq->format) {
    case QN_VQ_AQLM: return vq->codebooks * qn_cuda_vq_stored_bits(desc, vq);
    case QN_VQ_VPTQ: return qn_vq_bits_for(vq->entries) + qn_vq_bits_for(vq->res_entries);
    default: return 16;
    }
}

int32_t qn_cuda_vq_few_format(const qn_op_desc *desc)
{
    const qn_vq vq = qn_cuda_vq_describe(desc);
    const int64_t bits = unit_bits(desc, &vq);
    if (vq.n == 0 || vq.k == 0 || bits % 8 || bits < 8 || bits > 8 * MOST_UNIT_BYTES ||
        desc->attr[QN_ATTR_LEVEL].i != QN_VQ_LEVEL_AUTO) {
        return -1;
    }
    switch (vq.format) {
    case QN_VQ_GPTVQ: return QN_MM_GPTVQ;
    case QN_VQ_AQLM: return vq.in_group == 8 && vq.out_group == 1 && is_half(desc, QN_VQ_CODEBOOKS) ? QN_MM_AQLM : -1;
    case QN_VQ_VPTQ:
        return vq.vector_len == 8 && vq.groups == 1 && vq.outlier_size == 0 && is_half(desc, QN_VQ_CENTROIDS) &&
                       (vq.res_entries == 0 || is_half(desc, QN_VQ_RES_CENTROIDS))
                   ? QN_MM_VPTQ
                   : -1;
    default: return -1;
    }
}

static int aligned(const qn_view *v, int64_t step, int64_t unit)
{
    return ((uint64_t)(uintptr_t)v->data | (uint64_t)step) % (uint64_t)unit == 0;
}

int qn_cuda_vq_few_takes(const qn_op_desc *desc, const qn_args *args, int32_t n)
{
    const qn_vq vq = qn_cuda_vq_describe(desc);
    const qn_view *t = args->in + QN_VQMM_FIRST;
    const qn_view *codes = &t[vq.format == QN_VQ_VPTQ ? QN_VQ_INDICES : QN_VQ_CODES], *books = &t[QN_VQ_CODEBOOKS];
    const int64_t bytes = unit_bits(desc, &vq) / 8;
    if (bytes != 3 && !aligned(codes, codes->strides[vq.format == QN_VQ_VPTQ], bytes)) {
        return 0;
    }
    switch (vq.format) {
    case QN_VQ_GPTVQ: return books->strides[2] == 4 && aligned(books, books->strides[0] | books->strides[1], 16);
    case QN_VQ_VPTQ: /* a vector's rows are a warp's, or two warps' */
        return aligned(&t[QN_VQ_CENTROIDS], 0, 16) && aligned(&t[QN_VQ_RES_CENTROIDS], 0, 16) &&
               (vq.n == n || vq.n % 8 == 0);
    default:
        return (vq.packed || codes->strides[1] == bytes) && books->strides[1] == ENTRY &&
               aligned(books, books->strides[0], 16);
    }
}

int qn_cuda_vq_few_alike(const qn_op_desc *a, const qn_op_desc *b)
{
    const qn_vq x = qn_cuda_vq_describe(a), y = qn_cuda_vq_describe(b);
    return x.codebooks == y.codebooks && x.bits == y.bits && x.packed == y.packed && x.entries == y.entries &&
           x.res_entries == y.res_entries;
}

void qn_cuda_vq_few_bind(const qn_op_desc *desc, const qn_args *args, qn_cuda_mm_part *part)
{
    const qn_vq vq = qn_cuda_vq_describe(desc);
    const qn_view *t = args->in + QN_VQMM_FIRST;
    part->n = (int32_t)vq.n;
    if (vq.format == QN_VQ_QUIP_E8P) {
        part->b = t[QN_VQ_QIDXS].data;
        part->b_row = t[QN_VQ_QIDXS].strides[0];
        return;
    }
    if (vq.format == QN_VQ_VPTQ) {
        part->b = t[QN_VQ_INDICES].data;
        part->b_row = t[QN_VQ_INDICES].strides[1];
        part->b_scale = t[QN_VQ_WEIGHT_SCALE].data;
        part->shift = t[QN_VQ_WEIGHT_BIAS].data;
        part->perm = t[QN_VQ_PERM].data;
        part->books = t[QN_VQ_CENTROIDS].data;
        part->books_step = (int64_t)((uintptr_t)t[QN_VQ_RES_CENTROIDS].data - (uintptr_t)part->books);
        return;
    }
    const int tiles = vq.format == QN_VQ_GPTVQ;
    const qn_view *books = &t[QN_VQ_CODEBOOKS], *scales = &t[tiles ? QN_VQ_CODEBOOK_SCALES : QN_VQ_SCALES];
    part->b = t[QN_VQ_CODES].data;
    part->b_row = t[QN_VQ_CODES].strides[0];
    part->b_scale = scales->data;
    part->b_scale_row = scales->shape.ndim == 1 ? (scales->shape.format == QN_F32 ? 4 : 2) : scales->strides[0];
    part->books = books->data;
    part->books_row = tiles ? books->strides[0] : 0;
    part->books_step = books->strides[tiles];
}

/* Codebooks of a row of w, as bytes; 0: blocks have columns of several, or they are too many, or gptvq's, whose tiles
 * each have a small one: entries of 4 bytes come as quickly from where they lie. */
static int64_t staged_bytes(const qn_vq *vq, const qn_cuda_mm *a, int64_t columns)
{
    if (vq->format == QN_VQ_GPTVQ) {
        return 0;
    }
    for (int32_t i = 0; a->part[0].n < a->n && i < QN_CUDA_MM_PARTS; i++) {
        if (a->part[i].n % columns) {
            return 0;
        }
    }
    const int64_t bytes =
        vq->format == QN_VQ_VPTQ ? (vq->entries + vq->res_entries) * ENTRY : (vq->codebooks * ENTRY) << vq->bits;
    return bytes <= MOST_STAGED ? bytes : 0;
}

/* Format of a tensor of floats + 1, 0: there is none. */
static int32_t number_of(const qn_op_desc *desc, int32_t slot)
{
    const qn_format format = qn_cuda_vq_tensor(desc, slot)->format;
    return format ? qn_cuda_float_format(format) + 1 : 0;
}

int32_t qn_cuda_vq_few_define(const qn_op_desc *desc, const qn_cuda_mm *a, int64_t columns, qn_cuda_program *program)
{
    const qn_vq vq = qn_cuda_vq_describe(desc);
    const int32_t staged = (int32_t)staged_bytes(&vq, a, columns);
    qn_cuda_define(program, "STAGED", staged);
    if (vq.format == QN_VQ_VPTQ) {
        qn_cuda_define(program, "BOOKS", vq.res_entries ? 2 : 1);
        qn_cuda_define(program, "ENTRIES", vq.entries);
        qn_cuda_define(program, "RES_ENTRIES", vq.res_entries);
        qn_cuda_define(program, "BITS", qn_vq_bits_for(vq.entries));
        qn_cuda_define(program, "RES_BITS", qn_vq_bits_for(vq.res_entries));
        qn_cuda_define(program, "BOOK_FORMAT", number_of(desc, QN_VQ_CENTROIDS) - 1);
        qn_cuda_define(program, "RES_FORMAT", number_of(desc, QN_VQ_RES_CENTROIDS) - 1);
        qn_cuda_define(program, "SCALE_FORMAT", number_of(desc, QN_VQ_WEIGHT_SCALE));
        qn_cuda_define(program, "SHIFT_FORMAT", number_of(desc, QN_VQ_WEIGHT_BIAS));
        qn_cuda_define(program, "PERM", qn_cuda_vq_given(desc, QN_VQ_PERM));
    } else if (vq.format == QN_VQ_AQLM) {
        qn_cuda_define(program, "BOOKS", vq.codebooks);
        qn_cuda_define(program, "BITS", vq.bits);
        qn_cuda_define(program, "STORED", qn_cuda_vq_stored_bits(desc, &vq));
        qn_cuda_define(program, "BOOK_FORMAT", number_of(desc, QN_VQ_CODEBOOKS) - 1);
        qn_cuda_define(program, "SCALE_FORMAT", number_of(desc, QN_VQ_SCALES) - 1);
    }
    return staged;
}

/* ---- without a chain ---- */

static qn_cuda_few shape_alone(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, int32_t rows)
{
    return qn_cuda_few_shape(qn_cuda_vq_few_format(desc), vq->n, vq->k, rows, 1, device->sms);
}

int qn_cuda_vq_few_chosen(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device)
{
    return qn_cuda_vq_few_format(desc) >= 0 && !qn_cuda_vq_tensor_possible(desc, vq) && vq->k % 8 == 0 &&
           shape_alone(desc, vq, device, QN_CUDA_VQ_FEW_PROGRAMS).shared_bytes <= device->shared_bytes - MOST_STAGED;
}

/* The product alone, as the parts that cut and parameters are made for. */
static qn_cuda_mm alone(const qn_vq *vq)
{
    return (qn_cuda_mm){.part = {{.n = (int32_t)vq->n}}, .n = (int32_t)vq->n};
}

static int64_t block_columns(const qn_cuda_few *few)
{
    return (int64_t)few->columns * (WARPS / few->split);
}

void qn_cuda_vq_few_program(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, int32_t rows,
                            qn_cuda_program *program)
{
    const qn_cuda_few few = shape_alone(desc, vq, device, rows);
    const qn_cuda_mm a = alone(vq);
    program->source = "mm_few.cu";
    program->entry = "qn_mm_few";
    qn_cuda_mm_define(desc, qn_cuda_mm_bias(desc), program);
    qn_cuda_few_define(&few, rows, program);
    qn_cuda_define(program, "CHAIN", 0);
    qn_cuda_define(program, "A_FORMAT", QN_MM_PLAIN);
    qn_cuda_define(program, "X_FORMAT", qn_cuda_float_format(desc->in[QN_VQMM_X].format));
    qn_cuda_define(program, "ALIGNED", 1);
    program->shared_bytes = few.shared_bytes + qn_cuda_vq_few_define(desc, &a, block_columns(&few), program);
}

qn_cuda_geometry qn_cuda_vq_few_geometry(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device,
                                         int32_t rows)
{
    const qn_cuda_few few = shape_alone(desc, vq, device, rows);
    const qn_cuda_mm a = alone(vq);
    const int64_t blocks = qn_min_i64(qn_cuda_few_blocks(&few, vq->n), (int64_t)device->sms * RESIDENT);
    return (qn_cuda_geometry){.grid = {(uint32_t)blocks, 1, 1},
                              .block = {THREADS, 1, 1},
                              .shared_bytes = (uint32_t)(few.shared_bytes + staged_bytes(vq, &a, block_columns(&few))),
                              .dependent = 1};
}

/* ---- in a chain or without one ---- */

/* Entries from the L2 cache. */
static double us_of_sectors(double lookups, int64_t bytes, const qn_vq_device *d)
{
    return lookups * 32.0 / (d->l2_rate * 1e3 * (bytes > NEAR_BYTES ? FAR_SHARE : NEAR_SHARE));
}

/* As a chain's launch: passes one after the other, or what of the entries comes from the L2 cache. */
static double us_of_chain(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_mm *a, const qn_cuda_few *few,
                          int32_t resident, const qn_vq_device *d)
{
    const int64_t units = qn_ceil_div(a->k, qn_cuda_weight_unit(qn_cuda_vq_few_format(desc)));
    const int64_t passes = qn_ceil_div(units, (int64_t)32 * few->steps * few->split);
    const int64_t rounds = qn_ceil_div(qn_cuda_few_blocks(few, a->n), (int64_t)d->units * resident);
    const int64_t bytes = vq->format == QN_VQ_AQLM   ? (vq->codebooks * ENTRY) << vq->bits
                          : vq->format == QN_VQ_VPTQ ? (vq->entries + vq->res_entries) * ENTRY
                                                     : 0;
    const double books = vq->format == QN_VQ_AQLM ? (double)vq->codebooks : vq->res_entries ? 2.0 : 1.0;
    const double lookups = (double)a->n * (double)a->k / 8.0 * books;
    const double waits = (PASS_US + STEP_US * few->steps) * ((double)(passes * rounds) - 1.0);
    const double read = bytes > MOST_STAGED ? us_of_sectors(lookups, bytes, d) : 0.0;
    return LAUNCH_US + (waits > read ? waits : read);
}

int qn_cuda_vq_few_pays(const qn_op_desc *const *descs, int32_t parts, int32_t beside, const qn_cuda_mm *a,
                        const qn_cuda_few *few, int32_t resident, const qn_cuda *cuda)
{
    qn_vq_device d;
    qn_cuda_vq_device(&cuda->device, &d);
    double own = LAUNCH_US * beside;
    qn_vq vq;
    for (int32_t i = 0; i < parts; i++) {
        vq = qn_cuda_vq_describe(descs[i]);
        const qn_cuda_vq_places p = qn_cuda_vq_places_of(descs[i], &vq, &cuda->device, 1);
        if (p.along < 0 && p.sums < 0 && p.exchange < 0 && p.books < 0 && p.bytes < 0 && p.tensor < 0) {
            return 1; /* it would be decoded element by element */
        }
        const qn_sizes sizes = {.m = 1, .n = vq.n, .k = vq.k};
        qn_vq_problem problem;
        (void)qn_vq_problem_of(descs[i], &sizes, &problem);
        own += qn_vq_choose(&problem, &d).us;
    }
    const double chain = us_of_chain(descs[0], &vq, a, few, resident, &d);
    qn_log(cuda->ctx, QN_LOG_DEBUG, "vq_mm %d x %d, %d weights: %.1f us in a chain, %.1f as launches of their own",
           a->n, a->k, parts, chain, own);
    return chain <= own;
}
