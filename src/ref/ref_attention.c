/* attention: o[t,h] = sum over visible keys s of softmax(scale * q[t,h].k[s,h']) v[s,h'],
 * h' = h / (Hq / Hkv), all in double, one rounding. Causal: query t of T
 * sees keys 0 .. S - T + t. A query that sees no key gives zeros. scaled_attention: element i of k[s,h] is code times
 * k_scale[s,h] rounded to f32, of v likewise; with a window keys from qn_window_first on are row s % R of k_recent,
 * v_recent. */
#include <math.h>

#include "ref/ref_common.h"

/* Row (i, j) as floats, times its scale where it has one. */
static void decode(const qn_view *view, const qn_view *scales, int64_t i, int64_t j, int64_t size, float *row)
{
    ref_decode(view->shape.format, ref_row3(view, i, j), size, row);
    if (ref_has(scales)) {
        const float scale = ref_f32(ref_row(scales, i), j);
        for (int64_t k = 0; k < size; k++) {
            row[k] *= scale;
        }
    }
}

void qn_ref_attention(const qn_op_desc *desc, const qn_args *args, void *scratch)
{
    const qn_view *q = &args->in[QN_ATT_Q], *k = &args->in[QN_ATT_K], *v = &args->in[QN_ATT_V];
    const qn_mut_view *o = &args->out[QN_ATT_OUT_O];
    const int64_t queries = q->shape.dims[0], heads = q->shape.dims[1], size = q->shape.dims[2];
    const int64_t keys = k->shape.dims[0], shared = k->shape.dims[1] > 0 ? heads / k->shape.dims[1] : 1;
    const int64_t window = desc->attr[QN_ATTR_WINDOW].i, rows = args->in[QN_ATT_K_RECENT].shape.dims[0];
    const qn_view none = {.shape = {.format = QN_FORMAT_NONE}};
    double scale = (double)desc->attr[QN_ATTR_SCALE].f;
    if (scale == 0.0) {
        scale = 1.0 / sqrt((double)size);
    }
    double *scores = scratch, *sum = scores + keys;
    float *query = (float *)(sum + size), *row = query + size;
    for (int64_t t = 0; t < queries && size > 0; t++) {
        int64_t seen = desc->attr[QN_ATTR_CAUSAL].i ? keys - queries + t + 1 : keys;
        seen = seen < 0 ? 0 : seen;
        const int64_t recent = window > 0 ? qn_window_first(seen, window) : seen; /* the first key read from there */
        for (int64_t h = 0; h < heads; h++) {
            ref_decode(q->shape.format, ref_row3(q, t, h), size, query);
            double most = -INFINITY, total = 0.0;
            for (int64_t s = 0; s < seen; s++) {
                if (s < recent) {
                    decode(k, &args->in[QN_ATT_K_SCALE], s, h / shared, size, row);
                } else {
                    decode(&args->in[QN_ATT_K_RECENT], &none, s % rows, h / shared, size, row);
                }
                double dot = 0.0;
                for (int64_t i = 0; i < size; i++) {
                    dot += (double)query[i] * (double)row[i];
                }
                scores[s] = dot * scale;
                most = scores[s] > most ? scores[s] : most;
            }
            for (int64_t i = 0; i < size; i++) {
                sum[i] = 0.0;
            }
            for (int64_t s = 0; s < seen; s++) {
                const double p = exp(scores[s] - most);
                total += p;
                if (s < recent) {
                    decode(v, &args->in[QN_ATT_V_SCALE], s, h / shared, size, row);
                } else {
                    decode(&args->in[QN_ATT_V_RECENT], &none, s % rows, h / shared, size, row);
                }
                for (int64_t i = 0; i < size; i++) {
                    sum[i] += p * (double)row[i];
                }
            }
            char *out = ref_out_row3(o, t, h);
            for (int64_t i = 0; i < size; i++) {
                ref_store(o->shape.format, out, i, seen > 0 ? sum[i] / total : 0.0);
            }
        }
    }
}
