/* Grid of tasks and memory of a run of the panel runner. */
#include "backend/cpu/panel_job.h"

#include "backend/cpu/sizes.h"
#include "base/checked.h"

#define FEW_ROWS 16  /* a decode step: weights stream, one task a few panels */
#define FEW_PANELS 8 /* at most */
#define LEAST_ROWS 64
#define READING 4 /* a tile that is read takes as long as products */

int64_t qn_panel_row_lines(qn_panel_rows kind, int32_t terms, int64_t blocks)
{
    if (kind == QN_PANEL_ROWS_PLACES) {
        return blocks * QN_PANEL_PLACES_LINES;
    }
    if (kind == QN_PANEL_ROWS_WORDS) {
        return blocks * QN_PANEL_WORDS_LINES;
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
int64_t qn_panel_sums_stride(int64_t panels)
{
    return ((panels + 1) | 1) * QN_PANEL_COLS;
}

int64_t qn_panel_sums_room(int64_t panels)
{
    return qn_max_i64(qn_panel_sums_stride(panels), 2 * qn_panel_sums_stride(panels / 2));
}

/* Bytes from a group of rows to the next, apart in the sets of the caches that hold a part of every group:
 * of the first one and, for groups of rows, of which kernels take long runs of lines, of the second. */
size_t qn_panel_row_stride(const qn_panel_set *set, qn_panel_rows kind, int32_t terms, int64_t blocks)
{
    const size_t bytes =
        qn_size_mul((size_t)qn_panel_row_lines(kind, terms, blocks), (size_t)set->row_group * QN_PANEL_LINE);
    if (set->row_group > 1) {
        return qn_size_add(bytes, bytes % 32768 == 0 ? 16384 + QN_PANEL_LINE : QN_PANEL_LINE);
    }
    return bytes % 1024 == 0 ? qn_size_add(bytes, 64) : bytes;
}

qn_panel_grid qn_panel_largest_grid(const qn_panel_set *set)
{
    return (qn_panel_grid){set->rows_block, qn_max_i64(4, qn_min_i64(set->panels_block, QN_PANEL_MOST_PANELS))};
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
qn_panel_grid qn_panel_grid_of(const qn_panel_set *set, int64_t m, int64_t panels, int32_t threads)
{
    const qn_panel_grid most = qn_panel_largest_grid(set);
    qn_panel_grid g = {qn_min_i64(m, most.rows), qn_min_i64(panels, most.panels)};
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
                g = (qn_panel_grid){rows, p};
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

int64_t qn_panel_prepared_first(int32_t group, int64_t first, int64_t expert)
{
    return (first / group + expert) * group;
}

int qn_panel_has_odd_rows(const qn_panel_layout *l, qn_panel_rows kind)
{
    return l->scale_blocks || qn_panel_is_digits(kind);
}

qn_panel_memory qn_panel_memory_of(const qn_panel_impl *impl, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    const qn_panel_set *set = qn_panel_set_of(impl, m);
    const qn_panel_layout l = qn_panel_layout_of(desc, impl->code);
    const qn_panel_rows kind = impl->code == QN_PANEL_I8 ? set->rows_i8 : set->rows_f;
    const int32_t terms = kind == QN_PANEL_ROWS_BF16 ? qn_panel_terms(qn_panel_row_format(desc)) : 1;
    const size_t rows = (size_t)source_rows(desc, m);
    const size_t groups = qn_size_add(rows / (size_t)set->row_group,
                                      qn_size_add((size_t)l.experts, (size_t)(set->row_multiple / set->row_group)));
    const size_t block_rows = (size_t)qn_min_i64(qn_panel_largest_grid(set).rows, (int64_t)rows);
    const size_t block_panels = (size_t)qn_panel_largest_grid(set).panels;
    const size_t group = (size_t)set->row_group, sum_rows = (block_rows + group - 1) / group * group;
    qn_panel_memory at = {0};
    at.odd_rows = qn_size_pad(qn_size_mul(groups, qn_panel_row_stride(set, kind, terms, l.blocks)));
    at.rest = qn_size_pad(qn_size_add(at.odd_rows, qn_panel_has_odd_rows(&l, kind) ? rows : 0));
    at.scratch = qn_size_pad(qn_size_add(at.rest, l.total == SIZE_MAX ? SIZE_MAX : l.total - l.scales));
    at.sums = qn_size_pad(set->scratch_bytes);
    at.scales = qn_size_pad(
        qn_size_add(at.sums, sum_rows * (size_t)qn_panel_sums_room((int64_t)block_panels) * sizeof(float)));
    at.small = qn_size_pad(qn_size_add(at.scales, qn_size_mul(sum_rows * sizeof(float), (size_t)l.scale_blocks)));
    at.pack_scales = qn_size_pad(qn_size_add(at.small, 2 * sizeof(qn_panel_small)));
    at.pack =
        qn_size_pad(qn_size_add(at.pack_scales, qn_size_mul(block_panels * sizeof(float), (size_t)l.scale_blocks)));
    at.thread = qn_size_pad(qn_size_add(at.pack, qn_size_mul(block_panels, (size_t)l.panel_bytes)));
    at.total = qn_size_add(at.scratch, qn_size_mul((size_t)threads, at.thread));
    return at;
}

size_t qn_panel_workspace_bytes(const qn_kernel *kernel, const qn_op_desc *desc, int64_t m, int32_t threads)
{
    const qn_panel_impl *impl = kernel->impl;
    const size_t some = qn_panel_memory_of(impl, desc, m, threads).total;
    /* what holds m rows holds fewer, too */
    const size_t few = impl->set->few && m > impl->set->few_rows
                           ? qn_panel_memory_of(impl, desc, impl->set->few_rows, threads).total
                           : 0;
    return some > few ? some : few;
}
