/* Keys and values from codes (kernels/common/kv.h). Included once by a folder's
 * kv_<isa>.c after its vec.h. A head's codebooks are about as large as the first
 * cache, so instructions are what can be saved: sixteen floats at a time, of entries
 * whose width is known. */
#include "kernels/common/kv.h"
#include "kernels/cpu/name.h"

#define FLOATS 16
#define AHEAD 16 /* rows whose codes are asked for: heads lie side by side, so a head's rows are far apart */

QN_INLINE size_t code_at(const uint8_t *codes, int64_t g, const int wide)
{
    return wide ? codes[2 * g] | (size_t)codes[2 * g + 1] << 8 : codes[g];
}

/* known: channels are 2, 4 or 8, a constant. */
QN_INLINE void row_of(const uint8_t *codes, const int wide, const uint16_t *books, int64_t groups, int64_t book,
                      const int64_t channels, const int known, float *out)
{
    int64_t g = 0;
    if (known) {
        const uint16_t *entry[FLOATS / 2];
        const int64_t each = FLOATS / channels;
        const char *at = (const char *)books; /* bytes: what an address can add by itself */
        for (; g + each <= groups; g += each, at += each * book * 2, out += FLOATS) {
#pragma GCC unroll 8
            for (int64_t i = 0; i < each; i++) {
                entry[i] = (const uint16_t *)(const void *)(at + i * book * 2 +
                                                            code_at(codes, g + i, wide) * (size_t)(channels * 2));
            }
            vec_entries(entry, (int)channels, out);
        }
    }
    for (; g < groups; g++, out += channels) {
        const uint16_t *const entry = books + g * book + (int64_t)code_at(codes, g, wide) * channels;
        int64_t j = 0;
        for (; !known && j + FLOATS <= channels; j += FLOATS) {
            const uint16_t *const eights[2] = {entry + j, entry + j + 8};
            vec_entries(eights, 8, out + j);
        }
        for (; j < channels; j++) {
            out[j] = f16_value(entry[j]);
        }
    }
}

/* x[0 .. half) turns with x[half .. 2 half). */
QN_INLINE void turn_row(float *x, const float *turn, int64_t half)
{
    float *const y = x + half;
    const float *const sine = turn + half;
    int64_t i = 0;
    for (; i + VL <= half; i += VL) {
        const vf a = vf_load(x + i), b = vf_load(y + i), c = vf_load(turn + i), s = vf_load(sine + i);
        vf_store(x + i, vf_sub(vf_mul(a, c), vf_mul(b, s)));
        vf_store(y + i, vf_add(vf_mul(b, c), vf_mul(a, s)));
    }
    for (; i < half; i++) {
        const float a = x[i], b = y[i];
        x[i] = a * turn[i] - b * sine[i];
        y[i] = b * turn[i] + a * sine[i];
    }
}

QN_INLINE void decode_rows(const qn_kv_rows *r, int64_t count, const int wide, const int64_t channels, int64_t book,
                           const int known, float *out, int64_t out_stride)
{
    const int64_t half = r->groups * channels / 2;
    for (int64_t i = 0; i < count; i++, out += out_stride) {
        vec_prefetch(r->codes + (i + AHEAD) * r->stride);
        row_of(r->codes + i * r->stride, wide, r->books, r->groups, book, channels, known, out);
        if (r->turns) {
            turn_row(out, r->turns + i * 2 * half, half);
        }
    }
}

/* entries: of a book, a constant, or 0. */
QN_INLINE void decode_any(const qn_kv_rows *r, int64_t count, const int wide, const int64_t entries, float *out,
                          int64_t out_stride)
{
    const int64_t each = entries ? entries : r->entries;
    switch (r->channels) {
    case 2: decode_rows(r, count, wide, 2, 2 * each, 1, out, out_stride); break;
    case 4: decode_rows(r, count, wide, 4, 4 * each, 1, out, out_stride); break;
    case 8: decode_rows(r, count, wide, 8, 8 * each, 1, out, out_stride); break;
    default: decode_rows(r, count, wide, r->channels, r->channels * each, 0, out, out_stride);
    }
}

static void kv_decode(const qn_kv_rows *r, int64_t count, float *out, int64_t out_stride)
{
    if (r->wide) {
        decode_any(r, count, 1, 0, out, out_stride);
    } else if (r->entries == 256) {
        decode_any(r, count, 0, 256, out, out_stride);
    } else {
        decode_any(r, count, 0, 0, out, out_stride);
    }
}

const qn_kv_set QN_NAME(kv) = {kv_decode};
