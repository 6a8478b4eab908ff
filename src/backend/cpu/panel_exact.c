/* What kernels of the panel runner must not compute, as the formula has it: products of floats are exact in double,
 * where they are added in the order of K.
 *
 * Rare, but not for whoever meets it: a model that has diverged is NaN in every row of every layer. So weights are
 * decoded a block at a time, for some rows, and a row that is NaN anyway has its sums without products. */
#include "backend/cpu/panel_exact.h"

#include <math.h>

#include "backend/cpu/panel_pack.h"
#include "base/checked.h"
#include "format/format.h"

/* Block b of a row as bf16 terms. */
static void add_terms(const qn_panel_job *job, int64_t prepared, int64_t b, double x[QN_PANEL_K])
{
    float term[QN_PANEL_K / 2];
    for (int64_t t = 0; t < job->terms * 2; t++) {
        qn_format_get_row(QN_BF16)->decode(qn_panel_line(job, prepared, b * job->terms * 2 + t), QN_PANEL_K / 2, term);
        for (int i = 0; i < QN_PANEL_K / 2; i++) {
            x[t % 2 * (QN_PANEL_K / 2) + i] += (double)term[i];
        }
    }
}

/* Block b of a row, then zeros. */
static void row_values(const qn_panel_job *job, int64_t row, int64_t prepared, int64_t b, double x[QN_PANEL_K])
{
    const int64_t first = b * QN_PANEL_K, count = qn_min_i64(QN_PANEL_K, job->k - first);
    float values[QN_PANEL_K];
    memset(x, 0, QN_PANEL_K * sizeof *x);
    if (job->kind == QN_PANEL_ROWS_BF16) {
        add_terms(job, prepared, b, x);
        return;
    }
    if (job->kind == QN_PANEL_ROWS_F32) {
        for (int64_t i = 0; i < QN_PANEL_K / 16; i++) {
            memcpy(values + i * 16, qn_panel_line(job, prepared, first / 16 + i), QN_PANEL_LINE);
        }
    } else {
        qn_mm_operand a = qn_panel_row(job, row);
        job->unpack_a(&a, 0, first, count, values);
    }
    for (int64_t i = 0; i < count; i++) {
        x[i] = (double)values[i];
    }
}

/* A block of K; what pads it is zeros. */
static void add_products(const double *x, const qn_panel_values *w, double *sum)
{
    for (int64_t k = 0; k < QN_PANEL_K; k += 8) { /* so that sums come from memory and go back once in eight */
        for (int c = 0; c < QN_PANEL_COLS; c++) {
            double s = sum[c];
            for (int i = 0; i < 8; i++) {
                s += x[k + i] * w->at[k + i][c];
            }
            sum[c] = s;
        }
    }
}

/* Sums of a scale's elements, or of all, join those before; then the next begin. */
static void end_sums(double scale, double sum[QN_PANEL_COLS], double total[QN_PANEL_COLS])
{
    for (int c = 0; c < QN_PANEL_COLS; c++) {
        total[c] += scale * sum[c];
        sum[c] = 0.0;
    }
}

static double scale_of(const qn_panel_job *job, int64_t row, int64_t i)
{
    return (double)qn_panel_float_at(qn_panel_row_scales(job, row) + i * job->sa_block);
}

void qn_panel_exact_sums(const qn_panel_job *job, const char *panel, const float *sb, const qn_panel_exact *rows)
{
    const int64_t blocks = job->layout.blocks, step = job->sa ? QN_PANEL_SCALE_K / QN_PANEL_K : blocks;
    double sum[QN_PANEL_EXACT_ROWS][QN_PANEL_COLS] = {{0}}, total[QN_PANEL_EXACT_ROWS][QN_PANEL_COLS] = {{0}};
    qn_panel_values w;
    for (int64_t b = 0; b < blocks; b++) {
        qn_panel_decode(job->impl->code, panel, b, &w);
        for (int64_t r = 0; r < rows->rows; r++) {
            double x[QN_PANEL_K];
            row_values(job, rows->of[r].row, rows->of[r].prepared, b, x);
            add_products(x, &w, sum[r]);
            if (b + 1 == blocks || (b + 1) % step == 0) {
                const int64_t i = b * QN_PANEL_K / QN_PANEL_SCALE_K;
                end_sums(job->sa ? scale_of(job, rows->of[r].row, i) * (double)sb[i] : 1.0, sum[r], total[r]);
            }
        }
    }
    for (int64_t r = 0; r < rows->rows; r++) {
        for (int c = 0; c < QN_PANEL_COLS; c++) {
            rows->of[r].sums[c] = (float)total[r][c];
        }
    }
}

/* Whether infinities are among some values, and the first NaN of a row. */
static void look_at(const double *x, int64_t count, int *infinite, double *nan)
{
    for (int64_t i = 0; i < count; i++) {
        *infinite |= isinf(x[i]) != 0;
        if (isnan(x[i]) && !isnan(*nan)) {
            *nan = x[i];
        }
    }
}

int qn_panel_is_nan_row(const qn_panel_job *job, int64_t row, int64_t prepared, float *nan)
{
    int infinite = 0;
    double first = 0.0, x[QN_PANEL_K];
    for (int64_t i = 0; i < job->layout.scale_blocks; i++) {
        x[0] = scale_of(job, row, i);
        look_at(x, 1, &infinite, &first);
    }
    for (int64_t b = 0; !job->sa && b < job->layout.blocks && !infinite; b++) {
        row_values(job, row, prepared, b, x);
        look_at(x, QN_PANEL_K, &infinite, &first);
    }
    *nan = (float)first;
    return isnan(first) && !infinite;
}
