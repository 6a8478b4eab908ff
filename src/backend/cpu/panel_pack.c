/* Packing weights into panels (kernels/common/panel.h) and reading them back.
 *
 * Called by qn_pack, and by runs that were given no blob. Besides moving bytes it
 * marks the panels that a kernel would get wrong: NaN and infinite codes,
 * scales outside the range in which unpacking is exact, weights that
 * instructions flush to zero. The runner computes these from qn_panel_decode. */
#include "backend/cpu/panel_pack.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/sizes.h"
#include "base/checked.h"
#include "format/format.h"
#include "ref/slots.h"

#define COLS QN_PANEL_COLS
#define E4M3_ONE 0x38 /* the scale 1: of groups whose codes are all zero */
#define E8M0_ONE 127
#define E8M0_LEAST 4 /* exact in bf16 with every e2m1 value, no subnormal and no overflow */
#define E8M0_MOST 250

static const struct {
    int64_t block_bytes;
    float factor;
} codes[] = {
#define QN_PANEL_CODE_ROW(code, bytes, factor) [code] = {bytes, factor},
    QN_PANEL_CODE_LIST(QN_PANEL_CODE_ROW)
#undef QN_PANEL_CODE_ROW
};

float qn_panel_factor(qn_panel_code code)
{
    return codes[code].factor;
}

int qn_panel_weight_slot(qn_op op)
{
    switch ((int)op) {
    case QN_OP_DENSE_MM: return QN_DMM_B;
    case QN_OP_MXFP4_MM: return QN_MXMM_B;
    case QN_OP_NVFP4_MM: return QN_NVMM_B;
    case QN_OP_SCALED_MM: return QN_SMM_B;
    default: return QN_BMM_B;
    }
}

static int bias_slot(qn_op op)
{
    switch ((int)op) {
    case QN_OP_DENSE_MM: return QN_DMM_BIAS;
    case QN_OP_MXFP4_MM: return QN_MXMM_BIAS;
    case QN_OP_NVFP4_MM: return QN_NVMM_BIAS;
    case QN_OP_SCALED_MM: return QN_SMM_BIAS;
    default: return -1;
    }
}

static int scale_slot(qn_op op)
{
    return op == QN_OP_SCALED_MM ? QN_SMM_SCALE_B : (op == QN_OP_NVFP4_MM ? QN_NVMM_B_GLOBAL : -1);
}

static int is_blocks(qn_op op)
{
    return op == QN_OP_BLOCK_SCALED_MM || op == QN_OP_GROUPED_BLOCK_SCALED_MM;
}

qn_panel_layout qn_panel_layout_of(const qn_op_desc *desc, qn_panel_code code)
{
    const qn_shape *b = &desc->in[qn_panel_weight_slot(desc->op)];
    const int64_t stored = b->dims[b->ndim - 1];
    const int fp4 = code == QN_PANEL_NVFP4 || code == QN_PANEL_MXFP4;
    const int bias = bias_slot(desc->op), scale = scale_slot(desc->op);
    qn_panel_layout l = {.experts = b->ndim == 3 ? b->dims[0] : 1, .n = b->dims[b->ndim - 2]};
    l.k = fp4 && stored <= INT64_MAX / 2 ? stored * 2 : stored;
    l.panels = l.n / COLS + (l.n % COLS != 0);
    l.blocks = l.k / QN_PANEL_K + (l.k % QN_PANEL_K != 0);
    l.scale_blocks = is_blocks(desc->op) ? l.k / QN_PANEL_SCALE_K + (l.k % QN_PANEL_SCALE_K != 0) : 0;
    const size_t panel_bytes = qn_size_pad(qn_size_mul((size_t)l.blocks, (size_t)codes[code].block_bytes));
    const size_t panels = qn_size_mul((size_t)l.experts, (size_t)l.panels);
    l.panel_bytes = panel_bytes > INT64_MAX ? INT64_MAX : (int64_t)panel_bytes;
    l.scale_count = scale >= 0 ? qn_shape_elements(&desc->in[scale]) : 0;
    l.has_bias = bias >= 0 && desc->in[bias].format != QN_FORMAT_NONE;
    l.has_azp_adj = desc->op == QN_OP_SCALED_MM && desc->in[QN_SMM_AZP_ADJ].format != QN_FORMAT_NONE;
    size_t at = 0;
    (void)qn_size_place(&at, panels, panel_bytes);
    l.flags = qn_size_place(&at, panels, 1);
    l.block_scales = qn_size_place(&at, qn_size_mul(panels, (size_t)l.scale_blocks), sizeof(float));
    l.scales = qn_size_place(&at, (size_t)l.scale_count, sizeof(float));
    l.bias = qn_size_place(&at, l.has_bias ? (size_t)l.n : 0, sizeof(float));
    l.azp_adj = qn_size_place(&at, l.has_azp_adj ? (size_t)l.n : 0, sizeof(int32_t));
    l.total = at;
    return l;
}

/* ---- one column of a panel; each returns 1 when kernels must not compute it ---- */

static uint16_t word_at(const uint8_t *p)
{
    uint16_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

static int pack_bf16(const uint8_t *row, int64_t k, char *panel, int c)
{
    unsigned highest = 0;
    for (int64_t i = 0; i < k; i++) {
        memcpy(panel + i / 2 * QN_PANEL_LINE + c * 4 + i % 2 * 2, row + i * 2, 2);
        const unsigned exponent = word_at(row + i * 2) >> 7 & 0xff;
        highest = exponent > highest ? exponent : highest;
        highest = exponent == 0 && (word_at(row + i * 2) & 0x7f) && !highest ? 1 : highest;
    }
    return highest > 0 && highest < 27; /* a column below 2^-100, which flushing would empty */
}

static int pack_f8(const uint8_t *row, int64_t k, char *panel, int c, unsigned first_special)
{
    int special = 0;
    for (int64_t i = 0; i < k; i++) {
        const int64_t pair = i / 2;
        panel[pair / 2 * QN_PANEL_LINE + c / 4 * 16 + pair % 2 * 8 + c % 4 * 2 + i % 2] = (char)row[i];
        special |= (row[i] & 0x7fu) >= first_special;
    }
    return special;
}

static int pack_i8(const uint8_t *row, int64_t k, char *panel, int c)
{
    for (int64_t i = 0; i < k; i++) {
        panel[i / 4 * QN_PANEL_LINE + c * 4 + i % 4] = (char)row[i];
    }
    return 0;
}

static int pack_f32(const uint8_t *row, int64_t k, char *panel, int c)
{
    for (int64_t i = 0; i < k; i++) {
        memcpy(panel + i * QN_PANEL_LINE + c * 4, row + i * 4, 4);
    }
    return 0;
}

/* Codes of one group of a block as nibbles; 1 when one of them is not zero. */
static int pack_codes(const uint8_t *codes4, int64_t k, int64_t count, char *block, int c)
{
    int some = 0;
    for (int64_t i = 0; i < count; i += 8) { /* groups are multiples of 16 */
        const uint8_t *b = codes4 + i / 2;
        const unsigned low = (b[0] & 15u) | (b[1] & 15u) << 4 | (b[2] & 15u) << 8 | (b[3] & 15u) << 12;
        const unsigned high = (unsigned)b[0] >> 4 | (b[1] & 0xf0u) | (b[2] & 0xf0u) << 4 | (b[3] & 0xf0u) << 8;
        const uint16_t words[2] = {(uint16_t)low, (uint16_t)high};
        memcpy(block + (k + i) / 8 * QN_PANEL_LINE + c * 4, words, 4);
        some |= ((low | high) & 0x7777u) != 0;
    }
    return some;
}

static int64_t nvfp4_scale_at(int64_t group, int c)
{
    return 512 + c / 4 * 16 + group * 4 + c % 4;
}

static int64_t mxfp4_scale_at(int64_t group, int c)
{
    return 512 + group * COLS + c;
}

/* A negative scale's minus goes to its codes. */
static int pack_nvfp4(const uint8_t *row, const uint8_t *scales, int64_t k, char *panel, int c)
{
    int special = 0;
    for (int64_t i = 0; i < k; i += 16) {
        char *const block = panel + i / QN_PANEL_K * codes[QN_PANEL_NVFP4].block_bytes;
        const uint8_t scale = scales[i / 16] & 0x7f, minus = scales[i / 16] & 0x80 ? 0x88 : 0;
        uint8_t turned[8];
        for (int j = 0; j < 8; j++) {
            turned[j] = row[i / 2 + j] ^ minus;
        }
        const int some = pack_codes(turned, i % QN_PANEL_K, 16, block, c), nan = scale == 0x7f;
        special |= nan;
        block[nvfp4_scale_at(i % QN_PANEL_K / 16, c)] = (char)(some || nan ? scale : E4M3_ONE);
    }
    return special;
}

static int pack_mxfp4(const uint8_t *row, const uint8_t *scales, int64_t k, char *panel, int c)
{
    int special = 0;
    for (int64_t i = 0; i < k; i += 32) {
        char *const block = panel + i / QN_PANEL_K * codes[QN_PANEL_MXFP4].block_bytes;
        const int some = pack_codes(row + i / 2, i % QN_PANEL_K, 32, block, c);
        const uint8_t scale = scales[i / 32];
        const int odd = scale == 255 || (some && (scale < E8M0_LEAST || scale > E8M0_MOST));
        special |= odd;
        block[mxfp4_scale_at(i % QN_PANEL_K / 32, c)] = (char)(some || odd ? scale : E8M0_ONE);
    }
    return special;
}

/* Scales of a panel's padding: 1, so that kernels meet ordinary numbers. */
static void fill_scales(qn_panel_code code, char *panel, int64_t blocks)
{
    for (int64_t b = 0; b < blocks; b++) {
        char *const block = panel + b * codes[code].block_bytes;
        memset(block + 512, code == QN_PANEL_NVFP4 ? E4M3_ONE : E8M0_ONE, (size_t)(codes[code].block_bytes - 512));
    }
}

int qn_panel_plain_scale(float s)
{
    return s == 0.0f || (fabsf(s) >= 0x1p-60f && fabsf(s) <= 0x1p60f);
}

static int pack_column(qn_panel_code code, const qn_panel_layout *l, const qn_view *b, const uint8_t *row, int64_t n,
                       char *panel, int c)
{
    const qn_view *scale = b + 1; /* b_scale follows b in the fp4 operators */
    switch (code) {
    case QN_PANEL_BF16: return pack_bf16(row, l->k, panel, c);
    case QN_PANEL_E4M3: return pack_f8(row, l->k, panel, c, 0x7f);
    case QN_PANEL_E5M2: return pack_f8(row, l->k, panel, c, 0x7c);
    case QN_PANEL_NVFP4:
        return pack_nvfp4(row, (const uint8_t *)scale->data + n * scale->strides[0], l->k, panel, c);
    case QN_PANEL_MXFP4:
        return pack_mxfp4(row, (const uint8_t *)scale->data + n * scale->strides[0], l->k, panel, c);
    case QN_PANEL_F32: return pack_f32(row, l->k, panel, c);
    case QN_PANEL_I8: return pack_i8(row, l->k, panel, c);
    default: return qn_panel_pack_groups(code, row, l->k, panel, c);
    }
}

/* Of a packed panel of 8-bit floats, padding included. */
static int has_many_subnormals(qn_panel_code code, const char *panel, int64_t bytes)
{
    const uint8_t mantissas = code == QN_PANEL_E4M3 ? 7 : 3; /* besides 0 */
    int64_t count = 0;
    for (int64_t i = 0; i < bytes; i++) {
        count += (uint8_t)((panel[i] - 1) & 0x7f) < mantissas;
    }
    return count > bytes / QN_PANEL_SUBNORMAL_SHARE;
}

void qn_panel_pack_one(const qn_panel_layout *l, qn_panel_code code, const qn_op_desc *desc, const qn_args *args,
                       int64_t e, int64_t p, char *panel, uint8_t *flag, float *block_scales)
{
    const qn_view *b = &args->in[qn_panel_weight_slot(desc->op)];
    const int64_t stride = b->strides[b->shape.ndim - 2];
    int special = 0;
    if (l->panel_bytes) {
        memset(panel, 0, (size_t)l->panel_bytes);
        const uint8_t *const first = (const uint8_t *)b->data + (b->shape.ndim == 3 ? e * b->strides[0] : 0);
        if (code == QN_PANEL_NVFP4 || code == QN_PANEL_MXFP4) {
            fill_scales(code, panel, l->blocks);
        }
        for (int c = 0; c < COLS && p * COLS + c < l->n; c++) {
            const int64_t n = p * COLS + c;
            special |= pack_column(code, l, b, first + n * stride, n, panel, c);
        }
    }
    if (l->scale_blocks) {
        const qn_view *sb = &args->in[QN_BMM_SCALE_B];
        const int64_t row = p * COLS / QN_PANEL_SCALE_K;
        const char *const from = (const char *)sb->data + (sb->shape.ndim == 3 ? e * sb->strides[0] : 0) +
                                 row * sb->strides[sb->shape.ndim - 2];
        memcpy(block_scales, from, (size_t)l->scale_blocks * sizeof(float));
        for (int64_t i = 0; i < l->scale_blocks; i++) {
            special |= !qn_panel_plain_scale(block_scales[i]);
        }
    }
    const int f8 = code == QN_PANEL_E4M3 || code == QN_PANEL_E5M2;
    const int subnormal = f8 && has_many_subnormals(code, panel, l->blocks * codes[code].block_bytes);
    *flag = (uint8_t)((special ? QN_PANEL_SPECIAL : 0) | (subnormal ? QN_PANEL_SUBNORMAL : 0));
}

void qn_panel_pack_rest(const qn_panel_layout *l, const qn_op_desc *desc, const qn_args *args, char *rest)
{
    if (l->scale_count) {
        const qn_view *scale = &args->in[scale_slot(desc->op)];
        const int64_t stride = scale->shape.ndim > 1 ? scale->strides[0] : 4;
        for (int64_t i = 0; i < l->scale_count; i++) {
            memcpy(rest + i * 4, (const char *)scale->data + i * stride, 4);
        }
    }
    if (l->has_bias && l->n) {
        const qn_view *bias = &args->in[bias_slot(desc->op)];
        qn_format_get_row(bias->shape.format)->decode(bias->data, l->n, (float *)(void *)(rest + l->bias - l->scales));
    }
    if (l->has_azp_adj && l->n) {
        memcpy(rest + l->azp_adj - l->scales, args->in[QN_SMM_AZP_ADJ].data, (size_t)l->n * sizeof(int32_t));
    }
}

/* ---- reading back ---- */

static void decode_bf16(const char *block, qn_panel_values *w)
{
    float line[2 * COLS];
    for (int pair = 0; pair < QN_PANEL_K / 2; pair++) {
        qn_format_get_row(QN_BF16)->decode(block + pair * QN_PANEL_LINE, 2 * COLS, line);
        for (int c = 0; c < COLS; c++) {
            w->at[pair * 2][c] = (double)line[c * 2];
            w->at[pair * 2 + 1][c] = (double)line[c * 2 + 1];
        }
    }
}

static void decode_f8(qn_format format, const char *block, qn_panel_values *w)
{
    float line[QN_PANEL_LINE];
    for (int i = 0; i < QN_PANEL_K / 4; i++) {
        qn_format_get_row(format)->decode(block + i * QN_PANEL_LINE, QN_PANEL_LINE, line);
        for (int j = 0; j < QN_PANEL_LINE; j++) {
            w->at[i * 4 + j % 16 / 8 * 2 + j % 2][j / 16 * 4 + j % 8 / 2] = (double)line[j];
        }
    }
}

static void decode_fp4(qn_panel_code code, const char *block, qn_panel_values *w)
{
    static const double values[16] = {0.0,  0.5,  1.0,  1.5,  2.0,  3.0,  4.0,  6.0,
                                      -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0};
    const int nvfp4 = code == QN_PANEL_NVFP4;
    float scales[QN_PANEL_LINE];
    qn_format_get_row(nvfp4 ? QN_F8_E4M3 : QN_E8M0)->decode(block + 512, codes[code].block_bytes - 512, scales);
    for (int k = 0; k < QN_PANEL_K; k += 8) {
        for (int c = 0; c < COLS; c++) {
            const int64_t at = nvfp4 ? nvfp4_scale_at(k / 16, c) : mxfp4_scale_at(k / 32, c);
            const double scale = (double)scales[at - 512];
            const uint8_t *const words = (const uint8_t *)block + k / 8 * QN_PANEL_LINE + c * 4;
            const unsigned even = word_at(words), odd = word_at(words + 2);
            for (int i = 0; i < 8; i += 2) {
                w->at[k + i][c] = values[even >> (i * 2) & 15] * scale;
                w->at[k + i + 1][c] = values[odd >> (i * 2) & 15] * scale;
            }
        }
    }
}

void qn_panel_decode(qn_panel_code code, const char *panel, int64_t b, qn_panel_values *w)
{
    const char *const block = panel + b * codes[code].block_bytes;
    switch (code) {
    case QN_PANEL_BF16: decode_bf16(block, w); break;
    case QN_PANEL_E4M3: decode_f8(QN_F8_E4M3, block, w); break;
    case QN_PANEL_E5M2: decode_f8(QN_F8_E5M2, block, w); break;
    case QN_PANEL_NVFP4:
    case QN_PANEL_MXFP4: decode_fp4(code, block, w); break;
    default: qn_panel_decode_groups(code, block, w); break; /* of f32 and int8 kernels compute all */
    }
}
