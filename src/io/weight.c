/* Numbers out of stored weights: the exact meaning of each layout, one row at a time. */
#include <string.h>

#include "format/format.h"
#include "io/checkpoint.h"

/* GGUF files of architecture llama store the two halves of each head's rows
 * interleaved: stored 2j + i is logical i * rows/2 + j. */
int64_t qn_weight_source_row(const qn_weight *weight, int64_t row)
{
    const int64_t rows = weight->rope_interleaved;
    if (!rows) {
        return row;
    }
    const int64_t in_head = row % rows, half = rows / 2;
    return row - in_head + 2 * (in_head % half) + in_head / half;
}

qn_format qn_weight_format(const qn_weight *w)
{
    return w->blocks ? w->blocks : w->data.shape.format;
}

size_t qn_weight_row_bytes(const qn_weight *w)
{
    size_t bytes = (size_t)w->data.strides[0];
    if (w->blocks) {
        (void)qn_format_row_bytes(w->blocks, w->k, &bytes, NULL); /* the reader has checked it */
    }
    return bytes;
}

const char *qn_weight_row(const qn_weight *w, int64_t row)
{
    return (const char *)w->data.data + (size_t)qn_weight_source_row(w, row) * qn_weight_row_bytes(w);
}

int qn_weight_is_scattered(const qn_weight *w)
{
    return w->rope_interleaved || w->blocks;
}

char *qn_weight_copy_rows(const qn_weight *w, char *to)
{
    const size_t bytes = (size_t)w->data.strides[0];
    const qn_rewrite_fn rewrite = w->blocks ? qn_format_get_row(w->blocks)->rewrite : NULL;
    for (int64_t row = 0; row < w->n; row++, to += bytes) {
        const char *from = qn_weight_row(w, row);
        if (rewrite) {
            rewrite(from, w->k, to);
        } else if (w->blocks) {
            qn_fp4_blocks_codes(w->blocks, from, w->k, (uint8_t *)to);
        } else {
            memcpy(to, from, bytes);
        }
    }
    return to;
}

char *qn_weight_copy_scales(const qn_weight *w, char *to)
{
    if (!w->blocks) {
        size_t bytes = 0;
        (void)qn_shape_bytes(&w->scale.shape, &bytes, NULL);
        memcpy(to, w->scale.data, bytes);
        return to + bytes;
    }
    for (int64_t row = 0; row < w->n; row++, to += w->scale.strides[0]) {
        qn_fp4_blocks_scales(w->blocks, qn_weight_row(w, row), w->k, (uint8_t *)to);
    }
    return to;
}

static float scale_at(const qn_weight *w, int64_t row, int64_t column)
{
    const int64_t stride = w->scale.strides[0];
    float value;
    qn_format format = w->scale.shape.format;
    if (format == QN_U8) {
        format = w->scheme->scale_format; /* e8m0 stored as plain bytes */
    }
    const qn_format_row *codec = qn_format_get_row(format);
    codec->decode((const char *)w->scale.data + row * stride + column * codec->info.block_bytes, 1, &value);
    return value;
}

void qn_weight_decode_row(const qn_weight *w, int64_t row, float *destination)
{
    const qn_scheme *s = w->scheme;
    const int64_t stored = qn_weight_source_row(w, row);
    if (w->ndim == 1) {
        const qn_format_row *codec = qn_format_get_row(w->data.shape.format);
        codec->decode((const char *)w->data.data + stored * codec->info.block_bytes, 1, destination);
        return;
    }
    const qn_format format = w->blocks ? w->blocks : s->scales == QN_SCALES_NONE ? w->data.shape.format : s->weight;
    qn_format_get_row(format)->decode(qn_weight_row(w, row), w->k, destination);
    if (w->blocks) {
        for (int64_t i = 0; s->global_scale && i < w->k; i++) {
            destination[i] /= w->global_scale;
        }
        return;
    }
    if (s->scales == QN_SCALES_NONE) {
        return;
    }
    const int64_t step = s->scales == QN_SCALES_CHANNEL ? w->k : s->block_k;
    const int64_t scale_row = s->scales == QN_SCALES_BLOCK ? stored / s->block_n : stored;
    for (int64_t k = 0, block = 0; k < w->k; k += step, block++) {
        const float scale = scale_at(w, scale_row, block);
        const int64_t end = k + step < w->k ? k + step : w->k;
        for (int64_t i = k; i < end; i++) {
            destination[i] *= scale;
        }
        for (int64_t i = k; s->global_scale && i < end; i++) {
            destination[i] /= w->global_scale; /* code times e4m3 scale is exact, so this rounds once */
        }
    }
}

void qn_weight_decode_vector(const qn_weight *w, float *destination)
{
    if (!w->rope_interleaved) {
        qn_format_get_row(w->data.shape.format)->decode(w->data.data, w->n, destination);
        return;
    }
    for (int64_t i = 0; i < w->n; i++) {
        qn_weight_decode_row(w, i, destination + i);
    }
}
