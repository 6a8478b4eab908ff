#include "quant/encode_internal.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

/* Integers are a grid too: below 2^7 the step is 2^(7-7) = 1. */
static const qn_grid grids[] = {
    {QN_I8, 7, 128.0f, 127.0f},         {QN_F8_E4M3, 3, 0x1p-6f, 448.0f},      {QN_F8_E4M3FNUZ, 3, 0x1p-7f, 240.0f},
    {QN_F8_E5M2, 2, 0x1p-14f, 57344.0f}, {QN_F4_E2M1, 1, 1.0f, 6.0f},
};

/* How files store a format: those without a name of their own as bytes. */
static qn_format stored_format(qn_format format)
{
    return format == QN_F4_E2M1 || format == QN_E8M0 ? QN_U8 : format;
}

/* The codes of one-byte scales that may be used, and how many lie from 1 to below 2. */
static void find_codes(qn_encoder *encoder)
{
    const qn_format_row *scale = encoder->scale;
    if (scale->info.block_bytes != 1) {
        return;
    }
    int low = 256, high = -1, octave = 0;
    for (int code = 0; code < 256; code++) {
        const uint8_t byte = (uint8_t)code;
        float value;
        scale->decode(&byte, 1, &value);
        if (value > 0 && isfinite(value)) {
            low = code < low ? code : low;
            high = code;
            octave += value >= 1.0f && value < 2.0f;
        }
    }
    encoder->code_low = low;
    encoder->code_high = high;
    encoder->code_octave = octave;
}

qn_status qn_encoder_init(qn_encoder *encoder, const qn_scheme *scheme, int64_t n, int64_t k, qn_error *error)
{
    *encoder = (qn_encoder){.scheme = scheme, .n = n, .k = k, .search = 1, .global_scale = 1.0f, .set = &qn_fit__scalar};
    encoder->element = qn_format_get_row(scheme->weight);
    QN_FAIL_IF(!encoder->element || !encoder->element->encode || !encoder->element->decode, error, QN_E_FORMAT,
               "scheme %s: its element format cannot be encoded", scheme->name);
    encoder->tile_n = scheme->scales == QN_SCALES_BLOCK ? scheme->block_n : 1;
    encoder->tile_k = scheme->scales == QN_SCALES_BLOCK || scheme->scales == QN_SCALES_GROUP ? scheme->block_k : k;
    encoder->unit = encoder->tile_n;
    QN_FAIL_IF(n < 0 || k < 0 || encoder->tile_n < 1 || encoder->tile_k < 0, error, QN_E_SHAPE,
               "scheme %s: a weight of %lld rows and %lld columns cannot be", scheme->name, (long long)n, (long long)k);
    QN_FAIL_IF(scheme->scales == QN_SCALES_GROUP && k % scheme->block_k != 0, error, QN_E_SHAPE,
               "%lld columns do not fill groups of %d, as scheme %s needs", (long long)k, scheme->block_k,
               scheme->name);
    QN_TRY(qn_format_row_bytes(scheme->weight, k, &encoder->row_bytes, error));
    const qn_format stored = stored_format(scheme->weight);
    encoder->data_shape =
        qn_shape_make(stored, 2, n, stored == scheme->weight ? k : (int64_t)encoder->row_bytes, 1, 1);
    if (scheme->scales == QN_SCALES_NONE) {
        return QN_OK;
    }
    encoder->scale = qn_format_get_row(scheme->scale_format);
    QN_FAIL_IF(!encoder->scale || !encoder->scale->encode || !encoder->scale->decode ||
                   encoder->scale->info.block_elements != 1,
               error, QN_E_FORMAT, "scheme %s: its scale format cannot be encoded", scheme->name);
    find_codes(encoder);
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        if (grids[i].format == scheme->weight) {
            encoder->grid = &grids[i];
        }
    }
    QN_FAIL_IF(!encoder->grid, error, QN_E_FORMAT, "scheme %s: no scale rule for elements of format %s", scheme->name,
               encoder->element->info.name);
    encoder->tiles_k = k ? qn_ceil_div(k, encoder->tile_k) : 0;
    encoder->scale_row_bytes = (size_t)encoder->tiles_k * (size_t)encoder->scale->info.block_bytes;
    encoder->scale_shape = qn_shape_make(stored_format(scheme->scale_format), 2, qn_ceil_div(n, encoder->tile_n),
                                         encoder->tiles_k, 1, 1);
    return QN_OK;
}

static inline float power_below(float a)
{
    uint32_t bits;
    memcpy(&bits, &a, 4);
    bits &= 0x7f800000u;
    memcpy(&a, &bits, 4);
    return a;
}

float qn_encode_global_scale(const qn_encoder *encoder, float amax)
{
    if (!(amax > 0) || !encoder->grid || !encoder->scale) {
        return 1.0f;
    }
    const float g = encoder->scale->info.max * encoder->grid->max / amax;
    return g < 0x1p100f ? power_below(g) : 0x1p100f;
}

/* ---- Scales ---- */

static float tile_amax(const qn_tile *t)
{
    float amax = 0;
    for (int64_t r = 0; r < t->rows; r++) {
        const float *w = t->w + r * t->stride;
        for (int64_t i = 0; i < t->columns; i++) {
            const float a = fabsf(w[i]);
            amax = a > amax ? a : amax;
        }
    }
    return amax;
}

/* Nearest value of the grid to a >= 0: adding and taking away 1.5 * 2^23 steps
 * rounds to whole steps, ties to even. */
static inline float grid_round(float a, float least, float magic, float max)
{
    float p = power_below(a);
    p = p > least ? p : least;
    const float c = p * magic;
    const float q = (a + c) - c;
    return q < max ? q : max;
}

/* Sum over one row of the tile of importance * (a - round(a))^2 with a = |w| * inverse. */
static float row_error(const qn_grid *grid, const float *w, const float *importance, int64_t count, float inverse)
{
    const float least = grid->least, max = grid->max;
    const float magic = 0x1.8p23f / (float)(1 << grid->mantissa);
    float sum[QN_LANES] = {0};
    int64_t i = 0;
    if (importance) {
        for (; i + QN_LANES <= count; i += QN_LANES) {
            for (int j = 0; j < QN_LANES; j++) {
                const float a = fabsf(w[i + j]) * inverse;
                const float d = a - grid_round(a, least, magic, max);
                sum[j] += importance[i + j] * (d * d);
            }
        }
    } else {
        for (; i + QN_LANES <= count; i += QN_LANES) {
            for (int j = 0; j < QN_LANES; j++) {
                const float a = fabsf(w[i + j]) * inverse;
                const float d = a - grid_round(a, least, magic, max);
                sum[j] += d * d;
            }
        }
    }
    for (; i < count; i++) {
        const float a = fabsf(w[i]) * inverse;
        const float d = a - grid_round(a, least, magic, max);
        sum[0] += (importance ? importance[i] : 1.0f) * (d * d);
    }
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

static double tile_error(const qn_encoder *encoder, const qn_tile *t, float scale)
{
    const float inverse = 1.0f / scale;
    double sum = 0;
    for (int64_t r = 0; r < t->rows; r++) {
        sum += (double)row_error(encoder->grid, t->w + r * t->stride, t->importance, t->columns, inverse);
    }
    return sum * (double)scale * (double)scale;
}

/* The scale as the format can hold it. */
static qn_scale_choice float_choice(const qn_encoder *encoder, float scale)
{
    qn_scale_choice c = {{0}, 0};
    encoder->scale->encode(&scale, 1, c.stored);
    encoder->scale->decode(c.stored, 1, &c.value);
    c.value /= encoder->global_scale;
    return c;
}

static qn_scale_choice byte_choice(const qn_encoder *encoder, int code)
{
    qn_scale_choice c = {{(uint8_t)code}, 0};
    encoder->scale->decode(c.stored, 1, &c.value);
    c.value /= encoder->global_scale;
    return c;
}

/* Scales stored as wide floats: the plain scale times these. A float grid looks the
 * same an octave up, so only where in the octave matters; an even grid gains by clipping. */
static const float float_grid_factors[] = {1.09f, 1.19f, 1.3f, 1.41f, 1.54f, 1.68f, 1.83f};
static const float even_grid_factors[] = {0.96f, 0.92f, 0.86f, 0.80f};

static qn_scale_choice choose_float(const qn_encoder *encoder, const qn_tile *t, float plain)
{
    qn_scale_choice best = float_choice(encoder, plain);
    if (!encoder->search) {
        return best;
    }
    const int even = encoder->grid->least >= encoder->grid->max;
    const float *factors = even ? even_grid_factors : float_grid_factors;
    const size_t count = even ? sizeof even_grid_factors / sizeof *factors : sizeof float_grid_factors / sizeof *factors;
    double least = tile_error(encoder, t, best.value);
    for (size_t i = 0; i < count; i++) {
        const qn_scale_choice c = float_choice(encoder, plain * factors[i]);
        if (!(c.value >= FLT_MIN) || !isfinite(c.value)) {
            continue;
        }
        const double e = tile_error(encoder, t, c.value);
        if (e < least) {
            least = e;
            best = c;
        }
    }
    return best;
}

/* Scales of one byte, whose codes ascend with their value: codes around the plain one. */
static qn_scale_choice choose_byte(const qn_encoder *encoder, const qn_tile *t, float plain)
{
    uint8_t code = 0;
    encoder->scale->encode(&plain, 1, &code);
    const int low = encoder->code_low, high = encoder->code_high, octave = encoder->code_octave;
    const int middle = code < low ? low : code > high ? high : code;
    qn_scale_choice best = byte_choice(encoder, middle);
    if (!encoder->search) {
        return best;
    }
    double least = tile_error(encoder, t, best.value);
    const int first = middle - (octave + 3) / 4, last = middle + (octave * 5 + 7) / 8;
    for (int c = first < low ? low : first; c <= last && c <= high; c++) {
        if (c == middle) {
            continue;
        }
        const qn_scale_choice candidate = byte_choice(encoder, c);
        const double e = tile_error(encoder, t, candidate.value);
        if (e < least) {
            least = e;
            best = candidate;
        }
    }
    return best;
}

qn_scale_choice qn_choose_scale(const qn_encoder *encoder, const qn_tile *t)
{
    const float amax = tile_amax(t);
    if (!(amax > 0)) {
        return float_choice(encoder, 1.0f);
    }
    const float plain = amax / encoder->grid->max * encoder->global_scale;
    if (encoder->code_octave) {
        return choose_byte(encoder, t, plain);
    }
    return choose_float(encoder, t, plain < FLT_MIN ? FLT_MIN : plain);
}

/* ---- Codes ---- */

#define CHUNK 256

static void put_row(const qn_encoder *encoder, const float *w, int64_t count, float scale, uint8_t *data,
                    qn_encode_sums *sums)
{
    const float max = encoder->grid->max;
    float x[CHUNK], back[CHUNK];
    for (int64_t i = 0; i < count; i += CHUNK) {
        const int64_t m = qn_min_i64(CHUNK, count - i);
        for (int64_t j = 0; j < m; j++) {
            const float v = w[i + j] / scale;
            x[j] = v > max ? max : v < -max ? -max : v;
        }
        uint8_t *codes = data + i / encoder->element->info.block_elements * encoder->element->info.block_bytes;
        encoder->element->encode(x, m, codes);
        encoder->element->decode(codes, m, back);
        double error = 0, weight = 0;
        for (int64_t j = 0; j < m; j++) {
            const double d = (double)w[i + j] - (double)back[j] * (double)scale;
            error += d * d;
            weight += (double)w[i + j] * (double)w[i + j];
        }
        sums->error += error;
        sums->weight += weight;
    }
}

/* No scales: the format's own conversion. */
static void put_plain(const qn_encoder *encoder, const float *w, int64_t rows, uint8_t *data, qn_encode_sums *sums)
{
    const int64_t chunk = CHUNK / encoder->element->info.block_elements * encoder->element->info.block_elements;
    float back[CHUNK];
    for (int64_t r = 0; r < rows; r++) {
        const float *row = w + r * encoder->k;
        uint8_t *codes = data + (size_t)r * encoder->row_bytes;
        encoder->element->encode(row, encoder->k, codes);
        for (int64_t i = 0; i < encoder->k; i += chunk) {
            const int64_t m = qn_min_i64(chunk, encoder->k - i);
            encoder->element->decode(codes + i / encoder->element->info.block_elements *
                                                 encoder->element->info.block_bytes,
                                     m, back);
            for (int64_t j = 0; j < m; j++) {
                const double d = (double)row[i + j] - (double)back[j];
                sums->error += d * d;
                sums->weight += (double)row[i + j] * (double)row[i + j];
            }
        }
    }
}

void qn_encode_rows(const qn_encoder *encoder, const float *w, int64_t rows, void *data, void *scales, float *scratch,
                    qn_encode_sums *sums)
{
    if (!encoder->scale) {
        put_plain(encoder, w, rows, data, sums);
        return;
    }
    if (encoder->feedback) {
        qn_encode_rows_feedback(encoder, w, rows, data, scales, scratch, sums);
        return;
    }
    const int64_t elements = encoder->element->info.block_elements;
    const size_t scale_bytes = (size_t)encoder->scale->info.block_bytes;
    for (int64_t r = 0; r < rows; r += encoder->tile_n) {
        const int64_t high = qn_min_i64(encoder->tile_n, rows - r);
        uint8_t *stored = (uint8_t *)scales + (size_t)(r / encoder->tile_n) * encoder->scale_row_bytes;
        for (int64_t b = 0; b < encoder->tiles_k; b++) {
            const int64_t k = b * encoder->tile_k;
            const qn_tile t = {.w = w + r * encoder->k + k,
                            .importance = encoder->importance ? encoder->importance + k : NULL,
                            .rows = high,
                            .columns = qn_min_i64(encoder->tile_k, encoder->k - k),
                            .stride = encoder->k};
            const qn_scale_choice c = qn_choose_scale(encoder, &t);
            memcpy(stored + (size_t)b * scale_bytes, c.stored, scale_bytes);
            for (int64_t i = 0; i < high; i++) {
                uint8_t *codes = (uint8_t *)data + (size_t)(r + i) * encoder->row_bytes +
                                 k / elements * encoder->element->info.block_bytes;
                put_row(encoder, t.w + i * t.stride, t.columns, c.value, codes, sums);
            }
        }
    }
}
