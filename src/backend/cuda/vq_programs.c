/* vq_mm on CUDA: the programs of a plan, as the cuts of vq_cuts.c have them. */
#include "backend/cuda/vq.h"

/* Number of a float format + 1; 0: absent. */
static int32_t optional_format(const qn_op_desc *desc, int32_t slot)
{
    return qn_cuda_vq_given(desc, slot) ? qn_cuda_float_format(qn_cuda_vq_tensor(desc, slot)->format) + 1 : 0;
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
    qn_cuda_define(p, "X_FORMAT",
                   qn_cuda_vq_turns_in(desc, vq) ? QN_MM_F32 : qn_cuda_float_format(desc->in[QN_VQMM_X].format));
    qn_cuda_define(p, "ROWS", QN_CUDA_VQ_DIRECT_ROWS);
    qn_cuda_define(p, "RAW", qn_cuda_vq_turns_out(desc, vq));
    switch (vq->format) {
    case QN_VQ_AQLM:
        qn_cuda_define(p, "BOOKS", vq->codebooks);
        qn_cuda_define(p, "BITS", vq->bits);
        qn_cuda_define(p, "CODE_BYTES", vq->packed ? 0 : qn_cuda_vq_stored_bits(desc, vq) / 8);
        qn_cuda_define(p, "VECTOR", vq->in_group);
        qn_cuda_define(p, "OUT_GROUP", vq->out_group);
        qn_cuda_define(p, "BOOK_FORMAT", qn_cuda_float_format(qn_cuda_vq_tensor(desc, QN_VQ_CODEBOOKS)->format));
        qn_cuda_define(p, "SCALE_FORMAT", qn_cuda_float_format(qn_cuda_vq_tensor(desc, QN_VQ_SCALES)->format));
        break;
    case QN_VQ_QUIP_E8P:
        qn_cuda_define(p, "CODEBOOK", qn_cuda_vq_codebook(vq));
        qn_cuda_define(p, "WSCALE_FORMAT",
                       qn_cuda_vq_given(desc, QN_VQ_WSCALE)
                           ? qn_cuda_float_format(qn_cuda_vq_tensor(desc, QN_VQ_WSCALE)->format)
                           : 0);
        break;
    case QN_VQ_VPTQ:
        qn_cuda_define(p, "VECTOR", vq->vector_len);
        qn_cuda_define(p, "ENTRIES", vq->entries);
        qn_cuda_define(p, "RES_ENTRIES", vq->res_entries);
        qn_cuda_define(p, "OUTLIER_ENTRIES", vq->outlier_entries);
        qn_cuda_define(p, "BITS", qn_vq_bits_for(vq->entries));
        qn_cuda_define(p, "RES_BITS", qn_vq_bits_for(vq->res_entries));
        qn_cuda_define(p, "OUTLIER_VECTOR", vq->outlier_size ? vq->outlier_len : 1);
        qn_cuda_define(p, "BOOK_FORMAT", qn_cuda_float_format(qn_cuda_vq_tensor(desc, QN_VQ_CENTROIDS)->format));
        qn_cuda_define(p, "RES_FORMAT", qn_max_i64(0, optional_format(desc, QN_VQ_RES_CENTROIDS) - 1));
        qn_cuda_define(p, "OUTLIER_FORMAT", qn_max_i64(0, optional_format(desc, QN_VQ_OUTLIER_CENTROIDS) - 1));
        qn_cuda_define(p, "IN_SCALE", optional_format(desc, QN_VQ_WEIGHT_SCALE));
        qn_cuda_define(p, "IN_SHIFT", optional_format(desc, QN_VQ_WEIGHT_BIAS));
        break;
    case QN_VQ_GPTVQ: break;
    }
}

static void unpack_program(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, qn_cuda_program *p)
{
    direct_program(desc, vq, p);
    p->entry = "qn_vq_unpack";
    qn_cuda_define(p, "UNPACK", 1);
    /* what f16 may not hold as it is */
    const qn_format books = vq->format == QN_VQ_AQLM ? qn_cuda_vq_tensor(desc, QN_VQ_CODEBOOKS)->format : QN_F32;
    qn_cuda_define(p, "MEASURED", vq->format != QN_VQ_QUIP_E8P && books != QN_F16);
    if (vq->format == QN_VQ_VPTQ) {
        const qn_cuda_vq_unpack_cut c = qn_cuda_vq_unpack_cut_of(vq, device);
        p->shared_bytes = c.shared_bytes;
        qn_cuda_define(p, "UNPACK_THREADS", c.threads);
        qn_cuda_define(p, "KEPT", c.kept);
        qn_cuda_define(p, "RES_FAR", c.res_far);
    }
}

static void wide_program(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, int32_t tokens,
                         qn_cuda_program *p)
{
    const qn_cuda_vq_wide_cut c = qn_cuda_vq_wide_cut_of(vq, device, tokens);
    const qn_format bias = desc->in[QN_VQMM_BIAS].format;
    const int turned = qn_cuda_vq_turns_out(desc, vq), aqlm = vq->format == QN_VQ_AQLM;
    p->source = "vq_wide.cu";
    p->entry = "qn_vq_wide";
    p->shared_bytes = c.shared_bytes;
    qn_cuda_define(p, "FORMAT", number_of(vq->format));
    qn_cuda_define(p, "TOKENS", tokens);
    qn_cuda_define(p, "GROUPS", c.groups);
    qn_cuda_define(p, "PAIR", c.pair);
    qn_cuda_define(p, "STAGES", c.stages);
    qn_cuda_define(p, "OUT", turned ? QN_MM_F32 : out_format(desc));
    qn_cuda_define(p, "BIAS", bias && !turned ? qn_cuda_float_format(bias) + 1 : 0);
    qn_cuda_define(p, "SCALE_FORMAT", aqlm ? optional_format(desc, QN_VQ_SCALES) : 0);
    qn_cuda_define(p, "WSCALE_FORMAT", turned ? 0 : optional_format(desc, QN_VQ_WSCALE));
    qn_cuda_define(p, "COPIES", c.copies);
    if (vq->format == QN_VQ_QUIP_E8P) {
        qn_cuda_define(p, "HOT", 256);
        qn_cuda_define(p, "CODEBOOK", qn_cuda_vq_codebook(vq));
        return;
    }
    const int64_t entries = aqlm ? INT64_C(1) << vq->bits : 256;
    qn_cuda_define(p, "HOT", entries);
    qn_cuda_define(p, "BOOKS", aqlm ? vq->codebooks : 1);
    qn_cuda_define(p, "BITS", aqlm ? vq->bits : 8);
    qn_cuda_define(p, "STORED", qn_cuda_vq_stored_bits(desc, vq));
    qn_cuda_define(p, "VECTOR", aqlm ? vq->in_group : 4);
    qn_cuda_define(p, "ENTRIES", entries);
}

static void tensor_program(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_vq_cut *t, qn_cuda_program *p)
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
    if (t->slices > 1) {
        qn_cuda_define(p, "SLICES", t->slices);
    }
    if (quip) {
        qn_cuda_define(p, "CODEBOOK", qn_cuda_vq_codebook(vq));
        return;
    }
    qn_cuda_define(p, "BOOKS", aqlm ? vq->codebooks : 1);
    qn_cuda_define(p, "BITS", aqlm ? vq->bits : 8);
    qn_cuda_define(p, "STORED", qn_cuda_vq_stored_bits(desc, vq));
    qn_cuda_define(p, "VECTOR", aqlm ? vq->in_group : 4);
    qn_cuda_define(p, "ENTRIES", aqlm ? INT64_C(1) << vq->bits : 256);
}

static void side_program(const qn_op_desc *desc, const qn_vq *vq, const char *entry, int32_t number, qn_cuda_program *p)
{
    const int turned = qn_cuda_vq_turns_in(desc, vq);
    p->source = "vq_side.cu";
    p->entry = entry;
    define_common(desc, vq, p);
    qn_cuda_define(p, "ENTRY", number);
    qn_cuda_define(p, "SCALE_FORMAT", vq->format == QN_VQ_AQLM ? optional_format(desc, QN_VQ_SCALES) : 0);
    qn_cuda_define(p, "WSCALE_FORMAT", optional_format(desc, QN_VQ_WSCALE));
    qn_cuda_define(p, "X_FORMAT", turned ? QN_MM_F32 : qn_cuda_float_format(desc->in[QN_VQMM_X].format));
}

/* What transforms of x and y need to know. */
static void define_turns(const qn_op_desc *desc, const qn_vq *vq, qn_cuda_program *p)
{
    define_common(desc, vq, p);
    qn_cuda_define(p, "X_FORMAT", qn_cuda_float_format(desc->in[QN_VQMM_X].format));
    qn_cuda_define(p, "SU_FORMAT", optional_format(desc, QN_VQ_SU));
    qn_cuda_define(p, "SV_FORMAT", optional_format(desc, QN_VQ_SV));
    qn_cuda_define(p, "WH_FORMAT", optional_format(desc, QN_VQ_SCALE_WH));
    qn_cuda_define(p, "WSCALE_FORMAT", optional_format(desc, QN_VQ_WSCALE));
}

static int32_t turn_parts(const qn_vq *vq, const qn_cuda_device *device, int input)
{
    const int64_t length = input ? vq->k : vq->n;
    return length > 0 ? qn_cuda_vq_turn_parts(length, device) : 1;
}

static void turn_program(const qn_op_desc *desc, const qn_vq *vq, int input, int32_t parts, qn_cuda_program *p)
{
    const int64_t length = input ? vq->k : vq->n;
    p->source = "vq_turn.cu";
    p->entry = "qn_vq_turn";
    p->shared_bytes = length > 0 ? (int32_t)qn_cuda_vq_turn_bytes(length, parts) : 0;
    define_turns(desc, vq, p);
    qn_cuda_define(p, "INPUT", input);
    qn_cuda_define(p, "PARTS", parts);
}

static void whole_program(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, int input,
                          qn_cuda_program *p)
{
    const int64_t length = input ? vq->k : vq->n;
    p->source = "vq_turn_rows.cu";
    p->entry = "qn_vq_turn_rows";
    p->shared_bytes = (int32_t)qn_cuda_vq_turn_bytes(length, 1);
    define_turns(desc, vq, p);
    qn_cuda_define(p, "INPUT", input);
    qn_cuda_define(p, "THREADS", qn_cuda_vq_whole_of(length, device).threads);
}

static void points_program(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, int turned, int fused,
                           qn_cuda_program *p)
{
    const int64_t tiles = qn_cuda_vq_points_tiles(vq, device, fused);
    p->source = "vq_points.cu";
    p->entry = "qn_vq_points";
    p->shared_bytes = (int32_t)qn_cuda_vq_points_bytes(vq, QN_CUDA_VQ_POINTS_ROWS, tiles, turned, fused);
    qn_cuda_define(p, "PLANES", qn_cuda_vq_points_planes(vq));
    qn_cuda_define(p, "TURNED", turned);
    qn_cuda_define(p, "FUSED", fused);
    qn_cuda_define(p, "TILES", qn_cuda_vq_points_unit(tiles, fused));
    if (fused) {
        p->wide_clusters = QN_CUDA_VQ_POINTS_CLUSTER > 8;
        qn_cuda_define(p, "CLUSTER", QN_CUDA_VQ_POINTS_CLUSTER);
    } else {
        qn_cuda_define(p, "RAW", qn_cuda_vq_turns_out(desc, vq));
    }
    if (turned) {
        define_turns(desc, vq, p);
        return;
    }
    define_common(desc, vq, p);
    qn_cuda_define(p, "X_FORMAT",
                   qn_cuda_vq_turns_in(desc, vq) ? QN_MM_F32 : qn_cuda_float_format(desc->in[QN_VQMM_X].format));
    qn_cuda_define(p, "WSCALE_FORMAT", optional_format(desc, QN_VQ_WSCALE));
}

static void points_cut_program(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device,
                               qn_cuda_program *p)
{
    const qn_cuda_vq_points_cut c = qn_cuda_vq_points_cut_of(desc, vq, device);
    p->source = "vq_points_cut.cu";
    p->entry = "qn_vq_points_cut";
    p->shared_bytes = c.shared_bytes;
    p->most_shared = 1;
    qn_cuda_define(p, "SLOW", vq->k / (4 * QN_VQ_SPAN));
    qn_cuda_define(p, "INNER", c.inner);
    qn_cuda_define(p, "PAIR", c.pair);
    qn_cuda_define(p, "X_FORMAT", qn_cuda_float_format(desc->in[QN_VQMM_X].format));
    qn_cuda_define(p, "SU_FORMAT", optional_format(desc, QN_VQ_SU));
}

static void points_join_program(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device,
                                qn_cuda_program *p)
{
    p->shared_bytes = qn_cuda_vq_points_cut_of(desc, vq, device).join_bytes;
    p->most_shared = 1;
    p->source = "vq_points_join.cu";
    p->entry = "qn_vq_points_join";
    define_common(desc, vq, p);
    qn_cuda_define(p, "COLUMNS", qn_cuda_vq_join_columns(vq));
    qn_cuda_define(p, "SV_FORMAT", optional_format(desc, QN_VQ_SV));
    qn_cuda_define(p, "WSCALE_FORMAT", optional_format(desc, QN_VQ_WSCALE));
}

static void along_program(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, int32_t rows,
                          qn_cuda_program *p)
{
    const qn_cuda_vq_along_cut c = qn_cuda_vq_along_cut_of(desc, vq, device, rows);
    p->source = "vq_along.cu";
    p->entry = "qn_vq_along";
    p->shared_bytes = c.shared_bytes;
    define_common(desc, vq, p);
    qn_cuda_define(p, "ROWS", c.rows);
    qn_cuda_define(p, "FAR", c.far);
    qn_cuda_define(p, "ENTRIES", vq->entries);
    qn_cuda_define(p, "BITS", qn_vq_bits_for(vq->entries));
    qn_cuda_define(p, "COPIES", c.copies);
    qn_cuda_define(p, "RES_ENTRIES", vq->res_entries);
    qn_cuda_define(p, "RES_BITS", qn_vq_bits_for(vq->res_entries));
    qn_cuda_define(p, "RES_COPIES", c.res_copies);
    qn_cuda_define(p, "BOOK_FORMAT", qn_cuda_float_format(qn_cuda_vq_tensor(desc, QN_VQ_CENTROIDS)->format));
    qn_cuda_define(p, "X_FORMAT", qn_cuda_float_format(desc->in[QN_VQMM_X].format));
    qn_cuda_define(p, "SCALE_FORMAT", optional_format(desc, QN_VQ_WEIGHT_SCALE));
    qn_cuda_define(p, "SHIFT_FORMAT", optional_format(desc, QN_VQ_WEIGHT_BIAS));
    qn_cuda_define(p, "PERM", qn_cuda_vq_given(desc, QN_VQ_PERM));
}

static void sums_program(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, qn_cuda_program *p)
{
    const qn_cuda_vq_sums_cut c = qn_cuda_vq_sums_cut_of(vq, device);
    p->source = "vq_sums.cu";
    p->entry = "qn_vq_sums";
    p->shared_bytes = c.shared_bytes;
    qn_cuda_define(p, "BOOKS", vq->codebooks);
    qn_cuda_define(p, "VECTOR", vq->in_group);
    qn_cuda_define(p, "X_FORMAT", qn_cuda_float_format(desc->in[QN_VQMM_X].format));
    qn_cuda_define(p, "BOOK_FORMAT", qn_cuda_float_format(qn_cuda_vq_tensor(desc, QN_VQ_CODEBOOKS)->format));
    qn_cuda_define(p, "SLOTS", c.slots);
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

static void exchange_program(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, qn_cuda_program *p)
{
    const qn_cuda_vq_exchange_cut c = qn_cuda_vq_exchange_cut_of(vq, device);
    p->source = "vq_exchange.cu";
    p->entry = "qn_vq_exchange";
    p->shared_bytes = c.shared_bytes;
    p->cluster = QN_CUDA_VQ_EXCHANGE_CLUSTER;
    p->threads = 512;
    qn_cuda_define(p, "BITS", vq->bits);
    qn_cuda_define(p, "VECTOR", vq->in_group);
    qn_cuda_define(p, "X_FORMAT", qn_cuda_float_format(desc->in[QN_VQMM_X].format));
    qn_cuda_define(p, "TASKS", c.tasks);
    qn_cuda_define(p, "STAGED", c.staged);
    qn_cuda_define(p, "IN_SHARED", c.in_shared);
    qn_cuda_define(p, "IN_REGISTERS", c.in_registers);
}

static void books_program(const qn_op_desc *desc, const qn_vq *vq, const qn_cuda_device *device, qn_cuda_program *p)
{
    const qn_cuda_vq_books_cut c = qn_cuda_vq_books_cut_of(vq, device);
    const qn_format bias = desc->in[QN_VQMM_BIAS].format;
    p->source = "vq_books.cu";
    p->entry = "qn_vq_books";
    p->shared_bytes = c.shared_bytes;
    p->cluster = c.cluster > 1 ? c.cluster : 0;
    p->threads = QN_VQ_BOOKS_THREADS;
    qn_cuda_define(p, "X_FORMAT", qn_cuda_float_format(desc->in[QN_VQMM_X].format));
    qn_cuda_define(p, "OUT", out_format(desc));
    qn_cuda_define(p, "BIAS", bias ? qn_cuda_float_format(bias) + 1 : 0);
    qn_cuda_define(p, "CLUSTER", c.cluster);
    qn_cuda_define(p, "PARTS", c.units > 0);
    qn_cuda_define(p, "TILES", c.each);
    qn_cuda_define(p, "TEAMS", c.teams);
    qn_cuda_define(p, "EARLY", c.early);
}

static void books_join_program(const qn_op_desc *desc, qn_cuda_program *p)
{
    const qn_format bias = desc->in[QN_VQMM_BIAS].format;
    p->source = "vq_books_join.cu";
    p->entry = "qn_vq_books_join";
    qn_cuda_define(p, "OUT", out_format(desc));
    qn_cuda_define(p, "BIAS", bias ? qn_cuda_float_format(bias) + 1 : 0);
}

int32_t qn_cuda_vq_programs(const qn_op_desc *desc, const qn_cuda_device *device, int full, qn_cuda_program *out)
{
    const qn_vq vq = qn_cuda_vq_describe(desc);
    const qn_cuda_vq_places p = qn_cuda_vq_places_of(desc, &vq, device, full);
    direct_program(desc, &vq, &out[p.direct]);
    if (p.turn_in >= 0) {
        turn_program(desc, &vq, 1, turn_parts(&vq, device, 1), &out[p.turn_in]);
    }
    if (p.whole_in >= 0) {
        whole_program(desc, &vq, device, 1, &out[p.whole_in]);
    }
    if (p.turn_out >= 0) {
        turn_program(desc, &vq, 0, turn_parts(&vq, device, 0), &out[p.turn_out]);
    }
    if (p.whole_out >= 0) {
        whole_program(desc, &vq, device, 0, &out[p.whole_out]);
    }
    if (p.spread_in >= 0) {
        turn_program(desc, &vq, 1, 0, &out[p.spread_in]);
    }
    if (p.spread_out >= 0) {
        turn_program(desc, &vq, 0, 0, &out[p.spread_out]);
    }
    if (p.finish >= 0) {
        side_program(desc, &vq, "qn_vq_finish", 1, &out[p.finish]);
        qn_cuda_define(&out[p.finish], "RAW", qn_cuda_vq_turns_out(desc, &vq));
    }
    if (p.sums >= 0) {
        sums_program(desc, &vq, device, &out[p.sums]);
    }
    if (p.exchange >= 0) {
        exchange_program(desc, &vq, device, &out[p.exchange]);
    }
    if (p.books >= 0) {
        books_program(desc, &vq, device, &out[p.books]);
    }
    if (p.books_join >= 0) {
        books_join_program(desc, &out[p.books_join]);
    }
    if (p.bytes >= 0) {
        out[p.bytes].source = "vq_bytes.cu";
        out[p.bytes].entry = "qn_vq_bytes";
        out[p.bytes].shared_bytes = QN_VQ_BYTES_SHARED;
        qn_cuda_define(&out[p.bytes], "X_FORMAT", qn_cuda_float_format(desc->in[QN_VQMM_X].format));
    }
    if (p.points >= 0) {
        points_program(desc, &vq, device, p.turned, p.fused, &out[p.points]);
    }
    if (p.points_cut >= 0) {
        points_cut_program(desc, &vq, device, &out[p.points_cut]);
        points_join_program(desc, &vq, device, &out[p.points_join]);
    }
    for (int32_t i = 0; p.along >= 0 && i < QN_CUDA_VQ_FEW_PROGRAMS; i++) {
        along_program(desc, &vq, device, i ? QN_CUDA_VQ_ALONG_ROWS : 1, &out[p.along + i]);
    }
    for (int32_t i = 0; p.few >= 0 && i < QN_CUDA_VQ_FEW_PROGRAMS; i++) {
        qn_cuda_vq_few_program(desc, &vq, device, i + 1, &out[p.few + i]);
    }
    if (p.tensor >= 0) {
        const qn_cuda_vq_cut first = qn_cuda_vq_cut_for(desc, &vq, device, qn_cuda_vq_tokens(0));
        side_program(desc, &vq, "qn_vq_rows", 0, &out[p.rows]);
        qn_cuda_define(&out[p.rows], "LAYOUT", vq.format == QN_VQ_QUIP_E8P);
        qn_cuda_define(&out[p.rows], "SCALED", qn_cuda_vq_turns_in(desc, &vq) || desc->in[QN_VQMM_X].format != QN_F16);
        qn_cuda_define(&out[p.rows], "NATURAL", first.fusion == 1);
        if (p.sliced >= 0) {
            const qn_cuda_vq_cut t = qn_cuda_vq_cut_for(desc, &vq, device, QN_VQ_SLICED_ROWS);
            tensor_program(desc, &vq, &t, &out[p.sliced]);
        }
        for (int32_t i = 0; i < p.tensors; i++) {
            const qn_cuda_vq_cut t = qn_cuda_vq_cut_for(desc, &vq, device, qn_cuda_vq_tokens(i));
            tensor_program(desc, &vq, &t, &out[p.tensor + i]);
        }
    }
    const int scaled = qn_cuda_vq_turns_in(desc, &vq) || desc->in[QN_VQMM_X].format != QN_F16;
    if (p.dense >= 0) {
        const qn_dense_form form = qn_cuda_vq_dense_form(desc, &vq);
        unpack_program(desc, &vq, device, &out[p.unpack]);
        side_program(desc, &vq, "qn_vq_rows", 0, &out[p.dense_rows]);
        qn_cuda_define(&out[p.dense_rows], "PLAIN", 1);
        qn_cuda_define(&out[p.dense_rows], "PERM", qn_cuda_vq_given(desc, QN_VQ_PERM));
        qn_cuda_define(&out[p.dense_rows], "SCALED", scaled);
        qn_dense_programs(&form, device, &out[p.dense]);
    }
    if (p.wide >= 0) {
        side_program(desc, &vq, "qn_vq_rows", 0, &out[p.wide_rows]);
        qn_cuda_define(&out[p.wide_rows], "LAYOUT", vq.format == QN_VQ_QUIP_E8P);
        qn_cuda_define(&out[p.wide_rows], "SCALED", scaled);
        qn_cuda_define(&out[p.wide_rows], "WIDE", 1);
        for (int32_t i = 0; i < p.wides; i++) {
            wide_program(desc, &vq, device, qn_cuda_vq_wide_tokens(i), &out[p.wide + i]);
        }
    }
    return p.count;
}
