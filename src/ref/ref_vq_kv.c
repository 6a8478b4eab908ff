/* vq_encode, vq_attention: caches of keys and values as codes into a codebook of
 * c channels for every group of channels of a head.
 *
 *   vq_encode     the centroid at the least squared distance, in double, of equals the first; a vector with a NaN
 *                 has code 0
 *   vq_attention  o = softmax(scale q k^T) v over the first seq_lens[b] tokens, lse the logarithm of the sum of
 *                 exponentials of the scaled scores, in double, one rounding; no tokens: zeros and -inf. With
 *                 rope_theta keys were encoded before RoPE: the decoded key of token t is turned by t as rope does,
 *                 with rope_factors as its factors. With pages token t is token t % page of page pages[b, t / page] of
 *                 k_codes and v_codes. With a window tokens from qn_window_first on are row t % R of
 *                 k_recent and v_recent, keys turned already */
#include <math.h>

#include "ref/ref_common.h"
#include "ref/vq.h"

void qn_ref_vq_encode(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    (void)desc;
    const qn_view *x = &args->in[QN_VQE_X], *book = &args->in[QN_VQE_CODEBOOK];
    const qn_mut_view *codes = &args->out[QN_VQE_OUT_CODES];
    const int64_t *d = x->shape.dims, groups = book->shape.dims[1], entries = book->shape.dims[2];
    const int64_t channels = book->shape.dims[3], vectors = d[0] * d[1] * d[2];
    float *const row = scratch, *const centroid = row + d[3];
    for (int64_t r = 0; r < vectors && groups > 0; r++) {
        const int64_t h = r % d[2], t = r / d[2] % d[1], b = r / d[2] / d[1];
        ref_decode(x->shape.format, (const char *)x->data + b * x->strides[0] + t * x->strides[1] + h * x->strides[2],
                   d[3], row);
        char *const out = (char *)codes->data + b * codes->strides[0] + t * codes->strides[1] + h * codes->strides[2];
        for (int64_t g = 0; g < groups; g++) {
            double least = INFINITY;
            uint16_t best = 0;
            for (int64_t e = 0; e < entries; e++) {
                double distance = 0.0;
                qn_vq_values(book, ((h * groups + g) * entries + e) * channels, channels, centroid);
                for (int64_t j = 0; j < channels; j++) {
                    const double difference = (double)row[g * channels + j] - (double)centroid[j];
                    distance += difference * difference;
                }
                if (distance < least) {
                    least = distance;
                    best = (uint16_t)e;
                }
            }
            if (codes->shape.format == QN_U16) {
                memcpy(out + 2 * g, &best, sizeof best);
            } else {
                out[g] = (char)(uint8_t)best;
            }
        }
    }
}

int64_t qn_vq_room(const qn_op_desc *desc)
{
    const int64_t page = desc->attr[QN_ATTR_PAGE].i;
    return page > 0 ? page * desc->in[QN_VQA_PAGES].dims[1] : desc->in[QN_VQA_K_CODES].dims[1];
}

const uint8_t *qn_vq_token(const qn_op_desc *desc, const qn_args *args, int32_t slot, int64_t b, int64_t t)
{
    const qn_view *codes = &args->in[slot], *pages = &args->in[QN_VQA_PAGES];
    const int64_t page = desc->attr[QN_ATTR_PAGE].i;
    if (page > 0) {
        b = ref_i32((const char *)pages->data + b * pages->strides[0], t / page);
        t %= page;
    }
    return (const uint8_t *)codes->data + b * codes->strides[0] + t * codes->strides[1];
}

/* The decoded vector of a token and head: keys (slot QN_VQA_K_CODES) or values. */
static void decode(const qn_op_desc *desc, const qn_args *args, int32_t slot, int64_t b, int64_t t, int64_t h,
                   float *row)
{
    const qn_view *codes = &args->in[slot];
    const qn_view *book = &args->in[slot == QN_VQA_K_CODES ? QN_VQA_K_CODEBOOK : QN_VQA_V_CODEBOOK];
    const int64_t groups = book->shape.dims[1], entries = book->shape.dims[2], channels = book->shape.dims[3];
    const uint8_t *const at = qn_vq_token(desc, args, slot, b, t) + h * codes->strides[2];
    for (int64_t g = 0; g < groups; g++) {
        const int64_t code = codes->shape.format == QN_U16 ? at[2 * g] | at[2 * g + 1] << 8 : at[g];
        qn_vq_values(book, ((h * groups + g) * entries + code) * channels, channels, row + g * channels);
    }
}

/* The same of a recent token: row t % R, rotated already. */
static void decode_recent(const qn_view *recent, int64_t b, int64_t t, int64_t h, float *row)
{
    const int64_t *s = recent->strides;
    ref_decode(recent->shape.format,
               (const char *)recent->data + b * s[0] + t % recent->shape.dims[1] * s[1] + h * s[2],
               recent->shape.dims[3], row);
}

static double plain_dot(const float *q, const float *k, int64_t size)
{
    double sum = 0.0;
    for (int64_t i = 0; i < size; i++) {
        sum += (double)q[i] * (double)k[i];
    }
    return sum;
}

/* q . k with k turned by position t. */
static double turned_dot(const qn_op_desc *desc, const qn_view *factors, const float *q, const float *k, int64_t size,
                         int64_t t)
{
    const double theta = (double)desc->attr[QN_ATTR_ROPE_THETA].f;
    const int half = desc->attr[QN_ATTR_STYLE].i == QN_ROPE_HALF;
    double sum = 0.0;
    if (theta == 0.0) {
        return plain_dot(q, k, size);
    }
    for (int64_t i = 0; i < size / 2; i++) {
        const double angle = (double)t * ref_rope_frequency(theta, factors, i, size), c = cos(angle), s = sin(angle);
        const int64_t first = half ? i : 2 * i, second = half ? i + size / 2 : 2 * i + 1;
        const double a = (double)k[first], b = (double)k[second];
        sum += (double)q[first] * (a * c - b * s) + (double)q[second] * (b * c + a * s);
    }
    return sum;
}

void qn_ref_vq_attention(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    const qn_view *q = &args->in[QN_VQA_Q], *kc = &args->in[QN_VQA_K_CODES];
    const qn_view *factors = &args->in[QN_VQA_ROPE_FACTORS];
    const qn_mut_view *o = &args->out[QN_VQA_OUT_O], *lse = &args->out[QN_VQA_OUT_LSE];
    const int64_t heads = q->shape.dims[1], size = q->shape.dims[2], room = qn_vq_room(desc);
    const int64_t shared = kc->shape.dims[2] > 0 ? heads / kc->shape.dims[2] : 1;
    double scale = (double)desc->attr[QN_ATTR_SCALE].f;
    if (scale == 0.0) {
        scale = 1.0 / sqrt((double)size);
    }
    double *const scores = scratch, *const sum = scores + room;
    float *const query = (float *)(sum + size), *const row = query + size;
    for (int64_t b = 0; b < q->shape.dims[0]; b++) {
        const int64_t seen = ref_i32(args->in[QN_VQA_SEQ_LENS].data, b);
        const int32_t window = desc->attr[QN_ATTR_WINDOW].i;
        const int64_t recent = window > 0 ? qn_window_first(seen, window) : seen; /* the first token read from there */
        for (int64_t h = 0; h < heads; h++) {
            double most = -INFINITY, total = 0.0;
            ref_decode(q->shape.format, ref_row3(q, b, h), size, query);
            for (int64_t t = 0; t < seen; t++) {
                if (t < recent) {
                    decode(desc, args, QN_VQA_K_CODES, b, t, h / shared, row);
                    scores[t] = size > 0 ? turned_dot(desc, factors, query, row, size, t) * scale : 0.0;
                } else {
                    decode_recent(&args->in[QN_VQA_K_RECENT], b, t, h / shared, row);
                    scores[t] = scale * plain_dot(query, row, size);
                }
                most = scores[t] > most ? scores[t] : most;
            }
            for (int64_t i = 0; i < size; i++) {
                sum[i] = 0.0;
            }
            for (int64_t t = 0; t < seen; t++) {
                const double p = exp(scores[t] - most);
                total += p;
                if (t < recent) {
                    decode(desc, args, QN_VQA_V_CODES, b, t, h / shared, row);
                } else {
                    decode_recent(&args->in[QN_VQA_V_RECENT], b, t, h / shared, row);
                }
                for (int64_t i = 0; i < size; i++) {
                    sum[i] += p * (double)row[i];
                }
            }
            for (int64_t i = 0; i < size; i++) {
                ref_store(QN_F32, ref_out_row3(o, b, h), i, seen > 0 ? sum[i] / total : 0.0);
            }
            ref_store(QN_F32, ref_out_row(lse, b), h, seen > 0 ? most + log(total) : -INFINITY);
        }
    }
}
