/* vq_mm with E8P12 weights as a product of a chain: kernels/cuda/mm_points.cu, where both transforms are given and a
 * cluster has work for little more than the launch takes. */
#include "backend/cuda/vq.h"

#include <math.h>
#include <string.h>

#include "format/lattice.h"

enum {
    THREADS = 512,
    RESIDENT = 1, /* block of a multiprocessor; two of half the threads were slower */
    WARPS = THREADS / 32,
    CLUSTER = QN_CUDA_VQ_POINTS_CLUSTER,
    MOST_UNITS = 6, /* of a warp, which are registers */
    MOST_TWICE = 5, /* with residuals */
    X_BYTES = 272,  /* digits of 64 elements of x: UNIT_BYTES there */
    MOST_LENGTH = 2048,
    MOST_FAST = 128 /* elements of a row of a base's matrix, which a warp transforms */
};

/* Warps of a block that a tile of 16 rows has. */
static int64_t dealt(int64_t n)
{
    return qn_max_i64(1, WARPS / qn_ceil_div(n / 16, CLUSTER));
}

static int64_t units_of(int64_t n, int64_t k)
{
    return qn_ceil_div(k / 64, dealt(n));
}

static int64_t most_units(const qn_vq *vq)
{
    return qn_cuda_vq_codebook(vq) == 1 ? MOST_UNITS : MOST_TWICE;
}

static int turns(int64_t length)
{
    const int64_t base = qn_hadamard_base(length), fast = base ? length / base : 0;
    return length > 0 && length <= MOST_LENGTH &&
           (base == 1 ? fast >= 4 : base <= QN_MM_TURN_BASE && fast >= 8 && fast <= MOST_FAST);
}

int qn_cuda_mm_points_takes(const qn_op_desc *desc, const qn_args *args, const qn_cuda_device *device)
{
    const qn_vq vq = qn_cuda_vq_describe(desc);
    const qn_view *codes = &args->in[QN_VQMM_FIRST + QN_VQ_QIDXS];
    return vq.format == QN_VQ_QUIP_E8P && device->target == QN_SM_90A && qn_cuda_vq_turns_in(desc, &vq) &&
           qn_cuda_vq_turns_out(desc, &vq) && desc->attr[QN_ATTR_LEVEL].i == QN_VQ_LEVEL_AUTO && turns(vq.n) &&
           turns(vq.k) && units_of(vq.n, vq.k) <= most_units(&vq) &&
           ((uint64_t)(uintptr_t)codes->data | (uint64_t)codes->strides[0]) % 8 == 0;
}

static void turn_of(int64_t length, int transposed, qn_cuda_mm_turn *t)
{
    t->base = (int32_t)qn_hadamard_base(length);
    t->fast = (int32_t)(length / t->base);
    t->scale = (float)(1.0 / sqrt((double)length));
    for (int32_t i = 0; i < t->base; i++) {
        t->rows[i] = 0;
        for (int32_t j = 0; j < t->base; j++) {
            const int sign = transposed ? qn_hadamard_sign(t->base, j, i) : qn_hadamard_sign(t->base, i, j);
            t->rows[i] |= (unsigned long long)(sign < 0) << j;
        }
    }
}

void qn_cuda_mm_points_bind(const qn_op_desc *desc, const qn_args *args, int32_t i, qn_cuda_mm_points *a)
{
    const qn_vq vq = qn_cuda_vq_describe(desc);
    const qn_view *t = args->in + QN_VQMM_FIRST;
    a->turns[i].su = t[QN_VQ_SU].data;
    a->turns[i].sv = t[QN_VQ_SV].data;
    a->turns[i].wscale = t[QN_VQ_WSCALE].data;
    a->turns[i].scale_wh = t[QN_VQ_SCALE_WH].data;
    turn_of(vq.n, 0, &a->turns[i].out);
    turn_of(vq.k, 1, &a->in);
    a->resid_inverse = (float)(1.0 / vq.resid_scale);
}

/* The row in its transform: by tensor cores, or as floats before and after. */
static int64_t turn_bytes(const qn_cuda_mm_turn *t)
{
    return t->base > 1 ? QN_MM_TURN_BYTES(t->base, t->fast) : 8 * t->fast;
}

/* Format of a tensor of floats + 1, 0: there is none. */
static int32_t number_of(const qn_op_desc *desc, int32_t slot)
{
    const qn_format format = qn_cuda_vq_tensor(desc, slot)->format;
    return format ? qn_cuda_float_format(format) + 1 : 0;
}

qn_cuda_geometry qn_cuda_mm_points_define(const qn_op_desc *desc, const qn_cuda_mm_points *a, int32_t parts,
                                          qn_cuda_program *program)
{
    const qn_vq vq = qn_cuda_vq_describe(desc);
    const qn_format bias = desc->in[QN_VQMM_BIAS].format;
    const int32_t out = desc->attr[QN_ATTR_OUT].i;
    const int64_t items = qn_ceil_div(a->mm.k, 4 * THREADS);
    int64_t units = 1, warps = 1, chunks = 1;
    for (int32_t i = 0; i < parts; i++) {
        const int64_t n = a->mm.part[i].n;
        units = qn_max_i64(units, units_of(n, a->mm.k));
        warps = qn_max_i64(warps, dealt(n));
        chunks = qn_max_i64(chunks, n / qn_min_i64(a->turns[i].out.fast, 16));
    }
    program->source = "mm_points.cu";
    program->entry = "qn_mm_points";
    program->shared_bytes = (int32_t)(16 * THREADS * items + X_BYTES * (a->mm.k / 64 + 1) + turn_bytes(&a->in));
    program->wide_clusters = CLUSTER > 8;
    program->most_shared = 1;
    qn_cuda_define(program, "B_FORMAT", 0); /* of mm_unpack.h, whose units are not used */
    qn_cuda_define(program, "ALIGNED", 1);
    qn_cuda_define(program, "CODEBOOK", qn_cuda_vq_codebook(&vq));
    qn_cuda_define(program, "CLUSTER", CLUSTER);
    qn_cuda_define(program, "THREADS", THREADS);
    qn_cuda_define(program, "RESIDENT", RESIDENT);
    qn_cuda_define(program, "UNITS", units);
    qn_cuda_define(program, "DEALT", warps);
    qn_cuda_define(program, "DEPTH", a->mm.k);
    qn_cuda_define(program, "TURN_BASE", a->in.base);
    qn_cuda_define(program, "TURN_FAST", a->in.fast);
    qn_cuda_define(program, "TERMS", 4 * qn_ceil_div(chunks, 16));
    qn_cuda_define(program, "SU_FORMAT", number_of(desc, QN_VQ_SU) - 1);
    qn_cuda_define(program, "SV_FORMAT", number_of(desc, QN_VQ_SV) - 1);
    qn_cuda_define(program, "WSCALE_FORMAT", number_of(desc, QN_VQ_WSCALE));
    qn_cuda_define(program, "WH_FORMAT", number_of(desc, QN_VQ_SCALE_WH));
    qn_cuda_define(program, "BIAS", bias ? qn_cuda_float_format(bias) + 1 : 0);
    qn_cuda_define(program, "OUT", out == QN_OUT_F32 ? QN_MM_F32 : out == QN_OUT_F16 ? QN_MM_F16 : QN_MM_BF16);
    qn_cuda_define(program, "ITEMS", items);
    return (qn_cuda_geometry){.grid = {(uint32_t)(parts * CLUSTER), 1, 1},
                              .block = {THREADS, 1, 1},
                              .shared_bytes = (uint32_t)program->shared_bytes,
                              .cluster = CLUSTER,
                              .dependent = 1};
}
