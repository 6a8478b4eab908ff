/* The panel runner: every matmul on weights packed into panels.
 *
 * Rows of a are made ready once, in the form the level's kernels take. Then one
 * grid of tasks, blocks of rows by runs of panels, consecutive tasks sharing
 * weights. A task calls the level's kernel for the whole of K and finishes the
 * sums: scales, zero points, bias, rounding. The kernels' order over K is fixed,
 * so neither the grid nor the threads can change a bit.
 *
 * What kernels must not compute (panel_pack.c: NaN codes, scales out of range) is
 * computed here in double from single elements: slow, rare and as the formula has it.
 * A run without packed weights packs in its tasks, each the panels it needs. */
#include "backend/cpu/panel_job.h"

#include <string.h>

#include "backend/cpu/cpuid.h"
#include "backend/cpu/run_rows.h"
#include "backend/cpu/sizes.h"
#include "base/checked.h"
#include "format/format.h"
#include "ref/slots.h"

#define CHUNK 1024      /* elements of a row decoded at a time; rows of digits depend on it */
#define PREPARE_ROWS 16 /* rows of a a task, at most; a multiple of every set's row_group */
#define MAX_TERMS 3
#define SERIAL_ELEMENTS 32768 /* activations worth more than one thread */
#define MAX_BLOCK_PANELS 64
#define PLACES_LINES ((int64_t)(sizeof(qn_panel_places) / QN_PANEL_LINE))
#define WORDS_LINES ((int64_t)(sizeof(qn_panel_words) / QN_PANEL_LINE))
#define LEAST_DIGITS 0x1p-81f /* scale of a row's largest digits: it is 2^-60 or more */
#define MAX_BLOCK_COLS (MAX_BLOCK_PANELS * QN_PANEL_COLS)

_Static_assert(sizeof(qn_panel_words) % QN_PANEL_LINE == 0, "whole lines");
_Static_assert(sizeof(qn_panel_places) >= MAX_TERMS * 2 * QN_PANEL_K, "a block of any row that is spread");

typedef struct small_arrays {
    float values[CHUNK + QN_MM_PAD];
    float reals[MAX_BLOCK_COLS];
    float scale_b[MAX_BLOCK_COLS], bias[MAX_BLOCK_COLS]; /* of a block's columns, then zeros to a whole step */
    int32_t azp_adj[MAX_BLOCK_COLS];
    float row[MAX_BLOCK_COLS];                                /* results that silu is to be applied to */
    char lines[CHUNK / QN_PANEL_K * sizeof(qn_panel_places)]; /* of a chunk of a row, before they are spread */
    qn_mm_finish finish;
    uint8_t flags[MAX_BLOCK_PANELS];
    int special; /* a panel of the block is */
} small_arrays;

/* ---- acceptance and packing ---- */

const char *qn_panel_accepts(const qn_kernel *kernel, const qn_op_desc *desc)
{
    const qn_panel_impl *impl = kernel->impl;
    if (desc->in[qn_panel_weight_slot(kernel->op)].format != impl->weight) {
        return "made for another weight format";
    }
    const qn_format rows = qn_panel_row_format(desc);
    const int integers = rows == QN_I8 || rows == QN_U8; /* of int8 or e2m1 codes */
    if (impl->code != QN_PANEL_I8 && impl->set->rows_f == QN_PANEL_ROWS_BYTES && !integers) {
        return "made for activations that are int8 or e2m1 codes";
    }
    if (impl->set->rows_f == QN_PANEL_ROWS_WORDS && rows != QN_BF16) {
        return "made for activations that are bf16";
    }
    const int bf16_rows = impl->code != QN_PANEL_I8 && impl->set->rows_f == QN_PANEL_ROWS_BF16;
    if (bf16_rows && kernel->isa < QN_ISA_AMX && rows == QN_F32) {
        return "f32 activations take three bf16 terms, which the fp32 kernels beat";
    }
    if (bf16_rows && kernel->isa < QN_ISA_AMX && integers) {
        return "activations that are integers are for the byte dots of level avx512vnni";
    }
    return NULL;
}

size_t qn_panel_pack_bytes(const qn_kernel *kernel, const qn_op_desc *desc)
{
    const qn_panel_impl *impl = kernel->impl;
    return qn_panel_layout_of(desc, impl->code).total;
}

void qn_panel_pack(const qn_kernel *kernel, const qn_op_desc *desc, const qn_args *args, void *body)
{
    const qn_panel_impl *impl = kernel->impl;
    const qn_panel_layout l = qn_panel_layout_of(desc, impl->code);
    char *const base = body;
    memset(base + l.flags, 0, l.total - l.flags);
    for (int64_t i = 0; i < l.experts * l.panels; i++) {
        qn_panel_pack_one(&l, impl->code, desc, args, i / l.panels, i % l.panels, base + i * l.panel_bytes,
                          (uint8_t *)base + l.flags + i, (float *)(void *)(base + l.block_scales) + i * l.scale_blocks);
    }
    qn_panel_pack_rest(&l, desc, args, base + l.scales);
}

/* Blocks of the longest panels that a row or two read one after the other, one run of lines for a processor. Where two
 * short runs end and two others begin AMD's cores wait; Intel's keep more lines on their way from several runs
 * (docs/experiments/cpu-matmul.md). */
qn_status qn_panel_open(const qn_kernel *kernel, const qn_ctx *ctx, const qn_op_desc *desc, void **state,
                        qn_error *error)
{
    static const int64_t intel = 0, others = 32;
    (void)kernel;
    (void)ctx;
    (void)desc;
    (void)error;
    *state = (void *)(uintptr_t)(qn_cpu_is_intel() ? &intel : &others);
    return QN_OK;
}

/* ---- memory ---- */

static int64_t row_lines(qn_panel_rows kind, int32_t terms, int64_t blocks)
{
    if (kind == QN_PANEL_ROWS_PLACES) {
        return blocks * PLACES_LINES;
    }
    if (kind == QN_PANEL_ROWS_WORDS) {
        return blocks * WORDS_LINES;
    }
    if (kind == QN_PANEL_ROWS_BYTES) {
        return qn_ceil_div(blocks * (int64_t)sizeof(qn_panel_bytes), QN_PANEL_LINE);
    }
    const int64_t element =
        kind == QN_PANEL_ROWS_F32 || kind == QN_PANEL_ROWS_DIGITS ? 4 : (kind == QN_PANEL_ROWS_I8 ? 1 : 2);
    return blocks * element * terms;
}

/* Elements from a row of sums to the next: an odd number of lines, so that rows lie in different sets of the
 * first cache, with room for a whole last step of the epilogue. */
static int64_t sums_stride_of(int64_t panels)
{
    return ((panels + 1) | 1) * QN_PANEL_COLS;
}

/* Bytes from a group of rows to the next, apart in the sets of the caches that hold a part of every group:
 * of the first one and, for groups of rows, of which kernels take long runs of lines, of the second. */
static size_t row_stride_of(const qn_panel_set *set, qn_panel_rows kind, int32_t terms, int64_t blocks)
{
    const size_t bytes = qn_size_mul((size_t)row_lines(kind, terms, blocks), (size_t)set->row_group * QN_PANEL_LINE);
    if (set->row_group > 1) {
        return qn_size_add(bytes, bytes % 32768 == 0 ? 16384 + QN_PANEL_LINE : QN_PANEL_LINE);
    }
    return bytes % 1024 == 0 ? qn_size_add(bytes, 64) : bytes;
}

#define FEW_ROWS 16  /* a decode step: weights stream, one task a few panels */
#define FEW_PANELS 8 /* at most */
#define LEAST_ROWS 64
#define READING 4 /* a tile that is read takes as long as products */

typedef struct grid {
    int64_t rows, panels; /* of a task */
} grid;

static grid largest_grid(const qn_panel_set *set)
{
    return (grid){set->rows_block, qn_max_i64(4, qn_min_i64(set->panels_block, MAX_BLOCK_PANELS))};
}

/* Panels of a task that streams weights: what ends first when every thread has its share. In tenths of a panel that
 * is read beside three others: a task has a start, and fewer panels at once take longer. */
static int64_t few_panels(int64_t panels, int64_t threads, int64_t most)
{
    static const int64_t rest[] = {0, 14, 22, 36}; /* panels beside whole fours */
    int64_t best = 1, least = INT64_MAX;
    for (int64_t p = 1; p <= most; p++) {
        const int64_t tasks = qn_ceil_div(qn_ceil_div(panels, p), threads);
        const int64_t time = tasks * (5 + p / 4 * 40 + rest[p % 4]);
        if (time < least) {
            least = time;
            best = p;
        }
    }
    return best;
}

/* What ends first when every thread has its share, of what the set likes at most: a task takes the products of its
 * tiles, and reads what they are made of. In products of 16 rows by 16 columns. */
static grid grid_of(const qn_panel_set *set, int64_t m, int64_t panels, int32_t threads)
{
    const grid most = largest_grid(set);
    grid g = {qn_min_i64(m, most.rows), qn_min_i64(panels, most.panels)};
    if (m <= FEW_ROWS) {
        const int64_t few = m > 1 && set->few_panels ? set->few_panels : FEW_PANELS;
        g.panels = few_panels(panels, threads, qn_min_i64(few, g.panels));
        return g;
    }
    const int64_t widest = g.panels;
    int64_t least = INT64_MAX;
    for (int64_t rows = g.rows;; rows = qn_ceil_div(rows / 2, 32) * 32) {
        for (int64_t p = widest; p > 0; p -= p % 2 ? 1 : 2) {
            const int64_t groups = qn_ceil_div(rows, 16);
            const int64_t tasks = qn_ceil_div(qn_ceil_div(m, rows) * qn_ceil_div(panels, p), threads);
            const int64_t time = tasks * (groups * p + READING * (groups + p));
            if (time < least) {
                least = time;
                g = (grid){rows, p};
            }
        }
        if (rows / 2 < LEAST_ROWS) {
            return g;
        }
    }
}

/* Rows of a: of all experts. */
static int64_t source_rows(const qn_op_desc *desc, int64_t m)
{
    int64_t rows = m;
    if (desc->op == QN_OP_GROUPED_BLOCK_SCALED_MM && desc->attr[QN_ATTR_LAYOUT].i == QN_LAYOUT_MASKED) {
        const qn_shape *a = &desc->in[QN_BMM_A];
        if (qn_mul_i64(a->dims[0], qn_max_i64(a->dims[1], m), &rows)) {
            return INT64_MAX;
        }
    }
    return rows;
}

/* Prepared row of an expert whose rows of a begin at `first`: every expert begins a group of its own. */
static int64_t prepared_first(int32_t group, int64_t first, int64_t expert)
{
    return (first / group + expert) * group;
}

static int is_digits(qn_panel_rows kind)
{
    return kind == QN_PANEL_ROWS_DIGITS || kind == QN_PANEL_ROWS_PLACES || kind == QN_PANEL_ROWS_WORDS;
}

/* Whether some rows of a may be such that kernels must not compute them. */
static int has_odd_rows(const qn_panel_layout *l, qn_panel_rows kind)
{
    return l->scale_blocks || is_digits(kind);
}

typedef struct memory {
    size_t rows, odd_rows, rest, scratch, total;           /* of the run */
    size_t sums, scales, pack, pack_scales, small, thread; /* of a thread, from its scratch on; kernel's at 0 */
} memory;

static memory memory_of(const qn_panel_impl *impl, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    const qn_panel_set *set = qn_panel_set_of(impl, m);
    const qn_panel_layout l = qn_panel_layout_of(desc, impl->code);
    const qn_panel_rows kind = impl->code == QN_PANEL_I8 ? set->rows_i8 : set->rows_f;
    const int32_t terms = kind == QN_PANEL_ROWS_BF16 ? qn_panel_terms(qn_panel_row_format(desc)) : 1;
    const size_t rows = (size_t)source_rows(desc, m);
    const size_t groups = qn_size_add(rows / (size_t)set->row_group,
                                      qn_size_add((size_t)l.experts, (size_t)(set->row_multiple / set->row_group)));
    const size_t block_rows = (size_t)qn_min_i64(largest_grid(set).rows, (int64_t)rows);
    const size_t block_panels = (size_t)largest_grid(set).panels;
    const size_t group = (size_t)set->row_group, sum_rows = (block_rows + group - 1) / group * group;
    memory at = {0};
    at.odd_rows = qn_size_pad(qn_size_mul(groups, row_stride_of(set, kind, terms, l.blocks)));
    at.rest = qn_size_pad(qn_size_add(at.odd_rows, has_odd_rows(&l, kind) ? rows : 0));
    at.scratch = qn_size_pad(qn_size_add(at.rest, l.total == SIZE_MAX ? SIZE_MAX : l.total - l.scales));
    at.sums = qn_size_pad(set->scratch_bytes);
    at.scales =
        qn_size_pad(qn_size_add(at.sums, sum_rows * (size_t)sums_stride_of((int64_t)block_panels) * sizeof(float)));
    at.small = qn_size_pad(qn_size_add(at.scales, qn_size_mul(sum_rows * sizeof(float), (size_t)l.scale_blocks)));
    at.pack_scales = qn_size_pad(qn_size_add(at.small, 2 * sizeof(small_arrays)));
    at.pack =
        qn_size_pad(qn_size_add(at.pack_scales, qn_size_mul(block_panels * sizeof(float), (size_t)l.scale_blocks)));
    at.thread = qn_size_pad(qn_size_add(at.pack, qn_size_mul(block_panels, (size_t)l.panel_bytes)));
    at.total = qn_size_add(at.scratch, qn_size_mul((size_t)threads, at.thread));
    return at;
}

size_t qn_panel_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    const qn_panel_impl *impl = kernel->impl;
    const size_t some = memory_of(impl, desc, m, threads).total;
    /* what holds m rows holds fewer, too */
    const size_t few =
        impl->set->few && m > impl->set->few_rows ? memory_of(impl, desc, impl->set->few_rows, threads).total : 0;
    return some > few ? some : few;
}

/* ---- rows of a ---- */

static const char *source_row(const qn_panel_job *job, int64_t row)
{
    const char *const data = job->a.data;
    if (job->expert_rows) {
        return data + row / job->expert_rows * job->a_expert + row % job->expert_rows * job->a.stride;
    }
    return data + row * job->a.stride;
}

static const char *row_scales(const qn_panel_job *job, int64_t row)
{
    const int64_t e = job->expert_rows ? row / job->expert_rows : 0;
    return job->sa + e * job->sa_expert + (row - e * job->expert_rows) * job->sa_row;
}

static float float_at(const char *p)
{
    float value;
    memcpy(&value, p, sizeof value);
    return value;
}

static int has_odd_scale(const qn_panel_job *job, int64_t row)
{
    const char *const scales = row_scales(job, row);
    for (int64_t i = 0; i < job->layout.scale_blocks; i++) {
        if (!qn_panel_plain_scale(float_at(scales + i * job->sa_block))) {
            return 1;
        }
    }
    return 0;
}

/* Line i of a prepared row. */
static char *line_of(const qn_panel_job *job, int64_t row, int64_t i)
{
    const int64_t group = job->set->row_group;
    return job->rows + row / group * job->row_stride + (i * group + row % group) * QN_PANEL_LINE;
}

/* Scales of block b of a prepared row of digits. */
static const float *digit_scales(const qn_panel_job *job, int64_t row, int64_t b)
{
    if (job->kind == QN_PANEL_ROWS_PLACES) {
        return (const float *)(const void *)line_of(job, row, (b + 1) * PLACES_LINES - 1);
    }
    if (job->kind == QN_PANEL_ROWS_WORDS) {
        return ((const qn_panel_words *)(const void *)line_of(job, row, b * WORDS_LINES))->x.scale;
    }
    return ((const qn_panel_digits *)(const void *)line_of(job, row, 0))[b].scale;
}

/* A prepared row that digits cannot hold: not finite, or all of it too small. */
static int has_odd_digits(const qn_panel_job *job, int64_t row)
{
    const int scales = job->kind == QN_PANEL_ROWS_PLACES ? 1 : 4;
    float most = 0.0f;
    for (int64_t b = 0; b < job->layout.blocks; b++) {
        for (int i = 0; i < scales; i++) {
            const float scale = digit_scales(job, row, b)[i];
            if (scale != scale) {
                return 1;
            }
            most = scale > most ? scale : most;
        }
    }
    return most > 0.0f && most < LEAST_DIGITS;
}

static qn_mm_operand row_of(const qn_panel_job *job, int64_t r)
{
    qn_mm_operand a = job->a;
    a.data = source_row(job, r);
    if (a.scales) {
        a.scales = (const char *)a.scales + r * a.scale_stride;
    }
    return a;
}

static void prepare_integers(const qn_panel_job *job, const int8_t *x, int64_t count, int64_t padded, char *to)
{
    if (job->kind == QN_PANEL_ROWS_I8) {
        memcpy(to, x, (size_t)count);
        memset(to + count, 0, (size_t)(padded - count));
        return;
    }
    int8_t last[4] = {0};
    const int64_t whole = count / 4 * 4;
    memcpy(last, x + whole, (size_t)(count - whole));
    memset(to + whole * 2, 0, (size_t)(padded - whole) * 2);
    job->set->words(x, whole, (int16_t *)(void *)to);
    if (count > whole) {
        job->set->words(last, 4, (int16_t *)(void *)(to + whole * 2));
    }
}

/* Rows of int8, or of e2m1 codes with their scales. */
static void prepare_bytes(const qn_panel_job *job, const qn_mm_operand *a, int64_t k, int64_t count, qn_panel_bytes *to)
{
    const int64_t whole = count / QN_PANEL_K, each = a->scales ? 2 : 1; /* elements a byte */
    const char *const x = (const char *)a->data + k / each;
    const uint8_t *const scales = a->scales ? (const uint8_t *)a->scales + k / 16 : NULL;
    job->set->bytes(x, scales, whole, job->impl->code, to);
    if (count > whole * QN_PANEL_K) {
        char last[QN_PANEL_K] = {0};
        uint8_t of_last[QN_PANEL_K / 16] = {0};
        const int64_t left = count - whole * QN_PANEL_K;
        memcpy(last, x + whole * QN_PANEL_K / each, (size_t)(left / each));
        if (scales) {
            memcpy(of_last, scales + whole * QN_PANEL_K / 16, (size_t)(left / 16));
        }
        job->set->bytes(last, scales ? of_last : NULL, 1, job->impl->code, to + whole);
    }
}

/* Elements k to k + count of row r of a, with zeros to whole blocks. */
static void prepare_chunk(const qn_panel_job *job, int64_t r, int64_t k, int64_t count, float *values, char *to)
{
    const int64_t padded = qn_ceil_div(count, QN_PANEL_K) * QN_PANEL_K;
    const qn_mm_operand a = row_of(job, r);
    if (job->impl->code == QN_PANEL_I8) {
        prepare_integers(job, (const int8_t *)a.data + k, count, padded, to);
    } else if (job->kind == QN_PANEL_ROWS_BYTES) {
        prepare_bytes(job, &a, k, count, (qn_panel_bytes *)(void *)to);
    } else if (job->kind == QN_PANEL_ROWS_F32) {
        job->unpack_a(&a, 0, k, count, to);
    } else if (is_digits(job->kind)) {
        job->unpack_a(&a, 0, k, count, values);
        job->set->digits(values, padded / QN_PANEL_K, &job->rounding, to);
    } else if (job->a_format == QN_BF16) {
        memcpy(to, (const char *)a.data + k * 2, (size_t)count * 2);
        memset(to + count * 2, 0, (size_t)(padded - count) * 2);
    } else {
        job->unpack_a(&a, 0, k, count, values);
        job->impl->parts->split(values, padded, job->terms, (uint16_t *)(void *)to);
    }
}

/* Whether rows are taken as they are. */
static int plain_rows(const qn_panel_job *job)
{
    return job->kind == QN_PANEL_ROWS_I8 || (job->kind == QN_PANEL_ROWS_BF16 && job->a_format == QN_BF16);
}

/* Rows of a from r, to the prepared rows from `row`: chunk by chunk, so that the lines of a group are filled
 * while they are in the first cache. */
static void prepare_rows(const qn_panel_job *job, int64_t r, int64_t row, int64_t rows, small_arrays *s)
{
    for (int64_t k = 0; k < job->k; k += CHUNK) {
        const int64_t count = qn_min_i64(CHUNK, job->k - k);
        const int64_t first = row_lines(job->kind, job->terms, k / QN_PANEL_K);
        const int64_t lines = row_lines(job->kind, job->terms, qn_ceil_div(count, QN_PANEL_K));
        for (int64_t i = 0; i < rows; i++) {
            if (job->set->row_group == 1) {
                prepare_chunk(job, r + i, k, count, s->values, line_of(job, row + i, first));
                continue;
            }
            const char *from = s->lines;
            if (plain_rows(job) && count % QN_PANEL_K == 0) {
                from = source_row(job, r + i) + first * QN_PANEL_LINE;
            } else {
                prepare_chunk(job, r + i, k, count, s->values, s->lines);
            }
            char *to = line_of(job, row + i, first);
            for (int64_t l = 0; l < lines; l++, to += job->set->row_group * QN_PANEL_LINE) {
                memcpy(to, from + l * QN_PANEL_LINE, QN_PANEL_LINE);
            }
        }
    }
}

static small_arrays *small_of(const qn_panel_job *job, const memory *at, int32_t thread)
{
    return (small_arrays *)(void *)(job->scratch + (size_t)thread * at->thread + at->small);
}

/* Where silu of the left half of the columns, times the other half, goes. */
typedef struct silu_rows {
    const qn_rows_set *set; /* NULL: the product itself is wanted */
    qn_mm_real real;
    char *data;
    int64_t stride;
} silu_rows;

typedef struct run {
    qn_panel_job job;
    silu_rows silu;
    memory at;
    int64_t prepare_rows; /* of a task */
} run;

/* ---- blocks ---- */

typedef struct block {
    int64_t expert, row, rows; /* row: of a; rows to compute */
    int64_t prepared;          /* their first prepared row */
    int64_t zero_rows;         /* rows after them to clear (masked layout) */
    int64_t panel, panels;
} block;

static int64_t expert_first(const qn_panel_job *job, int64_t e)
{
    return job->offsets ? job->offsets[e] : e * job->expert_rows;
}

static int64_t expert_count(const qn_panel_job *job, int64_t e)
{
    return job->offsets ? job->offsets[e + 1] - job->offsets[e] : (job->expert_rows ? job->expert_rows : job->m);
}

static int64_t row_blocks(const qn_panel_job *job, int64_t rows)
{
    int64_t total = 0;
    for (int64_t e = 0; e < job->experts; e++) {
        total += qn_ceil_div(expert_count(job, e), rows);
    }
    return total;
}

/* Block i of all experts' rows in blocks of `rows`. */
static block row_block(const qn_panel_job *job, int64_t i, int64_t rows)
{
    int64_t e = 0;
    for (int64_t count; i >= (count = qn_ceil_div(expert_count(job, e), rows)); e++) {
        i -= count;
    }
    const int64_t first = expert_first(job, e);
    block b = {.expert = e, .row = first + i * rows, .rows = qn_min_i64(rows, expert_count(job, e) - i * rows)};
    b.prepared = prepared_first(job->set->row_group, first, e) + i * rows;
    if (job->masked_m) {
        const int64_t valid = qn_max_i64(0, qn_min_i64(b.rows, job->masked_m[e] - i * rows));
        b.zero_rows = job->keep ? 0 : b.rows - valid;
        b.rows = valid;
    }
    return b;
}

static block locate(const qn_panel_job *job, int64_t index)
{
    const int64_t blocks = row_blocks(job, job->task_rows);
    block b = row_block(job, index % blocks, job->task_rows);
    b.panel = index / blocks * job->task_panels;
    b.panels = qn_min_i64(job->task_panels, job->span - b.panel);
    return b;
}

static void prepare_task(void *user, int64_t index, int32_t thread)
{
    const run *const p = user;
    const qn_panel_job *job = &p->job;
    const block b = row_block(job, index, p->prepare_rows);
    prepare_rows(job, b.row, b.prepared, b.rows, small_of(job, &p->at, thread));
    for (int64_t r = b.row; job->odd_rows && r < b.row + b.rows; r++) {
        job->odd_rows[r] = (uint8_t)(job->sa ? has_odd_scale(job, r) : has_odd_digits(job, b.prepared + r - b.row));
    }
}

static char *out_at(const qn_panel_job *job, const block *b, int64_t row, int64_t column)
{
    const int64_t size = job->out_real == QN_MM_F32 ? 4 : 2;
    const int64_t local = row - b->expert * job->expert_rows;
    return job->out + (job->expert_rows ? b->expert * job->out_expert : 0) + local * job->out_stride + column * size;
}

/* Weights of a block, packed before or now. */
typedef struct weights {
    const char *panels;
    const uint8_t *flags;
    const float *block_scales;
} weights;

static weights weights_of(const run *p, const block *b, char *scratch, small_arrays *s)
{
    const qn_panel_job *job = &p->job;
    const qn_panel_layout *l = &job->layout;
    const int64_t first = b->expert * l->panels + b->panel;
    if (job->panels) {
        return (weights){job->panels + first * l->panel_bytes, job->flags + first,
                         job->block_scales + first * l->scale_blocks};
    }
    float *const scales = (float *)(void *)(scratch + p->at.pack_scales);
    char *const panels = scratch + p->at.pack;
    for (int64_t i = 0; i < b->panels; i++) {
        qn_panel_pack_one(l, job->impl->code, job->call->desc, job->call->args, b->expert, b->panel + i,
                          panels + i * l->panel_bytes, &s->flags[i], scales + i * l->scale_blocks);
    }
    return (weights){panels, s->flags, scales};
}

/* ---- what kernels must not compute ---- */

/* Element k of row r of a block. */
static double row_value(const qn_panel_job *job, const block *b, int64_t r, int64_t k)
{
    const int64_t row = b->prepared + r;
    if (job->kind == QN_PANEL_ROWS_F32) {
        return (double)float_at(line_of(job, row, k / 16) + k % 16 * 4);
    }
    if (is_digits(job->kind) || job->kind == QN_PANEL_ROWS_BYTES) {
        float group[QN_PANEL_K]; /* of whole scales of a */
        qn_mm_operand a = row_of(job, b->row + r);
        const int64_t first = k / QN_PANEL_K * QN_PANEL_K;
        job->unpack_a(&a, 0, first, qn_min_i64(QN_PANEL_K, job->k - first), group);
        return (double)group[k - first];
    }
    double value = 0.0;
    for (int32_t t = 0; t < job->terms; t++) {
        float term;
        const int64_t i = (k / QN_PANEL_K * job->terms + t) * 2 + k / 32 % 2;
        qn_format_get_row(QN_BF16)->decode(line_of(job, row, i) + k % 32 * 2, 1, &term);
        value += (double)term;
    }
    return value;
}

/* Sum of the formula over K for one output, before scales that are not of blocks. */
static float exact_sum(const qn_panel_job *job, const block *b, int64_t r, const char *panel, const float *sb, int c)
{
    const int64_t step = job->sa ? QN_PANEL_SCALE_K : job->k;
    double total = 0.0;
    for (int64_t first = 0; first < job->k; first += step) {
        const int64_t last = qn_min_i64(job->k, first + step);
        double sum = 0.0;
        for (int64_t k = first; k < last; k++) {
            sum += row_value(job, b, r, k) * qn_panel_value(job->impl->code, panel, k, c);
        }
        const int64_t i = first / QN_PANEL_SCALE_K;
        total +=
            job->sa ? (double)float_at(row_scales(job, b->row + r) + i * job->sa_block) * (double)sb[i] * sum : sum;
    }
    return (float)total;
}

static void repair_row(const qn_panel_job *job, const block *b, const weights *w, int64_t r, int64_t columns,
                       float *reals)
{
    const int odd = job->odd_rows && job->odd_rows[b->row + r];
    for (int64_t c = 0; c < columns; c++) {
        const int64_t p = c / QN_PANEL_COLS;
        if (odd || (w->flags[p] & QN_PANEL_SPECIAL)) {
            reals[c] = exact_sum(job, b, r, w->panels + p * job->layout.panel_bytes,
                                 w->block_scales + p * job->layout.scale_blocks, (int)(c % QN_PANEL_COLS));
        }
    }
}

/* ---- finishing ---- */

/* The epilogue of the block's columns from `column`; a sum is counted in units. */
static void prepare_finish(const qn_panel_job *job, int64_t column, int64_t columns, small_arrays *s)
{
    qn_mm_finish *const f = &s->finish;
    const size_t rest = (size_t)(qn_ceil_div(columns, QN_MM_STEP) * QN_MM_STEP - columns);
    memset(f, 0, sizeof *f);
    f->integers = job->impl->code == QN_PANEL_I8;
    f->unit = job->sa ? 1.0f : qn_panel_factor(job->impl->code) * (job->set->unit > 0.0f ? job->set->unit : 1.0f);
    f->scaled = job->scaled;
    f->factor = job->factor;
    f->out = job->out_real;
    f->adds = job->adds;
    if (job->scaled) {
        for (int64_t c = 0; c < columns; c++) {
            s->scale_b[c] = job->scale_b[(column + c) * job->scale_b_step];
        }
        memset(s->scale_b + columns, 0, rest * sizeof *s->scale_b);
        f->scale_b = s->scale_b;
    }
    if (job->bias) {
        memcpy(s->bias, job->bias + column, (size_t)columns * sizeof *s->bias);
        memset(s->bias + columns, 0, rest * sizeof *s->bias);
        f->bias = s->bias;
    }
    if (job->azp_adj) {
        memcpy(s->azp_adj, job->azp_adj + column, (size_t)columns * sizeof *s->azp_adj);
        memset(s->azp_adj + columns, 0, rest * sizeof *s->azp_adj);
        f->azp_adj = s->azp_adj;
    }
}

/* A row with outputs that kernels must not compute. */
static void finish_odd_row(const qn_panel_job *job, const block *b, const weights *w, int64_t r, int64_t columns,
                           qn_mm_sums sums, float scale_a, small_arrays *s, char *out)
{
    qn_mm_finish finish = s->finish;
    finish.unit = 1.0f;
    for (int64_t c = 0; c < columns; c++) {
        const float *const piece = (const float *)sums.first + c / QN_MM_PIECE * sums.piece;
        s->reals[c] = piece[c % QN_MM_PIECE] * s->finish.unit;
    }
    memset(s->reals + columns, 0, (size_t)(qn_ceil_div(columns, QN_MM_STEP) * QN_MM_STEP - columns) * sizeof *s->reals);
    repair_row(job, b, w, r, columns, s->reals);
    job->impl->parts->finish(&finish, (qn_mm_sums){s->reals, QN_MM_PIECE}, scale_a, 0, columns, out);
}

/* Row r of what a call left (kernels/common/panel.h). */
static qn_mm_sums sums_of_row(const qn_panel_call *call, int64_t group, int64_t r)
{
    const float *const sums = call->sums;
    return (qn_mm_sums){sums + r / group * group * call->sums_stride + r % group * QN_PANEL_COLS,
                        group * QN_PANEL_COLS};
}

/* A block whose products are done: finished row by row. */
typedef struct products {
    block b;
    weights w;
    qn_panel_call call;
    small_arrays *s;
} products;

/* Row r of the block, in the output format. */
static void finish_row(const qn_panel_job *job, const products *d, int64_t r, void *out)
{
    const int64_t row = d->b.row + r;
    const int64_t columns = qn_min_i64(d->b.panels * QN_PANEL_COLS, job->n - d->b.panel * QN_PANEL_COLS);
    const qn_mm_sums from = sums_of_row(&d->call, job->set->row_group, r);
    const float scale_a = job->scaled ? float_at(job->scale_a + row * job->scale_a_stride) : 1.0f;
    if (!d->s->finish.integers && (d->s->special || (job->odd_rows && job->odd_rows[row]))) {
        finish_odd_row(job, &d->b, &d->w, r, columns, from, scale_a, d->s, out);
    } else {
        job->impl->parts->finish(&d->s->finish, from, scale_a, job->azp ? job->azp[row] : 1, columns, out);
    }
}

/* Rows of f32 gates, and as many columns of the other half: both to small memory, from there through silu. */
static void finish_silu(const run *p, const products *gate, const products *up)
{
    const silu_rows *to = &p->silu;
    const int64_t n = gate->b.panels * QN_PANEL_COLS;
    for (int64_t r = 0; r < gate->b.rows; r++) {
        char *const out =
            to->data + (gate->b.row + r) * to->stride + gate->b.panel * QN_PANEL_COLS * (to->real == QN_MM_F32 ? 4 : 2);
        float *const v = to->real == QN_MM_F32 ? (float *)(void *)out : gate->s->values;
        finish_row(&p->job, gate, r, gate->s->row);
        finish_row(&p->job, up, r, up->s->row);
        to->set->silu_mul[QN_MM_F32](gate->s->row, up->s->row, n, 0, 0, v);
        if (to->real != QN_MM_F32) {
            to->set->store[to->real](v, n, out);
        }
    }
}

/* Scales of a block's rows, in the order of kernels/common/panel.h; the stride. */
static int64_t gather_scales(const qn_panel_job *job, const block *b, float *sa)
{
    const int64_t n = job->layout.scale_blocks, group = job->set->row_group;
    const int64_t padded = qn_ceil_div(b->rows, group) * group;
    const int64_t row = group > 1 ? 1 : n, step = group > 1 ? padded : 1;
    const float factor = qn_panel_factor(job->impl->code);
    for (int64_t r = 0; r < b->rows; r++) {
        const char *const from = row_scales(job, b->row + r);
        for (int64_t i = 0; i < n; i++) {
            sa[r * row + i * step] = float_at(from + i * job->sa_block) * factor;
        }
    }
    for (int64_t r = b->rows; r < padded; r++) {
        for (int64_t i = 0; i < n; i++) {
            sa[r * row + i * step] = 0.0f;
        }
    }
    return group > 1 ? step : row;
}

/* The products of a block, their sums from `sums` on, and what its rows are finished with. */
static void multiply(const run *p, const block *b, char *scratch, char *sums, small_arrays *s, products *d)
{
    const qn_panel_job *job = &p->job;
    const int64_t column = b->panel * QN_PANEL_COLS;
    d->b = *b;
    d->w = weights_of(p, b, scratch, s);
    d->s = s;
    float *const sa = (float *)(void *)(scratch + p->at.scales);
    const int64_t sa_stride = job->sa ? gather_scales(job, b, sa) : 0;
    d->call = (qn_panel_call){.w = d->w.panels,
                              .panel_bytes = job->layout.panel_bytes,
                              .panels = b->panels,
                              .blocks = job->layout.blocks,
                              .a = line_of(job, b->prepared, 0),
                              .a_stride = job->row_stride,
                              .rows = b->rows,
                              .terms = job->terms,
                              .coded = job->a.scales != NULL,
                              .alone = b->rows <= QN_PANEL_ALONE &&
                                       job->layout.blocks <= *(const int64_t *)job->call->state,
                              .several = job->m > 1,
                              .sa = job->sa ? sa : NULL,
                              .sb = job->sa ? d->w.block_scales : NULL,
                              .sa_stride = sa_stride,
                              .sb_stride = job->layout.scale_blocks,
                              .sums = sums,
                              .sums_stride = sums_stride_of(b->panels),
                              .flags = d->w.flags,
                              .scratch = scratch};
    job->set->mm[job->impl->code](&d->call);
    s->special = 0;
    for (int64_t i = 0; i < b->panels; i++) {
        s->special |= d->w.flags[i] & QN_PANEL_SPECIAL;
    }
    prepare_finish(job, column, qn_min_i64(b->panels * QN_PANEL_COLS, job->n - column), s);
}

/* Sums of two blocks of that many panels fit where those of the largest one do. */
static int room_for_two(const qn_panel_set *set, int64_t panels)
{
    return 2 * sums_stride_of(panels) <= sums_stride_of(largest_grid(set).panels);
}

static void block_task(void *user, int64_t index, int32_t thread)
{
    const run *const p = user;
    const qn_panel_job *job = &p->job;
    const block b = locate(job, index);
    const int64_t column = b.panel * QN_PANEL_COLS;
    const int64_t columns = qn_min_i64(b.panels * QN_PANEL_COLS, job->n - column);
    for (int64_t r = b.rows; r < b.rows + b.zero_rows; r++) {
        memset(out_at(job, &b, b.row + r, column), 0, (size_t)columns * (job->out_real == QN_MM_F32 ? 4 : 2));
    }
    if (b.rows == 0) {
        return;
    }
    char *const scratch = job->scratch + (size_t)thread * p->at.thread, *const sums = scratch + p->at.sums;
    small_arrays *const s = small_of(job, &p->at, thread);
    products done, other;
    multiply(p, &b, scratch, sums, s, &done);
    if (p->silu.set) {
        block half = b;
        half.panel += job->span;
        const int64_t rows = qn_ceil_div(b.rows, job->set->row_group) * job->set->row_group;
        multiply(p, &half, scratch, sums + rows * sums_stride_of(b.panels) * (int64_t)sizeof(float), s + 1, &other);
        finish_silu(p, &done, &other);
        return;
    }
    for (int64_t r = 0; r < b.rows; r++) {
        finish_row(job, &done, r, out_at(job, &b, b.row + r, column));
    }
}

/* Rows that no expert owns become zeros. */
static void zero_rows(const qn_panel_job *job, int64_t first, int64_t last)
{
    for (int64_t r = first; r < last; r++) {
        memset(job->out + r * job->out_stride, 0, (size_t)job->n * (job->out_real == QN_MM_F32 ? 4 : 2));
    }
}

int qn_panel_takes_next(const qn_kernel *kernel, const qn_op_desc *desc, const qn_kernel *next,
                        const qn_op_desc *next_desc)
{
    const qn_panel_impl *impl = kernel->impl;
    if (desc->op == QN_OP_GROUPED_BLOCK_SCALED_MM || desc->attr[QN_ATTR_OUT].i != QN_OUT_F32) {
        return 0;
    }
    if (!next) {
        return 1;
    }
    const int64_t n = next_desc->in[0].dims[1];
    const int quantizes = next->op == QN_OP_SILU_MUL_QUANT;
    /* silu takes QN_MM_STEP values together, from the beginning of a row or of a group */
    return next->backend == QN_BACKEND_CPU && (quantizes || next->op == QN_OP_SILU_MUL) &&
           next_desc->in[0].format == QN_F32 && next_desc->in[0].ndim == 2 && n % (2 * QN_MM_STEP) == 0 &&
           !(quantizes && next_desc->attr[QN_ATTR_GROUP].i % QN_MM_STEP) && room_for_two(impl->set, 2);
}

/* Tasks of gates, with as many panels of the other half, and where silu's values go; of codes to the memory of the
 * product. */
static void choose_silu(run *p, const qn_run_next *next)
{
    qn_panel_job *const job = &p->job;
    const qn_mut_view *const y = &next->args->out[QN_ACT_OUT_Y];
    const int quantizes = next->kernel->op == QN_OP_SILU_MUL_QUANT;
    p->silu = (silu_rows){.set = qn_rows_set_of(next->kernel, next->state),
                          .real = quantizes ? QN_MM_F32 : qn_rows_real(y->shape.format),
                          .data = quantizes ? job->out : y->data,
                          .stride = quantizes ? job->n / 2 * (int64_t)sizeof(float) : y->strides[0]};
    job->span = job->layout.panels / 2;
    int64_t panels = qn_max_i64(2, job->task_panels / 4 * 2);
    while (panels > 2 && !room_for_two(job->set, panels)) {
        panels -= 2;
    }
    job->task_panels = panels;
}

void qn_panel_run(const qn_kernel *kernel, const qn_run_call *call)
{
    run p = {0};
    qn_panel_job *const job = &p.job;
    qn_panel_bind(kernel, call, job);
    if (job->m == 0 || job->n == 0) {
        return;
    }
    if (job->offsets && !job->keep) {
        zero_rows(job, 0, qn_min_i64(job->offsets[0], job->m));
        zero_rows(job, job->offsets[job->experts], job->m);
    }
    char *const workspace = call->workspace;
    p.at = memory_of(job->impl, call->desc, call->sizes.m, qn_exec_threads(call->exec));
    job->rows = workspace;
    job->row_stride = (int64_t)row_stride_of(job->set, job->kind, job->terms, job->layout.blocks);
    job->odd_rows = has_odd_rows(&job->layout, job->kind) ? (uint8_t *)workspace + p.at.odd_rows : NULL;
    job->scratch = workspace + p.at.scratch;
    job->scratch_bytes = p.at.thread;
    if (!job->panels) {
        qn_panel_pack_rest(&job->layout, call->desc, call->args, workspace + p.at.rest);
        qn_panel_bind_rest(job, workspace + p.at.rest);
    }
    const grid g = grid_of(job->set, job->m, job->layout.panels, qn_exec_threads(call->exec));
    job->task_rows = g.rows;
    job->task_panels = g.panels;
    job->span = job->layout.panels;
    const qn_run_next *const next = call->next;
    if (next && next->kernel) {
        choose_silu(&p, next);
    } else if (next) {
        job->out = next->sum.data;
        job->out_stride = next->sum.strides[0];
        job->adds = 1;
    }
    const int64_t blocks = row_blocks(job, job->task_rows);
    if (blocks == 0) {
        return;
    }
    const int serial = job->m * job->k <= SERIAL_ELEMENTS, groups = job->set->row_group > 1;
    const int64_t share = qn_ceil_div(job->m, qn_exec_threads(call->exec));
    p.prepare_rows = serial || groups ? PREPARE_ROWS : qn_min_i64(PREPARE_ROWS, share);
    qn_parallel_for(serial ? NULL : call->exec, row_blocks(job, p.prepare_rows), prepare_task, &p);
    qn_parallel_for(call->exec, blocks * qn_ceil_div(job->span, job->task_panels), block_task, &p);
    if (next && next->kernel && next->kernel->op == QN_OP_SILU_MUL_QUANT) {
        qn_quantize_silu(next, (const float *)(const void *)job->out, workspace, call->exec);
    }
}
