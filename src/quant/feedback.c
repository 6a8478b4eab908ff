/* Rounding with error feedback; the mathematics is in encode.h.
 *
 * Rows go in bands of BAND, whose errors lie side by side in memory, so that one
 * pass over earlier columns serves them all. Rows never mix, sums run in column
 * order: bits do not depend on how rows are shared out. */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "quant/encode_internal.h"

#define BAND 16

/* Rows that are encoded together. */
static int64_t group_rows(const qn_encoder *encoder, int64_t rows)
{
    return qn_min_i64(encoder->tile_n > 1 ? encoder->tile_n : BAND, rows);
}

size_t qn_encode_scratch(const qn_encoder *encoder, int64_t rows)
{
    if (!encoder->feedback || !encoder->scale) {
        return 0;
    }
    const size_t bands = (size_t)qn_ceil_div(group_rows(encoder, rows), BAND);
    return bands * BAND * (size_t)(encoder->k + encoder->tile_k) + bands * BAND;
}

/* ---- Factor ---- */

static float dot(const float *a, const float *b, int64_t n)
{
    float sum[QN_LANES] = {0};
    int64_t i = 0;
    for (; i + QN_LANES <= n; i += QN_LANES) {
        for (int j = 0; j < QN_LANES; j++) {
            sum[j] += a[i + j] * b[i + j];
        }
    }
    for (; i < n; i++) {
        sum[0] += a[i] * b[i];
    }
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

void qn_feedback_factor(float *h, int64_t k, float damp, float *importance)
{
    double trace = 0;
    for (int64_t i = 0; i < k; i++) {
        trace += (double)h[i * k + i];
    }
    float add = (float)(trace / (double)(k ? k : 1)) * damp;
    add = add > 0 ? add : 1.0f;
    for (int64_t i = 0; i < k; i++) {
        h[i * k + i] += add;
    }
    /* R into the upper triangle, last column first; a pivot is at least what was added */
    for (int64_t j = k - 1; j >= 0; j--) {
        float *row = h + j * k;
        float pivot = row[j] - dot(row + j + 1, row + j + 1, k - 1 - j);
        pivot = sqrtf(pivot > add ? pivot : add);
        row[j] = pivot;
        const float inverse = 1.0f / pivot;
        for (int64_t i = 0; i < j; i++) {
            float *other = h + i * k;
            other[j] = (other[j] - dot(other + j + 1, row + j + 1, k - 1 - j)) * inverse;
        }
    }
    double sum = 0;
    for (int64_t j = 0; j < k; j++) {
        const float d = h[j * k + j];
        importance[j] = d * d;
        sum += (double)d * (double)d;
        for (int64_t i = 0; i < j; i++) {
            h[j * k + i] = h[i * k + j] / d;
        }
    }
    for (int64_t j = 0; j < k; j++) {
        importance[j] = (float)((double)importance[j] * (double)k / sum);
    }
}

/* ---- Encoding ---- */

/* sum[] += errors of columns [from, to) times factors. errors: BAND a column. */
static void add_feedback(const float *errors, const float *factors, int64_t from, int64_t to, float *sum)
{
    float s[BAND];
    memcpy(s, sum, sizeof s);
    for (int64_t i = from; i < to; i++) {
        const float f = factors[i];
        const float *e = errors + i * BAND;
        for (int r = 0; r < BAND; r++) {
            s[r] += e[r] * f;
        }
    }
    memcpy(sum, s, sizeof s);
}

/* The rows of one group and where their results go. */
typedef struct group {
    const qn_encoder *encoder;
    const float *w; /* [rows, K] */
    int64_t rows;
    uint8_t *data;
    float *errors;  /* a band: [K][BAND] */
    float *targets; /* [rows, tile_k]: what a tile is rounded towards, then its grid values */
    float *scales;  /* a row */
} group;

/* Targets of a tile from the errors of the columns before it. */
static void make_targets(const group *g, int64_t k0, int64_t columns)
{
    const int64_t k = g->encoder->k, stride = g->encoder->tile_k;
    for (int64_t b = 0; b < g->rows; b += BAND) {
        const int64_t high = qn_min_i64(BAND, g->rows - b);
        const float *errors = g->errors + b * k;
        for (int64_t j = 0; j < columns; j++) {
            float sum[BAND] = {0};
            add_feedback(errors, g->encoder->feedback + (k0 + j) * k, 0, k0, sum);
            for (int64_t r = 0; r < high; r++) {
                g->targets[(b + r) * stride + j] = g->w[(b + r) * k + k0 + j] + sum[r];
            }
        }
    }
}

/* Round a tile column by column; errors are those against w itself. */
static void round_band(const group *g, int64_t b, int64_t k0, int64_t columns, qn_encode_sums *sums)
{
    const qn_encoder *e = g->encoder;
    const int64_t high = qn_min_i64(BAND, g->rows - b), k = e->k, stride = e->tile_k;
    const float max = e->grid->max;
    float *errors = g->errors + b * k;
    double error = 0, weight = 0;
    for (int64_t j = 0; j < columns; j++) {
        float sum[BAND] = {0}, x[BAND] = {0};
        uint8_t codes[BAND * 4];
        add_feedback(errors, e->feedback + (k0 + j) * k, k0, k0 + j, sum);
        for (int64_t r = 0; r < high; r++) {
            const float v = (g->targets[(b + r) * stride + j] + sum[r]) / g->scales[b + r];
            x[r] = v > max ? max : v < -max ? -max : v;
        }
        e->element->encode(x, BAND, codes);
        e->element->decode(codes, BAND, x);
        float *out = errors + (k0 + j) * BAND;
        memset(out, 0, BAND * sizeof *out);
        for (int64_t r = 0; r < high; r++) {
            const float w = g->w[(b + r) * k + k0 + j];
            out[r] = w - x[r] * g->scales[b + r];
            error += (double)out[r] * (double)out[r];
            weight += (double)w * (double)w;
            g->targets[(b + r) * stride + j] = x[r];
        }
    }
    sums->error += error;
    sums->weight += weight;
}

static void encode_tile(const group *g, int64_t k0, int64_t columns, uint8_t *stored, qn_encode_sums *sums)
{
    const qn_encoder *e = g->encoder;
    const size_t scale_bytes = (size_t)e->scale->info.block_bytes;
    make_targets(g, k0, columns);
    for (int64_t r = 0; r < g->rows; r += e->tile_n) {
        const qn_tile t = {.w = g->targets + r * e->tile_k,
                           .importance = e->importance ? e->importance + k0 : NULL,
                           .rows = qn_min_i64(e->tile_n, g->rows - r),
                           .columns = columns,
                           .stride = e->tile_k};
        const qn_scale_choice c = qn_choose_scale(e, &t);
        memcpy(stored + (size_t)(r / e->tile_n) * e->scale_row_bytes + (size_t)(k0 / e->tile_k) * scale_bytes, c.stored,
               scale_bytes);
        for (int64_t i = r; i < r + t.rows; i++) {
            g->scales[i] = c.value;
        }
    }
    for (int64_t b = 0; b < g->rows; b += BAND) {
        round_band(g, b, k0, columns, sums);
    }
    const size_t place = (size_t)(k0 / e->element->info.block_elements) * (size_t)e->element->info.block_bytes;
    for (int64_t r = 0; r < g->rows; r++) {
        e->element->encode(g->targets + r * e->tile_k, columns, g->data + (size_t)r * e->row_bytes + place);
    }
}

void qn_encode_rows_feedback(const qn_encoder *encoder, const float *w, int64_t rows, void *data, void *scales,
                             float *scratch, qn_encode_sums *sums)
{
    const int64_t step = group_rows(encoder, rows), bands = qn_ceil_div(qn_max_i64(step, 1), BAND);
    for (int64_t r = 0; r < rows; r += step) {
        group g = {.encoder = encoder,
                   .w = w + r * encoder->k,
                   .rows = qn_min_i64(step, rows - r),
                   .data = (uint8_t *)data + (size_t)r * encoder->row_bytes};
        g.errors = scratch;
        g.targets = g.errors + bands * BAND * encoder->k;
        g.scales = g.targets + bands * BAND * encoder->tile_k;
        uint8_t *stored = (uint8_t *)scales + (size_t)(r / encoder->tile_n) * encoder->scale_row_bytes;
        for (int64_t k = 0; k < encoder->k; k += encoder->tile_k) {
            encode_tile(&g, k, qn_min_i64(encoder->tile_k, encoder->k - k), stored, sums);
        }
    }
}
