/* vq_mm of every format, any sizes: rows of weights are decoded through tables of
 * floats (kernels/common/vq.h) and multiplied by the tiles of the f32 matmul.
 *
 * Packed: streams of codes without gaps, one a row of codes (12-bit codes take 12
 * bits), tables of f32 (large ones of vectors of eight as they are stored, if in f16 or bf16), and the side section
 * (vq_side.h). Formats as runs of a row:
 *     aqlm       one run: its codebooks
 *     quip_e8p   one run: all E8P points as a book of 65536, the residual's points divided by its scale as another
 *     vptq       the outliers, then a run a group: vectors of one element, whose stride is the vector length
 *     gptvq      a run of 64 groups a tile, a book a tile with its scale multiplied in
 * Grid: blocks of QN_MM_ROWS rows by QN_MM_COLS columns, fixed by the shapes. Each output is the chain of the f32
 * tiles (kernels/common/mm.h): bits depend on the level, K and the output's own row and column. */
#include "backend/cpu/run_vq_books.h"

#include <string.h>

#include "backend/cpu/sizes.h"
#include "backend/cpu/vq_side.h"
#include "base/checked.h"
#include "format/format.h"
#include "format/lattice.h"
#include "ref/slots.h"

#define FEW_ROWS 8
#define FEW_COLS 4
#define CHUNK 512
#define DOT_VECTOR 8
#define LARGE_TABLE (128 * 1024) /* elements of a set of books */

_Static_assert(CHUNK % QN_MM_CHAIN == 0, "chains are whole");

/* ---- packed body ---- */

typedef struct books_layout {
    qn_vq_side_layout side;
    int64_t streams, stream_bytes; /* rows of codes, and of outliers' codes behind them */
    int64_t outlier_streams, outlier_bytes;
    int64_t books, entries[QN_VQ_BOOKS]; /* of a run */
    int32_t bits[QN_VQ_BOOKS];
    int64_t vector, stride, groups; /* groups of 1 column in vptq: of one group of columns */
    int64_t tables;                 /* sets of books: groups of vptq, tiles of gptvq, 1 */
    qn_vq_entry entry;
    size_t entry_bytes;
    size_t outliers, table, outlier_table, side_at, total;
} books_layout;

static int64_t table_elements(const books_layout *l)
{
    int64_t count = 0;
    for (int64_t c = 0; c < l->books; c++) {
        count += l->entries[c] * l->stride;
    }
    return count;
}

static void add_book(books_layout *l, int64_t entries)
{
    l->entries[l->books] = entries;
    l->bits[l->books++] = (int32_t)qn_vq_bits_for(entries);
}

/* Large tables of vectors of eight stay as they are stored where that is in 16 bits: half as large they are in the
 * second cache. Of small ones widening costs more. */
static qn_vq_entry entry_of(const qn_op_desc *desc, const qn_vq *vq, int64_t elements)
{
    const int vptq = vq->format == QN_VQ_VPTQ;
    if (!(vptq ? vq->vector_len == DOT_VECTOR
               : vq->format == QN_VQ_AQLM && vq->in_group == DOT_VECTOR && vq->out_group == 1)) {
        return QN_VQ_ENTRY_F32;
    }
    if (elements <= LARGE_TABLE) {
        return QN_VQ_ENTRY_F32;
    }
    const qn_shape *const tensors = desc->in + QN_VQMM_FIRST;
    const qn_format format = tensors[vptq ? QN_VQ_CENTROIDS : QN_VQ_CODEBOOKS].format;
    if (vptq && vq->res_entries && tensors[QN_VQ_RES_CENTROIDS].format != format) {
        return QN_VQ_ENTRY_F32;
    }
    return format == QN_F16 ? QN_VQ_ENTRY_F16 : (format == QN_BF16 ? QN_VQ_ENTRY_BF16 : QN_VQ_ENTRY_F32);
}

static books_layout layout_of(const qn_op_desc *desc, const qn_vq *vq)
{
    books_layout l = {.side = qn_vq_side_layout_of(desc, vq), .streams = vq->n, .vector = 1, .tables = 1};
    switch (vq->format) {
    case QN_VQ_AQLM:
        l.streams = vq->n / vq->out_group;
        l.vector = vq->in_group;
        l.stride = vq->out_group * vq->in_group;
        for (int64_t c = 0; c < vq->codebooks; c++) {
            add_book(&l, INT64_C(1) << vq->bits);
        }
        break;
    case QN_VQ_QUIP_E8P:
        l.vector = l.stride = 8;
        add_book(&l, 65536);
        if (vq->codebook != QN_VQ_E8P12) {
            add_book(&l, vq->codebook == QN_VQ_E8P12RVQ4B ? 65536 : 256);
        }
        break;
    case QN_VQ_VPTQ:
        l.streams = qn_ceil_div(vq->n, vq->vector_len) * vq->groups;
        l.stride = vq->vector_len;
        l.tables = vq->groups;
        add_book(&l, vq->entries);
        if (vq->res_entries) {
            add_book(&l, vq->res_entries);
        }
        if (vq->outlier_size) {
            l.outlier_streams = qn_ceil_div(vq->n, vq->outlier_len);
            l.outlier_bytes = vq->outlier_size * 2;
        }
        break;
    case QN_VQ_GPTVQ:
        l.vector = l.stride = 4;
        l.tables = qn_ceil_div(vq->n, QN_VQ_TILE) * qn_ceil_div(vq->k, QN_VQ_TILE);
        add_book(&l, 256);
        break;
    }
    int64_t bits = 0;
    for (int64_t c = 0; c < l.books; c++) {
        bits += l.bits[c];
    }
    l.groups = vq->format == QN_VQ_VPTQ ? vq->group_size : vq->k / l.vector;
    l.stream_bytes = qn_ceil_div(qn_min_i64(l.groups, INT64_MAX / 2048) * bits, 8);
    l.entry = entry_of(desc, vq, table_elements(&l));
    l.entry_bytes = l.entry == QN_VQ_ENTRY_F32 ? 4 : 2;
    size_t at = 0;
    (void)qn_size_place(&at, (size_t)l.streams, (size_t)l.stream_bytes);
    at = qn_size_add(at, QN_VQ_STREAM_PAD);
    l.outliers = qn_size_place(&at, (size_t)l.outlier_streams, (size_t)l.outlier_bytes);
    at = qn_size_add(at, QN_VQ_STREAM_PAD);
    at = qn_size_pad(at);
    l.table = qn_size_place(&at, (size_t)l.tables, (size_t)table_elements(&l) * l.entry_bytes);
    l.outlier_table = qn_size_place(&at, (size_t)(vq->outlier_entries * vq->outlier_len), sizeof(float));
    l.side_at = at;
    l.total = qn_size_add(at, l.side.total);
    return l;
}

static void put_bits(uint8_t *stream, int64_t first, int64_t count, uint32_t value)
{
    for (int64_t i = 0; i < count;) {
        const int64_t at = first + i, some = qn_min_i64(count - i, 8 - at % 8);
        stream[at / 8] = (uint8_t)(stream[at / 8] | (value >> i & ((1u << some) - 1)) << (at % 8));
        i += some;
    }
}

/* Code of book c, group g of stream s. */
static uint32_t code_of(const qn_vq *vq, int64_t s, int64_t g, int64_t c)
{
    uint32_t main = 0, residual = 0;
    switch (vq->format) {
    case QN_VQ_AQLM: return qn_vq_aqlm_code(vq, s, g, c, NULL);
    case QN_VQ_QUIP_E8P: return c ? qn_vq_quip_residual(vq, s, g) : qn_vq_quip_code(vq, s, g);
    case QN_VQ_VPTQ:
        qn_vq_vptq_index(vq, s % vq->groups, s / vq->groups, g, &main, &residual);
        return c ? residual : main;
    case QN_VQ_GPTVQ: break;
    }
    const qn_view *codes = &vq->tensor[QN_VQ_CODES];
    return ((const uint8_t *)codes->data + s * codes->strides[0])[g];
}

/* An entry's vectors. */
static void entry_values(const qn_vq *vq, int64_t set, int64_t c, int64_t entry, int64_t stride, float *to)
{
    const qn_view *t = vq->tensor;
    switch (vq->format) {
    case QN_VQ_AQLM: {
        const int64_t first = ((c << vq->bits) + entry) * stride;
        for (int64_t j = 0; j < stride; j += vq->in_group) {
            qn_vq_values(&t[QN_VQ_CODEBOOKS], first + j, vq->in_group, to + j);
        }
        break;
    }
    case QN_VQ_QUIP_E8P:
        if (c && vq->codebook == QN_VQ_E8P12RVQ3B) {
            qn_e8_decode((uint32_t)entry, to);
        } else {
            qn_e8p_decode((uint32_t)entry, to);
        }
        for (int j = 0; j < 8 && c; j++) {
            to[j] = (float)((double)to[j] / vq->resid_scale);
        }
        break;
    case QN_VQ_VPTQ:
        qn_vq_values(&t[c ? QN_VQ_RES_CENTROIDS : QN_VQ_CENTROIDS],
                     (set * (c ? vq->res_entries : vq->entries) + entry) * stride, stride, to);
        break;
    case QN_VQ_GPTVQ: {
        const double scale = qn_vq_value(&t[QN_VQ_CODEBOOK_SCALES], set, 1.0);
        qn_vq_values(&t[QN_VQ_CODEBOOKS], (set * 256 + entry) * 4, 4, to);
        for (int j = 0; j < 4; j++) {
            to[j] = (float)(scale * (double)to[j]);
        }
        break;
    }
    }
}

static void pack_entry(const books_layout *l, const qn_vq *vq, int64_t set, int64_t c, int64_t entry, char *to)
{
    float values[DOT_VECTOR]; /* of 16 bits */
    if (l->entry == QN_VQ_ENTRY_F32) {
        entry_values(vq, set, c, entry, l->stride, (float *)(void *)to);
        return;
    }
    entry_values(vq, set, c, entry, DOT_VECTOR, values);
    for (int j = 0; j < DOT_VECTOR; j++) { /* exact */
        ((uint16_t *)(void *)to)[j] =
            l->entry == QN_VQ_ENTRY_F16 ? qn_f32_to_f16(values[j]) : qn_f32_to_bf16(values[j]);
    }
}

static void pack_tables(const books_layout *l, const qn_vq *vq, char *table)
{
    for (int64_t set = 0; set < l->tables; set++) {
        for (int64_t c = 0; c < l->books; c++) {
            for (int64_t e = 0; e < l->entries[c]; e++) {
                pack_entry(l, vq, set, c, e, table);
                table += (size_t)l->stride * l->entry_bytes;
            }
        }
    }
}

static void pack_streams(const books_layout *l, const qn_vq *vq, uint8_t *streams, uint8_t *outliers)
{
    for (int64_t s = 0; s < l->streams; s++) {
        int64_t bit = 0, groups = l->groups;
        if (vq->format == QN_VQ_VPTQ) { /* the last group of columns may be shorter */
            groups = qn_min_i64(groups, vq->k - vq->outlier_size - s % vq->groups * vq->group_size);
        }
        for (int64_t g = 0; g < groups; g++) {
            for (int64_t c = 0; c < l->books; c++) {
                put_bits(streams + s * l->stream_bytes, bit, l->bits[c], code_of(vq, s, g, c));
                bit += l->bits[c];
            }
        }
    }
    const qn_view *indices = &vq->tensor[QN_VQ_OUTLIER_INDICES];
    for (int64_t s = 0; s < l->outlier_streams; s++) {
        memcpy(outliers + s * l->outlier_bytes, (const char *)indices->data + s * indices->strides[1],
               (size_t)l->outlier_bytes);
    }
}

static void pack_body(const books_layout *l, const qn_vq *vq, const qn_view *bias, char *body)
{
    memset(body, 0, l->total);
    if (vq->n == 0 || vq->k == 0) {
        qn_vq_side_pack(&l->side, vq, bias, body + l->side_at);
        return;
    }
    pack_streams(l, vq, (uint8_t *)body, (uint8_t *)body + l->outliers);
    pack_tables(l, vq, body + l->table);
    if (vq->outlier_size) {
        for (int64_t e = 0; e < vq->outlier_entries; e++) {
            qn_vq_values(&vq->tensor[QN_VQ_OUTLIER_CENTROIDS], e * vq->outlier_len, vq->outlier_len,
                         (float *)(void *)(body + l->outlier_table) + e * vq->outlier_len);
        }
    }
    qn_vq_side_pack(&l->side, vq, bias, body + l->side_at);
}

const char *qn_vq_books_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    const qn_vq_books_impl *impl = kernel->impl;
    return desc->attr[QN_ATTR_FORMAT].i == (int32_t)impl->format ? NULL : "made for another vector format";
}

size_t qn_vq_books_pack_bytes(const qn_kernel *kernel, const qn_op_desc *desc)
{
    (void)kernel;
    qn_vq vq;
    qn_vq_describe(desc, -1, desc->in[QN_VQMM_X].dims[1], &vq);
    return layout_of(desc, &vq).total;
}

void qn_vq_books_pack(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body)
{
    (void)kernel;
    qn_vq vq;
    qn_vq_bind(desc, args, &vq);
    const books_layout l = layout_of(desc, &vq);
    pack_body(&l, &vq, &args->in[QN_VQMM_BIAS], body);
}

/* ---- running ---- */

typedef struct books_job {
    const qn_vq_books_impl *impl;
    qn_vq vq;
    books_layout l;
    qn_vq_side side;
    const char *body;
    char *scratch; /* of thread 0: decoded columns, then lanes */
    size_t scratch_bytes, lanes_at;
} books_job;

/* Columns that are decoded together: few for few rows of x, which then are in the first cache, but whole vectors. */
static int64_t width_of(const qn_vq *vq, int64_t m)
{
    const int64_t few =
        vq->format == QN_VQ_VPTQ ? qn_max_i64(FEW_COLS, qn_min_i64(vq->vector_len, QN_VQ_ACROSS)) : FEW_COLS;
    return m <= FEW_ROWS ? few : QN_MM_COLS;
}

/* Whether weights are one run along K, which may be cut into chunks. */
static int one_run(const qn_vq_books_impl *impl, const qn_vq *vq)
{
    return impl->set->chunks &&
           ((vq->format == QN_VQ_AQLM && vq->out_group == 1 && CHUNK % vq->in_group == 0) ||
            (vq->format == QN_VQ_VPTQ && vq->outlier_size == 0 && vq->groups == 1 && vq->group_size >= vq->k));
}

static size_t scratch_of(const qn_vq_books_impl *impl, const qn_vq *vq, int64_t k_pad, int64_t m, size_t *lanes_at)
{
    const int64_t width = width_of(vq, m);
    const size_t decoded =
        one_run(impl, vq) ? (size_t)((width + FEW_ROWS) * CHUNK * 4) : qn_size_mul((size_t)width * 4, (size_t)k_pad);
    *lanes_at = qn_size_pad(decoded);
    return qn_size_add(*lanes_at, (size_t)(qn_min_i64(m, QN_MM_ROWS) * QN_MM_COLS * impl->parts->lanes * 4));
}

size_t qn_vq_books_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    size_t lanes_at;
    qn_vq vq;
    qn_vq_describe(desc, -1, desc->in[QN_VQMM_X].dims[1], &vq);
    const int64_t k_pad = (vq.k + QN_MM_PAD - 1) / QN_MM_PAD * QN_MM_PAD;
    const size_t scratch =
        qn_size_mul((size_t)threads, qn_size_pad(scratch_of(kernel->impl, &vq, k_pad, m, &lanes_at)));
    return qn_size_add(qn_size_add(qn_size_pad(qn_vq_side_bytes(&vq, m, threads)), scratch),
                       layout_of(desc, &vq).total);
}

/* Run number i of column n of weights and where its elements go; 0 when there is none left. */
static int run_at(const books_job *job, int64_t n, int64_t i, qn_vq_run *run, int64_t *at)
{
    const qn_vq *vq = &job->vq;
    const books_layout *l = &job->l;
    const char *table = job->body + l->table;
    int64_t stream = n, set = 0, offset = 0;
    *run = (qn_vq_run){.books = (int32_t)l->books,
                       .vector = (int32_t)l->vector,
                       .entry = l->entry,
                       .stride = l->stride,
                       .groups = l->groups};
    *at = 0;
    if (vq->format == QN_VQ_VPTQ) {
        const int outliers = vq->outlier_size > 0;
        if (outliers && i == 0) {
            run->books = 1;
            run->entry = QN_VQ_ENTRY_F32;
            run->stride = vq->outlier_len;
            run->bits[0] = 16;
            run->table[0] = (const float *)(const void *)(job->body + l->outlier_table) + n % vq->outlier_len;
            run->codes = (const uint8_t *)job->body + l->outliers + n / vq->outlier_len * l->outlier_bytes;
            run->groups = vq->outlier_size;
            return 1;
        }
        set = i - outliers;
        *at = vq->outlier_size + set * vq->group_size;
        run->groups = qn_min_i64(l->groups, vq->k - *at);
        if (set >= vq->groups || run->groups <= 0) {
            return 0;
        }
        stream = n / vq->vector_len * vq->groups + set;
        offset = n % vq->vector_len;
    } else if (vq->format == QN_VQ_GPTVQ) {
        *at = i * QN_VQ_TILE;
        if (*at >= vq->k) {
            return 0;
        }
        set = n / QN_VQ_TILE * qn_ceil_div(vq->k, QN_VQ_TILE) + i;
        run->groups = qn_min_i64(QN_VQ_TILE, vq->k - *at) / 4;
        run->first_bit = *at / 4 * 8;
    } else if (i > 0) {
        return 0;
    } else if (vq->format == QN_VQ_AQLM) {
        stream = n / vq->out_group;
        offset = n % vq->out_group * vq->in_group;
    }
    table += (size_t)(set * table_elements(l) + offset) * l->entry_bytes;
    for (int64_t c = 0; c < l->books; c++) {
        run->bits[c] = l->bits[c];
        run->table[c] = table;
        table += (size_t)(l->entries[c] * l->stride) * l->entry_bytes;
    }
    run->codes = (const uint8_t *)job->body + stream * l->stream_bytes;
    return 1;
}

/* Columns n to n + count - 1 of weights, `stride` floats apart. */
static void decode_columns(const books_job *job, int64_t n, int64_t count, float *out, int64_t stride)
{
    const qn_vq *vq = &job->vq;
    const int64_t v = vq->format == QN_VQ_VPTQ ? vq->vector_len : 1, outliers = vq->outlier_size > 0;
    qn_vq_run run;
    int64_t at;
    for (int64_t c = 0; c < count;) { /* vectors across columns as far as they go; outliers' may have another length */
        const int64_t some = qn_min_i64(qn_min_i64(count - c, v - (n + c) % v), QN_VQ_ACROSS);
        for (int64_t j = 0; j < some; j++) {
            for (int64_t i = 0; (v == 1 || i < outliers) && run_at(job, n + c + j, i, &run, &at); i++) {
                job->impl->set->decode(&run, out + (c + j) * stride + at);
            }
            for (int64_t i = job->side.k; i < job->side.k_pad; i++) {
                out[(c + j) * stride + i] = 0.0f;
            }
        }
        for (int64_t i = outliers; v > 1 && run_at(job, n + c, i, &run, &at); i++) {
            run.vector = (int32_t)some;
            job->impl->set->across(&run, out + c * stride + at, stride);
        }
        c += some;
    }
}

/* Whether rows are multiplied by vectors as they are looked up. */
static int takes_dots(const books_job *job, int64_t rows)
{
    const int across = job->vq.format == QN_VQ_VPTQ;
    return job->impl->set->dot && rows <= (across ? QN_VQ_ACROSS_ROWS : QN_VQ_DOT_ROWS) &&
           job->l.stride % DOT_VECTOR == 0 && (across || job->l.vector == DOT_VECTOR);
}

/* Few rows of x by columns of vectors of eight, which need not be stored. */
static void dot_columns(const books_job *job, const float *x, int64_t rows, int64_t col, int64_t cols, float *lanes)
{
    const qn_vq_side *side = &job->side;
    const int64_t width = job->impl->parts->lanes;
    qn_vq_run run;
    int64_t at;
    (void)run_at(job, col, 0, &run, &at);
    if (job->vq.format == QN_VQ_AQLM) {
        job->impl->set->dot(&run, job->l.stream_bytes, cols, x, side->k_pad, rows, lanes);
    } else {
        for (int64_t c = 0; c < cols; c += DOT_VECTOR) { /* whole vectors: of columns that are not there, too */
            (void)run_at(job, col + c, 0, &run, &at);
            job->impl->set->dot_across(&run, x, side->k_pad, rows, lanes + c * width);
        }
    }
    /* Tiles add the products of zeros behind K: a sum of -0 becomes 0. */
    const int64_t first = side->k_pad - side->k >= width ? 0 : side->k % width;
    for (int64_t i = 0; i < rows * QN_MM_COLS * width && side->k_pad > side->k; i++) {
        lanes[i] += i % width >= first ? 0.0f : -0.0f;
    }
}

/* Groups of columns from n on that are elements k to k + elements - 1, CHUNK floats apart; zeros behind K. run: of
 * a column of the block, with so many bits a group; codes: of column n, where each column has its own. */
static void decode_chunk(const books_job *job, qn_vq_run *run, int64_t bits, const uint8_t *codes, int64_t n,
                         int64_t count, int64_t k, int64_t elements, float *out)
{
    const qn_vq *vq = &job->vq;
    const int64_t v = vq->format == QN_VQ_VPTQ ? vq->vector_len : 1, some = qn_min_i64(elements, job->side.k - k);
    int64_t across, at;
    for (int64_t c = 0; c < count; c += across) {
        across = qn_min_i64(qn_min_i64(count - c, v - (n + c) % v), QN_VQ_ACROSS);
        if (vq->format == QN_VQ_VPTQ) {
            (void)run_at(job, n + c, 0, run, &at);
            run->vector = (int32_t)across;
        } else {
            run->codes = codes + c * job->l.stream_bytes;
        }
        run->first_bit = k / job->l.vector * bits;
        run->groups = some / job->l.vector;
        if (vq->format == QN_VQ_VPTQ) {
            job->impl->set->across(run, out + c * CHUNK, CHUNK);
        } else {
            job->impl->set->decode(run, out + c * CHUNK);
        }
    }
    for (int64_t c = 0; c < count && some < elements; c++) {
        memset(out + c * CHUNK + some, 0, (size_t)(elements - some) * sizeof *out);
    }
}

/* A chunk of K after the other: its weights, and few rows of x, which may be as far apart as the first cache's sets
 * repeat, are copies in the cache. */
static void by_chunks(const books_job *job, int64_t row, int64_t rows, int64_t col, int64_t cols, float *scratch,
                      char *lanes)
{
    const qn_vq_side *side = &job->side;
    const qn_mm_f32_set *set = job->impl->parts;
    const int64_t width = width_of(&job->vq, side->m);
    float *const copies = scratch + width * CHUNK;
    qn_vq_run run;
    int64_t at, bits = 0;
    (void)run_at(job, col, 0, &run, &at);
    const uint8_t *const codes = run.codes;
    for (int32_t c = 0; c < run.books; c++) {
        bits += run.bits[c];
    }
    for (int64_t k = 0; k < side->k_pad; k += CHUNK) {
        const int64_t elements = qn_min_i64(CHUNK, side->k_pad - k);
        const float *x = side->rows + row * side->k_pad + k;
        int64_t stride = side->k_pad;
        for (int64_t r = 0; r < rows && rows <= FEW_ROWS; r++) {
            memcpy(copies + r * CHUNK, x + r * stride, (size_t)elements * sizeof *x);
        }
        if (rows <= FEW_ROWS) {
            x = copies;
            stride = CHUNK;
        }
        for (int64_t c = 0; c < cols; c += width) {
            const int64_t count = qn_min_i64(width, cols - c);
            decode_chunk(job, &run, bits, codes + c * job->l.stream_bytes, col + c, count, k, elements, scratch);
            set->tile(x, stride * 4, scratch, CHUNK * 4, rows, count, elements, lanes + c * set->lanes * 4);
        }
    }
}

/* All of K after the other. */
static void by_columns(const books_job *job, int64_t row, int64_t rows, int64_t col, int64_t cols, float *scratch,
                       char *lanes)
{
    const qn_vq_side *side = &job->side;
    const qn_mm_f32_set *set = job->impl->parts;
    const int64_t width = width_of(&job->vq, side->m), k_bytes = side->k_pad * 4;
    for (int64_t c = 0; c < cols; c += width) {
        const int64_t count = qn_min_i64(width, cols - c);
        decode_columns(job, col + c, count, scratch, side->k_pad);
        for (int64_t k = 0; k < side->k_pad; k += CHUNK) {
            set->tile(side->rows + row * side->k_pad + k, k_bytes, scratch + k, k_bytes, rows, count,
                      qn_min_i64(CHUNK, side->k_pad - k), lanes + c * set->lanes * 4);
        }
    }
}

static void block_task(void *user, int64_t index, int32_t thread)
{
    const books_job *job = user;
    const qn_vq_side *side = &job->side;
    const qn_mm_f32_set *set = job->impl->parts;
    const int64_t blocks = qn_ceil_div(side->m, QN_MM_ROWS);
    const int64_t row = index % blocks * QN_MM_ROWS, col = index / blocks * QN_MM_COLS;
    const int64_t rows = qn_min_i64(QN_MM_ROWS, side->m - row), cols = qn_min_i64(QN_MM_COLS, side->n - col);
    char *const memory = job->scratch + (size_t)thread * job->scratch_bytes, *const lanes = memory + job->lanes_at;
    float *const scratch = (float *)(void *)memory;
    const int64_t lane_row = QN_MM_COLS * set->lanes * 4;
    memset(lanes, 0, (size_t)(rows * lane_row));
    if (!one_run(job->impl, &job->vq)) {
        by_columns(job, row, rows, col, cols, scratch, lanes);
    } else if (takes_dots(job, rows)) {
        dot_columns(job, side->rows + row * side->k_pad, rows, col, cols, (float *)(void *)lanes);
    } else {
        by_chunks(job, row, rows, col, cols, scratch, lanes);
    }
    for (int64_t r = 0; r < rows; r++) {
        float sums[QN_MM_COLS];
        set->sum(lanes + r * lane_row, sums);
        memcpy(side->sums + (row + r) * side->n + col, sums, (size_t)cols * sizeof *sums);
    }
}

void qn_vq_books_run(const qn_kernel *kernel, const qn_run_call *call)
{
    books_job job = {.impl = kernel->impl};
    qn_vq_bind(call->desc, call->args, &job.vq);
    job.l = layout_of(call->desc, &job.vq);
    if (call->sizes.m == 0 || job.vq.n == 0) {
        return;
    }
    const int32_t threads = qn_exec_threads(call->exec);
    char *at = call->workspace;
    job.body = call->packed;
    if (!job.body) {
        pack_body(&job.l, &job.vq, &call->args->in[QN_VQMM_BIAS], at);
        job.body = at;
    }
    at += qn_align_up(job.l.total, 64);
    qn_vq_side_bind(call, &job.vq, job.impl->parts, job.body + job.l.side_at, at, &job.side);
    job.scratch = at + qn_align_up(qn_vq_side_bytes(&job.vq, call->sizes.m, threads), 64);
    job.scratch_bytes = qn_align_up(scratch_of(job.impl, &job.vq, job.side.k_pad, call->sizes.m, &job.lanes_at), 64);
    qn_vq_side_prepare(&job.side, call->exec);
    qn_parallel_for(call->exec, qn_ceil_div(job.side.m, QN_MM_ROWS) * qn_ceil_div(job.side.n, QN_MM_COLS), block_task,
                    &job);
    qn_vq_side_finish(&job.side, call->exec);
}
