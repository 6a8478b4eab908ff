/* Rows of a of the panel runner, in the form a level's kernels take them. */
#include "backend/cpu/panel_job.h"

#include <string.h>

#include "base/checked.h"

#define LEAST_DIGITS 0x1p-81f /* scale of a row's largest digits: it is 2^-60 or more */

const char *qn_panel_source_row(const qn_panel_job *job, int64_t row)
{
    const char *const data = job->a.data;
    if (job->expert_rows) {
        return data + row / job->expert_rows * job->a_expert + row % job->expert_rows * job->a.stride;
    }
    return data + row * job->a.stride;
}

int qn_panel_has_odd_scale(const qn_panel_job *job, int64_t row)
{
    const char *const scales = qn_panel_row_scales(job, row);
    for (int64_t i = 0; i < job->layout.scale_blocks; i++) {
        if (!qn_panel_plain_scale(qn_panel_float_at(scales + i * job->sa_block))) {
            return 1;
        }
    }
    return 0;
}

/* Scales of block b of a prepared row of digits. */
static const float *digit_scales(const qn_panel_job *job, int64_t row, int64_t b)
{
    if (job->kind == QN_PANEL_ROWS_PLACES) {
        return (const float *)(const void *)qn_panel_line(job, row, (b + 1) * QN_PANEL_PLACES_LINES - 1);
    }
    if (job->kind == QN_PANEL_ROWS_WORDS) {
        return ((const qn_panel_words *)(const void *)qn_panel_line(job, row, b * QN_PANEL_WORDS_LINES))->x.scale;
    }
    return ((const qn_panel_digits *)(const void *)qn_panel_line(job, row, 0))[b].scale;
}

/* Digits cannot hold a row that is not finite, or all of it too small. */
int qn_panel_has_odd_digits(const qn_panel_job *job, int64_t row)
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

qn_mm_operand qn_panel_row(const qn_panel_job *job, int64_t r)
{
    qn_mm_operand a = job->a;
    a.data = qn_panel_source_row(job, r);
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
    const qn_mm_operand a = qn_panel_row(job, r);
    if (job->impl->code == QN_PANEL_I8) {
        prepare_integers(job, (const int8_t *)a.data + k, count, padded, to);
    } else if (job->kind == QN_PANEL_ROWS_BYTES) {
        prepare_bytes(job, &a, k, count, (qn_panel_bytes *)(void *)to);
    } else if (job->kind == QN_PANEL_ROWS_F32) {
        job->unpack_a(&a, 0, k, count, to);
    } else if (qn_panel_is_digits(job->kind)) {
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
void qn_panel_prepare_rows(const qn_panel_job *job, int64_t r, int64_t row, int64_t rows, qn_panel_small *s)
{
    for (int64_t k = 0; k < job->k; k += QN_PANEL_CHUNK) {
        const int64_t count = qn_min_i64(QN_PANEL_CHUNK, job->k - k);
        const int64_t first = qn_panel_row_lines(job->kind, job->terms, k / QN_PANEL_K);
        const int64_t lines = qn_panel_row_lines(job->kind, job->terms, qn_ceil_div(count, QN_PANEL_K));
        for (int64_t i = 0; i < rows; i++) {
            if (job->set->row_group == 1) {
                prepare_chunk(job, r + i, k, count, s->values, qn_panel_line(job, row + i, first));
                continue;
            }
            const char *from = s->lines;
            if (plain_rows(job) && count % QN_PANEL_K == 0) {
                from = qn_panel_source_row(job, r + i) + first * QN_PANEL_LINE;
            } else {
                prepare_chunk(job, r + i, k, count, s->values, s->lines);
            }
            char *to = qn_panel_line(job, row + i, first);
            for (int64_t l = 0; l < lines; l++, to += job->set->row_group * QN_PANEL_LINE) {
                memcpy(to, from + l * QN_PANEL_LINE, QN_PANEL_LINE);
            }
        }
    }
}
