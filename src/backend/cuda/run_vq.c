/* Host side of vq_mm: weights of every vector format as checkpoints store them.
 *
 * A plan has the kernel that is always right (vq_direct.cu) and, where the generator's choice has one, kernels on
 * tensor cores for up to 8, 16, 32 and 64 rows of x at a time (vq_tensor.cu), by exact integers for one and two rows
 * with gptvq (vq_bytes.cu) and by partial sums for one with aqlm (vq_sums.cu). What operands must be like for those is
 * looked at in every run; others take the first. */
#include <math.h>
#include <string.h>

#include "backend/cpu/sizes.h"
#include "backend/cuda/mm.h"
#include "base/checked.h"
#include "format/lattice.h"
#include "kernels/common/cuda_vq.h"
#include "ref/vq.h"

enum {
    THREADS = 256,
    DIRECT_ROWS = 4,
    DIRECT_COLUMNS = 8,
    MOST_BLOCKS = 384,  /* that spans are dealt to */
    MOST_CLUSTERS = 96, /* the same of vq_wide.cu's clusters */
    MOST_GRID_Y = 65535,
    MOST_LANE_BYTES = 32,
    MANY_LANE_BYTES = 24,
    EXCHANGE_BYTES = 16 * 80, /* of a warp */
    BYTES_ROWS = 2,           /* rows of x that vq_bytes.cu takes */
    BYTES_SHARED = 2 * 32768,
    SUMS_CLUSTER = 8,
    SUMS_MANY_ROWS = 16384, /* of w: warps take 32 at a time */
    TENSORS = 4,            /* programs of vq_tensor.cu: 8, 16, 32, 64 rows */
    WIDES = 3,              /* programs of vq_wide.cu: 64, 128, 256 rows */
    WIDE_FROM = 33,         /* rows of x from which it is taken, */
    DENSE_FROM = 65,        /* and where weights are written out before */
    WIDE_GROUPS = 2,        /* warpgroups of a block, blocks of a cluster: QN_VQ_BLOCK_ROWS rows of w */
    WIDE_PAIR = 2,
    WIDE_STAGES = 8,
    WIDE_FRONT = 2048, /* bytes of barriers and of alignment */
    WIDE_TABLES = 128 << 10
};

/* A row's own: whether it has the generator's kernels beside the direct one. */
typedef struct vq_impl {
    int32_t full;
} vq_impl;

/* Programs of a plan by their place; -1: it has none. */
typedef struct places {
    int32_t direct, rows, finish, turn_in, turn_out, sums, digits, bytes, tensor, tensors, unpack, wide_rows, wide,
        wides;
    int32_t count;
} places;

/* What vq_tensor.cu is made with for a number of rows. */
typedef struct cut {
    int32_t tokens, tiles, fusion, hot, copies, registers, resident, shared_bytes;
    int32_t split; /* spans are dealt to all blocks */
} cut;

static qn_vq describe(const qn_op_desc *desc)
{
    qn_vq vq;
    qn_vq_describe(desc, -1, desc->in[QN_VQMM_X].dims[1], &vq);
    return vq;
}

static const qn_shape *tensor(const qn_op_desc *desc, int32_t slot)
{
    return &desc->in[QN_VQMM_FIRST + slot];
}

static int given(const qn_op_desc *desc, int32_t slot)
{
    return tensor(desc, slot)->format != QN_FORMAT_NONE;
}

/* Number of a float format + 1; 0: absent. */
static int32_t optional_format(const qn_op_desc *desc, int32_t slot)
{
    return given(desc, slot) ? qn_cuda_float_format(tensor(desc, slot)->format) + 1 : 0;
}

static int32_t number_of(qn_vq_format format)
{
    switch (format) {
    case QN_VQ_AQLM: return QN_CUDA_AQLM;
    case QN_VQ_QUIP_E8P: return QN_CUDA_QUIP;
    case QN_VQ_VPTQ: return QN_CUDA_VPTQ;
    case QN_VQ_GPTVQ: break;
    }
    return QN_CUDA_GPTVQ;
}

static int32_t codebook_number(const qn_vq *vq)
{
    return vq->codebook == QN_VQ_E8P12RVQ4B ? 3 : vq->codebook == QN_VQ_E8P12RVQ3B ? 2 : 1;
}

/* Bits of a code in memory. */
static int32_t stored_bits(const qn_op_desc *desc, const qn_vq *vq)
{
    const qn_format codes = tensor(desc, QN_VQ_CODES)->format;
    return vq->format == QN_VQ_GPTVQ ? 8 : vq->packed ? (int32_t)vq->bits : codes == QN_I8 || codes == QN_U8 ? 8 : 16;
}

/* Bytes of the codes of 64 elements. */
static int32_t lane_bytes(const qn_op_desc *desc, const qn_vq *vq)
{
    const int32_t bits = stored_bits(desc, vq);
    return vq->format == QN_VQ_GPTVQ ? 16 : (int32_t)(64 / vq->in_group * vq->codebooks * bits / 8);
}

/* ---- what a descriptor allows ---- */

static int turns_in(const qn_op_desc *desc, const qn_vq *vq)
{
    return vq->format == QN_VQ_QUIP_E8P && given(desc, QN_VQ_SU);
}

static int turns_out(const qn_op_desc *desc, const qn_vq *vq)
{
    return vq->format == QN_VQ_QUIP_E8P && given(desc, QN_VQ_SV);
}

static int tensor_possible(const qn_op_desc *desc, const qn_vq *vq)
{
    if (vq->k == 0 || vq->n == 0 || vq->k % 64 || vq->format == QN_VQ_VPTQ ||
        (desc->in[QN_VQMM_X].format == QN_F32 && !turns_in(desc, vq))) {
        return 0;
    }
    if (vq->format != QN_VQ_AQLM) {
        return 1;
    }
    const int64_t v = vq->in_group;
    if (vq->out_group != 1 || v < 2 || v > 32 || (v & (v - 1)) || vq->codebooks > 8 ||
        tensor(desc, QN_VQ_CODEBOOKS)->format != QN_F16 || 64 / v * vq->codebooks * stored_bits(desc, vq) % 32) {
        return 0;
    }
    return lane_bytes(desc, vq) <= MOST_LANE_BYTES;
}

static int sums_possible(const qn_op_desc *desc, const qn_vq *vq)
{
    const int64_t c = vq->codebooks;
    return vq->format == QN_VQ_AQLM && vq->bits == 8 && stored_bits(desc, vq) == 8 && vq->out_group == 1 &&
           (c == 1 || c == 2 || c == 4) && vq->in_group <= (c == 4 ? 8 : 16) && vq->k > 0 && vq->n > 0 &&
           vq->k / vq->in_group * c % 4 == 0;
}

/* Words of codes of a row are dealt to slabs of 32. */
static int64_t slabs_of(const qn_vq *vq)
{
    return vq->in_group > 0 ? qn_ceil_div(vq->k / vq->in_group * vq->codebooks, 128) : 1;
}

/* How vq_sums.cu is made: rows at a time, blocks of a cluster (1: none, parts are added by another launch), groups of
 * rows, shared memory. */
typedef struct sums_cut {
    int32_t rows, cluster, parts, shared_bytes;
} sums_cut;

static sums_cut sums_cut_of(const qn_vq *vq, const qn_cuda_device *device)
{
    const int64_t slabs = slabs_of(vq);
    sums_cut c = {.rows = vq->n < SUMS_MANY_ROWS || vq->codebooks == 4 ? 16 : 32,
                  .cluster = device->major >= 9 ? (int32_t)qn_min_i64(slabs, SUMS_CLUSTER) : 1,
                  .shared_bytes = QN_VQ_SUMS_SHARED};
    const int64_t batches = qn_ceil_div(vq->n, c.rows);
    if (!qn_vq_sums_in_turn(vq->n, vq->k, (double)slabs)) {
        c.cluster = 1;
    }
    if (c.cluster > 1) {
        c.parts = (int32_t)qn_max_i64(1, qn_min_i64(device->sms / c.cluster, batches));
        /* twice the rows of a group: the device may run fewer clusters than there is room for by number */
        const int64_t bytes = QN_VQ_SUMS_SHARED + qn_ceil_div(batches, qn_max_i64(1, c.parts / 2)) * c.rows * 4;
        if (bytes <= device->shared_bytes) {
            c.shared_bytes = (int32_t)bytes;
            return c;
        }
        c.cluster = 1;
    }
    c.parts = (int32_t)qn_max_i64(1, qn_min_i64(device->sms / slabs, batches));
    return c;
}

/* The generator's problem for that many rows. */
static qn_vq_problem problem_for(const qn_op_desc *desc, const qn_vq *vq, int64_t m)
{
    const qn_sizes sizes = {.m = m, .n = vq->n, .k = vq->k};
    qn_vq_problem problem;
    (void)qn_vq_problem_of(desc, &sizes, &problem);
    return problem;
}

static int sums_chosen(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device)
{
    if (desc->attr[QN_ATTR_LEVEL].i != QN_VQ_LEVEL_AUTO || !sums_possible(desc, vq) ||
        device->shared_bytes < sums_cut_of(vq, device).shared_bytes) {
        return 0;
    }
    qn_vq_device d;
    const qn_vq_problem problem = problem_for(desc, vq, 1);
    qn_cuda_vq_device(device, &d);
    return qn_vq_choose(&problem, &d).form == QN_VQ_FORM_SUMS || !tensor_possible(desc, vq);
}

/* 16-row tiles a warp: two share the rows of x that they load, but take more registers. */
static int32_t tiles_for(const qn_vq *vq, int32_t tokens)
{
    return tokens == 16 || (vq->format == QN_VQ_GPTVQ && tokens > 8) ? 1 : 2;
}

/* The kernel for that many rows, from the cheapest candidate on tensor cores. */
static cut cut_for(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, int32_t tokens)
{
    qn_vq_device d;
    qn_vq_choice list[QN_VQ_CANDIDATES];
    const qn_vq_problem problem = problem_for(desc, vq, tokens);
    qn_cuda_vq_device(device, &d);
    const int32_t count = qn_vq_candidates(&problem, &d, list);
    int32_t i = 0;
    while (i + 1 < count && list[i].form != QN_VQ_FORM_TENSOR) {
        i++;
    }
    const qn_vq_choice *c = &list[i];
    cut t = {.tokens = tokens,
             .tiles = tiles_for(vq, tokens),
             .fusion = c->fusion == QN_VQ_FUSION_SHARED ? 1 : 3,
             .hot = c->shared_entries,
             .copies = c->copies,
             .registers = c->register_entries > 0 && vq->format == QN_VQ_AQLM,
             .split = c->level >= QN_VQ_LEVEL_O3};
    const int32_t entry = vq->format == QN_VQ_QUIP_E8P ? 4 : vq->format == QN_VQ_GPTVQ ? 8 : (int32_t)vq->in_group * 2;
    const int32_t books = vq->format == QN_VQ_GPTVQ ? 2 : vq->format == QN_VQ_QUIP_E8P ? 1 : (int32_t)vq->codebooks;
    if (t.hot < (vq->format == QN_VQ_AQLM ? 1 << vq->bits : 256) && tokens <= 16) {
        t.tiles = 1; /* lanes wait for global memory: more warps */
    }
    const int many = vq->format == QN_VQ_AQLM && lane_bytes(desc, vq) > MANY_LANE_BYTES;
    if (many) {
        t.tiles = 2; /* codes fill registers: fewer threads */
    }
    const int32_t exchange = t.fusion == 1 ? 16 / t.tiles * EXCHANGE_BYTES : 0;
    while (t.copies > 1 && t.hot * entry * t.copies * books + exchange > device->shared_bytes) {
        t.copies /= 2;
    }
    if (t.hot * entry * t.copies * books + exchange > device->shared_bytes) {
        t.hot = (device->shared_bytes - exchange) / (entry * books);
    }
    t.shared_bytes = t.hot * entry * t.copies * books + exchange;
    const int light =
        t.tiles == 2 && tokens <= 16 && !many && (vq->format != QN_VQ_QUIP_E8P || codebook_number(vq) == 1);
    t.resident = light && t.shared_bytes <= device->shared_bytes / 2 ? 2 : 1;
    return t;
}

/* gptvq and E8P12 as exact integers, for one and two rows: the highest rung. */
static int bytes_chosen(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device)
{
    const int32_t level = desc->attr[QN_ATTR_LEVEL].i;
    const int exact = vq->format == QN_VQ_GPTVQ || (vq->format == QN_VQ_QUIP_E8P && codebook_number(vq) == 1);
    return exact && tensor_possible(desc, vq) && device->shared_bytes >= BYTES_SHARED &&
           (level == QN_VQ_LEVEL_AUTO || level == QN_VQ_LEVEL_O4);
}

/* ---- many rows: vq_wide.cu ---- */

/* How it is made: from codes, or (dense) from weights that were written out as f16. */
typedef struct wide_cut {
    int32_t dense, copies, table_bytes, stages, shared_bytes;
} wide_cut;

static int wide_possible(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device)
{
    const int32_t level = desc->attr[QN_ATTR_LEVEL].i;
    return device->target == QN_SM_90A && level == QN_VQ_LEVEL_AUTO && vq->k > 0 && vq->n > 0 && vq->k % 64 == 0 &&
           vq->format != QN_VQ_VPTQ &&
           (vq->format != QN_VQ_AQLM || (vq->out_group == 1 && tensor(desc, QN_VQ_CODEBOOKS)->format == QN_F16));
}

static wide_cut wide_cut_of(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, int32_t tokens)
{
    const int aqlm = vq->format == QN_VQ_AQLM;
    const int64_t entry = aqlm ? vq->in_group * 2 : vq->format == QN_VQ_QUIP_E8P ? 4 : 8;
    const int64_t slots = entry >= 16 ? 8 : 128 / entry; /* lanes that are served together */
    const int64_t books = aqlm ? vq->codebooks : vq->format == QN_VQ_GPTVQ ? 2 : 1;
    const int64_t bytes = books * entry * (aqlm ? INT64_C(1) << vq->bits : 256);
    wide_cut c = {.dense = !tensor_possible(desc, vq) || bytes > WIDE_TABLES, .copies = 1};
    while (!c.dense && c.copies < slots && bytes * c.copies * 2 <= WIDE_TABLES / 2) {
        c.copies *= 2;
    }
    c.table_bytes = c.dense ? 0 : (int32_t)bytes * c.copies;
    c.stages = (device->shared_bytes - WIDE_FRONT - c.table_bytes) / (tokens * 128);
    c.stages = c.stages < WIDE_STAGES ? c.stages : WIDE_STAGES;
    c.shared_bytes = WIDE_FRONT + c.table_bytes + c.stages * tokens * 128;
    return c;
}

/* full: beside the direct kernel those that the generator chooses. */
static places places_of(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, int full)
{
    places p = {.direct = 0,
                .rows = -1,
                .finish = -1,
                .turn_in = -1,
                .turn_out = -1,
                .sums = -1,
                .digits = -1,
                .bytes = -1,
                .tensor = -1,
                .unpack = -1,
                .wide_rows = -1,
                .wide = -1};
    p.count = 1;
    if (turns_in(desc, vq)) {
        p.turn_in = p.count++;
    }
    if (turns_out(desc, vq)) {
        p.turn_out = p.count++;
    }
    if (full && sums_chosen(desc, vq, device)) {
        p.sums = p.count++;
    }
    if (full && bytes_chosen(desc, vq, device)) {
        p.digits = p.count++;
        p.bytes = p.count++;
    }
    if (full && tensor_possible(desc, vq)) {
        p.rows = p.count++;
        p.tensor = p.count;
        /* more than 16 bytes of codes a lane, or sums apart for a book, and 64 rows of x need too many registers */
        const int heavy = vq->format == QN_VQ_GPTVQ || (vq->format == QN_VQ_QUIP_E8P && codebook_number(vq) != 1) ||
                          (vq->format == QN_VQ_AQLM && lane_bytes(desc, vq) > 16);
        p.tensors = heavy || wide_possible(desc, vq, device) ? TENSORS - 1 : TENSORS;
        p.count += p.tensors;
    }
    if (full && wide_possible(desc, vq, device)) {
        if (wide_cut_of(desc, vq, device, QN_VQ_MOST_TOKENS).dense) {
            p.unpack = p.count++;
        }
        p.wide_rows = p.count++;
        p.wide = p.count;
        p.wides = p.unpack >= 0 ? WIDES - 1 : WIDES; /* the most rows first */
        p.count += p.wides;
    }
    if (p.sums >= 0 || p.tensor >= 0 || p.wide >= 0) {
        p.finish = p.count++;
    }
    return p;
}

static const char *accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    const qn_vq vq = describe(desc);
    return vq.n > INT32_MAX / 2 || vq.k > INT32_MAX / 2 ? "N or K is 2^30 or more" : NULL;
}

/* ---- programs ---- */

static int32_t out_format(const qn_op_desc *desc)
{
    const int32_t out = desc->attr[QN_ATTR_OUT].i;
    return out == QN_OUT_F32 ? QN_MM_F32 : out == QN_OUT_F16 ? QN_MM_F16 : QN_MM_BF16;
}

static void define_common(const qn_op_desc *desc, const qn_vq *vq, qn_cuda_program *p)
{
    const qn_format bias = desc->in[QN_VQMM_BIAS].format;
    qn_cuda_define(p, "FORMAT", number_of(vq->format));
    qn_cuda_define(p, "OUT", out_format(desc));
    qn_cuda_define(p, "BIAS", bias ? qn_cuda_float_format(bias) + 1 : 0);
}

static void direct_program(const qn_op_desc *desc, const qn_vq *vq, qn_cuda_program *p)
{
    p->source = "vq_direct.cu";
    p->entry = "qn_vq_direct";
    define_common(desc, vq, p);
    qn_cuda_define(p, "X_FORMAT", turns_in(desc, vq) ? QN_MM_F32 : qn_cuda_float_format(desc->in[QN_VQMM_X].format));
    qn_cuda_define(p, "ROWS", DIRECT_ROWS);
    qn_cuda_define(p, "RAW", turns_out(desc, vq));
    switch (vq->format) {
    case QN_VQ_AQLM:
        qn_cuda_define(p, "BOOKS", vq->codebooks);
        qn_cuda_define(p, "BITS", vq->bits);
        qn_cuda_define(p, "CODE_BYTES", vq->packed ? 0 : stored_bits(desc, vq) / 8);
        qn_cuda_define(p, "VECTOR", vq->in_group);
        qn_cuda_define(p, "OUT_GROUP", vq->out_group);
        qn_cuda_define(p, "BOOK_FORMAT", qn_cuda_float_format(tensor(desc, QN_VQ_CODEBOOKS)->format));
        qn_cuda_define(p, "SCALE_FORMAT", qn_cuda_float_format(tensor(desc, QN_VQ_SCALES)->format));
        break;
    case QN_VQ_QUIP_E8P:
        qn_cuda_define(p, "CODEBOOK", codebook_number(vq));
        qn_cuda_define(p, "WSCALE_FORMAT",
                       given(desc, QN_VQ_WSCALE) ? qn_cuda_float_format(tensor(desc, QN_VQ_WSCALE)->format) : 0);
        break;
    case QN_VQ_VPTQ:
        qn_cuda_define(p, "VECTOR", vq->vector_len);
        qn_cuda_define(p, "ENTRIES", vq->entries);
        qn_cuda_define(p, "RES_ENTRIES", vq->res_entries);
        qn_cuda_define(p, "OUTLIER_ENTRIES", vq->outlier_entries);
        qn_cuda_define(p, "BITS", qn_vq_bits_for(vq->entries));
        qn_cuda_define(p, "RES_BITS", qn_vq_bits_for(vq->res_entries));
        qn_cuda_define(p, "OUTLIER_VECTOR", vq->outlier_size ? vq->outlier_len : 1);
        qn_cuda_define(p, "BOOK_FORMAT", qn_cuda_float_format(tensor(desc, QN_VQ_CENTROIDS)->format));
        qn_cuda_define(p, "RES_FORMAT", qn_max_i64(0, optional_format(desc, QN_VQ_RES_CENTROIDS) - 1));
        qn_cuda_define(p, "OUTLIER_FORMAT", qn_max_i64(0, optional_format(desc, QN_VQ_OUTLIER_CENTROIDS) - 1));
        qn_cuda_define(p, "IN_SCALE", optional_format(desc, QN_VQ_WEIGHT_SCALE));
        qn_cuda_define(p, "IN_SHIFT", optional_format(desc, QN_VQ_WEIGHT_BIAS));
        break;
    case QN_VQ_GPTVQ: break;
    }
}

static void unpack_program(const qn_op_desc *desc, const qn_vq *vq, qn_cuda_program *p)
{
    direct_program(desc, vq, p);
    p->entry = "qn_vq_unpack";
    qn_cuda_define(p, "UNPACK", 1);
}

static int32_t wide_tokens(int32_t i)
{
    return 256 >> i;
}

static void wide_program(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, int32_t tokens,
                         qn_cuda_program *p)
{
    const wide_cut c = wide_cut_of(desc, vq, device, tokens);
    const qn_format bias = desc->in[QN_VQMM_BIAS].format;
    const int turned = turns_out(desc, vq), aqlm = vq->format == QN_VQ_AQLM;
    p->source = "vq_wide.cu";
    p->entry = "qn_vq_wide";
    p->shared_bytes = c.shared_bytes;
    qn_cuda_define(p, "FORMAT", c.dense ? QN_CUDA_DENSE : number_of(vq->format));
    qn_cuda_define(p, "TOKENS", tokens);
    qn_cuda_define(p, "GROUPS", WIDE_GROUPS);
    qn_cuda_define(p, "PAIR", WIDE_PAIR);
    qn_cuda_define(p, "STAGES", c.stages);
    qn_cuda_define(p, "OUT", turned ? QN_MM_F32 : out_format(desc));
    qn_cuda_define(p, "BIAS", bias && !turned ? qn_cuda_float_format(bias) + 1 : 0);
    qn_cuda_define(p, "SCALE_FORMAT", aqlm ? optional_format(desc, QN_VQ_SCALES) : 0);
    qn_cuda_define(p, "WSCALE_FORMAT", turned ? 0 : optional_format(desc, QN_VQ_WSCALE));
    if (c.dense) {
        return;
    }
    qn_cuda_define(p, "COPIES", c.copies);
    if (vq->format == QN_VQ_QUIP_E8P) {
        qn_cuda_define(p, "HOT", 256);
        qn_cuda_define(p, "CODEBOOK", codebook_number(vq));
        return;
    }
    const int64_t entries = aqlm ? INT64_C(1) << vq->bits : 256;
    qn_cuda_define(p, "HOT", entries);
    qn_cuda_define(p, "BOOKS", aqlm ? vq->codebooks : 1);
    qn_cuda_define(p, "BITS", aqlm ? vq->bits : 8);
    qn_cuda_define(p, "STORED", stored_bits(desc, vq));
    qn_cuda_define(p, "VECTOR", aqlm ? vq->in_group : 4);
    qn_cuda_define(p, "ENTRIES", entries);
}

static void tensor_program(const qn_op_desc *desc, const qn_vq *vq, const cut *t, qn_cuda_program *p)
{
    const int quip = vq->format == QN_VQ_QUIP_E8P, aqlm = vq->format == QN_VQ_AQLM;
    p->source = "vq_tensor.cu";
    p->entry = "qn_vq_tensor";
    p->shared_bytes = t->shared_bytes;
    qn_cuda_define(p, "FORMAT", number_of(vq->format));
    qn_cuda_define(p, "TOKENS", t->tokens);
    qn_cuda_define(p, "TILES", t->tiles);
    qn_cuda_define(p, "FUSION", t->fusion);
    qn_cuda_define(p, "HOT", t->hot);
    qn_cuda_define(p, "COPIES", t->copies);
    qn_cuda_define(p, "REGISTERS", t->registers);
    qn_cuda_define(p, "RESIDENT", t->resident);
    if (quip) {
        qn_cuda_define(p, "CODEBOOK", codebook_number(vq));
        return;
    }
    qn_cuda_define(p, "BOOKS", aqlm ? vq->codebooks : 1);
    qn_cuda_define(p, "BITS", aqlm ? vq->bits : 8);
    qn_cuda_define(p, "STORED", stored_bits(desc, vq));
    qn_cuda_define(p, "VECTOR", aqlm ? vq->in_group : 4);
    qn_cuda_define(p, "ENTRIES", aqlm ? INT64_C(1) << vq->bits : 256);
}

static void side_program(const qn_op_desc *desc, const qn_vq *vq, const char *entry, int32_t number, qn_cuda_program *p)
{
    const int turned = turns_in(desc, vq);
    p->source = "vq_side.cu";
    p->entry = entry;
    define_common(desc, vq, p);
    qn_cuda_define(p, "ENTRY", number);
    qn_cuda_define(p, "SCALE_FORMAT", vq->format == QN_VQ_AQLM ? optional_format(desc, QN_VQ_SCALES) : 0);
    qn_cuda_define(p, "SU_FORMAT", optional_format(desc, QN_VQ_SU));
    qn_cuda_define(p, "SV_FORMAT", optional_format(desc, QN_VQ_SV));
    qn_cuda_define(p, "WSCALE_FORMAT", optional_format(desc, QN_VQ_WSCALE));
    qn_cuda_define(p, "WH_FORMAT", optional_format(desc, QN_VQ_SCALE_WH));
    qn_cuda_define(p, "X_FORMAT", number != 2 && turned ? QN_MM_F32 : qn_cuda_float_format(desc->in[QN_VQMM_X].format));
}

static void sums_program(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, qn_cuda_program *p)
{
    const sums_cut c = sums_cut_of(vq, device);
    p->source = "vq_sums.cu";
    p->entry = "qn_vq_sums";
    p->shared_bytes = c.shared_bytes;
    qn_cuda_define(p, "BOOKS", vq->codebooks);
    qn_cuda_define(p, "VECTOR", vq->in_group);
    qn_cuda_define(p, "X_FORMAT", qn_cuda_float_format(desc->in[QN_VQMM_X].format));
    qn_cuda_define(p, "BOOK_FORMAT", qn_cuda_float_format(tensor(desc, QN_VQ_CODEBOOKS)->format));
    qn_cuda_define(p, "ROWS", c.rows);
    qn_cuda_define(p, "CLUSTER", c.cluster);
    if (c.cluster > 1) {
        p->cluster = c.cluster;
        p->threads = 512;
        const qn_format bias = desc->in[QN_VQMM_BIAS].format;
        qn_cuda_define(p, "OUT", out_format(desc));
        qn_cuda_define(p, "BIAS", bias ? qn_cuda_float_format(bias) + 1 : 0);
        qn_cuda_define(p, "SCALE_FORMAT", optional_format(desc, QN_VQ_SCALES));
    }
}

static int32_t tokens_of(int32_t i)
{
    return 8 << i;
}

static int32_t programs(const qn_kernel *kernel, const qn_op_desc *desc, const qn_cuda_device *device,
                        qn_cuda_program *out)
{
    const vq_impl *own = ((const qn_cuda_impl *)kernel->impl)->own;
    const qn_vq vq = describe(desc);
    const places p = places_of(desc, &vq, device, own->full);
    direct_program(desc, &vq, &out[p.direct]);
    if (p.turn_in >= 0) {
        side_program(desc, &vq, "qn_vq_turn", 2, &out[p.turn_in]);
        qn_cuda_define(&out[p.turn_in], "INPUT", 1);
    }
    if (p.turn_out >= 0) {
        side_program(desc, &vq, "qn_vq_turn", 2, &out[p.turn_out]);
        qn_cuda_define(&out[p.turn_out], "INPUT", 0);
    }
    if (p.finish >= 0) {
        side_program(desc, &vq, "qn_vq_finish", 1, &out[p.finish]);
        qn_cuda_define(&out[p.finish], "RAW", turns_out(desc, &vq));
    }
    if (p.sums >= 0) {
        sums_program(desc, &vq, device, &out[p.sums]);
    }
    if (p.bytes >= 0) {
        side_program(desc, &vq, "qn_vq_digits", 3, &out[p.digits]);
        out[p.bytes].source = "vq_bytes.cu";
        out[p.bytes].entry = "qn_vq_bytes";
        out[p.bytes].shared_bytes = BYTES_SHARED;
        qn_cuda_define(&out[p.bytes], "FORMAT", number_of(vq.format));
    }
    if (p.tensor >= 0) {
        const cut first = cut_for(desc, &vq, device, tokens_of(0));
        side_program(desc, &vq, "qn_vq_rows", 0, &out[p.rows]);
        qn_cuda_define(&out[p.rows], "LAYOUT", vq.format == QN_VQ_QUIP_E8P);
        qn_cuda_define(&out[p.rows], "SCALED", turns_in(desc, &vq) || desc->in[QN_VQMM_X].format != QN_F16);
        qn_cuda_define(&out[p.rows], "NATURAL", first.fusion == 1);
        for (int32_t i = 0; i < p.tensors; i++) {
            cut t = cut_for(desc, &vq, device, tokens_of(i));
            t.fusion = first.fusion; /* rows of x are laid out once */
            tensor_program(desc, &vq, &t, &out[p.tensor + i]);
        }
    }
    if (p.unpack >= 0) {
        unpack_program(desc, &vq, &out[p.unpack]);
    }
    if (p.wide >= 0) {
        side_program(desc, &vq, "qn_vq_rows", 0, &out[p.wide_rows]);
        qn_cuda_define(&out[p.wide_rows], "LAYOUT", p.unpack >= 0 ? 2 : vq.format == QN_VQ_QUIP_E8P);
        qn_cuda_define(&out[p.wide_rows], "SCALED", turns_in(desc, &vq) || desc->in[QN_VQMM_X].format != QN_F16);
        qn_cuda_define(&out[p.wide_rows], "WIDE", 1);
        for (int32_t i = 0; i < p.wides; i++) {
            wide_program(desc, &vq, device, wide_tokens(i), &out[p.wide + i]);
        }
    }
    return p.count;
}

/* ---- memory between kernels ---- */

typedef struct work {
    size_t turned, halves, row_scale, sums, dense, parts, total;
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

static work work_of(const qn_op_desc *desc, const qn_vq *vq, int64_t m)
{
    work w = {0};
    size_t at = 0;
    const int64_t unit = m > QN_VQ_MOST_TOKENS ? wide_tokens(0) : QN_VQ_MOST_TOKENS;
    const int64_t tokens = qn_ceil_div(m, unit) * unit;
    const int tensors = tensor_possible(desc, vq), sums = sums_possible(desc, vq);
    const qn_cuda_device widest = qn_cuda_typical_device(QN_SM_90A);
    const int wide = wide_possible(desc, vq, &widest) && m >= WIDE_FROM;
    w.turned = place(&at, turns_in(desc, vq) ? m : 0, qn_max_i64(vq->k, 1) * 4);
    w.halves = place(&at, tensors || wide ? tokens : 0, spans_of(vq) * QN_VQ_SPAN * 2);
    w.row_scale = place(&at, m, 4);
    w.sums = place(&at, turns_out(desc, vq) ? m : 0, qn_max_i64(vq->n, 1) * 4);
    const int dense = wide && m >= DENSE_FROM && wide_cut_of(desc, vq, &widest, wide_tokens(0)).dense;
    w.dense = place(&at, dense ? vq->n : 0, vq->k * 2);
    int64_t parts = 0;
    if (tensors) {
        parts = m <= QN_VQ_MOST_TOKENS ? most_parts(vq, MOST_BLOCKS) : 1;
    }
    if (wide) {
        const int64_t of_wide = most_parts(vq, qn_max_i64(1, MOST_CLUSTERS / qn_ceil_div(m, wide_tokens(0))));
        parts = parts > of_wide ? parts : of_wide;
    }
    size_t bytes = qn_size_mul((size_t)(parts * m), qn_size_mul((size_t)vq->n, 4));
    if (sums) {
        const size_t slabs = qn_size_mul((size_t)slabs_of(vq), qn_size_mul((size_t)vq->n, 4));
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
    const qn_vq vq = describe(desc);
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
    const int32_t bytes = lane_bytes(desc, vq), unit = bytes & -bytes;
    return aligned(codes, codes->strides[0], unit > 16 ? 16 : unit) &&
           (vq->packed || codes->strides[1] == vq->codebooks * stored_bits(desc, vq) / 8) &&
           books_dense(books, vq->in_group * 2) && aligned(books, 0, 16);
}

static int bytes_take(const qn_op_desc *desc, const qn_vq *vq, const qn_args *args)
{
    return tensor_takes(desc, vq, args) &&
           (vq->format != QN_VQ_QUIP_E8P || args->in[QN_VQMM_FIRST + QN_VQ_QIDXS].strides[0] == vq->k / 32 * 8);
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

/* The transform of a length: its fast axis as long as a block's memory holds. */
static qn_cuda_turn turn_of(int64_t length, int transposed)
{
    qn_cuda_turn turn;
    memset(&turn, 0, sizeof turn);
    const int64_t base = qn_hadamard_base(length), fast = qn_min_i64(length / base, 1024);
    turn.base = (int32_t)base;
    turn.fast = (int32_t)fast;
    turn.copies = (int32_t)(length / base / fast);
    turn.transposed = transposed;
    turn.scale = (float)(1.0 / sqrt((double)length));
    for (int64_t i = 0; i < base; i++) {
        for (int64_t j = 0; j < base; j++) {
            const int sign = transposed ? qn_hadamard_sign(base, j, i) : qn_hadamard_sign(base, i, j);
            turn.rows[i] |= (uint64_t)(sign < 0) << j;
        }
    }
    return turn;
}

static qn_status launch_turn(const qn_cuda_run *run, int32_t program, const qn_cuda_vq *a, int64_t length,
                             int transposed, qn_error *error)
{
    qn_cuda_turn turn = turn_of(length, transposed);
    qn_cuda_vq copy = *a;
    void *const arguments[] = {&copy, &turn};
    const qn_cuda_geometry g = {.grid = {(uint32_t)(turn.base * turn.copies), (uint32_t)a->m, 1},
                                .block = {THREADS, 1, 1},
                                .dependent = run->device->major >= 9};
    return qn_cuda_launch(run, program, &g, arguments, error);
}

static qn_status launch_finish(const qn_cuda_run *run, const places *p, qn_cuda_vq *a, qn_error *error)
{
    void *const arguments[] = {a};
    const qn_cuda_geometry g = {.grid = {(uint32_t)qn_ceil_div(a->n, THREADS), (uint32_t)a->m, 1},
                                .block = {THREADS, 1, 1},
                                .dependent = run->device->major >= 9};
    QN_TRY(qn_cuda_launch(run, p->finish, &g, arguments, error));
    return p->turn_out >= 0 ? launch_turn(run, p->turn_out, a, a->n, 0, error) : QN_OK;
}

static qn_status launch_sums(const qn_cuda_run *run, const places *p, const qn_vq *vq, qn_cuda_vq *a, qn_error *error)
{
    sums_cut c = sums_cut_of(vq, run->device);
    const int32_t at_a_time = run->functions[p->sums].clusters;
    if (c.cluster > 1 && at_a_time > c.parts / 2 && at_a_time < c.parts) {
        c.parts = at_a_time;
    }
    a->slabs = (int32_t)slabs_of(vq);
    a->row_scale = NULL;
    void *const arguments[] = {a};
    const qn_cuda_geometry g = {.grid = {(uint32_t)(c.parts * c.cluster), c.cluster > 1 ? 1 : (uint32_t)a->slabs, 1},
                                .block = {512, 1, 1},
                                .shared_bytes = (uint32_t)c.shared_bytes,
                                .cluster = (uint32_t)c.cluster,
                                .dependent = run->device->major >= 9};
    QN_TRY(qn_cuda_launch(run, p->sums, &g, arguments, error));
    return c.cluster > 1 ? QN_OK : launch_finish(run, p, a, error);
}

static qn_status launch_tensor(const qn_cuda_run *run, const places *p, const qn_vq *vq, qn_cuda_vq *a, int scaled,
                               qn_error *error)
{
    int32_t i = 0;
    while (i + 1 < p->tensors && tokens_of(i) < a->m) {
        i++;
    }
    const cut t = cut_for(run->call->desc, vq, run->device, tokens_of(i));
    const int64_t spans = spans_of(vq), rows = row_blocks(vq), tiles = qn_ceil_div(a->m, t.tokens);
    a->spans = (int32_t)spans;
    a->tokens = t.tokens;
    if (t.split && a->m <= QN_VQ_MOST_TOKENS) {
        a->blocks = (int32_t)qn_min_i64(qn_min_i64((int64_t)run->device->sms * t.resident, MOST_BLOCKS), rows * spans);
    }
    if (!scaled) {
        a->row_scale = NULL;
    }
    void *const arguments[] = {a};
    qn_cuda_geometry g = {
        .grid = {(uint32_t)(tiles * t.tokens), 1, 1}, .block = {THREADS, 1, 1}, .dependent = run->device->major >= 9};
    QN_TRY(qn_cuda_launch(run, p->rows, &g, arguments, error));
    g.grid[0] = (uint32_t)(a->blocks > 0 ? a->blocks : rows);
    g.grid[1] = (uint32_t)tiles;
    g.block[0] = (uint32_t)(32 * QN_VQ_BLOCK_ROWS / (16 * t.tiles));
    g.shared_bytes = (uint32_t)t.shared_bytes;
    QN_TRY(qn_cuda_launch(run, p->tensor + i, &g, arguments, error));
    return launch_finish(run, p, a, error);
}

static qn_status launch_bytes(const qn_cuda_run *run, const places *p, const qn_vq *vq, qn_cuda_vq *a, qn_error *error)
{
    const int64_t spans = spans_of(vq), all = row_blocks(vq) * spans;
    a->spans = (int32_t)spans;
    a->blocks = (int32_t)qn_min_i64(qn_min_i64((int64_t)run->device->sms * 2, MOST_BLOCKS), all);
    a->row_scale = NULL;
    void *const arguments[] = {a};
    qn_cuda_geometry g = {
        .grid = {(uint32_t)spans, BYTES_ROWS, 1}, .block = {THREADS, 1, 1}, .dependent = run->device->major >= 9};
    QN_TRY(qn_cuda_launch(run, p->digits, &g, arguments, error));
    g.grid[0] = (uint32_t)a->blocks;
    g.grid[1] = 1;
    g.shared_bytes = BYTES_SHARED;
    QN_TRY(qn_cuda_launch(run, p->bytes, &g, arguments, error));
    return launch_finish(run, p, a, error);
}

/* Clusters that the spans of a tile of x are dealt to; 0: clusters take whole tiles. A cluster's span of 256 rows of x
 * takes 3.25 us (H200); parts are written and read, and another launch adds them. */
static int64_t wide_blocks(const qn_cuda_run *run, const qn_vq *vq, int32_t tokens, int64_t m)
{
    const int64_t clusters = qn_min_i64(run->device->sms / WIDE_PAIR, MOST_CLUSTERS);
    const int64_t tiles = qn_ceil_div(m, tokens), all = row_blocks(vq) * tiles, spans = spans_of(vq);
    if (tiles * 2 > clusters) {
        return 0;
    }
    const double span_us = 3.25 * (tokens > QN_VQ_MOST_TOKENS ? tokens / 256.0 : 0.46); /* few rows: lookups */
    const double whole = (double)(qn_ceil_div(all, clusters) * spans) * span_us;
    const double parts = 4.0 + 16.0 * (double)m * (double)vq->n / 3.5e6;
    const double split = 1.05 * (double)(all * spans) / (double)clusters * span_us + parts;
    return whole <= split ? 0 : qn_min_i64(clusters / tiles, row_blocks(vq) * spans);
}

static qn_status launch_wide(const qn_cuda_run *run, const places *p, const qn_vq *vq, qn_cuda_vq *a, int scaled,
                             char *dense, qn_error *error)
{
    int32_t i = p->wides - 1;
    while (i > 0 && wide_tokens(i) < a->m) {
        i--;
    }
    const int32_t tokens = wide_tokens(i);
    const int64_t tiles = qn_ceil_div(a->m, tokens), clusters = run->device->sms / WIDE_PAIR;
    const int turned = p->turn_out >= 0;
    void *const arguments[] = {a};
    qn_cuda_geometry g = {.block = {THREADS, 1, 1}, .dependent = run->device->major >= 9};
    if (p->unpack >= 0) {
        qn_cuda_vq b = *a;
        b.y = dense;
        b.y_row = vq->k * 2;
        void *const unpack[] = {&b};
        g.grid[0] = (uint32_t)qn_ceil_div(a->n, DIRECT_COLUMNS);
        g.grid[1] = g.grid[2] = 1;
        QN_TRY(qn_cuda_launch(run, p->unpack, &g, unpack, error));
        a->codes = dense;
        a->codes_row = vq->k * 2;
    }
    a->spans = (int32_t)spans_of(vq);
    a->tokens = tokens;
    a->blocks = (int32_t)wide_blocks(run, vq, tokens, a->m);
    if (!scaled) {
        a->row_scale = NULL;
    }
    g.grid[0] = (uint32_t)(tiles * tokens);
    g.grid[1] = g.grid[2] = 1;
    QN_TRY(qn_cuda_launch(run, p->wide_rows, &g, arguments, error));
    if (turned && a->blocks == 0) {
        a->y = (char *)a->total;
        a->y_row = (int64_t)a->n * 4;
    }
    const int64_t all = row_blocks(vq) * tiles;
    g.grid[0] = (uint32_t)((a->blocks > 0 ? a->blocks : qn_min_i64(clusters, all)) * WIDE_PAIR);
    g.grid[1] = (uint32_t)(a->blocks > 0 ? tiles : 1);
    g.block[0] = 128 * WIDE_GROUPS + 128;
    g.cluster = WIDE_PAIR;
    g.shared_bytes = (uint32_t)wide_cut_of(run->call->desc, vq, run->device, tokens).shared_bytes;
    QN_TRY(qn_cuda_launch(run, p->wide + i, &g, arguments, error));
    if (a->blocks > 0) {
        return launch_finish(run, p, a, error);
    }
    a->y = run->call->args->out[QN_MM_OUT_D].data;
    a->y_row = run->call->args->out[QN_MM_OUT_D].strides[0];
    return turned ? launch_turn(run, p->turn_out, a, a->n, 0, error) : QN_OK;
}

static qn_status launch_direct(const qn_cuda_run *run, const places *p, qn_cuda_vq *a, qn_error *error)
{
    a->row_scale = NULL;
    void *const arguments[] = {a};
    const qn_cuda_geometry g = {
        .grid = {(uint32_t)qn_ceil_div(a->n, DIRECT_COLUMNS), (uint32_t)qn_ceil_div(a->m, DIRECT_ROWS), 1},
        .block = {THREADS, 1, 1},
        .dependent = run->device->major >= 9};
    QN_TRY(qn_cuda_launch(run, p->direct, &g, arguments, error));
    return p->turn_out >= 0 ? launch_turn(run, p->turn_out, a, a->n, 0, error) : QN_OK;
}

static qn_status launch(const qn_cuda_run *run, qn_error *error)
{
    const qn_run_call *call = run->call;
    const qn_op_desc *desc = call->desc;
    const qn_vq vq = describe(desc);
    const vq_impl *own = ((const qn_cuda_impl *)run->kernel->impl)->own;
    const places p = places_of(desc, &vq, run->device, own->full);
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
    a.parts = (float *)(void *)(memory + w.parts);
    a.total = (float *)(void *)(memory + w.sums);
    bind_tensors(&vq, call->args, &a);
    if (p.sums >= 0 && a.m == 1 && sums_take(&vq, call->args)) {
        return launch_sums(run, &p, &vq, &a, error);
    }
    if (p.turn_in >= 0 && a.k > 0) {
        QN_TRY(launch_turn(run, p.turn_in, &a, a.k, 1, error));
        a.x = (const char *)a.turned;
        a.x_row = (int64_t)a.k * 4;
    }
    if (p.bytes >= 0 && a.m <= BYTES_ROWS && bytes_take(desc, &vq, call->args)) {
        return launch_bytes(run, &p, &vq, &a, error);
    }
    const int scaled = p.turn_in >= 0 || desc->in[QN_VQMM_X].format != QN_F16;
    if (p.wide >= 0 && a.m >= (p.unpack >= 0 ? DENSE_FROM : WIDE_FROM) &&
        (p.unpack >= 0 || tensor_takes(desc, &vq, call->args))) {
        return launch_wide(run, &p, &vq, &a, scaled, memory + w.dense, error);
    }
    if (p.tensor >= 0 && tensor_takes(desc, &vq, call->args)) {
        return launch_tensor(run, &p, &vq, &a, scaled, error);
    }
    return launch_direct(run, &p, &a, error);
}

static const qn_cuda_impl generated_impl = {
    .targets = QN_SM_ALL, .programs = programs, .launch = launch, .own = &(const vq_impl){1}};
static const qn_cuda_impl direct_impl = {
    .targets = QN_SM_ALL, .programs = programs, .launch = launch, .own = &(const vq_impl){0}};

static const qn_kernel kernels[] = {
    {QN_CUDA_HOOKS, .name = "qn_vq_mm_fp_vq_fp__sm80_256x64_generated", .op = QN_OP_VQ_MM, .level = "sm_80 and later",
     .sums = QN_SUMS_HALF, .status = "tested", .accepts = accepts, .workspace_bytes = workspace_bytes,
     .impl = &generated_impl},
    {QN_CUDA_HOOKS, .name = "qn_vq_mm_fp_vq_fp__sm80_4x8_direct", .op = QN_OP_VQ_MM, .level = "sm_80 and later",
     .status = "tested", .accepts = accepts, .workspace_bytes = workspace_bytes, .impl = &direct_impl},
};

const qn_cuda_family qn_cuda_vq_family = {kernels, sizeof kernels};
