/* Shapes and rules of vq_encode and vq_attention: KV caches of codes into a
 * codebook for every group of channels of a head (CQ), and the checks of their
 * values. Sizes: of vq_encode N batch, M tokens, E heads, K head size; of
 * vq_attention M sequences, N tokens there is room for, E query heads, G key heads, K head size. */
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "op/op.h"
#include "ref/vq.h"

#define USUAL_CHANNELS 4
#define USUAL_BITS 8

/* Channels of a vector and bits of a code. */
static void kv_scheme(const qn_op_desc *desc, int32_t slot, int64_t *channels, int64_t *bits)
{
    const qn_shape *book = &desc->in[slot];
    const int shaped = book->format != QN_FORMAT_NONE && book->ndim == 4;
    const int32_t c = desc->attr[QN_ATTR_CHANNELS].i, b = desc->attr[QN_ATTR_BITS].i;
    *channels = c ? c : (shaped ? book->dims[3] : USUAL_CHANNELS);
    *bits = b ? b : (shaped ? qn_vq_bits_for(book->dims[2]) : USUAL_BITS);
}

static int32_t book_slot(const qn_op_desc *desc)
{
    return desc->op == QN_OP_VQ_ENCODE ? QN_VQE_CODEBOOK : QN_VQA_K_CODEBOOK;
}

static qn_shape book_shape(int64_t heads, int64_t size, int64_t channels, int64_t bits)
{
    const int64_t groups = channels > 0 ? qn_ceil_div(size, channels) : 0;
    return qn_shape_make(QN_F16, 4, heads, groups, bits > 0 && bits <= 16 ? INT64_C(1) << bits : 0, channels);
}

static qn_status kv_rules(const qn_op_desc *desc, const qn_sizes *s, qn_error *error)
{
    const char *op = qn_op_get_info(desc->op)->name;
    const char *book = qn_op_get_info(desc->op)->in[book_slot(desc)].name;
    int64_t channels, bits;
    kv_scheme(desc, book_slot(desc), &channels, &bits);
    QN_FAIL_IF(channels < 1 || channels > 256, error, QN_E_SHAPE,
               "%s: vectors of %s have %lld channels, expected 1 to 256", op, book, (long long)channels);
    QN_FAIL_IF(bits < 1 || bits > 16, error, QN_E_SHAPE, "%s: codes of %s have %lld bits, expected 1 to 16", op, book,
               (long long)bits);
    QN_FAIL_IF(s->k % channels != 0, error, QN_E_SHAPE,
               "%s: the head size is %lld, expected a multiple of the %lld channels of a vector", op, (long long)s->k,
               (long long)channels);
    if (desc->op == QN_OP_VQ_ENCODE) {
        return QN_OK;
    }
    const qn_format want = bits > 8 ? QN_U16 : QN_U8;
    for (int32_t slot = QN_VQA_K_CODES; slot <= QN_VQA_V_CODES; slot++) {
        QN_FAIL_IF(desc->in[slot].format != want, error, QN_E_FORMAT, "%s: input %s is %s, expected %s for %lld bits",
                   op, qn_op_get_info(desc->op)->in[slot].name, qn_format_get_info(desc->in[slot].format)->name,
                   qn_format_get_info(want)->name, (long long)bits);
    }
    QN_FAIL_IF(s->g == 0 ? s->e != 0 : s->e % s->g != 0, error, QN_E_SHAPE,
               "%s: q has %lld heads and k_codes has %lld, expected a multiple", op, (long long)s->e, (long long)s->g);
    QN_FAIL_IF(desc->attr[QN_ATTR_ROPE_THETA].f > 0.0f && s->k % 2 != 0, error, QN_E_SHAPE,
               "%s: the head size is %lld, expected an even number where keys are rotated", op, (long long)s->k);
    const qn_shape *pages = &desc->in[QN_VQA_PAGES];
    QN_FAIL_IF(desc->attr[QN_ATTR_PAGE].i > 0 && (pages->ndim != 2 || s->n > INT32_MAX), error, QN_E_SHAPE,
               "%s: input pages has %d dimensions and room for %lld tokens, expected [B,pages of a sequence] and fewer "
               "than 2^31",
               op, pages->ndim, (long long)s->n);
    return qn_window_rules(desc, QN_VQA_K_RECENT, error);
}

static void kv_attributes(qn_op_desc *desc)
{
    int64_t channels, bits;
    kv_scheme(desc, book_slot(desc), &channels, &bits);
    desc->attr[QN_ATTR_CHANNELS].i = channels == USUAL_CHANNELS ? 0 : (int32_t)channels;
    desc->attr[QN_ATTR_BITS].i = bits == USUAL_BITS ? 0 : (int32_t)bits;
}

static qn_status encode_sizes(const qn_op_desc *desc, qn_sizes *sizes, qn_error *error)
{
    const qn_shape *x = &desc->in[QN_VQE_X];
    QN_FAIL_IF(x->ndim != 4, error, QN_E_SHAPE, "vq_encode: input x has %d dimensions, expected [B,T,H,D]", x->ndim);
    sizes->n = x->dims[0];
    sizes->m = x->dims[1];
    sizes->e = x->dims[2];
    sizes->k = x->dims[3];
    return QN_OK;
}

static void encode_layout(const qn_op_desc *desc, const qn_sizes *s, qn_op_layout *layout)
{
    int64_t channels, bits;
    kv_scheme(desc, QN_VQE_CODEBOOK, &channels, &bits);
    const qn_shape book = book_shape(s->e, s->k, channels, bits);
    layout->in[QN_VQE_X] = qn_shape_make(QN_F32, 4, s->n, s->m, s->e, s->k);
    layout->in[QN_VQE_CODEBOOK] = book;
    layout->out[QN_VQE_OUT_CODES] = qn_shape_make(bits > 8 ? QN_U16 : QN_U8, 4, s->n, s->m, s->e, book.dims[1]);
    layout->required = layout->allowed = 1u << QN_VQE_X | 1u << QN_VQE_CODEBOOK;
}

const qn_op_family qn_family_vq_encode = {encode_sizes, encode_layout, kv_rules, "mnke", kv_attributes};

static qn_status attention_sizes(const qn_op_desc *desc, qn_sizes *sizes, qn_error *error)
{
    const qn_shape *q = &desc->in[QN_VQA_Q], *k = &desc->in[QN_VQA_K_CODES];
    QN_FAIL_IF(q->ndim != 3, error, QN_E_SHAPE, "vq_attention: input q has %d dimensions, expected [B,Hq,D]", q->ndim);
    QN_FAIL_IF(k->ndim != 4, error, QN_E_SHAPE,
               "vq_attention: input k_codes has %d dimensions, expected [B,T,Hkv,D/channels]", k->ndim);
    sizes->m = q->dims[0];
    sizes->e = q->dims[1];
    sizes->k = q->dims[2];
    sizes->n = qn_vq_room(desc);
    sizes->g = k->dims[2];
    return QN_OK;
}

/* Codes in pages: as many as there are, or enough for every sequence. */
static void page_layout(const qn_op_desc *desc, const qn_sizes *s, qn_op_layout *layout)
{
    const qn_shape *k = &desc->in[QN_VQA_K_CODES];
    qn_shape *want = &layout->in[QN_VQA_K_CODES];
    const int64_t page = desc->attr[QN_ATTR_PAGE].i, of_sequence = page > 0 ? qn_ceil_div(s->n, page) : 0;
    want->dims[0] = k->format != QN_FORMAT_NONE && k->ndim == 4 ? k->dims[0] : s->m * of_sequence;
    want->dims[1] = page;
    layout->in[QN_VQA_PAGES] = qn_shape_make(QN_I32, 2, s->m, of_sequence, 1, 1);
    layout->required |= 1u << QN_VQA_PAGES;
}

static void attention_layout(const qn_op_desc *desc, const qn_sizes *s, qn_op_layout *layout)
{
    int64_t channels, bits;
    kv_scheme(desc, QN_VQA_K_CODEBOOK, &channels, &bits);
    const qn_shape book = book_shape(s->g, s->k, channels, bits);
    layout->in[QN_VQA_Q] = qn_shape_make(QN_F32, 3, s->m, s->e, s->k, 1);
    layout->in[QN_VQA_K_CODES] = qn_shape_make(bits > 8 ? QN_U16 : QN_U8, 4, s->m, s->n, s->g, book.dims[1]);
    layout->in[QN_VQA_K_CODEBOOK] = layout->in[QN_VQA_V_CODEBOOK] = book;
    layout->in[QN_VQA_SEQ_LENS] = qn_shape_make(QN_I32, 1, s->m, 1, 1, 1);
    layout->out[QN_VQA_OUT_O] = qn_shape_make(QN_F32, 3, s->m, s->e, s->k, 1);
    layout->out[QN_VQA_OUT_LSE] = qn_shape_make(QN_F32, 2, s->m, s->e, 1, 1);
    layout->required = (1u << (QN_VQA_SEQ_LENS + 1)) - 1;
    if (desc->attr[QN_ATTR_PAGE].i > 0) {
        page_layout(desc, s, layout);
    }
    layout->in[QN_VQA_V_CODES] = layout->in[QN_VQA_K_CODES];
    if (desc->attr[QN_ATTR_WINDOW].i > 0) {
        const int64_t rows = qn_window_rows(desc, QN_VQA_K_RECENT);
        layout->in[QN_VQA_K_RECENT] = layout->in[QN_VQA_V_RECENT] = qn_shape_make(QN_F16, 4, s->m, rows, s->g, s->k);
        layout->required |= 1u << QN_VQA_K_RECENT | 1u << QN_VQA_V_RECENT;
    }
    layout->in[QN_VQA_ROPE_FACTORS] = qn_shape_make(QN_F32, 1, s->k / 2, 1, 1, 1);
    layout->allowed = layout->required;
    if (desc->attr[QN_ATTR_ROPE_THETA].f > 0.0f) {
        layout->allowed |= 1u << QN_VQA_ROPE_FACTORS;
    }
}

const qn_op_family qn_family_vq_attention = {attention_sizes, attention_layout, kv_rules, "mnkeg", kv_attributes};

/* ---- values ---- */

/* The first index of k_codes and v_codes of a token: its sequence, or its page. */
static int64_t piece_of(const qn_op_desc *desc, const qn_args *args, int64_t b, int64_t t)
{
    const qn_view *pages = &args->in[QN_VQA_PAGES];
    const int64_t page = desc->attr[QN_ATTR_PAGE].i;
    int32_t at = (int32_t)b;
    if (page > 0) {
        memcpy(&at, (const char *)pages->data + b * pages->strides[0] + t / page * 4, sizeof at);
    }
    return at;
}

/* Codes of the tokens that a sequence has. */
static qn_status codes_check(const qn_op_desc *desc, const qn_args *args, int32_t slot, int32_t book, qn_error *error)
{
    const qn_view *codes = &args->in[slot], *lens = &args->in[QN_VQA_SEQ_LENS];
    const int64_t entries = desc->in[book].dims[2], groups = codes->shape.dims[3];
    const int wide = codes->shape.format == QN_U16;
    const int64_t page = desc->attr[QN_ATTR_PAGE].i;
    if (entries >= (wide ? 65536 : 256)) {
        return QN_OK;
    }
    for (int64_t b = 0; b < lens->shape.dims[0]; b++) {
        int32_t length;
        memcpy(&length, (const char *)lens->data + b * 4, sizeof length);
        for (int64_t t = 0; t < length; t++) {
            const uint8_t *const token = qn_vq_token(desc, args, slot, b, t);
            for (int64_t h = 0; h < codes->shape.dims[2]; h++) {
                const uint8_t *const at = token + h * codes->strides[2];
                for (int64_t i = 0; i < groups; i++) {
                    const int64_t code = wide ? at[2 * i] | at[2 * i + 1] << 8 : at[i];
                    QN_FAIL_IF(code >= entries, error, QN_E_ARGUMENT,
                               "vq_attention: %s[%lld,%lld,%lld,%lld] is %lld, expected a code below %lld",
                               qn_op_get_info(desc->op)->in[slot].name, (long long)piece_of(desc, args, b, t),
                               (long long)(page > 0 ? t % page : t), (long long)h, (long long)i, (long long)code,
                               (long long)entries);
                }
            }
        }
    }
    return QN_OK;
}

/* The pages of the tokens that a sequence has. */
static qn_status pages_check(const qn_op_desc *desc, const qn_args *args, int64_t b, int32_t length, qn_error *error)
{
    const qn_view *pages = &args->in[QN_VQA_PAGES];
    const int64_t page = desc->attr[QN_ATTR_PAGE].i, there = args->in[QN_VQA_K_CODES].shape.dims[0];
    for (int64_t i = 0; page > 0 && i < qn_ceil_div(length, page); i++) {
        int32_t at;
        memcpy(&at, (const char *)pages->data + b * pages->strides[0] + i * 4, sizeof at);
        QN_FAIL_IF(at < 0 || at >= there, error, QN_E_ARGUMENT,
                   "vq_attention: pages[%lld,%lld] is %d, expected 0 to %lld", (long long)b, (long long)i, at,
                   (long long)there - 1);
    }
    return QN_OK;
}

qn_status qn_vq_kv_args_check(const qn_op_desc *desc, const qn_args *args, qn_error *error)
{
    const qn_view *lens = &args->in[QN_VQA_SEQ_LENS];
    qn_op_desc here = *desc;
    here.in[QN_VQA_K_CODES] = args->in[QN_VQA_K_CODES].shape;
    here.in[QN_VQA_PAGES] = args->in[QN_VQA_PAGES].shape;
    const int64_t room = qn_vq_room(&here);
    for (int64_t b = 0; b < lens->shape.dims[0]; b++) {
        int32_t length;
        memcpy(&length, (const char *)lens->data + b * 4, sizeof length);
        QN_FAIL_IF(length < 0 || length > room, error, QN_E_ARGUMENT,
                   "vq_attention: seq_lens[%lld] is %d, expected 0 to %lld", (long long)b, length, (long long)room);
        QN_TRY(pages_check(desc, args, b, length, error));
    }
    QN_TRY(codes_check(desc, args, QN_VQA_K_CODES, QN_VQA_K_CODEBOOK, error));
    return codes_check(desc, args, QN_VQA_V_CODES, QN_VQA_V_CODEBOOK, error);
}
