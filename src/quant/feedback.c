/* Rounding with error feedback; the mathematics is in encode.h.
 *
 * Rows go in bands of BAND, whose errors lie side by side in memory, and columns in blocks of
 * BLOCK: what a block owes to all columns before it is one product, DEPTH of these at a time so
 * that their errors stay in the first cache. Rows never mix, sums run in the order of the
 * columns: bits do not depend on how rows are shared out. */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "quant/encode_internal.h"

#define BAND 128 /* a multiple of QN_FIT_LANES, as FACTOR is */
#define BLOCK 64
#define DEPTH 128
#define FACTOR 64 /* columns of the factor that are made together */

size_t qn_encode_scratch(const qn_encoder *encoder, int64_t rows)
{
    (void)rows; /* a band at a time */
    if (!encoder->feedback || !encoder->scale) {
        return 0;
    }
    return BAND * (2 * (size_t)encoder->k + (size_t)encoder->tiles_k);
}

/* ---- Factor ---- */

/* Columns by descending diagonal of h, ties by number: a total order, so any sort gives the same. */
static void sort_columns(const float *h, int64_t k, int32_t *order)
{
    for (int64_t i = 0; i < k; i++) {
        order[i] = (int32_t)i;
    }
    int64_t gap = 1;
    while (gap < k / 3) {
        gap = 3 * gap + 1;
    }
    for (; gap > 0; gap /= 3) {
        for (int64_t i = gap; i < k; i++) {
            const int32_t c = order[i];
            const float d = h[c * (k + 1)];
            int64_t j = i;
            for (; j >= gap; j -= gap) {
                const int32_t other = order[j - gap];
                const float o = h[other * (k + 1)];
                if (o > d || (o == d && other < c)) {
                    break;
                }
                order[j] = other;
            }
            order[j] = c;
        }
    }
}

/* Rows and columns of h into that order, in place. row: K floats. */
static void permute(float *h, int64_t k, const int32_t *order, float *row)
{
    for (int64_t i = 0; i < k; i++) {
        memcpy(row, h + i * k, (size_t)k * sizeof *row);
        for (int64_t j = 0; j < k; j++) {
            h[i * k + j] = row[order[j]];
        }
    }
    for (int64_t i = 0; i < k; i++) {
        int64_t from = order[i];
        while (from < i) { /* was swapped away: follow where it went */
            from = order[from];
        }
        if (from != i) {
            memcpy(row, h + i * k, (size_t)k * sizeof *row);
            memcpy(h + i * k, h + from * k, (size_t)k * sizeof *row);
            memcpy(h + from * k, row, (size_t)k * sizeof *row);
        }
    }
}

/* h[n][stride] = R R^T within a block of the diagonal, from the last column. */
static void factor_block(float *h, int64_t n, int64_t stride, float least)
{
    for (int64_t j = n; j-- > 0;) {
        const float *const row = h + j * stride;
        for (int64_t i = j; i >= 0; i--) {
            float *const other = h + i * stride;
            float sum = other[j];
            for (int64_t l = j + 1; l < n; l++) {
                sum -= other[l] * row[l];
            }
            other[j] = i == j ? sqrtf(sum > least ? sum : least) : sum / row[j];
        }
    }
}

/* The row x of R above a block of the diagonal, from what it is a product with: x block^T.
 * columns: the block's, side by side. */
static void solve_row(float *x, int64_t n, float (*columns)[FACTOR])
{
    for (int64_t j = n; j-- > 0;) {
        x[j] /= columns[j][j];
        for (int64_t i = 0; i < j; i++) {
            x[i] -= x[j] * columns[j][i];
        }
    }
}

void qn_feedback_upper(const qn_fit_set *set, float *h, int64_t k, int64_t stride, float least)
{
    for (int64_t from = (k - 1) / FACTOR * FACTOR; from >= 0; from -= FACTOR) {
        const int64_t to = qn_min_i64(from + FACTOR, k);
        for (int64_t i = to; i < k; i += DEPTH) { /* less what the columns behind the block make */
            const int64_t depth = qn_min_i64(DEPTH, k - i);
            float behind[DEPTH][FACTOR];
            for (int64_t j = 0; j < FACTOR; j++) {
                for (int64_t l = 0; l < depth; l++) {
                    behind[l][j] = -h[(from + j) * stride + i + l];
                }
            }
            set->add_product(h + from, stride, h + i, stride, to, behind[0], FACTOR, depth, FACTOR);
        }
        factor_block(h + from * (stride + 1), to - from, stride, least);
        float columns[FACTOR][FACTOR];
        for (int64_t j = 0; j < to - from; j++) {
            for (int64_t i = 0; i <= j; i++) {
                columns[j][i] = h[(from + i) * stride + from + j];
            }
        }
        for (int64_t i = 0; i < from; i++) {
            solve_row(h + i * stride + from, to - from, columns);
        }
    }
}

void qn_feedback_factor(const qn_fit_set *set, float *h, int64_t k, float damp, float *importance, int32_t *order,
                        float *scratch)
{
    double trace = 0;
    for (int64_t i = 0; i < k; i++) {
        trace += (double)h[i * k + i];
    }
    const double mean = trace / (double)(k ? k : 1);
    float add = (float)mean * damp;
    add = add > 0 ? add : 1.0f;
    for (int64_t i = 0; i < k; i++) {
        h[i * k + i] += add;
        importance[i] = (float)((double)h[i * k + i] / (mean + (double)add));
    }
    sort_columns(h, k, order);
    permute(h, k, order, scratch);
    qn_feedback_upper(set, h, k, k, add);
    for (int64_t j = 0; j < k; j++) {
        const float inverse = 1.0f / h[j * k + j];
        for (int64_t i = 0; i < j; i++) {
            h[j * k + i] = h[i * k + j] * inverse;
        }
    }
}

/* ---- Encoding ---- */

/* Up to BAND rows: where they come from and where they go. */
typedef struct band {
    const qn_encoder *encoder;
    const float *w; /* [rows, K] */
    int64_t rows;
    float *errors; /* [K][BAND], in the order of rounding */
    float *scales; /* [tiles_k][BAND] */
    float *values; /* [BAND][K]: grid values */
} band;

/* Scales of all tiles, from the weights as they are. */
static void choose_scales(const qn_encoder *e, const float *w, int64_t rows, uint8_t *stored)
{
    const size_t scale_bytes = (size_t)e->scale->info.block_bytes;
    for (int64_t r = 0; r < rows; r += e->tile_n) {
        for (int64_t b = 0; b < e->tiles_k; b++) {
            const int64_t k = b * e->tile_k;
            const qn_tile t = {.w = w + r * e->k + k,
                               .importance = e->importance ? e->importance + k : NULL,
                               .rows = qn_min_i64(e->tile_n, rows - r),
                               .columns = qn_min_i64(e->tile_k, e->k - k),
                               .stride = e->k};
            const qn_scale_choice c = qn_choose_scale(e, &t);
            memcpy(stored + (size_t)(r / e->tile_n) * e->scale_row_bytes + (size_t)b * scale_bytes, c.stored,
                   scale_bytes);
        }
    }
}

/* The scales of a band, which starts at row `first` of what `stored` begins with. */
static void load_scales(const band *b, int64_t first, const uint8_t *stored)
{
    const qn_encoder *e = b->encoder;
    for (int64_t r = 0; r < BAND; r++) {
        const int64_t row = first + (r < b->rows ? r : b->rows - 1);
        const uint8_t *s = stored + (size_t)(row / e->tile_n) * e->scale_row_bytes;
        for (int64_t i = 0; i < e->tiles_k; i++) {
            e->scale->decode(s + i * e->scale->info.block_bytes, 1, &b->scales[i * BAND + r]);
            b->scales[i * BAND + r] /= e->global_scale;
        }
    }
}

/* Round columns [from, to) of the order; errors are those against w itself. */
static void round_block(const band *b, int64_t from, int64_t to, qn_encode_sums *sums)
{
    const qn_encoder *e = b->encoder;
    const int64_t k = e->k;
    const float max = e->grid->max;
    float feedback[BLOCK][BAND] = {{0}};
    double error = 0, weight = 0;
    for (int64_t i = 0; i < from; i += DEPTH) {
        e->set->add_product(feedback[0], BAND, e->feedback + from * k + i, k, to - from, b->errors + i * BAND, BAND,
                            qn_min_i64(DEPTH, from - i), BAND);
    }
    for (int64_t j = from; j < to; j++) {
        const int64_t column = e->order[j];
        const float *scales = b->scales + column / e->tile_k * BAND;
        float *sum = feedback[j - from], x[BAND] = {0}, w[BAND] = {0};
        uint8_t codes[BAND * 4];
        e->set->add_product(sum, BAND, e->feedback + j * k + from, k, 1, b->errors + from * BAND, BAND, j - from, BAND);
        for (int64_t r = 0; r < b->rows; r++) {
            w[r] = b->w[r * k + column];
        }
        for (int64_t r = 0; r < BAND; r++) {
            const float v = (w[r] + sum[r]) / scales[r];
            x[r] = v > max ? max : v < -max ? -max : v;
        }
        e->element->encode(x, BAND, codes);
        e->element->decode(codes, BAND, x);
        float *out = b->errors + j * BAND;
        for (int64_t r = 0; r < BAND; r++) {
            out[r] = w[r] - x[r] * scales[r];
        }
        for (int64_t r = 0; r < b->rows; r++) {
            error += (double)out[r] * (double)out[r];
            weight += (double)w[r] * (double)w[r];
            b->values[r * k + column] = x[r];
        }
        memset(out + b->rows, 0, (size_t)(BAND - b->rows) * sizeof *out);
    }
    sums->error += error;
    sums->weight += weight;
}

void qn_encode_rows_feedback(const qn_encoder *encoder, const float *w, int64_t rows, void *data, void *scales,
                             float *scratch, qn_encode_sums *sums)
{
    const int64_t k = encoder->k;
    choose_scales(encoder, w, rows, scales);
    for (int64_t first = 0; first < rows; first += BAND) {
        const band b = {.encoder = encoder,
                        .w = w + first * k,
                        .rows = qn_min_i64(BAND, rows - first),
                        .errors = scratch,
                        .scales = scratch + 2 * BAND * k,
                        .values = scratch + BAND * k};
        load_scales(&b, first, scales);
        for (int64_t j = 0; j < k; j += BLOCK) {
            round_block(&b, j, qn_min_i64(j + BLOCK, k), sums);
        }
        for (int64_t r = 0; r < b.rows; r++) {
            encoder->element->encode(b.values + r * k, k, (uint8_t *)data + (size_t)(first + r) * encoder->row_bytes);
        }
    }
}
